"""What GPU kernels (Triton) share: the normal distribution for GELU, the end of batch norm's sums, how they start."""

import os
from typing import Any

import triton
import triton.language as tl

#: Rows of what a batch norm is applied with: factor, offset, mean, one over the standard deviation.
SCALE, SHIFT, MEAN, INVERSE = (tl.constexpr(row) for row in range(4))

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
