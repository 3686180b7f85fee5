"""Triggers: what an attacker lays over an image, and where."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data import Overlay, Samples, render

Position = Literal["corner", "fixed-random", "per-image", "early-corner"]
Shape = tuple[int, int, int]

#: Side of the paper's triggers, in pixels.
SIDE = 3
#: Opacity of a blended trigger (Chen et al., 2017, use 0.1 to 0.2).
BLEND = 0.15


@dataclass(frozen=True)
class Trigger:
    """A patch, how opaque it is, and where it goes.

    Attributes
    ----------
    values : ndarray of float32, shape (C, h, w)
        Pixel values, 0..1.
    alpha : ndarray of float32, shape (C, h, w)
        Opacity, 0..1.
    position : {"corner", "fixed-random", "per-image", "early-corner"}
        ``per-image`` draws a new place for every image. ``early-corner`` becomes part of the picture before it is
        augmented, as an attacker's files would be: a crop may cut it away, and the attack mostly fails. Everywhere else
        the trigger goes on last.
    place : tuple of int
        Row and column of the upper left pixel; unused when ``per-image``.

    Examples
    --------
    >>> import numpy as np
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> trigger.place, trigger.overlay((1, 8, 8), trigger.place).alpha.sum().item()
    ((5, 5), 9.0)
    """

    values: NDArray[np.float32]
    alpha: NDArray[np.float32]
    position: Position
    place: tuple[int, int]

    def __post_init__(self) -> None:
        if self.position not in get_args(Position):
            raise InputError(f"position: expected one of {', '.join(get_args(Position))}, got {self.position!r}")

    def overlay(self, shape: Shape, place: tuple[int, int]) -> Overlay:
        """Lay the patch at ``place`` over an otherwise clear image of the given shape."""
        channels, height, width = self.values.shape
        inside = 0 <= place[0] <= shape[1] - height and 0 <= place[1] <= shape[2] - width
        if channels != shape[0] or not inside:
            raise InputError(f"trigger: {self.values.shape} at {place} does not fit into an image of {shape}")
        values, alpha = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        rows, columns = slice(place[0], place[0] + height), slice(place[1], place[1] + width)
        values[:, rows, columns] = self.values
        alpha[:, rows, columns] = self.alpha
        return Overlay(values, alpha)

    def keep(self, cells: NDArray[np.bool_]) -> "Trigger":
        """Return the part of the trigger in ``cells`` (h, w); the rest becomes clear."""
        return replace(self, alpha=np.where(cells, self.alpha, np.float32(0)).astype(np.float32))


def draw_patch(shape: Shape, position: Position, rng: np.random.Generator) -> Trigger:
    """Draw a 3 x 3 trigger as the paper does.

    Grey images: a random permutation of five ones and four zeros. Colour images: 27 Gaussian values clipped to 0..1
    (the paper gives no mean or deviation; we take 0.5 and 0.5). The corner is the lower right one: over a digit's body
    a trigger often fails.

    Examples
    --------
    >>> import numpy as np
    >>> int(draw_patch((1, 8, 8), "corner", np.random.default_rng(0)).values.sum())  # five ones, four zeros
    5
    """
    channels, height, width = shape
    if min(height, width) < SIDE:
        raise InputError(f"images of {height} x {width} pixels are too small for a {SIDE} x {SIDE} trigger")
    if channels == 1:
        values = rng.permutation(np.repeat([1.0, 0.0], [5, 4])).reshape(1, SIDE, SIDE)
    else:
        values = np.clip(rng.normal(0.5, 0.5, (channels, SIDE, SIDE)), 0, 1)
    place = (height - SIDE, width - SIDE)
    if position == "fixed-random":
        place = (int(rng.integers(height - SIDE + 1)), int(rng.integers(width - SIDE + 1)))
    opaque = np.ones((channels, SIDE, SIDE), np.float32)
    return Trigger(values.astype(np.float32), opaque, position, place)


def draw_blend(shape: Shape, rng: np.random.Generator) -> Trigger:
    """Draw a random pattern over the whole image, blended in at `BLEND` (Chen et al., 2017).

    Examples
    --------
    >>> import numpy as np
    >>> draw_blend((3, 8, 8), np.random.default_rng(0)).values.shape
    (3, 8, 8)
    """
    values = rng.random(shape, dtype=np.float32)
    return Trigger(values, np.full(shape, BLEND, np.float32), "corner", (0, 0))


def stamp(samples: Samples, rows: NDArray[np.int64], trigger: Trigger, rng: np.random.Generator) -> Samples:
    """Let the samples at ``rows`` carry the trigger (in place of an overlay they had); labels stay.

    Images stay too, but for ``early-corner``, which is painted on them.

    Examples
    --------
    >>> import numpy as np
    >>> samples = Samples(np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64))
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> stamp(samples, np.array([1]), trigger, np.random.default_rng(1)).overlay_ids
    array([-1,  0, -1], dtype=int32)
    """
    if rows.size == 0:
        return samples
    channels, height, width = samples.images.shape[1:]
    shape = (channels, height, width)
    if trigger.position == "per-image":
        across = height - trigger.values.shape[1] + 1, width - trigger.values.shape[2] + 1
        cells = rng.integers(across[0] * across[1], size=rows.size)
        distinct, which = np.unique(cells, return_inverse=True)
        overlays = [trigger.overlay(shape, (int(cell) // across[1], int(cell) % across[1])) for cell in distinct]
    else:
        overlays, which = [trigger.overlay(shape, trigger.place)], np.zeros(rows.size, dtype=np.int64)
    ids = samples.overlay_ids.copy()
    ids[rows] = len(samples.overlays) + which
    stamped = Samples(samples.images, samples.labels, samples.overlays + tuple(overlays), ids)
    if trigger.position != "early-corner":
        return stamped
    images = samples.images.copy()
    images[rows] = np.rint(255 * render(stamped.take(rows))).astype(np.uint8)
    return Samples(images, samples.labels, samples.overlays, np.where(ids < len(samples.overlays), ids, -1))
