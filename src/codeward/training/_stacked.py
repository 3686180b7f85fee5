"""Many small models as one: their weights stacked along a leading axis and trained in lock step on one core."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codeward.training._architectures import Shape
from codeward.training._jobs import Job, Weights, Workshop, count_workers, run_in_threads
from codeward.training._layers import Convolution, Dense, Drop, Flatten, Layer, Parameter, Pool, Rectifier
from codeward.training._plan import BatchStream, batch_width, plan_batches

#: Models of one stack, always: shorter stacks are filled with models nobody keeps. The last bits of a product may
#: depend on how many are batched, and a model must come out the same whether 15 or 3 of its ensemble are left to train.
WIDTH = 8

#: Weights of a stack are laid out in one row a model; rows are multiples of this, so that no vector instruction spans
#: two models and none has a remainder.
_ALIGNMENT = 64

_LAYERS = (nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.Dropout, nn.Flatten)


def is_stackable(network: nn.Module) -> bool:
    """Tell whether a network is a plain sequence of layers that `Stack` knows, some of them with weights."""
    if type(network) is not nn.Sequential or not any(isinstance(layer, (nn.Conv2d, nn.Linear)) for layer in network):
        return False
    return all(_is_known(layer) for layer in network)


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
    """Train jobs in stacks of `WIDTH`, one stack a core at a time.

    Models of alike length share a stack. A model is copied out at its own last step; what its place computes while the
    others go on is thrown away, so no model gets extra steps. Products are batched over models, all else is
    elementwise or within a model: nothing crosses them, and a place gives the same bits whatever its neighbours hold
    (tested, NaN included).
    """
    sizes, settings = shop.sizes, shop.settings
    groups: dict[int, list[tuple[Job, BatchStream]]] = {}
    for job in jobs:
        width = batch_width([sizes[user] for user in job.plan.users], settings.batch_size)
        groups.setdefault(width, []).append((job, plan_batches(job.plan, sizes, settings, width)))
    tasks: list[tuple[int, Callable[[], None]]] = []
    for group in groups.values():
        group.sort(key=lambda item: -len(item[1]))
        for start in range(0, len(group), WIDTH):
            members = group[start : start + WIDTH]
            tasks.append((len(members[0][1]), partial(_train_stack, members, shop)))
    tasks.sort(key=lambda task: -task[0])
    run_in_threads([task for _, task in tasks], shop.stop, count_workers(len(tasks)))


class Stack:
    """`WIDTH` sequential networks over one flat matrix of weights, one row a model.

    Parameters
    ----------
    networks : sequence of nn.Sequential
        Networks of one architecture.
    generators : sequence of torch.Generator
        One a model, for its dropout masks.
    """

    def __init__(self, networks: Sequence[nn.Module], generators: Sequence[torch.Generator]) -> None:
        shapes = {name: value.shape for name, value in networks[0].named_parameters()}
        total = sum(shape.numel() for shape in shapes.values())
        self.flat = nn.Parameter(torch.zeros(len(networks), -(-total // _ALIGNMENT) * _ALIGNMENT))
        self.flat.grad = torch.zeros_like(self.flat)
        self.parameters: dict[str, Parameter] = {}
        start = 0
        for name, shape in shapes.items():
            stop = start + shape.numel()
            value, grad = (rows[:, start:stop].view(-1, *shape) for rows in (self.flat.detach(), self.flat.grad))
            value.copy_(torch.stack([network.get_parameter(name).detach() for network in networks]))
            self.parameters[name] = Parameter(value, grad)
            start = stop
        self.layers = [self._layer(name, layer, generators) for name, layer in _swap_pools(networks[0])]
        #: Place of the first layer with weights.
        self.first = next(i for i, layer in enumerate(self.layers) if isinstance(layer, (Convolution, Dense)))

    def _layer(self, name: str, layer: nn.Module, generators: Sequence[torch.Generator]) -> Layer:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            weight, bias = self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
            return Convolution(layer, weight, bias) if isinstance(layer, nn.Conv2d) else Dense(weight, bias)
        if isinstance(layer, nn.MaxPool2d):
            return Pool(int(layer.kernel_size))  # type: ignore[arg-type]
        if isinstance(layer, nn.Dropout):
            return Drop(layer.p, generators)
        return Rectifier() if isinstance(layer, nn.ReLU) else Flatten()

    def weights(self, model: int) -> Weights:
        """Return a copy of one model's weights, under the names of the network."""
        return {name: parameter.value[model].clone() for name, parameter in self.parameters.items()}

    def compute_gradients(self, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        """Run forward and backward, leaving the gradients in ``flat.grad``; return the logits.

        Parameters
        ----------
        images : Tensor, shape (models, batch, height, width, channels)
        labels : Tensor of int64, shape (models, batch)
        share : Tensor, shape (models, batch)
            Weight of each sample in its model's loss, the cross-entropy ``sum(share * -log p[label])``.
        """
        values = images.permute(0, 4, 2, 3, 1).clone(memory_format=torch.contiguous_format)
        for layer in self.layers:
            values = layer.forward(values)
        # d loss / d logits = share * (softmax(logits) - onehot(label))
        grad = torch.softmax(values, dim=1)
        grad.scatter_add_(1, labels[:, None], torch.full_like(labels[:, None], -1.0, dtype=grad.dtype))
        grad *= share[:, None]
        # No gradient is needed before the first layer with weights.
        for place in range(len(self.layers) - 1, self.first - 1, -1):
            grad = self.layers[place].backward(grad, place > self.first)
        return values


def _swap_pools(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers by name, with a ReLU in front of a max-pool moved behind it: the same function and gradient.

    The maximum of a window is positive where one of its values is, and only then is there a gradient; behind the pool
    the ReLU has a quarter of the work.
    """
    layers = list(network.named_children())
    for place in range(len(layers) - 1):
        if isinstance(layers[place][1], nn.ReLU) and isinstance(layers[place + 1][1], nn.MaxPool2d):
            layers[place : place + 2] = layers[place + 1], layers[place]
    return layers


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


def _train_stack(members: Sequence[tuple[Job, BatchStream]], shop: Workshop) -> None:
    settings, samples = shop.settings, shop.samples
    # Places without a job repeat the last one; their results are not taken.
    filled = [*members, *[members[-1]] * (WIDTH - len(members))]
    seeds = [job.plan.seed for job, _ in filled]
    stack = Stack([shop.build(seed) for seed in seeds], [torch.Generator().manual_seed(seed) for seed in seeds])
    steps = len(filled[0][1])
    index, counts, shifts = (torch.from_numpy(_align(filled, name, steps)) for name in ("index", "counts", "shifts"))
    optimizer = torch.optim.Adam(
        [stack.flat], lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    places = torch.arange(index.shape[2])
    full = torch.tensor([[stream.full] for _, stream in filled])
    for step in range(steps):
        if shop.stop.is_set():
            return
        share = (places < counts[step, :, None]) / full
        stack.compute_gradients(samples.gather(index[step], shifts[step]), samples.labels[index[step]], share)
        optimizer.step()
        for place, (job, stream) in enumerate(members):
            if step < len(stream) and (step + 1) % stream.steps_per_epoch == 0:
                shop.reporter.advance(epochs=1, images=sum(shop.sizes[user] for user in job.plan.users))
            if step + 1 == len(stream):
                shop.finish(job, stack.weights(place))


def _align(members: Sequence[tuple[Job, BatchStream]], name: str, steps: int) -> NDArray[Any]:
    """Stack one array of all streams along axis 1; a stream that is over repeats its last batch."""
    arrays = [getattr(stream, name) for _, stream in members]
    return np.stack([array[np.minimum(np.arange(steps), len(array) - 1)] for array in arrays], axis=1)
