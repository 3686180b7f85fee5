"""The code matrix H: which user feeds which sub-model; and its files: CSV of 0/1, ``.npy``, ``.json`` with names.

Nothing is ever unpickled.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward._files import open_regular, read_json, read_npy, write_atomic, write_json, write_text_atomic
from codeward._notebook import Displayed, Sheet


@dataclass(frozen=True, eq=False, init=False)
class Code(Displayed):
    r"""A binary matrix :math:`H \in \{0,1\}^{m \times n}`; :math:`H_{ij} = 1` when model i learns from user j.

    Parameters
    ----------
    matrix : array_like, shape (m, n)
        Zeros and ones (or booleans). No empty row (a model without data), no zero column (a user without model).
    users : sequence of str, optional
        Names of the n users, distinct.
    models : sequence of str, optional
        Names of the m sub-models, distinct.
    construction : str, optional
        How the matrix was made; carried along, not part of equality.

    Notes
    -----
    The object is immutable: ``matrix`` is a read-only copy. Two codes are equal when their matrices and names are.

    Examples
    --------
    >>> code = Code([[1, 0, 1], [0, 1, 1]], users=["ann", "bob", "eve"])
    >>> code.n_models, code.n_users, code.row_weight
    (2, 3, 2)
    >>> code.pattern([0]).tolist()  # the models that learn from ann
    [True, False]
    >>> code.plot()  # a notebook shows it; .save("code.svg") writes it
    <Drawing: Code matrix: 2 sub-models, 3 users>
    """

    matrix: NDArray[np.bool_]
    users: tuple[str, ...] | None
    models: tuple[str, ...] | None
    construction: str

    def __init__(
        self,
        matrix: ArrayLike,
        users: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        construction: str = "",
    ) -> None:
        checked = _check_matrix(matrix)
        checked.setflags(write=False)
        object.__setattr__(self, "matrix", checked)
        object.__setattr__(self, "users", _check_names(users, checked.shape[1], "user"))
        object.__setattr__(self, "models", _check_names(models, checked.shape[0], "model"))
        object.__setattr__(self, "construction", str(construction))

    @property
    def n_models(self) -> int:
        """Number of sub-models m (rows)."""
        return int(self.matrix.shape[0])

    @property
    def n_users(self) -> int:
        """Number of users n (columns)."""
        return int(self.matrix.shape[1])

    @property
    def row_weight(self) -> int:
        r"""Least number of users of a model, :math:`r = \min_i \sum_j H_{ij}`."""
        return int(self.matrix.sum(axis=1).min())

    @property
    def utilization(self) -> float:
        """Data utilization ratio r / n of the poorest model, users counted alike."""
        return self.row_weight / self.n_users

    def column(self, user: int) -> NDArray[np.bool_]:
        """Models that learn from ``user``, shape (m,): the hit pattern of that user alone."""
        column: NDArray[np.bool_] = self.matrix[:, _check_user(user, self.n_users)]
        return column

    def pattern(self, attackers: Iterable[int]) -> NDArray[np.bool_]:
        r"""Hit pattern of an attacker set, shape (m,): :math:`s = \bigvee_{j \in x} H_{\cdot j}` (a k-sum).

        The empty set gives the zero pattern.
        """
        chosen = [_check_user(user, self.n_users) for user in attackers]
        return np.asarray(self.matrix[:, chosen].any(axis=1))

    def user_name(self, user: int) -> str:
        """Name of a user; its index as text where the code has no names."""
        return self.users[user] if self.users else str(user)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the shape and the matrix (names do not count), in hex."""
        head = f"codeward-code {self.n_models} {self.n_users}\n".encode()
        return hashlib.sha256(head + np.packbits(self.matrix).tobytes()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the code as ``.csv`` (0/1, one row a model), ``.npy`` or ``.json`` (with names), by suffix."""
        save_code(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Code":
        """Read a code file written by `save` or by anyone: CSV of 0/1, ``.npy`` or ``.json``."""
        return load_code(path)

    def _sheet(self) -> Sheet:
        from codeward._charts import draw_matrix

        small = self.matrix.size > 50_000  # past that no cell is seen anyhow
        columns = {self.user_name(user): self.column(user).astype(int).tolist() for user in range(self.n_users)}
        title = f"{self.n_models} sub-models, each of at least {self.row_weight} of {self.n_users} users"
        return Sheet(title, columns, lambda: draw_matrix(self.matrix, self.users, small=small), drawn=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Code):
            return NotImplemented
        same = self.matrix.shape == other.matrix.shape and bool((self.matrix == other.matrix).all())
        return same and self.users == other.users and self.models == other.models

    def __hash__(self) -> int:
        return hash((self.digest, self.users, self.models))

    def __repr__(self) -> str:
        return f"Code(m={self.n_models}, n={self.n_users}, r={self.row_weight}, digest={self.digest[:12]})"


def _check_matrix(matrix: ArrayLike) -> NDArray[np.bool_]:
    """Validate and copy to bool; every complaint names the place."""
    try:
        raw: NDArray[Any] = np.asarray(matrix)
    except ValueError as error:
        raise InputError("code: rows differ in length; a code is a rectangular matrix of 0 and 1") from error
    if raw.ndim != 2 or raw.shape[0] == 0 or raw.shape[1] == 0:
        raise InputError(f"code: expected a matrix with at least one row and one column, got shape {raw.shape}")
    if raw.dtype.kind not in "buif":
        raise InputError(f"code: entries must be 0 or 1, got dtype {raw.dtype}")
    wrong = ~((raw == 0) | (raw == 1)) if raw.dtype != bool else np.zeros((0, 0), dtype=bool)
    if wrong.any():
        i, j = (int(v) for v in np.argwhere(wrong)[0])
        raise InputError(f"code: row {i}, column {j} holds {raw[i, j]!s}; entries must be 0 or 1")
    binary: NDArray[np.bool_] = np.array(raw, dtype=bool, order="C")
    rows = np.flatnonzero(~binary.any(axis=1))
    if rows.size:
        raise InputError(f"code: row {int(rows[0])} has no 1: that model would have no data")
    columns = np.flatnonzero(~binary.any(axis=0))
    if columns.size:
        raise InputError(f"code: column {int(columns[0])} has no 1: that user's data would not be used")
    return binary


def _check_names(names: Sequence[str] | None, size: int, what: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    kept = tuple(str(name) for name in names)
    if len(kept) != size:
        raise InputError(f"code: {len(kept)} {what} names for {size} {what}s")
    if len(set(kept)) != size:
        twice = Counter(kept).most_common(1)[0][0]
        raise InputError(f"code: {what} name {twice!r} is given twice")
    return kept


def _check_user(user: int, n_users: int) -> int:
    index = int(user)
    if not 0 <= index < n_users:
        raise InputError(f"user {user} is not in 0..{n_users - 1}")
    return index


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
        write_json(path, code_to_json(code))
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
    """Return the JSON form of a code: ``matrix`` of 0/1 rows, ``users``, ``models``, ``construction``, ``digest``.

    Examples
    --------
    >>> code_to_json(Code([[1, 0], [0, 1]]))["matrix"]
    [[1, 0], [0, 1]]
    """
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
