"""Random changes of a batch on its device: contrast, blanked squares, warps, mixed images; all from a model's own key.

Random numbers are hashes of (key, layer, place), not draws from the device's generator, which all that runs there
shares: what a model sees depends on its own seed and step only, and is the same on a CPU and a GPU.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from codeward.training._training_settings import TrainingSettings

#: Odd constant by which a model's key moves every step (2**32 over the golden ratio, as a signed number).
KEY_STEP = 0x9E3779B9 - 2**32

#: Knots of the bending field along an axis, and the largest turn, scale, shear, shift and bend of a warp.
_KNOTS = 5
_TURN, _SCALE, _SHEAR, _MOVE, _BEND = 0.25, 0.15, 0.25, 0.12, 0.06


def hash_int32(values: Tensor) -> Tensor:
    """Mix the bits of int32 values (the "lowbias32" hash of C. Wellons; arithmetic modulo 2**32)."""
    values = (values ^ ((values >> 16) & 0xFFFF)) * 0x7FEB352D
    values = (values ^ ((values >> 15) & 0x1FFFF)) * (0x846CA68B - 2**32)
    return values ^ ((values >> 16) & 0xFFFF)


def draw_uniform(key: Tensor, layer: int, shape: tuple[int, ...]) -> Tensor:
    """Return numbers in [0, 1) of a shape: a function of the key (int32, no axes), the layer and the place."""
    place = torch.arange(math.prod(shape), dtype=torch.int32, device=key.device).view(shape)
    return (hash_int32(place ^ hash_int32(key + layer)) & 0xFFFFFF).float() / 2**24


def disturb(images: Tensor, key: Tensor, settings: TrainingSettings) -> Tensor:
    """Change contrast and brightness, and blank a square, of normalised images (batch, height, width, channels)."""
    batch, height, width, channels = images.shape
    if settings.jitter:
        change = (draw_uniform(key, 1, (batch, 1 + channels)) * 2 - 1)[:, None, None] * settings.jitter
        images = images * (1 + change[..., :1]) + change[..., 1:]
    if settings.cutout:
        inside = []
        for layer, size in ((2, height), (3, width)):
            start = (draw_uniform(key, layer, (batch, 1)) * size).int() - settings.cutout // 2
            place = torch.arange(size, device=images.device)
            inside.append((place >= start) & (place < start + settings.cutout))
        images = torch.where((inside[0][:, :, None] & inside[1][:, None, :])[..., None], 0.0, images)
    return images


def warp(pixels: Tensor, key: Tensor) -> Tensor:
    """Turn, scale, shear, shift and bend images (batch, height, width, channels); what comes from outside is 0.

    The bend is a smooth field: normal numbers on a coarse grid of knots, spread to all pixels by cubic interpolation.
    """
    batch, height, width, _ = pixels.shape
    turn, scale, shear, right, down = (draw_uniform(key, 4, (batch, 5)) * 2 - 1).unbind(1)
    scale, shear = 1 + scale * _SCALE, shear * _SHEAR
    cosine, sine = torch.cos(turn * _TURN) / scale, torch.sin(turn * _TURN) / scale
    # 1. Where the pixel at (x, y), both in -1..1, comes from.
    x = torch.arange(width, device=pixels.device).float().mul(2).add(1).div(width).sub(1)[None, None, :]
    y = torch.arange(height, device=pixels.device).float().mul(2).add(1).div(height).sub(1)[None, :, None]
    across, along, sideways = cosine[:, None, None], sine[:, None, None], (shear - sine)[:, None, None]
    source = [
        across * x + sideways * y + (right * _MOVE)[:, None, None],
        along * x + across * y + (down * _MOVE)[:, None, None],
    ]
    # 2. The bend: the sum of three uniform numbers is close to normal.
    knots = (draw_uniform(key, 5, (3, batch, 2, _KNOTS, _KNOTS)).sum(0) - 1.5) * 2 * _BEND
    rows, columns = (_spread(size, pixels.device) for size in (height, width))
    field = rows @ knots @ columns.t()
    grid = torch.stack([source[0] + field[:, 0], source[1] + field[:, 1]], dim=-1)
    moved = functional.grid_sample(pixels.permute(0, 3, 1, 2), grid, align_corners=False)
    return moved.permute(0, 2, 3, 1)


def _spread(size: int, device: torch.device) -> Tensor:
    """Return the matrix that interpolates ``size`` places between the knots of an axis, shape (size, knots)."""
    unit = torch.eye(_KNOTS, device=device)[:, None, :, None].expand(_KNOTS, 1, _KNOTS, 2)
    spread = functional.interpolate(unit, size=(size, 2), mode="bicubic", align_corners=True)
    return spread[:, 0, :, 0].t()


def mix_images(images: Tensor, share: Tensor) -> Tensor:
    """Mix every image (first axis) with the one before it, which is a random one: batches are shuffled."""
    return share * images + (1 - share) * images.roll(1, 0)


def mixed_losses(logits: Tensor, labels: Tensor, share: Tensor | None, smoothing: float) -> Tensor:
    """Return the cross-entropy of every place; of mixed images, mixed in the same way."""

    def entropy(labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)

    if share is None:
        return entropy(labels)
    return share * entropy(labels) + (1 - share) * entropy(labels.roll(1, 0))
