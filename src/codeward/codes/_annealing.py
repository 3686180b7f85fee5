"""Coverings (the zero sets of a code) by simulated annealing over their blocks, compiled.

The search of Nurmela and Östergård ("Upper bounds for covering designs by simulated annealing", 1993): a fixed number
of blocks of fixed size, a move swaps one point of one block, the cost is the number of k-sets that lack cover. Under a
cyclic group the blocks are base blocks, and whole orbits of them cover whole orbits of k-sets: a group Z_g moves
n = g c + f points as c copies of itself and f fixed points, and a search has g times fewer blocks to place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.codes._incumbent import CHUNK, Incumbent, drop_redundant, orbit_cost, start_cost, thinning_cost
from codeward.codes._patterns import count_attacker_sets

#: A search keeps one counter per k-set of points; past this many it would neither fit a cache nor converge.
MAX_COUNTED_SETS = 400_000
#: Moves of the first, shortest annealing; lengths double after every few failures.
SHORTEST = 20_000
LONGEST = 5_000_000
PATIENCE = 4
#: Work of a single move past which annealing makes too few of them to get anywhere.
MAX_MOVE_COST = 100_000


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


def binomials(n_points: int, strength: int) -> NDArray[np.int32]:
    """Table of C(x, j) for x < n, j <= k, as the ranks need it."""
    return np.array([[comb(x, j) for j in range(strength + 1)] for x in range(n_points)], dtype=np.int32)


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
    moved = (state.points, state.counts, state.orbits, state.cost, state.block_size, state.fold)
    cost, moves = _anneal(*moved, state.choose, state.picks, hot, rate, n_moves, rng)
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


def fits_counting(n_points: int, strength: int, block_size: int) -> bool:
    """Whether a search that counts every k-set is possible at this size."""
    sets = count_attacker_sets(n_points, strength)
    return sets <= MAX_COUNTED_SETS and move_cost(block_size, strength) <= MAX_MOVE_COST


def anneal_coverings(best: Incumbent, work: float) -> None:
    """Look for coverings with fewer blocks until ``work`` is spent, the bound is met, or the time is out.

    The number of blocks goes down in steps that double while it is easy. For *correct* a covering one block below the
    best code always gives a code at least as good, and one of the same size may be BCC itself.
    """
    request = best.request
    size, strength, n = request.block_size, request.strength, request.n_users
    if not fits_counting(n, strength, size) or best.covering is None:
        return
    step, failures, stop = 1, 0, best.work - work
    while best.work > stop and not best.finished:
        # A covering of as many blocks as the best code less one: smaller than that when it can only help with ones.
        target = min(best.size, best.cover_size + (not request.covering_only)) - step
        if not request.covering_only and failures % 2 and step == 1:
            target = min(target, best.cover_size - 1)
        target = max(target, best.bound if request.covering_only else min(best.bound, best.size - 1))
        moves = min(SHORTEST << min(failures // PATIENCE, 20), LONGEST)
        warm = best.covering if failures % PATIENCE == PATIENCE - 1 else None
        if warm is not None:
            warm = warm[best.rng.permutation(len(warm))[:target]]
        best.work -= start_cost(target, size, strength)
        state = start_blocks(n, size, strength, target, request.margin, best.rng, warm)
        hot = 0.35 if warm is not None else best.rng.uniform(0.45, 0.9)
        covered = run_annealing(best, state, hot, best.rng.uniform(0.1, 0.2), moves)
        before = best.size, best.cover_size
        if covered:
            best.offer_covering(state.blocks, "simulated annealing over blocks")
        if (best.size, best.cover_size) != before:
            step, failures = step * 2, 0
        elif step > 1:
            step = 1
        else:
            failures += 1


def cyclic_actions(n_points: int, max_fixed: int = 2) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield (name, shifts): the elements of Z_g as permutations, shape (g, n), largest group first."""
    for order in range(n_points, 1, -1):
        fixed = n_points % order
        copies = n_points // order
        if fixed > max_fixed:
            continue
        name = f"Z{order}" + (f" on {copies} copies" if copies > 1 else "") + (f" + {fixed} fixed" if fixed else "")
        points = np.arange(n_points)
        moving = points < copies * order
        steps = np.arange(order)[:, None]
        shifted = points // order * order + (points % order + steps) % order
        yield name, np.where(moving, shifted, points)


def set_orbits(shifts: NDArray[np.int64], strength: int) -> NDArray[np.int32]:
    """Find the orbit of every k-set under a cyclic group, as a number at the set's colexicographic rank."""
    n_points = shifts.shape[1]
    choose = binomials(n_points, strength)
    sets = np.array(list(combinations(range(n_points), strength)), dtype=np.int64)
    least = np.full(len(sets), len(sets), dtype=np.int64)
    own = rank_sets(sets, choose)
    for shift in shifts:
        # The orbit is named by its least rank.
        np.minimum(least, rank_sets(np.sort(shift[sets], axis=1), choose), out=least)
    names = np.empty(len(sets), dtype=np.int32)
    names[own] = np.unique(least, return_inverse=True)[1].astype(np.int32)
    return names


def unfold(base_blocks: NDArray[np.bool_], shifts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """All distinct images of the base blocks, in order of first appearance."""
    images = base_blocks[:, shifts].reshape(-1, base_blocks.shape[1])
    _, first = np.unique(images, axis=0, return_index=True)
    return images[np.sort(first)]


def anneal_orbits(best: Incumbent, work: float) -> None:
    """Look for coverings that a cyclic group leaves in place: fewer blocks to find, for larger sizes."""
    request = best.request
    size, strength, n = request.block_size, request.strength, request.n_users
    if strength < 2 or not fits_counting(n, strength, size) or n > 64 or best.covering is None:
        return
    actions = list(cyclic_actions(n))
    known: dict[str, NDArray[np.int32]] = {}  # the orbits of k-sets under each group, found when it is first tried
    stop, turn = best.work - work, 0
    while best.work > stop and not best.finished and turn < 60:
        tried = False
        for name, shifts in actions:
            count = (min(best.size, best.cover_size + 1) - 1) // len(shifts)
            if count * len(shifts) < best.bound or best.work <= stop or best.finished:
                continue
            tried = True
            if name not in known:
                best.work -= orbit_cost(n, len(shifts), strength)
                known[name] = set_orbits(shifts, strength)
            best.work -= start_cost(count, size, strength)
            state = start_blocks(n, size, strength, count, request.margin, best.rng, None, known[name])
            moves = min(max(SHORTEST // 2, 1000 * count) << min(turn // 2, 8), LONGEST)
            if run_annealing(best, state, best.rng.uniform(0.5, 1.0), 0.15, moves):
                best.work -= thinning_cost(count * len(shifts), n, strength)
                blocks = drop_redundant(unfold(state.blocks, shifts), strength, request.margin)
                best.offer_covering(blocks, f"orbits of {count} base block{'s' * (count > 1)} under {name}")
        turn += 1
        if not tried:
            return


def run_annealing(best: Incumbent, state: BlockState, hot: float, cold: float, moves: int) -> bool:
    """Anneal in chunks, spending work and watching the clock; True when everything is covered."""
    # Under a group the counters are written before a move is decided on, and mostly taken back.
    unit = move_cost(state.block_size, state.picks.shape[1] + 1) * (2 if len(state.counts) < len(state.orbits) else 1)
    chunk = max(1, CHUNK // unit)
    n_chunks = -(-moves // chunk)
    for i in range(n_chunks):
        start, end = (hot * (cold / hot) ** (x / n_chunks) for x in (i, i + 1))
        covered, made = anneal_blocks(state, start, end, min(chunk, moves - i * chunk), best.rng)
        best.work -= made * unit
        if covered:
            return True
        if best.finished:
            return False
    return False
