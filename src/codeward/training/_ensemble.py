"""Trained sub-models: what they say of samples, one model after the other, or all at once on one small batch."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from codeward._errors import InputError
from codeward.data import Samples
from codeward.training._architectures import Shape, build_network
from codeward.training._device_batches import DeviceSamples, arrange
from codeward.training._engines import Weights, count_multiplications, count_workers, is_compilable, run_in_threads
from codeward.training._model_store import ModelStore, network_keys
from codeward.training._training_settings import TrainingSettings

#: Images of one forward pass.
_EVALUATION_BATCH = {"cpu": 250, "cuda": 2000}


@dataclass(frozen=True)
class Ensemble:
    """Sub-models in the order of the code's rows.

    Attributes
    ----------
    keys : tuple of str
        Content address of each model; equal keys are the same model. Of a committee, that of its first network.
    trained, reused : int
        How many distinct models this call trained and how many it found in the store.
    settings : TrainingSettings
    shape : tuple of int
        Channels, height, width of the images.
    device : torch.device
        Where `scores` computes.
    precision : str
        ``float32`` or ``bfloat16``: arithmetic of `scores`.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.codes import Code
    >>> from codeward.data import Samples
    >>> from codeward.training import TrainingSettings, train_ensemble
    >>> user = Samples(np.zeros((4, 1, 8, 8), np.uint8), np.array([1, 1, 1, 1]))
    >>> settings = TrainingSettings(architecture="mlp", epochs=50, n_classes=2)
    >>> ensemble = train_ensemble([user, user], Code([[1, 0], [0, 1], [1, 1]]), settings, seed=0, device="cpu")
    >>> ensemble.votes(user.take(np.arange(2)))
    array([[1, 1, 1],
           [1, 1, 1]])
    """

    keys: tuple[str, ...]
    trained: int
    reused: int
    settings: TrainingSettings
    shape: Shape
    device: torch.device
    precision: str
    _weights: Mapping[str, Weights] = field(repr=False)
    _store: ModelStore | None = field(repr=False)

    @classmethod
    def load(cls, store: ModelStore, keys: Sequence[str], settings: TrainingSettings, shape: Shape) -> "Ensemble":
        """Return trained models of a store, for the CPU: what was trained on a GPU votes here too.

        Raises
        ------
        InputError
            When the store lacks one of them, or has it damaged.
        """
        weights: dict[str, Weights] = {}
        lacking = []
        for key in dict.fromkeys(keys):
            found = {one: store.load_weights(one) for one in network_keys(key, settings.committee)}
            weights |= {one: loaded for one, loaded in found.items() if loaded is not None}
            lacking += [key] if None in found.values() else []
        if lacking:
            of = len(set(keys))
            raise InputError(f"{store.root}: lacks {len(lacking)} of {of} sub-models (moved or damaged)")
        return cls(tuple(keys), 0, len(set(keys)), settings, shape, torch.device("cpu"), "float32", weights, store)

    @property
    def n_models(self) -> int:
        """Number of sub-models m."""
        return len(self.keys)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return self.settings.n_classes

    @property
    def network_keys(self) -> tuple[str, ...]:
        """Keys of all networks, those of a model together; without committees they are `keys`."""
        return tuple(one for key in self.keys for one in network_keys(key, self.settings.committee))

    @property
    def store(self) -> ModelStore | None:
        """Where the models are kept; None for models in memory only."""
        return self._store

    def weights(self, model: int, network: int = 0) -> Weights:
        """Return the weights of a network of a model as CPU tensors by name; read from the store if not in memory."""
        key = network_keys(self.keys[model], self.settings.committee)[network]
        if key in self._weights:
            return self._weights[key]
        loaded = self._store.load_weights(key) if self._store else None
        if loaded is None:
            raise InputError(f"model {model} (key {key[:12]}) is gone from the store or damaged; train again")
        return loaded

    def load_into(self, network: nn.Module, model: int, number: int = 0) -> nn.Module:
        """Give a network of the right architecture the weights of a model (its network ``number``), and return it."""
        try:
            weights, device = self.weights(model, number), next(network.parameters()).device
            network.load_state_dict(weights if device.type == "cpu" else send_together(weights, device))
        except RuntimeError as error:
            raise InputError(
                f"model {model} (key {self.keys[model][:12]}): its weights do not fit {self.settings.architecture}; "
                "remove it from the store and train again"
            ) from error
        return network

    def scores(self, samples: Samples) -> NDArray[np.float32]:
        """Return log-probabilities (log-softmax of the logits), shape (N, m, c), float32.

        A committee has the mean of its networks' probabilities. Overlays of the samples are applied; augmentation is
        not. With a store, the scores of each network are kept under its key and the digest of the samples and read from
        there the next time. A model whose training diverged gives NaN; `vote` says how it counts.
        """
        return self.score_all([samples])[0]

    def score_all(self, sets: Sequence[Samples]) -> list[NDArray[np.float32]]:
        """Return `scores` for several sets of samples; each model is loaded once for all of them."""
        digests = [samples.digest() for samples in sets]
        found: dict[tuple[str, str], NDArray[np.float32]] = {}
        keys, size = self.network_keys, self.settings.committee
        missing: dict[int, list[int]] = {}  # place of a network -> sets it has no scores for
        for place, key in enumerate(keys):
            for number, digest in enumerate(digests):
                if (key, digest) in found or keys.index(key) < place or digest in digests[:number]:
                    continue
                kept = self._store.load_scores(key, digest) if self._store else None
                if kept is None:
                    missing.setdefault(place, []).append(number)
                else:
                    found[key, digest] = kept
        if missing:
            unscored = {number for numbers in missing.values() for number in numbers}
            resident = {number: DeviceSamples([sets[number]], self.settings, self.device) for number in unscored}
            n_workers = 1 if self.device.type != "cpu" else count_workers(len(missing))
            # A network is built once a worker: drawing weights only to overwrite them costs more than inference.
            networks = [self._build() for _ in range(n_workers)]
            stream = None
            if self.device.type == "cuda":  # ahead of the queued steps of models that train beside
                stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
                stream.wait_stream(torch.cuda.current_stream())

            def infer(place: int, numbers: list[int]) -> None:
                with torch.cuda.stream(stream):
                    network = self.load_into(networks.pop(), *divmod(place, size))
                    for number in numbers:
                        scores = self._score(network, resident[number])
                        if self._store:
                            self._store.save_scores(keys[place], digests[number], scores)
                        found[keys[place], digests[number]] = scores
                    networks.append(network)

            run_in_threads([partial(infer, *item) for item in missing.items()], threading.Event(), n_workers)
        empty = np.zeros((0, self.settings.n_classes), dtype=np.float32)
        return [
            average_networks(np.stack([found[key, digest] for key in keys], axis=1), size)
            if keys
            else np.repeat(empty[None], len(samples), axis=0)
            for samples, digest in zip(sets, digests, strict=True)
        ]

    def votes(self, samples: Samples) -> NDArray[np.int64]:
        """Return each model's label for each sample, shape (N, m); see `vote` for ties."""
        return vote(self.scores(samples))

    def _build(self) -> nn.Module:
        network = build_network(self.settings.architecture, self.shape, self.settings.n_classes, 0)
        network = network.to(self.device).eval()
        if self.device.type == "cuda":
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def _score(self, network: nn.Module, resident: DeviceSamples) -> NDArray[np.float32]:
        device, parts = self.device, []
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            everything = torch.arange(len(resident.labels), device=device)
            for index in torch.split(everything, _EVALUATION_BATCH[device.type]):
                images = arrange(resident.gather(index))
                logits = network(images)
                if self.settings.averages_flips:
                    logits = (logits + network(images.flip(3))) / 2
                parts.append(torch.log_softmax(logits.float(), dim=1))
        empty = torch.zeros(0, self.settings.n_classes)
        scores: NDArray[np.float32] = torch.cat(parts or [empty]).cpu().numpy()
        return scores


def send_together(weights: Weights, device: torch.device) -> Weights:
    """Copy tensors to a device, those of one type in one piece.

    A copy from the host waits for what is queued in its stream, and beside models that train the queues are long:
    votes of one model took as many waits as it has tensors.
    """
    sent: Weights = {}
    for dtype in dict.fromkeys(value.dtype for value in weights.values()):
        names = [name for name, value in weights.items() if value.dtype == dtype]
        flat = torch.cat([weights[name].reshape(-1) for name in names]).to(device)
        pieces = torch.split(flat, [weights[name].numel() for name in names])
        sent |= {name: piece.view(weights[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return sent


def average_networks(scores: NDArray[np.float32], committee: int) -> NDArray[np.float32]:
    """Turn log-probabilities of networks, shape (N, m s, c), into those of committees of s, shape (N, m, c).

    A committee has the mean of its networks' probabilities; it gives NaN where one of them does.

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(average_networks(np.log(np.array([[[0.2, 0.8], [0.6, 0.4]]], np.float32)), 2)).round(2)
    array([[[0.4, 0.6]]], dtype=float32)
    """
    if committee == 1:
        return scores
    by_model = scores.reshape(len(scores), -1, committee, scores.shape[2])
    mean: NDArray[np.float32] = np.logaddexp.reduce(by_model, axis=2) - np.float32(np.log(committee))
    return mean


def vote(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Turn scores (..., c) into votes (...): the highest score, ties to the smaller label.

    NaN counts as the lowest score, so that a model that diverged (all NaN) says 0 rather than nothing.

    Examples
    --------
    >>> import numpy as np
    >>> vote(np.array([[-1.0, -0.5], [np.nan, np.nan]], np.float32))
    array([1, 0])
    """
    votes: NDArray[np.int64] = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=-1).astype(np.int64)
    return votes


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
        self._committee = settings.committee
        networks = [
            ensemble.load_into(build_network(settings.architecture, self.shape, self.n_classes, 0), *place).eval()
            for place in product(range(self.n_models), range(self._committee))
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
            each: NDArray[np.float32] = torch.log_softmax(logits, dim=2).permute(1, 0, 2).contiguous().numpy()
            return average_networks(each, self._committee)


def _stack_modules(networks: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return images (B, C, H, W) -> logits (m, B, c) for any network, batch norm included."""
    parameters, buffers = stack_module_state(networks)

    def call(weights: dict[str, Tensor], state: dict[str, Tensor], images: Tensor) -> Tensor:
        logits: Tensor = functional_call(networks[0], (weights, state), (images,))
        return logits

    stacked = vmap(call, in_dims=(0, 0, None))
    return lambda images: stacked(parameters, buffers, images)
