"""From the replies for one model to its next weights. Nothing here sees more than one model."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from codeward.federated._protocol import Arrays, FederatedSettings

_DIGIT = 32


class ExactSum:
    """A sum of arrays of finite doubles that is exact, and therefore the same in whatever order they are added.

    Every number is written in base 2**32 and its digits are added as whole numbers, one array of 64 bits a digit; a
    digit that no number has takes no memory. Weights of a network need two or three digits, single precision as a
    whole eleven. Exact for up to 2**31 terms.

    Parameters
    ----------
    size : int
        Length of the arrays.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._digits: dict[int, NDArray[np.int64]] = {}

    def add(self, term: NDArray[np.float64]) -> None:
        """Add an array."""
        rest = term.copy()
        while largest := float(np.abs(rest).max(initial=0.0)):
            place = (math.frexp(largest)[1] - 1) // _DIGIT
            unit = math.ldexp(1.0, _DIGIT * place)
            # Scaling by a power of two, cutting off and taking the rest are all exact.
            digit = np.trunc(rest / unit)
            rest -= digit * unit
            self._digits.setdefault(place, np.zeros(self.size, np.int64)).__iadd__(digit.astype(np.int64))

    def round(self) -> NDArray[np.float64]:
        """Return the sum in double precision."""
        total = np.zeros(self.size)
        for place in sorted(self._digits):
            total += self._digits[place] * math.ldexp(1.0, _DIGIT * place)
        return total


class RowCombiner:
    """What the users of one row send for their model in one round, combined as it arrives.

    The result is a function of the round's starting weights and of these replies only: the bytes do not depend on who
    answered first, nor on anything sent for another model. ``mean`` keeps a running sum (see `ExactSum`), whose size
    does not depend on the number of users. The median and the trimmed mean need every value of a coordinate and keep
    all replies; in large federations let `FederatedSettings.sample` bound their number. Values of the weights' own type
    cannot overflow in double precision, and no average leaves the range of what it averages.

    Parameters
    ----------
    start : arrays
        The weights the round began with.
    settings : FederatedSettings
    """

    def __init__(self, start: Arrays, settings: FederatedSettings) -> None:
        self.start = start
        self.settings = settings
        self.weight = 0
        self._sum = ExactSum(sum(array.size for array in start.values()))
        self._kept: dict[int, NDArray[np.float64]] = {}

    def add(self, user: int, reply: Arrays, weight: int) -> None:
        """Take in arrays that `check_reply` accepted, with the user's capped sample count."""
        values = self._flatten(reply)
        if self.settings.clip_norm is not None:
            values = self._shorten(values, self.settings.clip_norm)
        self.weight += weight
        if self.settings.rule == "mean":
            # w = sum_j n_j w_j / sum_j n_j  (McMahan et al. 2017, algorithm 1), over the users of the row
            self._sum.add(weight * values)
        else:
            self._kept[user] = values

    def finish(self) -> Arrays:
        """Return the model's next weights: those it started with when nobody replied."""
        if not self.weight:
            return dict(self.start)
        if self.settings.rule == "mean":
            values = self._sum.round() / self.weight
        else:
            values = self._trim([self._kept[user] for user in sorted(self._kept)])
        found: Arrays = {}
        first = 0
        for name, begin in self.start.items():
            part = values[first : first + begin.size].reshape(begin.shape)
            # asarray: arithmetic turns 0-d arrays into scalars.
            found[name] = np.asarray(np.rint(part) if begin.dtype.kind in "iu" else part).astype(begin.dtype)
            first += begin.size
        return found

    def _flatten(self, arrays: Arrays) -> NDArray[np.float64]:
        return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in self.start])

    def _shorten(self, values: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
        """Scale the change of all float arrays by min(1, limit / its length)."""
        floats = np.concatenate([np.full(array.size, array.dtype.kind == "f") for array in self.start.values()])
        base = self._flatten(self.start)
        change = np.where(floats, values - base, 0.0)
        length = float(np.sqrt(np.square(change).sum()))
        return values if length <= limit else np.where(floats, base + (limit / length) * change, values)

    def _trim(self, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        ordered = np.sort(np.stack(values), axis=0)
        count = len(ordered)
        # Trimming that would leave nothing takes the middle: the median is the trimmed mean trimmed as far as it goes.
        half = (count - 1) // 2
        cut = half if self.settings.rule == "median" else min(self.settings.trim, half)
        total = np.zeros(ordered.shape[1:])
        for value in ordered[cut : count - cut]:
            total += value
        return total / (count - 2 * cut)


def combine(
    start: Arrays, replies: Mapping[int, Arrays], weights: Mapping[int, int], settings: FederatedSettings
) -> Arrays:
    """Combine what the users of one row sent for their model (see `RowCombiner`).

    Parameters
    ----------
    start : arrays
        The weights the round began with; returned as they are when nobody replied.
    replies : mapping of user to arrays
        Accepted by `check_reply`.
    weights : mapping of user to int
        Capped sample count of each of them.
    settings : FederatedSettings

    Examples
    --------
    >>> start = {"w": np.float32([0.0])}
    >>> replies = {0: {"w": np.float32([1.0])}, 3: {"w": np.float32([5.0])}}
    >>> combine(start, replies, {0: 30, 3: 10}, FederatedSettings())["w"]
    array([2.], dtype=float32)
    """
    combiner = RowCombiner(start, settings)
    for user, reply in replies.items():
        combiner.add(user, reply, weights[user])
    return combiner.finish()
