"""Confusion matrices from users' own data, some of whom may lie."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.decoding import smooth_confusion

Rows = tuple[NDArray[np.int64], ...]

#: A user validates with at most this many times the median user's samples, so that a large account is one voice, not
#: many.
SHARE_CAP = 2


@dataclass(frozen=True)
class Division:
    """What every user's samples are for.

    Attributes
    ----------
    training : tuple of ndarray of int64
        Rows each user's sub-models learn from.
    validation : tuple of ndarray of int64
        Rows of each user that validate sub-models, capped at `SHARE_CAP` times the median.
    held_out : bool
        Whether these rows train nobody. Otherwise they are training rows and validate only models without that user.
    """

    training: Rows
    validation: Rows
    held_out: bool


def hold_out(rows: Rows, fraction: float, seed: int) -> Division:
    """Hold out ``fraction`` of every user's samples, at least one of each user with two or more.

    A user's share is drawn from (seed, column) and its own number of samples alone: what other users hand in does not
    move it. When nothing can be held out (fraction 0, or one sample a user), samples validate the models that do not
    learn from their user.
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
    """Shorten what a large user validates with; never training rows: that would leak sizes into models."""
    limit = max(1, int(SHARE_CAP * np.median([own.size for own in rows])))
    return tuple(own[:limit] for own in rows)


def estimate_from_users(
    votes: NDArray[np.int64],
    labels: NDArray[np.int64],
    owners: NDArray[np.int64],
    validates: NDArray[np.bool_],
    n_attackers: int,
    n_classes: int,
) -> NDArray[np.float64]:
    """Estimate confusion matrices (m, c, c) from users' samples, k of whom may want the estimate wrong.

    For each model the errors are trimmed as `trim_errors` says. A model that nobody may validate takes the counts of
    all others together.

    Parameters
    ----------
    votes : ndarray of int64, shape (N, m)
    labels, owners : ndarray of int64, shape (N,)
        Label and user of each sample.
    validates : ndarray of bool, shape (m, n)
        Which users' samples validate which model.
    """
    n_models, n_users = validates.shape
    counts = np.zeros((n_models, n_classes, n_classes), dtype=np.int64)
    for model in range(n_models):
        heard = validates[model, owners]
        by_user = np.zeros((n_users, n_classes, n_classes), dtype=np.int64)
        np.add.at(by_user, (owners[heard], labels[heard], votes[heard, model]), 1)
        counts[model] = trim_errors(by_user, n_attackers)
    counts[~validates.any(axis=1)] = counts.sum(axis=0)
    return smooth_confusion(counts)


def trim_errors(by_user: NDArray[np.int64], n_attackers: int) -> NDArray[np.int64]:
    """Add up counts of label and vote over users, (n, c, c) to (c, c), without the k users of most errors on a label.

    An attacker's triggered samples bear the target's label; models that it does not reach read them right, which counts
    as an error. Enough of those teach the decoder that clean models often contradict the target, and it takes the next
    attack for such a slip. With the k users of most errors left out, for each label by itself (ties to the lower
    column), the errors that remain are no more than those on honest users' samples alone, whichever k users lie: the
    least sum over n - k users is at most the sum over the honest ones. The price is an estimate somewhat too good.
    """
    errors = by_user.sum(axis=2) - by_user.diagonal(axis1=1, axis2=2)
    worst = np.argsort(-errors, axis=0, kind="stable")[:n_attackers]
    kept = np.ones(errors.shape, dtype=bool)
    # A user without errors cannot inflate them and stays.
    np.put_along_axis(kept, worst, np.take_along_axis(errors, worst, axis=0) == 0, axis=0)
    return np.asarray((by_user * kept[:, :, None]).sum(axis=0))


def find_contradicted(
    votes: NDArray[np.int64],
    labels: NDArray[np.int64],
    owners: NDArray[np.int64],
    matrix: NDArray[np.bool_],
    n_attackers: int,
) -> NDArray[np.int64]:
    """Return the k users whose held-out labels are contradicted most by the sub-models that never learned from them.

    A trigger's samples bear the target's label, which only the models of their user repeat. Left in, they teach a
    decoder that the very pattern of an attack is usual on clean inputs, and set the alarm's threshold above it. Without
    the k users of the largest share of contradicted votes (ties to the lower column; an honest one among them costs a
    few samples), what is left of a lie is contradicted no more than an honest user's samples are.

    Parameters
    ----------
    votes : ndarray of int64, shape (N, m)
    labels, owners : ndarray of int64, shape (N,)
    matrix : ndarray of bool, shape (m, n)
        Which model learns from which user.
    n_attackers : int
        k.
    """
    shares = np.zeros(matrix.shape[1])
    for user in np.unique(owners):
        others = votes[owners == user][:, ~matrix[:, user]]
        wrong = others != labels[owners == user, None]
        shares[user] = wrong.mean() if wrong.size else 0.0
    worst = np.argsort(-shares, kind="stable")[:n_attackers]
    return np.sort(worst[shares[worst] > 0])
