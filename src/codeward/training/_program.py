"""A network as a list of kernel calls, run without Python.

Between two calls from Python its lock has to be taken again; with one thread a core that costs small networks as much
as half of their arithmetic. So the calls of a step are written down once, as lines of whole numbers, and a whole row of
steps is one call. All numbers of a model are in one flat array; places are indices into it or into a table of lists.
"""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.training._kernels import correlate, multiply, sum_places
from codeward.training._passes import (
    apply_mask,
    differentiate_loss,
    pick_batch,
    place_inside,
    pool,
    pool_back,
    rectify,
    rectify_back,
    step_adam,
)
from codeward.training._vectors import LANES

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]

#: The kernels by number; what follows each in its line is in `run_program`.
MULTIPLY, CORRELATE, SUM, PLACE, POOL, POOL_BACK, RECTIFY, RECTIFY_BACK, MASK, LOSS = range(10)

#: Numbers in a line, the kernel's included.
_LENGTH = 13


class Program:
    """Lines that are being written, and how much memory they speak of."""

    def __init__(self) -> None:
        self.size = 0
        self.lines: list[tuple[int, ...]] = []
        self.lists: list[_Ints] = []

    def reserve(self, size: int) -> int:
        """Return the place of ``size`` numbers that nobody else gets; it begins a cache line."""
        place = self.size
        self.size += -(-size // LANES) * LANES
        return place

    def keep(self, values: _Ints) -> int:
        """Put whole numbers into the table and return their place there."""
        self.lists.append(values)
        return sum(kept.size for kept in self.lists[:-1])

    def add(self, kernel: int, *numbers: int) -> None:
        """Write a line."""
        self.lines.append((kernel, *numbers, *[0] * (_LENGTH - 1 - len(numbers))))

    def build(self) -> tuple[_Ints, _Ints]:
        """Return the lines and the table."""
        return np.array(self.lines, dtype=np.int64), np.concatenate(self.lists)


@compiled
def run_program(
    lines: _Ints,
    table: _Ints,
    values: _Floats,
    start: int,
    samples: _Floats,
    labels: _Ints,
    index: _Ints,
    counts: _Ints,
    share: float,
    moments: _Floats,
    taken: int,
    rate: float,
    decay: float,
) -> None:
    """Run the lines for each of a row of batches, then take a step of Adam; with ``rate`` 0 weights stay as they are.

    Batch ``i``, the samples ``index[i]``, is first put at place ``start``. Weights are the first of ``values``, their
    gradients the next, and ``moments`` has two rows of as many; ``taken`` steps were taken before. For the loss see
    `differentiate_loss`.
    """
    batch, size = index.shape[1], moments.shape[1]
    own_labels = np.empty(batch, np.int64)
    for step in range(len(index)):
        pick_batch(samples, labels, index[step], values[start:], own_labels)
        for i in range(len(lines)):
            line = lines[i]
            kernel, a, b, c, d, e, f = line[0], line[1], line[2], line[3], line[4], line[5], line[6]
            g, h, j, k, m, n = line[7], line[8], line[9], line[10], line[11], line[12]
            if kernel == MULTIPLY:
                weights, bias, out = values[d:], values[g : g + h], values[j:]
                multiply(values[a:], table[b : b + c], weights, table[e : e + c], f, bias, out, k, m, n)
            elif kernel == CORRELATE:
                correlate(values[a:], table[b : b + c], values[d:], values[e : e + f * c], g, h, j, k, m)
            elif kernel == SUM:
                sum_places(values[a : a + b], values[c : c + d])
            elif kernel == PLACE:
                place_inside(values[a:], (b, c, d), values[e:], (f, g), (h, j), batch)
            elif kernel == POOL:
                pool(values[a:], (b, c, d), e, batch, values[f:], values[g:])
            elif kernel == POOL_BACK:
                pool_back(values[a:], (b, c, d), e, batch, values[f:], values[g:])
            elif kernel == RECTIFY:
                rectify(values[a : a + b])
            elif kernel == RECTIFY_BACK:
                rectify_back(values[a : a + b], values[c:])
            elif kernel == MASK:
                apply_mask(values[a : a + b], values[c:], values[d:])
            elif kernel == LOSS:
                differentiate_loss(values[a : a + b], own_labels, counts[step], share, values[c : c + b])
        if rate > 0:
            weights, grad = values[:size], values[size : 2 * size]
            step_adam(weights, grad, moments[0], moments[1], taken + step + 1, rate, decay)
