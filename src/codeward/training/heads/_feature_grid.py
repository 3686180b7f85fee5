"""The grid on which features lie: whole multiples of 2^-12 and norm at most one, so that sums of them are exact."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError, TooLargeError

#: Features are multiples of 2^-GRID_BITS. Twelve bits lose less than the heads can see (0.3% of a typical entry of
#: 2,048) and leave 53 - 24 bits of a float64 for counting samples.
GRID_BITS = 12
_STEPS = 1 << GRID_BITS
#: Samples (times their weight) whose Gram sums are exact in float64 in any order: Proposition 30.
MOST_SAMPLES = 1 << (53 - 2 * GRID_BITS)
#: Entries of features that are rounded at a time.
_CHUNK = 1 << 24


@dataclass(frozen=True)
class GridFeatures:
    """Features on the grid, as whole numbers of steps of 2^-12.

    Attributes
    ----------
    steps : ndarray of int16, shape (N, d)
        The features times 2^12; the squares of a row add up to at most 2^24.
    n_clipped : int
        How many rows had a norm above one and were scaled down to it.

    Examples
    --------
    >>> grid = round_to_grid(np.array([[0.5, 0.0], [3.0, 4.0]]))
    >>> grid.steps
    array([[2048,    0],
           [2457, 3276]], dtype=int16)
    >>> grid.n_clipped, grid.width, len(grid)
    (1, 2, 2)
    """

    steps: NDArray[np.int16]
    n_clipped: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def width(self) -> int:
        """Number of features d."""
        return int(self.steps.shape[1])

    def to_floats(self) -> NDArray[np.float32]:
        """Return the features themselves, exactly."""
        return self.steps.astype(np.float32) / np.float32(_STEPS)

    def take(self, index: NDArray[Any] | slice) -> "GridFeatures":
        """Return some of the rows."""
        return GridFeatures(self.steps[index])


def round_to_grid(features: Any, width: int | None = None) -> GridFeatures:
    """Round features to multiples of 2^-12, rows of norm above one scaled down to norm one first.

    Each row by itself, toward zero: rounding never makes a norm larger, and nobody's row depends on another's.

    Parameters
    ----------
    features : array-like of float, shape (N, d), or GridFeatures
        What is on the grid already comes back as it is.
    width : int, optional
        The d that is expected.

    Raises
    ------
    InputError
        For NaN or infinity, another width, another shape.

    Examples
    --------
    >>> round_to_grid([[0.6, 0.8]]).to_floats()
    array([[0.5998535, 0.7998047]], dtype=float32)
    """
    if isinstance(features, GridFeatures):
        _check_width(features.steps, width)
        return features
    array = np.asarray(features)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise InputError(f"features: expected numbers of shape (N, d), got {array.dtype} {array.shape}")
    _check_width(array, width)
    if array.shape[1] == 0:
        raise InputError("features: no columns")
    steps = np.empty(array.shape, np.int16)
    n_clipped, size = 0, max(1, _CHUNK // array.shape[1])
    for start in range(0, len(array), size):
        chunk = array[start : start + size].astype(np.float64)
        norms = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
        if not np.isfinite(norms).all():
            bad = start + int(np.flatnonzero(~np.isfinite(norms))[0])
            raise InputError(f"features: row {bad} holds NaN, infinity or numbers too large to square")
        long = norms > 1
        chunk[long] /= norms[long, None]
        whole = np.trunc(chunk * _STEPS).astype(np.int16)
        # A scaled row may still be longer by the last bit; whole numbers say so exactly.
        squares = np.einsum("ij,ij->i", whole.astype(np.int64), whole.astype(np.int64))
        while (squares > _STEPS**2).any():
            rows = np.flatnonzero(squares > _STEPS**2)
            whole[rows] -= np.sign(whole[rows])
            squares[rows] = np.einsum("ij,ij->i", whole[rows].astype(np.int64), whole[rows].astype(np.int64))
        steps[start : start + size] = whole
        n_clipped += int(long.sum())
    return GridFeatures(steps, n_clipped)


def check_steps(steps: Any, what: str) -> NDArray[np.int16]:
    """Return rows that claim to be on the grid, checked: whole numbers, norms at most one.

    Examples
    --------
    >>> check_steps(np.array([[4096, 1]], np.int16), "message")
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: message: row 0 has a norm above one
    """
    array = np.asarray(steps)
    if array.ndim != 2 or array.dtype != np.int16:
        raise InputError(f"{what}: expected int16 steps of shape (N, d), got {array.dtype} {array.shape}")
    squares = np.einsum("ij,ij->i", array, array, dtype=np.int64, casting="safe")
    if (squares > _STEPS**2).any():
        raise InputError(f"{what}: row {int(squares.argmax())} has a norm above one")
    return array


def check_count(n_samples: int, what: str) -> None:
    """Refuse more samples than sums are exact for."""
    if n_samples > MOST_SAMPLES:
        raise TooLargeError(f"{what}: {n_samples:,} samples; sums are exact for {MOST_SAMPLES:,} at most")


def _check_width(array: NDArray[Any], width: int | None) -> None:
    if width is not None and array.shape[1] != width:
        raise InputError(f"features: {array.shape[1]} columns, expected {width}")
