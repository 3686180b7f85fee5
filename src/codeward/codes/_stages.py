"""The order of searches for one request, and what each of them may spend."""

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from codeward._errors import TooLargeError
from codeward.codes._annealing import anneal_blocks, anneal_coverings, anneal_orbits, start_blocks
from codeward.codes._coverings import MAX_MODELS, fit_multiplicities, offer_blown_codes, offer_families, offer_paper
from codeward.codes._guarantees import Request, bound_models
from codeward.codes._incumbent import SOLVER_COST, WORK_PER_SECOND, Incumbent
from codeward.codes._orbits import OrbitRounds, OrbitSearch, orbit_matrix
from codeward.codes._programs import fits_exact, fits_points, solve_covering, solve_points
from codeward.codes._property_search import anneal_directly, anneal_pairs, fits_direct, offer_all_rows, start_pairs
from codeward.codes._separation import (
    UserSeparation,
    bound_groups,
    needs_groups,
    refuse_tracking,
    require_groups,
    spread_groups,
)

#: Rows of the plain tracking code that every search for one begins with.
MAX_PLAIN_ROWS = 2_000
#: Times the granted work that a first code of many users may take.
FIRST_LAPS = 4
#: From this many users on, codes on fewer points get most of the effort.
MANY_USERS = 40
#: Points of smaller codes, once a search goes on past its granted work.
MORE_BASE_POINTS = 40


def solve(
    request: Request,
    seconds: float,
    seed: int,
    enough: int = 0,
    report: Callable[[str], None] = lambda note: None,
    groups: bool = False,
    reproducible: bool = True,
) -> Incumbent:
    """Find a code with few models; stop early at ``enough`` models.

    Stages run in a fixed order with fixed shares of the work: constructions first (paper, geometries, residues,
    products), then annealing over blocks and over orbits, codes on fewer points, the property itself, the exact solver.
    When that work is done a ``reproducible`` search ends; others go on until the bound is met or the time is out.
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
    search_on = _search_tracking(best, work) if request.guarantee == "track" else _search_covering(best, work, seed)
    lap = work
    while not reproducible:
        best.work = lap
        if best.finished:
            break
        search_on(lap)
        if best.work == lap:  # no search applies at this size
            break
        lap *= 2
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
    whole = orbit_matrix(np.arange(3)[None, :], 2, 1, 9)
    assert whole is not None
    OrbitSearch("", whole).advance(9, 1.0, rng)


def _search_covering(best: Incumbent, work: float, seed: int) -> Callable[[float], None]:
    """Search for a covering or a correcting code; return how to go on with more work."""
    orbits, many = OrbitRounds(best), best.request.n_users >= MANY_USERS

    def search_on(work: float) -> None:
        _offer_points(best, 0.3 * work, seed)
        anneal_orbits(best, 0.3 * work)
        anneal_directly(best, 0.2 * work)
        offer_blown_codes(best, (0.5 if many else 0.1) * work, MORE_BASE_POINTS)
        orbits.run(0.5 * best.work)
        anneal_coverings(best, best.work)

    anneal_coverings(best, 0.05 * work)
    orbits.run(0.25 * work)
    anneal_orbits(best, 0.08 * work)
    anneal_directly(best, 0.05 * work)
    _offer_points(best, 0.15 * work, seed)
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
    return search_on


def _offer_points(best: Incumbent, work: float, seed: int) -> None:
    """Ask the exact solver for a covering of pairs with one block less, as long as it finds one."""
    stop = best.work - work
    while not best.finished and best.work > stop and fits_points(best.request, best.cover_size - 1):
        granted, wall = best.work - stop, max(0.1, best.deadline - time.monotonic())
        blocks = solve_points(best.request, best.cover_size - 1, granted / SOLVER_COST, seed, wall)
        best.work -= granted if blocks is None else 0.2 * granted
        if blocks is None or not best.offer_covering(blocks, "points by exact solver"):
            return


def _search_tracking(best: Incumbent, work: float) -> Callable[[float], None]:
    """Search for a tracking code; return how to go on with more work."""
    request = best.request
    if not fits_direct(request):
        separation = UserSeparation(best)
        for _ in range(FIRST_LAPS):
            separation.run(best.work)
            best.work = max(best.work, work if best.matrix is None else 0.0)
        if best.matrix is not None:
            return separation.run
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
        UserSeparation(best, part.matrix).run(0.1 * work)
    anneal_directly(best, 0.4 * work)
    anneal_coverings(best, 0.1 * work)
    anneal_directly(best, best.work)
    return lambda work: anneal_directly(best, work)
