"""GPU training: several models side by side, each in a lane of its own with one CUDA graph a step."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from codeward.training._adam import Update, make_update
from codeward.training._jobs import Job, Weights, Workshop
from codeward.training._lane import Lane, Loss, Start, make_loss
from codeward.training._plan import BatchStream, count_steps, plan_batches

_LOG = logging.getLogger(__name__)

#: Models that train at a time: small networks leave most of the chip idle, large ones only its gaps.
SMALL_NETWORK = 4_000_000
LANES_SMALL, LANES_LARGE = 8, 4

#: Steps of a lane that are queued at a time; two such bursts wait on the device at most.
_BURST = 16


def train_lanes(jobs: Sequence[Job], shop: Workshop) -> None:
    """Train jobs on a GPU, a few at a time, each in its own lane.

    A lane holds one model: weights, optimizer state, index stream, a CUDA stream, and a CUDA graph of one whole
    training step that finds its batch on the device by its own counter. Lanes share the read-only samples and nothing
    else, and each computes with kernels of one fixed shape: a model's bytes do not depend on what the other lanes do or
    on how many there are. A lane takes the next model as soon as its own is done, so models of unlike length waste
    nothing and none gets extra steps. Tasks come in their order, so that the first are whole while others train on.
    """
    steps = {job.key: count_steps(job.plan, shop.sizes, shop.settings) for job in jobs}
    ordered = sorted(jobs, key=lambda job: (job.task, -steps[job.key]))
    with _fixed_arithmetic(shop.precision):
        lanes = _open_lanes(max(jobs, key=lambda job: steps[job.key]), len(jobs), shop)
        shop.reporter.begin()
        with ThreadPoolExecutor(1, "prepare") as preparing, ThreadPoolExecutor(1, "save") as saving:
            _drive(lanes, ordered, shop, preparing, saving)


@contextmanager
def _fixed_arithmetic(precision: str) -> Iterator[None]:
    """Choose kernels by rule, never by stopwatch: a timing that goes the other way would change the last bits."""
    import torch._inductor.config as inductor_config

    inductor: Any = inductor_config
    cudnn: Any = torch.backends.cudnn
    wanted = {"deterministic": True, "benchmark": False}
    if precision == "float32":
        wanted["allow_tf32"] = False
    before = {name: getattr(cudnn, name) for name in wanted}
    for name, value in wanted.items():
        setattr(cudnn, name, value)
    try:
        # The launch shape of elementwise kernels is chosen by stopwatch even in deterministic mode (which compilers
        # before torch 2.10 lack), and the two shapes round Adam's second moment differently.
        fixed: dict[str, Any] = {"triton.autotune_pointwise": False}
        if hasattr(inductor, "deterministic"):
            fixed["deterministic"] = True
        with inductor.patch(fixed):
            yield
    finally:
        for name, value in before.items():
            setattr(cudnn, name, value)


def _open_lanes(longest: Job, n_jobs: int, shop: Workshop) -> list[Lane]:
    """Build and capture the lanes; compiled kernels when the compiler works, plain ones with a warning otherwise."""
    size = sum(parameter.numel() for parameter in shop.build(0).parameters())
    n_lanes = min(n_jobs, LANES_SMALL if size < SMALL_NETWORK else LANES_LARGE)
    first = _prepare(longest, shop)
    steps = len(first.stream)
    loss, update = make_loss(shop), make_update(shop.settings)

    def open_all(loss: Loss, update: Update) -> list[Lane]:
        lanes = [Lane(shop, steps, loss, update) for _ in range(n_lanes)]
        for lane in lanes:
            lane.load(first)
            lane.capture()
        return lanes

    try:
        return open_all(torch.compile(loss, dynamic=False), torch.compile(update, dynamic=True))
    except Exception as error:
        _LOG.warning("training: compiled kernels are not to be had here (%s); training without them", error)
        torch.cuda.synchronize()
        return open_all(loss, update)


def _prepare(job: Job, shop: Workshop) -> Start:
    """Make a model and its batches and copy them to the device, on a stream beside those of the lanes."""
    weights = {name: value.detach() for name, value in shop.build(job.plan.seed).state_dict().items()}
    stream = plan_batches(job.plan, shop.sizes, shop.settings, shop.settings.batch_size)
    return Start.send(weights, stream, job.plan.seed, shop.samples.device)


def _finish(shop: Workshop, job: Job, fetch: Callable[[], Weights]) -> None:
    shop.finish(job, fetch())


def _drive(
    lanes: Sequence[Lane],
    jobs: Sequence[Job],
    shop: Workshop,
    preparing: ThreadPoolExecutor,
    saving: ThreadPoolExecutor,
) -> None:
    waiting = deque(jobs)
    prepared: deque[tuple[Job, Future[Start]]] = deque()
    saved: list[Future[None]] = []
    running: dict[Lane, tuple[Job, BatchStream]] = {}
    free = list(lanes)

    def take() -> None:
        while waiting and len(prepared) < len(lanes) + 1:
            job = waiting.popleft()
            prepared.append((job, preparing.submit(_prepare, job, shop)))

    take()
    while (running or prepared) and not shop.stop.is_set():
        while free and prepared:
            job, future = prepared.popleft()
            take()
            lane = free.pop()
            start = future.result()
            lane.load(start)
            running[lane] = job, start.stream
        for lane, (job, stream) in list(running.items()):
            before = lane.launched
            lane.launch(min(_BURST, len(stream) - before))
            epochs = lane.launched // stream.steps_per_epoch - before // stream.steps_per_epoch
            if epochs:
                shop.reporter.advance(epochs=epochs, images=epochs * sum(shop.sizes[user] for user in job.plan.users))
            if lane.launched == len(stream):
                saved.append(saving.submit(_finish, shop, job, lane.export()))
                del running[lane]
                free.append(lane)
        while saved and saved[0].done():
            saved.pop(0).result()
    for future_saved in saved:
        future_saved.result()
