"""Names of a package that are imported on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(package: str, home: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names, given by module, are imported on first use."""
    homes = {name: module for module, names in home.items() for name in names.split()}

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted(homes)
