"""What the engines share: the models to train, where their data are, and whom to tell."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import torch
from torch import Tensor, nn

from codeward._cores import count_cores
from codeward._progress import Progress
from codeward.training._architectures import FastNetwork, Shape, build_network
from codeward.training._augmentation import disturb, mix_images
from codeward.training._device_samples import DeviceSamples
from codeward.training._plan import ModelPlan
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
        self.models = self.images = 0
        self.start = time.monotonic()
        self.lock = threading.Lock()

    def begin(self) -> None:
        """Start the clock of the rate: compiling is over."""
        self.start = time.monotonic()

    def advance(self, epochs: int = 0, images: int = 0, models: int = 0) -> None:
        """Add to the counts."""
        with self.lock:
            self.models += models
            self.images += images
            rate = self.images / max(time.monotonic() - self.start, 1e-9)
            self.progress.advance(epochs, f"model-epochs, {self.models}/{self.n_models} models, {rate:,.0f} images/s")


@dataclass(frozen=True)
class TrainingContext:
    """Everything an engine needs beside the jobs.

    Attributes
    ----------
    finish : callable
        Takes a job and its final weights (on the CPU) as soon as they are known: a run that is killed later keeps them.
    stop : threading.Event
        Set when the caller gives up; engines return at the next step.
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

    def draw_batch(self, index: Tensor, shifts: Tensor, key: Tensor, share: Tensor | None) -> Tensor:
        """Return a batch as the recipe wants it, (batch, height, width, channels).

        Parameters
        ----------
        index, shifts : Tensor
            A row of a `BatchStream`.
        key : Tensor of int32, no axes
            Of the model and step; its seed plus so many times `KEY_STEP`.
        share : Tensor, optional
            Of mixup.
        """
        images = disturb(self.samples.gather(index, shifts, key), key, self.settings)
        return images if share is None else mix_images(images, share)


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
