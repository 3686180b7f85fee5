"""From summed explanations to verdicts, and the alarm threshold."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from codeward.decoding._decoded import Decoded, first_best
from codeward.decoding.soft._calibration import log_softmax
from codeward.decoding.soft._evidence import Evidence
from codeward.decoding.soft._fusion import CHUNK, Explanations, Sums, log_sum, sum_explanations
from codeward.decoding.soft._parameters import Fusion

#: Confidence with which the false-alarm rate on fresh clean inputs stays below the one asked for.
CONFIDENCE = 0.95


def choose_threshold(gaps: NDArray[np.float64], false_alarm_rate: float) -> float:
    """Threshold that keeps the false-alarm rate, with `CONFIDENCE`.

    The largest number r of the N validation inputs may exceed it for which the Clopper-Pearson upper bound of r out of
    N is at most the rate. With too few inputs for any r, none of them exceeds it and the rate is not assured.

    Parameters
    ----------
    gaps : ndarray, shape (N,)
        Log odds of an attack on clean validation inputs the calibration did not see; an alarm is a gap *above* the
        threshold.
    false_alarm_rate : float
    """
    counts = np.arange(gaps.size)
    allowed = np.flatnonzero(beta.ppf(CONFIDENCE, counts + 1, gaps.size - counts) <= false_alarm_rate)
    most = int(allowed[-1]) if allowed.size else 0
    return float(np.sort(gaps)[::-1][most])


def split_chunks(n_inputs: int, explanations: Explanations, n_classes: int) -> Iterator[NDArray[np.int64]]:
    """Rows of the inputs, as many at a time as `CHUNK` allows; one empty chunk when there are none."""
    step = max(1, CHUNK // (explanations.rows.size * n_classes))
    for begin in range(0, max(n_inputs, 1), step):
        yield np.arange(begin, min(begin + step, n_inputs))


def measure_gaps(evidence: Evidence, explanations: Explanations, fusion: Fusion) -> NDArray[np.float64]:
    """Log odds of an attack, before the threshold, shape (N,)."""
    n_classes = evidence.log_posteriors.shape[2]
    return np.concatenate(
        [
            sum_explanations(evidence.take(rows), explanations, fusion).gap
            for rows in split_chunks(len(evidence), explanations, n_classes)
        ]
    )


def give_verdicts(evidence: Evidence, explanations: Explanations, fusion: Fusion, threshold: float) -> Decoded:
    """Verdicts on every input: the label under the hypothesis the alarm decides for."""
    n_classes = evidence.log_posteriors.shape[2]
    parts = [
        _decide(sum_explanations(evidence.take(rows), explanations, fusion), explanations, threshold)
        for rows in split_chunks(len(evidence), explanations, n_classes)
    ]
    return Decoded(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.attack_probability for part in parts]),
        np.concatenate([part.targets for part in parts]),
        [found for part in parts for found in part.suspects],
        np.concatenate([part.user_probability for part in parts]),
        np.concatenate([part.label_probability for part in parts]),
        np.concatenate([part.neglected for part in parts]),
    )


def _decide(sums: Sums, explanations: Explanations, threshold: float) -> Decoded:
    sets = explanations.sets
    alarm = sums.gap - threshold
    by_label = np.exp(log_softmax(np.where((alarm > 0)[:, None], sums.attacked, sums.clean)))
    by_target = np.exp(log_softmax(log_sum(sums.table.transpose(0, 2, 1))))
    by_pattern = np.exp(log_softmax(log_sum(sums.table)))
    share = sets.best_weights[explanations.rows] / sets.weights[explanations.rows]
    suspects = first_best(by_pattern * share)
    return Decoded(
        first_best(by_label),
        1 / (1 + np.exp(-np.clip(alarm, -700, 700))),
        first_best(by_target),
        [sets.best_sets[row] for row in explanations.rows[suspects].tolist()],
        np.minimum(np.asarray(by_pattern @ sets.members[explanations.rows]), 1.0),
        by_label,
        np.zeros(alarm.size),
    )
