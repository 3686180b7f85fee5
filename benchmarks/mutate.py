"""Mutation run: do the tests notice when what is proved is changed? ``make mutate``, not part of CI.

A seeded sample of small changes (comparisons, off by one, and/or, plus/minus, not, min/max, any/all, constants) to the
functions that decide what is promised. The quick tests of a part are collected once; for each change a process is
forked, the changed function is put in place of the original in its memory, and the tests run until one fails, with the
compiler off (NUMBA_DISABLE_JIT=1) and few examples a property. No file is changed. A change that no test notices is
printed; those that change nothing a test could see are listed with the reason in
``benchmarks/records/equivalent_mutants.json``.

    python -m benchmarks.mutate [--sample 150] [--seed 0] [--only PART] [--match REGEX] [--again FILE] [-o FILE]
        [--record FILE]

Not changed: defaults of arguments, values of modules and classes, and errors raised. Not in any part: how the soft
decoders are fitted (``decoding/soft/``: ``_boosting.py``, ``_ratios.py``, ``_opinions.py``, ``_fitting.py``), measured,
not proved, and collective certificates.

Measured with seed 0, 150 mutants of each part (``benchmarks/records/mutants.json``); share killed of those that are
not equivalent. The decoders and breakers are a run of the whole sample and a second one of its survivors, after tests
were added and equivalent mutants listed:

    =========  =======  =======  ======  ==========  =========  ======
    part       mutants  sampled  killed  equivalent  surviving  share
    =========  =======  =======  ======  ==========  =========  ======
    codes          287      150     137          10          3   97.9%
    verdicts       301      150     133          17          0    100%
    posterior      204      150     142           8          0    100%
    kernels        322      150     137          13          0    100%
    breakers       383      150     126          24          0    100%
    =========  =======  =======  ======  ==========  =========  ======

The parts pruned, pooling and soft have not been measured, and verdicts and posterior not since ties are listed.
"""

import argparse
import ast
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
EQUIVALENT = ROOT / "benchmarks" / "records" / "equivalent_mutants.json"

#: Parts by name: the modules (patterns of paths under src/codeward) and the tests that are to notice.
PARTS: dict[str, tuple[list[str], list[str]]] = {
    "codes": (
        ["codes/_properties.py", "codes/_patterns.py", "codes/_conflicts.py"],
        [
            "tests/codes/test_pattern_table.py",
            "tests/codes/test_conflicts.py::test_lookup_finds_what_comparing_all_pairs_finds",
            "tests/codes/test_conflicts.py::test_sets_walked_in_parts_give_the_same_conflicts",
            "tests/codes/test_conflicts.py::test_margins_are_looked_up_as_they_are",
            "tests/codes/test_properties.py",
            "tests/codes/test_paper.py",
            "tests/certificates/test_theory.py",
        ],
    ),
    "verdicts": (
        ["decoding/_vote_counting.py", "decoding/_decoded.py", "decoding/_attacker_sets.py"],
        [
            "tests/decoding/test_counting_twins.py",
            "tests/decoding/test_verdict_twins.py",
            "tests/decoding/test_bayes_twins.py",
            "tests/decoding/test_two_group_twins.py",
        ],
    ),
    "posterior": (
        ["decoding/_bayes.py", "decoding/_two_groups.py"],
        [
            "tests/decoding/test_bayes_twins.py",
            "tests/decoding/test_two_group_twins.py",
            "tests/decoding/test_bayes.py::test_wrong_input_is_refused_in_words",
            "tests/decoding/test_bayes.py::test_evidence_of_every_set_is_refused_when_there_are_too_many",
            "tests/decoding/test_two_groups.py::test_what_cannot_be_decoded_is_refused_with_a_reason",
            "tests/decoding/test_two_groups.py::test_many_users_are_refused_before_their_sets_are_listed",
            "tests/decoding/test_two_groups.py::test_one_class_is_refused",
        ],
    ),
    "kernels": (
        ["decoding/_posterior_kernels.py", "decoding/_pair_kernels.py"],
        ["tests/decoding/test_bayes_twins.py", "tests/decoding/test_two_group_twins.py"],
    ),
    "pruned": (["decoding/_pruned*.py"], ["tests/decoding/test_pruned.py"]),
    "pooling": (["decoding/_pooling.py"], ["tests/decoding/test_pooling.py", "tests/decoding/test_explanation.py"]),
    "soft": (
        ["decoding/soft/_c*.py", "decoding/soft/_explanations.py", "decoding/soft/_simulation.py"],
        [
            "tests/decoding/test_soft_calibration.py",
            "tests/decoding/test_soft_candidates.py",
            "tests/decoding/test_soft_explanations.py",
            "tests/decoding/test_soft_simulation.py",
        ],
    ),
    "breakers": (
        ["certificates/_breakers.py", "certificates/_coverage.py", "certificates/_pointwise.py"],
        [
            "tests/certificates/test_breakers.py",
            "tests/certificates/test_classes.py",
            "tests/certificates/test_certify.py",
            "tests/certificates/test_published.py",
            "tests/certificates/test_collective.py",
            "tests/certificates/test_soundness.py",
        ],
    ),
}
#: Tests that import torch, read results or take minutes without the compiler.
LEFT_OUT = (
    *("every_proposition", "torch_device", "missing_is_said[soft", "real_models", "within_a_minute", "drawn_to"),
    *(
        "recorded_votes",
        "repeated_and_shuffled",
        "unlikely_hypotheses",
        "bagging",
        "sometimes_larger",
        "collective.py::test_patterns",
    ),
)
#: Examples of a property in one run, and how many times the undisturbed run's seconds a mutant gets.
EXAMPLES, PATIENCE = 15, 5

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


class _Few:
    """Fewer examples a property, always the same, and nothing slow."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Change the settings of what was collected."""
        from hypothesis import Phase, settings

        items[:] = [item for item in items if not any(word in item.nodeid for word in LEFT_OUT)]
        for item in items:
            inner = getattr(item.obj, "_hypothesis_internal_use_settings", None)
            if inner is not None:
                few = min(inner.max_examples, EXAMPLES)
                quick = settings(
                    inner, max_examples=few, derandomize=True, deadline=None, database=None, phases=[Phase.generate]
                )
                getattr(item.obj, "__func__", item.obj)._hypothesis_internal_use_settings = quick


class _Loop:
    """Runs the collected tests once for every mutant instead of once."""

    def __init__(self, name: str, mutants: list[Mutant], reasons: dict[str, str]) -> None:
        self.name, self.mutants, self.reasons = name, mutants, reasons
        self.survivors: list[Mutant] = []
        self.counts: dict[str, int] = {}
        self.sound = False

    def pytest_runtestloop(self, session: Any) -> bool:
        """Fork, change, run; print what happened."""
        verdict, seconds = _run(session, None, 600)
        self.sound = verdict == "passed"
        if not self.sound:
            return True
        print(f"{self.name}: {len(self.mutants)} mutants, {len(session.items)} tests, {seconds:.0f} s", flush=True)
        counts = {"failed": 0, "timeout": 0, "passed": 0, "equivalent": 0}
        for mutant in self.mutants:
            verdict = "equivalent"
            if mutant.key not in self.reasons:
                verdict, _ = _run(session, mutant, max(10.0, PATIENCE * seconds))
            counts[verdict] += 1
            if verdict == "passed":
                self.survivors.append(mutant)
                print(f"  survived: {mutant.module} {mutant.key}", flush=True)
        killed = counts["failed"] + counts["timeout"]
        self.counts = {
            "sampled": len(self.mutants),
            "killed": killed,
            "killed_by_time": counts["timeout"],
            "equivalent": counts["equivalent"],
            "surviving": counts["passed"],
        }
        share = killed / max(1, killed + counts["passed"])
        print(
            f"{self.name}: {killed} killed ({counts['timeout']} by time), {counts['passed']} survived, "
            f"{counts['equivalent']} equivalent: {share:.1%}",
            flush=True,
        )
        return True


def _run(session: Any, mutant: Mutant | None, seconds: float) -> tuple[str, float]:
    """Run the tests of a session in a forked process; "passed", "failed" or "timeout", and how long it took."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            if mutant is not None:
                put_in_place(mutant)
            for item in session.items:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                if session.testsfailed:
                    break
            code = int(session.testsfailed > 0)
        finally:
            os._exit(code)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        spent = time.monotonic() - begin
        if done:
            return ("passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"), spent
        if spent > seconds:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout", spent
        time.sleep(0.02)


def main(arguments: list[str] | None = None) -> int:
    """Sample, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=150, help="mutants to try of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--match", default="", help="regular expression that the key must contain")
    parser.add_argument("--again", type=Path, help="survivors of an earlier run (JSON) instead of a sample")
    parser.add_argument("--show", action="store_true", help="list the sample and stop")
    parser.add_argument("-o", "--output", type=Path, help="survivors as JSON")
    parser.add_argument("--record", type=Path, help="counts of every part as JSON; parts that were not run are kept")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    parts = {name: PARTS[name] for name in PARTS if given.only in (None, name)}
    files = [
        (name, path)
        for name, (globs, _) in parts.items()
        for path in sorted((SOURCE / "codeward").rglob("*.py"))
        if any(fnmatch(str(path.relative_to(SOURCE / "codeward")), glob) for glob in globs)
    ]
    for glob in (glob for globs, _ in parts.values() for glob in globs):
        if not any(fnmatch(str(path.relative_to(SOURCE / "codeward")), glob) for _, path in files):
            parser.error(f"no module is called {glob}")
    reasons = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    every = [mutant for name, path in files for mutant in list_mutants(name, path)]
    every = [mutant for mutant in every if re.search(given.match, f"{mutant.module} {mutant.key}")]
    # Each part by itself: a part alone gets the same sample as with all others.
    keys: set[tuple[str, str]] = set()
    for name in parts:
        mine = [(mutant.module, mutant.key) for mutant in every if mutant.part == name]
        keys |= set(random.Random(given.seed).sample(mine, min(given.sample, len(mine))))
    if given.again:
        keys = {(found["module"], found["key"]) for found in json.loads(given.again.read_text())}
    chosen = [m for name, path in files for m in list_mutants(name, path, keys) if m.code is not None]
    print(f"{len(chosen)} of {len(every)} mutants, seed {given.seed}")
    if given.show:
        for mutant in chosen:
            print(f"  {mutant.module} {mutant.key}")
        return 0
    import pytest

    survivors: list[dict[str, str]] = []
    record = json.loads(given.record.read_text()) if given.record and given.record.exists() else {}
    for name, (_, tests) in parts.items():
        loop = _Loop(name, [mutant for mutant in chosen if mutant.part == name], reasons)
        # Without the compiler NumPy warns where words of 64 bits wrap around.
        options = ["-q", "-s", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
        pytest.main([*options, "-m", "not slow", *tests], plugins=[_Few(), loop])
        if not loop.sound:
            print(f"{name}: its tests fail without any change")
            return 1
        survivors += [{"part": name, "module": mutant.module, "key": mutant.key} for mutant in loop.survivors]
        every_one = sum(mutant.part == name for mutant in every)
        record[name] = {"seed": given.seed, "mutants": every_one, **loop.counts}
        record[name]["survivors"] = [f"{mutant.module} {mutant.key}" for mutant in loop.survivors]
    if given.record:
        given.record.write_text(json.dumps(record, indent=1) + "\n")
    if given.output:
        given.output.write_text(json.dumps(survivors, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    raise SystemExit(main())
