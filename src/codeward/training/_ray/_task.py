"""What runs on a machine of the cluster: some users' arrays in, weights out, nothing kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors

from codeward._errors import InputError
from codeward._progress import silent
from codeward.data import Overlay, Samples
from codeward.training._architectures import Shape
from codeward.training._choice import run_engine
from codeward.training._jobs import Job, Reporter, Weights, Workshop
from codeward.training._plan import ModelPlan
from codeward.training._resident import ResidentSamples
from codeward.training._settings import TrainingSettings

Arrays = tuple[NDArray[np.generic], ...]


@dataclass(frozen=True)
class Recipe:
    """How the models of one training are made, beside their plans and data.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda``.
    engine : str
        ``loop``, ``stacked`` or ``lanes``: the engine within a task, the same that would train without a cluster.
    """

    settings: TrainingSettings
    precision: str
    shape: Shape
    device: str
    engine: str


def list_versions() -> dict[str, str]:
    """Return the releases of what decides a model's bytes; the build of a release (``+cpu``) does not count."""
    return {"codeward": version("codeward"), "torch": torch.__version__.partition("+")[0], "numpy": np.__version__}


def describe_arithmetic(device: str) -> str:
    """Name the instructions or the GPU that compute: machines of one name give the same last bits."""
    return torch.cuda.get_device_name() if device == "cuda" else str(torch.backends.cpu.get_cpu_capability())


def pack_samples(samples: Samples) -> Arrays:
    """Return samples as plain arrays of numbers: all that travels of what a user handed in."""
    shape = (len(samples.overlays), *samples.images.shape[1:])
    tables = (
        np.array([getattr(overlay, name) for overlay in samples.overlays], dtype=np.float32).reshape(shape)
        for name in ("values", "alpha")
    )
    return (
        np.array(samples.images, dtype=np.uint8, order="C"),
        np.array(samples.labels, dtype=np.int64),
        np.array(samples.overlay_ids, dtype=np.int32),
        *tables,
    )


def unpack_samples(arrays: Arrays) -> Samples:
    """Return what `pack_samples` packed, checked again."""
    images, labels, ids, values, alpha = arrays
    overlays = tuple(Overlay(*pair) for pair in zip(values, alpha, strict=True))
    return Samples(images, labels, overlays, ids)  # type: ignore[arg-type]


def train_chunk(
    plans: Sequence[ModelPlan], recipe: Recipe, versions: dict[str, str], *data: Arrays
) -> tuple[list[bytes], str]:
    """Train the models of one chunk; return their weights as safetensors, in the order of the plans.

    A pure function: the same arguments give the same bytes on every machine of one kind, at any attempt.

    Parameters
    ----------
    plans : sequence of ModelPlan
        Their users are places in ``data``.
    versions : dict
        `list_versions` of the caller; a machine with others refuses.
    data : Arrays
        Of the users of these models, and of nobody else.

    Returns
    -------
    weights : list of bytes
    arithmetic : str
        See `describe_arithmetic`.
    """
    for name, found in list_versions().items():
        if found != versions[name]:
            raise InputError(
                f"it has {name} {found} and the caller {versions[name]}; install the same release everywhere"
            )
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise InputError("it offers a GPU to Ray, but its torch sees none; use --set training.device=cpu")
    users = [unpack_samples(arrays) for arrays in data]
    jobs = [Job(plan, str(place)) for place, plan in enumerate(plans)]
    finished: dict[str, bytes] = {}

    def finish(job: Job, weights: Weights) -> None:
        finished[job.key] = save_tensors(weights)

    shop = Workshop(
        recipe.settings,
        recipe.precision,
        recipe.shape,
        [len(samples) for samples in users],
        ResidentSamples(users, recipe.settings, torch.device(recipe.device)),
        Reporter(silent(), len(jobs)),
        finish,
    )
    run_engine(recipe.engine, jobs, shop)
    return [finished[job.key] for job in jobs], describe_arithmetic(recipe.device)
