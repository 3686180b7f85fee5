"""All m sub-models asked at once: weights stacked along a leading axis, one pass for a whole batch."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from codeward.serve._layers import Convolution, Dense, Flatten, Layer, Pool, Rectifier
from codeward.training import Ensemble, build_network, is_compilable

#: Batch sizes with buffers of their own; a batch is filled up to the next of them.
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: Bytes the widest layer's buffer may take: past the caches a larger batch is slower an image, not faster.
BUFFER_BYTES = 16 * 2**20


class StackedModels:
    """The sub-models of an ensemble as one function from images to scores.

    Small sequential networks run through stacked layers; other networks through ``torch.func.vmap``. Scores agree with
    `Ensemble.scores` up to rounding.

    Parameters
    ----------
    ensemble : Ensemble

    Notes
    -----
    Buffers are reused from call to call: one thread at a time.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        settings = ensemble.settings
        self.shape, self.n_classes, self.n_models = ensemble.shape, settings.n_classes, ensemble.n_models
        self._mean = torch.tensor(settings.mean).view(-1, 1, 1)
        self._scale = 1 / torch.tensor(settings.std).view(-1, 1, 1)
        networks = []
        for model in range(ensemble.n_models):
            network = build_network(settings.architecture, ensemble.shape, settings.n_classes, 0)
            network.load_state_dict(ensemble.weights(model))
            networks.append(network.eval())
        stackable = is_compilable(networks[0])
        widest = _count_cells(networks[0], ensemble.shape) * 4 * ensemble.n_models if stackable else 0
        self.sizes = tuple(size for size in SIZES if size == 1 or size * widest <= BUFFER_BYTES)
        self._forward = _stack_layers(networks, self.sizes) if stackable else _stack_modules(networks)

    def scores(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return log-probabilities, shape (N, m, c), of images on the 0..1 scale, shape (N, C, H, W)."""
        parts = []
        with torch.inference_mode():
            for start in range(0, len(images), self.sizes[-1]):
                chunk = torch.from_numpy(np.ascontiguousarray(images[start : start + self.sizes[-1]]))
                size = next(size for size in self.sizes if size >= len(chunk))
                filled = chunk.new_zeros(size, *self.shape)
                filled[: len(chunk)] = (chunk - self._mean) * self._scale
                logits = self._forward(filled)[:, : len(chunk)]
                parts.append(torch.log_softmax(logits, dim=2).permute(1, 0, 2).contiguous().numpy())
        return np.concatenate(parts) if parts else np.zeros((0, self.n_models, self.n_classes), dtype=np.float32)


def _stack_layers(networks: list[nn.Module], sizes: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Return images (B, C, H, W) -> logits (m, B, c), B one of ``sizes``, through stacked layers."""
    weights = {
        name: torch.stack([network.get_parameter(name).detach() for network in networks])
        for name, _ in networks[0].named_parameters()
    }

    def build(name: str, layer: nn.Module) -> Layer | None:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
            return Convolution(layer, weight, bias) if isinstance(layer, nn.Conv2d) else Dense(weight, bias)
        if isinstance(layer, nn.MaxPool2d):
            return Pool(int(layer.kernel_size))  # type: ignore[arg-type]
        if isinstance(layer, nn.Dropout):
            return None
        return Rectifier() if isinstance(layer, nn.ReLU) else Flatten()

    # Layers keep buffers for the first batch size they see: a sequence for each size, over the same weights.
    sequences = {
        size: [made for name, layer in networks[0].named_children() if (made := build(name, layer)) is not None]
        for size in sizes
    }

    def forward(images: Tensor) -> Tensor:
        passed = images.permute(1, 2, 3, 0).expand(len(networks), -1, -1, -1, -1)
        for layer in sequences[len(images)]:
            passed = layer.forward(passed)
        return passed.permute(0, 2, 1)

    return forward


def _stack_modules(networks: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return images (B, C, H, W) -> logits (m, B, c) for any network, batch norm included."""
    parameters, buffers = stack_module_state(networks)

    def call(weights: dict[str, Tensor], state: dict[str, Tensor], images: Tensor) -> Tensor:
        logits: Tensor = functional_call(networks[0], (weights, state), (images,))
        return logits

    stacked = vmap(call, in_dims=(0, 0, None))
    return lambda images: stacked(parameters, buffers, images)


def _count_cells(network: nn.Module, shape: tuple[int, int, int]) -> int:
    """Count the values in the widest buffer of one image and model: the patches of a convolution."""
    passed, most = torch.zeros(1, *shape), int(np.prod(shape))
    with torch.inference_mode():
        for layer in network.children():
            passed = layer(passed)
            patch = layer.weight[0].numel() * passed[0, 0].numel() if isinstance(layer, nn.Conv2d) else 0
            most = max(most, patch, passed.numel())
    return most
