"""Calibration of the sub-models' class scores on clean validation data (DESIGN.md, Decoder)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

#: Log-probabilities below this are raised to it: past it a score says how a network saturates, not what it believes.
SCORE_FLOOR = -15.0
#: L2 penalties (per sample) that `cross_calibrate` chooses from.
PENALTIES = (1e-3, 1e-2, 1e-1)
#: Exponents of the models' mean log-probability tried while a penalty is judged.
EXPONENTS = np.geomspace(0.7, 4.0, 12)
#: Folds of the validation data; every one is calibrated by the others.
N_FOLDS = 3


@dataclass(frozen=True)
class Calibration:
    """An affine map of the centred log-scores of each model, ``log softmax(W s + b)``.

    Attributes
    ----------
    parameters : ndarray of float64, shape (m, 1 + c * c + c)
        Of each model tau, the penalised deviation of W from ``exp(tau) I`` (row by row), b.
    """

    parameters: NDArray[np.float64]

    def apply(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated log-probabilities of scores of shape (N, m, c), same shape."""
        maps = [_unpack(parameters, scores.shape[2]) for parameters in self.parameters]
        weights, biases = np.stack([weight for weight, _ in maps]), np.stack([bias for _, bias in maps])
        logits = np.matmul(center_scores(scores).transpose(1, 0, 2), weights.transpose(0, 2, 1))
        return log_softmax((logits + biases[:, None, :]).transpose(1, 0, 2))


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
        The L2 penalty with the least held-out cross-entropy of all models together.
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


def calibrate(
    scores: NDArray[np.float64], labels: NDArray[np.int64], penalty: float, start: Calibration | None = None
) -> Calibration:
    """Fit one map a model by penalised cross-entropy.

    Parameters
    ----------
    scores : ndarray, shape (N, m, c)
        Log-probabilities of clean inputs.
    labels : ndarray of int64, shape (N,)
    penalty : float
        L2 on the deviation of W from ``exp(tau) I`` and on b.
    start : Calibration, optional
        Where to start: the maps of similar data.
    """
    centred = center_scores(scores)
    n_inputs, n_models, n_classes = centred.shape
    truth = np.zeros((n_inputs, n_classes))
    truth[np.arange(n_inputs), labels] = 1.0
    parameters = np.zeros((n_models, 1 + n_classes * n_classes + n_classes))
    if start is not None:
        parameters = start.parameters.copy()
    for model in range(n_models):
        found = minimize(
            calibration_loss,
            parameters[model],
            args=(np.ascontiguousarray(centred[:, model]), truth, penalty),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 60, "ftol": 1e-6},
        )
        parameters[model] = found.x
    return Calibration(parameters)


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
    """Calibrate over `N_FOLDS` folds, with the penalty that is best for all models together.

    The penalty has the least cross-entropy, on the first fold by maps of the others, of the models' mean
    log-probability at the best of a few exponents: maps that follow each model too closely give all of them the same
    errors. Ties go to the smaller penalty. Later maps start at the first fold's.
    """
    folds = generator.permutation(np.arange(labels.size) % N_FOLDS)
    best: tuple[float, float, Calibration] | None = None
    here = folds == 0
    for penalty in PENALTIES:
        found = calibrate(scores[~here], labels[~here], penalty)
        mean = found.apply(scores[here]).mean(axis=1)
        loss = min(
            -float(log_softmax(exponent * mean)[np.arange(mean.shape[0]), labels[here]].mean())
            for exponent in EXPONENTS
        )
        if best is None or loss < best[0]:
            best = (loss, penalty, found)
    assert best is not None
    _, penalty, first = best
    others = tuple(
        calibrate(scores[folds != fold], labels[folds != fold], penalty, first) for fold in range(1, N_FOLDS)
    )
    return CrossCalibration(folds, (first, *others), calibrate(scores, labels, penalty, first), penalty)


def _unpack(parameters: NDArray[np.float64], n_classes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    deviation = parameters[1 : 1 + n_classes * n_classes].reshape(n_classes, n_classes)
    return np.exp(parameters[0]) * np.eye(n_classes) + deviation, parameters[1 + n_classes * n_classes :]
