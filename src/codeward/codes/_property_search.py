"""Codes by simulated annealing with the property itself as the cost: correction and tracking with any margin.

The state is the code matrix; for every pair of attacker sets (the empty one included) the Hamming distance of the two
hit patterns is kept. A label margin d asks for distance <= m - d, a tracking margin d for distance >= d.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.codes._annealing import PATIENCE
from codeward.codes._guarantees import Request
from codeward.codes._incumbent import CHUNK, Incumbent, pairing_cost
from codeward.codes._patterns import count_attacker_sets

#: Attacker sets past which the table of distances would not stay in a cache worth having.
MAX_DIRECT_SETS = 3_000
#: Moves of the shortest direct annealing; lengths double after every few failures.
SHORTEST_DIRECT = 10_000
LONGEST_DIRECT = 2_000_000


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
    moved = (state.matrix, state.hits, state.distances, state.penalty, state.holders, state.cost)
    cost, work = _anneal_pairs(*moved, state.max_zeros, hot, rate, n_moves, rng)
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
        if reached and best.offer_code(state.matrix.astype(bool), "found by annealing"):
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
