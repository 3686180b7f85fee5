"""Layers of many stacked models, forward only, in buffers that are made once.

Activations are (models, channels, height, width, batch): with the batch innermost, the patches of a convolution are
long runs of memory, and every product is one batched matrix product with torch's own weight layout. Buffers are kept
from call to call because at these sizes fetching fresh memory costs more than the arithmetic.
All operations work within a model: batched over models or elementwise.
"""

from typing import Protocol

import torch
from torch import Tensor, nn


class Layer(Protocol):
    """One layer of a stack."""

    def forward(self, values: Tensor) -> Tensor:
        """Return the layer's output; it stays valid until the next call."""


class Convolution:
    """3x3 and other convolutions of stride 1 with zero padding, as a product with the patches."""

    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.high, self.wide = layer.kernel_size
        self.top, self.left = (int(border) for border in layer.padding)
        self.padded = self.patches = self.out = torch.empty(0)

    def forward(self, values: Tensor) -> Tensor:
        """Return the convolution plus bias."""
        models, channels, height, width, batch = values.shape
        rows, columns = height + 2 * self.top - self.high + 1, width + 2 * self.left - self.wide + 1
        outputs = self.weight.shape[1]
        if self.patches.numel() == 0:
            self.padded = values.new_zeros(models, channels, height + 2 * self.top, width + 2 * self.left, batch)
            self.patches = values.new_empty(models, channels, self.high, self.wide, rows, columns, batch)
            self.out = values.new_empty(models, outputs, rows * columns * batch)
        self.padded[:, :, self.top : self.top + height, self.left : self.left + width] = values
        step = self.padded.stride()
        self.patches.copy_(self.padded.as_strided(self.patches.shape, (*step[:4], step[2], step[3], 1)))
        torch.bmm(self.weight.flatten(2), self.patches.view(models, -1, rows * columns * batch), out=self.out)
        if self.bias is not None:
            self.out += self.bias[:, :, None]
        return self.out.view(models, outputs, rows, columns, batch)


class Dense:
    """Fully connected layers."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def forward(self, values: Tensor) -> Tensor:
        """Return the product plus bias."""
        out = torch.bmm(self.weight, values)
        if self.bias is not None:
            out += self.bias[:, :, None]
        return out


class Rectifier:
    """ReLU, in place."""

    def forward(self, values: Tensor) -> Tensor:
        """Cut off below zero; NaN stays."""
        return values.clamp_min_(0)


class Pool:
    """Square max-pooling without overlap."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.out = torch.empty(0)

    def _windows(self, values: Tensor) -> list[Tensor]:
        size = self.size
        high, wide = values.shape[2] // size * size, values.shape[3] // size * size
        return [values[:, :, i:high:size, j:wide:size] for i in range(size) for j in range(size)]

    def forward(self, values: Tensor) -> Tensor:
        """Return the maximum of every window."""
        first, *others = self._windows(values)
        if self.out.numel() == 0:
            self.out = torch.empty_like(first, memory_format=torch.contiguous_format)
        self.out.copy_(first)
        for other in others:
            torch.maximum(self.out, other, out=self.out)
        return self.out


class Flatten:
    """(channels, height, width) to features, in ``nn.Flatten``'s order."""

    def forward(self, values: Tensor) -> Tensor:
        """Merge the axes between models and batch."""
        return values.reshape(values.shape[0], -1, values.shape[-1])
