"""Dropout with masks of its own, which engines put in place of torch's."""

import copy

import torch
from torch import Tensor, nn

from codeward.training._augmentation import hash_int32

_INT31 = 2**31


class GeneratorDropout(nn.Module):
    """Dropout that draws from a given generator, for training on a CPU."""

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        self.rate, self.generator = rate, generator

    def forward(self, values: Tensor) -> Tensor:
        """Zero each value with probability ``rate`` and scale the others by ``1 / (1 - rate)``, in training only."""
        if not self.training or self.rate == 0:
            return values
        keep = torch.empty_like(values).bernoulli_(1 - self.rate, generator=self.generator)
        return values * keep.div_(1 - self.rate)


class CounterDropout(nn.Module):
    """Dropout without state: the mask is a hash of (key, layer, place), for training inside a CUDA graph.

    The device's generator is shared by all that runs there, so that masks drawn from it would depend on which other
    models train at the same time. The key is a buffer that the trainer changes every step.
    """

    key: Tensor

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate, self.layer = rate, layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Zero each value with probability ``rate`` and scale the others by ``1 / (1 - rate)``, in training only."""
        if not self.training or self.rate == 0:
            return values
        place = torch.arange(values.numel(), dtype=torch.int32, device=values.device).view(values.shape)
        bits = hash_int32(place ^ hash_int32(self.key + self.layer))
        keep = (bits & (_INT31 - 1)) >= int(self.rate * _INT31)
        return torch.where(keep, values / (1 - self.rate), 0)


def own_dropout(network: nn.Module, generator: torch.Generator | None) -> nn.Module:
    """Replace every ``nn.Dropout`` in place: by `GeneratorDropout`, or without a generator by `CounterDropout`."""
    layer = 0
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                layer += 1
                own = CounterDropout(child.p, layer) if generator is None else GeneratorDropout(child.p, generator)
                setattr(module, name, own)
    return network


def draws_globally(network: nn.Module, shape: tuple[int, int, int]) -> bool:
    """Tell whether a training pass takes random numbers from torch's global generator (dropout inside ``forward``)."""
    probe = own_dropout(copy.deepcopy(network), torch.Generator()).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.random.get_rng_state()
        probe(torch.zeros(2, *shape))
        return not torch.equal(before, torch.random.get_rng_state())
