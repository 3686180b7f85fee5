"""Which engine trains an architecture on a device, and what engines share: models to train, data, whom to tell."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from codeward._cores import count_cores
from codeward._errors import InputError
from codeward._progress import Progress
from codeward.training._architectures import FastNetwork, Shape, build_network
from codeward.training._device_batches import DeviceSamples, Picked, disturb, draws_globally, mix_images
from codeward.training._sub_models import ModelPlan
from codeward.training._training_settings import TrainingSettings

Weights = dict[str, Tensor]

#: Images, at most, to which a network is fitted before its training.
_FITTED = 2_000


@dataclass(frozen=True)
class Job:
    """One sub-model to train, and the place of the first task that needs it."""

    plan: ModelPlan
    key: str
    task: int = 0


class Reporter:
    """Counts model-epochs and images from any thread and passes them on to a progress bar."""

    def __init__(self, progress: Progress, n_models: int) -> None:
        self.progress, self.n_models = progress, n_models
        self.models = self.images = self.before = 0
        self.start = time.monotonic()
        self.lock = threading.Lock()

    def begin(self) -> None:
        """Start the clock of the rate: compiling is over. Images of models with other settings came before it."""
        self.start, self.before = time.monotonic(), self.images

    def advance(self, epochs: int = 0, images: int = 0, models: int = 0) -> None:
        """Add to the counts."""
        with self.lock:
            self.models += models
            self.images += images
            rate = (self.images - self.before) / max(time.monotonic() - self.start, 1e-9)
            self.progress.advance(epochs, f"model-epochs, {self.models}/{self.n_models} models, {rate:,.0f} images/s")


@dataclass(frozen=True)
class TrainingContext:
    """Everything an engine needs beside the jobs.

    Attributes
    ----------
    finish : callable
        Takes a job and its final weights (on the CPU) as soon as they are known: a run that is killed later keeps them.
    stop : threading.Event
        Set when one of the threads that train fails, or Ctrl-C comes; the others return at the next step.
    start : dict of Tensor, optional
        Weights that networks start from instead of random ones.
    """

    settings: TrainingSettings
    precision: str
    shape: Shape
    sizes: Sequence[int]
    samples: DeviceSamples
    reporter: Reporter
    finish: Callable[[Job, Weights], None]
    stop: threading.Event = field(default_factory=threading.Event)
    start: Weights | None = None

    def build(self, seed: int) -> nn.Module:
        """Build the network with the initial weights of ``seed``, or with the given ones."""
        network = build_network(self.settings.architecture, self.shape, self.settings.n_classes, seed)
        if self.start is not None:
            network.load_state_dict(self.start)
        return network

    def build_for(self, plan: ModelPlan) -> nn.Module:
        """Build the network of a model; what is fitted to data before training is fitted to its own users' images."""
        network = self.build(plan.seed)
        if isinstance(network, FastNetwork) and self.start is None:
            ends = np.cumsum(self.sizes, dtype=np.int64)
            own = np.concatenate([np.arange(ends[user] - self.sizes[user], ends[user]) for user in plan.users])
            chosen = own[np.linspace(0, len(own) - 1, min(len(own), _FITTED)).astype(np.int64)]
            images = self.samples.gather(torch.from_numpy(chosen).to(self.samples.device))
            network.fit(images.permute(0, 3, 1, 2))
        return network

    def draw_batch(self, picked: Picked, shifts: Tensor, key: Tensor, share: Tensor | None) -> Tensor:
        """Return a batch as the recipe wants it, (batch, height, width, channels).

        Parameters
        ----------
        picked : tuple
            From `DeviceSamples.pick`.
        shifts : Tensor
            Of a row of a `BatchStream`.
        key : Tensor of int32, no axes
            Of the model and step; its seed plus so many times `KEY_STEP`.
        share : Tensor, optional
            Of mixup.
        """
        images = disturb(self.samples.prepare(picked, shifts, key), key, self.settings)
        return images if share is None else mix_images(images, share)


@contextmanager
def fixed_convolutions(**settings: bool) -> Iterator[None]:
    """Let cuDNN choose deterministic kernels by rule, so that a model's bytes do not depend on a stopwatch."""
    cudnn: Any = torch.backends.cudnn
    wanted = {"deterministic": True, "benchmark": False, **settings}
    before = {name: getattr(cudnn, name) for name in wanted}
    try:
        for name, value in wanted.items():
            setattr(cudnn, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(cudnn, name, value)


def export_weights(network: nn.Module) -> Weights:
    """Return a copy of a network's weights and buffers as contiguous CPU tensors."""
    return {
        name: value.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)
        for name, value in network.state_dict().items()
    }


def count_workers(n_tasks: int) -> int:
    """Return the number of threads that train at a time: one a core that this process may use, at most ``n_tasks``."""
    return max(1, min(count_cores(), n_tasks))


def run_in_threads(tasks: Sequence[Callable[[], None]], stop: threading.Event, n_workers: int) -> None:
    """Run tasks on ``n_workers`` threads, each with one torch thread of its own.

    torch releases Python's lock inside its operations, so threads use all cores without the start-up time and the
    copies of processes. One torch thread each: results then do not depend on the number of cores. The first error stops
    the others and is raised; so is Ctrl-C.
    """
    waiting = iter(tasks)
    taking = threading.Lock()
    errors: list[BaseException] = []
    ended = threading.Semaphore(0)

    def work() -> None:
        try:
            torch.set_num_threads(1)
            while not stop.is_set():
                with taking:
                    task = next(waiting, None)
                if task is None:
                    return
                task()
        except BaseException as error:
            errors.append(error)
            stop.set()
        finally:
            ended.release()

    before = torch.get_num_threads()
    threads = [threading.Thread(target=work, name=f"train-{i}", daemon=True) for i in range(n_workers)]
    started = waited = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
        # Not Thread.join: before Python 3.13 a Ctrl-C inside it marks a running thread as stopped, the next join does
        # not wait, and the interpreter's exit then kills the thread inside torch ("terminate called", status -6).
        while waited < started:
            waited += ended.acquire(timeout=0.2)
    finally:
        stop.set()
        while waited < started:
            waited += ended.acquire(timeout=0.2)
        for thread in threads[:started]:
            thread.join()
        torch.set_num_threads(before)
    if errors:
        raise errors[0]


class TaskCallbacks:
    """Calls back once for every task, as soon as its last model is there; one call at a time, in a thread of its own.

    Tasks that lack nothing are announced on entering, before any training begins: while CUDA graphs are captured, no
    other thread may use the device. Leaving the context waits for the calls that are due and raises the first error of
    any of them.

    Parameters
    ----------
    tasks : sequence of sequence of str
        The keys of each task's models.
    missing : set of str
        Keys that are yet to be trained.
    tell : callable, optional
        Takes the position of a task.
    """

    def __init__(self, tasks: Sequence[Sequence[str]], missing: set[str], tell: Callable[[int], None] | None) -> None:
        self.left = [set(keys) & missing for keys in tasks]
        self.tell = tell
        self.lock = threading.Lock()
        self.calls: list[Future[None]] = []
        self.pool = ThreadPoolExecutor(1, "announce")

    def __enter__(self) -> "TaskCallbacks":
        for task, left in enumerate(self.left):
            if not left:
                self._announce(task)
        for call in self.calls:
            call.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error or Ctrl-C in training, calls that have not begun are dropped: the caller starts again anyway.
        self.pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            for call in self.calls:
                call.result()

    def finish_model(self, key: str) -> None:
        """Take note that a model is finished and kept."""
        with self.lock:
            for task, left in enumerate(self.left):
                if key in left:
                    left.discard(key)
                    if not left:
                        self._announce(task)

    def _announce(self, task: int) -> None:
        if self.tell is not None:
            self.calls.append(self.pool.submit(self.tell, task))


ENGINES = ("auto", "loop", "compiled", "graphs")

#: Names that engines had before; configurations may still say them, and the keys of models always do.
_FORMER_NAMES = {"compiled": "stacked", "graphs": "lanes"}

#: Multiplications of one image's forward pass up to which the compiled layers were measured, and found faster than
#: torch's on a CPU (docs/development/training-speed.md).
COMPILED_LIMIT = 20_000_000


def choose_engine(
    network: nn.Module, shape: Shape, device: torch.device, engine: str, settings: TrainingSettings
) -> str:
    """Return ``loop``, ``compiled`` or ``graphs``; former names (``stacked``, ``lanes``) are understood.

    The rule looks at the architecture, the recipe and the device type only. It must not look at how many models are
    left to train or at a stopwatch: the last bits of a model depend on the engine, and a model must come out the same
    when the others are cached already. Measurements (docs/development/training-speed.md) are behind the rule instead.

    - GPU: ``graphs`` (a CUDA graph of one step), ``loop`` for networks that draw random numbers inside ``forward``.
    - CPU: ``compiled`` for sequential networks up to `COMPILED_LIMIT` that Adam trains on images as they are, or
      cropped and flipped, ``loop`` for all others.
    """
    engine = next((name for name, former in _FORMER_NAMES.items() if former == engine), engine)
    if engine not in ENGINES:
        raise InputError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    compilable = is_compilable(network) and settings.is_plain
    if engine == "compiled" and (not compilable or device.type != "cpu"):
        raise InputError(
            "engine: compiled is for plain sequential networks that Adam trains on a CPU, without cut-out, mixup, "
            "jitter or an augmentation of finished images; use auto"
        )
    if engine == "graphs" and device.type != "cuda":
        raise InputError("engine: graphs needs a GPU; use auto")
    if engine == "graphs" and draws_globally(network, shape):
        raise InputError("engine: this network draws random numbers inside forward; use auto or loop")
    if engine != "auto":
        return engine
    if device.type == "cuda":
        return "loop" if draws_globally(network, shape) else "graphs"
    return "compiled" if compilable and count_multiplications(network, shape) <= COMPILED_LIMIT else "loop"


def name_computation(device: str, engine: str, precision: str) -> str:
    """Name what the last bits of a model depend on, as its key does (`model_key`)."""
    return f"{device} {_FORMER_NAMES.get(engine, engine)} {precision}"


def run_engine(engine: str, jobs: Sequence[Job], context: TrainingContext) -> None:
    """Train jobs with the engine that `choose_engine` named; one call for all models of one resolved recipe."""
    # Imported here: whoever trains with torch should not have to load a compiler.
    if engine == "graphs":
        from codeward.training._graph_engine import train_graphs as train
    elif engine == "compiled":
        from codeward.training._compiled_engine import train_compiled as train
    else:
        from codeward.training._loop_engine import train_loop as train
    done: set[str] = set()

    def finish(job: Job, weights: Weights) -> None:
        context.finish(job, weights)
        done.add(job.key)

    for settings, alike in group_by_recipe(jobs, context.sizes, context.settings).items():
        # An event of their own: threads set it when they end, and the next group would find itself stopped.
        train(alike, replace(context, settings=settings, finish=finish, stop=threading.Event()))
    if len(done) < len(jobs):
        raise RuntimeError(f"engine {engine}: {len(jobs) - len(done)} of {len(jobs)} models were not trained")


def group_by_recipe(
    jobs: Sequence[Job], sizes: Sequence[int], settings: TrainingSettings
) -> dict[TrainingSettings, list[Job]]:
    """Sort jobs by what the recipe is for the number of their own samples, the first task's first.

    All but the epochs, which only make a model's stream longer: one engine trains models of all lengths together.
    """
    groups: dict[TrainingSettings, list[Job]] = {}
    for job in jobs:
        own = settings.for_samples(sum(sizes[user] for user in job.plan.users))
        groups.setdefault(replace(own, epochs=settings.epochs), []).append(job)
    return groups


_LAYERS = (nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.Dropout, nn.Flatten)


def is_compilable(network: nn.Module) -> bool:
    """Tell whether a network is a plain sequence of layers that `CompiledNetwork` knows, some of them with weights.

    Each layer stands once, all weights are trained, and images are flattened before the first dense layer and after the
    last convolution or pooling.
    """
    if type(network) is not nn.Sequential or not any(isinstance(layer, (nn.Conv2d, nn.Linear)) for layer in network):
        return False
    kinds = [type(layer) for layer in network]
    flat = kinds.index(nn.Flatten) if nn.Flatten in kinds else len(kinds)
    ordered = nn.Linear not in kinds[:flat] and nn.Conv2d not in kinds[flat:] and nn.MaxPool2d not in kinds[flat:]
    # Children come without repetition: a layer that stands twice would be computed once.
    distinct = len(list(network.children())) == len(kinds)
    trained = all(parameter.requires_grad for parameter in network.parameters())
    return ordered and distinct and trained and all(_is_known(layer) for layer in network)


def count_multiplications(network: nn.Module, shape: Shape) -> int:
    """Count the multiplications of one image's forward pass through a compilable network."""
    values = torch.zeros(1, *shape)
    total = 0
    with torch.no_grad():
        for layer in network.eval().children():
            values = layer(values)
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                total += layer.weight.numel() * values[0, 0].numel()
    return total


def _is_known(layer: nn.Module) -> bool:
    if type(layer) not in _LAYERS:
        return False
    if isinstance(layer, nn.Conv2d):
        plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    if isinstance(layer, nn.MaxPool2d):
        square = isinstance(layer.kernel_size, int) and layer.stride == layer.kernel_size
        return square and layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode
    return not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) == (1, -1)
