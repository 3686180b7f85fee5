"""Layers of one small network, their gradients, loss and Adam, compiled by numba.

All arrays are flat float32, of one model only, with the batch innermost; batches are multiples of `LANES`. Convolutions
and dense layers are one operation: output ``o`` at (row, place) is

    out[o, row, place] = bias[o] + sum_k weights[o, k] * x[offsets[k] + row * stride + place]

where ``place`` runs over the columns and the batch of a row, which lie in one run of memory, and ``offsets`` says where
the k-th input of the first place lies (dense layers: one row). No patches are copied, and an input stays in the nearest
cache for all outputs that need it. Without ``fastmath``: sums are taken in an order that the source fixes (see
`_vectors`), every number is the one that IEEE arithmetic gives for the expression, and NaN stays NaN.
"""

import numpy as np
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.training._step_functions import BETA1, BETA2, EPSILON
from codeward.training._vectors import (
    LANES,
    add,
    add_sums,
    add_up,
    fill,
    load,
    multiply_add,
    spread,
    store,
    where_equal,
    where_larger,
)

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]

#: A tile of sums held in registers: 4 outputs by 4 vectors, where registers are as wide as a vector and so many are
#: there; elsewhere 4 outputs by one vector. The sums, and their bits, are the same.
_TILE = 4 * LANES
_WIDE = bool(get_host_cpu_features().get("avx512f", False))
#: Where the other three vectors of a tile begin.
B, C, D = LANES, 2 * LANES, 3 * LANES
#: Inputs summed before a tile is put down: what is read of so many inputs and their weights stays in the near caches.
_DEPTH = 96


@compiled
def multiply(
    x: _Floats,
    offsets: _Ints,
    weights: _Floats,
    places: _Ints,
    step: int,
    bias: _Floats,
    out: _Floats,
    rows: int,
    stride: int,
    run: int,
) -> None:
    """Write ``out[o, row, place]`` as above, k ascending; rows of ``run`` places, a multiple of `LANES`.

    Weight (o, k) lies at ``o * step + places[k]``. One long function: numba counts references to arrays around a call.
    """
    size, last = rows * run, bias.size - 1
    tiled = run // _TILE * _TILE if _WIDE else 0
    for row in range(rows):
        # 1. Tiles: inputs ``near`` to ``far`` are added to 4 vectors of 4 outputs, which start at the bias.
        for begin in range(0, tiled, _TILE):
            for near in range(0, offsets.size, _DEPTH):
                far = min(offsets.size, near + _DEPTH)
                for output in range(0, bias.size, 4):
                    # Outputs past the last are the last again: read before anything is written, written alike.
                    p, q, r, s = output, min(output + 1, last), min(output + 2, last), min(output + 3, last)
                    at = row * run + begin
                    at_p, at_q, at_r, at_s = p * size + at, q * size + at, r * size + at, s * size + at
                    if near == 0:
                        p0 = p1 = p2 = p3 = spread(bias, p)
                        q0 = q1 = q2 = q3 = spread(bias, q)
                        r0 = r1 = r2 = r3 = spread(bias, r)
                        s0 = s1 = s2 = s3 = spread(bias, s)
                    else:
                        p0, p1, p2, p3 = load(out, at_p), load(out, at_p + B), load(out, at_p + C), load(out, at_p + D)
                        q0, q1, q2, q3 = load(out, at_q), load(out, at_q + B), load(out, at_q + C), load(out, at_q + D)
                        r0, r1, r2, r3 = load(out, at_r), load(out, at_r + B), load(out, at_r + C), load(out, at_r + D)
                        s0, s1, s2, s3 = load(out, at_s), load(out, at_s + B), load(out, at_s + C), load(out, at_s + D)
                    p, q, r, s = p * step, q * step, r * step, s * step
                    for k in range(near, far):
                        # Unsigned: a signed index would be checked for counting from the end.
                        nth, at = places[np.uint64(k)], offsets[np.uint64(k)] + row * stride + begin
                        x0, x1, x2, x3 = load(x, at), load(x, at + B), load(x, at + C), load(x, at + D)
                        weight = spread(weights, p + nth)
                        p0, p1 = multiply_add(weight, x0, p0), multiply_add(weight, x1, p1)
                        p2, p3 = multiply_add(weight, x2, p2), multiply_add(weight, x3, p3)
                        weight = spread(weights, q + nth)
                        q0, q1 = multiply_add(weight, x0, q0), multiply_add(weight, x1, q1)
                        q2, q3 = multiply_add(weight, x2, q2), multiply_add(weight, x3, q3)
                        weight = spread(weights, r + nth)
                        r0, r1 = multiply_add(weight, x0, r0), multiply_add(weight, x1, r1)
                        r2, r3 = multiply_add(weight, x2, r2), multiply_add(weight, x3, r3)
                        weight = spread(weights, s + nth)
                        s0, s1 = multiply_add(weight, x0, s0), multiply_add(weight, x1, s1)
                        s2, s3 = multiply_add(weight, x2, s2), multiply_add(weight, x3, s3)
                    store(out, at_p, p0), store(out, at_p + B, p1), store(out, at_p + C, p2), store(out, at_p + D, p3)
                    store(out, at_q, q0), store(out, at_q + B, q1), store(out, at_q + C, q2), store(out, at_q + D, q3)
                    store(out, at_r, r0), store(out, at_r + B, r1), store(out, at_r + C, r2), store(out, at_r + D, r3)
                    store(out, at_s, s0), store(out, at_s + B, s1), store(out, at_s + C, s2), store(out, at_s + D, s3)
        # 2. What is left of a row: one vector of 4 outputs at a time, the same sums.
        for begin in range(tiled, run, LANES):
            for near in range(0, offsets.size, _DEPTH):
                far = min(offsets.size, near + _DEPTH)
                for output in range(0, bias.size, 4):
                    p, q, r, s = output, min(output + 1, last), min(output + 2, last), min(output + 3, last)
                    at = row * run + begin
                    at_p, at_q, at_r, at_s = p * size + at, q * size + at, r * size + at, s * size + at
                    if near == 0:
                        p0, q0, r0, s0 = spread(bias, p), spread(bias, q), spread(bias, r), spread(bias, s)
                    else:
                        p0, q0, r0, s0 = load(out, at_p), load(out, at_q), load(out, at_r), load(out, at_s)
                    p, q, r, s = p * step, q * step, r * step, s * step
                    for k in range(near, far):
                        nth = places[np.uint64(k)]
                        x0 = load(x, offsets[np.uint64(k)] + row * stride + begin)
                        p0 = multiply_add(spread(weights, p + nth), x0, p0)
                        q0 = multiply_add(spread(weights, q + nth), x0, q0)
                        r0 = multiply_add(spread(weights, r + nth), x0, r0)
                        s0 = multiply_add(spread(weights, s + nth), x0, s0)
                    store(out, at_p, p0), store(out, at_q, q0), store(out, at_r, r0), store(out, at_s, s0)


@compiled
def correlate(
    x: _Floats, offsets: _Ints, grad: _Floats, out: _Floats, rows: int, stride: int, run: int, lines: int, part: int
) -> None:
    """Write the weights' gradient, ``out[o, k] = sum grad[o, row, place] * x[offsets[k] + row * stride + place]``.

    The sum runs over blocks of ``lines`` rows by ``part`` places (a multiple of `LANES`), one after the other, so that
    a block's numbers stay near while all outputs meet all inputs; within a block in `LANES` sums, added up at its end.
    """
    out[:] = 0
    inputs, size = offsets.size, rows * run
    outputs = out.size // inputs
    for top in range(0, rows, lines):
        for start in range(0, run, part):
            for output in range(0, outputs, 4):
                q, r, s = min(output + 1, outputs - 1), min(output + 2, outputs - 1), min(output + 3, outputs - 1)
                for k in range(0, inputs, 4):
                    # Inputs and outputs past the last are the last again; their sums are not kept.
                    to_0, to_1 = offsets[k] + start, offsets[min(k + 1, inputs - 1)] + start
                    to_2, to_3 = offsets[min(k + 2, inputs - 1)] + start, offsets[min(k + 3, inputs - 1)] + start
                    p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = fill(np.float32(0))
                    r0 = r1 = r2 = r3 = s0 = s1 = s2 = s3 = fill(np.float32(0))
                    for row in range(top, min(rows, top + lines)):
                        at_0, at_1, at_2, at_3 = (
                            to_0 + row * stride,
                            to_1 + row * stride,
                            to_2 + row * stride,
                            to_3 + row * stride,
                        )
                        at = row * run + start
                        at_p, at_q, at_r, at_s = output * size + at, q * size + at, r * size + at, s * size + at
                        for i in range(0, min(part, run - start), LANES):
                            x0, x1, x2, x3 = load(x, at_0 + i), load(x, at_1 + i), load(x, at_2 + i), load(x, at_3 + i)
                            slope = load(grad, at_p + i)
                            p0, p1 = multiply_add(slope, x0, p0), multiply_add(slope, x1, p1)
                            p2, p3 = multiply_add(slope, x2, p2), multiply_add(slope, x3, p3)
                            slope = load(grad, at_q + i)
                            q0, q1 = multiply_add(slope, x0, q0), multiply_add(slope, x1, q1)
                            q2, q3 = multiply_add(slope, x2, q2), multiply_add(slope, x3, q3)
                            slope = load(grad, at_r + i)
                            r0, r1 = multiply_add(slope, x0, r0), multiply_add(slope, x1, r1)
                            r2, r3 = multiply_add(slope, x2, r2), multiply_add(slope, x3, r3)
                            slope = load(grad, at_s + i)
                            s0, s1 = multiply_add(slope, x0, s0), multiply_add(slope, x1, s1)
                            s2, s3 = multiply_add(slope, x2, s2), multiply_add(slope, x3, s3)
                    add_sums(out, output * inputs + k, inputs - k, p0, p1, p2, p3)
                    add_sums(out, q * inputs + k, inputs - k if q > output else 0, q0, q1, q2, q3)
                    add_sums(out, r * inputs + k, inputs - k if r > q else 0, r0, r1, r2, r3)
                    add_sums(out, s * inputs + k, inputs - k if s > r else 0, s0, s1, s2, s3)


@compiled
def sum_places(grad: _Floats, out: _Floats) -> None:
    """Write the gradient of the bias, the sum of ``grad`` over all places of an output."""
    size = grad.size // out.size
    for output in range(out.size):
        total = fill(np.float32(0))
        for place in range(output * size, output * size + size, LANES):
            total = add(total, load(grad, place))
        out[output] = add_up(total)


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
def differentiate_loss(
    logits: _Floats, labels: _Ints, count: int, share: float, smoothing: float, grad: _Floats
) -> None:
    """Write the gradient of the cross-entropy ``-share * sum(q log p)`` of the first ``count`` samples.

    With labels smoothed by s, q = (1 - s) onehot(label) + s / classes.
    d loss / d logits = share * (softmax(logits) - q); zero for the samples that only fill the batch.
    """
    batch = labels.size
    classes = logits.size // batch
    weight = np.float32(share)
    others = np.float32(smoothing / classes)
    own = np.float32(1 - smoothing) + others
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
            wanted = own if labels[sample] == k else others
            grad[k * batch + sample] = weight * (grad[k * batch + sample] / total - wanted)


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
