"""Codes by construction: the paper's, separable matrices, those of earlier defenses.

The paper's corollary on column duplication has two repairs here. In a separable matrix all Boolean sums of at most k
columns differ, so a sum names its columns (group testing).
"""

from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError, TooLargeError
from codeward.codes._code import Code
from codeward.codes._geometry import make_field, split_prime_power
from codeward.codes._patterns import enumerate_patterns
from codeward.codes._properties import find_twin_break

#: Entries of the largest minimal code that is built.
MAX_CELLS = 100_000_000


def minimal_code(n_attackers: int, row_weight: int) -> Code:
    r"""Build the unique minimal BDC(k, r, k + r), :math:`\mathcal{H}^{(k,r)}`, by the recursion of Theorem 3.

    It has :math:`m = \binom{k+r}{k}` models: all rows with exactly k zeros (Proposition 7 of docs/theory.md).

    Examples
    --------
    >>> minimal_code(1, 2).matrix.astype(int).tolist()
    [[1, 1, 0], [1, 0, 1], [0, 1, 1]]
    """
    _check_positive(n_attackers=n_attackers, row_weight=row_weight)
    models = comb(n_attackers + row_weight, n_attackers)
    if models * (n_attackers + row_weight) > MAX_CELLS:
        raise TooLargeError(f"the minimal code H({n_attackers},{row_weight}) has {models:,} models, too many to build")
    return Code(_recurse(n_attackers, row_weight), construction=f"minimal H({n_attackers},{row_weight})")


def minimal_correcting_code(n_attackers: int, row_weight: int) -> Code:
    """Build the minimal BCC(k, r, k + r) of Theorem 5: `minimal_code`, with a row of ones added when r = 1.

    Proposition 9 of docs/theory.md.

    Examples
    --------
    >>> minimal_correcting_code(2, 2).n_models, minimal_correcting_code(2, 1).n_models
    (6, 4)
    """
    code = minimal_code(n_attackers, row_weight)
    return add_row_of_ones(code) if row_weight == 1 else code


def add_row_of_ones(code: Code) -> Code:
    """Turn a BDC into a BCC of the same k, r, n by one more model that learns from everybody (Lemma 4).

    Proposition 8 of docs/theory.md.

    Examples
    --------
    >>> add_row_of_ones(Code([[1, 0], [0, 1]])).matrix.astype(int).tolist()
    [[1, 1], [1, 0], [0, 1]]
    """
    ones = np.ones((1, code.n_users), dtype=bool)
    return Code(np.vstack([ones, code.matrix]), code.users, construction=f"{code.construction} + row of ones")


def duplicated_code(n_users: int, n_attackers: int, row_weight: int, correct: bool = True) -> Code:
    r"""Build a BCC(k, r, n) (BDC when not ``correct``) by repeating the columns of a minimal code (Corollary 5.1).

    The paper takes :math:`p = \lfloor (n-r)/k \rfloor` copies of :math:`\mathcal{H}^{(k, r_0)}`,
    :math:`r_0 = \lceil r/p \rceil`. Two repairs: that p can ask for more than n columns (k=1, r=11, n=16 asks for 20),
    so any p with :math:`p (k + \lceil r/p \rceil) \le n` is tried and the one with fewest models kept; and it can leave
    more than :math:`k + r_0` columns over, which are filled by repeating the columns from the start as often as needed.
    Proposition 10 of docs/theory.md. For n < k + r no code exists (Lemma 2): an `InputError`.

    Examples
    --------
    >>> duplicated_code(12, 4, 4).n_models
    15
    """
    _check_positive(n_users=n_users, n_attackers=n_attackers, row_weight=row_weight)
    if n_users < n_attackers + row_weight:
        raise InputError(
            f"no code exists: every row would have fewer than {n_attackers} zeros "
            f"(users {n_users} < attackers {n_attackers} + row weight {row_weight})"
        )
    best: tuple[int, int, int] | None = None
    for copies in range(1, n_users // (n_attackers + 1) + 1):
        weight = -(-row_weight // copies)
        if copies * (n_attackers + weight) > n_users:
            continue
        models = comb(n_attackers + weight, n_attackers) + (correct and weight == 1)
        # Fewest models; on a tie the fewest copies, that is the largest minimal code.
        best = min(best or (models, copies, weight), (models, copies, weight))
    assert best is not None  # copies = 1 always fits
    _, copies, weight = best
    build = minimal_correcting_code if correct else minimal_code
    base = build(n_attackers, weight)
    columns = np.arange(n_users) % base.n_users
    return Code(base.matrix[:, columns], construction=f"{base.construction}, columns repeated to {n_users}")


def _recurse(k: int, r: int) -> NDArray[np.bool_]:
    if r == 1:
        return np.eye(k + 1, dtype=bool)
    top = _recurse(k, r - 1)
    bottom = np.ones((1, r), dtype=bool) if k == 1 else _recurse(k - 1, r)
    ones = np.ones((len(top), 1), dtype=bool)
    return np.block([[ones, top], [np.zeros((len(bottom), 1), dtype=bool), bottom]])


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"{name.replace('_', ' ')} must be at least 1, got {value}")


def _check_row_weight(row_weight: int, n_users: int) -> None:
    if not 1 <= row_weight <= n_users:
        raise InputError(f"row weight {row_weight} is not in 1..{n_users}")


def bit_code(n_users: int) -> Code:
    """Write user j's number j + 1 in binary down column j: 1-separable with ceil(log2(n + 1)) rows, the fewest.

    Examples
    --------
    >>> bit_code(3).matrix.astype(int).tolist()
    [[1, 0, 1], [0, 1, 1]]
    """
    _check_positive(users=n_users)
    rows = np.arange(int(n_users).bit_length())
    return Code((np.arange(1, n_users + 1)[None, :] >> rows[:, None]) & 1, construction="binary numbers")


def kautz_singleton_code(n_users: int, n_attackers: int) -> Code:
    r"""Build a k-disjunct (hence k-separable) matrix from a Reed-Solomon code (Kautz and Singleton, 1964).

    A prime power q, polynomials of degree below :math:`\kappa` over :math:`\mathbb{F}_q` evaluated at
    :math:`L = k(\kappa-1)+1 \le q` points, each symbol written as a unit vector of length q: two columns share at most
    :math:`\kappa - 1` ones, so k columns cannot cover another. Rows: qL, the fewest over the prime powers that fit.

    Proposition 11 of docs/theory.md. Not implemented: the point at infinity (L = q + 1).

    Examples
    --------
    >>> code = kautz_singleton_code(16, 2)
    >>> code.n_models, code.row_weight
    (12, 4)
    """
    _check_positive(users=n_users, attackers=n_attackers)
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

    An `InputError` when no draw of ``tries`` is: ask for more models or a row weight nearer n / (k + 1).

    Examples
    --------
    >>> random_separable_code(6, 1, 3, 4, np.random.default_rng(0)).n_models
    4
    """
    _check_row_weight(row_weight, n_users)
    for _ in range(tries):
        matrix = rng.permuted(np.tile(np.arange(n_users) < row_weight, (n_models, 1)), axis=1)
        if matrix.any(axis=0).all():
            code = Code(matrix, construction=f"random separable, row weight {row_weight}")
            if find_twin_break(enumerate_patterns(code, n_attackers)) is None:
                return code
    raise InputError(
        f"no {n_attackers}-separable matrix of {n_models} rows of weight {row_weight} for {n_users} users "
        f"in {tries} draws; ask for more models"
    )


def stack_codes(top: Code, bottom: Code) -> Code:
    """Stack a separable matrix under a BCC: a BTC when both have row weight at least r (Corollary 5.2).

    Proposition 11 of docs/theory.md.

    Examples
    --------
    >>> stack_codes(duplicated_code(16, 2, 4), kautz_singleton_code(16, 2)).n_models
    16
    """
    if top.n_users != bottom.n_users:
        raise InputError(f"cannot stack codes of {top.n_users} and {bottom.n_users} users")
    return Code(
        np.vstack([top.matrix, bottom.matrix]), top.users, construction=f"{top.construction} over {bottom.construction}"
    )


def partition_code(n_users: int, n_groups: int) -> Code:
    """Split users into ``n_groups`` disjoint groups, one model each; user j goes to group j mod n_groups.

    Deep Partition Aggregation (Levine and Feizi, ICLR 2021).

    Examples
    --------
    >>> partition_code(4, 2).matrix.astype(int).tolist()
    [[1, 0, 1, 0], [0, 1, 0, 1]]
    """
    if not 1 <= n_groups <= n_users:
        raise InputError(f"cannot split {n_users} users into {n_groups} groups that each have a user")
    matrix = np.arange(n_groups)[:, None] == np.arange(n_users)[None, :] % n_groups
    return Code(matrix, construction=f"partition into {n_groups} groups")


def bagging_code(n_users: int, n_models: int, row_weight: int, rng: np.random.Generator) -> Code:
    """Draw ``row_weight`` users for each model, uniformly and independently.

    Bagging as a defense (Jia, Cao and Gong, AAAI 2021), with subsets drawn without replacement so that the row weight
    is constant, as in the paper's codes (e) and (f). A draw that leaves a user without a model is drawn again.

    Examples
    --------
    >>> bagging_code(12, 15, 4, np.random.default_rng(0)).row_weight
    4
    """
    _check_row_weight(row_weight, n_users)
    if n_models < 1 or n_models * row_weight < n_users:
        raise InputError(f"{n_models} models of {row_weight} users cannot use all {n_users} users")
    for _ in range(10_000):
        matrix = np.zeros((n_models, n_users), dtype=bool)
        for row in matrix:
            row[rng.choice(n_users, row_weight, replace=False)] = True
        if matrix.any(axis=0).all():
            return Code(matrix, construction=f"random rows of weight {row_weight}")
    raise InputError(
        f"10,000 draws of {n_models} models of {row_weight} users left some of {n_users} users out; "
        "ask for more models or a larger row weight"
    )


def shifted_hash_code(n_groups: int, spread: int, rng: np.random.Generator, n_users: int | None = None) -> Code:
    """Send every user to ``spread`` of ``n_groups * spread`` models.

    Finite Aggregation (Wang, Levine and Feizi, ICML 2022): with k = n_groups and d = spread, users are hashed to kd
    parts and part i feeds the models (i + shift) mod kd, for d distinct shifts that ``rng`` draws. User j is in part
    j mod kd; each model learns from about 1/k of the users. ``n_users`` is kd by default, one user a part, and at least
    kd - d + 1 so that no model stays empty for certain.

    Examples
    --------
    >>> code = shifted_hash_code(3, 2, np.random.default_rng(0))
    >>> code.n_models, code.matrix.sum(axis=0).tolist()  # every user feeds two models
    (6, [2, 2, 2, 2, 2, 2])
    """
    size = n_groups * spread
    _check_positive(groups=n_groups, spread=spread)
    users = size if n_users is None else n_users
    shifts = rng.choice(size, spread, replace=False)
    part = np.arange(users) % size
    matrix = np.zeros((size, users), dtype=bool)
    for shift in shifts:
        matrix[(part + shift) % size, np.arange(users)] = True
    return Code(matrix, construction=f"shifted hash, {n_groups} x {spread}")
