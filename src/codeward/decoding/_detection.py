"""How well attack probabilities tell triggered inputs from clean ones."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError


@dataclass(frozen=True)
class RocCurve:
    """One point per distinct threshold; an input is an alarm when its attack probability is *above* the threshold.

    Attributes
    ----------
    fpr, tpr : ndarray of float64, shape (K,)
        Share of the clean inputs flagged (false alarms) and of the triggered ones (detections), rising from 0 to 1.
    thresholds : ndarray of float64, shape (K,)
        Falling to minus infinity (always an alarm).
    """

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]
    thresholds: NDArray[np.float64]

    @property
    def auc(self) -> float:
        """Area under the curve: Pr(a triggered input scores above a clean one), ties counted half."""
        return float(np.trapezoid(self.tpr, self.fpr))

    def threshold_for(self, false_alarm_rate: float) -> float:
        """Lowest threshold whose share of false alarms is at most ``false_alarm_rate``."""
        if not 0 <= false_alarm_rate <= 1:
            raise InputError(f"false alarm rate must be in 0..1, got {false_alarm_rate}")
        return float(self.thresholds[np.flatnonzero(self.fpr <= false_alarm_rate)[-1]])


def roc_curve(attack_probability_clean: ArrayLike, attack_probability_triggered: ArrayLike) -> RocCurve:
    """ROC curve of attack probabilities on clean inputs, shape (N0,), and triggered inputs, shape (N1,), none empty.

    Inputs with equal probability are flagged together: the curve has one point for them, and its AUC counts ties half.
    """
    groups = [
        np.asarray(attack_probability_clean, dtype=np.float64),
        np.asarray(attack_probability_triggered, np.float64),
    ]
    for name, group in zip(("clean", "triggered"), groups, strict=True):
        if group.ndim != 1 or group.size == 0 or np.isnan(group).any():
            raise InputError(f"attack probabilities of {name} inputs: expected a list of numbers, not empty, no NaN")
    values = np.unique(np.concatenate(groups))[::-1]
    rates = [1 - np.searchsorted(np.sort(group), values, side="left") / group.size for group in groups]
    return RocCurve(np.append(0.0, rates[0]), np.append(0.0, rates[1]), np.append(values, -np.inf))


def alarm_threshold(attack_probability_clean: ArrayLike, false_alarm_rate: float) -> float:
    """Lowest threshold (alarms are above it) that flags at most this share of the given clean inputs, shape (N,).

    Examples
    --------
    >>> alarm_threshold([0.1, 0.2, 0.2, 0.9], 0.25)
    0.2
    """
    return roc_curve(attack_probability_clean, attack_probability_clean).threshold_for(false_alarm_rate)
