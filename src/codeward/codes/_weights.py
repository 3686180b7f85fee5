"""Users of unlike size: which user gets which column, so that the poorest model has as many samples as possible."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError

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
