"""Layers of many stacked models, forward and backward by hand, in buffers that are made once.

Activations are (models, channels, height, width, batch): with the batch innermost, the patches of a convolution are
long runs of memory, and every product is one batched matrix product with torch's own weight layout. Buffers are kept
from step to step because at these sizes fetching fresh memory costs more than the arithmetic (docs/training-speed.md).
All operations work within a model: batched over models or elementwise.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn


class Layer(Protocol):
    """One layer of a stack."""

    def forward(self, values: Tensor) -> Tensor:
        """Return the layer's output; it stays valid until the next call."""

    def backward(self, grad: Tensor, needed: bool) -> Tensor:
        """Write the gradients of the weights, and return that of the input when it is ``needed``."""


class Parameter:
    """A weight of all models and the place of its gradient: views of two flat matrices, one row a model."""

    def __init__(self, value: Tensor, grad: Tensor) -> None:
        self.value, self.grad = value, grad


class Convolution:
    """3x3 and other convolutions of stride 1 with zero padding, as a product with the patches."""

    def __init__(self, layer: nn.Conv2d, weight: Parameter, bias: Parameter | None) -> None:
        self.weight, self.bias = weight, bias
        self.high, self.wide = layer.kernel_size
        self.top, self.left = (int(border) for border in layer.padding)
        self.padded = self.patches = self.out = self.spread = torch.empty(0)

    def forward(self, values: Tensor) -> Tensor:
        """Return the convolution plus bias."""
        models, channels, height, width, batch = values.shape
        rows, columns = height + 2 * self.top - self.high + 1, width + 2 * self.left - self.wide + 1
        outputs = self.weight.value.shape[1]
        if self.patches.numel() == 0:
            self.padded = values.new_zeros(models, channels, height + 2 * self.top, width + 2 * self.left, batch)
            self.patches = values.new_empty(models, channels, self.high, self.wide, rows, columns, batch)
            self.out = values.new_empty(models, outputs, rows * columns * batch)
            self.spread = torch.zeros_like(self.padded)
        self.padded[:, :, self.top : self.top + height, self.left : self.left + width] = values
        step = self.padded.stride()
        self.patches.copy_(self.padded.as_strided(self.patches.shape, (*step[:4], step[2], step[3], 1)))
        torch.bmm(self.weight.value.flatten(2), self.patches.view(models, -1, rows * columns * batch), out=self.out)
        if self.bias is not None:
            self.out += self.bias.value[:, :, None]
        return self.out.view(models, outputs, rows, columns, batch)

    def backward(self, grad: Tensor, needed: bool) -> Tensor:
        """Write weight and bias gradients; scatter the patches' gradient back when the input's is needed."""
        models, channels, high, wide, rows, columns, _ = self.patches.shape
        flat, patches = grad.flatten(2), self.patches.view(models, channels * high * wide, -1)
        # Patches first: the product the other way round takes the library twice as long.
        self.weight.grad.flatten(2).copy_(torch.bmm(patches, flat.transpose(1, 2)).transpose(1, 2))
        if self.bias is not None:
            self.bias.grad.copy_(flat.sum(2))
        if not needed:
            return grad
        torch.bmm(self.weight.value.flatten(2).transpose(1, 2), flat, out=patches)
        self.spread.zero_()
        for row in range(high):
            for column in range(wide):
                self.spread[:, :, row : row + rows, column : column + columns] += self.patches[:, :, row, column]
        bottom, right = self.spread.shape[2] - self.top, self.spread.shape[3] - self.left
        return self.spread[:, :, self.top : bottom, self.left : right]


class Dense:
    """Fully connected layers."""

    def __init__(self, weight: Parameter, bias: Parameter | None) -> None:
        self.weight, self.bias = weight, bias
        self.values = torch.empty(0)

    def forward(self, values: Tensor) -> Tensor:
        """Return the product plus bias."""
        self.values = values
        out = torch.bmm(self.weight.value, values)
        if self.bias is not None:
            out += self.bias.value[:, :, None]
        return out

    def backward(self, grad: Tensor, needed: bool) -> Tensor:
        """Write weight and bias gradients and return the input's."""
        self.weight.grad.copy_(torch.bmm(grad, self.values.transpose(1, 2)))
        if self.bias is not None:
            self.bias.grad.copy_(grad.sum(2))
        return torch.bmm(self.weight.value.transpose(1, 2), grad) if needed else grad


class Rectifier:
    """ReLU, in place: no layer reads its output again where the sign would matter."""

    def __init__(self) -> None:
        self.out = self.grad = torch.empty(0)

    def forward(self, values: Tensor) -> Tensor:
        """Cut off below zero; NaN stays."""
        self.out = values.clamp_min_(0)
        return self.out

    def backward(self, grad: Tensor, needed: bool) -> Tensor:
        """Pass the gradient where the output is positive."""
        if self.grad.shape != self.out.shape:
            self.grad = torch.empty_like(self.out, memory_format=torch.contiguous_format)
        torch.ops.aten.threshold_backward.grad_input(grad, self.out, 0, grad_input=self.grad)
        return self.grad


class Pool:
    """Square max-pooling without overlap; the gradient goes to the first maximum of a window, row by row."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values = self.out = self.spread = self.left = self.top = self.part = torch.empty(0)

    def _windows(self, values: Tensor) -> list[Tensor]:
        size = self.size
        high, wide = values.shape[2] // size * size, values.shape[3] // size * size
        return [values[:, :, i:high:size, j:wide:size] for i in range(size) for j in range(size)]

    def forward(self, values: Tensor) -> Tensor:
        """Return the maximum of every window."""
        self.values = values
        first, *others = self._windows(values)
        if self.out.numel() == 0:
            self.out = torch.empty_like(first, memory_format=torch.contiguous_format)
            self.spread = torch.zeros_like(values, memory_format=torch.contiguous_format)
            self.left, self.top, self.part = (torch.empty_like(self.out) for _ in range(3))
        self.out.copy_(first)
        for other in others:
            torch.maximum(self.out, other, out=self.out)
        return self.out

    def backward(self, grad: Tensor, needed: bool) -> Tensor:
        """Spread the gradient to the places of the maxima.

        A ReLU behind the pool may have raised the output to 0 in place: no window matches then, and none has a
        gradient.
        """
        self.left.copy_(grad)
        for source, target in zip(self._windows(self.values), self._windows(self.spread), strict=True):
            torch.eq(source, self.out, out=self.top)
            torch.mul(self.left, self.top, out=self.part)
            target.copy_(self.part)
            self.left -= self.part
        return self.spread


class Drop:
    """Dropout with one generator a model."""

    def __init__(self, rate: float, generators: Sequence[torch.Generator]) -> None:
        self.rate, self.generators = rate, generators
        self.keep = torch.empty(0)

    def forward(self, values: Tensor) -> Tensor:
        """Zero each value with probability ``rate`` and scale the others."""
        if self.keep.numel() == 0:
            self.keep = torch.empty_like(values, memory_format=torch.contiguous_format)
        for keep, generator in zip(self.keep, self.generators, strict=True):
            keep.bernoulli_(1 - self.rate, generator=generator)
        return values * self.keep.div_(1 - self.rate)

    def backward(self, grad: Tensor, needed: bool) -> Tensor:
        """Apply the same mask to the gradient."""
        return grad * self.keep


class Flatten:
    """(channels, height, width) to features, in ``nn.Flatten``'s order."""

    def __init__(self) -> None:
        self.shape = torch.Size()

    def forward(self, values: Tensor) -> Tensor:
        """Merge the axes between models and batch."""
        self.shape = values.shape
        return values.reshape(values.shape[0], -1, values.shape[-1])

    def backward(self, grad: Tensor, needed: bool) -> Tensor:
        """Split them again."""
        return grad.reshape(self.shape)
