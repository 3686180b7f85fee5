"""The order of searches for one request."""

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from codeward._errors import TooLargeError
from codeward.codes._annealing import anneal_blocks, start_blocks
from codeward.codes._bounds import bound_models
from codeward.codes._costs import SOLVER_COST, WORK_PER_SECOND
from codeward.codes._direct import anneal_pairs, start_pairs
from codeward.codes._exact import fits_exact, solve_covering
from codeward.codes._families import offer_blown_codes, offer_families, offer_paper
from codeward.codes._grouping import fit_multiplicities
from codeward.codes._groups import (
    bound_groups,
    needs_groups,
    plan_groups,
    refuse_tracking,
    require_groups,
    spread_groups,
)
from codeward.codes._incumbent import Incumbent
from codeward.codes._request import Request
from codeward.codes._rounds import anneal_coverings, anneal_orbits
from codeward.codes._tracking import anneal_directly, offer_all_rows, stack_random_rows

#: Codes with more models than this are not built.
MAX_MODELS = 20_000
#: Rows of the plain tracking code that every search for one begins with.
MAX_PLAIN_ROWS = 2_000
#: From this many users on, codes on fewer points get most of the effort.
MANY_USERS = 40


def solve(
    request: Request,
    seconds: float,
    seed: int,
    enough: int = 0,
    report: Callable[[str], None] = lambda note: None,
    groups: bool = False,
) -> Incumbent:
    """Find a code with few models; stop early at ``enough`` models.

    Stages run in a fixed order with fixed shares of the work: constructions first (paper, geometries, residues,
    products), then annealing over blocks and over orbits, codes on fewer points, the property itself, the exact solver.
    Where single users are too many to be tracked, ``groups`` allows a code that tracks groups of them
    (`Incumbent.groups`).

    Raises
    ------
    TooLargeError
        When every code for the request has more than `MAX_MODELS` models.
    UnmetError
        When single users cannot be tracked (see `needs_groups`) and groups of them are not wanted or do not help.
    """
    grouped = needs_groups(request, seconds)
    if grouped and not groups:
        raise refuse_tracking(request, seconds)
    searched = require_groups(request) if grouped else request
    bound = bound_models(searched)
    if bound > MAX_MODELS:
        raise TooLargeError(
            f"design: every such code has at least {bound:,} models, over the limit of {MAX_MODELS:,}; "
            "ask for a smaller row weight or fewer attackers"
        )
    load_searches()
    work = seconds * WORK_PER_SECOND
    deadline = time.monotonic() + 0.93 * seconds
    best = Incumbent(searched, bound, deadline, np.random.default_rng(seed), report, work=work, enough=enough)
    offer_paper(best, MAX_MODELS)
    offer_families(best)
    if request.guarantee == "track":
        _search_tracking(best, work)
    else:
        _search_covering(best, work, seed)
    if not grouped:
        return best
    whole = Incumbent(request, bound_groups(request, searched.n_users), deadline, best.rng, work=work)
    spread_groups(whole, best)
    return whole


@cache
def load_searches() -> None:
    """Load the compiled searches before a clock starts; on the first run after an installation this compiles them."""
    rng = np.random.default_rng(0)
    tiny = Request(3, 1, 1, "correct", 1)
    rows = ~np.eye(3, dtype=bool)
    anneal_blocks(start_blocks(3, 2, 1, 1, 1, rng), 1.0, 0.5, 1, rng)
    anneal_pairs(start_pairs(rows, tiny), 1.0, 0.5, 1, rng)
    fit_multiplicities(rows, 3, 2, rng, n_moves=1)


def bound_search(request: Request, seconds: float, groups: bool) -> int | None:
    """Bound the models of what `solve` would look for; None when it would refuse."""
    if not needs_groups(request, seconds):
        return bound_models(request)
    small = plan_groups(request) if groups else None
    return None if small is None else bound_groups(request, small.n_users)


def _search_covering(best: Incumbent, work: float, seed: int) -> None:
    many = best.request.n_users >= MANY_USERS
    anneal_coverings(best, 0.05 * work)
    anneal_orbits(best, 0.08 * work)
    anneal_directly(best, 0.05 * work)
    offer_blown_codes(best, (0.5 if many else 0.12) * work)
    if best.request.covering_only and not best.finished and fits_exact(best.request):
        wall = max(0.1, best.deadline - time.monotonic())
        blocks, proved = solve_covering(best.request, best.size - 1, 0.2 * work / SOLVER_COST, seed, wall)
        best.work -= 0.2 * work
        best.bound = max(best.bound, proved)
        if blocks is not None:
            best.offer_covering(blocks, "exact solver")
    anneal_orbits(best, 0.5 * best.work)
    anneal_directly(best, 0.3 * best.work)
    anneal_coverings(best, best.work)


def _search_tracking(best: Incumbent, work: float) -> None:
    request = best.request
    offer_all_rows(best, MAX_PLAIN_ROWS)
    correcting = Request(request.n_users, request.n_attackers, request.row_weight, "correct", request.margin)
    part = Incumbent(correcting, bound_models(correcting), best.deadline, best.rng, work=0.1 * work)
    offer_paper(part, MAX_MODELS)
    offer_families(part)
    anneal_coverings(part, 0.05 * work)
    offer_blown_codes(part, 0.05 * work)
    best.absorb(part, 0.1 * work)
    if part.matrix is not None:
        best.offer_code(part.matrix, part.construction)
        best.covering = part.covering
        stack_random_rows(best, part.matrix)
    anneal_directly(best, 0.4 * work)
    anneal_coverings(best, 0.1 * work)
    anneal_directly(best, best.work)
