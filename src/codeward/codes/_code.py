"""The code matrix H: which user feeds which sub-model."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError


@dataclass(frozen=True, eq=False, init=False)
class Code:
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
        from codeward.codes._io import save_code

        save_code(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Code":
        """Read a code file written by `save` or by anyone: CSV of 0/1, ``.npy`` or ``.json``."""
        from codeward.codes._io import load_code

        return load_code(path)

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
        twice = next(name for name in kept if kept.count(name) > 1)
        raise InputError(f"code: {what} name {twice!r} is given twice")
    return kept


def _check_user(user: int, n_users: int) -> int:
    index = int(user)
    if not 0 <= index < n_users:
        raise InputError(f"user {user} is not in 0..{n_users - 1}")
    return index
