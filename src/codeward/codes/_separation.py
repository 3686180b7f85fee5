"""Tracking codes of many users: rows that share the users out, repairs of what they do not tell apart, and groups.

Tracking asks that all k-sums differ (Proposition 3 of docs/theory.md), which is verified over all attacker sets. Where
single users have too many of them, users are hashed onto the columns of a smaller BTC: k users fall on at most k
groups, so the groups that attack are named, and everything else holds for single users.
"""

from dataclasses import replace
from itertools import chain
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from codeward._errors import TooLargeError, UnmetError
from codeward.codes._conflicts import Conflict, find_conflicts
from codeward.codes._coverings import spread_columns
from codeward.codes._guarantees import Request, bound_models, tracks_groups
from codeward.codes._incumbent import WORK_PER_SECOND, Incumbent, check_cost, is_unverifiable
from codeward.codes._patterns import count_attacker_sets


class UserSeparation:
    """Tracking codes of many users with fewer and fewer rows: rows in blocks, then repairs.

    A block of q rows shares the users out, so that every user has one of q symbols in it. Then two users with unlike
    symbols are told apart in the company of any third, where independent rows often fail to. What is not told apart is
    found by lookup (`find_conflicts`) and repaired by exchanging symbols, which keeps the row weights. ``base`` gives
    rows to stand above the blocks. `run` can be called again and goes on where it was.
    """

    #: Rounds without fewer conflicts before a number of rows is given up; they double when nothing else is left.
    PATIENCE = 6
    #: Blocks tell users apart with fewer rows than independent ones, by about this factor.
    START = 0.8
    #: Work of repairing one conflict: a few dozen short numpy calls.
    REPAIR = 20_000

    def __init__(self, best: Incumbent, base: NDArray[np.bool_] | None = None) -> None:
        request = best.request
        self.best = best
        self.base = np.zeros((0, request.n_users), dtype=bool) if base is None else base
        self.likely = likely_rows(request)
        self.target = len(self.base) + max(ceil(self.START * self.likely), best.bound - len(self.base), 1)
        self.low, self.patience, self.failures = best.bound - 1, self.PATIENCE, 0
        self.matrix: NDArray[np.bool_] | None = None
        self.conflicts: list[Conflict] | None = None

    def run(self, work: float) -> None:
        """Spend this much work on fewer rows."""
        best, stop = self.best, self.best.work - work
        while best.work > stop and not best.finished:
            if self.matrix is None and not self._begin():
                return
            assert self.matrix is not None
            left = self._round()
            if left is None:
                return
            if left == 0:
                name = f"users shared out in {len(self.matrix) - len(self.base)} rows, told apart by repair"
                best.keep(self.matrix, name if not len(self.base) else f"correcting code over {name}")
                self.matrix = None
            elif left < 0 or self.failures > self.patience:
                self.low = max(self.low, len(self.matrix)) if best.matrix is not None else self.low
                self.matrix = None

    def _begin(self) -> bool:
        """Draw rows: more of them until there is a code, then fewer by halves, then one less with more patience."""
        size, fixed = self.best.size, len(self.base)
        if self.best.matrix is not None:
            self.low = min(self.low, size - 1)
            self.patience *= 2 if self.low == size - 1 else 1
            # Nearer to what is known to work: a failure costs more than a success.
            self.target = min(size - 1, self.low + max(1, 3 * (size - self.low) // 4))
        elif self.conflicts is not None:
            self.target += -(-self.target // 4)
        if self.target <= fixed or self.target > fixed + 10 * self.likely:
            return False
        rows = _share_out(self.best.request, self.target - fixed, self.best.rng)
        self.matrix, self.conflicts, self.failures = np.vstack([self.base, rows]), None, 0
        return True

    def _round(self) -> int | None:
        """Repair some conflicts and look again: how many are left, -1 for too many, None when no check is possible."""
        best, request = self.best, self.best.request
        assert self.matrix is not None
        tried, known = self.matrix.copy(), self.conflicts
        if known is not None:
            # All at once at first; fewer when that made new ones.
            chosen = best.rng.permutation(len(known))[: max(1, len(known) // (1 + self.failures))]
            best.work -= len(chosen) * self.REPAIR
            for i in chosen:
                _exchange(tried, known[i], request, len(self.base), best.rng)
        if not best.pay_check(tried, request):
            return None
        most = 4 * request.n_users if known is None else len(known) + 1
        self.conflicts = known or []
        try:
            found = find_conflicts(tried, request.n_attackers, request.margin, most)
        except TooLargeError:
            return -1
        if known is None and len(found) >= most:
            return -1
        self.failures = 0 if known is None or len(found) < len(known) else self.failures + 1
        if known is None or len(found) <= len(known):
            self.matrix, self.conflicts = tried, found
            best.report(f"{len(tried)} models: {len(found)} pairs of attacker sets not told apart" if found else "")
        return len(self.conflicts)


def _share_out(request: Request, n_rows: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw rows in blocks that share the users out: each one symbol of q, or (rows of over half the users) all but one.

    Where n / q users are fewer than a row must have, some users get two symbols.
    """
    n, size = request.n_users, _block_rows(request)
    rows = np.zeros((n_rows, n), dtype=bool)
    dense = 2 * request.row_weight > n
    for start in range(0, n_rows, size):
        order = rng.permutation(n)
        for i, row in enumerate(rows[start : start + size]):
            edge, end = i * n // size, (i + 1) * n // size
            wanted = end - edge if dense else max(request.row_weight, end - edge)
            row[np.take(order, np.arange(edge, edge + wanted), mode="wrap")] = True
            row ^= dense
    return rows


def _block_rows(request: Request) -> int:
    """Rows of a block: symbols at which rows have the weight asked for, or the one that tells most apart."""
    n = request.n_users
    if 2 * request.row_weight > n:
        return max(2, ceil(n / request.block_size))
    return max(2, round(n / _best_weight(request)))


def _exchange(
    matrix: NDArray[np.bool_], conflict: Conflict, request: Request, fixed: int, rng: np.random.Generator
) -> None:
    """Exchange symbols of a user of one of the two sets with others until the two are told apart."""
    n_models, n_users = matrix.shape
    first, second = list(conflict.first), list(conflict.second)
    users = sorted(set(first) ^ set(second))
    size = _block_rows(request)

    def miss() -> int:
        differ = int(np.count_nonzero(matrix[:, first].any(axis=1) != matrix[:, second].any(axis=1)))
        return int(max(0, request.margin - differ, differ - n_models + request.margin))

    left = miss()
    for _ in range(200):
        if left == 0:
            return
        pair = [users[rng.integers(len(users))], int(rng.integers(n_users))]
        start = fixed + int(rng.integers(-(-(n_models - fixed) // size))) * size
        block = matrix[start : start + size]
        if pair[1] in first or pair[1] in second or (block[:, pair[0]] == block[:, pair[1]]).all():
            continue
        block[:, pair] = block[:, pair[::-1]]
        now = miss()
        if now < left:
            left = now
        else:
            block[:, pair] = block[:, pair[::-1]]


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


#: Attacker sets of the groups: as many groups as annealing for the property still handles well.
MAX_GROUP_SETS = 1_000


def needs_groups(request: Request, seconds: float) -> bool:
    """Whether tracking single users is out of reach: one check of a code would take more than all the work granted."""
    if request.guarantee != "track":
        return False
    n_models = max(bound_models(request), likely_rows(request))
    cost = check_cost(request.n_users, n_models, request)
    # A code with few users is checked at any rate: a search for it must not depend on a short time limit.
    return cost > max(seconds, 1.0) * WORK_PER_SECOND or is_unverifiable(request.n_users, cost, request)


def plan_groups(request: Request) -> Request | None:
    """Ask for a code on groups of nearly equal size; None when no number of groups leaves room for k clean zeros.

    A row of z zero groups leaves out at most :math:`z \\lceil n / v \\rceil` users, which may be n - r.
    """
    n, k = request.n_users, request.n_attackers
    wanted = next((v for v in range(n, k, -1) if count_attacker_sets(v, k) <= MAX_GROUP_SETS), k + 1)
    # Fewer groups are searched better; more are needed when a row may leave out few users.
    for v in chain(range(wanted, k, -1), range(wanted + 1, n)):
        zeros = min(request.block_size // -(-n // v), v - 1)
        small = Request(v, k, v - zeros, "track", request.margin)
        if zeros >= k:
            return small if not needs_groups(small, 1.0) else None
    return None


def require_groups(request: Request) -> Request:
    """Plan groups or refuse, with the reason."""
    small = plan_groups(request)
    if small is None:
        n, k = request.n_users, request.n_attackers
        raise UnmetError(
            f"design: to track {k} of {n} users, {count_attacker_sets(n, k):,} attacker sets must be told apart, more "
            f"than can be verified in the time, and groups of users do not help at row weight {request.row_weight}: a "
            f"model that avoids {k} groups would learn from too few users; ask for a smaller row weight, fewer "
            "attackers, more time, or the guarantee correct, which needs no distinct users"
        )
    return small


def refuse_tracking(request: Request, seconds: float) -> UnmetError:
    """Say why single users cannot be tracked, and what can be had instead."""
    n, k = request.n_users, request.n_attackers
    possible = []
    if not needs_groups(request, float("inf")):
        cost = check_cost(n, max(bound_models(request), likely_rows(request)), request)
        possible.append(f"a time limit of {ceil(cost / WORK_PER_SECOND)} s")
    fewer = next((j for j in range(k - 1, 0, -1) if not needs_groups(replace(request, n_attackers=j), seconds)), 0)
    if fewer:
        possible.append(f"{fewer} attacker{'s' * (fewer > 1)}")
    if request.margin > 1 and not needs_groups(replace(request, margin=1), seconds):
        possible.append("margin 1")
    small = plan_groups(request)
    if small is not None:
        size = -(-n // small.n_users)
        possible.append(f"tracking {small.n_users} groups of up to {size} users that share a column (--groups)")
    possible.append(f"the guarantee correct for {k}")
    return UnmetError(
        f"design: tracking {k} of {n} users with margin {request.margin} is out of reach: "
        f"{count_attacker_sets(n, k):,} attacker sets must be told apart, more than {seconds:.2g} s can verify; "
        f"possible: {'; '.join(possible)}"
    )


def bound_groups(request: Request, n_groups: int) -> int:
    """Bound the models of a code that tracks so many groups of nearly equal size and corrects for single users."""
    n, k, d = request.n_users, request.n_attackers, request.margin
    # Groups have at least floor(n / v) users, so a row has at most (n - r) / floor(n / v) zero groups.
    zeros = min(request.block_size // (n // n_groups), n_groups - 1)
    tracking = Request(n_groups, k, n_groups - zeros, "track", d)
    return max(bound_models(tracking), bound_models(Request(n, k, request.row_weight, "correct", d)))


def bound_search(request: Request, seconds: float, groups: bool) -> int | None:
    """Bound the models of what `solve` would look for; None when it would refuse."""
    if not needs_groups(request, seconds):
        return bound_models(request)
    small = plan_groups(request) if groups else None
    return None if small is None else bound_groups(request, small.n_users)


def spread_groups(best: Incumbent, part: Incumbent) -> None:
    """Give every user the column of its group; groups differ by one user at most."""
    best.absorb(part, best.work)
    best.groups = part.request
    if part.matrix is None:
        return
    n, v = best.request.n_users, part.request.n_users
    matrix = spread_columns(part.matrix, n // v + (np.arange(v) < n % v).astype(np.int64))
    if tracks_groups(matrix, best.request, part.request):
        best.matrix, best.construction = matrix, f"{part.construction} on {v} groups of users"
