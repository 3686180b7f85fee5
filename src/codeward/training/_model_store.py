"""The model store: weights and scores under the hash of everything they depend on."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from codeward._errors import InputError
from codeward._files import LARGEST_FILE, read_bytes, read_json, write_atomic, write_text_atomic
from codeward.training._sub_models import ModelPlan
from codeward.training._training_settings import TrainingSettings

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)

#: Part of every key; raised when training changes what it computes for the same inputs. 3: compiled layers on a CPU;
#: 4 to 8, CUDA graphs only: torch's own batch norm, its own convolutions, batches picked before the step, own kernels,
#: own first layer and warps. Mixed batches of compiled layers are 4: some were read past their arrays in 3.
FORMAT, MIXED_FORMAT, GRAPH_FORMAT = 3, 4, 8

#: Bytes of the JSON beside a model.
_LARGEST_SIDECAR = 2**20


def model_key(
    plan: ModelPlan, digests: Sequence[str], settings: TrainingSettings, architecture: str, computation: str
) -> str:
    """Hash everything a sub-model is a function of (content addressing); nothing of other users enters.

    Isolation: Proposition 15 of docs/theory.md.

    Parameters
    ----------
    digests : sequence of str
        `Samples.digest` of every user of the run; those of ``plan.users`` enter, in ascending user order.
    architecture : str
        `fingerprint` of the network.
    computation : str
        Device type, engine and precision: what the last bits depend on.

    Examples
    --------
    >>> from codeward.training import ModelPlan, TrainingSettings
    >>> plan = ModelPlan(users=(0, 2), replica=0, seed=1)
    >>> key, other = (
    ...     model_key(plan, ["a", user_1, "c"], TrainingSettings(), "net", "cpu loop float32") for user_1 in ("b", "x")
    ... )
    >>> key == other, len(key)  # user 1 is none of its users
    (True, 64)
    """
    content = {
        "format": _find_format(settings, computation),
        "data": [digests[user] for user in plan.users],
        "settings": settings.to_json(),
        "architecture": architecture,
        "seed": plan.seed,
        "computation": computation,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _find_format(settings: TrainingSettings, computation: str) -> int:
    if computation.startswith("cuda lanes"):
        return GRAPH_FORMAT
    return MIXED_FORMAT if settings.batches == "mixed" and computation.startswith("cpu stacked") else FORMAT


def network_keys(key: str, committee: int) -> tuple[str, ...]:
    """Return the keys of the networks of a sub-model; the first is the sub-model's own.

    Examples
    --------
    >>> keys = network_keys("0" * 64, 2)
    >>> keys[0] == "0" * 64, len(keys[1])
    (True, 64)
    """
    others = (hashlib.sha256(f"{key} network {number}".encode()).hexdigest() for number in range(1, committee))
    return (key, *others)


class ModelStore:
    """A folder of trained sub-models, shared by any number of runs and processes.

    An entry is ``<key>.json`` and the file it names (safetensors; skops for scikit-learn models), whose name carries
    the hash of its content. The JSON is written last, by an atomic rename: an entry is there whole or not at all, at
    whatever moment a process is killed, and two processes that write one entry leave a whole one. What
    is read is compared with its SHA-256 first; an entry that fails is logged, listed in ``corrupted_`` and treated as
    absent, so that it is trained again and replaced.

    Parameters
    ----------
    root : path-like
        Made when missing.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> key = "0" * 64
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ModelStore(folder)
    ...     store.save_weights(key, {"weight": torch.ones(2)}, {"users": [0]})
    ...     store.load_weights(key)
    {'weight': tensor([1., 1.])}
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.corrupted_: list[str] = []

    def load_weights(self, key: str) -> "dict[str, torch.Tensor] | None":
        """Return the weights under ``key``, verified, or None when there are none to be trusted."""
        from safetensors.torch import load as load_tensors

        content = self.load_bytes(key)
        return None if content is None else load_tensors(content)

    def save_weights(self, key: str, weights: "dict[str, torch.Tensor]", about: dict[str, Any]) -> None:
        """Write weights and what is known about them under ``key``, durably, before returning."""
        from safetensors.torch import save as save_tensors

        self.save_bytes(key, save_tensors(weights), about, "safetensors")

    def load_bytes(self, key: str) -> bytes | None:
        """Return the bytes of the model under ``key``, verified, or None when there are none to be trusted."""
        return self._read(self._folder(key) / f"{key}.json")

    def save_bytes(self, key: str, content: bytes, about: dict[str, Any], suffix: str) -> None:
        """Write a model of any family, as bytes, and what is known about it under ``key``."""
        self._write(self._folder(key), key, content, about, suffix)

    def holds(self, key: str) -> bool:
        """Tell whether there is a verified model under ``key``."""
        return self.load_bytes(key) is not None

    def holds_all(self, keys: Iterable[str], committee: int = 1) -> bool:
        """Tell whether there are verified models under all keys, with every network of a committee."""
        return all(self.holds(one) for key in dict.fromkeys(keys) for one in network_keys(key, committee))

    def load_scores(self, key: str, inputs: str) -> NDArray[np.float32] | None:
        """Return the scores of model ``key`` on the evaluation set of digest ``inputs``, shape (N, c), or None."""
        content = self._read(self._folder(key) / f"{key}.scores.{inputs}.json", "scores")
        return None if content is None else load_arrays(content)["scores"]

    def save_scores(self, key: str, inputs: str, scores: NDArray[np.float32]) -> None:
        """Write the scores of model ``key`` on the evaluation set of digest ``inputs``."""
        self._write(self._folder(key), f"{key}.scores.{inputs}", save_arrays({"scores": scores}), {"inputs": inputs})

    def _folder(self, key: str) -> Path:
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise InputError(f"model store: {key!r} is not a key (64 hexadecimal digits)")
        return self.root / key[:2]

    def _write(
        self, folder: Path, name: str, content: bytes, about: dict[str, Any], suffix: str = "safetensors"
    ) -> None:
        digest = hashlib.sha256(content).hexdigest()
        file = f"{name}.{digest[:16]}.{suffix}"
        write_atomic(folder / file, lambda out: out.write(content))
        sidecar = {"file": file, "sha256": digest, "bytes": len(content), "about": about}
        write_text_atomic(folder / f"{name}.json", json.dumps(sidecar, indent=1, sort_keys=True) + "\n")

    def _read(self, sidecar: Path, needed: str | None = None) -> bytes | None:
        if not os.path.lexists(sidecar):
            return None
        try:
            entry = read_json(sidecar, _LARGEST_SIDECAR)
            # No more than the sidecar announces: the file may be a link to anything.
            content = read_bytes(sidecar.parent / Path(entry["file"]).name, min(entry["bytes"], LARGEST_FILE))
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise ValueError("content does not match its SHA-256")
            if entry["file"].endswith(".safetensors") and needed not in (None, *load_arrays(content)):
                raise ValueError(f"it holds no {needed}")
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            _LOG.warning("model store: %s is damaged (%s); it is ignored and will be made again", sidecar, error)
            self.corrupted_.append(sidecar.name.partition(".")[0])
            return None
        return content
