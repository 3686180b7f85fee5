"""Small sequential networks on a CPU: one model a core at a time, through kernels compiled for them.

Every model has memory of its own: what it becomes cannot depend on what trains beside it.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from codeward._compiled import compiled
from codeward._errors import InputError
from codeward.training._architectures import Shape
from codeward.training._compiled_program import Blueprint, round_up, run_program
from codeward.training._device_batches import DeviceSamples
from codeward.training._engines import Job, TrainingContext, Weights, count_workers, run_in_threads
from codeward.training._sub_models import batch_width, count_steps, plan_batches
from codeward.training._vectors import LANES

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]
_Doubles = NDArray[np.float64]


#: Pixels of the batches that are trained on without coming back to Python.
_GATHERED = 2**18
#: Pixels of a model's own samples up to which they are prepared once for all epochs: 64 MiB.
_KEPT = 2**24


def train_compiled(jobs: Sequence[Job], context: TrainingContext) -> None:
    """Train every job by itself, one a core at a time, the longest first.

    A model is computed by the same calls on the same shapes whatever trains beside it, in memory of its own: its bytes
    depend on its own job only.
    """
    longest_first = sorted(jobs, key=lambda job: -count_steps(job.plan, context.sizes, context.settings))
    blueprints: dict[tuple[str, int], Blueprint] = {}
    tasks = [partial(_train_one, job, context, blueprints) for job in longest_first]
    run_in_threads(tasks, context.stop, count_workers(len(tasks)))


def _train_one(job: Job, context: TrainingContext, blueprints: dict[tuple[str, int], Blueprint]) -> None:
    settings, samples, seed = context.settings, context.samples, job.plan.seed
    own_sizes = [context.sizes[user] for user in job.plan.users]
    stream = plan_batches(job.plan, context.sizes, settings, batch_width(own_sizes, settings.batch_size))
    width = stream.index.shape[1]  # mixed batches are full ones
    batch = round_up(width)
    built = context.build(seed)
    # By all that a blueprint depends on, since kernels trust it: a builder of the user's may not always build alike.
    like = repr(built), batch
    if like not in blueprints:
        blueprints[like] = Blueprint(built, context.shape, batch)
    blueprint = blueprints[like]
    if blueprint.n_classes < settings.n_classes:
        raise InputError(f"architecture: {blueprint.n_classes} outputs, but n_classes is {settings.n_classes}")
    network = CompiledNetwork(built, blueprint, torch.Generator().manual_seed(seed))
    # Places past the width repeat the batch's last sample; they have no weight in the loss.
    filled = np.minimum(np.arange(batch), width - 1)
    index, shifts = stream.index[:, filled], stream.shifts[:, filled]
    rates = np.array([settings.rate_at(step, len(stream)) for step in range(len(stream))])
    pixels = int(np.prod(context.shape))
    together = max(1, _GATHERED // (batch * pixels))
    own = None if samples.augments or sum(own_sizes) * pixels > _KEPT else np.unique(index)
    if own is not None:
        images, labels = _take(samples, own, None)
        index = np.searchsorted(own, index)
    for start in range(0, len(stream), together):
        if context.stop.is_set():
            return
        part = slice(start, start + together)
        which = index[part]
        if own is None:
            images, labels = _take(samples, which.ravel(), shifts[part].ravel())
            which = np.arange(which.size).reshape(which.shape)
        counts, decay, smoothing = stream.counts[part], settings.weight_decay, settings.label_smoothing
        network.train(images, labels, which, counts, 1 / stream.full, rates[part], decay, smoothing)
        epochs = (start + len(which)) // stream.steps_per_epoch - start // stream.steps_per_epoch
        if epochs:
            context.reporter.advance(epochs=epochs, images=epochs * sum(own_sizes))
    context.finish(job, network.weights())


def _take(
    samples: DeviceSamples, index: NDArray[np.int64], shifts: NDArray[np.uint8] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images at ``index``, (n, channels * height * width), and their labels."""
    where = torch.from_numpy(index)
    images = samples.gather(where, None if shifts is None else torch.from_numpy(shifts)).permute(0, 3, 1, 2)
    return images.reshape(len(index), -1).numpy(), samples.labels[where].numpy()


class CompiledNetwork:
    """One model: all its numbers in one flat array, the weights first and their gradients behind them.

    Parameters
    ----------
    network : nn.Sequential
        As `is_compilable` wants it; gives the initial weights.
    blueprint : Blueprint
        Of a network like it.
    generator : torch.Generator
        For its dropout masks.
    """

    def __init__(self, network: nn.Module, blueprint: Blueprint, generator: torch.Generator) -> None:
        self.blueprint, self.generator = blueprint, generator
        self.values = allocate(blueprint.size)
        self.moments = np.zeros((2, blueprint.n_weights), np.float32)
        self.steps = 0
        for name, parameter in network.named_parameters():
            self.values[blueprint.places[name]] = parameter.detach().numpy().ravel()

    def compute_gradients(
        self, samples: _Floats, labels: _Ints, count: int, share: float, smoothing: float = 0.0
    ) -> _Floats:
        """Run forward and backward on one batch, all ``samples``; return the logits, shape (classes, batch)."""
        index, counts = np.arange(len(samples))[None], np.array([count])
        self._run(samples, labels, index, counts, share, np.zeros(0), 0.0, smoothing)
        start, classes = self.blueprint.logits, self.blueprint.n_classes
        return self.values[start : start + classes * len(samples)].reshape(classes, -1).copy()

    def train(
        self,
        samples: _Floats,
        labels: _Ints,
        index: _Ints,
        counts: _Ints,
        share: float,
        rates: _Doubles,
        decay: float,
        smoothing: float = 0.0,
    ) -> None:
        """Take one step of Adam with each of some batches.

        Parameters
        ----------
        samples : ndarray of float32, shape (n, channels * height * width)
        labels : ndarray of int64, shape (n,)
        index : ndarray of int64, shape (batches, batch)
            Which samples make which batch.
        counts : ndarray of int64, shape (batches,)
            The first ``counts[i]`` samples of a batch count in its loss; the rest only fill it.
        share : float
            Weight of a sample in the loss, a cross-entropy (see `differentiate_loss`).
        rates : ndarray of float64, shape (batches,)
            Learning rate of each step.
        decay : float
            Weight decay.
        smoothing : float
            Of the labels, from 0 to below 1.
        """
        # Masks are drawn by torch, before the program runs: then a batch at a time.
        together = 1 if self.blueprint.drops else len(index)
        for start in range(0, len(index), together):
            part = slice(start, start + together)
            self._run(samples, labels, index[part], counts[part], share, rates[part], decay, smoothing)
            self.steps += together

    def _run(
        self,
        samples: _Floats,
        labels: _Ints,
        index: _Ints,
        counts: _Ints,
        share: float,
        rates: _Doubles,
        decay: float,
        smoothing: float,
    ) -> None:
        known = self.blueprint
        # Kernels trust what they are told about sizes.
        if samples.shape[1] * known.batch != known.image_size or index.shape != (len(counts), known.batch):
            raise ValueError(f"samples {samples.shape} and index {index.shape} for batches of {known.batch}")
        if rates.size not in (0, len(counts)):
            raise ValueError(f"{rates.size} rates for {len(counts)} steps")
        if labels.shape != samples.shape[:1] or index.min() < 0 or index.max() >= len(samples):
            raise ValueError(f"labels {labels.shape} and an index up to {index.max()} for {len(samples)} samples")
        if counts.max() > known.batch:
            raise ValueError(f"{counts.max()} samples that count in batches of {known.batch}")
        # Another layout in memory would be another program to compile.
        samples, index = np.ascontiguousarray(samples), np.ascontiguousarray(index)
        for layer in known.drops:
            layer.draw(torch.from_numpy(self.values), self.generator)
        run_program(
            known.lines, known.table, self.values, known.images, samples, labels, index, counts, share, smoothing,
            self.moments, self.steps, rates, decay,
        )  # fmt: skip

    def weights(self) -> Weights:
        """Return a copy of the weights under the names of the network."""
        return {
            name: torch.from_numpy(self.values[place].reshape(self.blueprint.shapes[name]).copy())
            for name, place in self.blueprint.places.items()
        }

    def grad(self, name: str) -> _Floats:
        """Return a copy of the gradient of a weight, as the last batch left it."""
        place = self.blueprint.places[name]
        found = self.values[place.start + self.blueprint.n_weights : place.stop + self.blueprint.n_weights]
        return found.reshape(self.blueprint.shapes[name]).copy()


def allocate(size: int) -> _Floats:
    """Return zeros that start at a cache line: a vector of a batch is then never split between two."""
    raw = np.zeros(size + LANES, np.float32)
    start = -raw.ctypes.data // raw.itemsize % LANES
    return raw[start : start + size]


class CompiledForward:
    """The forward passes of networks of one architecture, one after the other, through the kernels that train them.

    What comes out for an image does not depend on the others of its batch, to the last bit. All models take turns in
    the same memory: one thread at a time.

    Parameters
    ----------
    networks : sequence of nn.Sequential
        As `is_compilable` wants them, all alike but for their weights.
    shape : tuple of int
        Channels, height, width of an image.
    """

    def __init__(self, networks: Sequence[nn.Module], shape: Shape) -> None:
        self.blueprints = [Blueprint(networks[0], shape, size) for size in (LANES, 2 * LANES, 4 * LANES)]
        self.values = [allocate(blueprint.size) for blueprint in self.blueprints]
        for blueprint, values in zip(self.blueprints, self.values, strict=True):
            for layer in blueprint.drops:
                values[layer.mask : layer.mask + layer.size] = 1
        self.weights = np.zeros((len(networks), self.blueprints[0].n_weights), np.float32)
        for row, network in zip(self.weights, networks, strict=True):
            for name, parameter in network.named_parameters():
                row[self.blueprints[0].places[name]] = parameter.detach().numpy().ravel()
        self(torch.zeros(1, *shape))  # compiled now, not while the first caller waits

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (m, N, c), of normalised float32 images, (N, channels, height, width)."""
        samples = np.ascontiguousarray(images.numpy().reshape(len(images), -1))
        classes = self.blueprints[0].n_classes
        logits = np.empty((len(self.weights), len(samples), classes), np.float32)
        for start in range(0, len(samples), self.blueprints[-1].batch):
            part = samples[start : start + self.blueprints[-1].batch]
            which = next(i for i, blueprint in enumerate(self.blueprints) if blueprint.batch >= len(part))
            blueprint, values = self.blueprints[which], self.values[which]
            # Places past the last repeat it.
            index = np.minimum(np.arange(blueprint.batch), len(part) - 1)[None]
            out = np.empty((len(self.weights), classes * blueprint.batch), np.float32)
            lines = blueprint.lines[: blueprint.n_forward]
            run_forward(
                lines, blueprint.table, self.weights, values, blueprint.images, blueprint.logits, part, index, out
            )
            found = out.reshape(len(out), classes, -1)[:, :, : len(part)]
            logits[:, start : start + len(part)] = found.transpose(0, 2, 1)
        return torch.from_numpy(logits)


@compiled
def run_forward(
    lines: _Ints,
    table: _Ints,
    weights: _Floats,
    values: _Floats,
    start: int,
    place: int,
    samples: _Floats,
    index: _Ints,
    out: _Floats,
) -> None:
    """Run the lines on the batch ``samples[index[0]]`` with each row of weights; write out what is at ``place``."""
    labels, counts, moments = np.zeros(len(samples), np.int64), np.zeros(1, np.int64), np.zeros((2, 1), np.float32)
    still = np.zeros(0)
    for model in range(len(weights)):
        values[: weights.shape[1]] = weights[model]
        run_program(lines, table, values, start, samples, labels, index, counts, 0.0, 0.0, moments, 0, still, 0.0)
        out[model] = values[place : place + out.shape[1]]
