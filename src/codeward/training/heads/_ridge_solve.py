"""One ridge head: a Cholesky factorisation of the features' or of the samples' products, whichever is smaller."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from codeward._errors import InputError
from codeward.training.heads._user_statistics import GRAM_UNIT, SUM_UNIT, UserStatistics


def solve_primal(gram: NDArray[np.float64], sums: NDArray[np.float64], ridge: float) -> NDArray[np.float32]:
    """Return (G + ridge I)^-1 B, shape (d, c), from a packed Gram matrix and class sums in their units."""
    full, _ = lapack.dtpttr(len(sums), gram, uplo="U")
    full *= GRAM_UNIT
    full[np.diag_indices_from(full)] += ridge
    return _factor_solve(full, sums * SUM_UNIT).astype(np.float32)


def solve_dual(users: Sequence[UserStatistics], n_classes: int, ridge: float) -> NDArray[np.float32]:
    """Return Z^T (Z Z^T + ridge / weights)^-1 Y, shape (d, c): the same head, for fewer samples than features.

    The products of rows of norm at most one are exact in float32 already (Proposition 30 of docs/theory.md).
    """
    rows = np.concatenate([user.steps for user in users])
    labels = np.concatenate([user.labels for user in users])
    weights = np.concatenate([user.weigh() for user in users])
    steps = rows.astype(np.float32)
    products = (steps @ steps.T).astype(np.float64)
    products *= GRAM_UNIT
    products[np.diag_indices_from(products)] += ridge / weights
    hot = np.zeros((len(labels), n_classes))
    hot[np.arange(len(labels)), labels] = 1
    share = _factor_solve(products.T, hot)  # symmetric: the transpose is what LAPACK need not copy
    return np.asarray((rows.astype(np.float64).T @ share * SUM_UNIT).astype(np.float32))


def _factor_solve(matrix: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    factor, info = lapack.dpotrf(matrix, lower=0, clean=0, overwrite_a=1)
    if info != 0:
        raise InputError("statistics: a row's Gram matrix is not positive semidefinite; check what users handed in")
    solution, _ = lapack.dpotrs(factor, right, lower=0)
    return np.asarray(solution)
