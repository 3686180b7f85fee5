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

#: Confidence of the bound on the false-alarm rate; high, to cover that the alarm's weight is chosen on the same inputs.
CONFIDENCE = 0.99
#: Discounts of an attack's log odds tried for the label.
SHIFTS = np.arange(-6.0, 12.01, 1.0)
#: Weights of the paper's decoder tried for the label; with the last one it decides alone.
VOTE_WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1000.0)
#: Weights of the second opinion tried for the alarm.
ALARM_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
#: How many times as much as a gain over a reference decoder a loss against it counts, under attack and on clean inputs.
AVERSION, CLEAN_AVERSION = 4.0, 16.0
#: Gains beyond this are not paid for with losses elsewhere.
ENOUGH = 0.02
#: Smallest label probability of the paper's decoder that counts.
VOTE_FLOOR = 1e-12


@dataclass(frozen=True)
class Tuned:
    """What a fit finds.

    Attributes
    ----------
    fusion : Fusion
    alarm_weight : float
        Weight of the second opinion in the log odds of the alarm; see `choose_alarm`.
    threshold : float
        Log odds above which an input is flagged; see `choose_threshold`.
    shift, vote_weight : float
        Discount of an attack's log odds and weight of the paper's decoder in the label; see `choose_blend`.
    room : ndarray, shape (1 + strata,)
        Accuracy less that of the reference with these, on clean validation inputs and on each kind of simulated
        attacks: below 0 where the reference was better.
    """

    fusion: Fusion
    alarm_weight: float
    threshold: float
    shift: float
    vote_weight: float
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


def choose_alarm(
    clean: tuple[NDArray[np.float64], NDArray[np.float64]],
    attacked: tuple[NDArray[np.float64], NDArray[np.float64]],
    strata: Sequence[NDArray[np.bool_]],
    false_alarm_rate: float,
) -> tuple[float, float]:
    """Choose the weight of a second opinion in the alarm, and the threshold of the sum.

    Every weight of `ALARM_WEIGHTS` gets its own threshold; the one with the largest sum of mean and least share of
    detected attacks over the strata is taken, the smaller one on a tie.

    Parameters
    ----------
    clean, attacked : pair of ndarray, shapes (N,), (M,)
        Log odds of an attack, of the decoder and of the second opinion, on clean inputs and on simulated attacks.
    strata : sequence of ndarray of bool, shape (M,)
    false_alarm_rate : float
    """
    best, chosen = -np.inf, (0.0, choose_threshold(clean[0], false_alarm_rate))
    for weight in ALARM_WEIGHTS if strata else ():
        threshold = choose_threshold(clean[0] + weight * clean[1], false_alarm_rate)
        found = attacked[0] + weight * attacked[1] > threshold
        shares = [float(found[stratum].mean()) for stratum in strata]
        if np.mean(shares) + min(shares) > best:
            best, chosen = float(np.mean(shares) + min(shares)), (weight, threshold)
    return chosen


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


def blend(sums: Sums, by_votes: NDArray[np.float64], shift: float, vote_weight: float) -> NDArray[np.float64]:
    r"""Posterior of the label, shape (N, c).

    .. math:: \log p(l) = \log(e^{att(l) - \sigma} + e^{no(l)}) - Z + \omega \log p_{paper}(l) - Z'

    Parameters
    ----------
    sums : Sums
        Of N inputs.
    by_votes : ndarray, shape (N, c)
        Posterior of the label by the paper's decoder, p_paper.
    shift, vote_weight : float
        sigma and omega.
    """
    return softmax(log_softmax(sums.join(shift)) + vote_weight * np.log(np.maximum(by_votes, VOTE_FLOOR)))


def choose_blend(
    clean: Sums,
    attacked: Sums,
    by_votes: tuple[NDArray[np.float64], NDArray[np.float64]],
    labels: tuple[NDArray[np.int64], NDArray[np.int64]],
    reference: tuple[NDArray[np.int64], NDArray[np.int64]],
    strata: Sequence[NDArray[np.bool_]],
) -> tuple[float, float, NDArray[np.float64]]:
    """Choose how the label is read: the shift and the weight of the paper's decoder that leave most room everywhere.

    For every pair on a grid: accuracy on clean validation inputs (less one standard error) minus that of the reference
    there, and accuracy on simulated attacks minus that of its reference, in each stratum. A loss counts `AVERSION`
    times as much as a gain, on clean inputs `CLEAN_AVERSION` times, a gain no more than `ENOUGH`; the strata count by
    their mean, since the least difference alone would follow the noise of the smallest one. On a tie the smaller
    weight, then the smaller shift. Returned with the differences, the clean one first.

    Parameters
    ----------
    clean, attacked : Sums
        Of N clean validation inputs and M simulated attacks on them.
    by_votes, labels, reference : pair of ndarray
        For the clean and for the attacked inputs: label posteriors of the paper's decoder, (N, c) and (M, c); true
        labels; labels by the decoder not to fall below.
    strata : sequence of ndarray of bool, shape (M,)
        Kinds of attacks, each compared for itself.
    """
    known = [reference[part] == labels[part] for part in (0, 1)]
    best, shift, weight, room = -np.inf, 0.0, 0.0, np.zeros(1 + len(strata))
    for omega in VOTE_WEIGHTS:
        for sigma in SHIFTS:
            gains = [
                (first_best(blend(sums, by_votes[part], sigma, omega)) == labels[part]).astype(np.float64) - known[part]
                for part, sums in enumerate((clean, attacked))
            ]
            room_here = np.array([gains[0].mean(), *(gains[1][stratum].mean() for stratum in strata)])
            value = room_here.copy()
            value[0] -= gains[0].std() / np.sqrt(gains[0].size)
            aversion = np.where(np.arange(value.size) == 0, CLEAN_AVERSION, AVERSION)
            value = np.where(value < 0, aversion * value, np.minimum(value, ENOUGH))
            worth = float(value[0] + (value[1:].mean() if strata else 0.0))
            if worth > best:
                best, shift, weight, room = worth, float(sigma), float(omega), room_here
    return shift, weight, room


def give_verdicts(
    evidence: Evidence,
    explanations: Explanations,
    tuned: Tuned,
    by_votes: NDArray[np.float64],
    second: NDArray[np.float64],
) -> Decoded:
    """Verdicts on every input.

    Parameters
    ----------
    evidence : Evidence
    explanations : Explanations
    tuned : Tuned
    by_votes : ndarray, shape (N, c)
        Label posteriors of the paper's decoder.
    second : ndarray, shape (N,)
        Log odds of an attack by the second opinion; zeros where there is none.
    """
    n_classes = evidence.log_posteriors.shape[2]
    parts = []
    for rows in split_chunks(len(evidence), explanations, n_classes):
        sums = sum_explanations(evidence.take(rows), explanations, tuned.fusion)
        alarm = sums.gap + tuned.alarm_weight * second[rows] - tuned.threshold
        parts.append(_decide(sums, explanations, alarm, blend(sums, by_votes[rows], tuned.shift, tuned.vote_weight)))
    return Decoded(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.attack_probability for part in parts]),
        np.concatenate([part.targets for part in parts]),
        [found for part in parts for found in part.suspects],
        np.concatenate([part.user_probability for part in parts]),
        np.concatenate([part.label_probability for part in parts]),
        np.concatenate([part.neglected for part in parts]),
    )


def _decide(
    sums: Sums, explanations: Explanations, alarm: NDArray[np.float64], by_label: NDArray[np.float64]
) -> Decoded:
    sets = explanations.sets
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
