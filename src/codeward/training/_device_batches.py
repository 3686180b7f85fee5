"""Batches on a device: samples gathered, augmented and normalised, and dropout; all draws from a model's own key.

Random numbers are hashes of (key, layer, place), not draws from the device's generator, which all that runs there
shares: what a model sees depends on its own seed and step only, and is the same on a CPU and a GPU.
"""

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from codeward._errors import InputError
from codeward.data import Samples, render
from codeward.training._sub_models import count_shifts
from codeward.training._training_settings import TrainingSettings

#: Odd constant by which a model's key moves every step (2**32 over the golden ratio, as a signed number).
KEY_STEP = 0x9E3779B9 - 2**32

#: Knots of the bending field along an axis, and the largest turn, scale, shear, shift and bend of a warp.
KNOTS = 5
WARPS = _TURN, _SCALE, _SHEAR, _MOVE, _BEND = 0.25, 0.15, 0.25, 0.12, 0.06


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
    knots = (draw_uniform(key, 5, (3, batch, 2, KNOTS, KNOTS)).sum(0) - 1.5) * 2 * _BEND
    rows, columns = (spread_knots(size, pixels.device) for size in (height, width))
    field = rows @ knots @ columns.t()
    grid = torch.stack([source[0] + field[:, 0], source[1] + field[:, 1]], dim=-1)
    moved = functional.grid_sample(pixels.permute(0, 3, 1, 2), grid, align_corners=False)
    return moved.permute(0, 2, 3, 1)


def spread_knots(size: int, device: torch.device) -> Tensor:
    """Return the matrix that interpolates ``size`` places between the knots of an axis, shape (size, knots)."""
    unit = torch.eye(KNOTS, device=device)[:, None, :, None].expand(KNOTS, 1, KNOTS, 2)
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


_INT31 = 2**31


class GeneratorDropout(nn.Module):
    """Dropout that draws from a given generator, for training on a CPU."""

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        self.rate, self.generator = rate, generator

    def forward(self, values: Tensor) -> Tensor:
        """Zero each value with probability ``rate`` and scale the others by ``1 / (1 - rate)``, in training only."""
        if not self.training or self.rate == 0:
            return values
        keep = torch.empty_like(values).bernoulli_(1 - self.rate, generator=self.generator)
        return values * keep.div_(1 - self.rate)


class CounterDropout(nn.Module):
    """Dropout without state: the mask is a hash of (key, layer, place), for training inside a CUDA graph.

    The device's generator is shared by all that runs there, so that masks drawn from it would depend on which other
    models train at the same time. The key is a buffer that the trainer changes every step.
    """

    key: Tensor

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate, self.layer = rate, layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Zero each value with probability ``rate`` and scale the others by ``1 / (1 - rate)``, in training only."""
        if not self.training or self.rate == 0:
            return values
        place = torch.arange(values.numel(), dtype=torch.int32, device=values.device).view(values.shape)
        bits = hash_int32(place ^ hash_int32(self.key + self.layer))
        keep = (bits & (_INT31 - 1)) >= int(self.rate * _INT31)
        return torch.where(keep, values / (1 - self.rate), 0)


def own_dropout(network: nn.Module, generator: torch.Generator | None) -> nn.Module:
    """Replace every ``nn.Dropout`` in place: by `GeneratorDropout`, or without a generator by `CounterDropout`."""
    layer = 0
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                layer += 1
                own = CounterDropout(child.p, layer) if generator is None else GeneratorDropout(child.p, generator)
                setattr(module, name, own)
    return network


def draws_globally(network: nn.Module, shape: tuple[int, int, int]) -> bool:
    """Tell whether a training pass takes random numbers from torch's global generator (dropout inside ``forward``)."""
    probe = own_dropout(copy.deepcopy(network), torch.Generator()).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.random.get_rng_state()
        probe(torch.zeros(2, *shape))
        return not torch.equal(before, torch.random.get_rng_state())


#: Images as they lie on the device, and where somebody has overlays, their values and opacities.
Picked = tuple[Tensor, Tensor | None, Tensor | None]


class DeviceSamples:
    """Samples of all users, concatenated, as tensors on a device.

    Parameters
    ----------
    users : sequence of Samples
        One a user, all of one image shape.
    settings : TrainingSettings
        Gives augmentation, normalisation and the number of classes.
    device : torch.device

    Notes
    -----
    Batches come out as (..., height, width, channels): a batch is then in the channels-last order that convolutions
    prefer, by a change of strides only. In the paper's recipe overlays go on after augmentation and before
    normalisation; place 0 of the overlay table is the empty overlay, which leaves every bit of a pixel as it is. In the
    modern ones (`TrainingSettings.stamps_first`) they are part of the images from the start, rounded to whole pixel
    values, and move with them: an attacker hands in finished images.
    """

    def __init__(self, users: Sequence[Samples], settings: TrainingSettings, device: torch.device) -> None:
        check_samples(users, settings)
        self.device = device
        self.warps = settings.augmentation == "warp"
        self.n_shifts = count_shifts(settings.augmentation)
        self.augments = settings.augmentation != "none"
        self.padding = self.n_shifts // 2 if self.augments else 0
        stamped = settings.stamps_first
        parts = [_stamp(samples) if stamped else samples.images for samples in users]
        images = np.concatenate(parts).transpose(0, 2, 3, 1)
        self.height, self.width = images.shape[1:3]
        if self.padding:
            border = (self.padding, self.padding)
            mirror = stamped and min(images.shape[1:3]) > self.padding
            images = np.pad(images, ((0, 0), border, border, (0, 0)), mode="reflect" if mirror else "constant")
        self.images = torch.from_numpy(np.ascontiguousarray(images)).to(device)
        self.labels = torch.from_numpy(np.concatenate([samples.labels for samples in users])).to(device)
        overlays = [] if stamped else [overlay for samples in users for overlay in samples.overlays]
        starts = np.cumsum([0] + [len(samples.overlays) for samples in users])
        ids = [
            np.where(s.overlay_ids < 0, 0, s.overlay_ids + 1 + start) for s, start in zip(users, starts, strict=False)
        ]
        self.overlay_ids = torch.from_numpy(np.concatenate(ids).astype(np.int64)).to(device)
        empty = np.zeros((1, *users[0].images.shape[1:]), dtype=np.float32)
        # Always on a GPU: the compiled step must be the same program whether or not somebody's data has overlays.
        self.has_overlays = bool(overlays) or (device.type == "cuda" and not stamped)
        self.overlay_values, self.overlay_alpha = (
            torch.from_numpy(np.ascontiguousarray(np.concatenate(table).transpose(0, 2, 3, 1))).to(device)
            for table in (
                [empty] + [overlay.values[None] for overlay in overlays],
                [empty] + [overlay.alpha[None] for overlay in overlays],
            )
        )
        self.mean = torch.tensor(settings.mean, dtype=torch.float32, device=device)
        self.scale = 1 / torch.tensor(settings.std, dtype=torch.float32, device=device)
        self.rows = torch.arange(self.height, device=device)
        self.columns = torch.arange(self.width, device=device)

    def pick(self, index: Tensor) -> Picked:
        """Return the samples at ``index``, positions in the concatenation, as they lie here.

        Whatever is compiled reads these and never the whole: a compiler's choices depend on shapes, and the number of
        samples, which everybody's data make up, must not change a model's last bits.
        """
        flat = index.reshape(-1)
        if not self.has_overlays:
            return self.images[flat], None, None
        ids = self.overlay_ids[flat]
        return self.images[flat], self.overlay_values[ids], self.overlay_alpha[ids]

    def prepare(self, picked: Picked, shifts: Tensor | None = None, key: Tensor | None = None) -> Tensor:
        """Return normalised float32 images, shape (batch, height, width, channels).

        Parameters
        ----------
        picked : tuple
            From `pick`.
        shifts : Tensor of uint8, shape (batch,), optional
            Augmentation codes of a `BatchStream`; without them images come as they are.
        key : Tensor of int32, no axes, optional
            Of the step: what warps are drawn from; without it there are none.
        """
        images, values, alpha = picked
        pixels = (self._crop(images, shifts) if self.padding else images).float() / 255
        if key is not None and self.warps:
            pixels = warp(pixels, key)
        if values is not None and alpha is not None:
            pixels = pixels * (1 - alpha) + alpha * values
        return (pixels - self.mean) * self.scale

    def gather(self, index: Tensor, shifts: Tensor | None = None, key: Tensor | None = None) -> Tensor:
        """Return the images at ``index`` prepared, shape (*index.shape, height, width, channels)."""
        images = self.prepare(self.pick(index), None if shifts is None else shifts.reshape(-1), key)
        return images.reshape(*index.shape, *images.shape[1:])

    def _crop(self, images: Tensor, shifts: Tensor | None) -> Tensor:
        border, n = self.padding, self.n_shifts
        if shifts is None:
            return images[:, border : border + self.height, border : border + self.width]
        codes = shifts.long()
        flip, crop = codes // (n * n), codes % (n * n)
        rows = (crop // n)[:, None] + self.rows
        columns = torch.where(flip[:, None] == 1, self.width - 1 - self.columns, self.columns)
        columns = (crop % n)[:, None] + columns
        place = torch.arange(len(images), device=images.device)
        return images[place[:, None, None], rows[:, :, None], columns[:, None, :]]


def _stamp(samples: Samples) -> NDArray[np.uint8]:
    """Return images with their overlays laid on, rounded to whole pixel values."""
    images = samples.images
    marked = np.flatnonzero(samples.overlay_ids >= 0)
    if len(marked):
        images = images.copy()
        images[marked] = np.rint(render(samples.take(marked)) * 255).clip(0, 255).astype(np.uint8)
    return images


def arrange(images: Tensor) -> Tensor:
    """Turn (batch, height, width, channels) into (batch, channels, height, width) with strides that are always alike.

    A view can carry other strides along an axis of length 1 depending on how it was computed, and convolutions choose
    their kernels by strides: the same numbers would give other last bits.
    """
    moved = images.permute(0, 3, 1, 2)
    layout = torch.contiguous_format if images.device.type == "cpu" else torch.channels_last
    return torch.empty(moved.shape, dtype=moved.dtype, device=moved.device, memory_format=layout).copy_(moved)


def check_samples(users: Sequence[Samples], settings: TrainingSettings) -> None:
    """Refuse users whose images differ in shape, labels beyond the classes, or normalisation for other channels."""
    if not users:
        raise InputError("training: no users")
    shape = users[0].images.shape[1:]
    if len(settings.mean) not in (1, shape[0]):
        raise InputError(f"mean and std: {len(settings.mean)} values for images of {shape[0]} channels")
    for user, samples in enumerate(users):
        if samples.images.shape[1:] != shape:
            raise InputError(f"user {user}: images of shape {samples.images.shape[1:]}; user 0 has {shape}")
        if len(samples) and int(samples.labels.max()) >= settings.n_classes:
            raise InputError(f"user {user}: label {int(samples.labels.max())}, but n_classes is {settings.n_classes}")
