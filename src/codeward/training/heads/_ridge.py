"""Ridge heads of the rows of a code: Gram matrices summed over users, and one Cholesky factorisation a head.

However the sums are made they have the same bytes, because they are exact (Proposition 30 of docs/theory.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.training.heads._user_statistics import GRAM_UNIT, SUM_UNIT, StatisticsSet, UserStatistics, packed_size

#: Bytes of Gram sums held at a time, and of the part of them that all users have in hand at once.
MEMORY, _TILE_MEMORY = 1 << 30, 1 << 28


@dataclass(frozen=True)
class _Atom:
    """Users whom the same models learn from: one summand to all of them."""

    members: tuple[UserStatistics, ...]

    def pack(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return columns ``start`` to ``stop`` of the upper triangle, in units of 2^-24."""
        total = np.zeros(packed_size(stop) - packed_size(start))
        rows = [user for user in self.members if user.steps is not None]
        if rows:
            # The triangle's columns are the rows of this product, cut at the diagonal.
            steps = np.concatenate([user.steps for user in rows])
            left = steps[:, :stop].astype(np.float64)
            right = left[:, start:]
            if rows[0].class_weight is not None:
                right = right * np.concatenate([user.weigh() for user in rows])[:, None]
            product = right.T @ left
            total += product[np.arange(stop)[None, :] <= np.arange(start, stop)[:, None]]
        for user in self.members:
            if user.gram is not None:
                total += user.gram[packed_size(start) : packed_size(stop)]
        return total


def sum_row_grams(
    statistics: StatisticsSet,
    rows: Sequence[Sequence[int]],
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield the number of each row and its Gram matrix: upper triangle, column after column, in units of 2^-24.

    Exact in any order of users and samples, so that a sum without a user is the sum less the user (Proposition 30 of
    docs/theory.md).

    Parameters
    ----------
    statistics : StatisticsSet
    rows : sequence of sequences of int
        The users of each model.
    memory : int
        Bytes of sums that are held at a time; the result does not depend on it.
    progress : Progress, optional
        Advances by one a row.

    Examples
    --------
    >>> from codeward.training.heads import gather_statistics
    >>> statistics = gather_statistics([[1.0, 0.0], [0.0, 0.5], [0.5, 0.5]], [0, 1, 1], [0, 1, 2], n_classes=2)
    >>> for row, gram in sum_row_grams(statistics, [[0, 1], [0, 1, 2]]):
    ...     print(row, gram * 2.0**-24)
    0 [1.   0.   0.25]
    1 [1.25 0.25 0.5 ]
    """
    bar = progress or silent()
    matrix = np.zeros((len(rows), statistics.n_users), bool)
    for row, users in enumerate(rows):
        matrix[row, list(users)] = True
    used = np.flatnonzero(matrix.any(axis=0))
    columns, atom_of = np.unique(matrix[:, used], axis=1, return_inverse=True)
    atoms = [
        _Atom(tuple(statistics.users[user] for user in used[atom_of.ravel() == atom]))
        for atom in range(columns.shape[1])
    ]
    if (columns.sum(axis=1) == 1).all():  # each row one group of users, as in a partition
        for row in range(len(rows)):
            yield row, atoms[int(columns[row].argmax())].pack(0, statistics.width)
            bar.advance()
        return
    yield from _sum_atoms(atoms, columns.astype(np.float64), statistics.width, memory, bar)


def _sum_atoms(
    atoms: list[_Atom], matrix: NDArray[np.float64], width: int, memory: int, bar: Progress
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Multiply the code by the atoms' triangles, as many rows at a time as memory holds."""
    size = packed_size(width)
    held = np.stack([atom.pack(0, width) for atom in atoms]) if len(atoms) * size * 8 <= memory else None
    n_block = max(1, memory // (size * 8))
    if held is not None:
        n_block = min(n_block, 32)  # what is held stays; the rest may be small
    n_columns = max(1, min(width, _TILE_MEMORY // (len(atoms) * width * 8)))
    for first in range(0, len(matrix), n_block):
        block = matrix[first : first + n_block]
        if held is not None:
            sums = block @ held
        else:
            sums = np.empty((len(block), size))
            for start in range(0, width, n_columns):
                stop = min(start + n_columns, width)
                tile = np.stack([atom.pack(start, stop) for atom in atoms])
                np.matmul(block, tile, out=sums[:, packed_size(start) : packed_size(stop)])
        for row, gram in enumerate(sums):
            yield first + row, gram
            bar.advance()


def solve_primal(gram: NDArray[np.float64], sums: NDArray[np.float64], ridge: float) -> NDArray[np.float32]:
    """Return (G + ridge I)^-1 B, shape (d, c), from a packed Gram matrix and class sums in their units."""
    full, _ = lapack.dtpttr(len(sums), gram, uplo="U")
    full *= GRAM_UNIT
    full[np.diag_indices_from(full)] += ridge
    return _factor_solve(full, sums * SUM_UNIT).astype(np.float32)


def solve_dual(users: Sequence[UserStatistics], n_classes: int, ridge: float) -> NDArray[np.float32]:
    """Return Z^T (Z Z^T + ridge / weights)^-1 Y, shape (d, c): the same head, for fewer samples than features.

    The products of rows of norm at most one are exact in float32 already (Proposition 30 of docs/theory.md).
    """
    rows = np.concatenate([user.steps for user in users])
    labels = np.concatenate([user.labels for user in users])
    weights = np.concatenate([user.weigh() for user in users])
    steps = rows.astype(np.float32)
    products = (steps @ steps.T).astype(np.float64)
    products *= GRAM_UNIT
    products[np.diag_indices_from(products)] += ridge / weights
    hot = np.zeros((len(labels), n_classes))
    hot[np.arange(len(labels)), labels] = 1
    share = _factor_solve(products.T, hot)  # symmetric: the transpose is what LAPACK need not copy
    return np.asarray((rows.astype(np.float64).T @ share * SUM_UNIT).astype(np.float32))


def _factor_solve(matrix: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    factor, info = lapack.dpotrf(matrix, lower=0, clean=0, overwrite_a=1)
    if info != 0:
        raise InputError("statistics: a row's Gram matrix is not positive semidefinite; check what users handed in")
    solution, _ = lapack.dpotrs(factor, right, lower=0)
    return np.asarray(solution)
