"""Warped and normalised images on a GPU in one kernel: the function `warp` of `_device_batches`, up to rounding.

A compiler makes a dozen small kernels of it: hashes, products of 5 x 5 matrices and four gathers apart.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from codeward.training import _device_batches as batches
from codeward.training._fast_kernels import launch

#: Pixels, at most, of an image: all are in the registers of one program.
LARGEST = 64 * 64

_STEP = tl.constexpr(batches.KEY_STEP)
_KNOTS = tl.constexpr(batches.KNOTS)
_TURN, _SCALE, _SHEAR, _MOVE, _BEND = (tl.constexpr(most) for most in batches.WARPS)


@triton.jit
def _hash(v):
    """As `hash_int32`, on unsigned numbers."""
    v = (v ^ (v >> 16)) * 0x7FEB352D
    v = (v ^ (v >> 15)) * 0x846CA68B
    return v ^ (v >> 16)


@triton.jit
def _draw(key, LAYER: tl.constexpr, place):
    """As `draw_uniform`, at one place."""
    bits = _hash(place.to(tl.uint32) ^ _hash((key + LAYER).to(tl.uint32, bitcast=True)))
    return (bits & 0xFFFFFF).to(tl.float32) / 16777216.0


@triton.jit
def _bend(key, image, n, AXIS: tl.constexpr, rows, columns):
    """Return the bending field along an axis: random knots spread by ``rows`` (height, 16), ``columns`` (16, width)."""
    a, b = tl.arange(0, 16), tl.arange(0, 16)
    place = (image * 2 + AXIS) * (_KNOTS * _KNOTS) + a[:, None] * _KNOTS + b[None, :]
    drawn = tl.zeros([16, 16], tl.float32) - 1.5
    for layer in tl.static_range(3):
        drawn += _draw(key, 5, place + layer * n * 2 * _KNOTS * _KNOTS)
    # Of the 16 x 16 numbers those beyond the knots meet zeros in rows and columns.
    line = tl.dot(drawn * (2.0 * _BEND), columns, input_precision="ieee")
    return tl.dot(rows, line, input_precision="ieee")


@triton.jit
def _pixel(images, image, y, x, c, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
    return tl.load(images + ((image * H + y) * W + x) * C + c, mask=inside, other=0).to(tl.float32) / 255.0


@triton.jit
def warp_kernel(
    images, seed, position, rows, columns, mean, scale, out, n,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    """Warp one image; ``mean`` and ``scale`` have N entries, one or one a channel."""
    key = (tl.load(seed) + tl.load(position) * _STEP).to(tl.int32)
    image, k = tl.program_id(0), tl.arange(0, 16)
    y, x = tl.arange(0, HP)[:, None], tl.arange(0, WP)[None, :]
    keep = (y < H) & (x < W)
    # 1. Where the pixel at (x, y), both in -1..1, comes from.
    turn, grown = (_draw(key, 4, image * 5) * 2 - 1) * _TURN, 1 + (_draw(key, 4, image * 5 + 1) * 2 - 1) * _SCALE
    across, along = tl.cos(turn) / grown, tl.sin(turn) / grown
    sideways = (_draw(key, 4, image * 5 + 2) * 2 - 1) * _SHEAR - along
    right, down = (_draw(key, 4, image * 5 + 3) * 2 - 1) * _MOVE, (_draw(key, 4, image * 5 + 4) * 2 - 1) * _MOVE
    down_rows = tl.load(rows + y * _KNOTS + k[None, :], mask=(y < H) & (k < _KNOTS)[None, :], other=0.0)
    along_columns = tl.load(columns + x * _KNOTS + k[:, None], mask=(x < W) & (k < _KNOTS)[:, None], other=0.0)
    u, v = (x * 2 + 1).to(tl.float32) / W - 1, (y * 2 + 1).to(tl.float32) / H - 1
    from_x = across * u + sideways * v + right + _bend(key, image, n, 0, down_rows, along_columns)
    from_y = along * u + across * v + down + _bend(key, image, n, 1, down_rows, along_columns)
    # 2. The four pixels around it, zeros outside.
    at_x, at_y = ((from_x + 1) * W - 1) / 2, ((from_y + 1) * H - 1) / 2
    left, top = tl.floor(at_x), tl.floor(at_y)
    part_x, part_y = at_x - left, at_y - top
    # A warp reaches less than an image's own size beyond its border: the numbers fit.
    x0, y0 = left.to(tl.int32), top.to(tl.int32)
    for c in tl.static_range(C):
        upper = _pixel(images, image, y0, x0, c, H, W, C) * (1 - part_x)
        upper += _pixel(images, image, y0, x0 + 1, c, H, W, C) * part_x
        lower = _pixel(images, image, y0 + 1, x0, c, H, W, C) * (1 - part_x)
        lower += _pixel(images, image, y0 + 1, x0 + 1, c, H, W, C) * part_x
        value = upper * (1 - part_y) + lower * part_y
        value = (value - tl.load(mean + c % N)) * tl.load(scale + c % N)
        tl.store(out + ((image * H + y) * W + x) * C + c, value.to(out.dtype.element_ty), mask=keep)


class WarpedBatches:
    """Makes warped batches of one shape.

    Parameters
    ----------
    samples : DeviceSamples
        Gives height, width and normalisation.
    kind : torch.dtype
        Of the batches.
    """

    def __init__(self, samples: batches.DeviceSamples, kind: torch.dtype) -> None:
        self.kind = kind
        self.rows, self.columns = (
            batches.spread_knots(size, samples.device).contiguous() for size in (samples.height, samples.width)
        )
        self.mean, self.scale = samples.mean, samples.scale

    def __call__(self, images: Tensor, seed: Tensor, position: Tensor) -> Tensor:
        """Return images (batch, height, width, channels) of bytes warped and normalised, by the key of the step.

        Parameters
        ----------
        seed, position : Tensor of int64, shape (1,)
        """
        n, height, width, channels = images.shape
        out = torch.empty(images.shape, dtype=self.kind, device=images.device)
        sizes: dict[str, Any] = {"H": height, "W": width, "C": channels, "N": len(self.mean)}
        sizes |= {"HP": max(16, triton.next_power_of_2(height)), "WP": max(16, triton.next_power_of_2(width))}
        given = images, seed, position, self.rows, self.columns, self.mean, self.scale, out, n
        launch(warp_kernel, (n,), *given, **sizes)
        return out
