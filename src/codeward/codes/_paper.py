"""The paper's constructions, with two repairs to its corollary on column duplication."""

from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes._code import Code


def minimal_code(n_attackers: int, row_weight: int) -> Code:
    r"""Build the unique minimal BDC(k, r, k + r), :math:`\mathcal{H}^{(k,r)}`, by the recursion of Theorem 3.

    It has :math:`m = \binom{k+r}{k}` models: all rows with exactly k zeros.
    """
    _check_positive(n_attackers=n_attackers, row_weight=row_weight)
    return Code(_recurse(n_attackers, row_weight), construction=f"minimal H({n_attackers},{row_weight})")


def minimal_correcting_code(n_attackers: int, row_weight: int) -> Code:
    """Build the minimal BCC(k, r, k + r) of Theorem 5: `minimal_code`, with a row of ones added when r = 1."""
    code = minimal_code(n_attackers, row_weight)
    return add_row_of_ones(code) if row_weight == 1 else code


def add_row_of_ones(code: Code) -> Code:
    """Turn a BDC into a BCC of the same k, r, n by one more model that learns from everybody (Lemma 4)."""
    ones = np.ones((1, code.n_users), dtype=bool)
    return Code(np.vstack([ones, code.matrix]), code.users, construction=f"{code.construction} + row of ones")


def duplicated_code(n_users: int, n_attackers: int, row_weight: int, correct: bool = True) -> Code:
    r"""Build a BCC(k, r, n) (BDC when not ``correct``) by repeating the columns of a minimal code (Corollary 5.1).

    The paper takes :math:`p = \lfloor (n-r)/k \rfloor` copies of :math:`\mathcal{H}^{(k, r_0)}`,
    :math:`r_0 = \lceil r/p \rceil`. Two repairs: that p can ask for more than n columns (k=1, r=11, n=16 asks for 20),
    so any p with :math:`p (k + \lceil r/p \rceil) \le n` is tried and the one with fewest models kept; and it can leave
    more than :math:`k + r_0` columns over, which are filled by repeating the columns from the start as often as needed.

    Raises
    ------
    InputError
        When n < k + r: no code exists (Lemma 2).
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
