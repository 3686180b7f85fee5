"""Lower bounds on the number of models of a code with a guarantee."""

from math import comb

from codeward.codes._patterns import count_attacker_sets
from codeward.codes._request import Request, make_request


def covering_bound(n_points: int, block_size: int, strength: int, fold: int = 1) -> int:
    r"""Bound from below the blocks of a covering in which every t-set lies in at least ``fold`` blocks.

    Schönheim's bound (1964) in its :math:`\lambda`-fold form,
    :math:`C_\lambda(v,b,t) \ge \lceil \frac{v}{b} C_\lambda(v-1,b-1,t-1) \rceil`, sharpened at every level by

    * :math:`C_\lambda(v,b,t) \ge C_\lambda(v-1,b,t)` (leave a point out),
    * :math:`C_\lambda(v,b,t) \ge t + \lambda` for v > b (any t blocks miss a common t-set), and
    * Hanani's remark for t = 2: when :math:`\lambda(v-1) = \rho(b-1)` and :math:`v\rho \equiv -1 \pmod b`, one more.

    Parameters
    ----------
    n_points, block_size, strength, fold : int
        v, b, t and :math:`\lambda`, with v >= b >= t >= 0.
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
    """Bound from below the models of any code with this guarantee and margin.

    Parameters
    ----------
    n_users, n_attackers, row_weight : int
        n, k, r.
    guarantee : {"detect", "correct", "correct-arbitrary", "track"}
    margin : int
        The margin d of DESIGN.md.

    Raises
    ------
    InputError
        When no such code exists.
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
