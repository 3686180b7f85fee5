"""All users' samples on one device, and the batches made of them there."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codeward._errors import InputError
from codeward.data import Samples, render
from codeward.training._augmentation import warp
from codeward.training._plan import count_shifts
from codeward.training._training_settings import TrainingSettings


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

    def gather(self, index: Tensor, shifts: Tensor | None = None, key: Tensor | None = None) -> Tensor:
        """Return normalised float32 images, shape (*index.shape, height, width, channels).

        Parameters
        ----------
        index : Tensor of int64
            Positions in the concatenation.
        shifts : Tensor of uint8, same shape, optional
            Augmentation codes of a `BatchStream`; without them images come as they are.
        key : Tensor of int32, no axes, optional
            Of the step: what warps are drawn from; without it there are none.
        """
        flat = index.reshape(-1)
        picked = self._crop(flat, shifts) if self.padding else self.images[flat]
        pixels = picked.float() / 255
        if key is not None and self.warps:
            pixels = warp(pixels, key)
        if self.has_overlays:
            ids = self.overlay_ids[flat]
            alpha = self.overlay_alpha[ids]
            pixels = pixels * (1 - alpha) + alpha * self.overlay_values[ids]
        return ((pixels - self.mean) * self.scale).reshape(*index.shape, *pixels.shape[1:])

    def _crop(self, flat: Tensor, shifts: Tensor | None) -> Tensor:
        border, n = self.padding, self.n_shifts
        if shifts is None:
            return self.images[flat, border : border + self.height, border : border + self.width]
        codes = shifts.reshape(-1).long()
        flip, crop = codes // (n * n), codes % (n * n)
        rows = (crop // n)[:, None] + self.rows
        columns = torch.where(flip[:, None] == 1, self.width - 1 - self.columns, self.columns)
        columns = (crop % n)[:, None] + columns
        return self.images[flat[:, None, None], rows[:, :, None], columns[:, None, :]]


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
