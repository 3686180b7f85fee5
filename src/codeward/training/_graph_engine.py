"""GPU training: several models side by side, each advanced by replaying its own CUDA graph of one step."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codeward.training._engines import Job, TrainingContext, Weights, fixed_convolutions
from codeward.training._step_functions import (
    Gradient,
    Named,
    Update,
    WeightGroup,
    differentiate,
    list_uncounted,
    make_fast_gradient,
    make_loss,
    make_update,
)
from codeward.training._sub_models import BatchStream, count_steps, plan_batches
from codeward.training._training_settings import TrainingSettings

_BATCH_COUNT = "num_batches_tracked"
_WARM_UP = 3  # steps before a graph is recorded; a trainer has room for as many

#: What a trainer has of a model's batches, one entry a step.
_STREAM = ("index", "shifts", "counts", "shares", "rates")


@dataclass(frozen=True)
class Start:
    """A model before its first step, on the device: initial weights, batches, and what its dropout masks come from.

    Attributes
    ----------
    weights : dict of Tensor
    index, shifts, counts, shares : Tensor
        The batches; see `BatchStream`.
    rates : Tensor
        Learning rate of every step.
    stream : BatchStream
        The same on the host.
    seed : int
    """

    weights: Weights
    index: Tensor
    shifts: Tensor
    counts: Tensor
    shares: Tensor
    rates: Tensor
    stream: BatchStream
    seed: int

    @staticmethod
    def send(
        weights: Weights, stream: BatchStream, settings: TrainingSettings, seed: int, device: torch.device
    ) -> "Start":
        """Copy a model and its batches to the device; all is there on return."""
        rates = np.array([settings.rate_at(step, len(stream)) for step in range(len(stream))], dtype=np.float32)
        index, shifts, counts, shares, rates_there = (
            torch.from_numpy(part).to(device)
            for part in (stream.index, stream.shifts, stream.counts, stream.shares, rates)
        )
        there = {name: value.to(device) for name, value in weights.items()}
        return Start(there, index, shifts, counts, shares, rates_there, stream, seed)


class GraphTrainer:
    """A model's weights, optimizer state and batches on the device, and its captured training step.

    Parameters
    ----------
    context : TrainingContext
    steps : int
        Length of the longest index stream the trainer will hold.
    gradient : callable
        Of the loss of a step, by every weight.
    update : callable
        From `make_update`, compiled or not.

    Notes
    -----
    Weights, moments and the optimizer's arithmetic are float32. With bfloat16, matrices and kernels have a bfloat16
    copy that the network reads and the optimizer rewrites in the same pass; vectors (biases, batch norm) stay float32.
    """

    def __init__(self, context: TrainingContext, steps: int, gradient: Gradient, update: Update) -> None:
        device, settings, self.samples = context.samples.device, context.settings, context.samples
        network = context.build(0).to(device)
        if device.type == "cuda":
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.gradient = gradient
        named = {name: value.detach() for name, value in network.named_parameters()}
        half = torch.bfloat16 if context.precision == "bfloat16" else torch.float32
        self.groups: list[WeightGroup] = []
        self.masters: Named = {}
        self.parameters: Named = {}
        for is_matrix, kind in ((True, half), (False, torch.float32)):
            names = [name for name, value in named.items() if (value.ndim > 1) == is_matrix]
            if names:
                joined = not is_matrix or settings.optimizer == "sgd"
                group = WeightGroup([named[name] for name in names], kind, joined, update)
                self.groups.append(group)
                self.masters |= dict(zip(names, group.masters, strict=True))
                self.parameters |= dict(zip(names, group.leaves, strict=True))
        buffers = dict(network.named_buffers())
        left_out = {f"{name}.{_BATCH_COUNT}" for name in list_uncounted(network)}
        self.buffers = {name: value for name, value in buffers.items() if name not in left_out}
        self.order = list(network.state_dict())
        steps = max(steps, _WARM_UP)
        places = (steps, settings.batch_size)
        self.index = torch.zeros(places, dtype=torch.int64, device=device)
        self.shifts = torch.zeros(places, dtype=torch.uint8, device=device)
        self.counts = torch.ones(steps, dtype=torch.int64, device=device)
        self.shares, self.rates = (torch.ones(steps, device=device) for _ in range(2))
        self.full = torch.ones(1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.launched = 0
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self.stream is not None:  # what is made above was queued in another stream
            self.stream.wait_stream(torch.cuda.current_stream())
        self.graph: torch.cuda.CUDAGraph | None = None
        self.events: deque[torch.cuda.Event] = deque()

    def step(self) -> None:
        """Take one training step with the batch at ``position`` and move on."""
        index, shifts, count, share, rate = (getattr(self, name).index_select(0, self.position) for name in _STREAM)
        batch = self.samples.pick(index[0]), self.samples.labels[index[0]], shifts[0], count, share
        found = self.gradient(self.parameters, self.buffers, *batch, self.full, self.position, self.seed)
        grads = [found[name] for name in self.parameters]  # in the order of the groups
        with torch.no_grad():
            for group in self.groups:
                group.step(grads[: len(group.leaves)], rate)
                grads = grads[len(group.leaves) :]
            self.position += 1

    def capture(self) -> None:
        """Warm up and record `step` as a CUDA graph with memory of its own."""
        with torch.cuda.stream(self.stream):
            for _ in range(_WARM_UP):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self.step()
        torch.cuda.synchronize()

    @torch.no_grad()
    def load(self, start: Start) -> None:
        """Put a model at its start: initial weights, empty optimizer state, its own batches.

        Waits for nothing: the copies come behind the steps that are queued in this trainer.
        """
        with torch.cuda.stream(self.stream):
            for name, tensor in {**self.masters, **self.buffers}.items():
                if name in start.weights:
                    tensor.copy_(start.weights[name])
            for group in self.groups:
                group.reset()
            steps = len(start.stream)
            for name in _STREAM:
                getattr(self, name)[:steps].copy_(getattr(start, name))
            self.full.fill_(start.stream.full)
            self.position.zero_()
            self.seed.fill_(start.seed % 2**31)
        if self.stream is not None:
            # Another stream made them: their memory must not be used again before the copies are done.
            for tensor in (*(getattr(start, name) for name in _STREAM), *start.weights.values()):
                tensor.record_stream(self.stream)
        self.launched = 0

    def launch(self, steps: int) -> None:
        """Queue ``steps`` steps; wait first until all but the latest burst of this trainer is done."""
        assert self.graph is not None
        while len(self.events) > 1:
            self.events.popleft().synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(steps):
                self.graph.replay()
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self.events.append(event)
        self.launched += steps

    def export(self) -> Callable[[], Weights]:
        """Copy the weights and buffers aside, behind all queued steps, and return a function that waits for them.

        The trainer may take its next model at once. The function returns CPU tensors in the network's own order.
        """
        done = torch.tensor(self.launched)
        with torch.cuda.stream(self.stream):
            kept = {name: value.detach().clone() for name, value in {**self.masters, **self.buffers}.items()}
            event = torch.cuda.Event() if self.stream is not None else None  # type: ignore[no-untyped-call]
            if event is not None:
                event.record()

        def fetch() -> Weights:
            if event is not None:
                event.synchronize()
            found = {name: kept.get(name, done).to("cpu", copy=True) for name in self.order}
            return {name: value.contiguous(memory_format=torch.contiguous_format) for name, value in found.items()}

        return fetch


_LOG = logging.getLogger(__name__)

#: Models that train at a time: small networks leave most of the chip idle, large ones only its gaps.
SMALL_NETWORK = 4_000_000
TRAINERS_SMALL, TRAINERS_LARGE = 12, 4
#: Small networks on small batches are limited by the number of kernels that run at a time.
TINY_BATCH, TRAINERS_TINY = 64, 16

#: Threads that build networks and plan batches for the trainers.
_PREPARING = 4

#: Steps of a trainer that are queued at a time; two such bursts wait on the device at most.
_BURST = 16


def train_graphs(jobs: Sequence[Job], context: TrainingContext) -> None:
    """Train jobs on a GPU, a few at a time, each by a trainer of its own.

    A trainer holds one model: weights, optimizer state, batches, a CUDA stream, and a CUDA graph of one whole training
    step that finds its batch on the device by its own counter. Trainers share the read-only samples and nothing else,
    and each computes with kernels of one fixed shape: a model's bytes do not depend on what the other trainers do or on
    how many there are. A trainer takes the next model as soon as its own is done, so models of unlike length waste
    nothing and none gets extra steps. Tasks come in their order, so that the first are whole while others train on.
    """
    steps = {job.key: count_steps(job.plan, context.sizes, context.settings) for job in jobs}
    ordered = sorted(jobs, key=lambda job: (job.task, -steps[job.key]))
    with _fixed_arithmetic(context.precision):
        trainers = _open_trainers(max(jobs, key=lambda job: steps[job.key]), len(jobs), context)
        context.reporter.begin()
        with ThreadPoolExecutor(_PREPARING, "prepare") as preparing, ThreadPoolExecutor(1, "save") as saving:
            _drive(trainers, ordered, context, preparing, saving)


@contextmanager
def _fixed_arithmetic(precision: str) -> Iterator[None]:
    """Choose kernels by rule, never by stopwatch: a timing that goes the other way would change the last bits."""
    import torch._inductor.config as inductor_config

    inductor: Any = inductor_config
    # The launch shape of elementwise kernels is chosen by stopwatch even in deterministic mode (which compilers
    # before torch 2.10 lack), and the two shapes round Adam's second moment differently.
    fixed: dict[str, Any] = {"triton.autotune_pointwise": False}
    if hasattr(inductor, "deterministic"):
        fixed["deterministic"] = True
    exact = {"allow_tf32": False} if precision == "float32" else {}
    with fixed_convolutions(**exact), inductor.patch(fixed):
        yield


def _open_trainers(longest: Job, n_jobs: int, context: TrainingContext) -> list[GraphTrainer]:
    """Build and capture the trainers: own kernels, else compiled ones, else with a warning plain ones."""
    size = sum(parameter.numel() for parameter in context.build(0).parameters())
    small = TRAINERS_TINY if context.settings.batch_size <= TINY_BATCH else TRAINERS_SMALL
    # As many rounds as the most trainers need, with as few as then do: no round of a few models at the end.
    rounds = -(-n_jobs // (small if size < SMALL_NETWORK else TRAINERS_LARGE))
    n_trainers = -(-n_jobs // rounds)
    # A compiler's memory of other losses would end in its limit of recompilations, and in no compiled loss at all.
    torch.compiler.reset()
    first = _prepare(longest, context)
    loss, update = make_loss(context), make_update(context.settings)
    # Adam updates weight by weight, of many sizes; SGD all matrices at once and all vectors at once.
    compiled = torch.compile(update, dynamic=context.settings.optimizer == "adam")
    own = make_fast_gradient(context)
    ways = [(own, compiled)] if own is not None else []
    ways += [(differentiate(torch.compile(loss, dynamic=False)), compiled), (differentiate(loss), update)]

    def open_all(gradient: Gradient, update: Update) -> list[GraphTrainer]:
        trainers = [GraphTrainer(context, len(first.stream), gradient, update) for _ in range(n_trainers)]
        for trainer in trainers:
            trainer.load(first)
            trainer.capture()
        return trainers

    for way in ways[:-1]:
        try:
            return open_all(*way)
        except Exception as error:
            _LOG.warning("training: these kernels are not to be had here (%s); training with slower ones", error)
            torch.cuda.synchronize()
    return open_all(*ways[-1])


def _prepare(job: Job, context: TrainingContext) -> Start:
    """Make a model and its batches and copy them to the device, on a stream beside those of the trainers."""
    weights = {name: value.detach() for name, value in context.build_for(job.plan).state_dict().items()}
    stream = plan_batches(job.plan, context.sizes, context.settings, context.settings.batch_size)
    return Start.send(weights, stream, context.settings, job.plan.seed, context.samples.device)


def _drive(
    trainers: Sequence[GraphTrainer],
    jobs: Sequence[Job],
    context: TrainingContext,
    preparing: ThreadPoolExecutor,
    saving: ThreadPoolExecutor,
) -> None:
    waiting = deque(jobs)
    prepared: deque[tuple[Job, Future[Start]]] = deque()
    saved: list[Future[None]] = []
    running: dict[GraphTrainer, tuple[Job, BatchStream]] = {}
    free = list(trainers)

    def take() -> None:
        while waiting and len(prepared) < len(trainers) + 1:
            job = waiting.popleft()
            prepared.append((job, preparing.submit(_prepare, job, context)))

    take()
    while (running or prepared) and not context.stop.is_set():
        while free and prepared:
            job, future = prepared.popleft()
            take()
            trainer = free.pop()
            start = future.result()
            trainer.load(start)
            running[trainer] = job, start.stream
        for trainer, (job, stream) in list(running.items()):
            before = trainer.launched
            trainer.launch(min(_BURST, len(stream) - before))
            epochs = trainer.launched // stream.steps_per_epoch - before // stream.steps_per_epoch
            if epochs:
                context.reporter.advance(
                    epochs=epochs, images=epochs * sum(context.sizes[user] for user in job.plan.users)
                )
            if trainer.launched == len(stream):
                saved.append(saving.submit(lambda job, fetch: context.finish(job, fetch()), job, trainer.export()))
                del running[trainer]
                free.append(trainer)
        while saved and saved[0].done():
            saved.pop(0).result()
    for future_saved in saved:
        future_saved.result()
