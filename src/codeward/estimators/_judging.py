"""Which samples judge the sub-models: the estimate of the confusion matrices from users' own data."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import count_confusion, smooth_confusion

Rows = tuple[NDArray[np.int64], ...]

#: A user judges with at most this many times the median user's samples, so that a large account is one voice, not many.
SHARE_CAP = 2


@dataclass(frozen=True)
class Division:
    """What every user's samples are for.

    Attributes
    ----------
    training : tuple of ndarray of int64
        Rows each user's sub-models learn from.
    judging : tuple of ndarray of int64
        Rows of each user that judge sub-models, capped at `SHARE_CAP` times the median.
    held_out : bool
        Whether judging rows train nobody. Otherwise they are training rows and judge only models without that user.
    """

    training: Rows
    judging: Rows
    held_out: bool


def divide_rows(rows: Rows, fraction: float, seed: int) -> Division:
    """Hold out ``fraction`` of every user's samples, at least one of each user with two or more.

    A user's share is drawn from (seed, column) and its own number of samples alone: what other users hand in does not
    move it. When nothing can be held out (fraction 0, or one sample a user), samples judge the models that do not learn
    from their user.
    """
    if not 0 <= fraction < 1:
        raise InputError(f"validation_fraction must be at least 0 and below 1, got {fraction}")
    training, held = [], []
    for user, own in enumerate(rows):
        wanted = max(1, round(fraction * own.size)) if fraction > 0 else 0
        size = min(wanted, max(own.size - 1, 0))
        order = np.random.default_rng([seed, 0, user]).permutation(own.size)
        training.append(own[np.sort(order[size:])])
        held.append(own[order[:size]])
    if any(part.size for part in held):
        return Division(tuple(training), _cap(tuple(held)), True)
    return Division(rows, _cap(rows), False)


def _cap(rows: Rows) -> Rows:
    """Shorten what a large user judges with; training rows are never shortened: that would leak sizes into models."""
    limit = max(1, int(SHARE_CAP * np.median([own.size for own in rows])))
    return tuple(own[:limit] for own in rows)


def judge_models(
    votes: NDArray[np.int64], labels: NDArray[np.int64], owners: NDArray[np.int64], code: Code, n_classes: int
) -> NDArray[np.float64]:
    """Estimate confusion matrices (m, c, c) from votes on training samples: model i on users it does not learn from.

    A model that learns from everybody takes the counts of all others together: it is not better known than they are,
    and its own training samples would flatter it.

    Parameters
    ----------
    votes : ndarray of int64, shape (N, m)
    labels, owners : ndarray of int64, shape (N,)
        Label and user of each sample.
    """
    counts = np.zeros((code.n_models, n_classes, n_classes), dtype=np.int64)
    for model, members in enumerate(code.matrix):
        strangers = ~members[owners]
        counts[model] = count_confusion(votes[strangers, model, None], labels[strangers], n_classes)[0]
    counts[code.matrix.all(axis=1)] = counts.sum(axis=0)
    return smooth_confusion(counts)
