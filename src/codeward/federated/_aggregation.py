"""From the replies for one model to its next weights. Nothing here sees more than one model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.federated._protocol import Arrays
from codeward.federated._settings import FederatedSettings


def combine(
    start: Arrays, replies: Mapping[int, Arrays], weights: Mapping[int, int], settings: FederatedSettings
) -> Arrays:
    """Combine what the users of one row sent for their model.

    A function of the round's starting weights and of these replies only, summed in order of user index: the bytes do
    not depend on who answered first, nor on anything sent for another model. Sums are in double precision; values of
    the weights' own type cannot overflow there, and no average leaves the range of what it averages.

    Parameters
    ----------
    start : arrays
        The weights the round began with; returned as they are when nobody replied.
    replies : mapping of user to arrays
        Accepted by `check_reply`.
    weights : mapping of user to int
        Capped sample count of each of them.
    settings : FederatedSettings
    """
    users = sorted(replies)
    if not users:
        return dict(start)
    scales = [_clip_scale(start, replies[user], settings.clip_norm) for user in users]
    shares = [weights[user] for user in users]
    combined: Arrays = {}
    for name, begin in start.items():
        values = [
            _shorten(begin, replies[user][name], scale).astype(np.float64, copy=False)
            for user, scale in zip(users, scales, strict=True)
        ]
        combined[name] = _cast(_apply_rule(values, shares, settings), begin.dtype)
    return combined


def _apply_rule(
    values: Sequence[NDArray[np.float64]], shares: Sequence[int], settings: FederatedSettings
) -> NDArray[np.float64]:
    if settings.rule == "mean":
        # w = sum_j n_j w_j / sum_j n_j  (McMahan et al. 2017, algorithm 1), over the users of the row
        total = np.zeros(values[0].shape, np.float64)
        for value, share in zip(values, shares, strict=True):
            total += share * value
        return total / sum(shares)
    ordered = np.sort(np.stack(values), axis=0)
    count = len(ordered)
    # Trimming that would leave nothing takes the middle: the median is the trimmed mean trimmed as far as it goes.
    cut = (count - 1) // 2 if settings.rule == "median" else min(settings.trim, (count - 1) // 2)
    kept = ordered[cut : count - cut]
    total = np.zeros(kept.shape[1:], np.float64)
    for value in kept:
        total += value
    return total / len(kept)


def _clip_scale(start: Arrays, reply: Arrays, limit: float | None) -> float:
    """Return by how much an update is shortened: min(1, limit / |w - w0|), over all float arrays of the model."""
    if limit is None:
        return 1.0
    squares = 0.0
    for name, begin in start.items():
        if begin.dtype.kind == "f":
            difference = reply[name].astype(np.float64) - begin.astype(np.float64)
            squares += float(np.square(difference).sum())
    length = float(np.sqrt(squares))
    return 1.0 if length <= limit else limit / length


def _shorten(begin: NDArray[Any], value: NDArray[Any], scale: float) -> NDArray[Any]:
    if scale == 1.0 or begin.dtype.kind != "f":
        return value
    base = begin.astype(np.float64)
    shortened: NDArray[Any] = base + scale * (value.astype(np.float64) - base)
    return shortened


def _cast(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    # asarray: arithmetic turns 0-d arrays into scalars.
    return np.asarray((np.rint(values) if dtype.kind in "iu" else values).astype(dtype))
