"""Calibration of the sub-models' class scores on clean validation data (DESIGN.md, Decoder)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

#: Log-probabilities below this are raised to it: past it a score says how a network saturates, not what it believes.
SCORE_FLOOR = -15.0
#: L2 penalties (per sample) that `cross_calibrate` chooses from by held-out cross-entropy.
PENALTIES = (1e-3, 1e-2, 1e-1)
#: Folds of the validation data; every one is calibrated by the others.
N_FOLDS = 3


@dataclass(frozen=True)
class Calibration:
    """An affine map of the centred log-scores of each model, ``log softmax(W s + b)``.

    Attributes
    ----------
    weights : ndarray of float64, shape (m, c, c)
        W of each model: ``exp(tau)`` on the diagonal plus a penalised deviation.
    biases : ndarray of float64, shape (m, c)
    """

    weights: NDArray[np.float64]
    biases: NDArray[np.float64]

    def apply(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated log-probabilities of scores of shape (N, m, c), same shape."""
        logits = np.matmul(center_scores(scores).transpose(1, 0, 2), self.weights.transpose(0, 2, 1))
        return log_softmax((logits + self.biases[:, None, :]).transpose(1, 0, 2))


@dataclass(frozen=True)
class CrossCalibration:
    """Calibrations of the folds, each fitted without its fold, and the one on everything.

    Attributes
    ----------
    folds : ndarray of int64, shape (N,)
        Fold of each validation input.
    held_out : tuple of Calibration
        ``held_out[f]`` never saw fold f: what it gives there is distributed as on fresh inputs.
    whole : Calibration
        Fitted on all validation inputs, for new ones.
    penalty : float
        The L2 penalty with the least held-out cross-entropy.
    """

    folds: NDArray[np.int64]
    held_out: tuple[Calibration, ...]
    whole: Calibration
    penalty: float

    def apply_held_out(self, scores: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Calibrate scores (N, m, c) made from the validation inputs ``rows`` (N,) by a map that never saw them."""
        calibrated = np.empty_like(scores)
        for fold, calibration in enumerate(self.held_out):
            here = self.folds[rows] == fold
            calibrated[here] = calibration.apply(scores[here])
        return calibrated


def center_scores(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Raise log-probabilities to `SCORE_FLOOR` and centre them over the classes."""
    floored = np.maximum(scores, SCORE_FLOOR)
    return np.asarray(floored - floored.mean(axis=-1, keepdims=True))


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normalise logits over the last axis to log-probabilities."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def calibrate(scores: NDArray[np.float64], labels: NDArray[np.int64], penalty: float) -> Calibration:
    """Fit one map a model by penalised cross-entropy.

    Parameters
    ----------
    scores : ndarray, shape (N, m, c)
        Log-probabilities of clean inputs.
    labels : ndarray of int64, shape (N,)
    penalty : float
        L2 on the deviation of W from ``exp(tau) I`` and on b.
    """
    centred = center_scores(scores)
    n_inputs, n_models, n_classes = centred.shape
    truth = np.zeros((n_inputs, n_classes))
    truth[np.arange(n_inputs), labels] = 1.0
    weights = np.empty((n_models, n_classes, n_classes))
    biases = np.empty((n_models, n_classes))
    for model in range(n_models):
        inputs = np.ascontiguousarray(centred[:, model])
        start = np.zeros(1 + n_classes * n_classes + n_classes)
        found = minimize(
            calibration_loss,
            start,
            args=(inputs, truth, penalty),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 60, "ftol": 1e-6},
        )
        weights[model], biases[model] = _unpack(found.x, n_classes)
    return Calibration(weights, biases)


def calibration_loss(
    parameters: NDArray[np.float64], inputs: NDArray[np.float64], truth: NDArray[np.float64], penalty: float
) -> tuple[float, NDArray[np.float64]]:
    """Mean cross-entropy plus penalty of one model, and its gradient.

    Parameters
    ----------
    parameters : ndarray, shape (1 + c * c + c,)
        tau, the deviation D (row by row), b.
    inputs : ndarray, shape (N, c)
        Centred scores.
    truth : ndarray, shape (N, c)
        One-hot labels.
    penalty : float
    """
    n_classes = truth.shape[1]
    weights, bias = _unpack(parameters, n_classes)
    # Classes first: sums over them then run along the inputs, which is several times as fast.
    logits = weights @ inputs.T + bias[:, None]
    logits -= logits.max(axis=0)
    odds = np.exp(logits)
    totals = odds.sum(axis=0)
    free = parameters[1:]
    right = float(np.vdot(truth.T, logits)) - float(np.log(totals).sum())
    loss = -right / truth.shape[0] + 0.5 * penalty * float(free @ free)
    # d loss / d logits = (softmax - truth) / N
    slope = (odds / totals - truth.T) / truth.shape[0]
    by_weight = slope @ inputs
    gradient = np.concatenate([[np.exp(parameters[0]) * np.trace(by_weight)], by_weight.ravel(), slope.sum(axis=1)])
    gradient[1:] += penalty * free
    return loss, gradient


def cross_calibrate(
    scores: NDArray[np.float64], labels: NDArray[np.int64], generator: np.random.Generator
) -> CrossCalibration:
    """Calibrate with the penalty that has the least held-out cross-entropy over `N_FOLDS` folds.

    Ties go to the smaller penalty.
    """
    n_inputs = labels.size
    folds = generator.permutation(np.arange(n_inputs) % N_FOLDS)
    best: tuple[float, float, tuple[Calibration, ...]] | None = None
    for penalty in PENALTIES:
        maps = tuple(
            calibrate(scores[folds != fold], labels[folds != fold], penalty) for fold in range(min(N_FOLDS, n_inputs))
        )
        loss = 0.0
        for fold, found in enumerate(maps):
            here = np.flatnonzero(folds == fold)
            loss -= float(found.apply(scores[here])[np.arange(here.size), :, labels[here]].sum())
        if best is None or loss < best[0]:
            best = (loss, penalty, maps)
    assert best is not None
    return CrossCalibration(folds, best[2], calibrate(scores, labels, best[1]), best[1])


def _unpack(parameters: NDArray[np.float64], n_classes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    deviation = parameters[1 : 1 + n_classes * n_classes].reshape(n_classes, n_classes)
    return np.exp(parameters[0]) * np.eye(n_classes) + deviation, parameters[1 + n_classes * n_classes :]
