"""One model of a small sequential network, trained by compiled kernels in memory of its own.

Nothing of one model is shared with another: what a model becomes cannot depend on what trains beside it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from codeward.training._blueprint import Blueprint
from codeward.training._jobs import Weights
from codeward.training._program import run_program
from codeward.training._vectors import LANES

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]


class CompiledNetwork:
    """One model: all its numbers in one flat array, the weights first and their gradients behind them.

    Parameters
    ----------
    network : nn.Sequential
        Stackable (see `is_compilable`); gives the initial weights.
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

    def compute_gradients(self, samples: _Floats, labels: _Ints, count: int, share: float) -> _Floats:
        """Run forward and backward on one batch, all ``samples``; return the logits, shape (classes, batch)."""
        self._run(samples, labels, np.arange(len(samples))[None], np.array([count]), share, 0.0, 0.0)
        start, classes = self.blueprint.logits, self.blueprint.n_classes
        return self.values[start : start + classes * len(samples)].reshape(classes, -1).copy()

    def train(
        self, samples: _Floats, labels: _Ints, index: _Ints, counts: _Ints, share: float, rate: float, decay: float
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
            Weight of a sample in the loss, the cross-entropy ``share * sum(-log p[label])``.
        rate, decay : float
            Learning rate, above 0, and weight decay.
        """
        # Masks are drawn by torch, before the program runs: then a batch at a time.
        together = 1 if self.blueprint.drops else len(index)
        for start in range(0, len(index), together):
            part = slice(start, start + together)
            self._run(samples, labels, index[part], counts[part], share, rate, decay)
            self.steps += together

    def _run(
        self, samples: _Floats, labels: _Ints, index: _Ints, counts: _Ints, share: float, rate: float, decay: float
    ) -> None:
        known = self.blueprint
        # Kernels trust what they are told about sizes.
        if samples.shape[1] * known.batch != known.image_size or index.shape != (len(counts), known.batch):
            raise ValueError(f"samples {samples.shape} and index {index.shape} for batches of {known.batch}")
        if labels.shape != samples.shape[:1] or index.min() < 0 or index.max() >= len(samples):
            raise ValueError(f"labels {labels.shape} and an index up to {index.max()} for {len(samples)} samples")
        # Another layout in memory would be another program to compile.
        samples, index = np.ascontiguousarray(samples), np.ascontiguousarray(index)
        for layer in known.drops:
            layer.draw(torch.from_numpy(self.values), self.generator)
        run_program(
            known.lines, known.table, self.values, known.images, samples, labels, index, counts, share, self.moments,
            self.steps, rate, decay,
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
