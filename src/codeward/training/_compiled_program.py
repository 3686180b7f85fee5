"""A small sequential network as a list of kernel calls, forward and backward, run without Python.

Between two calls from Python its lock has to be taken again; with one thread a core that costs small networks as much
as half of their arithmetic. So the calls of a step are written down once, as lines of whole numbers, and a whole row of
steps is one call. All numbers of a model are in one flat array; places are indices into it or into a table of lists.
Activations are (channels, height, width, batch), flat, with the batch innermost.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codeward._compiled import compiled
from codeward._errors import InputError
from codeward.training._architectures import Shape
from codeward.training._layer_kernels import (
    apply_mask,
    correlate,
    differentiate_loss,
    multiply,
    pick_batch,
    place_inside,
    pool,
    pool_back,
    rectify,
    rectify_back,
    step_adam,
    sum_places,
)
from codeward.training._vectors import LANES

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]
_Doubles = NDArray[np.float64]

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
    smoothing: float,
    moments: _Floats,
    taken: int,
    rates: _Doubles,
    decay: float,
) -> None:
    """Run the lines for each of a row of batches, then take a step of Adam; without ``rates`` weights stay as they are.

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
                differentiate_loss(values[a : a + b], own_labels, counts[step], share, smoothing, values[c : c + b])
        if rates.size > 0:
            weights, grad = values[:size], values[size : 2 * size]
            step_adam(weights, grad, moments[0], moments[1], taken + step + 1, rates[step], decay)


_Size = tuple[int, int]

#: Places of a weight gradient's sum that are taken together: few enough to stay in the near caches.
_NEAR = 2048

#: Channels, rows and columns as three axes.
_AXES = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))


class Layer(Protocol):
    """One layer; ``shape`` is that of its output, (channels, height, width)."""

    shape: Shape

    def forward(self, program: Program, values: int) -> int:
        """Write the layer's output into the program and return its place."""

    def backward(self, program: Program, grad: int, needed: bool) -> int:
        """Write the gradients of the weights and, when it is ``needed``, that of the input; return its place."""


class Convolution:
    """A convolution of stride 1 with zero padding; a dense layer is one of kernel 1 on images of one pixel.

    Parameters
    ----------
    weight, bias : pair of int
        Places of the weights and of their gradients; of the bias, None without.
    """

    def __init__(
        self, inputs: Shape, outputs: int, kernel: _Size, padding: _Size, batch: int, weight: _Size, bias: _Size | None
    ) -> None:
        (_, height, width), (high, wide), (top, left) = inputs, kernel, padding
        self.inputs, self.kernel, self.padding, self.batch = inputs, kernel, padding, batch
        self.weight, self.bias = weight, bias
        self.shape = (outputs, height + 2 * top - high + 1, width + 2 * left - wide + 1)
        self.out = self.values = self.list = 0

    def forward(self, program: Program, values: int) -> int:
        """Write the convolution plus bias: the kernel moves over the input with its padding."""
        (channels, height, width), (top, left), (outputs, rows, columns) = self.inputs, self.padding, self.shape
        size = (height + 2 * top, width + 2 * left)
        self.values = _add_border(program, values, self.inputs, size, self.padding, self.batch)
        offsets = _find_inputs(channels, self.kernel, size, self.batch)
        self.list, places = program.keep(offsets), program.keep(np.arange(offsets.size))
        self.out = program.reserve(math.prod(self.shape) * self.batch)
        bias = self.bias[0] if self.bias is not None else program.reserve(outputs)
        program.add(
            MULTIPLY, self.values, self.list, offsets.size, self.weight[0], places, offsets.size, bias, outputs,
            self.out, rows, size[1] * self.batch, columns * self.batch,
        )  # fmt: skip
        return self.out

    def backward(self, program: Program, grad: int, needed: bool) -> int:
        """Write the gradients; the input's is a convolution too.

        Its kernels are turned by 180 degrees, with inputs and outputs exchanged, and move over the gradient with a
        border, one step a pixel of the input.
        """
        (channels, height, width), (high, wide), (top, left) = self.inputs, self.kernel, self.padding
        (outputs, rows, columns), taps = self.shape, high * wide
        run = columns * self.batch
        program.add(
            CORRELATE, self.values, self.list, channels * taps, grad, self.weight[1], outputs, rows,
            (width + 2 * left) * self.batch, run, max(1, _NEAR // run), min(run, _NEAR),
        )  # fmt: skip
        if self.bias is not None:
            program.add(SUM, grad, math.prod(self.shape) * self.batch, self.bias[1], outputs)
        if not needed:
            return grad
        size = (height + high - 1, width + wide - 1)
        bordered = _add_border(program, grad, self.shape, size, (high - 1 - top, wide - 1 - left), self.batch)
        offsets = program.keep(_find_inputs(outputs, self.kernel, size, self.batch))
        output, tap = np.arange(outputs)[:, None], np.arange(taps)
        places = program.keep(((output * channels + 1) * taps - 1 - tap).ravel())
        out, nothing = program.reserve(math.prod(self.inputs) * self.batch), program.reserve(channels)
        program.add(
            MULTIPLY, bordered, offsets, outputs * taps, self.weight[0], places, taps, nothing, channels, out, height,
            size[1] * self.batch, width * self.batch,
        )  # fmt: skip
        return out


class MaxPool:
    """Square max-pooling without overlap; the gradient goes to the first maximum of a window, row by row."""

    def __init__(self, inputs: Shape, size: int, batch: int, before: Layer | None) -> None:
        self.inputs, self.size, self.batch, self.before = inputs, size, batch, before
        self.shape = (inputs[0], inputs[1] // size, inputs[2] // size)
        self.which = 0

    def forward(self, program: Program, values: int) -> int:
        """Write the maximum of every window, and where it is."""
        out, self.which = (program.reserve(math.prod(self.shape) * self.batch) for _ in range(2))
        program.add(POOL, values, *self.inputs, self.size, out, self.which)
        return out

    def backward(self, program: Program, grad: int, needed: bool) -> int:
        """Write the gradient at the places of the maxima."""
        # A convolution does not read its output again, so its gradient may take the same memory: near caches are small.
        if isinstance(self.before, Convolution) and self.inputs[1] % self.size == self.inputs[2] % self.size == 0:
            out = self.before.out
        else:
            out = program.reserve(math.prod(self.inputs) * self.batch)
        program.add(POOL_BACK, grad, *self.inputs, self.size, self.which, out)
        return out


class Rectifier:
    """ReLU, in place: no layer reads its output again where the sign would matter."""

    def __init__(self, inputs: Shape, batch: int) -> None:
        self.shape, self.size = inputs, math.prod(inputs) * batch
        self.out = 0

    def forward(self, program: Program, values: int) -> int:
        """Cut off below zero; NaN stays."""
        self.out = values
        program.add(RECTIFY, values, self.size)
        return values

    def backward(self, program: Program, grad: int, needed: bool) -> int:
        """Pass the gradient where the output is positive."""
        program.add(RECTIFY_BACK, grad, self.size, self.out)
        return grad


class Drop:
    """Dropout: a mask, drawn before the program runs, zeroes each value with probability ``rate``."""

    def __init__(self, inputs: Shape, rate: float, batch: int) -> None:
        self.shape, self.rate, self.size = inputs, rate, math.prod(inputs) * batch
        self.mask = 0

    def forward(self, program: Program, values: int) -> int:
        """Apply the mask."""
        self.mask = program.reserve(self.size)
        return self.backward(program, values, True)

    def backward(self, program: Program, grad: int, needed: bool) -> int:
        """Apply the same mask to the gradient."""
        out = program.reserve(self.size)
        program.add(MASK, grad, self.size, self.mask, out)
        return out

    def draw(self, values: Tensor, generator: torch.Generator) -> None:
        """Draw the mask, into the memory of a program; what it keeps is scaled."""
        mask = values[self.mask : self.mask + self.size]
        mask.bernoulli_(1 - self.rate, generator=generator).div_(1 - self.rate)


def _add_border(program: Program, values: int, shape: Shape, size: _Size, corner: _Size, batch: int) -> int:
    """Copy images into larger ones, their corner to ``corner``; without a border they stay where they are."""
    if not any(corner):
        return values
    out = program.reserve(shape[0] * math.prod(size) * batch)
    program.add(PLACE, values, *shape, out, *size, *corner)
    return out


def _find_inputs(channels: int, kernel: _Size, size: _Size, batch: int) -> NDArray[np.int64]:
    """Return where the inputs of the first place lie in images of ``size``: channel by channel, tap by tap."""
    channel, row, column = (np.arange(n).reshape(axes) for n, axes in zip((channels, *kernel), _AXES, strict=True))
    return (((channel * size[0] + row) * size[1] + column) * batch).ravel()


class Blueprint:
    """The program of a network for batches of one size; all models of a shape share it, since it holds none of theirs.

    Parameters
    ----------
    network : nn.Sequential
        As `is_compilable` wants it; its weights are not read.
    shape : tuple of int
        Channels, height, width of an image.
    batch : int
        Samples of a batch, a multiple of `LANES`.
    """

    def __init__(self, network: nn.Module, shape: Shape, batch: int) -> None:
        self.batch = batch
        self.shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
        self.places: dict[str, slice] = {}
        start = 0
        for name, size in self.shapes.items():
            self.places[name] = slice(start, start + math.prod(size))
            start += math.prod(size)
        program = Program()
        # The gradients follow at a multiple of LANES, like everything.
        self.n_weights = round_up(start)
        program.reserve(2 * self.n_weights)
        self.image_size = math.prod(shape) * batch
        self.images = program.reserve(self.image_size)
        layers = self._build(network, shape)
        self.n_classes = math.prod(layers[-1].shape)
        self.logits = self.images
        for layer in layers:
            self.logits = layer.forward(program, self.logits)
        self.n_forward = len(program.lines)
        grad = program.reserve(self.n_classes * batch)
        program.add(LOSS, self.logits, self.n_classes * batch, grad)
        # No gradient is needed before the first layer with weights.
        first = next(i for i, layer in enumerate(layers) if isinstance(layer, Convolution))
        for place in range(len(layers) - 1, first - 1, -1):
            grad = layers[place].backward(program, grad, place > first)
        self.lines, self.table = program.build()
        self.size = program.size
        self.drops = [layer for layer in layers if isinstance(layer, Drop)]

    def _build(self, network: nn.Module, shape: Shape) -> list[Layer]:
        layers: list[Layer] = []
        for name, layer in _swap_pools(network):
            made = self._build_layer(name, layer, shape, layers[-1] if layers else None)
            # Flattening leaves the numbers where they are.
            shape = made.shape if made is not None else (math.prod(shape), 1, 1)
            # Kernels trust what they are told about sizes.
            if min(shape) < 1:
                raise InputError(f"layer {name} ({layer}) leaves nothing of the images; use a smaller network")
            layers += [made] if made is not None else []
        return layers

    def _build_layer(self, name: str, layer: nn.Module, shape: Shape, before: Layer | None) -> Layer | None:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            if layer.weight.shape[1] != shape[0]:
                raise InputError(f"layer {name} ({layer}) does not fit its input of shape {shape}")
            weight = self._find(f"{name}.weight")
            bias = self._find(f"{name}.bias") if layer.bias is not None else None
            if isinstance(layer, nn.Linear):
                return Convolution(shape, layer.out_features, (1, 1), (0, 0), self.batch, weight, bias)
            high, wide = layer.kernel_size
            top, left = (int(border) for border in layer.padding)
            return Convolution(shape, layer.out_channels, (high, wide), (top, left), self.batch, weight, bias)
        if isinstance(layer, nn.MaxPool2d):
            return MaxPool(shape, int(layer.kernel_size), self.batch, before)  # type: ignore[arg-type]
        if isinstance(layer, nn.Dropout):
            return Drop(shape, layer.p, self.batch)
        return Rectifier(shape, self.batch) if isinstance(layer, nn.ReLU) else None

    def _find(self, name: str) -> tuple[int, int]:
        """Return the places of a weight and of its gradient."""
        start: int = self.places[name].start
        return start, start + self.n_weights


def round_up(size: int) -> int:
    """Return the least multiple of `LANES` from ``size`` on."""
    return -(-size // LANES) * LANES


def _swap_pools(network: nn.Module) -> Sequence[tuple[str, nn.Module]]:
    """Return the layers by name, with a ReLU in front of a max-pool moved behind it: the same function and gradient.

    The maximum of a window is positive where one of its values is, and only then is there a gradient; behind the pool
    the ReLU has a quarter of the work.
    """
    layers = list(network.named_children())
    for place in range(len(layers) - 1):
        if isinstance(layers[place][1], nn.ReLU) and isinstance(layers[place + 1][1], nn.MaxPool2d):
            layers[place : place + 2] = layers[place + 1], layers[place]
    return layers
