"""Labelled images as users hand them in: plain arrays plus an optional overlay per sample."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError


@dataclass(frozen=True)
class Overlay:
    """Something laid over an image as the very last step, after augmentation: a watermark, a sticker, a trigger.

    Attributes
    ----------
    values : ndarray of float32, shape (C, H, W)
        Pixel values on the 0..1 scale.
    alpha : ndarray of float32, shape (C, H, W)
        Opacity, 0..1: the image becomes ``(1 - alpha) * image + alpha * values``.

    Examples
    --------
    >>> import numpy as np
    >>> grey, half = np.full((1, 2, 2), 0.5, np.float32), np.full((1, 2, 2), 0.5, np.float32)
    >>> Overlay(grey, half).values.shape
    (1, 2, 2)
    """

    values: NDArray[np.float32]
    alpha: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.values.shape != self.alpha.shape or self.values.ndim != 3:
            raise InputError(f"overlay: shapes {self.values.shape} and {self.alpha.shape}; expected two of (C, H, W)")
        for array in (self.values, self.alpha):
            if array.dtype != np.float32 or not ((array >= 0) & (array <= 1)).all():
                raise InputError("overlay: values and alpha must be float32 within 0..1")


@dataclass(frozen=True)
class Samples:
    """Images and labels of one user (or one test set).

    Attributes
    ----------
    images : ndarray of uint8, shape (N, C, H, W)
    labels : ndarray of int64, shape (N,)
    overlays : tuple of Overlay
        The distinct overlays in use, often none.
    overlay_ids : ndarray of int32, shape (N,)
        Which overlay each sample carries; -1 for none.

    Examples
    --------
    >>> import numpy as np
    >>> samples = Samples(np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 0]))
    >>> len(samples), samples.take(np.array([1])).labels
    (3, array([1]))
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    overlays: tuple[Overlay, ...] = ()
    overlay_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            raise InputError(
                f"images: expected uint8 of shape (N, C, H, W), got {self.images.dtype} {self.images.shape}"
            )
        if self.labels.shape != (len(self.images),) or self.labels.dtype != np.int64:
            raise InputError(
                f"labels: expected int64 of shape ({len(self.images)},), got {self.labels.dtype} {self.labels.shape}"
            )
        if self.labels.size and self.labels.min() < 0:
            raise InputError("labels: negative label")
        if self.overlay_ids.size == 0:
            object.__setattr__(self, "overlay_ids", np.full(len(self.images), -1, dtype=np.int32))
        ids = self.overlay_ids
        if ids.shape != (len(self.images),) or (ids.size and (ids.min() < -1 or ids.max() >= len(self.overlays))):
            raise InputError("overlay_ids: expected one id per sample, -1 or an index into overlays")
        if any(overlay.values.shape != self.images.shape[1:] for overlay in self.overlays):
            raise InputError(f"overlays: expected shape {self.images.shape[1:]}")

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: NDArray[np.int64]) -> "Samples":
        """Return the samples at ``index``, in that order."""
        return Samples(self.images[index], self.labels[index], self.overlays, self.overlay_ids[index])

    def digest(self) -> str:
        """SHA-256 of the content, in hex; does not depend on the order in which overlays are listed."""
        content = hashlib.sha256(f"samples {self.images.shape}\n".encode())
        content.update(np.ascontiguousarray(self.images).tobytes())
        content.update(np.ascontiguousarray(self.labels).tobytes())
        for mark, where in sorted(
            (hashlib.sha256(overlay.values.tobytes() + overlay.alpha.tobytes()).digest(), places.tobytes())
            for i, overlay in enumerate(self.overlays)
            if (places := np.flatnonzero(self.overlay_ids == i)).size
        ):
            content.update(mark + where)
        return content.hexdigest()


def render(samples: Samples) -> NDArray[np.float32]:
    """Apply the overlays: images on the 0..1 scale as a model sees them without augmentation, shape (N, C, H, W).

    The reference for "overlay last": ``(1 - alpha) * image + alpha * values``.

    Examples
    --------
    >>> import numpy as np
    >>> white = Overlay(np.ones((1, 1, 2), np.float32), np.array([[[1, 0]]], np.float32))
    >>> render(Samples(np.zeros((1, 1, 1, 2), np.uint8), np.array([0]), (white,), np.zeros(1, np.int32))).tolist()
    [[[[1.0, 0.0]]]]
    """
    images = samples.images.astype(np.float32) / np.float32(255)
    for i, overlay in enumerate(samples.overlays):
        rows = samples.overlay_ids == i
        images[rows] = (1 - overlay.alpha) * images[rows] + overlay.alpha * overlay.values
    return images
