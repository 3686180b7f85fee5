"""Two likelihood ratios of explanations, learned from simulated attacks on validation inputs."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codeward._cores import count_cores, share_rows
from codeward.decoding.soft._boosting import Trees, grow_trees
from codeward.decoding.soft._calibration import log_softmax
from codeward.decoding.soft._candidates import N_FEATURES, PLAUSIBLE, describe_candidates, sum_candidates
from codeward.decoding.soft._explanations import Explanations, ModelEvidence, Sums

#: Explanations drawn for each input that are not its own; the plausible ones are learned from.
N_DRAWN = 16
#: Floats a chunk of work may hold.
CHUNK = 4_000_000
#: Correlations of the models' evidence tried for the discount.
CORRELATIONS = np.linspace(0.0, 1.0, 41)


#: Features, answers and weights that trees are grown on.
_Question = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float64]]


@dataclass(frozen=True)
class RatioModels:
    r"""What is learned about explanations.

    Attributes
    ----------
    alarm : Trees
        Log of :math:`\Pr(s \mid x, t) / (c \Pr(s \mid clean))`: how much better (x, t) explains the scores s than no
        attack does.
    naming : Trees
        Log odds that (x, t) rather than another explanation of the same input is the true one, given an attack.
    discounts : ndarray, shape (m + 1,)
        Exponent of the product of the probabilities of n models, :math:`1 / (1 + \rho (n - 1))`: n equally correlated
        witnesses are worth so many independent ones.
    """

    alarm: Trees
    naming: Trees
    discounts: NDArray[np.float64]


@dataclass(frozen=True)
class TrainingSet:
    """Clean inputs and attacked ones with the truth.

    Attributes
    ----------
    clean : ModelEvidence
        Of N clean inputs,
    labels : ndarray of int64, shape (N,)
        with these labels.
    attacked : ModelEvidence
        Of M attacked inputs,
    patterns, targets : ndarray of int64, shape (M,)
        with these true explanations.
    """

    clean: ModelEvidence
    labels: NDArray[np.int64]
    attacked: ModelEvidence
    patterns: NDArray[np.int64]
    targets: NDArray[np.int64]

    def take(self, clean: NDArray[np.bool_], attacked: NDArray[np.bool_]) -> "TrainingSet":
        """Restrict to some clean (N,) and some attacked (M,) inputs."""
        return TrainingSet(
            self.clean.take(np.flatnonzero(clean)),
            self.labels[clean],
            self.attacked.take(np.flatnonzero(attacked)),
            self.patterns[attacked],
            self.targets[attacked],
        )


def learn_ratios(
    each: Sequence[TrainingSet], explanations: Explanations, generator: np.random.Generator
) -> list[RatioModels]:
    r"""Learn both ratios and the discount from every training set; the trees grow on all cores.

    With V(s) the number of classes some model votes for, a clean input seen in the light of x drawn from the prior w
    and t drawn from those classes, weighted by V / mean V, stands for all its explanations alike. N clean inputs with K
    draws against M attacked ones then have the log odds
    :math:`\log(M \bar V / (K N)) + \log(\Pr(s \mid x, t) / (c \Pr(s \mid clean)))`; the constant is taken off. Against
    other explanations of the same attacked input the prior cancels: :math:`\Pr(x, t \mid s) \propto w(x) \times` odds.
    """
    drawn = [_draw_questions(training, explanations, generator) for training in each]
    questions = [question for of_set, _, _ in drawn for question in of_set]
    with ThreadPoolExecutor(count_cores()) as pool:  # the trees of a question do not depend on the others
        grown = list(pool.map(lambda question: grow_trees(*question), questions))
    return [
        RatioModels(replace(grown[2 * k], base=grown[2 * k].base - constant), grown[2 * k + 1], discounts)
        for k, (_, constant, discounts) in enumerate(drawn)
    ]


def _draw_questions(
    training: TrainingSet, explanations: Explanations, generator: np.random.Generator
) -> tuple[list[_Question], float, NDArray[np.float64]]:
    """Draw what `grow_trees` learns the alarm and the naming from; the alarm's constant; the discounts."""
    true = (np.arange(len(training.attacked)), training.patterns, training.targets)
    likely = are_plausible(training.attacked, explanations, *true)
    ours = describe(training.attacked, explanations, *(part[likely] for part in true))

    # 1. True explanations of attacked inputs against explanations of clean ones.
    *drawn, n_voted = draw_candidates(training.clean, explanations, generator)
    theirs = describe(training.clean, explanations, *drawn)
    weights = np.concatenate([np.ones(len(ours)), n_voted[drawn[0]] / n_voted.mean()])
    constant = np.log(max(len(training.attacked), 1) * n_voted.mean() / (N_DRAWN * max(len(training.clean), 1)))
    alarm = (np.concatenate([ours, theirs]), np.arange(weights.size) < len(ours), weights)

    # 2. The same against other explanations of the attacked inputs.
    of, x, t, _ = draw_candidates(training.attacked, explanations, generator)
    wrong = (x != training.patterns[of]) | (t != training.targets[of])
    theirs = describe(training.attacked, explanations, of[wrong], x[wrong], t[wrong])
    size = len(ours) + len(theirs)
    naming = (np.concatenate([ours, theirs]), np.arange(size) < len(ours), np.ones(size))
    discounts = choose_discounts(training.clean, training.labels, explanations, generator)
    return [alarm, naming], float(constant), discounts


def draw_candidates(
    evidence: ModelEvidence, explanations: Explanations, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Draw `N_DRAWN` explanations of each input, keep the plausible ones: input, pattern, target; V of each input."""
    n_inputs, _, n_classes = evidence.log_posteriors.shape
    said = np.zeros((n_inputs, n_classes), dtype=bool)
    np.put_along_axis(said, evidence.votes, True, axis=1)
    n_voted = said.sum(axis=1)
    of = np.repeat(np.arange(n_inputs), N_DRAWN)
    x = generator.choice(explanations.log_weights.size, size=of.size, p=np.exp(explanations.log_weights))
    rank = np.floor(generator.random(of.size) * n_voted[of])
    t = (said.cumsum(axis=1)[of] > rank[:, None]).argmax(axis=1)
    kept = are_plausible(evidence, explanations, of, x, t)
    return of[kept], x[kept], t[kept], n_voted.astype(np.float64)


def are_plausible(
    evidence: ModelEvidence,
    explanations: Explanations,
    of: NDArray[np.int64],
    x: NDArray[np.int64],
    t: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Whether enough hit models vote for the target; as `is_plausible`."""
    hit = explanations.patterns[x]
    said = (hit & (evidence.votes[of] == t[:, None])).sum(axis=1)
    return np.asarray((said > 0) & (said >= PLAUSIBLE * hit.sum(axis=1)))


def describe(
    evidence: ModelEvidence,
    explanations: Explanations,
    of: NDArray[np.int64],
    x: NDArray[np.int64],
    t: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Features of candidates; see `describe_candidate`."""
    out = np.empty((of.size, N_FEATURES), dtype=np.float32)
    describe_candidates(evidence.log_posteriors, evidence.votes, explanations.patterns, of, x, t, out)
    return out


def choose_discounts(
    clean: ModelEvidence, labels: NDArray[np.int64], explanations: Explanations, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Discounts with the least cross-entropy of the sum of all models, and of the clean ones of drawn patterns."""
    n_inputs, n_models, _ = clean.log_posteriors.shape
    x = generator.choice(explanations.log_weights.size, size=n_inputs, p=np.exp(explanations.log_weights))
    speaking = ~explanations.patterns[x]
    cases = [
        (np.full(n_inputs, n_models), clean.log_posteriors.sum(axis=1)),
        (speaking.sum(axis=1), np.where(speaking[:, :, None], clean.log_posteriors, 0.0).sum(axis=1)),
    ]
    best = (np.inf, np.ones(n_models + 1))
    for correlation in CORRELATIONS:
        discounts = 1 / (1 + correlation * (np.maximum(np.arange(n_models + 1), 1) - 1))
        loss = 0.0
        for counts, total in cases:
            loss -= float(log_softmax(discounts[counts][:, None] * total)[np.arange(n_inputs), labels].mean())
        if loss < best[0]:
            best = (loss, discounts)
    return best[1]


def sum_explanations(
    evidence: ModelEvidence, explanations: Explanations, ratios: RatioModels, every_target: bool = False
) -> Sums:
    """Log masses of every input (`sum_candidates`); implausible explanations are left out unless asked for."""
    n_inputs, n_models, n_classes = evidence.log_posteriors.shape
    by_label = np.empty((n_inputs, n_classes))
    table = np.empty((n_inputs, explanations.log_weights.size, n_classes))
    alarm, naming = ratios.alarm, ratios.naming

    def work(rows: slice) -> None:
        sum_candidates(
            evidence.log_posteriors[rows],
            evidence.votes[rows],
            explanations.patterns,
            explanations.log_weights,
            every_target,
            alarm.features,
            alarm.thresholds,
            alarm.values,
            alarm.base,
            naming.features,
            naming.thresholds,
            naming.values,
            naming.base,
            ratios.discounts,
            by_label[rows],
            table[rows],
        )

    share_rows(n_inputs, work)
    clean = log_softmax(ratios.discounts[n_models] * evidence.log_posteriors.sum(axis=1))
    return Sums(by_label, clean, table)
