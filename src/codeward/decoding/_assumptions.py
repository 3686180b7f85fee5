"""What a decoder takes for granted: about attacks (the only place of the defaults), and about models nobody attacks.

Of a model that no attacker reached a decoder needs one thing, ``log Pr(y_i = v | clean, label = l)``: a *vote model*.
The paper's independent confusion matrices are the reference; anything with the same two attributes and one method can
stand in for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError


def uniform_prior(max_attackers: int) -> tuple[float, ...]:
    """Return Q(0), ..., Q(k) for k = ``max_attackers``, all equal.

    Examples
    --------
    >>> uniform_prior(3)
    (0.25, 0.25, 0.25, 0.25)
    """
    if int(max_attackers) != max_attackers or max_attackers < 0:
        raise InputError(f"max_attackers must be a whole number, 0 or more, got {max_attackers}")
    return (1 / (int(max_attackers) + 1),) * (int(max_attackers) + 1)


def check_prior(attackers_prior: ArrayLike) -> NDArray[np.float64]:
    """Validate Q(0..k): not negative, sums to 1."""
    prior = np.asarray(attackers_prior, dtype=np.float64)
    if prior.ndim != 1 or prior.size == 0 or not np.isfinite(prior).all() or (prior < 0).any():
        raise InputError("attackers_prior: expected the probabilities of 0, 1, 2, ... attackers, none negative or NaN")
    if abs(prior.sum() - 1) > 1e-6:
        raise InputError(f"attackers_prior: the probabilities sum to {prior.sum():.6g}, not 1")
    return prior


@dataclass(frozen=True)
class Assumptions:
    """What a decoder assumes about attacks; each decoder reads the parts it knows.

    Parameters
    ----------
    attack_rate : float
        A, prior probability that an input carries a trigger, in 0..1 (bayes, groups).
    success_rate : float
        S, probability that a hit model says the target, in 0..1 (bayes, groups).
    attackers_prior : sequence of float
        Q(0), ..., Q(k), prior of the number of attackers (bayes, groups, soft, discounted).
    second_rate : float
        B, prior probability that an attack has a second group, in 0..1 (groups).
    second_success_rate : float
        S', how often a model of the second group answers to the first one's trigger, in 0..1 (groups).
    n_attackers : int, optional
        k, the most users that may attack (consensus, which needs it).
    n_errors : int
        e, wrong votes of models that nobody attacks to tolerate (consensus).
    false_alarm_rate : float
        Share of clean inputs that may be flagged, in 0..1 (soft, discounted).
    class_counts : sequence of sequences of int, optional
        Samples of every class that each user handed in, shape (n, c) (soft, discounted).

    Examples
    --------
    >>> Assumptions().attackers_prior
    (0.25, 0.25, 0.25, 0.25)
    >>> Assumptions.uniform(1, attack_rate=0.1).attackers_prior
    (0.5, 0.5)
    """

    attack_rate: float = 0.5
    success_rate: float = 0.99
    attackers_prior: Sequence[float] = uniform_prior(3)
    second_rate: float = 0.01
    second_success_rate: float = 0.9
    n_attackers: int | None = None
    n_errors: int = 0
    false_alarm_rate: float = 0.05
    class_counts: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        for name in ("attack_rate", "success_rate", "second_rate", "second_success_rate", "false_alarm_rate"):
            check_rate(name, getattr(self, name))
        object.__setattr__(self, "attackers_prior", tuple(check_prior(self.attackers_prior).tolist()))
        if self.class_counts is not None:
            object.__setattr__(self, "class_counts", tuple(map(tuple, check_class_counts(self.class_counts).tolist())))

    @classmethod
    def uniform(cls, max_attackers: int, **others: Any) -> "Assumptions":
        """Return assumptions with 0 to ``max_attackers`` attackers equally likely."""
        return cls(attackers_prior=uniform_prior(max_attackers), **others)

    @property
    def max_attackers(self) -> int:
        """The largest number of attackers that the prior speaks of."""
        return len(self.attackers_prior) - 1


def check_rate(name: str, rate: float) -> None:
    """Raise unless a rate is in 0..1."""
    if not 0 <= rate <= 1:
        raise InputError(f"{name} must be in 0..1, got {rate}")


def check_class_counts(class_counts: ArrayLike, n_users: int | None = None) -> NDArray[np.int64]:
    """Validate the users' samples of every class, shape (n, c)."""
    try:
        counts = np.asarray(class_counts)
    except ValueError as error:
        raise InputError("class_counts: expected as many numbers for every user") from error
    if counts.ndim != 2 or n_users not in (None, counts.shape[0]) or counts.shape[1] < 1:
        raise InputError(f"class_counts: expected one row a user and one column a class, got {counts.shape}")
    if counts.dtype.kind not in "iu" or (counts.size and counts.min() < 0):
        raise InputError("class_counts: expected whole numbers of samples, 0 or more")
    return counts.astype(np.int64)


#: The defaults of every decoder.
DEFAULTS = Assumptions()


#: Smallest probability a cell of a confusion matrix may have. Smaller ones (zeros of a matrix handed in) are raised to
#: it, so that no vote is impossible and no logarithm infinite; rows are not scaled again (they move by < c * 1e-12).
CONFUSION_FLOOR = 1e-12
#: How far the sum of a row of a confusion matrix may be from 1.
ROW_SUM_TOLERANCE = 1e-3
#: Cells that the confusion matrices of all models may have together.
MOST_CELLS = 1 << 27


@runtime_checkable
class VoteModel(Protocol):
    """The replaceable part of the Bayes decoders: how models vote that nobody attacks.

    Examples
    --------
    >>> isinstance(ConfusionModel([[[0.9, 0.1], [0.2, 0.8]]]), VoteModel)
    True
    """

    @property
    def n_models(self) -> int:
        """Number of sub-models m."""

    @property
    def n_classes(self) -> int:
        """Number of classes c."""

    def log_likelihood(self, votes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``log Pr(y_i | clean, label = l)`` for votes of shape (N, m), as shape (N, m, c), all finite."""


class ConfusionModel:
    r"""The paper's clean-vote model: independent models with confusion matrices (its "Probabilistic Decoding").

    .. math:: Pr(y \mid \text{clean}, l) = \prod_i C^{(i)}_{l y_i}

    Parameters
    ----------
    confusion : array_like, shape (m, c, c)
        ``confusion[i, l, v]``: probability that model i says v when the true label is l and nobody attacks. Rows sum
        to 1 within `ROW_SUM_TOLERANCE`; cells below `CONFUSION_FLOOR` are raised to it.

    Examples
    --------
    >>> model = ConfusionModel([[[0.9, 0.1], [0.2, 0.8]]])
    >>> np.exp(model.log_likelihood(np.array([[1]]))).round(2)
    array([[[0.1, 0.8]]])
    """

    def __init__(self, confusion: ArrayLike) -> None:
        self.confusion = check_confusion(confusion)
        # (m, v, l): the row of a vote is contiguous over labels.
        self._by_vote = np.ascontiguousarray(np.log(np.maximum(self.confusion, CONFUSION_FLOOR)).transpose(0, 2, 1))

    @property
    def n_models(self) -> int:
        """Number of sub-models m."""
        return int(self.confusion.shape[0])

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return int(self.confusion.shape[1])

    def log_likelihood(self, votes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``log C[i, l, votes[., i]]``, shape (N, m, c)."""
        return self._by_vote[np.arange(self.n_models), votes]


@dataclass(frozen=True)
class VoteSet:
    """Votes with what came along; absent parts are None.

    Attributes
    ----------
    votes : ndarray of int64, shape (N, m)
    labels : ndarray of int64, shape (N,), or None
    confusion : ndarray of float64, shape (m, c, c), or None
    scores : ndarray, shape (N, m, c), or None
    code_digest : str or None
        `codeward.codes.Code.digest` of the code whose models voted.
    radius : ndarray of int64, shape (N,), or None
        Certified radii that somebody claims for these votes.

    Examples
    --------
    >>> VoteSet(np.array([[0, 1, 1]])).labels is None
    True
    """

    votes: NDArray[np.int64]
    labels: NDArray[np.int64] | None = None
    confusion: NDArray[np.float64] | None = None
    scores: NDArray[Any] | None = None
    code_digest: str | None = None
    radius: NDArray[np.int64] | None = None

    def observed(self, needs: Literal["votes", "scores"]) -> NDArray[Any]:
        """Return what a decoder reads (`Decoder.needs`); scores must have come along."""
        found = self.scores if needs == "scores" else self.votes
        if found is None:
            raise InputError("there are no class scores beside the votes")
        return found


def check_confusion(confusion: ArrayLike) -> NDArray[np.float64]:
    """Validate confusion matrices, shape (m, c, c); every complaint names the place."""
    matrices = np.asarray(confusion)
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or 0 in matrices.shape:
        raise InputError(f"confusion: expected shape (models, classes, classes), got {matrices.shape}")
    if matrices.dtype.kind not in "fiu":
        raise InputError(f"confusion: expected numbers, got dtype {matrices.dtype}")
    matrices = matrices.astype(np.float64)
    if not np.isfinite(matrices).all():
        i, label, vote = (int(v) for v in np.argwhere(~np.isfinite(matrices))[0])
        raise InputError(f"confusion: model {i}, label {label}, vote {vote} is NaN or infinite")
    if (matrices < 0).any():
        i, label, vote = (int(v) for v in np.argwhere(matrices < 0)[0])
        raise InputError(f"confusion: model {i}, label {label}, vote {vote} is negative")
    off = np.abs(matrices.sum(axis=2) - 1) > ROW_SUM_TOLERANCE
    if off.any():
        i, label = (int(v) for v in np.argwhere(off)[0])
        total = float(matrices[i, label].sum())
        raise InputError(
            f"confusion: the row of model {i}, label {label} sums to {total:.6g}, "
            f"not 1 (tolerance {ROW_SUM_TOLERANCE:g})"
        )
    return matrices


def estimate_confusion(
    votes: ArrayLike, labels: ArrayLike, n_classes: int, smoothing: float = 0.5
) -> NDArray[np.float64]:
    r"""Estimate the confusion matrices of the m models from clean votes.

    .. math:: C^{(i)}_{lv} = (\#\{label = l, y_i = v\} + s) / (\#\{label = l\} + c s)

    Parameters
    ----------
    votes : array_like of int, shape (N, m)
    labels : array_like of int, shape (N,)
        True labels of clean inputs (a validation set).
    n_classes : int
        Number of classes c.
    smoothing : float
        Pseudo-count s per cell, above 0; 0.5 by default. A label that never occurs gets uniform rows.

    Returns
    -------
    ndarray of float64, shape (m, c, c)
        Positive, rows sum to 1.

    Examples
    --------
    >>> estimate_confusion([[0], [0], [1]], [0, 0, 1], n_classes=2).round(2)
    array([[[0.83, 0.17],
            [0.25, 0.75]]])
    """
    return smooth_confusion(count_confusion(votes, labels, n_classes), smoothing)


def smooth_confusion(counts: NDArray[np.int64] | NDArray[np.float64], smoothing: float = 0.5) -> NDArray[np.float64]:
    """Turn counts of shape (m, c, c), added up over a data set, into the estimate of `estimate_confusion`.

    Examples
    --------
    >>> smooth_confusion(np.array([[[2, 0], [0, 1]]])).round(2)
    array([[[0.83, 0.17],
            [0.25, 0.75]]])
    """
    if not smoothing > 0:
        raise InputError(f"smoothing must be above 0, got {smoothing}: a zero cell would make a vote impossible")
    smooth = counts + float(smoothing)
    return np.asarray(smooth / smooth.sum(axis=2, keepdims=True), dtype=np.float64)


def pool_counts(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw the counts (m, c, c) of each model towards those of all, as far as chance explains how models differ.

    How often one model errs on one label, read off a dozen inputs, is mostly chance; a decoder that believes it takes
    an attack for slips of the models that seem to err. The pooled part is the variance of error rates that equal models
    would have over the one seen (at most 1): models as alike as chance allows share all their counts, models that know
    different classes keep their own. Rows keep their sums, so that smoothing weighs as before.

    Examples
    --------
    >>> pool_counts(np.array([[[4, 0], [0, 4]], [[3, 1], [0, 4]]]))[:, 0]
    array([[3.5, 0.5],
           [3.5, 0.5]])
    >>> pool_counts(np.array([[[90, 0], [0, 90]], [[0, 90], [0, 90]]]))[:, 0].round()
    array([[90.,  0.],
           [ 0., 90.]])
    """
    totals = counts.sum(axis=2)
    wrong = totals - counts.diagonal(axis1=1, axis2=2)
    rates = (wrong.sum(axis=0) + 0.5) / (totals.sum(axis=0) + 1)
    sizes = np.maximum(totals, 1)
    seen = np.where(totals > 0, (wrong / sizes - rates) ** 2, 0.0).sum()
    chance = np.where(totals > 0, rates * (1 - rates) / sizes, 0.0).sum() * (1 - 1 / len(counts))
    pooled = min(1.0, chance / seen) if seen > 0 else 1.0
    common = counts.sum(axis=0) / np.maximum(counts.sum(axis=(0, 2)), 1)[:, None]
    return np.asarray((1 - pooled) * counts + pooled * totals[:, :, None] * common)


def count_confusion(votes: ArrayLike, labels: ArrayLike, n_classes: int) -> NDArray[np.int64]:
    """Count how often model i says v on label l, shape (m, c, c), for votes (N, m) and labels (N,).

    Examples
    --------
    >>> count_confusion([[0], [0], [1]], [0, 0, 1], n_classes=2)
    array([[[2, 0],
            [0, 1]]])
    """
    checked = check_votes(votes, n_classes=n_classes)
    truth = check_labels(labels, checked.shape[0], n_classes)
    n_models = checked.shape[1]
    if n_models * n_classes**2 > MOST_CELLS:
        raise TooLargeError(f"confusion matrices of {n_models} models and {n_classes:,} classes do not fit in memory")
    cells = (np.arange(n_models)[None, :] * n_classes + truth[:, None]) * n_classes + checked
    return np.bincount(cells.ravel(), minlength=n_models * n_classes**2).reshape(n_models, n_classes, n_classes)


def check_votes(votes: ArrayLike, n_models: int | None = None, n_classes: int | None = None) -> NDArray[np.int64]:
    """Validate votes and return them as int64, shape (N, m); every complaint names the place.

    Examples
    --------
    >>> check_votes([[0, 1.0]])
    array([[0, 1]])
    """
    raw = np.asarray(votes)
    if raw.ndim != 2:
        raise InputError(f"votes: expected shape (inputs, models), got {raw.shape}")
    if n_models is not None and raw.shape[1] != n_models:
        raise InputError(f"votes: {raw.shape[1]} votes an input, but the code has {n_models} models (rows)")
    return _check_classes(raw, n_classes, "votes")


def check_labels(labels: ArrayLike, n_inputs: int, n_classes: int | None = None) -> NDArray[np.int64]:
    """Validate labels and return them as int64, shape (N,)."""
    raw = np.asarray(labels)
    if raw.shape != (n_inputs,):
        raise InputError(f"labels: expected shape ({n_inputs},), one label an input, got {raw.shape}")
    return _check_classes(raw, n_classes, "labels")


def _check_classes(raw: NDArray[Any], n_classes: int | None, what: str) -> NDArray[np.int64]:
    if raw.dtype.kind not in "iuf":
        raise InputError(f"{what}: expected whole numbers, got dtype {raw.dtype}")
    if raw.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(raw) < 2.0**53) & (raw == np.floor(raw)))
        if wrong.any():
            place = np.argwhere(wrong)[0].tolist()
            raise InputError(f"{what}: entry {place} is {raw[tuple(place)]!s}, not a whole number")
    # On the type they came in, which may be eight times smaller.
    top = np.iinfo(np.int64).max if n_classes is None else n_classes - 1
    if raw.size and (raw.min() < 0 or raw.max() > top):
        place = np.argwhere((raw < 0) | (raw > top))[0].tolist()
        allowed = f"in 0..{top}" if n_classes is not None else "0 or more"
        raise InputError(f"{what}: entry {place} is {int(raw[tuple(place)])}; classes must be {allowed}")
    return raw.astype(np.int64, copy=False)
