"""What a designer is asked for, whether a matrix meets it, and how few models it can have.

Users of unlike size: which user gets which column, so that the poorest model has as many samples as possible.
"""

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError
from codeward.codes._code import Code
from codeward.codes._conflicts import find_conflicts
from codeward.codes._patterns import count_attacker_sets, distinct_columns, enumerate_patterns
from codeward.codes._properties import MAX_PAIRS, count_pairs, find_correction_break, find_margins

#: The guarantees a code can be designed for: Propositions 1, 2, 14 and 3 of docs/theory.md.
GUARANTEES = ("detect", "correct", "correct-arbitrary", "track")
#: Users a code is designed for at most.
MAX_USERS = 100_000


@dataclass(frozen=True)
class Request:
    """A wanted code: n users, at most k attackers, every row of at least r ones, a guarantee and its margin.

    Attributes
    ----------
    n_users, n_attackers, row_weight : int
        The letters n, k, r.
    guarantee : {"detect", "correct", "correct-arbitrary", "track"}
        BDC, BCC (deterministic threat model), BDC(2k) (arbitrary threat model), BTC.
    margin : int
        Least number of rows by which the property holds: zeros of a k-sum (detect) or a 2k-sum (correct-arbitrary),
        the label margin (correct), the label and the tracking margin (track). 1 is the bare property.
    """

    n_users: int
    n_attackers: int
    row_weight: int
    guarantee: str
    margin: int = 1

    @property
    def strength(self) -> int:
        """Size of the sets that a model must avoid: k, or 2k for the arbitrary threat model."""
        return 2 * self.n_attackers if self.guarantee == "correct-arbitrary" else self.n_attackers

    @property
    def block_size(self) -> int:
        """Most zeros a row may have, n - r: the block size of the covering."""
        return self.n_users - self.row_weight

    @property
    def covering_only(self) -> bool:
        """Whether a covering of the users by zero sets is all that is asked."""
        return self.guarantee in ("detect", "correct-arbitrary")


def check_request(n_users: int, n_attackers: int, guarantee: str, margin: int) -> None:
    """Refuse what no row weight could satisfy."""
    for name, value, least in (("users", n_users, 2), ("attackers", n_attackers, 1), ("margin", margin, 1)):
        if isinstance(value, bool) or int(value) != value or value < least:
            raise InputError(f"design: {name} must be a whole number of at least {least}, got {value}")
    if n_users > MAX_USERS:
        raise TooLargeError(f"design: {n_users:,} users are too many; {MAX_USERS:,} are the most")
    if guarantee not in GUARANTEES:
        raise InputError(f"design: guarantee must be one of {', '.join(GUARANTEES)}, got {guarantee!r}")


def make_request(n_users: int, n_attackers: int, row_weight: int, guarantee: str, margin: int) -> Request:
    """Check and build a request.

    For n >= k + r (n >= 2k + r for correct-arbitrary) a code always exists: all rows with at most k (2k) zeros have
    every property, and repeating each row d times gives it the margin d. So this refuses exactly the impossible.

    Raises
    ------
    InputError
        When no such code exists; the message says why.
    """
    check_request(n_users, n_attackers, guarantee, margin)
    if isinstance(row_weight, bool) or int(row_weight) != row_weight or row_weight < 1:
        raise InputError(f"design: the row weight must be a whole number of at least 1, got {row_weight}")
    request = Request(int(n_users), int(n_attackers), int(row_weight), guarantee, int(margin))
    if n_users < request.strength + row_weight:
        sets = "2k (correct-arbitrary must outvote two attacker sets)" if guarantee == "correct-arbitrary" else "k"
        raise InputError(
            f"design: impossible: n = {n_users} users are fewer than {sets} + r = {request.strength} + {row_weight}; "
            f"a model that avoids {request.strength} users has at most {max(n_users - request.strength, 0)} left, "
            f"so ask for a row weight of at most {max(n_users - request.strength, 0)} or for fewer attackers"
        )
    return request


def meets(matrix: NDArray[np.bool_], request: Request) -> bool:
    """Check the row weight, the guarantee and its margin by enumerating all attacker sets.

    Users with equal columns are one user to every property but tracking, so these are collapsed first: a code for a
    thousand users that has twenty distinct columns is checked on twenty. Tracking is checked by lookup, with any margin
    (Proposition 33 of docs/theory.md). For *correct*, where a margin above 1 would need more than
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
    distinct, margin = matrix[:, distinct_columns(matrix)[0]], request.margin
    if request.guarantee == "track":
        return distinct.shape[1] == n_users and not find_conflicts(matrix, request.n_attackers, margin)
    table = enumerate_patterns(Code(distinct), request.strength)

    # 1. Every k-sum has at least d zeros.
    if n_models - int(table.weights.max()) < margin:
        return False
    if request.covering_only:
        return True

    # 2. No two k-sums are complements; with a margin, they stay d away from it.
    if margin == 1:
        return find_correction_break(table) is None
    if count_pairs(table, request.strength) > MAX_PAIRS:
        return int(matrix.all(axis=1).sum()) >= margin
    return find_margins(table).label[-1] >= margin


def tracks_groups(matrix: NDArray[np.bool_], request: Request, groups: Request) -> bool:
    """Whether the distinct columns are a tracking code of the groups, and all columns one that corrects for users."""
    correct = Request(request.n_users, request.n_attackers, request.row_weight, "correct", request.margin)
    return meets(matrix[:, distinct_columns(matrix)[0]], groups) and meets(matrix, correct)


def covering_bound(n_points: int, block_size: int, strength: int, fold: int = 1) -> int:
    r"""Bound from below the blocks of a covering in which every t-set lies in at least ``fold`` blocks.

    The zero sets of a code are such blocks (Proposition 5 of docs/theory.md); proofs are in Proposition 6.

    Schönheim's bound (1964) in its :math:`\lambda`-fold form,
    :math:`C_\lambda(v,b,t) \ge \lceil \frac{v}{b} C_\lambda(v-1,b-1,t-1) \rceil`, sharpened at every level by

    * :math:`C_\lambda(v,b,t) \ge C_\lambda(v-1,b,t)` (leave a point out),
    * :math:`C_\lambda(v,b,t) \ge t + \lambda` for v > b (any t blocks miss a common t-set), and
    * Hanani's remark for t = 2: when :math:`\lambda(v-1) = \rho(b-1)` and :math:`v\rho \equiv -1 \pmod b`, one more.

    Parameters
    ----------
    n_points, block_size, strength, fold : int
        v, b, t and :math:`\lambda`, with v >= b >= t >= 0.

    Examples
    --------
    >>> covering_bound(13, 4, 2)  # the lines of the projective plane of order 3 attain it
    13
    """
    # Level j bounds C(v, b - t + j, j) for every v; each level needs only the one before.
    smallest = block_size - strength
    span = n_points - block_size
    below = [fold] * (span + 1)
    for j in range(1, strength + 1):
        size = smallest + j
        here = [fold]
        for step in range(1, span + 1):
            v = size + step
            bound = max(-(-v * below[step] // size), j + fold, here[-1])
            degree, rest = divmod(fold * (v - 1), size - 1) if size > 1 else (0, 1)
            # Hanani: with the excess 1, one point would be covered too often by points that are covered exactly.
            if j == 2 and rest == 0 and v * degree % size == size - 1:
                bound = max(bound, (v * degree + 1) // size + 1)
            here.append(bound)
        below = here
    return below[span]


def models_lower_bound(
    n_users: int, n_attackers: int, row_weight: int, guarantee: str = "correct", margin: int = 1
) -> int:
    """Bound from below the models of any code with this guarantee and margin (Proposition 6 of docs/theory.md).

    Parameters
    ----------
    n_users, n_attackers, row_weight : int
        n, k, r.
    guarantee : {"detect", "correct", "correct-arbitrary", "track"}
    margin : int
        By how many models it holds (Propositions 12 to 14 of docs/theory.md).

    Raises
    ------
    InputError
        When no such code exists.

    Examples
    --------
    >>> models_lower_bound(12, 2, 6)
    6
    """
    return bound_models(make_request(n_users, n_attackers, row_weight, guarantee, margin))


def bound_models(request: Request) -> int:
    """Bound a checked request; see `models_lower_bound`."""
    n, k, d = request.n_users, request.n_attackers, request.margin
    bound = covering_bound(n, request.block_size, request.strength, d)
    if request.covering_only:
        return bound
    # With k + 1 rows a least set of users that hits every row would have k + 1 members, each alone in its row; one of
    # them and the other k are then complementary k-sums. So BCC needs k + 2 rows.
    bound = max(bound, k + 2)
    if n == k + 1:
        # Only rows with a single one avoid k of the k + 1 users; rows that agree on {j} and its complement are others.
        bound = max(bound, d * (k + 2))
    if request.guarantee == "track":
        while not _patterns_fit(request, bound):
            bound += 1
    return bound


def _patterns_fit(request: Request, n_models: int) -> bool:
    """Whether m bits leave room for all attacker sets to have distinct patterns, far from each other's complements."""
    n, k, d = request.n_users, request.n_attackers, request.margin
    # 1. N attacker sets and their complements are 2N words at mutual distance >= d: the sphere-packing bound,
    #    2 N sum_{i <= (d-1)/2} C(m, i) <= 2^m.
    ball = sum(comb(n_models, i) for i in range((d - 1) // 2 + 1))
    if 2 * count_attacker_sets(n, k) * ball > 2**n_models:
        return False
    # 2. n distinct columns, each with at least as many zeros as its derived covering has blocks, and at most m(n - r)
    #    zeros in all: fill the fewest zeros first.
    zeros = covering_bound(n - 1, request.block_size - 1, k - 1, d)
    left, total = n, 0
    while left > 0 and zeros < n_models:
        taken = min(left, comb(n_models, zeros))
        total, left, zeros = total + taken * zeros, left - taken, zeros + 1
    return left == 0 and total <= n_models * request.block_size


#: Improving swaps made at most; each looks at all pairs of columns.
MAX_SWAPS = 500


def check_weights(weights: ArrayLike | None, n_users: int) -> NDArray[np.float64] | None:
    """Validate the users' sizes: n positive, finite numbers."""
    if weights is None:
        return None
    try:
        sizes = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("design: weights must be numbers, one for each user") from error
    if sizes.shape != (n_users,):
        raise InputError(f"design: {sizes.size} weights for {n_users} users; give one for each user")
    if not np.isfinite(sizes).all() or (sizes <= 0).any():
        place = int(np.flatnonzero(~(np.isfinite(sizes) & (sizes > 0)))[0])
        raise InputError(f"design: the weight of user {place} is {sizes[place]}; weights must be positive and finite")
    return sizes


def sample_utilization(matrix: NDArray[np.bool_], weights: NDArray[np.float64]) -> float:
    """Share of all samples that the poorest model learns from."""
    return float((matrix @ weights).min() / weights.sum())


def assign_columns(matrix: NDArray[np.bool_], weights: NDArray[np.float64]) -> NDArray[np.bool_]:
    r"""Permute the columns so that :math:`\min_i \sum_j H_{ij} w_j` is as large as a local search makes it.

    Guarantees do not depend on the order of columns. The largest users start with the fullest columns; then the swap
    that most raises the poorest row is made (ties: the lowest pair of users) until none raises it.
    """
    n_users = matrix.shape[1]
    by_weight = np.argsort(-weights, kind="stable")
    by_ones = np.argsort(-matrix.sum(axis=0), kind="stable")
    order = np.empty(n_users, dtype=np.int64)
    order[by_weight] = by_ones
    columns = matrix[:, order].astype(np.float64)
    for _ in range(MAX_SWAPS):
        loads = columns @ weights
        poorest = int(np.argmin(loads))
        # Only a swap that moves weight into the poorest row can help.
        absent = np.flatnonzero(columns[poorest] == 0)
        present = np.flatnonzero(columns[poorest] == 1)
        best = float(loads[poorest]) + 1e-12
        chosen: tuple[int, int] | None = None
        for user in absent:
            others = present[weights[present] < weights[user]]
            if not others.size:
                continue
            # Exchange columns of `user` and each other: loads + (H_other - H_user)(w_user - w_other)
            gain = (columns[:, others] - columns[:, [user]]) * (weights[user] - weights[others])
            least = (loads[:, None] + gain).min(axis=0)
            place = int(np.argmax(least))
            if least[place] > best:
                best, chosen = float(least[place]), (int(user), int(others[place]))
        if chosen is None:
            break
        columns[:, list(chosen)] = columns[:, [chosen[1], chosen[0]]]
    assigned: NDArray[np.bool_] = columns.astype(bool)
    return assigned
