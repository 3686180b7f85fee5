"""GPU kernels (Triton) for the first layers of networks, in which channels are few.

A convolution of few channels and a pool's four corners are one convolution of 2x2 blocks of 2x2 places: `stem_kernel`
writes such blocks, `widen_kernel` its weights.

`FirstLayer`, a 3x3 convolution, batch norm and GELU: a library's convolution pays for channels that are not there, and
what it gives is many times larger than the image. Here it is never kept: every pass computes it anew, nine products a
value. What batch norm needs of it follows from sums over the image alone. With p the 3x3 patch at a place, a one as its
last entry, w a channel's weights and G = sum p p^T:

    sum v = w G[:, one],    sum v^2 = w G w,    for v = w p

and with s the gradient before GELU and S = sum p s^T, that of batch norm's input, projected on the patches, is

    sum p (s - mean(s) - u mean(s u)) = S - mean(s) G[:, one] - mean(s u) sum p u,    for u = (v - mean) / deviation

so that one pass forward, one back and two over tiny sums are all.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from codeward.training._fast_kernels import INVERSE, MEAN, SCALE, SHIFT, close_channels, distribute, launch

Named = dict[str, Tensor]

#: Places of a tile, and tiles of a program that adds up, forward and back.
_PLACES, _GRAM_TILES, _BACK_TILES = 128, 8, 3
#: Channels, at most, of a program; of one that closes sums, and how many numbers that adds at a time.
_BLOCK, _CLOSED, _TOGETHER = 32, 4, 4096


@triton.jit
def _find_place(i, there, H: tl.constexpr, W: tl.constexpr):
    """Return image, row and column of place ``i`` in blocks of 2x2 places with a border, and whether it is inside."""
    wide: tl.constexpr = W // 2 + 1
    block = i // 4
    y, x = 2 * ((block // wide) % (H // 2 + 1)) + (i % 4) // 2 - 1, 2 * (block % wide) + i % 2 - 1
    return block // (wide * (H // 2 + 1)), y, x, there & (y >= 0) & (y < H) & (x >= 0) & (x < W)


@triton.jit
def stem_kernel(
    images, kernel, out, n, so, sc, sy, sx, P: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    """GELU of the whitening convolution to (H, W), zeros around, as (batch, H // 2 + 1, W // 2 + 1, 4 places, F)."""
    i = tl.program_id(0) * P + tl.arange(0, P)
    there = i < n
    image, y, x, inside = _find_place(i, there, H, W)
    d, o = tl.arange(0, KP), tl.arange(0, FP)
    dy, dx, c = d // (2 * C), (d // C) % 2, d % C
    at = (((image * (H + 1) + y) * (W + 1) + x) * C)[:, None] + ((dy * (W + 1) + dx) * C + c)[None, :]
    patch = tl.load(images + at, mask=inside[:, None] & (d < 4 * C)[None, :], other=0.0)
    at = (dy * sy + dx * sx + c * sc)[:, None] + (o * so)[None, :]
    weight = tl.load(kernel + at, mask=(d < 4 * C)[:, None] & (o < F)[None, :], other=0.0)
    kind = out.dtype.element_ty
    total = tl.dot(patch.to(kind), weight.to(kind), input_precision="ieee")
    share, _ = distribute(total)
    tl.store(out + i[:, None] * F + o[None, :], (total * share).to(kind), mask=there[:, None] & (o < F)[None, :])


@triton.jit
def widen_kernel(weights, out, n, C: tl.constexpr, F: tl.constexpr, P: tl.constexpr):
    """Write a 3x3 convolution at a window's corners as one of 2x2 blocks: (4, F, 2, 2, 4, C) of (F, 3, 3, C)."""
    i = tl.program_id(0) * P + tl.arange(0, P)
    there = i < n
    c, place, block, row = i % C, (i // C) % 4, (i // (4 * C)) % 4, i // (16 * C)
    corner, o = row // F, row % F
    ky, kx = 2 * (block // 2) + place // 2 - corner // 2, 2 * (block % 2) + place % 2 - corner % 2
    known = there & (ky >= 0) & (ky < 3) & (kx >= 0) & (kx < 3)
    tl.store(out + i, tl.load(weights + (o * 9 + ky * 3 + kx) * C + c, mask=known, other=0.0), mask=there)


@triton.jit
def narrow_kernel(grad, out, n, C: tl.constexpr, F: tl.constexpr, P: tl.constexpr):
    """Return the gradient by what `widen_kernel` reads, from that by what it writes."""
    i = tl.program_id(0) * P + tl.arange(0, P)
    there = i < n
    c, tap, o = i % C, (i // C) % 9, i // (9 * C)
    total = tl.zeros([P], tl.float32)
    for corner in tl.static_range(4):
        y, x = tap // 3 + corner // 2, tap % 3 + corner % 2
        at = (((corner * F + o) * 4 + (y // 2) * 2 + x // 2) * 4 + (y % 2) * 2 + x % 2) * C + c
        total += tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + i, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _load_patches(
    images, i, there, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, ONE: tl.constexpr
):
    """Return the 3x3 patches around places ``i``, zeros outside of the image; entry ONE is one, what follows zero."""
    return _load_around(images, i // (H * W), (i // W) % H, i % W, there, H, W, C, K, ONE)


@triton.jit
def _load_around(
    images, image, row, column, there,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, K)
    y = row[:, None] + (d // (3 * C) - 1)[None, :]
    x = column[:, None] + ((d // C) % 3 - 1)[None, :]
    inside = there[:, None] & (d < ONE)[None, :] & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    at = ((image[:, None] * H + y) * W + x) * C + (d % C)[None, :]
    patch = tl.load(images + at, mask=inside, other=0.0)
    return tl.where(there[:, None] & (d == ONE)[None, :], 1.0, patch).to(patch.dtype)


@triton.jit
def _load_weights(weights, o, so, sc, sy, sx, C: tl.constexpr, K: tl.constexpr, ONE: tl.constexpr):
    """Return the weights of channels ``o``, shape (K, channels), in the order of patches."""
    d = tl.arange(0, K)
    at = (d // (3 * C) * sy + (d // C) % 3 * sx + d % C * sc)[:, None] + (o * so)[None, :]
    return tl.load(weights + at, mask=(d < ONE)[:, None], other=0.0)


@triton.jit
def _row_of(table, ROW: tl.constexpr, o, F: tl.constexpr):
    return tl.load(table + ROW * F + o)


@triton.jit
def gram_kernel(
    images, partial, n, P: tl.constexpr, T: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Add up the outer products of patches, T tiles a program."""
    total = tl.zeros([K, K], tl.float32)
    for tile in range(T):
        i = (tl.program_id(0) * T + tile) * P + tl.arange(0, P)
        patch = _load_patches(images, i, i < n, H, W, C, K, ONE)
        total = tl.dot(tl.trans(patch), patch, total, input_precision="ieee")
    d = tl.arange(0, K)
    tl.store(partial + (tl.program_id(0) * K + d)[:, None] * K + d[None, :], total)


@triton.jit
def _add_up(partial, a, b, STRIDE: tl.constexpr, PARTS: tl.constexpr, G: tl.constexpr, F: tl.constexpr):
    """Sum PARTS matrices at rows ``a`` and columns ``b``."""
    at = a[:, None] * F + b[None, :]
    total = tl.zeros([G, a.shape[0], b.shape[0]], tl.float32)
    for start in range(0, PARTS, G):
        p = start + tl.arange(0, G)
        keep = (p < PARTS)[:, None, None]
        total += tl.load(partial + (p * STRIDE)[:, None, None] + at[None, :, :], mask=keep, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def close_gram_kernel(
    partial, gram, weights, so, sc, sy, sx, weight, bias, running_mean, running_var, table, count, eps, momentum,
    PARTS: tl.constexpr, G: tl.constexpr, B: tl.constexpr, F: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """From sums over patches to what batch norm is applied with; every program writes the same sums."""
    d, o = tl.arange(0, K), tl.program_id(0) * B + tl.arange(0, B)
    total = _add_up(partial, d, d, K * K, PARTS, G, K)
    tl.store(gram + d[:, None] * K + d[None, :], total)
    w = _load_weights(weights, o, so, sc, sy, sx, C, K, ONE).to(tl.float32)
    first = tl.sum(w * tl.sum(tl.where((d == ONE)[None, :], total, 0.0), 1)[:, None], 0)
    second = tl.sum(w * tl.sum(total[:, :, None] * w[None, :, :], 1), 0)
    close_channels(first, second, weight, bias, running_mean, running_var, table, count, eps, momentum, o, F)


@triton.jit
def first_apply_kernel(
    images, weights, so, sc, sy, sx, table, out, n, P: tl.constexpr, B: tl.constexpr, F: tl.constexpr,
    BLOCKS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """GELU of batch norm of the convolution; in BLOCKS of 2x2 places and with a border of zeros, if asked."""
    i, o = tl.program_id(0) * P + tl.arange(0, P), tl.program_id(1) * B + tl.arange(0, B)
    there = i < n
    inside = there
    if BLOCKS:
        image, row, column, inside = _find_place(i, there, H, W)
        patch = _load_around(images, image, row, column, inside, H, W, C, K, ONE)
    else:
        patch = _load_patches(images, i, there, H, W, C, K, ONE)
    w = _load_weights(weights, o, so, sc, sy, sx, C, K, ONE)
    value = tl.dot(patch, w.to(patch.dtype), input_precision="ieee")
    z = value * _row_of(table, SCALE, o, F)[None, :] + _row_of(table, SHIFT, o, F)[None, :]
    share, _ = distribute(z)
    result = tl.where(inside[:, None], z * share, 0.0).to(out.dtype.element_ty)
    tl.store(out + i[:, None] * F + o[None, :], result, mask=there[:, None])


@triton.jit
def first_back_kernel(
    images, weights, so, sc, sy, sx, table, grad, partial, n,
    P: tl.constexpr, T: tl.constexpr, B: tl.constexpr, F: tl.constexpr, BLOCKS: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Add up the outer products of patches and gradients before GELU, T tiles a program."""
    o = tl.program_id(1) * B + tl.arange(0, B)
    w = _load_weights(weights, o, so, sc, sy, sx, C, K, ONE)
    scale, shift = _row_of(table, SCALE, o, F)[None, :], _row_of(table, SHIFT, o, F)[None, :]
    total = tl.zeros([K, B], tl.float32)
    for tile in range(T):
        i = (tl.program_id(0) * T + tile) * P + tl.arange(0, P)
        there = i < n
        patch = _load_patches(images, i, there, H, W, C, K, ONE)
        z = tl.dot(patch, w.to(patch.dtype), input_precision="ieee") * scale + shift
        share, density = distribute(z)
        at = i
        if BLOCKS:
            y, x = (i // W) % H + 1, i % W + 1
            at = (((i // (H * W)) * (H // 2 + 1) + y // 2) * (W // 2 + 1) + x // 2) * 4 + (y % 2) * 2 + x % 2
        incoming = tl.load(grad + at[:, None] * F + o[None, :], mask=there[:, None], other=0.0).to(tl.float32)
        slope = incoming * (share + z * density)
        total = tl.dot(tl.trans(patch), slope.to(patch.dtype), total, input_precision="ieee")
    d = tl.arange(0, K)
    tl.store(partial + (tl.program_id(0) * K + d)[:, None] * F + o[None, :], total)


@triton.jit
def close_first_kernel(
    partial, gram, weights, so, sc, sy, sx, table, grad_weights, grad_weight, grad_bias, count,
    PARTS: tl.constexpr, G: tl.constexpr, B: tl.constexpr, F: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """From those sums to the gradients of batch norm's weights and of the convolution's."""
    d, o = tl.arange(0, K), tl.program_id(0) * B + tl.arange(0, B)
    sums = _add_up(partial, d, o, K * F, PARTS, G, F)
    total = tl.load(gram + d[:, None] * K + d[None, :])
    ones = tl.sum(tl.where((d == ONE)[None, :], total, 0.0), 1)[:, None]
    w = _load_weights(weights, o, so, sc, sy, sx, C, K, ONE).to(tl.float32)
    mean, inverse = _row_of(table, MEAN, o, F), _row_of(table, INVERSE, o, F)
    # sum s, sum s u, and sum p u.
    slope = tl.sum(tl.where((d == ONE)[:, None], sums, 0.0), 0)
    slope_normal = inverse * (tl.sum(w * sums, 0) - mean * slope)
    normal = (tl.sum(total[:, :, None] * w[None, :, :], 1) - ones * mean[None, :]) * inverse[None, :]
    tl.store(grad_bias + o, slope)
    tl.store(grad_weight + o, slope_normal)
    centred = sums - ones * (slope / count)[None, :] - normal * (slope_normal / count)[None, :]
    result = centred * _row_of(table, SCALE, o, F)[None, :]
    at = (d // (3 * C) * sy + (d // C) % 3 * sx + d % C * sc)[:, None] + (o * so)[None, :]
    tl.store(grad_weights + at, result.to(grad_weights.dtype.element_ty), mask=(d < ONE)[:, None])


class FirstLayer:
    """Forward and backward pass of a first layer; see the module.

    Parameters
    ----------
    convolution, norm : str
        Names of the modules.
    eps, momentum : float
        Of batch norm.
    shape : tuple of int
        Batch, height, width and channels of the images.
    in_blocks : bool
        Give 2x2 blocks of places as channels, with a border of zeros on all sides: (batch, height / 2 + 1,
        width / 2 + 1, 4 times the channels).
    """

    def __init__(
        self,
        convolution: str,
        norm: str,
        eps: float,
        momentum: float,
        shape: tuple[int, int, int, int],
        in_blocks: bool,
    ) -> None:
        self.convolution, self.norm, self.in_blocks = convolution, norm, in_blocks
        self.eps, self.momentum = eps, momentum
        self.shape = shape
        channels = shape[3]
        self.n = shape[0] * shape[1] * shape[2]
        self.sizes: dict[str, Any] = {"C": channels, "ONE": 9 * channels}
        self.sizes["K"] = max(16, triton.next_power_of_2(9 * channels + 1))
        self.image: dict[str, Any] = {"H": shape[1], "W": shape[2], "P": _PLACES, **self.sizes}

    def forward(self, images: Tensor, parameters: Named, buffers: Named) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return what the next layer reads, and what `back` needs; batch norm's running values move on."""
        weights = parameters[f"{self.convolution}.weight"]
        outputs, k, device = len(weights), self.sizes["K"], images.device
        # 1. Sums over patches, and what batch norm is applied with.
        parts = triton.cdiv(self.n, _PLACES * _GRAM_TILES)
        partial, gram = torch.empty(parts, k, k, device=device), torch.empty(k, k, device=device)
        launch(gram_kernel, (parts,), images, partial, self.n, T=_GRAM_TILES, **self.image)
        table = torch.empty(4, outputs, device=device)
        norm = [parameters[f"{self.norm}.{name}"] for name in ("weight", "bias")]
        norm += [buffers[f"{self.norm}.{name}"] for name in ("running_mean", "running_var")]
        given = partial, gram, weights, *weights.stride(), *norm, table, float(self.n), self.eps, self.momentum
        launch(close_gram_kernel, (outputs // _CLOSED,), *given, **self._close(parts, k, outputs))
        # 2. What is read next.
        batch, high, wide = self.shape[:3]
        size = (high // 2 + 1, wide // 2 + 1, 4 * outputs) if self.in_blocks else (high, wide, outputs)
        out = torch.empty(batch, *size, dtype=images.dtype, device=device)
        blocks, cut = self._cut(outputs)
        n = out.numel() // outputs
        read = images, weights, *weights.stride(), table, out, n
        launch(first_apply_kernel, (triton.cdiv(n, _PLACES), blocks), *read, **cut, **self.image)
        return out, (images, gram, table)

    def back(self, grad: Tensor, saved: tuple[Tensor, ...], parameters: Named, grads: Named) -> None:
        """Note the gradients of the layer's weights, from that of what `forward` returned."""
        images, gram, table = saved
        weights = parameters[f"{self.convolution}.weight"]
        outputs, k, device = len(weights), self.sizes["K"], images.device
        parts = triton.cdiv(self.n, _PLACES * _BACK_TILES)
        partial = torch.empty(parts, k, outputs, device=device)
        blocks, cut = self._cut(outputs)
        read = images, weights, *weights.stride(), table, grad, partial, self.n
        launch(first_back_kernel, (parts, blocks), *read, T=_BACK_TILES, **cut, **self.image)
        by_weights, by_norm = torch.empty_like(weights), torch.empty(2, outputs, device=device)
        grads[f"{self.convolution}.weight"] = by_weights
        grads[f"{self.norm}.weight"], grads[f"{self.norm}.bias"] = by_norm[0], by_norm[1]
        given = partial, gram, weights, *weights.stride(), table, by_weights, by_norm[0], by_norm[1], float(self.n)
        launch(close_first_kernel, (outputs // _CLOSED,), *given, **self._close(parts, _CLOSED, outputs))

    def _cut(self, outputs: int) -> tuple[int, dict[str, Any]]:
        """Return into how many blocks channels are cut, and what a program needs of it."""
        block = min(_BLOCK, outputs & -outputs)  # the largest power of two that divides them
        return outputs // block, {"B": block, "F": outputs, "BLOCKS": self.in_blocks}

    def _close(self, parts: int, columns: int, outputs: int) -> dict[str, Any]:
        """Return what closing sums of so many parts, a row of patches by so many columns each, needs."""
        together = max(1, _TOGETHER // (self.sizes["K"] * columns))
        return {"PARTS": parts, "G": together, "B": _CLOSED, "F": outputs, **self.sizes}
