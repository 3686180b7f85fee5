"""Calibration of the sub-models' class scores on clean validation data: a temperature and a bias per class.

Vector scaling with one temperature (Guo et al., 2017). A full matrix a model costs forty times as much to fit and gave
no better labels or alarms on the held-out scores it was compared on (docs/soft-decoder.md).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

#: Log-probabilities below this are raised to it: past it a score says how a network saturates, not what it believes.
SCORE_FLOOR = -15.0
#: L2 penalty (per sample) on the biases.
PENALTY = 1e-2
#: Folds of the validation data; every one is calibrated by the others.
N_FOLDS = 3


@dataclass(frozen=True)
class Calibration:
    """A map of the centred log-scores of each model, ``log softmax(exp(tau) s + b)``.

    Attributes
    ----------
    parameters : ndarray of float64, shape (m, 1 + c)
        Of each model tau and b.
    """

    parameters: NDArray[np.float64]

    def apply(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated log-probabilities of scores of shape (N, m, c), same shape."""
        heat, bias = np.exp(self.parameters[:, :1]), self.parameters[:, 1:]
        return log_softmax(heat * center_scores(scores) + bias)


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
    """

    folds: NDArray[np.int64]
    held_out: tuple[Calibration, ...]
    whole: Calibration

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


def calibrate(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> Calibration:
    """Fit one map a model by penalised cross-entropy, all models in one search.

    Parameters
    ----------
    scores : ndarray, shape (N, m, c)
        Log-probabilities of clean inputs.
    labels : ndarray of int64, shape (N,)
    """
    # Classes first and inputs last: sums over classes then run along the inputs, which is several times as fast.
    inputs = np.ascontiguousarray(center_scores(scores).transpose(2, 1, 0))
    n_classes, n_models, _ = inputs.shape
    truth = (labels == np.arange(n_classes)[:, None]).astype(np.float64)
    start = np.zeros(n_models * (1 + n_classes))
    # The models share nothing but the search: its sum is small where each of them is.
    found = minimize(
        calibration_loss,
        start,
        args=(inputs, truth),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 1e-10, "maxiter": 500},
    )
    return Calibration(np.asarray(found.x).reshape(n_models, 1 + n_classes))


def calibration_loss(
    parameters: NDArray[np.float64], inputs: NDArray[np.float64], truth: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Mean cross-entropy plus penalty, summed over the models, and its gradient.

    Parameters
    ----------
    parameters : ndarray, shape (m * (1 + c),)
        tau, b of every model.
    inputs : ndarray, shape (c, m, N)
        Centred scores.
    truth : ndarray, shape (c, N)
        One-hot labels.
    """
    n_classes, n_models, n_inputs = inputs.shape
    table = parameters.reshape(n_models, 1 + n_classes)
    heat, bias = np.exp(table[:, 0]), table[:, 1:]
    logits = heat[:, None] * inputs + bias.T[:, :, None]
    logits -= logits.max(axis=0)
    odds = np.exp(logits)
    totals = odds.sum(axis=0)
    # No BLAS here: for so little work its threads cost a hundred times the product when cores are busy.
    loss = (float(np.log(totals).sum()) - float((truth[:, None] * logits).sum())) / n_inputs
    # d loss / d logits = (softmax - truth) / N
    slope = (odds / totals - truth[:, None]) / n_inputs
    gradient = np.empty_like(table)
    gradient[:, 0] = heat * (slope * inputs).sum(axis=(0, 2))
    gradient[:, 1:] = slope.sum(axis=2).T + PENALTY * bias
    return loss + 0.5 * PENALTY * float((bias * bias).sum()), gradient.ravel()


def cross_calibrate(
    scores: NDArray[np.float64], labels: NDArray[np.int64], generator: np.random.Generator
) -> CrossCalibration:
    """Calibrate over `N_FOLDS` folds, each by the others, and once on everything."""
    folds = generator.permutation(np.arange(labels.size) % N_FOLDS)
    held_out = tuple(calibrate(scores[folds != fold], labels[folds != fold]) for fold in range(N_FOLDS))
    return CrossCalibration(folds, held_out, calibrate(scores, labels))
