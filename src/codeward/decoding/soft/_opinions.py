r"""The label: a log-linear pool of opinions whose weights depend on how likely an attack is.

No single reading of the scores is best on every input. The plain vote is, where a trigger is weak; the explanations
are, where it wins the vote; the paper's decoder is, where few models are left. The pool weighs the opinions
:math:`o_j(l)` by the log odds G of an attack,

.. math:: \log p(l) = \sum_j w_j(G)\, o_j(l) + const, \qquad w_j \text{ piecewise linear in } G,

and the weights have the least cross-entropy on clean validation inputs and simulated attacks. (Choosing them for the
worst kind of simulated attack instead fits what is particular to the simulation: it cost a point or two on real
triggers.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import beta

from codeward.decoding._attacker_sets import name_suspects
from codeward.decoding._decoded import Decoded, first_best, have_agreed
from codeward.decoding.soft._explanations import (
    CHUNK,
    Explanations,
    ModelEvidence,
    RatioModels,
    Sums,
    log_sum,
    sum_explanations,
)
from codeward.decoding.soft._learners import log_softmax

#: Smallest log-probability an opinion may have: nobody has a veto.
FLOOR = -12.0
#: Log odds of an attack beyond which more evidence changes nothing.
LARGEST_GAP = 20.0
#: Shares of the validation inputs and attacks below the places where the weights bend.
KNOTS = (0.02, 0.15, 0.4, 0.65, 0.9)
#: Strength of the pull towards the explanations' own posterior, in inputs.
PULL = 30.0


@dataclass(frozen=True)
class OpinionPool:
    """Weights of the opinions.

    Attributes
    ----------
    knots : ndarray, shape (B,)
        Log odds of an attack at which the weights bend, increasing.
    weights : ndarray, shape (B, J)
        Weight of each opinion at each knot.
    """

    knots: NDArray[np.float64]
    weights: NDArray[np.float64]

    def label_probability(self, opinions: NDArray[np.float64], gap: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of the labels, shape (N, c), from opinions (N, J, c) and log odds of an attack (N,)."""
        return softmax(np.einsum("nj,njc->nc", spread_gap(gap, self.knots) @ self.weights, opinions))


@dataclass(frozen=True)
class Part:
    """Inputs of one kind, to fit a pool on.

    Attributes
    ----------
    opinions : ndarray, shape (N, J, c)
    gap : ndarray, shape (N,)
    labels : ndarray of int64, shape (N,)
    """

    opinions: NDArray[np.float64]
    gap: NDArray[np.float64]
    labels: NDArray[np.int64]


def list_opinions(sums: Sums, by_votes: NDArray[np.float64], votes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Opinions on the label as log-probabilities, shape (N, 5, c).

    In order: the explanations' posterior, the same given an attack, the same given none, the paper's decoder on the
    hard votes, and the plain vote.

    Parameters
    ----------
    sums : Sums
        Of N inputs.
    by_votes : ndarray, shape (N, c)
        Posterior of the label by the paper's decoder.
    votes : ndarray of int64, shape (N, m)
    """
    n_classes = by_votes.shape[1]
    counts = (votes[:, :, None] == np.arange(n_classes)).sum(axis=1)
    clean = log_softmax(sums.clean)
    explained = np.isfinite(sums.attacked.max(axis=1))[:, None]
    attacked = np.where(explained, sums.attacked, clean)
    opinions = [
        log_softmax(sums.joined),
        log_softmax(attacked),
        clean,
        np.log(np.maximum(by_votes, 1e-300)),
        np.log((counts + 0.5) / (votes.shape[1] + 0.5 * n_classes)),
    ]
    return np.asarray(np.maximum(np.stack(opinions, axis=1), FLOOR))


def fit_pool(parts: Sequence[Part]) -> OpinionPool:
    """Fit the weights.

    Half of the weight belongs to the first part, the clean inputs, the other half to the others alike.
    """
    gaps = np.clip(np.concatenate([part.gap for part in parts]), -LARGEST_GAP, LARGEST_GAP)
    knots = np.unique(np.quantile(gaps, KNOTS))
    bases = [spread_gap(part.gap, knots) for part in parts]
    prior = np.zeros((knots.size, parts[0].opinions.shape[1]))
    prior[:, 0] = 1.0
    masses = np.full(len(parts), 0.5 * parts[0].labels.size / max(len(parts) - 1, 1))
    masses[0] = 0.5 * parts[0].labels.size

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(prior.shape)
        total, slope = 0.5 * PULL * float(((weights - prior) ** 2).sum()), PULL * (weights - prior)
        for part, basis, mass in zip(parts, bases, masses, strict=True):
            n = part.labels.size
            log_p = log_softmax(np.einsum("nj,njc->nc", basis @ weights, part.opinions))
            total -= float(log_p[np.arange(n), part.labels].sum()) * mass / n
            excess = np.exp(log_p)
            excess[np.arange(n), part.labels] -= 1.0
            slope = slope + basis.T @ np.einsum("nc,njc->nj", excess, part.opinions) * (mass / n)
        return total, slope.ravel()

    found = minimize(loss, prior.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 60})
    return OpinionPool(knots, np.asarray(found.x).reshape(prior.shape))


def spread_gap(gap: NDArray[np.float64], knots: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of the knots at every log odds, rows summing to 1, shape (N, B): linear between neighbours."""
    places = np.interp(np.clip(gap, -LARGEST_GAP, LARGEST_GAP), knots, np.arange(knots.size))
    return np.asarray(np.maximum(1 - np.abs(places[:, None] - np.arange(knots.size)), 0.0))


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities from log masses, over the last axis."""
    return np.asarray(np.exp(log_softmax(values)))


#: Least and most confidence of the bound on the false-alarm rate. More of it costs detections where inputs are few:
#: with 84 of them 99% allows none to be an alarm, and triggers that look like the oddest clean input go unseen. So no
#: more than a fifth of the rate is given up for it.
CONFIDENCE, SURE, KEPT = 0.75, 0.999, 0.8


@dataclass(frozen=True)
class Tuned:
    """What a fit finds.

    Attributes
    ----------
    ratios : RatioModels
    threshold : float
        Log odds above which an input is flagged; see `choose_threshold`.
    pool : OpinionPool
        Weights of the opinions on the label; see `fit_pool`.
    """

    ratios: RatioModels
    threshold: float
    pool: OpinionPool


def choose_threshold(gaps: NDArray[np.float64], false_alarm_rate: float) -> float:
    """Threshold that keeps the false-alarm rate, with `CONFIDENCE` at the least and `SURE` where inputs are many.

    With a confidence, the largest number r of the N validation inputs may exceed it for which the Clopper-Pearson upper
    bound of r out of N is at most the rate; of `SURE` no less than `KEPT` of the rate. With too few inputs for any r,
    none of them exceeds it and the rate is not assured.

    Parameters
    ----------
    gaps : ndarray, shape (N,)
        Log odds of an attack on clean validation inputs the calibration did not see; an alarm is a gap *above* the
        threshold.
    false_alarm_rate : float
    """
    return float(np.sort(gaps)[::-1][count_allowed(gaps.size, false_alarm_rate)])


def count_allowed(n_inputs: int, false_alarm_rate: float) -> int:
    """Return how many of the validation inputs may exceed the threshold; see `choose_threshold`.

    Examples
    --------
    >>> [count_allowed(size, 0.05) for size in (50, 269, 1_000, 5_000)]
    [0, 10, 40, 203]
    """
    counts = np.arange(n_inputs)
    least, most = (
        int(np.count_nonzero(beta.ppf(confidence, counts + 1, n_inputs - counts) <= false_alarm_rate)) - 1
        for confidence in (SURE, CONFIDENCE)
    )
    return max(0, min(most, max(least, int(KEPT * false_alarm_rate * n_inputs + 1e-9))))


def split_chunks(n_inputs: int, explanations: Explanations, n_classes: int) -> Iterator[NDArray[np.int64]]:
    """Rows of the inputs, as many at a time as `CHUNK` allows; one empty chunk when there are none."""
    step = max(1, CHUNK // (explanations.log_weights.size * n_classes))
    for begin in range(0, max(n_inputs, 1), step):
        yield np.arange(begin, min(begin + step, n_inputs))


def sum_labels(evidence: ModelEvidence, explanations: Explanations, ratios: RatioModels) -> Sums:
    """Sum over explanations for every input, without the table (which would be large)."""
    n_classes = evidence.log_posteriors.shape[2]
    parts = [
        sum_explanations(evidence.take(rows), explanations, ratios)
        for rows in split_chunks(len(evidence), explanations, n_classes)
    ]
    return Sums(
        np.concatenate([part.attacked for part in parts]),
        np.concatenate([part.clean for part in parts]),
        np.empty((0, 0, 0)),
    )


def give_verdicts(
    evidence: ModelEvidence,
    explanations: Explanations,
    tuned: Tuned,
    by_votes: NDArray[np.float64],
) -> Decoded:
    """Verdicts on every input.

    Parameters
    ----------
    evidence : ModelEvidence
    explanations : Explanations
    tuned : Tuned
    by_votes : ndarray, shape (N, c)
        Label posteriors of the paper's decoder.
    """
    n_classes = evidence.log_posteriors.shape[2]
    parts = []
    for rows in split_chunks(len(evidence), explanations, n_classes):
        sums = sum_explanations(evidence.take(rows), explanations, tuned.ratios)
        agreed = have_agreed(evidence.votes[rows])
        alarm = sums.gap - tuned.threshold
        opinions = list_opinions(sums, by_votes[rows], evidence.votes[rows])
        by_label = tuned.pool.label_probability(opinions, sums.gap)
        parts.append(_decide(sums, explanations, alarm, by_label, agreed))
    return Decoded.concatenate(parts)


def _decide(
    sums: Sums,
    explanations: Explanations,
    alarm: NDArray[np.float64],
    by_label: NDArray[np.float64],
    agreed: NDArray[np.bool_],
) -> Decoded:
    sets = explanations.sets
    by_target = softmax(log_sum(sums.table.transpose(0, 2, 1)))
    by_pattern = softmax(log_sum(sums.table))
    suspects = name_suspects(sets, by_pattern)
    # Where all agree, no vote is left that could tell an attack (`Decoded.alarms`), whatever the ratios say.
    probability = np.where(agreed, 0.0, 1 / (1 + np.exp(-np.clip(alarm, -700, 700))))
    return Decoded(
        first_best(by_label),
        probability,
        first_best(by_target),
        suspects.certain,
        np.minimum(np.asarray(by_pattern @ sets.members), 1.0),
        by_label,
        np.zeros(alarm.size),
        suspects.sets,
        suspects.more,
        agreed,
    )
