"""From clean validation inputs to a fitted decoder: what the decoders on scores and on votes have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import first_best, have_agreed
from codeward.decoding._vote_counting import PluralityDecoder
from codeward.decoding.soft._calibration import N_FOLDS
from codeward.decoding.soft._explanations import Explanations, ModelEvidence, Sums
from codeward.decoding.soft._opinions import Part, Tuned, choose_threshold, fit_pool, list_opinions, sum_labels
from codeward.decoding.soft._ratios import RatioModels, TrainingSet, learn_ratios
from codeward.decoding.soft._simulation import Family, SimulatedAttacks, draw_attacks

#: Fewest validation inputs a fit accepts.
LEAST_INPUTS = 30
#: Most simulated attacks the reading of the label is chosen on.
MOST_CHECKS = 4000
#: Fewest simulated attacks of a kind that is compared for itself.
LEAST_KIND = 40


@dataclass(frozen=True)
class Material:
    """Clean validation inputs and how to attack and to weigh them.

    Attributes
    ----------
    inputs : ndarray, shape (N, m) or (N, m, c)
        Votes or scores.
    votes : ndarray of int64, shape (N, m)
    labels : ndarray of int64, shape (N,)
    folds : ndarray of int64, shape (N,)
        Fold of each input, 0..`N_FOLDS` - 1.
    n_classes : int
    overwrite : callable
        Inputs of simulated attacks.
    weigh : callable
        ModelEvidence of inputs made from the given validation rows, by maps that never saw those rows.
    """

    inputs: NDArray[Any]
    votes: NDArray[np.int64]
    labels: NDArray[np.int64]
    folds: NDArray[np.int64]
    n_classes: int
    overwrite: Callable[[SimulatedAttacks], NDArray[Any]]
    weigh: Callable[[NDArray[Any], NDArray[np.int64]], ModelEvidence]


def tune(
    material: Material,
    code: Code,
    paper: BayesDecoder,
    explanations: Explanations,
    families: tuple[Family, ...],
    n_simulated: int,
    false_alarm_rate: float,
    generator: np.random.Generator,
) -> Tuned:
    """Learn the ratios from simulated attacks, then set the alarm on clean inputs, the label on them and fresh attacks.

    Alarm and label are set on what ratios say that never saw the input, one pair for each fold. The reference of the
    label, on clean inputs and on each kind of attack, is the better of plain vote and paper's decoder.
    """
    n_inputs, labels = material.labels.size, material.labels
    check_settings(false_alarm_rate, n_simulated, n_inputs)

    def attack(size: int) -> SimulatedAttacks:
        rows = generator.permutation(np.arange(size) % n_inputs)
        prior = np.exp(explanations.log_weights)
        return draw_attacks(labels, rows, explanations.patterns, prior, material.n_classes, families, generator)

    # 1. RatioModels of each fold, without it, and of everything.
    attacks = attack(n_simulated)
    clean = material.weigh(material.inputs, np.arange(n_inputs))
    training = TrainingSet(
        clean, labels, material.weigh(material.overwrite(attacks), attacks.rows), attacks.patterns, attacks.targets
    )
    without = [training.take(material.folds != fold, material.folds[attacks.rows] != fold) for fold in range(N_FOLDS)]
    *held_out, ratios = learn_ratios([*without, training], explanations, generator)

    # 2. What they say of the clean inputs and of fresh attacks on them.
    of_clean = _sum_held_out(clean, material.folds, explanations, held_out)
    attacks = attack(min(n_simulated, MOST_CHECKS))
    made = material.overwrite(attacks)
    attacked = material.weigh(made, attacks.rows)
    of_attacked = _sum_held_out(attacked, material.folds[attacks.rows], explanations, held_out)
    strata = sort_attacks(attacks, explanations, attacked)

    # 3. The alarm.
    # Inputs on which all models agree are no alarms, whatever is said of them.
    gaps = np.where(have_agreed(material.votes), of_clean.gap.min(), of_clean.gap)
    threshold = choose_threshold(gaps, false_alarm_rate)

    # 4. The label, beside the better of plain vote and paper's decoder on clean inputs and each kind of attack.
    plain = PluralityDecoder(code, material.n_classes)

    def gather(sums: Sums, votes: NDArray[np.int64], truth: NDArray[np.int64], rows: NDArray[np.int64]) -> Part:
        by_votes = paper.decode(votes[rows]).label_probability
        right = [(first_best(by_votes) == truth[rows]).mean(), (plain.predict(votes[rows]) == truth[rows]).mean()]
        mine = sums.take(rows)
        return Part(list_opinions(mine, by_votes, votes[rows]), mine.gap, truth[rows], float(max(right)))

    parts = [gather(of_clean, material.votes, labels, np.arange(n_inputs))]
    parts += [gather(of_attacked, attacked.votes, labels[attacks.rows], np.flatnonzero(stratum)) for stratum in strata]
    pool, room = fit_pool(parts)
    return Tuned(ratios, threshold, pool, room)


def _sum_held_out(
    evidence: ModelEvidence, folds: NDArray[np.int64], explanations: Explanations, held_out: list[RatioModels]
) -> Sums:
    """Sum over explanations by the ratios that did not see the input's fold, without the table."""
    n_classes = evidence.log_posteriors.shape[2]
    attacked, clean = np.empty((len(evidence), n_classes)), np.empty((len(evidence), n_classes))
    for fold, ratios in enumerate(held_out):
        rows = np.flatnonzero(folds == fold)
        sums = sum_labels(evidence.take(rows), explanations, ratios)
        attacked[rows], clean[rows] = sums.attacked, sums.clean
    return Sums(attacked, clean, np.empty((0, 0, 0)))


def sort_attacks(
    attacks: SimulatedAttacks, explanations: Explanations, evidence: ModelEvidence
) -> list[NDArray[np.bool_]]:
    """Kinds of attacks, for each group of hit models: triggers that fail somewhere, others by how sure they are.

    How sure the hit models are of the target is the attacker's choice, and it takes the strength that serves it best:
    so every quarter of the strengths (mean log-probability of the target) is compared for itself. Kinds with fewer than
    `LEAST_KIND` attacks are left out: their accuracies would be chance.
    """
    groups = explanations.groups[attacks.patterns]
    fails = (explanations.patterns[attacks.patterns] & ~attacks.hits).any(axis=1)
    of_target = evidence.log_posteriors[np.arange(len(attacks)), :, attacks.targets]
    sureness = (of_target * attacks.hits).sum(axis=1) / attacks.hits.sum(axis=1)
    kinds = []
    for group in np.unique(groups):
        kinds.append(fails & (groups == group))
        rows = np.flatnonzero(~fails & (groups == group))
        parts = np.array_split(rows[np.argsort(sureness[rows], kind="stable")], 4)
        kinds += [np.isin(np.arange(len(attacks)), part) for part in parts]
    return [kind for kind in kinds if kind.sum() >= LEAST_KIND]


def check_settings(false_alarm_rate: float, n_simulated: int, n_inputs: int) -> None:
    """Refuse rates outside 0..1 and too little data."""
    if not 0 < false_alarm_rate < 1:
        raise InputError(f"false_alarm_rate must be between 0 and 1, got {false_alarm_rate}")
    if n_simulated < 2:
        raise InputError(f"n_simulated must be at least 2, got {n_simulated}")
    if n_inputs < LEAST_INPUTS:
        raise InputError(f"{n_inputs} validation inputs are too few to fit a decoder; give at least {LEAST_INPUTS}")
