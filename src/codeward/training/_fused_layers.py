"""Which networks our GPU kernels know, and as which fused layers they compute them."""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from codeward.training import _fast_kernels as kernels
from codeward.training._architectures import FastNetwork

#: Height and width, border above and to the left, height and width with the whole border.
Border = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class FusedLayer:
    """A 3x3 convolution, batch norm and GELU, with a 2x2 max-pool before or after these two, or none.

    Attributes
    ----------
    convolution, norm : str
        Names of the modules.
    padding : int
        Zeros around what the convolution reads; none where the layer before has written them.
    kind : tl.constexpr
        ``PLAIN``, ``PLACES`` or ``GROUPS`` (a pool before batch norm), ``AFTER`` or ``CORNERS`` (a pool after GELU),
        ``FIRST`` (a `FirstLayer`). ``GROUPS`` and ``CORNERS`` read and give 2x2 blocks of places as channels.
    border : tuple of int
        Size of what batch norm gives (of the pooled image, where a pool comes after), and the zeros around it that the
        next layer reads.
    """

    convolution: str
    norm: str
    padding: int
    kind: Any
    border: Border


def list_layers(network: nn.Module, shape: tuple[int, int, int]) -> tuple[FusedLayer, ...] | None:
    """Return the layers of a network for which the kernels were written, or None for any other.

    They were written for `FastNetwork` whose stages all pool, and for plain sequences of padded convolutions without
    bias, batch norms and GELUs, some with a pool, that end in a global max-pool and a linear layer.
    """
    found = _list_stages(network, shape) if isinstance(network, FastNetwork) else _list_sequence(network, shape)
    if not found or not find_head(network)[0].out_features <= 64:
        return None
    widths = [find_module(network, layer.convolution).out_channels for layer in found]
    # The last one lies in one piece in the kernel of the head.
    fits = all(16 <= width <= 256 and width % 16 == 0 for width in widths) and widths[-1] & (widths[-1] - 1) == 0
    return tuple(found) if fits else None


def _list_stages(network: FastNetwork, shape: tuple[int, int, int]) -> list[FusedLayer]:
    high, wide = shape[1] - 1, shape[2] - 1
    stages: list[Any] = list(network.stages)
    if shape[0] > 4 or not all(stage.pools for stage in stages):
        return []
    layers = []
    for number in range(len(stages)):
        high, wide, name = high // 2, wide // 2, f"stages.{number}"
        # The first convolution has too few channels for a GPU: it and the pool's four corners become one convolution of
        # 2x2 blocks of 2x2 places. The others read a border that makes their sizes even.
        kind = kernels.PLACES if number else kernels.GROUPS
        even = high, wide, 1, high + 2 - high % 2, wide + 2 - wide % 2
        layers.append(FusedLayer(f"{name}.conv1", f"{name}.norm1", 0, kind, (high, wide, 0, high, wide)))
        layers.append(FusedLayer(f"{name}.conv2", f"{name}.norm2", 1, kernels.PLAIN, even))
    return layers


def _list_sequence(network: nn.Module, shape: tuple[int, int, int]) -> list[FusedLayer]:
    modules: list[Any] = list(network) if type(network) is nn.Sequential else []
    if [type(module) for module in modules[-3:]] != [nn.AdaptiveMaxPool2d, nn.Flatten, nn.Linear]:
        return []
    high, wide, layers, at = shape[1], shape[2], [], 0
    while at < len(modules) - 3:
        kinds = [type(module) for module in modules[at : at + 4]]
        convolution, norm = modules[at], modules[min(at + 1, len(modules) - 1)]
        if kinds[:3] != [nn.Conv2d, nn.BatchNorm2d, nn.GELU] or not _is_plain(convolution, norm, modules[at + 2]):
            return []
        pools = kinds[3] is nn.MaxPool2d
        if pools and (high % 2 or wide % 2 or repr(modules[at + 3]) != repr(nn.MaxPool2d(2))):
            return []
        high, wide = (high // 2, wide // 2) if pools else (high, wide)
        kind = kernels.AFTER if pools else kernels.PLAIN
        layers.append(FusedLayer(str(at), str(at + 1), 1, kind, (high, wide, 0, high, wide)))
        at += 3 + pools
    if not layers or layers[-1].kind is kernels.AFTER or modules[-3].output_size not in (1, (1, 1)):
        return []
    # A first layer of few channels is computed anew in every pass. The next convolution still has few: with a pool, it
    # and the pool's four corners are one convolution of 2x2 blocks of 2x2 places, as in `_list_stages`.
    if modules[0].in_channels <= 4 and layers[0].kind is kernels.PLAIN and len(layers) > 1:
        layers[0] = replace(layers[0], kind=kernels.FIRST)
        if layers[1].kind is kernels.AFTER:
            layers[1] = replace(layers[1], kind=kernels.CORNERS, padding=0)
    return layers


def _is_plain(convolution: Any, norm: Any, gelu: Any) -> bool:
    # What a module is made with shows in its text.
    inputs, outputs = convolution.in_channels, convolution.out_channels
    usual = repr(convolution) == repr(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False, device="meta"))
    kept = norm.affine and norm.track_running_stats and norm.momentum is not None
    return usual and kept and gelu.approximate == "none"


def find_module(network: nn.Module, name: str) -> Any:
    """Return a module of a network by its name."""
    return network.get_submodule(name)


def find_head(network: nn.Module) -> tuple[nn.Linear, str, float]:
    """Return the linear layer, its name, and what its output is divided by."""
    if isinstance(network, FastNetwork):
        return network.head, "head", 9.0
    last = len(list(network.children())) - 1
    return find_module(network, str(last)), str(last), 1.0
