"""The gradient of the modern networks on a GPU, pass by pass: cuDNN's convolutions and our kernels between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor, nn

from codeward.training import _fast_kernels as kernels
from codeward.training._architectures import FastNetwork

Named = dict[str, Tensor]
#: Height and width, border above and to the left, height and width with the whole border.
Border = tuple[int, int, int, int, int]

#: Values, and channels at most, of a program that works value by value.
_TILE, _BLOCK = 4096, 64
#: Channels and parts that are added at a time where sums are closed.
_CLOSING: dict[str, Any] = {"B": 4, "G": 256}
_POOLED = kernels.PLACES, kernels.GROUPS


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
        ``PLAIN``, ``PLACES`` or ``GROUPS`` (a pool before batch norm), ``AFTER`` (a pool after GELU).
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
    if not found or not _find_head(network)[0].out_features <= 64:
        return None
    widths = [_find(network, layer.convolution).out_channels for layer in found]
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
    last_pools = bool(layers) and layers[-1].kind is kernels.AFTER
    return [] if last_pools or modules[-3].output_size not in (1, (1, 1)) else layers


def _is_plain(convolution: Any, norm: Any, gelu: Any) -> bool:
    # What a module is made with shows in its text.
    inputs, outputs = convolution.in_channels, convolution.out_channels
    usual = repr(convolution) == repr(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False, device="meta"))
    kept = norm.affine and norm.track_running_stats and norm.momentum is not None
    return usual and kept and gelu.approximate == "none"


def _find(network: nn.Module, name: str) -> Any:
    return network.get_submodule(name)


def _find_head(network: nn.Module) -> tuple[nn.Linear, str, float]:
    """Return the linear layer, its name, and what its output is divided by."""
    if isinstance(network, FastNetwork):
        return network.head, "head", 9.0
    last = len(list(network.children())) - 1
    return _find(network, str(last)), str(last), 1.0


class FastGradient:
    """Gradients of a batch by all weights of a network, without autograd.

    Parameters
    ----------
    network : nn.Module
        Gives the shapes; weights come with every call.
    layers : sequence of FusedLayer
        From `list_layers`.
    batch : int
    smoothing : float
        Of the labels.
    kind : torch.dtype
        Type of activations and of their gradients.

    Notes
    -----
    The same function as autograd of the network's training pass, up to rounding (tested). A layer keeps what its
    convolution gave, pooled where a pool comes first, for the backward pass, and computes the rest again.
    """

    def __init__(
        self, network: nn.Module, layers: Sequence[FusedLayer], batch: int, smoothing: float, kind: torch.dtype
    ) -> None:
        self.network, self.layers = network, tuple(layers)
        self.batch, self.smoothing, self.kind = batch, smoothing, kind

    def __call__(self, parameters: Named, buffers: Named, images: Tensor, labels: Tensor, share: Tensor) -> Named:
        """Return the gradient of the mean loss by every parameter; batch norm's running values move on.

        Parameters
        ----------
        images : Tensor of float32, shape (batch, height, width, channels)
            Normalised, augmented, mixed.
        labels : Tensor of int64, shape (batch,)
        share : Tensor of float32, shape (1,)
            How much of an image is its own; the rest is the image before it.
        """
        grads: Named = {}
        saved: list[tuple[Any, ...]] = []
        x = self._stem(images, buffers["stem.weight"]) if "stem.weight" in buffers else images.to(self.kind)
        # 1. Forward. Kept: what a convolution read, its weights, what batch norm read, its table, which of a window.
        for layer in self.layers:
            weight = parameters[f"{layer.convolution}.weight"]
            weight = self._widen(weight) if layer.kind is kernels.GROUPS else weight
            inner, which = self._convolve(x, weight, layer.padding), None
            if layer.kind in _POOLED:
                inner, which, parts = self._pool(inner, layer)
            else:
                parts = self._sum(inner)
            table = self._close(parts, inner, layer.norm, parameters, buffers)
            before = x
            if layer is not self.layers[-1] and layer.kind is kernels.AFTER:
                x, which = self._apply_pool(inner, table, layer.border)
            elif layer is not self.layers[-1]:
                x = self._apply(inner, table, layer.border)
            saved.append((before, weight, inner, table, which))
        # 2. The head, and back to what the last batch norm read.
        grad = self._head(inner, table, parameters, labels, share, grads)
        # 3. Backward.
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            x, weight, *_ = saved[number]
            before, by_weight = self._convolve_back(grad, x, weight, layer.padding, only_weight=not number)
            name = f"{layer.convolution}.weight"
            wider = layer.kind is kernels.GROUPS
            grads[name] = self._narrow(by_weight, parameters[name]) if wider else by_weight
            if number:
                inner, table, which = saved[number - 1][2:]
                grad = self._back(before, inner, table, which, self.layers[number - 1], grads)
        return grads

    def _new(self, like: Tensor, *shape: int, kind: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=kind or self.kind, device=like.device)

    def _cut(self, x: Tensor, n: int, tile: int = _TILE) -> tuple[tuple[int, int], dict[str, Any]]:
        """Return the programs of a kernel over ``n`` places with the channels of ``x``, and what each works on."""
        channels = x.shape[3]
        block = min(_BLOCK, channels & -channels)  # the largest power of two that divides them
        places = tile // block
        return (triton.cdiv(n, places), channels // block), {"C": channels, "B": block, "P": places}

    def _stem(self, images: Tensor, weight: Tensor) -> Tensor:
        channels, out = images.shape[3], len(weight)
        high, wide = images.shape[1] - 1, images.shape[2] - 1
        h, w = high // 2, wide // 2
        n = self.batch * 4 * (h + 1) * (w + 1)
        blocks = self._new(images, self.batch, h + 1, w + 1, 4 * out)
        sizes: dict[str, Any] = {"H": high, "W": wide, "C": channels, "KP": 16, "F": out, "P": 128}
        sizes["FP"] = max(16, triton.next_power_of_2(out))
        _launch(kernels.stem_kernel, (triton.cdiv(n, 128),), images, weight, blocks, n, *weight.stride(), **sizes)
        return blocks

    def _widen(self, weight: Tensor) -> Tensor:
        out, channels = weight.shape[:2]
        wider = self._new(weight, 4 * out, 2, 2, 4 * channels)
        n = wider.numel()
        _launch(kernels.widen_kernel, (triton.cdiv(n, 512),), weight, wider, n, C=channels, F=out, P=512)
        return wider.permute(0, 3, 1, 2)

    def _narrow(self, grad: Tensor, weight: Tensor) -> Tensor:
        out, channels = weight.shape[:2]
        narrow = torch.empty_like(weight)
        n = narrow.numel()
        flat = grad.permute(0, 2, 3, 1).contiguous()
        _launch(kernels.narrow_kernel, (triton.cdiv(n, 128),), flat, narrow, n, C=channels, F=out, P=128)
        return narrow

    def _convolve(self, x: Tensor, weight: Tensor, padding: int) -> Tensor:
        out = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, padding=padding)
        return out.permute(0, 2, 3, 1).contiguous()

    def _convolve_back(
        self, grad: Tensor, x: Tensor, weight: Tensor, padding: int, only_weight: bool
    ) -> tuple[Tensor, Tensor]:
        before, by_weight, _ = torch.ops.aten.convolution_backward(
            grad.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), weight, None,
            (1, 1), (padding, padding), (1, 1), False, (0, 0), 1, (not only_weight, True, False),
        )  # fmt: skip
        return grad if only_weight else before.permute(0, 2, 3, 1).contiguous(), by_weight

    def _pool(self, x: Tensor, layer: FusedLayer) -> tuple[Tensor, Tensor, Tensor]:
        h, w = layer.border[:2]
        channels = x.shape[3] // 4 if layer.kind is kernels.GROUPS else x.shape[3]
        pooled = self._new(x, self.batch, h, w, channels)
        which = self._new(x, *pooled.shape, kind=torch.int8)
        n = self.batch * h * w
        programs, sizes = self._cut(pooled, n)
        parts = self._new(x, programs[0], 2, channels, kind=torch.float32)
        _launch(kernels.pool_kernel, programs, x, pooled, which, parts, n, KIND=layer.kind, H=h, W=w, **sizes)
        return pooled, which, parts

    def _sum(self, x: Tensor) -> Tensor:
        n = x.numel() // x.shape[3]
        programs, sizes = self._cut(x, n)
        parts = self._new(x, programs[0], 2, x.shape[3], kind=torch.float32)
        _launch(kernels.sum_kernel, programs, x, parts, n, **sizes)
        return parts

    def _close(self, parts: Tensor, x: Tensor, name: str, parameters: Named, buffers: Named) -> Tensor:
        channels, norm = x.shape[3], _find(self.network, name)
        table = self._new(x, 4, channels, kind=torch.float32)
        given = parts, parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        running = buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"]
        numbers = float(x.numel() // channels), norm.eps, norm.momentum
        _launch(
            kernels.close_norm_kernel,
            (channels // _CLOSING["B"],),
            *given,
            *running,
            table,
            *numbers,
            PARTS=len(parts),
            C=channels,
            **_CLOSING,
        )
        return table

    def _apply(self, x: Tensor, table: Tensor, border: Border) -> Tensor:
        out = self._new(x, self.batch, *border[3:], x.shape[3])
        n = out.numel() // x.shape[3]
        programs, sizes = self._cut(x, n)
        _launch(kernels.apply_kernel, programs, x, table, out, n, **_name(border), **sizes)
        return out

    def _apply_pool(self, x: Tensor, table: Tensor, border: Border) -> tuple[Tensor, Tensor]:
        h, w = border[:2]
        out = self._new(x, self.batch, h, w, x.shape[3])
        which = self._new(x, *out.shape, kind=torch.int8)
        n = self.batch * h * w
        programs, sizes = self._cut(x, n, _TILE // 2)
        _launch(kernels.apply_pool_kernel, programs, x, table, out, which, n, H=h, W=w, **sizes)
        return out, which

    def _back(
        self, grad: Tensor, x: Tensor, table: Tensor, which: Tensor | None, layer: FusedLayer, grads: Named
    ) -> Tensor:
        """Go back through GELU, batch norm, whose weights' gradients are noted, and a pool."""
        h, w = layer.border[:2]
        channels, n = x.shape[3], self.batch * h * w
        # Four values of each window are read where a pool comes after.
        programs, sizes = self._cut(x, n, _TILE // 2 if layer.kind is kernels.AFTER else _TILE)
        sizes |= _name(layer.border) | {"KIND": layer.kind}
        chosen = x if which is None else which
        parts = self._new(x, programs[0], 2, channels, kind=torch.float32)
        _launch(kernels.slope_kernel, programs, x, grad, table, chosen, parts, n, **sizes)
        count = x.numel() // channels  # of what batch norm read, also where a pool comes after
        means = self._close_slope(parts, float(count), layer.norm, grads)
        shapes = {
            kernels.PLAIN.value: (h, w, channels),
            kernels.PLACES.value: (2 * h, 2 * w, channels),
            kernels.GROUPS.value: (h, w, 4 * channels),
            kernels.AFTER.value: (2 * h, 2 * w, channels),
        }
        out = self._new(x, self.batch, *shapes[layer.kind.value])
        _launch(kernels.back_kernel, programs, x, grad, table, means, chosen, out, n, **sizes)
        return out

    def _close_slope(self, parts: Tensor, count: float, name: str, grads: Named) -> Tensor:
        channels = parts.shape[2]
        found = self._new(parts, 4, channels, kind=torch.float32)
        grads[f"{name}.weight"], grads[f"{name}.bias"], means = found[0], found[1], found[2:]
        _launch(
            kernels.close_slope_kernel,
            (channels // _CLOSING["B"],),
            parts,
            found[0],
            found[1],
            means,
            count,
            PARTS=len(parts),
            C=channels,
            **_CLOSING,
        )
        return means

    def _head(self, x: Tensor, table: Tensor, parameters: Named, labels: Tensor, share: Tensor, grads: Named) -> Tensor:
        """Go to the loss and back to what the last batch norm read."""
        linear, name, divisor = _find_head(self.network)
        weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        h, w, channels = x.shape[1:]
        classes, biased = linear.out_features, bias is not None
        sizes: dict[str, Any] = {"C": channels, "K": classes, "KP": max(16, triton.next_power_of_2(classes))}
        sizes |= {"BIASED": biased, "D": divisor}
        best, which = self._new(x, self.batch, channels), self._new(x, self.batch, channels, kind=torch.int8)
        by_logits = self._new(x, self.batch, sizes["KP"], kind=torch.float32)
        by_best = self._new(x, self.batch, channels, kind=torch.float32)
        parts = self._new(x, self.batch, 2, channels, kind=torch.float32)
        given = x, table, weight, bias if biased else table, labels, share
        numbers = {"S": h * w, "SP": triton.next_power_of_2(h * w), "num_warps": 2 if h * w <= 16 else 4}
        _launch(
            kernels.head_kernel,
            (self.batch,),
            *given,
            best,
            by_logits,
            by_best,
            which,
            parts,
            self.batch,
            self.smoothing,
            **numbers,
            **sizes,
        )
        by_weight, by_bias = torch.empty_like(weight), self._new(x, classes, kind=torch.float32)
        grads |= {f"{name}.weight": by_weight} | ({f"{name}.bias": by_bias} if biased else {})
        _launch(
            kernels.head_grad_kernel,
            (channels // 16,),
            best,
            by_logits,
            by_weight,
            by_bias,
            BATCH=self.batch,
            **sizes,
            B=16,
            G=64,
        )
        means = self._close_slope(parts, float(self.batch * h * w), self.layers[-1].norm, grads)
        out, n = torch.empty_like(x), self.batch * h * w
        programs, tile = self._cut(x, n)
        _launch(kernels.spread_kernel, programs, x, table, means, by_best, which, out, n, S=h * w, **tile)
        return out


def _name(border: Border) -> dict[str, Any]:
    return dict(zip(("H", "W", "TOP", "OH", "OW"), border, strict=True))


def _launch(kernel: Any, programs: tuple[int, ...], *given: Any, **named: Any) -> None:
    # Fused multiply-adds in so many words: releases of Triton differ in what they do by default.
    kernel[programs](*given, **named, enable_fp_fusion=True)
