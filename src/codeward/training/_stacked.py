"""Small sequential networks on a CPU: one model a core at a time, through kernels compiled for them."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from codeward._errors import InputError
from codeward.training._architectures import Shape
from codeward.training._jobs import Job, Workshop, count_workers, run_in_threads
from codeward.training._plan import batch_width, count_steps, plan_batches
from codeward.training._resident import ResidentSamples

if TYPE_CHECKING:
    from codeward.training._blueprint import Blueprint

#: Pixels of the batches that are trained on without coming back to Python.
_GATHERED = 2**18
#: Pixels of a model's own samples up to which they are prepared once for all epochs: 64 MiB.
_KEPT = 2**24

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
    """Count the multiplications of one image's forward pass through a stackable network."""
    values = torch.zeros(1, *shape)
    total = 0
    with torch.no_grad():
        for layer in network.eval().children():
            values = layer(values)
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                total += layer.weight.numel() * values[0, 0].numel()
    return total


def train_stacked(jobs: Sequence[Job], shop: Workshop) -> None:
    """Train every job by itself, one a core at a time, the longest first.

    A model is computed by the same calls on the same shapes whatever trains beside it, in memory of its own: its bytes
    depend on its own job only.
    """
    longest_first = sorted(jobs, key=lambda job: -count_steps(job.plan, shop.sizes, shop.settings))
    blueprints: dict[tuple[str, int], Blueprint] = {}
    tasks = [partial(_train_one, job, shop, blueprints) for job in longest_first]
    run_in_threads(tasks, shop.stop, count_workers(len(tasks)))


def _train_one(job: Job, shop: Workshop, blueprints: dict[tuple[str, int], "Blueprint"]) -> None:
    # Here, because a federated user who trains with torch should not have to load a compiler.
    from codeward.training._blueprint import Blueprint, round_up
    from codeward.training._compiled import CompiledNetwork

    settings, samples, seed = shop.settings, shop.samples, job.plan.seed
    own_sizes = [shop.sizes[user] for user in job.plan.users]
    width = batch_width(own_sizes, settings.batch_size)
    stream = plan_batches(job.plan, shop.sizes, settings, width)
    batch = round_up(width)
    built = shop.build(seed)
    # By all that a blueprint depends on, since kernels trust it: a builder of the user's may not always build alike.
    like = repr(built), batch
    if like not in blueprints:
        blueprints[like] = Blueprint(built, shop.shape, batch)
    blueprint = blueprints[like]
    if blueprint.n_classes < settings.n_classes:
        raise InputError(f"architecture: {blueprint.n_classes} outputs, but n_classes is {settings.n_classes}")
    network = CompiledNetwork(built, blueprint, torch.Generator().manual_seed(seed))
    # Places past the width repeat the batch's last sample; they have no weight in the loss.
    filled = np.minimum(np.arange(batch), width - 1)
    index, shifts = stream.index[:, filled], stream.shifts[:, filled]
    rate, decay, pixels = settings.learning_rate, settings.weight_decay, int(np.prod(shop.shape))
    together = max(1, _GATHERED // (batch * pixels))
    own = None if samples.augments or sum(own_sizes) * pixels > _KEPT else np.unique(index)
    if own is not None:
        images, labels = _take(samples, own, None)
        index = np.searchsorted(own, index)
    for start in range(0, len(stream), together):
        if shop.stop.is_set():
            return
        part = slice(start, start + together)
        which = index[part]
        if own is None:
            images, labels = _take(samples, which.ravel(), shifts[part].ravel())
            which = np.arange(which.size).reshape(which.shape)
        network.train(images, labels, which, stream.counts[part], 1 / stream.full, rate, decay)
        epochs = (start + len(which)) // stream.steps_per_epoch - start // stream.steps_per_epoch
        if epochs:
            shop.reporter.advance(epochs=epochs, images=epochs * sum(own_sizes))
    shop.finish(job, network.weights())


def _take(
    samples: ResidentSamples, index: NDArray[np.int64], shifts: NDArray[np.uint8] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images at ``index``, (n, channels * height * width), and their labels."""
    where = torch.from_numpy(index)
    images = samples.gather(where, None if shifts is None else torch.from_numpy(shifts)).permute(0, 3, 1, 2)
    return images.reshape(len(index), -1).numpy(), samples.labels[where].numpy()


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
