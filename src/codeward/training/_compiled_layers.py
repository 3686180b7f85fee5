"""Layers of a compiled network: what each writes into the program, forward and backward.

Activations are (channels, height, width, batch), flat, with the batch innermost; values and gradients are places in the
memory of the program.
"""

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codeward.training._architectures import Shape
from codeward.training._program import (
    CORRELATE,
    MASK,
    MULTIPLY,
    PLACE,
    POOL,
    POOL_BACK,
    RECTIFY,
    RECTIFY_BACK,
    SUM,
    Program,
)

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


class Pool:
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
