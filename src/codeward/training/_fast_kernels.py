"""GPU kernels (Triton) for what stands between the convolutions of the modern networks, forward and backward.

Images lie as (batch, height, width, channels). A program works on P places and B channels; sizes are known to the
compiler. Sums are float32, their order is fixed by the shapes alone, and nothing is atomic: a model's bytes do not
depend on what runs beside it. A compiler's kernels move more bytes and spend most instructions on erf.
"""

import os
from typing import Any

import triton
import triton.language as tl

#: Rows of what a batch norm is applied with: factor, offset, mean, one over the standard deviation.
SCALE, SHIFT, MEAN, INVERSE = (tl.constexpr(row) for row in range(4))

#: What batch norm reads: a convolution, a pool of four places or groups of channels, or what a pool of four places or
#: groups reads after GELU; and a first layer.
PLAIN, PLACES, GROUPS, AFTER, CORNERS, FIRST = (tl.constexpr(kind) for kind in range(6))


#: Triton's interpreter, in which tests run these kernels on a CPU, knows no assembler.
_ASSEMBLES = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")


@triton.jit
def _exp2(x):
    """Return 2 to the power of ``x``; below 1e-38 it is 0, which saves four instructions."""
    if _ASSEMBLES:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.exp2(x)


@triton.jit
def _invert(x):
    """1 / x for x from 1 on."""
    if _ASSEMBLES:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return 1.0 / x


@triton.jit
def distribute(z):
    """Return the normal distribution function and density, exact to 1.5e-7 (Abramowitz and Stegun 7.1.26).

    GELU is z times the first, its slope the first plus z times the second.
    """
    power = _exp2(-0.7213475204444817 * z * z)
    t = _invert(1.0 + 0.23164190 * tl.abs(z))
    sums = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail = power * sums
    return tl.where(z > 0, 1.0 - tail, tail), 0.3989422804014327 * power


@triton.jit
def close_channels(
    first, second, weight, bias, running_mean, running_var, table, count, eps, momentum, c, C: tl.constexpr
):
    """From sums of values and squares of channels ``c`` to what batch norm is applied with; move its running values."""
    mean = first / count
    variance = tl.maximum(second / count - mean * mean, 0.0)
    inverse = 1.0 / tl.sqrt(variance + eps)
    scale = tl.load(weight + c) * inverse
    tl.store(table + SCALE * C + c, scale)
    tl.store(table + SHIFT * C + c, tl.load(bias + c) - mean * scale)
    tl.store(table + MEAN * C + c, mean)
    tl.store(table + INVERSE * C + c, inverse)
    before = tl.load(running_mean + c)
    tl.store(running_mean + c, before + momentum * (mean - before))
    before = tl.load(running_var + c)
    tl.store(running_var + c, before + momentum * (variance * (count / (count - 1.0)) - before))


def launch(kernel: Any, programs: tuple[int, ...], *given: Any, **named: Any) -> None:
    """Start a kernel, with fused multiply-adds in so many words: releases of Triton differ in their default."""
    kernel[programs](*given, **named, enable_fp_fusion=True)


@triton.jit
def _rows(n, P: tl.constexpr):
    i = tl.program_id(0) * P + tl.arange(0, P)
    return i, i < n


@triton.jit
def _rows_of(tile, n, P: tl.constexpr, T: tl.constexpr):
    """Rows of one of the T tiles of a program that adds up."""
    i = (tl.program_id(0) * T + tile) * P + tl.arange(0, P)
    return i, i < n


@triton.jit
def _channels(B: tl.constexpr):
    return tl.program_id(1) * B + tl.arange(0, B)


@triton.jit
def _window(i, corner, KIND: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    """Where one of the four values of window ``i`` lies; windows are those of a pooled (H, W)."""
    if KIND == GROUPS or KIND == CORNERS:  # noqa: SIM109 (Triton knows no `in`)
        return (i * 4 + corner) * C
    top = (i // W) * 2 + corner // 2
    return (top * 2 * W + (i % W) * 2 + corner % 2) * C


@triton.jit
def _keep_sums(partial, first, second, c, C: tl.constexpr):
    """Write two sums over rows, a part of its own for every program."""
    here = partial + tl.program_id(0) * 2 * C + c
    tl.store(here, tl.sum(first, 0))
    tl.store(here + C, tl.sum(second, 0))


@triton.jit
def pool_kernel(
    values, pooled, which, partial, n,
    KIND: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Largest of each window, the first of equals, which it is, and sums for batch norm."""
    i, there = _rows(n, P)
    c, keep = _channels(B)[None, :], there[:, None]
    best = tl.load(values + _window(i, 0, KIND, H, W, C)[:, None] + c, mask=keep, other=0.0)
    chosen = tl.zeros([P, B], tl.int8)
    for corner in tl.static_range(1, 4):
        other = tl.load(values + _window(i, corner, KIND, H, W, C)[:, None] + c, mask=keep, other=0.0)
        larger = other > best
        best = tl.where(larger, other, best)
        chosen = tl.where(larger, corner, chosen).to(tl.int8)
    tl.store(pooled + i[:, None] * C + c, best, mask=keep)
    tl.store(which + i[:, None] * C + c, chosen, mask=keep)
    summed = best.to(tl.float32)
    _keep_sums(partial, summed, summed * summed, _channels(B), C)


@triton.jit
def sum_kernel(values, partial, n, C: tl.constexpr, B: tl.constexpr, P: tl.constexpr, T: tl.constexpr):
    """Add up rows of C values for batch norm."""
    c = _channels(B)
    first, second = tl.zeros([P, B], tl.float32), tl.zeros([P, B], tl.float32)
    for tile in range(T):
        i, there = _rows_of(tile, n, P, T)
        value = tl.load(values + i[:, None] * C + c[None, :], mask=there[:, None], other=0.0).to(tl.float32)
        first += value
        second += value * value
    _keep_sums(partial, first, second, c, C)


@triton.jit
def _add_parts(partial, c, PARTS: tl.constexpr, C: tl.constexpr, B: tl.constexpr, G: tl.constexpr):
    first, second = tl.zeros([G, B], tl.float32), tl.zeros([G, B], tl.float32)
    for start in range(0, PARTS, G):
        p = start + tl.arange(0, G)
        at, keep = p[:, None] * 2 * C + c[None, :], (p < PARTS)[:, None]
        first += tl.load(partial + at, mask=keep, other=0.0)
        second += tl.load(partial + at + C, mask=keep, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def close_norm_kernel(
    partial, weight, bias, running_mean, running_var, table, count, eps, momentum,
    PARTS: tl.constexpr, C: tl.constexpr, B: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """From sums to what batch norm is applied with, and its running mean and variance."""
    c = tl.program_id(0) * B + tl.arange(0, B)
    first, second = _add_parts(partial, c, PARTS, C, B, G)
    close_channels(first, second, weight, bias, running_mean, running_var, table, count, eps, momentum, c, C)


@triton.jit
def _row(table, ROW: tl.constexpr, c, C: tl.constexpr):
    return tl.load(table + ROW * C + c)[None, :]


@triton.jit
def apply_kernel(
    values, table, out, n, B: tl.constexpr, P: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, TOP: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """GELU of batch norm, written with a border of zeros: TOP above and to the left, to (OH, OW) in all."""
    i, there = _rows(n, P)
    c = _channels(B)
    y, x = (i // OW) % OH - TOP, i % OW - TOP
    inside = there & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    at = ((i // (OH * OW) * H + y) * W + x) * C
    value = tl.load(values + at[:, None] + c[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    z = value * _row(table, SCALE, c, C) + _row(table, SHIFT, c, C)
    share, _ = distribute(z)
    result = tl.where(inside[:, None], z * share, 0.0).to(out.dtype.element_ty)
    tl.store(out + i[:, None] * C + c[None, :], result, mask=there[:, None])


@triton.jit
def apply_pool_kernel(
    values, table, out, which, kept, n, KIND: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Largest of GELU of batch norm in each window of (2 H, 2 W), the first of equals; which, and of what value."""
    i, there = _rows(n, P)
    c, keep = _channels(B), there[:, None]
    best = tl.full([P, B], float("-inf"), tl.float32)
    before = tl.zeros([P, B], tl.float32)
    chosen = tl.zeros([P, B], tl.int8)
    for corner in tl.static_range(4):
        value = _load_window(values, i, corner, c, keep, KIND, H, W, C)
        z = value * _row(table, SCALE, c, C) + _row(table, SHIFT, c, C)
        share, _ = distribute(z)
        larger = z * share > best
        best, before = tl.where(larger, z * share, best), tl.where(larger, value, before)
        chosen = tl.where(larger, corner, chosen).to(tl.int8)
    at = i[:, None] * C + c[None, :]
    tl.store(out + at, best.to(out.dtype.element_ty), mask=keep)
    tl.store(which + at, chosen, mask=keep)
    tl.store(kept + at, before.to(kept.dtype.element_ty), mask=keep)


@triton.jit
def _normalise(value, table, c, C: tl.constexpr):
    return (value - _row(table, MEAN, c, C)) * _row(table, INVERSE, c, C)


@triton.jit
def _load_window(values, i, corner, c, keep, KIND: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    at = _window(i, corner, KIND, H, W, C)[:, None] + c[None, :]
    return tl.load(values + at, mask=keep, other=0.0).to(tl.float32)


@triton.jit
def _slope(
    kept, grad, table, i, there, c,
    H: tl.constexpr, W: tl.constexpr, TOP: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Gradient before GELU and the normalised value at rows ``i`` of (H, W); ``grad`` has the border of (OH, OW)."""
    keep = there[:, None]
    at = ((i // (H * W) * OH + (i // W) % H + TOP) * OW + i % W + TOP) * C
    value = tl.load(kept + i[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
    incoming = tl.load(grad + at[:, None] + c[None, :], mask=keep, other=0.0).to(tl.float32)
    z = value * _row(table, SCALE, c, C) + _row(table, SHIFT, c, C)
    share, density = distribute(z)
    return incoming * (share + z * density), _normalise(value, table, c, C)


@triton.jit
def slope_kernel(
    kept, grad, table, partial, n, B: tl.constexpr, P: tl.constexpr, T: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, TOP: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Add up what the gradient of batch norm needs: that before GELU, and that times the normalised value."""
    c = _channels(B)
    first, second = tl.zeros([P, B], tl.float32), tl.zeros([P, B], tl.float32)
    for tile in range(T):
        i, there = _rows_of(tile, n, P, T)
        slope, normal = _slope(kept, grad, table, i, there, c, H, W, TOP, OH, OW, C)
        first += slope
        second += slope * normal
    _keep_sums(partial, first, second, c, C)


@triton.jit
def close_slope_kernel(
    partial, grad_weight, grad_bias, means, count,
    PARTS: tl.constexpr, C: tl.constexpr, B: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """From those sums to the gradients of batch norm's weights, and their means."""
    c = tl.program_id(0) * B + tl.arange(0, B)
    first, second = _add_parts(partial, c, PARTS, C, B, G)
    tl.store(grad_bias + c, first)
    tl.store(grad_weight + c, second)
    tl.store(means + c, first / count)
    tl.store(means + C + c, second / count)


@triton.jit
def _centre(slope, normal, table, means, c, C: tl.constexpr):
    """Gradient of batch norm's input."""
    return (slope - _row(means, 0, c, C) - normal * _row(means, 1, c, C)) * _row(table, SCALE, c, C)


@triton.jit
def back_kernel(
    values, kept, grad, table, means, which, out, n, KIND: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, TOP: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Gradient of what batch norm, or the pool before it, read; with a pool, of all four values of each window."""
    i, there = _rows(n, P)
    c = _channels(B)
    slope, normal = _slope(kept, grad, table, i, there, c, H, W, TOP, OH, OW, C)
    at, keep = i[:, None] * C + c[None, :], there[:, None]
    result = _centre(slope, normal, table, means, c, C).to(out.dtype.element_ty)
    if KIND == PLAIN:
        tl.store(out + at, result, mask=keep)
    else:
        chosen = tl.load(which + at, mask=keep, other=0)
        for corner in tl.static_range(4):
            spread = tl.where(chosen == corner, result, 0.0)
            if KIND == AFTER or KIND == CORNERS:  # noqa: SIM109
                normal = _normalise(_load_window(values, i, corner, c, keep, KIND, H, W, C), table, c, C)
                spread = _centre(tl.where(chosen == corner, slope, 0.0), normal, table, means, c, C)
            place = out + _window(i, corner, KIND, H, W, C)[:, None] + c[None, :]
            tl.store(place, spread.to(out.dtype.element_ty), mask=keep)


@triton.jit
def head_kernel(
    values, table, weights, bias, labels, share, best_out, grad_logits, grad_best, which, partial, batch, smoothing,
    BIASED: tl.constexpr, D: tl.constexpr,
    S: tl.constexpr, SP: tl.constexpr, C: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """One image: GELU of batch norm, largest of S places, linear layer over D, loss, and back to before GELU."""
    image = tl.program_id(0)
    p, c, k = tl.arange(0, SP), tl.arange(0, C), tl.arange(0, KP)
    keep, classes = (p < S)[:, None], k < K
    value = tl.load(values + (image * S + p)[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
    z = value * _row(table, SCALE, c, C) + _row(table, SHIFT, c, C)
    part, _ = distribute(z)
    rounded = (z * part).to(best_out.dtype.element_ty).to(tl.float32)
    best, chosen = tl.max(tl.where(keep, rounded, float("-inf")), 0, return_indices=True)
    # 1. Loss and its gradient by the logits.
    weight = tl.load(weights + k[:, None] * C + c[None, :], mask=classes[:, None], other=0.0).to(tl.float32)
    logits = tl.where(classes, tl.sum(weight * best[None, :], 1) / D, float("-inf"))
    if BIASED:
        logits += tl.load(bias + k, mask=classes, other=0.0)
    powers = tl.exp(logits - tl.max(logits, 0))
    own, first = tl.load(share), tl.load(labels + image)
    second = tl.load(labels + (image + batch - 1) % batch)
    wanted = own * (k == first).to(tl.float32) + (1.0 - own) * (k == second).to(tl.float32)
    wanted = (1.0 - smoothing) * wanted + smoothing / K
    slope = tl.where(classes, (powers / tl.sum(powers, 0) - wanted) / (D * batch), 0.0)
    # 2. Gradient by the largest, before GELU, and what it adds to the sums of batch norm.
    back = tl.sum(weight * slope[:, None], 0)
    at = tl.sum(tl.where(p[:, None] == chosen[None, :], value, 0.0), 0)
    z_at = at * tl.load(table + SCALE * C + c) + tl.load(table + SHIFT * C + c)
    part_at, density_at = distribute(z_at)
    incoming = back * (part_at + z_at * density_at)
    normal = (at - tl.load(table + MEAN * C + c)) * tl.load(table + INVERSE * C + c)
    tl.store(best_out + image * C + c, best.to(best_out.dtype.element_ty))
    tl.store(grad_logits + image * KP + k, slope)
    tl.store(grad_best + image * C + c, incoming)
    tl.store(which + image * C + c, chosen.to(tl.int8))
    tl.store(partial + image * 2 * C + c, incoming)
    tl.store(partial + image * 2 * C + C + c, incoming * normal)


@triton.jit
def head_grad_kernel(
    best, grad_logits, out, grad_bias, BIASED: tl.constexpr, D: tl.constexpr,
    BATCH: tl.constexpr, C: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, B: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Gradient of the linear layer's weights, and of its bias, G images at a time."""
    c, k = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, KP)
    total, summed = tl.zeros([KP, B], tl.float32), tl.zeros([KP], tl.float32)
    for start in range(0, BATCH, G):
        i = start + tl.arange(0, G)
        keep = (i < BATCH)[:, None]
        value = tl.load(best + i[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
        slope = tl.load(grad_logits + i[:, None] * KP + k[None, :], mask=keep, other=0.0)
        total = tl.dot(tl.trans(slope), value, total, input_precision="ieee")
        summed += tl.sum(slope, 0)
    tl.store(out + k[:, None] * C + c[None, :], total.to(out.dtype.element_ty), mask=(k < K)[:, None])
    if BIASED:  # every program writes the same
        tl.store(grad_bias + k, D * summed, mask=k < K)


@triton.jit
def spread_kernel(
    values, table, means, grad_best, which, out, n,
    S: tl.constexpr, C: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Gradient of the last batch norm's input, from `head_kernel`'s by the largest of S places."""
    i, there = _rows(n, P)
    c, keep = _channels(B), there[:, None]
    value = tl.load(values + i[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
    normal = _normalise(value, table, c, C)
    at = (i // S)[:, None] * C + c[None, :]
    chosen = tl.load(which + at, mask=keep, other=-1)
    slope = tl.where(chosen == (i % S)[:, None], tl.load(grad_best + at, mask=keep, other=0.0), 0.0)
    result = _centre(slope, normal, table, means, c, C).to(out.dtype.element_ty)
    tl.store(out + i[:, None] * C + c[None, :], result, mask=keep)
