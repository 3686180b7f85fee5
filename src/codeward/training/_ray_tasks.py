"""Training on a Ray cluster: what goes into a task, what runs on its machine, and the side that takes in weights."""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch.utils.flop_counter import FlopCounterMode

from codeward._errors import InputError
from codeward._progress import silent
from codeward._version import __version__
from codeward.data import Overlay, Samples
from codeward.training._architectures import Shape, build_network
from codeward.training._device_batches import DeviceSamples
from codeward.training._engines import Job, Reporter, TrainingContext, Weights, count_workers, run_engine
from codeward.training._ray_cluster import Cluster
from codeward.training._sub_models import ModelPlan, count_steps
from codeward.training._training_settings import TrainingSettings

Arrays = tuple[NDArray[np.generic], ...]


@dataclass(frozen=True)
class Recipe:
    """How the models of one training are made, beside their plans and data.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda``.
    engine : str
        ``loop``, ``compiled`` or ``graphs``: the engine within a task, the same that would train without a cluster.
    """

    settings: TrainingSettings
    precision: str
    shape: Shape
    device: str
    engine: str


def list_versions() -> dict[str, str]:
    """Return the releases of what decides a model's bytes; the build of a release (``+cpu``) does not count."""
    return {"codeward": __version__, "torch": torch.__version__.partition("+")[0], "numpy": np.__version__}


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

    context = TrainingContext(
        recipe.settings,
        recipe.precision,
        recipe.shape,
        [len(samples) for samples in users],
        DeviceSamples(users, recipe.settings, torch.device(recipe.device)),
        Reporter(silent(), len(jobs)),
        finish,
    )
    run_engine(recipe.engine, jobs, context)
    return [finished[job.key] for job in jobs], describe_arithmetic(recipe.device)


#: Models of one task on a GPU: a task compiles its kernels first (15 to 40 s), and a lost one is trained again.
GPU_CHUNK = 16


def cut_chunks(jobs: Sequence[Job], sizes: Sequence[int], settings: TrainingSettings, n_gpus: int) -> list[list[Job]]:
    """Divide jobs into the tasks of a cluster; a task is what a lost machine loses.

    The cut decides how long a training takes and never what comes out: a model's bytes do not depend on its companions
    (see `codeward.training.train_ensemble`).

    - On CPUs: one model a task, on one core.
    - On GPUs (``n_gpus`` above 0): alike in number, at most `GPU_CHUNK`, one a GPU where there are enough models.

    The models of earlier tasks come first.
    """
    ordered = sorted(jobs, key=lambda job: (job.task, -count_steps(job.plan, sizes, settings)))
    n_chunks = min(len(ordered), max(n_gpus, -(-len(ordered) // GPU_CHUNK))) if n_gpus else len(ordered)
    borders = [len(ordered) * chunk // n_chunks for chunk in range(n_chunks + 1)]
    return [ordered[start:stop] for start, stop in pairwise(borders)]


#: Multiplications of forward passes a second that one core trains at (each costs a backward pass too), and the seconds
#: from the call to the first step: Ray's own start and stop, and the import of torch in its workers. Both measured by
#: benchmarks/cluster.py (docs/ray.md); good to a factor of two, which is enough for a line of advice.
RATE = 4e9
START = {"local": 9.0, "cluster": 4.0}


def announce(cluster: Cluster, jobs: Sequence[Job], sizes: Sequence[int], recipe: Recipe) -> None:
    """Say in one line on stderr that training on this machine's cores, without Ray, would be faster, where it would.

    The work is counted from the plans: images of all epochs of all jobs times the multiplications of a forward pass. It
    is divided by `RATE` and by the cores on either side; the cluster's side pays `START`. GPUs are not compared.
    """
    if recipe.device != "cpu":
        return
    local = cluster.address == "local"
    counts = [sum(sizes[user] for user in job.plan.users) for job in jobs]
    images = sum(count * recipe.settings.for_samples(count).epochs for count in counts)
    work = images * count_multiplications(recipe) / RATE
    cores = count_workers(sys.maxsize)
    here = work / min(cores, len(jobs))
    there = START["local" if local else "cluster"] + work / max(
        1, min(cores if local else cluster.count("CPU"), len(jobs))
    )
    if there > here:
        print(
            f"codeward: this training takes about {here:.0f} s on this machine without Ray and about {there:.0f} s "
            "with it, start-up included; Ray pays on more machines and longer trainings",
            file=sys.stderr,
            flush=True,
        )


def count_multiplications(recipe: Recipe) -> int:
    """Count the multiplications of one image's forward pass, whatever the network."""
    network = build_network(recipe.settings.architecture, recipe.shape, recipe.settings.n_classes, 0).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *recipe.shape))
    return int(counter.get_total_flops()) // 2


_LOG = logging.getLogger(__name__)

#: How often a task is started again after its worker or its whole machine was lost; then the run fails, and what is
#: finished stays in the store.
RETRIES = 5

#: Seconds between looks at the tasks: Ctrl-C waits no longer.
_INTERVAL = 0.5


def train_on_cluster(
    cluster: Cluster,
    jobs: Sequence[Job],
    users: Sequence[Samples],
    recipe: Recipe,
    reporter: Reporter,
    finish: Callable[[Job, Weights], None],
) -> None:
    """Train jobs in stateless tasks of a Ray cluster.

    Each user's data go to the object store once; a task gets those of its own models' users, the plans with their
    seeds, and nothing else, and returns weights. A task whose worker or machine is lost runs again elsewhere and gives
    the same bytes. Only this side writes: no shared file system is needed.

    Parameters
    ----------
    jobs : sequence of Job
        The users of their plans are places in ``users``.
    reporter : Reporter
        Advances when a task is done.
    finish : callable
        Called here, in this thread, with the weights of each model as soon as its task is done.
    """
    ray = cluster.open()
    on_gpu = recipe.device == "cuda"
    if not cluster.count("GPU" if on_gpu else "CPU"):
        _LOG.warning("training: the cluster has no %s at the moment; waiting for one", "GPU" if on_gpu else "CPU")
    sizes = [len(samples) for samples in users]
    chunks = cut_chunks(jobs, sizes, recipe.settings, cluster.count("GPU") if on_gpu else 0)
    data: dict[int, Any] = {}
    pending: dict[Any, list[Job]] = {}
    task = ray.remote(train_chunk).options(
        name="codeward-train", num_cpus=1, num_gpus=int(on_gpu), max_retries=RETRIES, retry_exceptions=False
    )
    try:
        for chunk in chunks:
            places = sorted({user for job in chunk for user in job.plan.users})
            for user in places:
                if user not in data:
                    data[user] = ray.put(pack_samples(users[user]))
            renumber = {user: place for place, user in enumerate(places)}
            plans = [replace(job.plan, users=tuple(renumber[user] for user in job.plan.users)) for job in chunk]
            pending[task.remote(plans, recipe, list_versions(), *(data[user] for user in places))] = chunk
        _collect(ray, pending, sizes, recipe, reporter, finish)
    finally:
        # A cluster of our own ends with its tasks. Cancelling them there is needless, and Ray 2.55 aborts the whole
        # process when a task completes while it is being cancelled.
        for left in pending if not cluster.is_own else ():
            with suppress(Exception):  # where the cluster is gone, so are its tasks
                ray.cancel(left, force=True)


def _collect(
    ray: Any,
    pending: dict[Any, list[Job]],
    sizes: Sequence[int],
    recipe: Recipe,
    reporter: Reporter,
    finish: Callable[[Job, Weights], None],
) -> None:
    settings = recipe.settings
    names = list(build_network(settings.architecture, recipe.shape, settings.n_classes, 0).state_dict())
    seen = set()
    while pending:
        done, _ = ray.wait(list(pending), num_returns=1, timeout=_INTERVAL)
        for reference in done:
            contents, arithmetic = _fetch(ray, reference)
            for job, content in zip(pending.pop(reference), contents, strict=True):
                images = sum(sizes[user] for user in job.plan.users)
                epochs = settings.for_samples(images).epochs
                reporter.advance(epochs=epochs, images=epochs * images)
                weights = load_tensors(content)
                finish(job, {name: weights[name] for name in names})  # in the order in which a network lists them
            seen.add(arithmetic)
    own = describe_arithmetic("cpu") if recipe.device == "cpu" else next(iter(seen))
    if seen - {own}:
        _LOG.warning(
            "training: the machines compute differently (%s); the last bits of a model depend on which of them trained "
            "it, and training again may give others",
            ", ".join(sorted(seen | {own})),
        )


def _fetch(ray: Any, reference: Any) -> Any:
    errors = ray.exceptions
    try:
        return ray.get(reference)
    except errors.RayTaskError as error:
        # Ray's message is the whole traceback of the other machine; the cause says it in a line.
        cause = error.cause
        if isinstance(cause, InputError):
            raise InputError(f"training on a machine of the cluster: {cause}") from error
        reason = str(cause).strip().splitlines()[-1:] or [type(cause).__name__]
        raise RuntimeError(f"training on a machine of the cluster failed: {reason[0]}") from error
    except errors.RayError as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ConnectionError(
            f"training: the cluster lost a task for good ({reason[0]}); finished models are kept, run again to go on"
        ) from error
