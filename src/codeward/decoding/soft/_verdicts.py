"""From summed explanations to verdicts, and the alarm threshold."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from codeward.decoding._decoded import Decoded, first_best
from codeward.decoding.soft._evidence import Evidence
from codeward.decoding.soft._explanations import Explanations, Sums, log_sum
from codeward.decoding.soft._judges import CHUNK, Judges, sum_explanations
from codeward.decoding.soft._pooling import Pool, list_opinions, softmax

#: Confidence of the bound on the false-alarm rate.
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Tuned:
    """What a fit finds.

    Attributes
    ----------
    judges : Judges
    threshold : float
        Log odds above which an input is flagged; see `choose_threshold`.
    pool : Pool
        Weights of the opinions on the label; see `fit_pool`.
    room : ndarray, shape (1 + strata,)
        Accuracy less that of the better of plain vote and paper's decoder, on clean validation inputs and on each kind
        of simulated attacks: below 0 where the reference was better.
    """

    judges: Judges
    threshold: float
    pool: Pool
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


def sum_labels(evidence: Evidence, explanations: Explanations, judges: Judges) -> Sums:
    """Sum over explanations for every input, without the table (which would be large)."""
    n_classes = evidence.log_posteriors.shape[2]
    parts = [
        sum_explanations(evidence.take(rows), explanations, judges)
        for rows in split_chunks(len(evidence), explanations, n_classes)
    ]
    return Sums(
        np.concatenate([part.attacked for part in parts]),
        np.concatenate([part.clean for part in parts]),
        np.empty((0, 0, 0)),
    )


def give_verdicts(
    evidence: Evidence,
    explanations: Explanations,
    tuned: Tuned,
    by_votes: NDArray[np.float64],
) -> Decoded:
    """Verdicts on every input.

    Parameters
    ----------
    evidence : Evidence
    explanations : Explanations
    tuned : Tuned
    by_votes : ndarray, shape (N, c)
        Label posteriors of the paper's decoder.
    """
    n_classes = evidence.log_posteriors.shape[2]
    parts = []
    for rows in split_chunks(len(evidence), explanations, n_classes):
        sums = sum_explanations(evidence.take(rows), explanations, tuned.judges)
        alarm = sums.gap - tuned.threshold
        opinions = list_opinions(sums, by_votes[rows], evidence.votes[rows])
        parts.append(_decide(sums, explanations, alarm, tuned.pool.label_probability(opinions, sums.gap)))
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
