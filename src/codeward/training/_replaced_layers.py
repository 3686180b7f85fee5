"""Layers that engines put in place of torch's: dropout with masks of its own, convolutions of few channels."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

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


def hash_int32(values: Tensor) -> Tensor:
    """Mix the bits of int32 values (the "lowbias32" hash of C. Wellons; arithmetic modulo 2**32)."""
    values = (values ^ ((values >> 16) & 0xFFFF)) * 0x7FEB352D
    values = (values ^ ((values >> 15) & 0x1FFFF)) * (0x846CA68B - 2**32)
    return values ^ ((values >> 16) & 0xFFFF)


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


#: Most values under the kernel (channels times kernel area) for which a product with the patches is used.
_PATCH_LIMIT = 32


class PatchConv2d(nn.Conv2d):
    """A convolution of stride 1 computed as one matrix product: same weights, same function.

    GPU libraries have no fast convolution for so few channels; the patches are small, and a compiler makes them in the
    kernel that makes the batch (docs/training-speed.md has the measurements).
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return the convolution of ``images``, in channels-last order."""
        (high, wide), (top, left) = self.kernel_size, (int(border) for border in self.padding)
        padded = functional.pad(images.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
        # (batch, row, column, channel, row in the kernel, column in the kernel): a view, no copy yet.
        windows = padded.unfold(1, high, 1).unfold(2, wide, 1)
        rows, columns = windows.shape[1:3]
        # Matrix units want sizes in steps of 16; zeros fill up.
        size = high * wide * self.in_channels
        extra = -size % 16
        kernel = functional.pad(self.weight.reshape(-1, size), (0, extra))
        patches = functional.pad(windows.reshape(-1, size), (0, extra))
        product = patches @ kernel.t()
        if self.bias is not None:
            product = product + self.bias.to(product.dtype)
        return product.view(len(images), rows, columns, -1).permute(0, 3, 1, 2)


def use_patches(network: nn.Module) -> nn.Module:
    """Replace, in place, plain convolutions of few inputs by `PatchConv2d`."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Conv2d and _is_small(child):
                patched = PatchConv2d(
                    child.in_channels,
                    child.out_channels,
                    child.kernel_size,  # type: ignore[arg-type]
                    padding=child.padding,  # type: ignore[arg-type]
                    bias=child.bias is not None,
                )
                patched.load_state_dict(child.state_dict())
                setattr(module, name, patched)
    return network


def _is_small(layer: nn.Conv2d) -> bool:
    plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
    return plain and not isinstance(layer.padding, str) and layer.weight[0].numel() <= _PATCH_LIMIT
