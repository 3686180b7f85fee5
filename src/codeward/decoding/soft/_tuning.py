"""From clean validation inputs to a fitted decoder: what the decoders on scores and on votes have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._models import estimate_confusion
from codeward.decoding.soft._evidence import Evidence, KnotLayout
from codeward.decoding.soft._fitting import TrainingSet, fit_fusion
from codeward.decoding.soft._fusion import Explanations
from codeward.decoding.soft._simulation import Family, SimulatedAttacks, draw_attacks
from codeward.decoding.soft._verdicts import Tuned, choose_shift, choose_threshold, sum_labels

#: Fewest validation inputs a fit accepts.
LEAST_INPUTS = 30


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
    reference : callable
        Labels of clean votes by the decoder not to fall below there, given the votes and the paper's decoder.
    weigh : callable
        Evidence of inputs made from the given validation rows, by maps that never saw those rows.
    """

    inputs: NDArray[Any]
    votes: NDArray[np.int64]
    labels: NDArray[np.int64]
    n_classes: int
    overwrite: Callable[[SimulatedAttacks], NDArray[Any]]
    reference: Callable[[NDArray[np.int64], BayesDecoder], NDArray[np.int64]]
    weigh: Callable[[NDArray[Any], NDArray[np.int64]], Evidence]


def tune(
    material: Material,
    code: Code,
    explanations: Explanations,
    layout: KnotLayout,
    n_families: int,
    families: tuple[Family, ...],
    n_simulated: int,
    false_alarm_rate: float,
    generator: np.random.Generator,
) -> Tuned:
    """Fit the fusion on simulated attacks, then set threshold and shift on clean inputs and fresh attacks."""
    n_inputs, labels = material.labels.size, material.labels
    check_settings(false_alarm_rate, n_simulated, n_inputs)

    def attack() -> SimulatedAttacks:
        rows = generator.permutation(np.arange(n_simulated) % n_inputs)
        prior = np.exp(explanations.log_weights)
        return draw_attacks(labels, rows, explanations.patterns, prior, material.n_classes, families, generator)

    # 1. Fit on attacked inputs and half as many clean ones.
    attacks = attack()
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

    # 2. The alarm, on all clean inputs.
    all_rows = np.arange(n_inputs)
    of_clean = sum_labels(material.weigh(material.inputs, all_rows), explanations, fusion)
    threshold = choose_threshold(of_clean.gap, false_alarm_rate)

    # 3. The label, on all clean inputs and attacks not fitted on, each kind against the paper's decoder.
    attacks = attack()
    made = material.overwrite(attacks)
    of_attacked = sum_labels(material.weigh(made, attacks.rows), explanations, fusion)
    votes = made if made.ndim == 2 else made.argmax(axis=2)
    paper = BayesDecoder(code, estimate_confusion(material.votes, labels, material.n_classes))
    groups = explanations.groups[attacks.patterns]
    poor = (explanations.patterns[attacks.patterns] & ~attacks.hits).any(axis=1)
    strata = [groups == group for group in np.unique(groups)]
    strata += [(attacks.families == family) & ~poor for family in np.unique(attacks.families)] + [poor]
    shift, room = choose_shift(
        of_clean,
        labels,
        material.reference(material.votes, paper),
        of_attacked,
        labels[attacks.rows],
        paper.predict(votes),
        strata,
    )
    return Tuned(fusion, threshold, shift, room)


def check_settings(false_alarm_rate: float, n_simulated: int, n_inputs: int) -> None:
    """Refuse rates outside 0..1 and too little data."""
    if not 0 < false_alarm_rate < 1:
        raise InputError(f"false_alarm_rate must be between 0 and 1, got {false_alarm_rate}")
    if n_simulated < 2:
        raise InputError(f"n_simulated must be at least 2, got {n_simulated}")
    if n_inputs < LEAST_INPUTS:
        raise InputError(f"{n_inputs} validation inputs are too few to fit a decoder; give at least {LEAST_INPUTS}")
