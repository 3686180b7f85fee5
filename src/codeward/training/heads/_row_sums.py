"""Gram matrices of the rows of a code: sums over users, by whichever order of work is cheapest.

Every way gives the same bytes, because the sums are exact (Proposition 30 of docs/theory.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward._progress import Progress, silent
from codeward.training.heads._user_statistics import StatisticsSet, UserStatistics, packed_size

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
