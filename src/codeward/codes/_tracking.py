"""Searches for codes whose property is more than a covering: correction and tracking, with margins."""

from itertools import combinations
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from codeward.codes._costs import check_cost, pairing_cost
from codeward.codes._direct import anneal_pairs, fits_direct, start_pairs
from codeward.codes._incumbent import Incumbent
from codeward.codes._patterns import count_attacker_sets
from codeward.codes._request import Request
from codeward.codes._rounds import CHUNK

#: Moves of the shortest direct annealing; lengths double after every few failures.
SHORTEST = 10_000
LONGEST = 2_000_000
PATIENCE = 4


def anneal_directly(best: Incumbent, work: float) -> None:
    """Search for the wanted property with fewer and fewer rows, until ``work`` is spent or the bound is met."""
    request = best.request
    if request.covering_only or not fits_direct(request) or best.matrix is None:
        return
    step, failures, stop = 1, 0, best.work - work
    while best.work > stop and not best.finished:
        target = max(best.size - step, best.bound)
        moves = min(SHORTEST << min(failures // PATIENCE, 20), LONGEST)
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


def stack_random_rows(best: Incumbent, base: NDArray[np.bool_]) -> None:
    """Stack random rows on a correcting code until all k-sums differ (Corollary 5.2 with a random separable part).

    The density of ones is the one at which a k-sum hits a row half the time, or r / n when that is more. The number of
    rows is bisected; every step is verified.
    """
    request, rng = best.request, best.rng
    n, ones, likely = request.n_users, _best_weight(request), likely_rows(request)
    pool = rng.permuted(np.tile(np.arange(n) < ones, (8 * likely, 1)), axis=1)
    low, high = 0, likely
    while not best.offer_code(np.vstack([base, pool[:high]]), _name_stack(high, ones)):
        if best.finished or high == len(pool):
            return
        low, high = high, 2 * high
    # A check of many attacker sets takes seconds: begin none that cannot be paid.
    while high - low > 1 and not best.finished and check_cost(n, len(base) + high, request) <= best.work:
        middle = (low + high) // 2
        if best.offer_code(np.vstack([base, pool[:middle]]), _name_stack(middle, ones)):
            high = middle
        else:
            low = middle
    best.offer_code(pool[: high + len(base) - 1], f"random rows of weight {ones}")


def likely_rows(request: Request) -> int:
    """Random rows that likely tell all attacker sets apart."""
    n, k = request.n_users, request.n_attackers
    # A row tells k - 1 users from the same and one more with probability p (1 - p)^(k-1); about n^k such pairs must all
    # be told apart.
    share = _best_weight(request) / n
    return ceil(k * log(n) / (share * (1 - share) ** (k - 1))) + request.margin


def _best_weight(request: Request) -> int:
    n, k = request.n_users, request.n_attackers
    clean: float = 0.5 ** (1 / k)  # share of zeros at which k columns miss a row half the time
    return min(n - 1, max(request.row_weight, round(n * (1 - clean))))


def _name_stack(rows: int, ones: int) -> str:
    return f"correcting code over {rows} random rows of weight {ones}"
