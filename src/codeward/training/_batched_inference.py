"""All m sub-models on one small batch at a time, as a server needs them."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from codeward.training._architectures import build_network
from codeward.training._engines import count_multiplications, is_compilable
from codeward.training._ensemble import Ensemble, vote

#: Multiplications of one image's forward pass up to which compiled layers are faster than torch even for one image,
#: which they compute as a batch of 16 (docs/development/training-speed.md).
_COMPILED_LIMIT = 1_000_000
#: Images of one pass through torch.
_BATCH = 64


class BatchedEnsemble:
    """The sub-models of an ensemble, all in memory, as one function from a few images to scores.

    Small sequential networks run through the compiled layers that train them, other networks through
    ``torch.func.vmap``. Scores agree with `Ensemble.scores` up to rounding. One thread at a time.

    Parameters
    ----------
    ensemble : Ensemble

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.codes import Code
    >>> from codeward.data import Samples
    >>> from codeward.training import BatchedEnsemble, TrainingSettings, train_ensemble
    >>> user = Samples(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1]))
    >>> settings = TrainingSettings(architecture="mlp", epochs=1, n_classes=2)
    >>> ensemble = train_ensemble([user, user], Code([[1, 0], [0, 1], [1, 1]]), settings, seed=0, device="cpu")
    >>> BatchedEnsemble(ensemble).scores(np.zeros((5, 1, 8, 8), np.float32)).shape
    (5, 3, 2)
    """

    def __init__(self, ensemble: Ensemble) -> None:
        settings = ensemble.settings
        self.shape, self.n_classes, self.n_models = ensemble.shape, settings.n_classes, ensemble.n_models
        self._averages_flips = settings.averages_flips
        self._mean = torch.tensor(settings.mean).view(-1, 1, 1)
        self._scale = 1 / torch.tensor(settings.std).view(-1, 1, 1)
        networks = [
            ensemble.load_into(build_network(settings.architecture, self.shape, self.n_classes, 0), model).eval()
            for model in range(self.n_models)
        ]
        small = is_compilable(networks[0]) and count_multiplications(networks[0], self.shape) <= _COMPILED_LIMIT
        if small:
            from codeward.training._compiled_engine import CompiledForward

            self._forward: Callable[[Tensor], Tensor] = CompiledForward(networks, self.shape)
        else:
            self._forward = _stack_modules(networks)

    def votes(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return each model's label for each image, shape (N, m); see `vote` for ties."""
        return vote(self.scores(images))

    def scores(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return log-probabilities, shape (N, m, c), of images on the 0..1 scale, shape (N, C, H, W)."""
        if not len(images):
            return np.zeros((0, self.n_models, self.n_classes), dtype=np.float32)
        with torch.inference_mode():
            ready = (torch.from_numpy(np.ascontiguousarray(images)) - self._mean) * self._scale
            sides = (ready, ready.flip(3)) if self._averages_flips else (ready,)
            parts = [[self._forward(side[at : at + _BATCH]) for at in range(0, len(ready), _BATCH)] for side in sides]
            logits = torch.stack([torch.cat(part, dim=1) for part in parts]).mean(0)
            return torch.log_softmax(logits, dim=2).permute(1, 0, 2).contiguous().numpy()


def _stack_modules(networks: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return images (B, C, H, W) -> logits (m, B, c) for any network, batch norm included."""
    parameters, buffers = stack_module_state(networks)

    def call(weights: dict[str, Tensor], state: dict[str, Tensor], images: Tensor) -> Tensor:
        logits: Tensor = functional_call(networks[0], (weights, state), (images,))
        return logits

    stacked = vmap(call, in_dims=(0, 0, None))
    return lambda images: stacked(parameters, buffers, images)
