"""Simulated annealing over the blocks of a covering (the zero sets of a code), compiled.

The search of Nurmela and Östergård ("Upper bounds for covering designs by simulated annealing", 1993): a fixed number
of blocks of fixed size, a move swaps one point of one block, the cost is the number of k-sets that lack cover.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled

#: A search keeps one counter per k-set of points; past this many it would neither fit a cache nor converge.
MAX_COUNTED_SETS = 400_000


@dataclass
class BlockState:
    """What a search over blocks carries from one chunk of moves to the next (changed in place).

    Attributes
    ----------
    points : ndarray of int32, shape (m, n)
        Row i is a permutation of the points; its first ``block_size`` entries, sorted, are block i.
    counts : ndarray of int32
        How many blocks hold each k-set (or, under a group, a k-set of each orbit).
    orbits : ndarray of int32, shape (C(n, k),)
        Where the k-set of each colexicographic rank is counted; the rank itself without a group.
    cost : int
        Sum over k-sets of the missing cover, ``max(0, fold - counts)``.
    """

    points: NDArray[np.int32]
    counts: NDArray[np.int32]
    orbits: NDArray[np.int32]
    cost: int
    block_size: int
    fold: int
    choose: NDArray[np.int32]
    picks: NDArray[np.int32]

    @property
    def blocks(self) -> NDArray[np.bool_]:
        """The blocks as incidence rows, shape (m, n)."""
        rows = np.zeros(self.points.shape, dtype=bool)
        np.put_along_axis(rows, self.points[:, : self.block_size].astype(np.int64), True, axis=1)
        return rows


def start_blocks(
    n_points: int,
    block_size: int,
    strength: int,
    n_blocks: int,
    fold: int,
    rng: np.random.Generator,
    given: NDArray[np.bool_] | None = None,
    orbits: NDArray[np.int32] | None = None,
) -> BlockState:
    """Begin a search: the rows of ``given`` (sets of at most ``block_size`` points, filled up), then random blocks.

    With ``orbits`` (see `BlockState`) the blocks are base blocks, each standing for its images under a group.
    """
    points = np.empty((n_blocks, n_points), dtype=np.int32)
    for i in range(n_blocks):
        order = rng.permutation(n_points)
        if given is not None and i < given.shape[0]:
            order = order[np.argsort(~given[i][order], kind="stable")]
        order[:block_size].sort()
        points[i] = order
    choose = binomials(n_points, strength)
    where = np.arange(comb(n_points, strength), dtype=np.int32) if orbits is None else orbits
    picks = np.array(list(combinations(range(block_size - 1), strength - 1)), dtype=np.int32)
    picks = picks.reshape(comb(block_size - 1, strength - 1), strength - 1)
    counts = np.zeros(int(where.max()) + 1, dtype=np.int32)
    whole = np.array(list(combinations(range(block_size), strength)), dtype=np.int64)
    for row in points:
        np.add.at(counts, where[rank_sets(row[:block_size][whole], choose)], 1)
    cost = int(np.maximum(fold - counts, 0).sum())
    return BlockState(points, counts, where, cost, block_size, fold, choose, picks)


def rank_sets(sets: NDArray[np.integer], choose: NDArray[np.int32]) -> NDArray[np.int64]:
    """Colexicographic ranks of sorted sets, shape (S, k): :math:`\\sum_i \\binom{x_i}{i}`."""
    ranks: NDArray[np.int64] = choose[sets, np.arange(1, sets.shape[1] + 1)].sum(axis=1, dtype=np.int64)
    return ranks


def move_cost(block_size: int, strength: int) -> int:
    """Work units of one move: about the number of table look-ups, plus a little for the rest."""
    return 4 + comb(block_size - 1, strength - 1) * strength


def anneal_blocks(
    state: BlockState, hot: float, cold: float, n_moves: int, rng: np.random.Generator
) -> tuple[bool, int]:
    """Make at most ``n_moves`` moves, cooling geometrically from ``hot`` to ``cold``; stop at cost 0.

    Returns
    -------
    covered : bool
        Whether the cost reached 0.
    moves : int
        Moves made.
    """
    rate = (cold / hot) ** (1.0 / max(n_moves, 1))
    cost, moves = _anneal(
        state.points,
        state.counts,
        state.orbits,
        state.cost,
        state.block_size,
        state.fold,
        state.choose,
        state.picks,
        hot,
        rate,
        n_moves,
        rng,
    )
    state.cost = int(cost)
    return state.cost == 0, int(moves)


@compiled
def _rank_with(rest, picks, c, point, choose):  # type: ignore[no-untyped-def]
    """Colexicographic rank of {point} joined with the entries of the sorted array ``rest`` that row c picks."""
    rank = 0
    below = 0
    for i in range(picks.shape[1]):
        other = rest[picks[c, i]]
        if other > point:
            rank += choose[other, i + 2]
        else:
            rank += choose[other, i + 1]
            below += 1
    return rank + choose[point, below + 1]


@compiled
def _anneal(points, counts, orbits, cost, size, fold, choose, picks, heat, rate, n_moves, rng):  # type: ignore[no-untyped-def]
    n_blocks, n_points = points.shape
    rest = np.empty(max(size - 1, 0), dtype=np.int32)
    grouped = counts.shape[0] < orbits.shape[0]
    for move in range(n_moves):
        if cost == 0:
            return cost, move
        heat *= rate
        i = int(rng.random() * n_blocks)
        p = int(rng.random() * size)
        q = size + int(rng.random() * (n_points - size))
        out, into = points[i, p], points[i, q]
        for j in range(p):
            rest[j] = points[i, j]
        for j in range(p + 1, size):
            rest[j - 1] = points[i, j]

        # 1. delta = k-sets that lose needed cover - k-sets that gain needed cover. Sets of one orbit share a counter,
        #    so the counters move along; without a group nothing is written before the move is accepted.
        allowed = -heat * np.log(1.0 - rng.random())
        delta = 0
        for c in range(picks.shape[0]):
            place = orbits[_rank_with(rest, picks, c, out, choose)]
            delta += counts[place] <= fold
            if grouped:
                counts[place] -= 1
        for c in range(picks.shape[0]):
            place = orbits[_rank_with(rest, picks, c, into, choose)]
            delta -= counts[place] < fold
            if grouped:
                counts[place] += 1
        accepted = delta <= allowed

        # 2. Make the move, or take it back; the block stays sorted.
        if accepted != grouped:
            sign = 1 if accepted else -1
            for c in range(picks.shape[0]):
                counts[orbits[_rank_with(rest, picks, c, out, choose)]] -= sign
                counts[orbits[_rank_with(rest, picks, c, into, choose)]] += sign
        if not accepted:
            continue
        cost += delta
        points[i, q] = out
        j = p
        while j > 0 and points[i, j - 1] > into:
            points[i, j] = points[i, j - 1]
            j -= 1
        while j < size - 1 and points[i, j + 1] < into:
            points[i, j] = points[i, j + 1]
            j += 1
        points[i, j] = into
    return cost, n_moves


def binomials(n_points: int, strength: int) -> NDArray[np.int32]:
    """Table of C(x, j) for x < n, j <= k, as the ranks need it."""
    return np.array([[comb(x, j) for j in range(strength + 1)] for x in range(n_points)], dtype=np.int32)
