"""Features of small grey images that nobody trained: oriented strokes, pooled, then random waves of them."""

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from threadpoolctl import threadpool_limits

from codeward._cores import share_rows
from codeward._errors import InputError
from codeward.training.backbones._hashed_features import NOBODY
from codeward.training.heads import GridFeatures, round_to_grid

Images = NDArray[np.float64]
Maps = NDArray[np.float32]

#: Directions of the strokes: of gradients over the whole circle, of waves over half of it.
_BINS, _ANGLES = 8, 6
#: Windows of gradients: pixels, step, and how much they weigh.
_WINDOWS = ((8, 4, 1.0), (16, 8, 0.7))

#: Part of the digest; raised when the same images get other features.
_VERSION = 1
#: Images at a time: few enough to stay in a core's cache.
_BATCH = 25


def pool_gradients(images: Images) -> Images:
    """Return how much gradient points each way in each window: square roots, shape (N, features), norm one."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    down = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    across = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    right, below = down[:, :, :-2] - down[:, :, 2:], across[:, :-2] - across[:, 2:]
    length = np.square(right) + np.square(below) + 1e-12
    directed = []
    for angle in np.arange(_BINS) * 2 * np.pi / _BINS:
        along = np.maximum(right * np.cos(angle) + below * np.sin(angle), 0)
        directed.append(along * np.square(along) / length)
    maps, parts = np.stack(directed, axis=1), []
    for size, step, weight in _WINDOWS:
        windows = _draw_windows(images.shape[1], size, step)
        # One small product an image: the same bits whatever else is in the batch.
        parts.append(weight * _normalise(windows @ maps @ windows.T))
    return _normalise(np.square(np.concatenate(parts, axis=1)))


def _normalise(maps: Images) -> Images:
    """Return square roots, one row an image, each of norm one."""
    flat = np.sqrt(np.maximum(maps.reshape(len(maps), -1), 0))
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9))


def _draw_windows(side: int, size: int, step: int) -> Images:
    """Return windows that overlap by half, as weights of rows: shape (windows, side)."""
    bell = np.hanning(size + 2)[1:-1]
    bell /= bell.sum()
    n_windows = max(1, (side + size - step - size) // step + 1)
    weights = np.zeros((n_windows, side + 2 * size))
    for window in range(n_windows):
        weights[window, window * step : window * step + size] = bell
    margin = (size - step) // 2
    return weights[:, margin : margin + side]


def scatter_strokes(images: Images) -> Images:
    """Return a scattering transform: sizes of waves, and of waves in these, locally averaged.

    Square roots, shape (N, features), each row of norm one.

    Morlet wavelets at three scales and six angles, two orders (Bruna and Mallat, 2013); averages over windows of eight
    pixels. It hardly changes when strokes bend a little, which is what a writer does.
    """
    size, side = len(images), images.shape[1]
    full = -(-(side + 4) // 8) * 8
    margin = ((full - side) // 2, full - side - (full - side) // 2)
    framed = np.pad(images.astype(np.float32), ((0, 0), margin, margin))
    waves, average = _draw_bank(full)
    spectrum = fft.fft2(framed)
    found = [_average(framed[:, None], average[1])]
    for scale in range(len(waves)):
        first = _filter(spectrum[:, None], waves[scale], scale)
        found.append(_average(first, average[full // first.shape[2]]))
        if scale + 1 == len(waves):
            continue
        inner = fft.fft2(first).reshape(size * len(waves[scale]), 1, full, full)
        for larger in range(scale + 1, len(waves)):
            second = _filter(inner, waves[larger], larger)
            averaged = _average(second, average[full // second.shape[2]])
            found.append(averaged.reshape(size, -1, *averaged.shape[2:]))
    return _normalise(np.concatenate(found, axis=1).astype(np.float64))


def _filter(spectrum: NDArray[np.complex64], waves: Maps, scale: int) -> Maps:
    """Return the sizes of what passes each wave; the largest waves need half the pixels only."""
    passed = spectrum * waves
    if scale >= 2:
        half = passed.shape[-1] // 2
        passed = passed.reshape(*passed.shape[:2], 2, half, 2, half).sum(axis=(2, 4)) / 4
    found = fft.ifft2(passed, overwrite_x=True)
    return np.asarray(np.sqrt(np.square(found.real) + np.square(found.imag)))


def _average(maps: Maps, weights: Maps) -> Maps:
    return np.asarray(weights @ maps @ weights.T)


@cache
def _draw_bank(full: int) -> tuple[list[Maps], dict[int, Maps]]:
    """Return the waves of each scale as spectra, shape (angles, M, M), and averaging weights by subsampling."""
    steps = np.fft.fftfreq(full) * 2 * np.pi
    y, x = np.meshgrid(steps, steps, indexing="ij")

    def bell(spread: float, angle: float, centre: float, slant: float) -> Images:
        total = np.zeros((full, full))
        for turn_y in (-1, 0, 1):
            for turn_x in (-1, 0, 1):
                off_x = x + 2 * np.pi * turn_x - centre * np.cos(angle)
                off_y = y + 2 * np.pi * turn_y - centre * np.sin(angle)
                along = np.cos(angle) * off_x + np.sin(angle) * off_y
                beside = -np.sin(angle) * off_x + np.cos(angle) * off_y
                total += np.exp(-(spread**2) / 2 * (along**2 + beside**2 / slant**2))
        return total

    waves = []
    for scale in range(3):
        spread, centre, slant = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, 4 / _ANGLES
        found = []
        for angle in np.arange(_ANGLES) * np.pi / _ANGLES:
            wave, still = bell(spread, angle, centre, slant), bell(spread, angle, 0.0, slant)
            found.append(wave - still * (wave[0, 0] / still[0, 0]))  # flat areas give nothing
        waves.append(np.stack(found).astype(np.float32))
    profile = np.fft.ifft(np.exp(-(3.2**2) / 2 * steps**2)).real
    shifted = np.stack([np.roll(profile, place) for place in range(0, full, 8)]).astype(np.float32)
    return waves, {coarse: np.ascontiguousarray(coarse * shifted[:, ::coarse]) for coarse in (1, 2)}


def make_upright(images: Images) -> Images:
    """Move each image's centre of mass to the middle and shear it until its strokes stand upright."""
    side = images.shape[1]
    places = np.arange(side, dtype=np.float64)
    mass = np.maximum(images.sum(axis=(1, 2)), 1e-3)
    centre_y = ((images.sum(axis=2) * places).sum(axis=1) / mass)[:, None, None]
    centre_x = ((images.sum(axis=1) * places).sum(axis=1) / mass)[:, None, None]
    off_y, off_x = places[None, :, None] - centre_y, places[None, None, :] - centre_x
    spread = (images * np.square(off_y)).sum(axis=(1, 2)) / mass
    slant = np.clip((images * off_y * off_x).sum(axis=(1, 2)) / mass / np.maximum(spread, 1e-3), -1, 1)
    y, x = np.meshgrid(places - (side - 1) / 2, places - (side - 1) / 2, indexing="ij")
    return _look_up(images, y + centre_y, x + slant[:, None, None] * y + centre_x)


def turn(images: Images, degrees: float) -> Images:
    """Turn each image about its middle."""
    side, angle = images.shape[1], np.deg2rad(degrees)
    middle = (side - 1) / 2
    y, x = np.meshgrid(np.arange(side) - middle, np.arange(side) - middle, indexing="ij")
    across, along = np.cos(angle), np.sin(angle)
    return _look_up(images, along * x + across * y + middle, across * x - along * y + middle)


def _look_up(images: Images, from_y: Images, from_x: Images) -> Images:
    """Return the images' values at places between pixels: bilinear, black outside."""
    size, side = len(images), images.shape[1]
    from_y = np.clip(np.broadcast_to(from_y, images.shape), -1, side)
    from_x = np.clip(np.broadcast_to(from_x, images.shape), -1, side)
    framed = np.pad(images, ((0, 0), (1, 2), (1, 2))).reshape(size, -1)
    left, top = np.floor(from_x).astype(np.int64), np.floor(from_y).astype(np.int64)
    share_x, share_y = from_x - left, from_y - top
    corner = ((top + 1) * (side + 3) + left + 1).reshape(size, -1)

    def look(offset: int) -> Images:
        return np.take_along_axis(framed, corner + offset, axis=1).reshape(images.shape)

    upper = look(0) * (1 - share_x) + look(1) * share_x
    lower = look(side + 3) * (1 - share_x) + look(side + 4) * share_x
    return np.asarray(upper * (1 - share_y) + lower * share_y)


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
        waves = _draw_waves(self.seed, self.width, self.bandwidth, describe(np.zeros((1, side, side))).shape[1])

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


@lru_cache(maxsize=4)
def _draw_waves(seed: int, width: int, bandwidth: float, n_inputs: int) -> NDArray[np.float64]:
    """Draw the random projections; drawn once, since a single image asks for as many as a thousand do."""
    waves = np.random.default_rng([seed, n_inputs]).standard_normal((n_inputs, width // 2)) * bandwidth
    waves.flags.writeable = False
    return waves
