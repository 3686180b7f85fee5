"""Whether a matrix meets a request: the last word on every code that the designer returns."""

import numpy as np
from numpy.typing import NDArray

from codeward.codes._code import Code
from codeward.codes._margins import MAX_PAIRS, count_pairs, find_margins
from codeward.codes._patterns import enumerate_patterns
from codeward.codes._properties import find_correction_break, find_twin_break
from codeward.codes._request import Request


def meets(matrix: NDArray[np.bool_], request: Request) -> bool:
    """Check the row weight, the guarantee and its margin by enumerating all attacker sets.

    Users with equal columns are one user to every property but tracking, so these are collapsed first: a code for a
    thousand users that has twenty distinct columns is checked on twenty. Where a margin above 1 would need more than
    `MAX_PAIRS` comparisons, only a sufficient condition is tried (as many rows of ones as the margin), and the answer
    is False when it does not hold.

    Raises
    ------
    TooLargeError
        When there are more attacker sets than can be enumerated.
    """
    n_models, n_users = matrix.shape
    if n_users != request.n_users or not n_models or not matrix.any(axis=0).all():
        return False
    if int(matrix.sum(axis=1).min()) < request.row_weight:
        return False
    distinct = np.unique(matrix, axis=1)
    tracking = request.guarantee == "track"
    if tracking and distinct.shape[1] < n_users:
        return False
    table = enumerate_patterns(Code(matrix if tracking else distinct), request.strength)
    margin = request.margin

    # 1. Every k-sum has at least d zeros.
    if n_models - int(table.weights.max()) < margin:
        return False
    if request.covering_only:
        return True

    # 2. No two k-sums are complements, none share two attacker sets; with a margin, they stay d away from it.
    if tracking and find_twin_break(table) is not None:
        return False
    if margin == 1:
        return find_correction_break(table) is None
    if count_pairs(table, request.strength) > MAX_PAIRS:
        return not tracking and int(matrix.all(axis=1).sum()) >= margin
    margins = find_margins(table)
    return margins.label[-1] >= margin and (not tracking or margins.tracking[-1] >= margin)


def tracks_groups(matrix: NDArray[np.bool_], request: Request, groups: Request) -> bool:
    """Whether the distinct columns are a tracking code of the groups, and all columns one that corrects for users."""
    correct = Request(request.n_users, request.n_attackers, request.row_weight, "correct", request.margin)
    return meets(np.unique(matrix, axis=1), groups) and meets(matrix, correct)
