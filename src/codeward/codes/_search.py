"""Searches offered to an incumbent: annealing in rounds, choices of orbits, and annealing for the property itself."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from codeward.codes._annealing import (
    MAX_COUNTED_SETS,
    BlockState,
    anneal_blocks,
    anneal_pairs,
    fits_direct,
    move_cost,
    start_blocks,
    start_pairs,
)
from codeward.codes._geometry import point_groups
from codeward.codes._incumbent import (
    Incumbent,
    drop_redundant,
    orbit_cost,
    pairing_cost,
    start_cost,
    thinning_cost,
)
from codeward.codes._orbits import (
    OrbitSearch,
    cyclic_actions,
    fits_orbits,
    orbit_matrix,
    orbit_matrix_cost,
    set_orbits,
    unfold,
)
from codeward.codes._patterns import count_attacker_sets

#: Moves of the first, shortest annealing; lengths double after every few failures.
SHORTEST = 20_000
LONGEST = 5_000_000
PATIENCE = 4
#: Work between two looks at the clock: well under a second.
CHUNK = 5_000_000
#: Work of a single move past which annealing makes too few of them to get anywhere.
MAX_MOVE_COST = 100_000


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


#: Groups that can be tried, at least, before any is.
GROUPS_WORTH = 8


class OrbitRounds:
    """Searches under every group in turn (see `_orbits`), each a little at first and longer in every round.

    For coverings with margin 1; `run` can be called again and goes on where it was.
    """

    #: Work of the first look at a group, at most, and for each entry of its matrix.
    FIRST = 3e6
    LOOK = 100.0
    #: Searches that are gone on with, at most.
    KEPT = 60

    def __init__(self, best: Incumbent) -> None:
        self.best = best
        self.searches: list[OrbitSearch] = []
        self.turn = 0
        request = best.request
        n, b, k = request.n_users, request.block_size, request.strength
        fits = request.margin == 1 and k > 1 and request.guarantee != "track" and fits_orbits(n, b, k)
        self.groups = iter(point_groups(n)) if fits else iter(())

    def run(self, work: float) -> None:
        """Spend this much work on groups not yet tried, then on those that are kept."""
        best, stop = self.best, self.best.work - work
        n, b, k = best.request.n_users, best.request.block_size, best.request.strength
        # With work for a few groups only, other searches find more.
        if best.finished or GROUPS_WORTH * orbit_matrix_cost(3, n, b, k) > work:
            return
        for name, generators in self.groups:
            best.work -= orbit_matrix_cost(len(generators), n, b, k)
            matrix = orbit_matrix(generators, b, k, self._most)
            if matrix is not None:
                self.searches.append(OrbitSearch(name, matrix))
                self._advance(self.searches[-1], min(self.FIRST, self.LOOK * len(matrix.rows)))
            if best.work <= stop or best.finished:
                return
        # Small matrices are soon exhausted: go on with those that have most columns.
        self.searches = sorted(self.searches, key=lambda search: -len(search.matrix.lengths))[: self.KEPT]
        while self.searches and best.work > stop and not best.finished:
            share = self.FIRST * 2 ** (self.turn // len(self.searches))
            self._advance(self.searches[self.turn % len(self.searches)], share)
            self.turn += 1

    @property
    def _most(self) -> int:
        return min(self.best.size, self.best.cover_size + 1)

    def _advance(self, search: OrbitSearch, work: float) -> None:
        best = self.best
        n, k = best.request.n_users, best.request.strength
        while work > 0 and not best.finished:
            found, spent = search.advance(self._most, min(work, CHUNK), best.rng)
            best.work -= spent
            work -= spent
            if found:
                blocks = search.unfold()
                best.work -= thinning_cost(len(blocks), n, k)
                best.offer_covering(drop_redundant(blocks, k, 1), f"orbits of blocks, chosen by search ({search.name})")


#: Moves of the shortest direct annealing; lengths double after every few failures.
SHORTEST_DIRECT = 10_000
LONGEST_DIRECT = 2_000_000


def anneal_directly(best: Incumbent, work: float) -> None:
    """Search for the wanted property with fewer and fewer rows, until ``work`` is spent or the bound is met."""
    request = best.request
    if request.covering_only or not fits_direct(request) or best.matrix is None:
        return
    step, failures, stop = 1, 0, best.work - work
    while best.work > stop and not best.finished:
        target = max(best.size - step, best.bound)
        moves = min(SHORTEST_DIRECT << min(failures // PATIENCE, 20), LONGEST_DIRECT)
        best.work -= pairing_cost(request)
        state = start_pairs(_start_rows(best, target, failures), request)
        hot, cold = best.rng.uniform(0.8, 2.0), best.rng.uniform(0.15, 0.3)
        # Small chunks first: what a move costs is known only after some.
        made, chunk, reached = 0, 200, False
        while made < moves and not reached and not best.finished and best.work > stop:
            chunk = min(chunk, moves - made)
            start, end = (hot * (cold / hot) ** (x / moves) for x in (made, made + chunk))
            reached, spent = anneal_pairs(state, start, end, chunk, best.rng)
            best.work -= spent
            made += chunk
            chunk = max(50, int(CHUNK / max(spent / chunk, 1)))
        if reached and best.offer_code(state.matrix.astype(bool), f"annealing for {request.guarantee} itself"):
            step, failures = step * 2, 0
        elif step > 1:
            step = 1
        else:
            failures += 1


def _start_rows(best: Incumbent, target: int, turn: int) -> NDArray[np.bool_]:
    """Rows to begin with: random, the best code less some rows, or the best covering filled up, in turns."""
    request, rng = best.request, best.rng
    rows = rng.permuted(np.tile(np.arange(request.n_users) < request.row_weight, (target, 1)), axis=1)
    given: NDArray[np.bool_] | None = None
    if turn % PATIENCE == 1:
        given = best.matrix
    elif turn % PATIENCE == 2 and best.covering is not None:
        given = ~best.covering
    if given is not None:
        kept = given[rng.permutation(len(given))[:target]]
        rows[: len(kept)] = kept
    return rows


def offer_all_rows(best: Incumbent, max_models: int) -> None:
    """Offer all rows with at most k zeros, each ``margin`` times: a BTC of many models, but always one.

    Of two attacker sets one has a member outside the other; the row whose zeros are that other set tells them apart,
    and the row of ones tells labels apart.
    """
    request = best.request
    n, k = request.n_users, request.n_attackers
    if count_attacker_sets(n, k) * request.margin > max_models:
        return
    rows = np.ones((count_attacker_sets(n, k), n), dtype=bool)
    for i, chosen in enumerate(chosen for j in range(k + 1) for chosen in combinations(range(n), j)):
        rows[i, list(chosen)] = False
    best.offer_code(np.repeat(rows, request.margin, axis=0), f"all rows with at most {k} zeros")
