"""Somebody's own code by name: a module on the path, in the working folder, or a file."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from codeward._errors import InputError


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
        return importlib.import_module(module)
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
