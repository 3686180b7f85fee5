"""Features of small grey images that nobody trained: oriented strokes, pooled, then random waves of them."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from codeward._cores import share_rows
from codeward._errors import InputError
from codeward.training.backbones._backbone import NOBODY
from codeward.training.backbones._stroke_maps import make_upright, pool_gradients, scatter_strokes, turn
from codeward.training.heads import GridFeatures, round_to_grid

#: Part of the digest; raised when the same images get other features.
_VERSION = 1
#: Images at a time: few enough to stay in a core's cache.
_BATCH = 25
#: Whether an image is made upright, and what describes it.
_KINDS = {
    "strokes": (True, pool_gradients),
    "gradients": (False, pool_gradients),
    "scattering": (True, scatter_strokes),
}


@dataclass(frozen=True)
class StrokeFeatures:
    """Oriented strokes of an image, and cosines and sines of random projections of them.

    A pure function of an image and a seed: nobody trained it, so nobody need be trusted. The waves make linear heads
    as good as a Gaussian kernel; each row has norm one before rounding.

    Attributes
    ----------
    name : {"strokes", "gradients", "scattering"}
        ``strokes``: for handwriting; the image is moved to the middle and sheared until it stands upright, then
        described by gradients in eight directions, pooled in windows. ``gradients``: the same without making it
        upright. ``scattering``: upright, described by a scattering transform; better, at about ten times the cost.
    width : int
        Number of features, even.
    bandwidth : float
        Scale of the random projections: larger tells images apart that are more alike.
    seed : int
    rotate : float
        Turn each image by so many degrees, after it was made upright: for copies of a user's own images, to learn from.

    Examples
    --------
    >>> images = np.zeros((2, 1, 28, 28), np.uint8)
    >>> images[0, 0, 5:23, 12:15] = 255
    >>> backbone = StrokeFeatures(width=64)
    >>> features = backbone.transform(images)
    >>> features.steps.shape, backbone.trust
    ((2, 64), 'nobody to trust')
    """

    name: str = "strokes"
    width: int = 2048
    bandwidth: float = 2.1
    seed: int = 0
    rotate: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in _KINDS:
            raise InputError(f"backbone {self.name!r}: choose {', '.join(_KINDS)}")
        if self.width < 2 or self.width % 2:
            raise InputError(f"width: expected an even number, got {self.width}")

    @property
    def trust(self) -> str:
        """Who must be trusted: nobody."""
        return NOBODY

    @cached_property
    def digest(self) -> str:
        """Hash of everything the function is made of."""
        told = f"{self.name} {_VERSION} {self.width} {self.bandwidth!r} {self.seed} {self.rotate!r}"
        return hashlib.sha256(told.encode()).hexdigest()

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features of grey images, uint8 of shape (N, 1, H, W), H = W = 8 to 64."""
        images = np.asarray(inputs)
        if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1] != 1:
            raise InputError(f"{self.name}: expected grey images, uint8 (N, 1, H, W), got {images.shape}")
        side = images.shape[2]
        if side != images.shape[3] or not 8 <= side <= 64:
            raise InputError(f"{self.name}: expected square images of 8 to 64 pixels, got {images.shape[2:]}")
        upright, describe = _KINDS[self.name]
        steps = np.empty((len(images), self.width), np.int16)
        waves = self._draw(describe(np.zeros((1, side, side))).shape[1])

        def work(rows: slice) -> None:
            for start in range(rows.start, rows.stop, _BATCH):
                chosen = slice(start, min(start + _BATCH, rows.stop))
                batch = images[chosen, 0] / 255.0
                if upright:
                    batch = make_upright(batch)
                if self.rotate:
                    batch = turn(batch, self.rotate)
                # In float64, so that rounding to the grid hides in what order a batch was summed.
                phases = describe(batch) @ waves
                both = np.concatenate([np.cos(phases), np.sin(phases)], axis=1) * np.sqrt(2 / self.width)
                steps[chosen] = round_to_grid(both).steps

        with threadpool_limits(1, "blas"):
            share_rows(len(images), work)
        return GridFeatures(steps)

    def _draw(self, n_inputs: int) -> NDArray[np.float64]:
        rng = np.random.default_rng([self.seed, n_inputs])
        return rng.standard_normal((n_inputs, self.width // 2)) * self.bandwidth
