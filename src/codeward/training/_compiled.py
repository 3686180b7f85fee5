"""One small sequential network as a program of compiled kernels, in memory of its own.

A network holds one model and shares nothing with another: what a model becomes cannot depend on what trains beside it.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from codeward._errors import InputError
from codeward.training._architectures import Shape
from codeward.training._compiled_layers import Convolution, Drop, Layer, Pool, Rectifier
from codeward.training._jobs import Weights
from codeward.training._program import LOSS, Program, run_program
from codeward.training._vectors import LANES

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]


class CompiledNetwork:
    """One model: all its numbers in one flat array, the weights first and their gradients behind them.

    Parameters
    ----------
    network : nn.Sequential
        Stackable (see `is_stackable`); gives the layers and the initial weights.
    shape : tuple of int
        Channels, height, width of an image.
    batch : int
        Samples of a batch, a multiple of `LANES`.
    generator : torch.Generator
        For its dropout masks.
    """

    def __init__(self, network: nn.Module, shape: Shape, batch: int, generator: torch.Generator) -> None:
        self.batch, self.generator = batch, generator
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
        self.layers = self._build(network, shape)
        self.n_classes = math.prod(self.layers[-1].shape)
        self.logits = self.images
        for layer in self.layers:
            self.logits = layer.forward(program, self.logits)
        grad = program.reserve(self.n_classes * batch)
        program.add(LOSS, self.logits, self.n_classes * batch, grad)
        # No gradient is needed before the first layer with weights.
        first = next(i for i, layer in enumerate(self.layers) if isinstance(layer, Convolution))
        for place in range(len(self.layers) - 1, first - 1, -1):
            grad = self.layers[place].backward(program, grad, place > first)
        self.lines, self.table = program.build()
        self.values, self.moments = allocate(program.size), np.zeros((2, self.n_weights), np.float32)
        self.drops = [layer for layer in self.layers if isinstance(layer, Drop)]
        self.steps = 0
        for name, parameter in network.named_parameters():
            self.values[self.places[name]] = parameter.detach().numpy().ravel()

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
            return Pool(shape, int(layer.kernel_size), self.batch, before)  # type: ignore[arg-type]
        if isinstance(layer, nn.Dropout):
            return Drop(shape, layer.p, self.batch)
        return Rectifier(shape, self.batch) if isinstance(layer, nn.ReLU) else None

    def _find(self, name: str) -> tuple[int, int]:
        """Return the places of a weight and of its gradient."""
        start: int = self.places[name].start
        return start, start + self.n_weights

    def compute_gradients(self, images: _Floats, labels: _Ints, count: int, share: float) -> _Floats:
        """Run forward and backward on one batch of those of `train`; return the logits, shape (classes, batch)."""
        self._run(images[None], labels[None], np.array([count]), share, 0.0, 0.0)
        size = self.n_classes * self.batch
        return self.values[self.logits : self.logits + size].reshape(self.n_classes, self.batch).copy()

    def train(self, images: _Floats, labels: _Ints, counts: _Ints, share: float, rate: float, decay: float) -> None:
        """Take one step of Adam with each of some batches.

        Parameters
        ----------
        images : ndarray of float32, shape (batches, channels * height * width * batch)
        labels : ndarray of int64, shape (batches, batch)
        counts : ndarray of int64, shape (batches,)
            The first ``counts[i]`` samples of a batch count in its loss; the rest only fill it.
        share : float
            Weight of a sample in the loss, the cross-entropy ``share * sum(-log p[label])``.
        rate, decay : float
            Learning rate, above 0, and weight decay.
        """
        # Masks are drawn by torch, before the program runs: then a batch at a time.
        together = 1 if self.drops else len(images)
        for start in range(0, len(images), together):
            part = slice(start, start + together)
            self._run(images[part], labels[part], counts[part], share, rate, decay)
            self.steps += together

    def _run(self, images: _Floats, labels: _Ints, counts: _Ints, share: float, rate: float, decay: float) -> None:
        if images.shape[1] != self.image_size or labels.shape != (len(images), self.batch):
            raise ValueError(f"{images.shape} pixels and {labels.shape} labels for batches of {self.batch}")
        for layer in self.drops:
            layer.draw(torch.from_numpy(self.values), self.generator)
        run_program(
            self.lines, self.table, self.values, images, self.images, labels, counts, share, self.moments, self.steps,
            rate, decay,
        )  # fmt: skip

    def weights(self) -> Weights:
        """Return a copy of the weights under the names of the network."""
        return {
            name: torch.from_numpy(self.values[place].reshape(self.shapes[name]).copy())
            for name, place in self.places.items()
        }

    def grad(self, name: str) -> _Floats:
        """Return a copy of the gradient of a weight, as the last batch left it."""
        place = self.places[name]
        found = self.values[place.start + self.n_weights : place.stop + self.n_weights]
        return found.reshape(self.shapes[name]).copy()


def round_up(size: int) -> int:
    """Return the least multiple of `LANES` from ``size`` on."""
    return -(-size // LANES) * LANES


def allocate(size: int) -> _Floats:
    """Return zeros that start at a cache line: a vector of a batch is then never split between two."""
    raw = np.zeros(size + LANES, np.float32)
    start = -raw.ctypes.data // raw.itemsize % LANES
    return raw[start : start + size]


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
