"""The order of searches for one request, what each of them may spend, and the integer programs of coverings.

*Blocks as variables*: every possible block may be chosen, every k-set wants to be covered; for few users. *Points as
variables*, for few models and any number of users: with m blocks a point is the set of blocks that hold it, and pairs
of users are covered ``margin`` times exactly when any two chosen sets share ``margin`` blocks (Proposition 1 of
docs/theory.md, read by columns). Users on one point share a column.
"""

import time
from collections.abc import Callable
from functools import cache
from itertools import combinations
from math import comb, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import TooLargeError
from codeward.codes._annealing import anneal_blocks, anneal_coverings, anneal_orbits, start_blocks
from codeward.codes._coverings import MAX_MODELS, fit_multiplicities, offer_blown_codes, offer_families, offer_paper
from codeward.codes._guarantees import Request, bound_models
from codeward.codes._incumbent import SOLVER_COST, WORK_PER_SECOND, Incumbent
from codeward.codes._orbits import OrbitRounds, OrbitSearch, orbit_matrix
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


#: Possible blocks, and blocks times the k-sets in each, past which a solver has nothing to add within seconds.
MAX_BLOCKS = 1_000
MAX_ENTRIES = 60_000
#: Nodes of the search tree that HiGHS may visit for each second.
NODES_PER_SECOND = 50


def fits_exact(request: Request) -> bool:
    """Whether the program is small enough to be worth solving."""
    n, b, k = request.n_users, request.block_size, request.strength
    return comb(n, b) <= MAX_BLOCKS and comb(n, b) * comb(b, k) <= MAX_ENTRIES


def solve_covering(
    request: Request, at_most: int, seconds: float, seed: int, wall: float = 60.0
) -> tuple[NDArray[np.bool_] | None, int]:
    """Find a covering of at most ``at_most`` blocks of exactly n - r users, or prove a bound.

    Uses OR-tools' CP-SAT (one worker and a deterministic time limit: the same answer every time) when it is installed,
    else HiGHS through SciPy (a limit on its nodes). ``wall`` seconds end either.

    Returns
    -------
    blocks : ndarray of bool or None
        Zero sets that hold every k-set ``margin`` times.
    bound : int
        No covering has fewer blocks; ``at_most + 1`` when the solver proved that there is none.
    """
    n, k = request.n_users, request.strength
    candidates = np.zeros((comb(n, request.block_size), n), dtype=bool)
    for i, chosen in enumerate(combinations(range(n), request.block_size)):
        candidates[i, list(chosen)] = True
    sets = np.array(list(combinations(range(n), k)), dtype=np.int64)
    inside: NDArray[np.bool_] = np.asarray(candidates[:, sets].all(axis=2)).T  # (k-sets, blocks)
    try:
        counts, bound = _solve_cpsat(inside, request.margin, at_most, seconds, seed, wall)
    except ImportError:
        counts, bound = _solve_highs(inside, request.margin, at_most, seconds, wall)
    return None if counts is None else np.repeat(candidates, counts, axis=0), bound


def _solve_cpsat(
    inside: NDArray[np.bool_], fold: int, at_most: int, seconds: float, seed: int, wall: float
) -> tuple[NDArray[np.int64] | None, int]:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = [model.new_int_var(0, fold, f"block{i}") for i in range(inside.shape[1])]
    for row in inside:
        model.add(sum(chosen[i] for i in np.flatnonzero(row)) >= fold)
    model.add(sum(chosen) <= at_most)
    model.add(chosen[0] >= 1)  # users can be renumbered so that the first block is there
    model.minimize(sum(chosen))
    solver = _make_solver(seconds, seed, wall)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, at_most + 1
    bound = int(np.ceil(solver.best_objective_bound - 1e-6))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound
    return np.array([solver.value(variable) for variable in chosen], dtype=np.int64), bound


def _make_solver(seconds: float, seed: int, wall: float) -> Any:
    """Return CP-SAT with its deterministic clock: the same answer on every machine that has ``wall`` seconds."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = wall
    return solver


def _solve_highs(
    inside: NDArray[np.bool_], fold: int, at_most: int, seconds: float, wall: float
) -> tuple[NDArray[np.int64] | None, int]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    n_blocks = inside.shape[1]
    solved = milp(
        np.ones(n_blocks),
        constraints=[
            LinearConstraint(csr_array(inside.astype(float)), lb=fold),
            LinearConstraint(csr_array(np.ones((1, n_blocks))), ub=at_most),
        ],
        integrality=np.ones(n_blocks, dtype=np.int64),
        bounds=Bounds(0, fold),
        # HiGHS has no deterministic clock; the nodes it may visit stand in for one.
        options={"time_limit": wall, "node_limit": max(1, int(NODES_PER_SECOND * seconds))},
    )
    if solved.status == 2:  # proved infeasible
        return None, at_most + 1
    bound = solved.mip_dual_bound
    lower = 1 if bound is None or not np.isfinite(bound) else int(np.ceil(bound - 1e-6))
    return (None if solved.x is None else np.round(solved.x).astype(np.int64)), lower


#: Blocks, and kinds of points, up to which the program of points is solved within seconds.
MAX_POINT_BLOCKS = 13
MAX_POINTS = 1_000


def fits_points(request: Request, n_blocks: int) -> bool:
    """Whether `solve_points` has something to say: pairs of attackers, few blocks, few kinds of points."""
    if request.strength != 2 or not 2 < n_blocks <= MAX_POINT_BLOCKS:
        return False
    return sum(comb(n_blocks, size) for size in _point_sizes(request, n_blocks)) <= MAX_POINTS


def _point_sizes(request: Request, n_blocks: int) -> tuple[int, ...]:
    """Blocks on a point: the mean, rounded down and up (other sizes cost a solver more than they give)."""
    mean = n_blocks * request.block_size / request.n_users
    return tuple({max(floor(mean), request.margin), floor(mean) + 1})


def solve_points(
    request: Request, n_blocks: int, seconds: float, seed: int, wall: float = 60.0
) -> NDArray[np.bool_] | None:
    """Find a covering of pairs with this many blocks by OR-tools' CP-SAT; None without one, or without OR-tools.

    Not finding one proves nothing, since points on unusually few or many blocks are left out.

    Returns
    -------
    blocks : ndarray of bool or None
        Shape (n_blocks, n): blocks of at most ``block_size`` users that hold every pair ``margin`` times.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return None
    sizes, blocks = _point_sizes(request, n_blocks), range(n_blocks)
    kinds = [frozenset(kind) for size in sizes for kind in combinations(blocks, size)]
    model = cp_model.CpModel()
    used = [model.new_bool_var("") for _ in kinds]
    users = [model.new_int_var(0, request.n_users, "") for _ in kinds]
    for here, count in zip(used, users, strict=True):
        model.add(count == 0).only_enforce_if(here.negated())
    for (i, first), (j, second) in combinations(enumerate(kinds), 2):
        if len(first & second) < request.margin:
            model.add_bool_or([used[i].negated(), used[j].negated()])
    model.add(sum(users) == request.n_users)
    for block in blocks:
        held = [count for kind, count in zip(kinds, users, strict=True) if block in kind]
        model.add(sum(held) <= request.block_size)
    solver = _make_solver(seconds, seed, wall)
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    columns = np.array([[block in kind for kind in kinds] for block in blocks])
    return np.repeat(columns, [solver.value(count) for count in users], axis=1)
