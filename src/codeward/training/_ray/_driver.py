"""The side that hands out tasks and takes in weights."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from safetensors.torch import load as load_tensors

from codeward._errors import InputError
from codeward.data import Samples
from codeward.training._architectures import build_network
from codeward.training._jobs import Job, Reporter, Weights
from codeward.training._ray._chunks import cut_chunks
from codeward.training._ray._cluster import Cluster
from codeward.training._ray._task import Recipe, describe_arithmetic, list_versions, pack_samples, train_chunk

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
                reporter.advance(epochs=settings.epochs, images=settings.epochs * images)
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
