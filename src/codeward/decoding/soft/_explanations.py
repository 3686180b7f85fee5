"""The explanations of an input, two likelihood ratios of them learned from simulated attacks, and sums over them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codeward._cores import count_cores, share_rows
from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, count_attacker_sets
from codeward.decoding._assumptions import check_prior
from codeward.decoding._attacker_sets import AttackerSets, gather_attacker_sets
from codeward.decoding._bayes import EXACT_SETS
from codeward.decoding.soft._candidates import N_FEATURES, PLAUSIBLE, describe_candidates, sum_candidates
from codeward.decoding.soft._learners import Trees, average_trees, grow_trees, log_softmax

#: Most groups of patterns that are compared for themselves: more would leave too few simulated attacks in each.
MOST_GROUPS = 6


@dataclass(frozen=True)
class Explanations:
    """Hit patterns that leave at least one clean model, with their prior given an attack.

    Attributes
    ----------
    sets : AttackerSets
        Patterns of 1..k attackers; nothing can be recovered where every model is hit, so those are left out.
    patterns : ndarray of bool, shape (P, m)
    log_weights : ndarray of float64, shape (P,)
        Log prior of each, that of ``sets``.
    groups : ndarray of int64, shape (P,)
        Patterns with about equally many hit models share a group, 0..J-1 by that number; see `group_patterns`.
    """

    sets: AttackerSets
    patterns: NDArray[np.bool_]
    log_weights: NDArray[np.float64]
    groups: NDArray[np.int64]

    @property
    def n_groups(self) -> int:
        """Number of groups J."""
        return int(self.groups.max()) + 1


@dataclass(frozen=True)
class Sums:
    """Log masses of N inputs.

    Attributes
    ----------
    attacked, clean : ndarray, shape (N, c)
        By label, under an attack and under none; the latter sums to 1.
    table : ndarray, shape (N, P, c)
        By pattern and target, under an attack.
    """

    attacked: NDArray[np.float64]
    clean: NDArray[np.float64]
    table: NDArray[np.float64]

    @property
    def joined(self) -> NDArray[np.float64]:
        """Log posterior of the label up to a constant, shape (N, c)."""
        return np.logaddexp(self.attacked, self.clean)

    def take(self, rows: NDArray[np.int64]) -> "Sums":
        """Masses of some inputs, without the table."""
        return Sums(self.attacked[rows], self.clean[rows], np.empty((0, 0, 0)))

    @property
    def gap(self) -> NDArray[np.float64]:
        """Log odds of an attack before the threshold, shape (N,)."""
        return log_sum(self.attacked) - log_sum(self.clean)


def list_explanations(code: Code, attackers_prior: NDArray[np.float64]) -> Explanations:
    """Gather the hit patterns of 1..k attackers that leave a clean model.

    Parameters
    ----------
    code : Code
    attackers_prior : ndarray, shape (k + 1,)
        Q(0..k) as in `BayesDecoder`; Q(0) is dropped: nobody attacking is the other hypothesis.
    """
    prior = check_prior(attackers_prior).copy()
    prior[0] = 0.0
    if prior.sum() <= 0:
        raise InputError("attackers_prior: at least one positive number of attackers needs a positive probability")
    n_sets = count_attacker_sets(code.n_users, prior.size - 1)
    if n_sets > EXACT_SETS:
        raise TooLargeError(
            f"{n_sets:,} attacker sets are over the score decoder's limit of {EXACT_SETS:,}; "
            "shorten attackers_prior or use BayesDecoder"
        )
    sets = gather_attacker_sets(code, prior / prior.sum())
    rows = np.flatnonzero(sets.hits < code.n_models)
    if rows.size == 0:
        raise InputError("every attacker of this code hits all models: there is no clean model to recover a label from")
    kept = sets.take(rows)
    return Explanations(kept, kept.bits, np.log(kept.weights), group_patterns(kept.hits, kept.weights))


def group_patterns(hits: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Group patterns by their number of hit models, in at most `MOST_GROUPS` groups of neighbouring numbers.

    While there are too many, the two neighbours with the least prior together become one (the first such pair on a
    tie).

    Parameters
    ----------
    hits : ndarray of int64, shape (P,)
        Hit models of each pattern.
    weights : ndarray, shape (P,)
        Prior of each pattern.

    Returns
    -------
    ndarray of int64, shape (P,)
        Group of each pattern, 0..J-1, not decreasing in the number of hit models.
    """
    _, groups = np.unique(hits, return_inverse=True)
    masses = np.bincount(groups, weights=weights)
    while masses.size > MOST_GROUPS:
        lightest = int((masses[:-1] + masses[1:]).argmin())
        groups = groups - (groups > lightest)
        masses = np.bincount(groups, weights=weights)
    return groups.astype(np.int64)


def log_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of the sum of exponentials over the last axis; -inf where all values are."""
    top = values.max(axis=-1)
    known = np.isfinite(top)
    shifted = values - np.where(known, top, 0.0)[..., None]
    return np.asarray(np.where(known, top + np.log(np.maximum(np.exp(shifted).sum(axis=-1), 1e-300)), -np.inf))


@dataclass(frozen=True)
class ModelEvidence:
    """ModelEvidence of N inputs.

    Attributes
    ----------
    log_posteriors : ndarray of float64, shape (N, m, c)
        Calibrated log-probabilities of the label by each model, were it clean.
    votes : ndarray of int64, shape (N, m)
        Hard votes.
    """

    log_posteriors: NDArray[np.float64]
    votes: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.votes.shape[0])

    def take(self, rows: NDArray[np.int64]) -> "ModelEvidence":
        """ModelEvidence of the given rows."""
        return ModelEvidence(self.log_posteriors[rows], self.votes[rows])


def weigh_votes(log_likelihoods: NDArray[np.float64], votes: NDArray[np.int64]) -> ModelEvidence:
    """ModelEvidence of hard votes: the label posterior by Bayes' rule with uniform labels.

    Parameters
    ----------
    log_likelihoods : ndarray, shape (N, m, c)
        ``log Pr(y_i | clean, label = l)``, as a `VoteModel` gives it.
    votes : ndarray of int64, shape (N, m)
    """
    return ModelEvidence(log_softmax(log_likelihoods), votes)


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


def average_ratios(each: Sequence[RatioModels]) -> RatioModels:
    """Return the mean of log ratios that were learned from different draws of attacks."""
    return RatioModels(
        average_trees([ratios.alarm for ratios in each]),
        average_trees([ratios.naming for ratios in each]),
        np.mean([ratios.discounts for ratios in each], axis=0),
    )


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
