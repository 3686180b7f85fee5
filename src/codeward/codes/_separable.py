"""Separable matrices: all Boolean sums of at most k columns differ, so a sum names its columns (group testing)."""

import numpy as np

from codeward._errors import InputError
from codeward.codes._code import Code
from codeward.codes._fields import make_field, split_prime_power
from codeward.codes._patterns import enumerate_patterns
from codeward.codes._properties import find_twin_break


def bit_code(n_users: int) -> Code:
    """Write user j's number j + 1 in binary down column j: 1-separable with ceil(log2(n + 1)) rows, the fewest."""
    if n_users < 1:
        raise InputError(f"users must be at least 1, got {n_users}")
    rows = int(n_users).bit_length()
    matrix = (np.arange(1, n_users + 1)[None, :] >> np.arange(rows)[:, None]) & 1
    return Code(matrix, construction="binary numbers")


def kautz_singleton_code(n_users: int, n_attackers: int) -> Code:
    r"""Build a k-disjunct (hence k-separable) matrix from a Reed-Solomon code (Kautz and Singleton, 1964).

    A prime power q, polynomials of degree below :math:`\kappa` over :math:`\mathbb{F}_q` evaluated at
    :math:`L = k(\kappa-1)+1 \le q` points, each symbol written as a unit vector of length q: two columns share at most
    :math:`\kappa - 1` ones, so k columns cannot cover another. Rows: qL, the fewest over the prime powers that fit.

    Not implemented: the point at infinity (L = q + 1).
    """
    if n_users < 1 or n_attackers < 1:
        raise InputError(f"users and attackers must be at least 1, got {n_users} and {n_attackers}")
    best: tuple[int, int, int] | None = None
    for q in filter(split_prime_power, range(2, max(4 * n_users, 64))):
        degree = 1
        while q**degree < n_users:
            degree += 1
        points = n_attackers * (degree - 1) + 1
        if points <= q:
            best = min(best or (q * points, q, degree), (q * points, q, degree))
        if degree == 1:
            break  # larger fields only add rows
    assert best is not None  # degree 1 always fits: one point, q >= n
    _, q, degree = best
    points = n_attackers * (degree - 1) + 1
    coefficients = (np.arange(n_users)[:, None] // q ** np.arange(degree)[None, :]) % q
    field, at = make_field(q), np.arange(points)
    symbols = np.zeros((n_users, points), dtype=np.int64)
    for i in reversed(range(degree)):  # Horner: f(x) = a_0 + x (a_1 + x (...))
        symbols = field.plus[coefficients[:, i, None], field.times[symbols, at]]
    matrix = (symbols.T[:, None, :] == np.arange(q)[None, :, None]).reshape(points * q, n_users)
    used = matrix[matrix.any(axis=1)]  # with n < q^degree some symbols never occur
    return Code(used, construction=f"Kautz-Singleton, q={q}, length {points}")


def random_separable_code(
    n_users: int, n_attackers: int, row_weight: int, n_models: int, rng: np.random.Generator, tries: int = 2000
) -> Code:
    """Draw rows of ``row_weight`` ones until the matrix is k-separable, verified by enumeration.

    Raises
    ------
    InputError
        When no draw of ``tries`` is separable: ask for more models or a row weight nearer n / (k + 1).
    """
    if not 1 <= row_weight <= n_users:
        raise InputError(f"row weight {row_weight} is not in 1..{n_users}")
    for _ in range(tries):
        matrix = rng.permuted(np.tile(np.arange(n_users) < row_weight, (n_models, 1)), axis=1)
        if not matrix.any(axis=0).all():
            continue
        code = Code(matrix, construction=f"random separable, row weight {row_weight}")
        if find_twin_break(enumerate_patterns(code, n_attackers)) is None:
            return code
    raise InputError(
        f"no {n_attackers}-separable matrix of {n_models} rows of weight {row_weight} for {n_users} users "
        f"in {tries} draws; ask for more models"
    )


def stack_codes(top: Code, bottom: Code) -> Code:
    """Stack a separable matrix under a BCC: a BTC when both have row weight at least r (Corollary 5.2)."""
    if top.n_users != bottom.n_users:
        raise InputError(f"cannot stack codes of {top.n_users} and {bottom.n_users} users")
    return Code(
        np.vstack([top.matrix, bottom.matrix]), top.users, construction=f"{top.construction} over {bottom.construction}"
    )
