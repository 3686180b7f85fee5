"""Code files: CSV of 0/1, ``.npy``, and ``.json`` with names. Nothing is ever unpickled."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward._files import open_regular, read_json, read_npy, write_atomic, write_text_atomic
from codeward.codes._code import Code

#: Larger code files are refused before they are read: 10,000 models x 10,000 users fit as .csv or .npy.
MAX_FILE_BYTES = 256 * 2**20
#: JSON takes twelve times its size in memory; 2,000 models x 2,000 users fit.
MAX_JSON_BYTES = 32 * 2**20
#: Models (lines) of a CSV file, and bytes of one line: half as many users.
MAX_CSV_LINES = 200_000
MAX_CSV_LINE = 2 * 2**20


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
    readers = {".csv": _read_csv, ".npy": _read_npy, ".json": _read_json}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InputError(f"{file}: a code file ends in .csv, .npy or .json")
    try:
        return reader(file)
    except InputError as error:
        reason, prefix = str(error), f"{file}: "
        if reason.startswith(prefix):  # the shared readers name the file
            reason = f"not a readable code file ({reason.removeprefix(prefix)})"
        raise InputError(prefix + reason) from error


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
    rows: list[bytes] = []
    with open_regular(file, MAX_FILE_BYTES) as handle:
        number = 0
        while line := handle.readline(MAX_CSV_LINE + 1):
            number += 1
            if len(line) > MAX_CSV_LINE:
                raise InputError(f"line {number} is longer than {MAX_CSV_LINE:,} bytes")
            if number > MAX_CSV_LINES:
                raise InputError(f"more than {MAX_CSV_LINES:,} lines")
            row = _read_row(line, number)
            if row and rows and len(row) != len(rows[0]):
                raise InputError(f"line {number} has {len(row)} entries, the first has {len(rows[0])}")
            if row:
                rows.append(row)
    if not rows:
        raise InputError("the file holds no rows")
    return Code(np.frombuffer(b"".join(rows), dtype=bool).reshape(len(rows), -1))


def _read_row(line: bytes, number: int) -> bytes:
    """Return one byte a cell, 0 or 1; nothing for an empty line."""
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"line {number} is not UTF-8 text") from error
    cells = np.frombuffer("".join(text.split()).encode(), dtype=np.uint8)
    values, between = cells[::2], cells[1::2]
    if cells.size == 0 or (cells.size % 2 and (values >> 1 == ord("0") >> 1).all() and (between == ord(",")).all()):
        return (values & 1).tobytes()
    place, cell = next((j, c.strip()) for j, c in enumerate(text.split(",")) if c.strip() not in ("0", "1"))
    shown = cell if len(cell) <= 40 else cell[:40] + "..."
    raise InputError(f"line {number}, column {place}: expected 0 or 1, found {shown!r}")


def _read_npy(file: Path) -> Code:
    return Code(read_npy(file, MAX_FILE_BYTES))


def _read_json(file: Path) -> Code:
    content = read_json(file, MAX_JSON_BYTES)
    matrix = content.get("matrix") if isinstance(content, dict) else content
    if not isinstance(matrix, list):
        raise InputError('expected a JSON object with "matrix" (rows of 0 and 1)')
    for i, row in enumerate(matrix):
        if not isinstance(row, list):
            raise InputError(f'row {i} of "matrix" is not a list of 0 and 1')
        wrong = next((j for j, cell in enumerate(row) if cell not in (0, 1)), None)
        if wrong is not None:
            raise InputError(f'row {i}, column {wrong} of "matrix" is not 0 or 1')
    if isinstance(content, list):
        return Code(matrix)
    names: dict[str, list[str] | None] = {}
    for key in ("users", "models"):
        given = content.get(key)
        # `design --json` counts users and models under these keys; only lists are names.
        if isinstance(given, list) and not all(isinstance(name, str) for name in given):
            raise InputError(f'"{key}" must be a list of names')
        names[key] = given if isinstance(given, list) else None
    code = Code(matrix, names["users"], names["models"], str(content.get("construction") or ""))
    told = content.get("digest")
    if told is not None and told != code.digest:
        raise InputError(
            f"the matrix has digest {code.digest}, but the file says {str(told)[:64]}: it was changed after it was "
            'written; take "digest" out to use it all the same'
        )
    return code
