"""From summed explanations to verdicts, and the alarm threshold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
#: Discounts of an attack's log odds tried for the label.
SHIFTS = np.arange(-6.0, 10.01, 0.25)


@dataclass(frozen=True)
class Tuned:
    """What a fit finds.

    Attributes
    ----------
    fusion : Fusion
    threshold : float
        Log odds above which an input is flagged; see `choose_threshold`.
    shift : float
        Discount of an attack's log odds when the label is chosen; see `choose_shift`.
    room : ndarray, shape (1 + strata,)
        Accuracy less that of the reference at this shift, on clean validation inputs and on each kind of simulated
        attacks: below 0 where the reference was better.
    """

    fusion: Fusion
    threshold: float
    shift: float
    room: NDArray[np.float64]


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


def sum_labels(evidence: Evidence, explanations: Explanations, fusion: Fusion) -> Sums:
    """Sum over explanations for every input, without the table (which would be large)."""
    n_classes = evidence.log_posteriors.shape[2]
    parts = [
        sum_explanations(evidence.take(rows), explanations, fusion)
        for rows in split_chunks(len(evidence), explanations, n_classes)
    ]
    return Sums(
        np.concatenate([part.attacked for part in parts]),
        np.concatenate([part.clean for part in parts]),
        np.empty((0, 0, 0)),
    )


def choose_shift(
    clean: Sums,
    clean_labels: NDArray[np.int64],
    clean_reference: NDArray[np.int64],
    attacked: Sums,
    attacked_labels: NDArray[np.int64],
    attacked_reference: NDArray[np.int64],
    strata: Sequence[NDArray[np.bool_]],
) -> tuple[float, NDArray[np.float64]]:
    """Choose by how much the log odds of an attack are discounted when the label is chosen: the one that leaves most room everywhere.

    For every shift on a grid: accuracy on clean validation inputs less that of the reference there, and accuracy on
    simulated attacks less that of its reference, in each stratum; the shift with the largest least difference, the
    smaller one on a tie.

    Returns the shift and the differences there, the clean one first.

    Parameters
    ----------
    clean, attacked : Sums
        Of N clean validation inputs and M simulated attacks on them.
    clean_labels, attacked_labels : ndarray of int64, shapes (N,), (M,)
    clean_reference, attacked_reference : ndarray of int64, shapes (N,), (M,)
        Labels by the decoders not to fall below: the plain vote without, the paper's decoder with an attack.
    strata : sequence of ndarray of bool, shape (M,)
        Kinds of attacks, each compared for itself.
    """
    chosen, room = 0.0, np.full(1, -np.inf)
    for shift in SHIFTS:
        gain = [
            np.mean(first_best(softmax(clean.join(shift))) == clean_labels) - np.mean(clean_reference == clean_labels)
        ]
        right = (first_best(softmax(attacked.join(shift))) == attacked_labels).astype(np.float64)
        right -= attacked_reference == attacked_labels
        gain += [right[stratum].mean() for stratum in strata if stratum.any()]
        if min(gain) > room.min():
            chosen, room = float(shift), np.array(gain)
    return chosen, room


def give_verdicts(evidence: Evidence, explanations: Explanations, tuned: Tuned) -> Decoded:
    """Verdicts on every input."""
    n_classes = evidence.log_posteriors.shape[2]
    parts = [
        _decide(sum_explanations(evidence.take(rows), explanations, tuned.fusion), explanations, tuned)
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


def _decide(sums: Sums, explanations: Explanations, tuned: Tuned) -> Decoded:
    sets = explanations.sets
    alarm = sums.gap - tuned.threshold
    by_label = softmax(sums.join(tuned.shift))
    by_target = softmax(log_sum(sums.table.transpose(0, 2, 1)))
    by_pattern = softmax(log_sum(sums.table))
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


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities from log masses, over the last axis."""
    return np.asarray(np.exp(log_softmax(values)))
