"""The two small learners of the fitted decoders: boosted trees for two classes, and a calibration of class scores.

Complete binary trees on binned features, logistic loss, second-order leaf values (Friedman 2001; the histogram form of
LightGBM), compiled by numba: a program of our own because decoders may need nothing beyond numpy, scipy and numba.
Class scores are calibrated on clean validation data by one temperature a model and a bias per class (vector scaling,
Guo et al., 2017). A full matrix a model costs forty times as much to fit and gave no better labels or alarms on the
held-out scores it was compared on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from codeward._compiled import compiled

#: Trees, their depth, and the share of a leaf's value that is added.
N_TREES, DEPTH, RATE = 45, 4, 0.2
#: Every tree sees one row in so many.
STRIDE = 2
#: Bins of a feature.
N_BINS = 48
#: Rows whose trees are asked together.
BLOCK = 512
#: L2 on leaf values, and the least second derivative in a leaf (about four times the inputs in it that are undecided).
LEAF_PENALTY, LEAF_MASS = 1.0, 1.0

_Floats = NDArray[np.float64]
_Singles = NDArray[np.float32]


@dataclass(frozen=True)
class Trees:
    """A sum of complete trees of depth D over K features, node k with children 2k+1 (at most the threshold), 2k+2.

    Attributes
    ----------
    features : ndarray of int16, shape (T, 2**D - 1)
    thresholds : ndarray of float32, shape (T, 2**D - 1)
    values : ndarray of float32, shape (T, 2**D)
        Log odds added by each leaf.
    base : float
        Log odds before the first tree.
    """

    features: NDArray[np.int16]
    thresholds: _Singles
    values: _Singles
    base: float

    def log_odds(self, features: _Singles) -> _Floats:
        """Log odds of the first class for features of shape (N, K), shape (N,)."""
        found = np.full(features.shape[0], self.base)
        add_trees(features, self.features, self.thresholds, self.values, found)
        return found


def average_trees(each: Sequence[Trees]) -> Trees:
    """Trees whose log odds are the mean of those of several (bagging, Breiman 1996)."""
    return Trees(
        np.concatenate([trees.features for trees in each]),
        np.concatenate([trees.thresholds for trees in each]),
        (np.concatenate([trees.values for trees in each]) / len(each)).astype(np.float32),
        float(np.mean([trees.base for trees in each])),
    )


def grow_trees(features: _Singles, answers: NDArray[np.bool_], weights: _Floats) -> Trees:
    """Fit trees by gradient boosting. Deterministic; of equal splits the first feature and lowest threshold wins.

    Parameters
    ----------
    features : ndarray of float32, shape (N, K)
    answers : ndarray of bool, shape (N,)
    weights : ndarray, shape (N,)
        Positive; their mean sets how strong `LEAF_PENALTY` and `LEAF_MASS` are.
    """
    # Bin b of a feature holds the values above edge b - 1 up to edge b; edges are values that occur.
    shares = np.arange(1, N_BINS) / N_BINS
    edges = np.quantile(features, shares, axis=0, method="inverted_cdf").T
    binned = np.stack(
        [np.searchsorted(edge, column, side="left") for edge, column in zip(edges, features.T, strict=True)]
    ).astype(np.uint8)
    share = float(np.clip(weights[answers].sum() / weights.sum(), 1e-6, 1 - 1e-6))
    base = float(np.log(share / (1 - share)))
    n_nodes = 2**DEPTH - 1
    chosen = np.zeros((N_TREES, n_nodes), dtype=np.int64)
    cuts = np.full((N_TREES, n_nodes), N_BINS, dtype=np.int64)
    values = np.zeros((N_TREES, n_nodes + 1))
    _boost(binned, answers, weights, base, chosen, cuts, values)
    padded = np.concatenate([edges, np.full((edges.shape[0], 1), np.inf, dtype=np.float32)], axis=1)
    thresholds = padded[chosen, np.minimum(cuts, N_BINS - 1)]
    return Trees(chosen.astype(np.int16), thresholds, values.astype(np.float32), base)


@compiled
def _boost(
    binned: NDArray[np.uint8],
    answers: NDArray[np.bool_],
    weights: _Floats,
    base: float,
    chosen: NDArray[np.int64],
    cuts: NDArray[np.int64],
    values: _Floats,
) -> None:
    """Grow tree after tree; fill in the feature, the last bin that goes left, and the leaf values.

    Every tree is grown on every `STRIDE`-th row, others each time (stochastic gradient boosting).
    """
    n_features, size = binned.shape
    score = np.full(size, base)
    turns, leaves = np.empty(size, dtype=np.uint16), np.empty(size, dtype=np.uint8)
    slope = np.empty((size, 2))
    node = np.empty(size, dtype=np.int64)
    # Unsigned: numba then need not ask whether an index counts from the end.
    some = np.empty(size // STRIDE + 1, dtype=np.uint64)
    # Sums of a level's nodes, by node, feature and bin; the children's are made from the parent's.
    sums = np.zeros((2**DEPTH // 2, n_features, N_BINS, 2))
    counts = np.empty(2**DEPTH, dtype=np.int64)
    for tree in range(chosen.shape[0]):
        # 1. First and second derivative of the logistic loss.
        used = 0
        for n in range(tree % STRIDE, size, STRIDE):
            p = 1.0 / (1.0 + np.exp(-score[n]))
            slope[n, 0] = weights[n] * ((1.0 if answers[n] else 0.0) - p)
            slope[n, 1] = weights[n] * p * (1.0 - p)
            node[n] = 0
            some[used] = np.uint64(n)
            used += 1
        counts[0] = used
        # 2. Level by level, the split with the largest gain G_L^2 / (H_L + a) + G_R^2 / (H_R + a) of every node.
        for level in range(DEPTH):
            first, width = 2**level - 1, 2**level
            _sum_level(binned, slope, node, some[:used], counts, level, sums)
            for k in range(width):
                chosen[tree, first + k], cuts[tree, first + k] = _best_split(sums[k])
            counts[:] = 0
            for place in range(used):
                n = some[place]
                k = node[n]
                right = binned[chosen[tree, first + k], n] > cuts[tree, first + k]
                node[n] = 2 * k + (1 if right else 0)
                counts[node[n]] += 1
        # 3. Leaf values, shrunk.
        totals = np.zeros((values.shape[1], 2))
        for place in range(used):
            n = some[place]
            totals[node[n], 0] += slope[n, 0]
            totals[node[n], 1] += slope[n, 1]
        for leaf in range(values.shape[1]):
            values[tree, leaf] = RATE * totals[leaf, 0] / (totals[leaf, 1] + LEAF_PENALTY)
        turns[:] = 0
        for k in range(chosen.shape[1]):
            column, cut = binned[chosen[tree, k]], cuts[tree, k]
            bit = np.uint16(1 << k)
            for n in range(size):
                turns[n] |= bit if column[n] > cut else np.uint16(0)
        _add_leaves(turns, leaves, values[tree], score)


@compiled
def _sum_level(
    binned: NDArray[np.uint8],
    slope: _Floats,
    node: NDArray[np.int64],
    some: NDArray[np.uint64],
    counts: NDArray[np.int64],
    level: int,
    sums: _Floats,
) -> None:
    """Sum the derivatives by node, feature and bin: of the smaller child row by row, of its sibling by subtraction."""
    n_features = binned.shape[0]
    if level == 0:
        sums[0] = 0.0
        _add_slopes(binned, slope, some, sums[0])
        return
    rows = np.empty(some.size, dtype=np.uint64)
    for parent in range(2 ** (level - 1) - 1, -1, -1):
        small = 2 * parent + (1 if counts[2 * parent + 1] < counts[2 * parent] else 0)
        large = 4 * parent + 1 - small
        used = 0
        for n in some:
            if node[n] == small:
                rows[used] = n
                used += 1
        part = np.zeros((n_features, N_BINS, 2))
        _add_slopes(binned, slope, rows[:used], part)
        # Parents go from the last to the first, so that none is overwritten before it is read.
        whole = sums[parent].copy()
        sums[small] = part
        sums[large] = whole - part


@compiled
def _add_slopes(binned: NDArray[np.uint8], slope: _Floats, rows: NDArray[np.uint64], sums: _Floats) -> None:
    """Add the derivatives of some rows to the sums by feature and bin, shape (K, N_BINS, 2)."""
    for feature in range(binned.shape[0]):
        column, own = binned[feature], sums[feature]
        for n in rows:
            b = column[n]
            own[b, 0] += slope[n, 0]
            own[b, 1] += slope[n, 1]


@compiled
def _add_leaves(turns: NDArray[np.uint16], leaves: NDArray[np.uint8], values: NDArray[Any], totals: _Floats) -> None:
    """Add the value of the leaf that every row falls into: bit k of its turns says whether node k sends it right.

    First the leaves, in whole numbers of 16 bits and without a branch: the processor does many rows in one step.
    """
    n_nodes = values.size - 1
    for n in range(totals.size):
        k = np.uint16(0)
        for _ in range(DEPTH):
            k = np.uint16(2 * k + 1 + (np.uint16(turns[n] >> k) & np.uint16(1)))
        leaves[n] = k - n_nodes
    for n in range(totals.size):
        totals[n] += values[leaves[n]]


@compiled
def _best_split(sums: _Floats) -> tuple[int, int]:
    """Feature and last bin to the left of the best split of a node; everything goes left where none gains."""
    best, feature, cut = 1e-9, 0, N_BINS
    for k in range(sums.shape[0]):
        g, h = 0.0, 0.0
        for b in range(N_BINS):
            g += sums[k, b, 0]
            h += sums[k, b, 1]
        left_g, left_h = 0.0, 0.0
        for b in range(N_BINS - 1):
            left_g += sums[k, b, 0]
            left_h += sums[k, b, 1]
            if left_h < LEAF_MASS or h - left_h < LEAF_MASS:
                continue
            gain = left_g**2 / (left_h + LEAF_PENALTY) + (g - left_g) ** 2 / (h - left_h + LEAF_PENALTY)
            gain -= g**2 / (h + LEAF_PENALTY)
            if gain > best:
                best, feature, cut = gain, k, b
    return feature, cut


@compiled
def add_trees(
    rows: _Singles, features: NDArray[np.int16], thresholds: _Singles, values: _Singles, totals: _Floats
) -> None:
    """Add the log odds of rows (N, K) to ``totals`` (N,).

    All nodes of a tree are asked for `BLOCK` rows at once, which the processor does for several rows in one step, and
    where they send a row is kept as bits: five times as fast as walking down every tree row by row.
    """
    n_nodes = features.shape[1]
    turns, leaves = np.empty(BLOCK, dtype=np.uint16), np.empty(BLOCK, dtype=np.uint8)
    for begin in range(0, rows.shape[0], BLOCK):
        block = np.ascontiguousarray(rows[begin : begin + BLOCK].T)
        size = block.shape[1]
        for tree in range(features.shape[0]):
            turns[:size] = 0
            for node in range(n_nodes):
                column, threshold, bit = block[features[tree, node]], thresholds[tree, node], np.uint16(1 << node)
                for n in range(size):
                    turns[n] |= bit if column[n] > threshold else np.uint16(0)
            _add_leaves(turns[:size], leaves, values[tree], totals[begin : begin + size])


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
