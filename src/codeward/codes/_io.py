"""Code files: CSV of 0/1, ``.npy``, and ``.json`` with names. Nothing is ever unpickled."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward._files import write_atomic, write_text_atomic
from codeward.codes._code import Code

#: Larger code files are refused before they are read: 10,000 models x 10,000 users fit.
MAX_FILE_BYTES = 256 * 2**20


def save_code(code: Code, path: str | os.PathLike[str]) -> None:
    """Write ``code`` to ``path`` atomically, in the format its suffix names."""
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        rows = ("".join(("1" if bit else "0") + "," for bit in row)[:-1] for row in code.matrix)
        write_text_atomic(path, "\n".join(rows) + "\n")
    elif suffix == ".npy":
        write_atomic(path, lambda out: np.save(out, code.matrix, allow_pickle=False))
    elif suffix == ".json":
        write_text_atomic(path, json.dumps(code_to_json(code), indent=1) + "\n")
    else:
        raise InputError(f"{path}: a code file ends in .csv, .npy or .json")


def load_code(path: str | os.PathLike[str]) -> Code:
    """Read a code file; a wrong one is an `InputError` that names the file and the place."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: no such code file")
    if file.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{file}: {file.stat().st_size} bytes is too large for a code file ({MAX_FILE_BYTES} at most)")
    readers = {".csv": _read_csv, ".npy": _read_npy, ".json": _read_json}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InputError(f"{file}: a code file ends in .csv, .npy or .json")
    try:
        return reader(file)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except (OSError, EOFError, ValueError) as error:  # json and numpy raise ValueErrors of their own
        raise InputError(f"{file}: not a readable code file ({error})") from error


def code_to_json(code: Code) -> dict[str, Any]:
    """Plain JSON form of a code: ``matrix`` of 0/1 rows, ``users``, ``models``, ``construction``, ``digest``."""
    return {
        "matrix": code.matrix.astype(int).tolist(),
        "users": list(code.users) if code.users else None,
        "models": list(code.models) if code.models else None,
        "construction": code.construction,
        "digest": code.digest,
    }


def _read_csv(file: Path) -> Code:
    rows: list[list[int]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        for place, cell in enumerate(cells):
            if cell not in ("0", "1"):
                raise InputError(f"line {number}, column {place}: expected 0 or 1, found {cell!r}")
        if rows and len(cells) != len(rows[0]):
            raise InputError(f"line {number} has {len(cells)} entries, the first has {len(rows[0])}")
        rows.append([int(cell) for cell in cells])
    if not rows:
        raise InputError("the file holds no rows")
    return Code(rows)


def _read_npy(file: Path) -> Code:
    return Code(np.load(file, allow_pickle=False))


def _read_json(file: Path) -> Code:
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, list):
        return Code(content)
    if not isinstance(content, dict) or "matrix" not in content:
        raise InputError('expected a JSON object with "matrix" (rows of 0 and 1)')
    names: dict[str, list[str] | None] = {}
    for key in ("users", "models"):
        given = content.get(key)
        # `design --json` counts users and models under these keys; only lists are names.
        if isinstance(given, list) and not all(isinstance(name, str) for name in given):
            raise InputError(f'"{key}" must be a list of names')
        names[key] = given if isinstance(given, list) else None
    return Code(content["matrix"], names["users"], names["models"], str(content.get("construction") or ""))
