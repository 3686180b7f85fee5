"""Fitting the fusion on simulated attacks, by L-BFGS with the gradient written out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from codeward.decoding.soft._calibration import log_softmax
from codeward.decoding.soft._evidence import Evidence, KnotLayout
from codeward.decoding.soft._fusion import Explanations, sum_explanations, weigh_labels
from codeward.decoding.soft._kernels import sum_losses
from codeward.decoding.soft._parameters import Fusion, ParameterSpace

#: Explanations an input keeps while the fusion is fitted; the others have little mass. They are chosen anew each round.
N_KEPT = 24
#: Iterations of L-BFGS in each round.
ROUNDS = (30, 90)
#: L2 pull of the flat parameters towards the start, per input: it only settles what the data leave open.
PULL = 1e-3
#: Weight of naming the right pattern and target, against the label and the alarm.
PATTERN_WEIGHT = 0.5


@dataclass(frozen=True)
class TrainingSet:
    """Clean and attacked inputs with the truth.

    Attributes
    ----------
    evidence : Evidence
        Of N inputs.
    labels : ndarray of int64, shape (N,)
    patterns, targets : ndarray of int64, shape (N,)
        The true explanation; -1 where nobody attacks.
    """

    evidence: Evidence
    labels: NDArray[np.int64]
    patterns: NDArray[np.int64]
    targets: NDArray[np.int64]


def fit_fusion(training: TrainingSet, explanations: Explanations, layout: KnotLayout, n_families: int) -> Fusion:
    """Fit all parameters of the fusion.

    Deterministic: no randomness beyond the training set.
    """
    space = ParameterSpace(explanations.n_groups, n_families, layout)
    start = space.start()
    flat = start
    for iterations in ROUNDS:
        chosen = choose_explanations(training, explanations, space.unpack(flat))
        found = minimize(
            fusion_loss,
            flat,
            args=(start, space, training, explanations, *chosen),
            jac=True,
            method="L-BFGS-B",
            bounds=space.bounds(),
            options={"maxiter": iterations},
        )
        flat = found.x
    return space.unpack(flat)


def choose_explanations(
    training: TrainingSet, explanations: Explanations, fusion: Fusion
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List the heaviest (pattern, target) of each input, the true one first; shapes (N, `N_KEPT` + 1), -1 for none."""
    n_inputs, n_classes = training.labels.size, training.evidence.log_posteriors.shape[2]
    chosen = np.full((n_inputs, N_KEPT + 1), -1, dtype=np.int64)
    targets = chosen.copy()
    step = max(1, 4_000_000 // (explanations.rows.size * n_classes))
    for begin in range(0, n_inputs, step):
        rows = np.arange(begin, min(begin + step, n_inputs))
        masses = sum_explanations(training.evidence.take(rows), explanations, fusion).table.reshape(rows.size, -1)
        attacked = training.patterns[rows] >= 0
        true = (training.patterns * n_classes + training.targets)[rows]
        masses[np.flatnonzero(attacked), true[attacked]] = np.inf
        kept = min(N_KEPT + 1, masses.shape[1])
        best = np.argpartition(-masses, kept - 1, axis=1)[:, :kept]
        order = np.argsort(-np.take_along_axis(masses, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        missing = np.isneginf(np.take_along_axis(masses, best, axis=1))
        chosen[rows, :kept] = np.where(missing, -1, best // n_classes)
        targets[rows, :kept] = np.where(missing, -1, best % n_classes)
    return chosen, targets


def fusion_loss(
    flat: NDArray[np.float64],
    start: NDArray[np.float64],
    space: ParameterSpace,
    training: TrainingSet,
    explanations: Explanations,
    chosen: NDArray[np.int64],
    chosen_targets: NDArray[np.int64],
) -> tuple[float, NDArray[np.float64]]:
    """Mean loss (see `sum_losses`) plus the pull to the start, and the gradient by the flat parameters."""
    fusion = space.unpack(flat)
    evidence = training.evidence
    n_inputs, _, n_classes = evidence.log_posteriors.shape
    clean = weigh_labels(evidence.log_posteriors, fusion)
    by_clean = np.zeros_like(clean)
    by = Fusion(
        0.0,
        0.0,
        np.zeros_like(fusion.clean_discounts),
        np.zeros_like(fusion.hit_discounts),
        np.zeros_like(fusion.offsets),
        np.zeros_like(fusion.hit_evidence),
        np.zeros_like(fusion.success_rates),
        np.zeros_like(fusion.family_weights),
    )
    loss = sum_losses(
        clean,
        evidence.knots,
        evidence.fractions,
        training.labels,
        training.patterns >= 0,
        chosen,
        chosen_targets,
        explanations.patterns,
        explanations.groups,
        explanations.log_weights - np.log(n_classes),
        fusion.clean_discounts,
        fusion.hit_discounts,
        fusion.offsets,
        fusion.hit_evidence,
        fusion.success_rates,
        np.log(fusion.family_weights),
        PATTERN_WEIGHT,
        by_clean,
        by.clean_discounts,
        by.hit_discounts,
        by.offsets,
        by.hit_evidence,
        by.success_rates,
        by.family_weights,
    )
    # dc/dT and dc/deps of c = log((1 - eps) p + eps / c) + log c, p = softmax(T g).
    log_p = log_softmax(fusion.temperature * evidence.log_posteriors)
    p = np.exp(log_p)
    inside = (1 - fusion.leak) * p + fusion.leak / n_classes
    spread = evidence.log_posteriors - (p * evidence.log_posteriors).sum(axis=2, keepdims=True)
    by_temperature = float((by_clean * (1 - fusion.leak) * p * spread / inside).sum())
    by_leak = float((by_clean * (1 / n_classes - p) / inside).sum())
    whole = Fusion(
        by_temperature,
        by_leak,
        by.clean_discounts,
        by.hit_discounts,
        by.offsets,
        by.hit_evidence,
        by.success_rates,
        by.family_weights,
    )
    away = flat - start
    gradient = space.pull_back(flat, whole) / n_inputs + PULL * away
    return loss / n_inputs + 0.5 * PULL * float(away @ away), gradient
