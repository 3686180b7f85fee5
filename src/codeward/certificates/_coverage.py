r"""Plurality certificates for many users: least weighted coverage, by bounds from both sides and an open MILP solver.

Breaking an output in favour of a rival t takes users x with :math:`\sum_{i \in s(x)} w_i \ge \mathrm{need}`
(`PluralityBreaker`). The least such :math:`|x|` is one more than the radius against t.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from codeward._progress import Progress
from codeward.certificates._breakers import BLOCK_CELLS, PluralityBreaker
from codeward.codes import Code

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

#: Solver bounds are rounded up to whole users after giving away this much.
SLACK = 1e-6


def solve_coverage(
    breaker: PluralityBreaker, code: Code, limit: int, time_limit: float, bar: Progress
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int32]]:
    """Return radius, exactness and witness of every output of ``breaker``, searching up to ``limit`` users.

    1. From below: k users cover at most the sum of the k largest influences (Finite Aggregation's argument; overlaps
       are counted twice, so it never exceeds the truth). 2. From above: a greedy attack. 3. Where they differ, HiGHS
    between them, until ``time_limit`` seconds are spent; then its dual bound, which is sound, with exact False.
    """
    total, n_ranks = breaker.labels.size, breaker.rivals.shape[1]
    least = np.full((total, n_ranks), limit + 1, dtype=np.int64)
    most = np.full(total, limit + 1, dtype=np.int64)
    users = np.full((total, limit), -1, dtype=np.int32)
    matrix = code.matrix.astype(np.float32)
    step = max(1, BLOCK_CELLS // max(code.n_users, code.n_models))
    for rank in range(n_ranks):
        has = np.flatnonzero(breaker.rivals[:, rank] >= 0)
        for start in range(0, has.size, step):
            rows = has[start : start + step]
            weights, need = breaker.demands(rank, rows)
            least[rows, rank] = bound_users(weights @ matrix, need, limit)
            # A greedy attack is worth trying only where it may beat the one at hand.
            open_rows = least[rows, rank] < most[rows]
            size, chosen = attack_greedily(weights[open_rows], need[open_rows], matrix, limit)
            rows = rows[open_rows]
            better = size < most[rows]
            most[rows[better]] = size[better]
            users[rows[better]] = chosen[better]

    deadline = time.monotonic() + time_limit
    lower = np.minimum(least.min(axis=1), limit + 1)
    gaps = np.flatnonzero(lower < most)
    for row in gaps:
        for rank in np.argsort(least[row], kind="stable"):
            left = deadline - time.monotonic()
            if least[row, rank] >= most[row] or left <= 0:
                break
            weights, need = breaker.demands(int(rank), np.array([row]))
            found, proved = solve_users(weights[0], need[0], code, int(least[row, rank]), int(most[row]) - 1, left)
            least[row, rank] = max(least[row, rank], proved)
            if found is not None:
                most[row] = found.size
                users[row] = -1
                users[row, : found.size] = found
        lower[row] = min(int(least[row].min()), int(most[row]))
        bar.advance(1 / gaps.size)
    # Sizes are least numbers of users that break; limit + 1 stands for "none found within the limit".
    broken = most <= limit
    exact = (lower == most) & (broken | (limit >= code.n_users))
    users[~(broken & (lower == most))] = -1
    return lower - 1, exact, users


def is_partition(code: Code) -> bool:
    """Say whether every user is in one model, so that k users hit any k models at most (every model has a user)."""
    return bool((code.matrix.sum(axis=0) == 1).all())


def bound_targets(breaker: PluralityBreaker, code: Code, limit: int, n_classes: int) -> NDArray[np.int64]:
    """Bound from below, for every label, the users that cannot yet force it; shape (D, c) (Proposition 38).

    Label t must beat the output, which leads it by most. Where every user is in one model, exact: h hit models are
    enough iff they can bring every other label down to what t then has.
    """
    votes, found = breaker.votes, np.zeros((breaker.labels.size, n_classes), dtype=np.int64)
    counts = np.stack([(votes == e).sum(axis=1) for e in range(n_classes)], axis=1)
    whole = is_partition(code)
    matrix = code.matrix.astype(np.float32)
    for t in range(n_classes):
        others = np.where(np.arange(n_classes) == t, -1, counts + (np.arange(n_classes) < t))
        if whole:
            low, high = np.zeros(votes.shape[0], np.int64), np.full(votes.shape[0], code.n_models)
            while (low < high).any():
                middle = (low + high) // 2
                left = np.maximum(others - (counts[:, t] + middle)[:, None], 0)
                enough = np.where(np.arange(n_classes) == t, 0, left).sum(axis=1) <= middle
                low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
            found[:, t] = low
            continue
        step = max(1, BLOCK_CELLS // max(code.n_users, code.n_models))
        for start in range(0, votes.shape[0], step):
            here = slice(start, start + step)
            label = breaker.labels[here]
            weights = np.float32(1) + (votes[here] == label[:, None]) - (votes[here] == t)
            need = (others[here][np.arange(label.size), label] - counts[here, t]).astype(np.float32)
            bound = bound_users(weights.astype(np.float32) @ matrix, need, limit)
            found[here, t] = np.where(need > 0, bound, 0)
    return np.minimum(found, limit + 1) - 1


def bound_users(influence: NDArray[np.float32], need: NDArray[np.float32], limit: int) -> NDArray[np.int64]:
    """Return a lower bound on the users needed: least k whose k largest influences reach ``need``, else limit + 1."""
    reach = np.cumsum(-np.sort(-influence, axis=1)[:, :limit], axis=1) >= need[:, None]
    return np.where(reach.any(axis=1), reach.argmax(axis=1) + 1, limit + 1).astype(np.int64)


def attack_greedily(
    weights: NDArray[np.float32], need: NDArray[np.float32], matrix: NDArray[np.float32], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Take the user who covers most of what is left, ties to the lowest index, until ``need`` is reached.

    Returns
    -------
    size : ndarray, shape (R,)
        Users taken; limit + 1 where ``limit`` were not enough.
    users : ndarray, shape (R, limit)
        Ascending, padded with -1 at the end.
    """
    size = np.full(need.size, limit + 1, dtype=np.int64)
    chosen = np.full((need.size, limit), -1, dtype=np.int32)
    left, missing, open_rows = weights.copy(), need.copy(), np.arange(need.size)
    for taken in range(1, limit + 1):
        if open_rows.size == 0:
            break
        gain = left[open_rows] @ matrix
        user = gain.argmax(axis=1)
        chosen[open_rows, taken - 1] = user
        missing[open_rows] -= gain[np.arange(user.size), user]
        left[open_rows] *= 1 - matrix.T[user]
        size[open_rows[missing[open_rows] <= 0]] = taken
        open_rows = open_rows[missing[open_rows] > 0]
    chosen[size > limit] = -1
    order = np.argsort(np.where(chosen < 0, matrix.shape[1], chosen), axis=1, kind="stable")
    return size, np.take_along_axis(chosen, order, axis=1)


def solve_users(
    weights: NDArray[np.float32], need: float, code: Code, least: int, most: int, seconds: float
) -> tuple[NDArray[np.int32] | None, int]:
    r"""Find the fewest users, between ``least`` and ``most``, who break an output, as `find_fewest` does.

    Minimise :math:`\sum_j x_j` over binary x and :math:`z \in [0,1]^m` with :math:`z_i \le \sum_j H_{ij} x_j` and
    :math:`\sum_i w_i z_i \ge \mathrm{need}`.
    """
    from scipy.optimize import LinearConstraint

    n, m = code.n_users, code.n_models
    dense = np.zeros((m + 2, n + m))
    dense[:m, :n], dense[:m, n:] = -code.matrix.astype(float), np.eye(m)
    dense[m, n:] = weights
    dense[m + 1, :n] = 1
    low = np.concatenate([np.full(m, -np.inf), [float(need), float(least)]])
    high = np.concatenate([np.zeros(m), [np.inf, float(most)]])
    program = LinearConstraint(csr_array(dense), low, high)
    return find_fewest(
        program, np.arange(n + m) < n, code, least, most, seconds, lambda hit: weights[hit].sum() >= need
    )


def find_fewest(
    program: "LinearConstraint",
    whole: NDArray[np.bool_],
    code: Code,
    least: int,
    most: int,
    seconds: float,
    breaks: Callable[[NDArray[np.bool_]], bool],
) -> tuple[NDArray[np.int32] | None, int]:
    """Minimise the number of users, the first n variables of a program over [0, 1], with HiGHS through scipy.

    Parameters
    ----------
    program : LinearConstraint
        Holds for every attack by ``least`` to ``most`` users, so that the solver's dual bound is sound.
    whole : ndarray of bool
        Variables that are 0 or 1.
    breaks : callable
        Whether a hit pattern (m,) breaks the output, in whole numbers: what the solver found is not believed.

    Returns
    -------
    users : ndarray or None
        A set that breaks, None if none was found.
    proved : int
        No smaller set than this breaks; ``most + 1`` when no set of at most ``most`` users does.
    """
    from scipy.optimize import Bounds, milp

    answer = milp(
        (np.arange(whole.size) < code.n_users).astype(float),
        integrality=whole.astype(np.int64),
        bounds=Bounds(0, 1),
        constraints=program,
        options={"time_limit": max(seconds, 0.01)},
    )
    if answer.status == 2:  # infeasible: nothing between the bounds
        return None, most + 1
    users = None
    if answer.x is not None:
        picked = np.flatnonzero(answer.x[: code.n_users] > 0.5)
        if breaks(code.pattern(picked.tolist())):
            users = picked.astype(np.int32)
    dual = answer.mip_dual_bound
    proved = least if dual is None or not np.isfinite(dual) else max(least, int(np.ceil(dual - SLACK)))
    return users, proved
