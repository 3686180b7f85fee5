"""Passes over the numbers of one small network, compiled by numba: batches, borders, pooling, ReLU, loss, Adam.

Flat float32 arrays with the batch innermost, as in `codeward.training._kernels`. Without ``fastmath``: every number is
the one that IEEE arithmetic gives for the expression, whichever instructions compute it, and NaN stays NaN.
"""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.training._adam import BETA1, BETA2, EPSILON
from codeward.training._vectors import LANES, fill, load, store, where_equal, where_larger

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]


@compiled
def pick_batch(samples: _Floats, labels: _Ints, index: _Ints, out: _Floats, own_labels: _Ints) -> None:
    """Write the samples (rows) and labels at ``index``, the batch innermost.

    A vector of the batch at a time: reads go along its 16 samples, and every line of ``out`` is written once.
    """
    batch, pixels = index.size, samples.shape[1]
    for begin in range(0, batch, LANES):
        for pixel in range(pixels):
            for place in range(begin, begin + LANES):
                out[pixel * batch + place] = samples[index[place], pixel]
    for place in range(batch):
        own_labels[place] = labels[index[place]]


@compiled
def place_inside(
    values: _Floats,
    shape: tuple[int, int, int],
    out: _Floats,
    size: tuple[int, int],
    corner: tuple[int, int],
    batch: int,
) -> None:
    """Copy images of ``shape`` (channels, height, width) into others of another ``size``, their corner to ``corner``.

    What falls outside is left out, and what is not written keeps its value: borders are set to zero once.
    """
    (channels, height, width), (high, wide), (top, left) = shape, size, corner
    begin, end = max(0, -left), min(width, wide - left)
    for channel in range(channels):
        for row in range(max(0, -top), min(height, high - top)):
            source = ((channel * height + row) * width + begin) * batch
            target = ((channel * high + row + top) * wide + begin + left) * batch
            for place in range(0, (end - begin) * batch, LANES):
                store(out, target + place, load(values, source + place))


@compiled
def pool(values: _Floats, shape: tuple[int, int, int], size: int, batch: int, out: _Floats, which: _Floats) -> None:
    """Write the maximum of every ``size`` by ``size`` window and its place in it (row by row, the first on ties)."""
    channels, height, width = shape
    at = 0
    for channel in range(channels):
        for row in range(height // size):
            for column in range(width // size):
                corner = ((channel * height + row * size) * width + column * size) * batch
                for place in range(0, batch, LANES):
                    most, best = load(values, corner + place), fill(np.float32(0))
                    for tap in range(1, size * size):
                        value = load(values, corner + (tap // size * width + tap % size) * batch + place)
                        best = where_larger(value, most, fill(np.float32(tap)), best)
                        most = where_larger(value, most, value, most)
                    store(out, at + place, most)
                    store(which, at + place, best)
                at += batch


@compiled
def pool_back(grad: _Floats, shape: tuple[int, int, int], size: int, batch: int, which: _Floats, out: _Floats) -> None:
    """Write the gradient of every window's maximum to its place, and zero to the other places of the window."""
    channels, height, width = shape
    at = 0
    for channel in range(channels):
        for row in range(height // size):
            for column in range(width // size):
                corner = ((channel * height + row * size) * width + column * size) * batch
                for tap in range(size * size):
                    start = corner + (tap // size * width + tap % size) * batch
                    for place in range(0, batch, LANES):
                        hit = where_equal(
                            load(which, at + place),
                            fill(np.float32(tap)),
                            load(grad, at + place),
                            fill(np.float32(0)),
                        )
                        store(out, start + place, hit)
                at += batch


@compiled
def rectify(values: _Floats) -> None:
    """Cut off below zero, in place; NaN stays."""
    for i in range(values.size):
        values[i] = np.float32(0) if values[i] < 0 else values[i]


@compiled
def rectify_back(grad: _Floats, out: _Floats) -> None:
    """Set the gradient to zero, in place, where the ReLU's output is not positive; where that is NaN it passes."""
    for i in range(grad.size):
        grad[i] = np.float32(0) if out[i] <= 0 else grad[i]


@compiled
def apply_mask(values: _Floats, mask: _Floats, out: _Floats) -> None:
    """Write ``values`` times ``mask``."""
    for i in range(values.size):
        out[i] = values[i] * mask[i]


@compiled(error_model="numpy")
def differentiate_loss(logits: _Floats, labels: _Ints, count: int, share: float, grad: _Floats) -> None:
    """Write the gradient of the cross-entropy ``share * sum(-log p[label])`` of the first ``count`` samples.

    d loss / d logits = share * (softmax(logits) - onehot(label)); zero for the samples that only fill the batch.
    """
    batch = labels.size
    classes = logits.size // batch
    weight = np.float32(share)
    grad[:] = 0
    for sample in range(count):
        most = logits[sample]
        for k in range(1, classes):
            most = max(most, logits[k * batch + sample])
        total = np.float32(0)
        for k in range(classes):
            value = np.exp(logits[k * batch + sample] - most)
            grad[k * batch + sample] = value
            total += value
        for k in range(classes):
            hit = np.float32(1) if labels[sample] == k else np.float32(0)
            grad[k * batch + sample] = weight * (grad[k * batch + sample] / total - hit)


@compiled(error_model="numpy")
def step_adam(
    weights: _Floats, grad: _Floats, first: _Floats, second: _Floats, count: int, rate: float, decay: float
) -> None:
    """Take step ``count`` (from 1) of Adam with L2 decay (Kingma and Ba 2015, algorithm 1)."""
    pace = np.float32(rate / (1 - BETA1**count))
    scale = np.float32(1 / np.sqrt(1 - BETA2**count))
    shrink = np.float32(decay)
    for i in range(weights.size):
        # 1. g = grad + decay * w
        slope = grad[i] + shrink * weights[i]
        # 2. m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        first[i] = np.float32(BETA1) * first[i] + np.float32(1 - BETA1) * slope
        second[i] = np.float32(BETA2) * second[i] + np.float32(1 - BETA2) * slope * slope
        # 3. w = w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        weights[i] -= pace * first[i] / (np.sqrt(second[i]) * scale + np.float32(EPSILON))
