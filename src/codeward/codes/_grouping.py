"""Give several users one column of a smaller code (the paper's column duplication, with free multiplicities)."""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled

#: Annealing runs from different starts, for all but large families.
STARTS = 5


def fit_multiplicities(
    blocks: NDArray[np.bool_], n_users: int, capacity: int, rng: np.random.Generator, n_moves: int = 50_000
) -> tuple[NDArray[np.int64] | None, int]:
    r"""Find how many users each point stands for so that no block stands for more than ``capacity`` users.

    Blowing points up keeps a covering a covering (k users fall on at most k points), so this turns a covering of v
    points into a BDC(k, n - capacity, n). A multiplicity of 0 leaves a point out (the induced covering).

    Parameters
    ----------
    blocks : ndarray of bool, shape (m, v)
    n_users : int
        What the multiplicities add up to.
    capacity : int
        n - r, the most zeros of a row.

    Returns
    -------
    shares : ndarray of int64, shape (v,), or None
        None when annealing finds none.
    moves : int
        Moves tried.
    """
    n_blocks, n_points = blocks.shape
    degrees = blocks.sum(axis=0)
    # sum_i load_i = sum_p w_p deg_p >= n min deg, so some block carries at least the mean of that.
    if n_users * int(degrees.min()) > capacity * n_blocks:
        return None, 0
    members = np.ascontiguousarray(blocks, dtype=np.int64)
    tried = 0
    for _ in range(STARTS if blocks.size <= 20_000 else 1):
        shares = np.full(n_points, n_users // n_points, dtype=np.int64)
        shares[rng.permutation(n_points)[: n_users % n_points]] += 1
        excess, moves = _shift(members, shares, members @ shares, capacity, n_moves, rng)
        tried += moves
        if excess == 0:
            return shares, tried
    return None, tried


def spread_columns(columns: NDArray[np.bool_], shares: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Repeat column p ``shares[p]`` times, in turns (0, 1, ..., 0, 1, ...) so that equal columns are not neighbours."""
    turns = np.concatenate([np.arange(share) for share in shares]) if len(shares) else np.zeros(0)
    order = np.lexsort((np.repeat(np.arange(len(shares)), shares), turns))
    chosen: NDArray[np.bool_] = columns[:, np.repeat(np.arange(len(shares)), shares)[order]]
    return chosen


@compiled
def _shift(blocks, shares, loads, capacity, n_moves, rng):  # type: ignore[no-untyped-def]
    """Anneal sum_i max(0, load_i - capacity) by moving one user from point to point."""
    n_blocks, n_points = blocks.shape
    excess = 0
    for i in range(n_blocks):
        excess += max(0, loads[i] - capacity)
    for move in range(n_moves):
        if excess == 0:
            return 0, move
        heat = 1.0 - move / n_moves + 1e-3
        source = int(rng.random() * n_points)
        target = int(rng.random() * n_points)
        if shares[source] == 0 or source == target:
            continue
        change = 0
        for i in range(n_blocks):
            step = blocks[i, target] - blocks[i, source]
            if step != 0:
                change += max(0, loads[i] + step - capacity) - max(0, loads[i] - capacity)
        if change > -heat * np.log(1.0 - rng.random()):
            continue
        excess += change
        shares[source] -= 1
        shares[target] += 1
        for i in range(n_blocks):
            loads[i] += blocks[i, target] - blocks[i, source]
    return excess, n_moves
