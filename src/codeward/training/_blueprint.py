"""A small sequential network as a program of compiled kernels, without the numbers of a model."""

import math
from collections.abc import Sequence

from torch import nn

from codeward._errors import InputError
from codeward.training._architectures import Shape
from codeward.training._compiled_layers import Convolution, Drop, Layer, Pool, Rectifier
from codeward.training._program import LOSS, Program
from codeward.training._vectors import LANES


class Blueprint:
    """The program of a network for batches of one size; all models of a shape share it, since it holds none of theirs.

    Parameters
    ----------
    network : nn.Sequential
        Stackable (see `is_compilable`); its weights are not read.
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
            return Pool(shape, int(layer.kernel_size), self.batch, before)  # type: ignore[arg-type]
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
