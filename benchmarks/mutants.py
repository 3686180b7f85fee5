"""Small changes to functions, made in memory: what ``benchmarks/mutate.py`` tries the tests on.

Comparisons, off by one, and/or, plus/minus, not, min/max, any/all, constants. Not changed: defaults of arguments,
values of modules and classes, and errors raised.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"

FLIPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin",
           "minimum": "maximum", "maximum": "minimum"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the function it is in, in words that outlive line numbers, and the function's changed code."""

    part: str
    module: str
    function: str
    key: str
    code: CodeType | None


def list_mutants(part: str, path: Path, wanted: set[tuple[str, str]] | None = None) -> Iterator[Mutant]:
    """Yield every change of one module; with code for those ``wanted``."""
    module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    tree = ast.parse(path.read_text())
    seen: dict[str, int] = {}
    for node, scope in list(_walk(tree)):
        function = _function(tree, scope)
        if function is None:
            continue
        for holder, place, value in list(_changes(node)):
            around = _statement(node)
            before, old = ast.unparse(around), _put(holder, place, value)
            key = f"{scope}: {before} -> {ast.unparse(around)}"
            seen[key] = seen.get(key, 0) + 1
            key = key if seen[key] == 1 else f"{key} ({seen[key]})"
            code = None
            if wanted is not None and (module, key) in wanted:
                whole = compile(ast.fix_missing_locations(tree), str(path), "exec")
                code = next(found for found in _codes(whole) if found.co_qualname == function)
            _put(holder, place, old)
            yield Mutant(part, module, function, key, code)


def _function(tree: ast.Module, scope: str) -> str | None:
    """Return the outermost function or method around a scope, None outside of any."""
    path = scope.split(".")
    top = next((node for node in tree.body if getattr(node, "name", None) == path[0]), None)
    if isinstance(top, ast.FunctionDef):
        return path[0]
    return ".".join(path[:2]) if isinstance(top, ast.ClassDef) and len(path) > 1 else None


def _put(holder: Any, place: Any, value: Any) -> Any:
    """Put a value into a list or node; return what was there."""
    if isinstance(holder, list):
        old, holder[place] = holder[place], value
        return old
    old = getattr(holder, place)
    setattr(holder, place, value)
    return old


def _statement(node: ast.AST) -> ast.AST:
    """Return the expression around a node that is named in the key."""
    up = getattr(node, "up", None)
    while up is not None and isinstance(node, ast.Constant | ast.UnaryOp) and not isinstance(up, ast.stmt | ast.mod):
        node, up = up, getattr(up, "up", None)
    return up if isinstance(node, ast.Constant | ast.UnaryOp) and up is not None else node


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Walk over everything that runs, with the name of the function around it; no annotations, no errors raised."""

    def visit(node: ast.AST, scope: str) -> Iterator[tuple[ast.AST, str]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}" if scope else node.name
        yield node, scope
        for name, value in ast.iter_fields(node):
            if isinstance(node, ast.keyword) and node.arg == "strict":
                continue  # of zip: an error raised
            if name in ("annotation", "returns", "decorator_list", "type_params", "defaults", "kw_defaults"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.Raise):
                    child.up = node  # type: ignore[attr-defined]
                    yield from visit(child, scope)

    yield from visit(tree, "")


def _changes(node: ast.AST) -> Iterator[tuple[Any, Any, Any]]:
    """Yield changes: a list or node, the place in it, and what to put there."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in FLIPPED:
                yield node.ops, place, FLIPPED[type(operator)]()
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign) and type(node.op) in FLIPPED:
        yield node, "op", FLIPPED[type(node.op)]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        parent: Any = node.up  # type: ignore[attr-defined]
        for name, value in ast.iter_fields(parent):
            if value is node:
                yield parent, name, node.operand
            elif isinstance(value, list) and node in value:
                yield value, value.index(node), node.operand
    elif isinstance(node, ast.Call):
        field = "attr" if isinstance(node.func, ast.Attribute) else "id"
        if getattr(node.func, field, None) in SWAPPED:
            yield node.func, field, SWAPPED[getattr(node.func, field)]
    elif isinstance(node, ast.Constant) and not isinstance(getattr(node, "up", None), ast.Expr | ast.JoinedStr):
        if isinstance(node.value, bool):
            yield node, "value", not node.value
        elif isinstance(node.value, int | float):
            yield node, "value", node.value + 1
            if node.value > 0:
                yield node, "value", node.value - 1


def put_in_place(mutant: Mutant) -> None:
    """Give the function that is changed its changed code, wherever it has been imported to."""
    found: Any = sys.modules[mutant.module]
    for name in mutant.function.split("."):
        found = vars(found)[name]
    for inner in ("fget", "func", "__func__", "__wrapped__", "py_func"):
        found = getattr(found, inner, None) or found
    found.__code__ = mutant.code


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
