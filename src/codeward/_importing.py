"""Importing by name: what a package offers, on first use; and somebody's own code, from the path or a file."""

import ast
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from codeward._errors import InputError


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package: what its ``__init__`` imports for checkers, on first use."""
    # From the source, so that every name is written once; pkgutil reads it from a zip archive too.
    source = pkgutil.get_data(package, "__init__.py") or b""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    homes = {name.name: node.module or "" for node in imports for name in node.names if node.module != "typing"}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "codeward").startswith("codeward"):
                raise
            hint = f"{package}.{name} needs {error.name}; pip install 'codeward[train]' brings it"
            raise ModuleNotFoundError(hint, name=error.name) from None

    return find, lambda: sorted(homes)


def import_named(module: str, what: str = "model") -> Any:
    """Import a module by name, the working folder on the path, or by the name of its file.

    Parameters
    ----------
    module : str
        ``package.module`` or ``path/file.py``.
    what : str
        Names it in errors.

    Examples
    --------
    >>> import_named("json").loads("3")
    3
    """
    try:
        if module.endswith(".py"):
            return _import_file(Path(module).resolve())
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        return import_module(module)
    except InputError:
        raise
    except Exception as error:  # another's code may raise anything
        raise InputError(f"{what}: {module} cannot be imported ({' '.join(str(error).split())[:120]})") from error


def _import_file(file: Path) -> Any:
    known = sys.modules.get(file.stem)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() == file:
        return known
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise InputError(f"{file}: no such file")
    if known is not None:
        raise InputError(f"{file}: its name is taken by the module {file.stem}; give the file another name")
    made = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[file.stem]
        raise
    return made
