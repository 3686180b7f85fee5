"""Names of a package that are imported on first use."""

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any


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
