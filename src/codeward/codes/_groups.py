"""Tracking groups of users, where single users are too many to be told apart by enumeration.

DESIGN.md, "Properties": tracking asks that all k-sums differ, which is verified over all attacker sets. For a thousand
users these are too many. Users are then hashed onto the columns of a smaller BTC: k users fall on at most k groups, so
the groups that attack are named, and everything else holds for single users.
"""

from dataclasses import replace
from itertools import chain
from math import ceil

import numpy as np

from codeward._errors import UnmetError
from codeward.codes._bounds import bound_models
from codeward.codes._costs import WORK_PER_SECOND, check_cost
from codeward.codes._demands import tracks_groups
from codeward.codes._grouping import spread_columns
from codeward.codes._incumbent import MAX_CHECK, MAX_VERIFIED, Incumbent
from codeward.codes._margins import MAX_PAIRS
from codeward.codes._patterns import count_attacker_sets
from codeward.codes._request import Request
from codeward.codes._tracking import likely_rows

#: Attacker sets of the groups: as many groups as annealing for the property still handles well.
MAX_GROUP_SETS = 1_000


def needs_groups(request: Request, seconds: float) -> bool:
    """Whether tracking single users is out of reach: one check of a code would take more than all the work granted."""
    if request.guarantee != "track":
        return False
    sets = count_attacker_sets(request.n_users, request.n_attackers)
    if sets > MAX_VERIFIED or (request.margin > 1 and sets * (sets + 1) // 2 > MAX_PAIRS):
        return True
    n_models = max(bound_models(request), likely_rows(request))
    # A code with few users is checked at any rate: a search for it must not depend on a short time limit.
    return check_cost(request.n_users, n_models, request) > min(MAX_CHECK, max(seconds, 1.0) * WORK_PER_SECOND)


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
