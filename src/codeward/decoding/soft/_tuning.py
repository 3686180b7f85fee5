"""From clean validation inputs to a fitted decoder: what the decoders on scores and on votes have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import first_best
from codeward.decoding._plurality import PluralityDecoder
from codeward.decoding.soft._evidence import Evidence, KnotLayout
from codeward.decoding.soft._fitting import TrainingSet, fit_fusion
from codeward.decoding.soft._fusion import Explanations
from codeward.decoding.soft._simulation import Family, SimulatedAttacks, draw_attacks
from codeward.decoding.soft._verdicts import Tuned, choose_alarm, choose_blend, sum_labels

#: Fewest validation inputs a fit accepts.
LEAST_INPUTS = 30
#: Attacks to choose the reading of the label on, for each one fitted on.
CHECKS = 2
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
    n_classes : int
    overwrite : callable
        Inputs of simulated attacks.
    second : callable
        Log odds of an attack by a second opinion on votes; zeros where there is none.
    weigh : callable
        Evidence of inputs made from the given validation rows, by maps that never saw those rows.
    """

    inputs: NDArray[Any]
    votes: NDArray[np.int64]
    labels: NDArray[np.int64]
    n_classes: int
    overwrite: Callable[[SimulatedAttacks], NDArray[Any]]
    second: Callable[[NDArray[np.int64]], NDArray[np.float64]]
    weigh: Callable[[NDArray[Any], NDArray[np.int64]], Evidence]


def tune(
    material: Material,
    code: Code,
    paper: BayesDecoder,
    explanations: Explanations,
    layout: KnotLayout,
    n_families: int,
    families: tuple[Family, ...],
    n_simulated: int,
    false_alarm_rate: float,
    generator: np.random.Generator,
) -> Tuned:
    """Fit the fusion on simulated attacks, then set the alarm on clean inputs, the label on those and fresh attacks.

    References of the label: the paper's decoder under attack; on clean inputs the plain vote, for votes alone the
    paper's decoder again (they cannot match both at once).
    """
    n_inputs, labels = material.labels.size, material.labels
    check_settings(false_alarm_rate, n_simulated, n_inputs)

    def attack(size: int) -> SimulatedAttacks:
        rows = generator.permutation(np.arange(size) % n_inputs)
        prior = np.exp(explanations.log_weights)
        return draw_attacks(labels, rows, explanations.patterns, prior, material.n_classes, families, generator)

    # 1. Fit on attacked inputs and half as many clean ones.
    attacks = attack(n_simulated)
    clean = generator.permutation(n_inputs)[: n_simulated // 2]
    made = np.concatenate([material.inputs[clean], material.overwrite(attacks)])
    rows = np.concatenate([clean, attacks.rows])
    nobody = np.full(clean.size, -1)
    training = TrainingSet(
        material.weigh(made, rows),
        labels[rows],
        np.concatenate([nobody, attacks.patterns]),
        np.concatenate([nobody, attacks.targets]),
    )
    fusion = fit_fusion(training, explanations, layout, n_families)

    # 2. What it says of all clean inputs and of attacks it was not fitted on.
    of_clean = sum_labels(material.weigh(material.inputs, np.arange(n_inputs)), explanations, fusion)
    attacks = attack(CHECKS * n_simulated)
    made = material.overwrite(attacks)
    of_attacked = sum_labels(material.weigh(made, attacks.rows), explanations, fusion)
    votes = made if made.ndim == 2 else made.argmax(axis=2)
    strata = sort_attacks(attacks, explanations)

    # 3. The alarm.
    alarm_weight, threshold = choose_alarm(
        (of_clean.gap, material.second(material.votes)),
        (of_attacked.gap, material.second(votes)),
        strata,
        false_alarm_rate,
    )

    # 4. The label, each kind of attack against the paper's decoder.
    by_votes = (paper.decode(material.votes).label_probability, paper.decode(votes).label_probability)
    plain = PluralityDecoder(code, material.n_classes).predict(material.votes)
    shift, vote_weight, room = choose_blend(
        of_clean,
        of_attacked,
        by_votes,
        (labels, labels[attacks.rows]),
        (plain if material.inputs.ndim == 3 else first_best(by_votes[0]), first_best(by_votes[1])),
        strata,
    )
    return Tuned(fusion, alarm_weight, threshold, shift, vote_weight, room)


def sort_attacks(attacks: SimulatedAttacks, explanations: Explanations) -> list[NDArray[np.bool_]]:
    """Kinds of attacks: by hit models and, each of these, by family, failing triggers apart; only common kinds.

    Kinds with fewer than `LEAST_KIND` attacks are left out: their accuracies would be chance.
    """
    groups = explanations.groups[attacks.patterns]
    fails = (explanations.patterns[attacks.patterns] & ~attacks.hits).any(axis=1)
    kinds = []
    for group in np.unique(groups):
        kinds.append(fails & (groups == group))
        kinds += [~fails & (groups == group) & (attacks.families == family) for family in np.unique(attacks.families)]
    return [kind for kind in kinds if kind.sum() >= LEAST_KIND]


def check_settings(false_alarm_rate: float, n_simulated: int, n_inputs: int) -> None:
    """Refuse rates outside 0..1 and too little data."""
    if not 0 < false_alarm_rate < 1:
        raise InputError(f"false_alarm_rate must be between 0 and 1, got {false_alarm_rate}")
    if n_simulated < 2:
        raise InputError(f"n_simulated must be at least 2, got {n_simulated}")
    if n_inputs < LEAST_INPUTS:
        raise InputError(f"{n_inputs} validation inputs are too few to fit a decoder; give at least {LEAST_INPUTS}")
