"""Rounds of annealing: how much effort goes to which number of blocks, plain and under a group."""

import numpy as np
from numpy.typing import NDArray

from codeward.codes._annealing import MAX_COUNTED_SETS, BlockState, anneal_blocks, move_cost, start_blocks
from codeward.codes._costs import orbit_cost, start_cost, thinning_cost
from codeward.codes._incumbent import Incumbent
from codeward.codes._patterns import count_attacker_sets
from codeward.codes._symmetric import cyclic_actions, drop_redundant, set_orbits, unfold

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
    # Under a group the counters are written before a move is judged, and mostly taken back.
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
