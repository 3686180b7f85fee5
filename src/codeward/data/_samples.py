"""Labelled samples as users hand them in: images with overlays; any inputs, with names of classes and users."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data._schema import Schema
from codeward.data._table import InputTable, as_text, is_missing

Inputs = NDArray[Any] | InputTable

#: Users of one data set: one column of the code each.
MAX_USERS = 100_000
#: Labels number the classes from 0; a higher one is an id or a mistake.
MAX_CLASSES = 10_000


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


@dataclass(frozen=True)
class UserData:
    """Samples, their labels and their users.

    Attributes
    ----------
    inputs : ndarray or InputTable
        Images (uint8, shape (N, C, H, W)), vectors of numbers (float64, shape (N, p), or a sparse matrix of SciPy), or
        a table (texts are a table of one column).
    labels, users : ndarray of int64, shape (N,)
        Places in ``class_names`` and ``user_names``.
    class_names, user_names : tuple of str
        In sorted order, numbers by size.
    schema : Schema
    hashed : bool
        No user is known: samples are hashed into parts by their content, and the parts stand for users.
    firm : int or None
        What is common to all models and was read off the users' data by majority (kinds of columns, size of images)
        stays the same whatever this many users hand in; None where a schema says it all.
    notes : tuple of str
        What was guessed, in sentences for the person who handed in the data.
    test : UserData or None
        The test samples that the source brings, of nobody.

    Examples
    --------
    >>> from codeward.data import load_user_data
    >>> rows = {"age": [41, 5, 38], "risk": ["high", "low", "high"], "clinic": ["b", "a", "b"]}
    >>> data = load_user_data(rows, label="risk", user="clinic")
    >>> data.class_names, data.user_names, data.labels.tolist(), data.users.tolist()
    (('high', 'low'), ('a', 'b'), [0, 1, 0], [1, 0, 1])
    >>> [part.tolist() for part in data.parts]
    [[1], [0, 2]]
    """

    inputs: Inputs
    labels: NDArray[np.int64]
    users: NDArray[np.int64]
    class_names: tuple[str, ...]
    user_names: tuple[str, ...]
    schema: Schema
    hashed: bool = False
    firm: int | None = None
    notes: tuple[str, ...] = ()
    test: "UserData | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        size = count_rows(self.inputs)
        for name, values, limit in (
            ("labels", self.labels, len(self.class_names)),
            ("users", self.users, len(self.user_names)),
        ):
            if values.shape != (size,) or values.dtype != np.int64:
                raise InputError(f"{name}: expected int64 of shape ({size},), got {values.dtype} {values.shape}")
            if size and (values.min() < 0 or values.max() >= limit):
                raise InputError(f"{name}: {values.min()}..{values.max()} are not within the {limit} names")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return len(self.class_names)

    @property
    def n_users(self) -> int:
        """Number of users n, columns of a code."""
        return len(self.user_names)

    @property
    def parts(self) -> list[NDArray[np.int64]]:
        """Places of each user's samples, in order."""
        order = np.argsort(self.users, kind="stable")
        edges = np.searchsorted(self.users[order], np.arange(self.n_users + 1))
        return [order[start:stop] for start, stop in pairwise(edges.tolist())]

    def take(self, index: NDArray[np.int64]) -> "UserData":
        """Return the samples at ``index``, in that order; names stay."""
        inputs = self.inputs.take(index) if isinstance(self.inputs, InputTable) else self.inputs[index]
        return replace(self, inputs=inputs, labels=self.labels[index], users=self.users[index], test=None)

    @property
    def samples(self) -> Samples:
        """The images and labels."""
        if not isinstance(self.inputs, np.ndarray) or self.inputs.dtype != np.uint8:
            raise InputError(f"expected images, the data are of kind {self.schema.kind}")
        return Samples(np.ascontiguousarray(self.inputs), self.labels)


def count_rows(inputs: Any) -> int:
    """Return the number of inputs; sparse matrices have no length."""
    return int(inputs.shape[0]) if hasattr(inputs, "shape") else len(inputs)


def number_names(
    values: Sequence[Any], what: str, declared: Iterable[str] | None = None, first_row: int = 1
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the distinct names among raw values, in natural order, and the place of each value among them.

    Parameters
    ----------
    values : sequence
        Text or numbers, one a sample; none may be missing.
    what : str
        Names them in errors: file and column.
    declared : iterable of str, optional
        The names there are; others are refused.
    first_row : int
        Number of the first value in errors.
    """
    texts = ["" if is_missing(value) else as_text(value) for value in values]
    bare = [row for row, text in enumerate(texts, first_row) if not text]
    if bare:
        shown = ", ".join(map(str, bare[:5])) + ", ..." * (len(bare) > 5)
        rows = f"row {shown} has none" if len(bare) == 1 else f"rows {shown} have none"
        raise InputError(
            f"{what}: {rows} ({len(bare):,} of {len(texts):,}); every sample needs one: fill it in, or remove the row"
        )
    known = set(texts) if declared is None else set(declared)
    strange = next((row for row, text in enumerate(texts) if text not in known), None)
    if strange is not None:
        shown = _list(sort_names(known))
        raise InputError(f"{what}: row {strange + first_row}: {texts[strange][:40]!r} is not declared; known: {shown}")
    names = sort_names(known)
    place = {name: number for number, name in enumerate(names)}
    return names, np.array([place[text] for text in texts], dtype=np.int64)


def check_classes(names: tuple[str, ...], what: str) -> None:
    """Refuse labels that are no classes: too many, or numbers with fractions."""
    fractions = sum(1 for name in names if re.fullmatch(r"-?\d*\.\d+(e-?\d+)?", name))
    if len(names) > MAX_CLASSES or (fractions > 20 and fractions > len(names) / 2):
        raise InputError(f"{what}: {len(names):,} different values; labels must be classes, not quantities or ids")
    if len(names) < 2:
        raise InputError(
            f"{what}: one class only ({names[0][:40] if names else 'none'}); there is nothing to tell apart"
        )


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names, whole numbers by size and before other names.

    Examples
    --------
    >>> sort_names(["10", "9", "b", "a"])
    ('9', '10', 'a', 'b')
    """

    def rank(name: str) -> tuple[bool, int, str]:
        whole = re.fullmatch(r"-?\d{1,18}", name) is not None
        return not whole, int(name) if whole else 0, name

    return tuple(sorted(names, key=rank))


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
