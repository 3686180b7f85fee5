"""Simulated annealing over the blocks of a covering (the zero sets of a code), compiled.

The search of Nurmela and Östergård ("Upper bounds for covering designs by simulated annealing", 1993): a fixed number
of blocks of fixed size, a move swaps one point of one block, the cost is the number of k-sets that lack cover.

Annealing with the property itself as the cost: correction and tracking with any margin, not only coverings.

The state is the code matrix; for every pair of attacker sets (the empty one included) the Hamming distance of the two
hit patterns is kept. A label margin d asks for distance <= m - d, a tracking margin d for distance >= d.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.codes._guarantees import Request
from codeward.codes._patterns import count_attacker_sets

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


#: Attacker sets past which the table of distances would not stay in a cache worth having.
MAX_DIRECT_SETS = 3_000


@dataclass
class PairState:
    """A code under search and the distances of all its hit patterns (changed in place).

    Attributes
    ----------
    matrix : ndarray of uint8, shape (m, n)
    hits : ndarray of uint8, shape (m, P)
        How many members of each attacker set feed each model; the pattern is where it is not 0.
    distances : ndarray of uint8, shape (P, P)
    penalty : ndarray of int64, shape (m + 1,)
        Cost of a pair at each distance.
    holders : ndarray of int32, shape (n, Q)
        The attacker sets that contain each user.
    """

    matrix: NDArray[np.uint8]
    hits: NDArray[np.uint8]
    distances: NDArray[np.uint8]
    penalty: NDArray[np.int64]
    holders: NDArray[np.int32]
    cost: int
    max_zeros: int


def start_pairs(matrix: NDArray[np.bool_], request: Request) -> PairState:
    """Begin a search from a matrix whose rows have at least r ones."""
    n_models, n_users = matrix.shape
    sets = [chosen for j in range(request.n_attackers + 1) for chosen in combinations(range(n_users), j)]
    member = np.zeros((len(sets), n_users), dtype=np.uint8)
    for row, chosen in enumerate(sets):
        member[row, list(chosen)] = 1
    hits = matrix.astype(np.uint8) @ member.T
    patterns = (hits > 0).astype(np.float32)
    weights = patterns.sum(axis=0)
    distances = (weights[:, None] + weights[None, :] - 2 * patterns.T @ patterns).astype(np.uint8)
    at = np.arange(n_models + 1)
    penalty = np.maximum(0, request.margin - (n_models - at))
    if request.guarantee == "track":
        penalty = penalty + np.maximum(0, request.margin - at)
    upper = np.triu_indices(len(sets), 1)
    holders = np.array([np.flatnonzero(member[:, user]) for user in range(n_users)], dtype=np.int32)
    cost = int(penalty[distances[upper]].sum())
    return PairState(
        np.array(matrix, dtype=np.uint8, order="C"), hits, distances, penalty, holders, cost, request.block_size
    )


def fits_direct(request: Request) -> bool:
    """Whether the table of pairs is small enough."""
    return count_attacker_sets(request.n_users, request.n_attackers) <= MAX_DIRECT_SETS


def anneal_pairs(
    state: PairState, hot: float, cold: float, n_moves: int, rng: np.random.Generator
) -> tuple[bool, float]:
    """Make at most ``n_moves`` moves, cooling geometrically; stop at cost 0. Returns (reached, work units)."""
    rate = (cold / hot) ** (1.0 / max(n_moves, 1))
    cost, work = _anneal_pairs(
        state.matrix,
        state.hits,
        state.distances,
        state.penalty,
        state.holders,
        state.cost,
        state.max_zeros,
        hot,
        rate,
        n_moves,
        rng,
    )
    state.cost = int(cost)
    return state.cost == 0, float(work)


@compiled
def _anneal_pairs(matrix, hits, distances, penalty, holders, cost, max_zeros, heat, rate, n_moves, rng):  # type: ignore[no-untyped-def]
    n_models, n_users = matrix.shape
    n_sets = hits.shape[1]
    flipped = np.zeros(n_sets, dtype=np.uint8)
    work = 0.0
    for _ in range(n_moves):
        if cost == 0:
            break
        heat *= rate
        i = int(rng.random() * n_models)
        row, hit = matrix[i], hits[i]
        # 1. Swap a one and a zero, or flip one entry where the row weight allows it.
        first = int(rng.random() * n_users)
        second = first
        if rng.random() < 0.8:
            second = int(rng.random() * n_users)
            if row[first] == row[second]:
                continue
        elif row[first] == 1 and n_users - row.sum() >= max_zeros:
            continue

        # 2. Attacker sets whose bit of this row changes.
        for turn in range(1 if first == second else 2):
            user = first if turn == 0 else second
            step = 1 if row[user] == 0 else -1
            for j in range(holders.shape[1]):
                hit[holders[user, j]] += step
            row[user] ^= 1
        n_flipped = 0
        for turn in range(1 if first == second else 2):
            user = first if turn == 0 else second
            now = row[user]
            for j in range(holders.shape[1]):
                chosen = holders[user, j]
                # Its count before: undo this user's step, and the partner's where the set holds both (then no change).
                before = hit[chosen] - 1 if now == 1 else hit[chosen] + 1
                if first != second and _holds(holders, chosen, first if turn else second):
                    before = hit[chosen]
                if (before > 0) != (hit[chosen] > 0):
                    flipped[chosen] = 1
                    n_flipped += 1

        # 3. delta = sum over flipped s, unflipped s' of the change in penalty; the distance moves by one.
        delta = 0
        for s in range(n_sets):
            if flipped[s]:
                bit = hit[s] > 0
                for t in range(n_sets):
                    if not flipped[t]:
                        at = np.int64(distances[s, t])
                        delta += penalty[at - 1 if (hit[t] > 0) == bit else at + 1] - penalty[at]
        work += 20.0 + 2.0 * holders.shape[1] + n_flipped * n_sets * 0.25
        accepted = delta <= -heat * np.log(1.0 - rng.random())
        if accepted:
            cost += delta
            for s in range(n_sets):
                if flipped[s]:
                    bit = hit[s] > 0
                    for t in range(n_sets):
                        if not flipped[t]:
                            at = distances[s, t] - 1 if (hit[t] > 0) == bit else distances[s, t] + 1
                            distances[s, t] = at
                            distances[t, s] = at
        else:
            for turn in range(1 if first == second else 2):
                user = first if turn == 0 else second
                step = 1 if row[user] == 0 else -1
                for j in range(holders.shape[1]):
                    hit[holders[user, j]] += step
                row[user] ^= 1
        flipped[:] = 0
    return cost, work


@compiled
def _holds(holders, chosen, user):  # type: ignore[no-untyped-def]
    """Whether the attacker set contains the user (its sets are listed in order)."""
    place = np.searchsorted(holders[user], chosen)
    return place < holders.shape[1] and holders[user, place] == chosen
