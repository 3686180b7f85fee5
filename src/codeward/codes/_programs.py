"""Integer programs of coverings, for an exact solver: which blocks cover all k-sets, and which points few blocks allow.

*Blocks as variables*: every possible block may be chosen, every k-set wants to be covered; for few users. *Points as
variables*, for few models and any number of users: with m blocks a point is the set of blocks that hold it, and pairs
of users are covered ``margin`` times exactly when any two chosen sets share ``margin`` blocks (Proposition 1 of
docs/theory.md, read by columns). Users on one point share a column.
"""

from itertools import combinations
from math import comb, floor

import numpy as np
from numpy.typing import NDArray

from codeward.codes._guarantees import Request

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
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = wall
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, at_most + 1
    bound = int(np.ceil(solver.best_objective_bound - 1e-6))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound
    return np.array([solver.value(variable) for variable in chosen], dtype=np.int64), bound


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
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = wall
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    columns = np.array([[block in kind for kind in kinds] for block in blocks])
    return np.repeat(columns, [solver.value(count) for count in users], axis=1)
