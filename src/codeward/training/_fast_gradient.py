"""The gradient of the modern networks on a GPU, pass by pass: cuDNN's convolutions and our kernels between them."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor, nn

from codeward.training import _fast_kernels as kernels
from codeward.training._fast_kernels import launch
from codeward.training._first_layers import FirstLayer, narrow_kernel, stem_kernel, widen_kernel
from codeward.training._fused_layers import Border, FusedLayer, find_head, find_module

Named = dict[str, Tensor]
#: Values, and channels at most, of a program that works value by value.
_TILE, _BLOCK = 4096, 64
#: Of kernels that add up: programs that fill the chip, and the most tiles of one.
_PROGRAMS, _MOST_TILES = 400, 8
#: Channels and parts that are added at a time where sums are closed.
_CLOSING: dict[str, Any] = {"B": 4, "G": 256}
#: Layers with a pool before batch norm or after GELU, and layers of 2x2 blocks of places.
_POOL_BEFORE, _POOL_AFTER = (kernels.PLACES, kernels.GROUPS), (kernels.AFTER, kernels.CORNERS)
_IN_BLOCKS = kernels.GROUPS, kernels.CORNERS


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
        self.first = self._find_first()

    def _find_first(self) -> FirstLayer | None:
        layer = self.layers[0]
        if layer.kind is not kernels.FIRST:
            return None
        convolution, norm = find_module(self.network, layer.convolution), find_module(self.network, layer.norm)
        shape = self.batch, *layer.border[:2], convolution.in_channels
        in_blocks = self.layers[1].kind is kernels.CORNERS
        return FirstLayer(layer.convolution, layer.norm, norm.eps, norm.momentum, shape, in_blocks)

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
        lead = 0 if self.first is None else 1
        if self.first is not None:
            x, first_saved = self.first.forward(x, parameters, buffers)
            saved.append(first_saved)
        # 1. Forward. Saved: what a convolution read, its weights, what batch norm read, its table, which of a window it
        # was, and what batch norm read there.
        for layer in self.layers[lead:]:
            weight = parameters[f"{layer.convolution}.weight"]
            channels = len(weight)
            weight = self._widen(weight) if layer.kind in _IN_BLOCKS else weight
            inner, which = self._convolve(x, weight, layer.padding), None
            if layer.kind is kernels.CORNERS:  # one row a place, in whatever order
                inner = inner.view(self.batch, 2 * layer.border[0], 2 * layer.border[1], channels)
            if layer.kind in _POOL_BEFORE:
                inner, which, parts = self._pool(inner, layer)
            else:
                parts = self._sum(inner)
            table = self._close(parts, inner, layer.norm, parameters, buffers)
            before = x
            kept = inner
            if layer is not self.layers[-1] and layer.kind in _POOL_AFTER:
                x, which, kept = self._apply_pool(inner, table, layer)
            elif layer is not self.layers[-1]:
                x = self._apply(inner, table, layer.border)
            saved.append((before, weight, inner, table, which, kept))
        # 2. The head, and back to what the last batch norm read.
        grad = self._head(inner, table, parameters, labels, share, grads)
        # 3. Backward.
        for number in reversed(range(lead, len(self.layers))):
            layer = self.layers[number]
            x, weight, *_ = saved[number]
            before, by_weight = self._convolve_back(grad, x, weight, layer.padding, only_weight=not number)
            name = f"{layer.convolution}.weight"
            wider = layer.kind in _IN_BLOCKS
            grads[name] = self._narrow(by_weight, parameters[name]) if wider else by_weight
            if number > lead:
                inner, table, which, kept = saved[number - 1][2:]
                grad = self._back(before, inner, table, which, kept, self.layers[number - 1], grads)
        if self.first is not None:
            self.first.back(before, first_saved, parameters, grads)
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
        launch(stem_kernel, (triton.cdiv(n, 128),), images, weight, blocks, n, *weight.stride(), **sizes)
        return blocks

    def _widen(self, weight: Tensor) -> Tensor:
        out, channels = weight.shape[:2]
        wider = self._new(weight, 4 * out, 2, 2, 4 * channels)
        n = wider.numel()
        launch(widen_kernel, (triton.cdiv(n, 512),), weight, wider, n, C=channels, F=out, P=512)
        return wider.permute(0, 3, 1, 2)

    def _narrow(self, grad: Tensor, weight: Tensor) -> Tensor:
        out, channels = weight.shape[:2]
        narrow = torch.empty_like(weight)
        n = narrow.numel()
        flat = grad.permute(0, 2, 3, 1).contiguous()
        launch(narrow_kernel, (triton.cdiv(n, 128),), flat, narrow, n, C=channels, F=out, P=128)
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
        launch(kernels.pool_kernel, programs, x, pooled, which, parts, n, KIND=layer.kind, H=h, W=w, **sizes)
        return pooled, which, parts

    def _cut_sums(self, x: Tensor, n: int) -> tuple[tuple[int, int], dict[str, Any]]:
        """Like `_cut` for a kernel that adds up: tiles, several a program, so that few parts are left to close."""
        (tiles, blocks), sizes = self._cut(x, n, _TILE // 2)
        sizes["T"] = max(1, min(_MOST_TILES, tiles * blocks // _PROGRAMS))
        return (triton.cdiv(tiles, sizes["T"]), blocks), sizes

    def _sum(self, x: Tensor) -> Tensor:
        n = x.numel() // x.shape[3]
        programs, sizes = self._cut_sums(x, n)
        parts = self._new(x, programs[0], 2, x.shape[3], kind=torch.float32)
        launch(kernels.sum_kernel, programs, x, parts, n, **sizes)
        return parts

    def _close(self, parts: Tensor, x: Tensor, name: str, parameters: Named, buffers: Named) -> Tensor:
        channels, norm = x.shape[3], find_module(self.network, name)
        table = self._new(x, 4, channels, kind=torch.float32)
        given = parts, parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        running = buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"]
        numbers = float(x.numel() // channels), norm.eps, norm.momentum
        launch(
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
        launch(kernels.apply_kernel, programs, x, table, out, n, **_name(border), **sizes)
        return out

    def _apply_pool(self, x: Tensor, table: Tensor, layer: FusedLayer) -> tuple[Tensor, Tensor, Tensor]:
        h, w = layer.border[:2]
        out, kept = (self._new(x, self.batch, h, w, x.shape[3]) for _ in range(2))
        which = self._new(x, *out.shape, kind=torch.int8)
        n = self.batch * h * w
        programs, sizes = self._cut(x, n, _TILE // 2)
        launch(kernels.apply_pool_kernel, programs, x, table, out, which, kept, n, KIND=layer.kind, H=h, W=w, **sizes)
        return out, which, kept

    def _back(
        self,
        grad: Tensor,
        x: Tensor,
        table: Tensor,
        which: Tensor | None,
        kept: Tensor,
        layer: FusedLayer,
        grads: Named,
    ) -> Tensor:
        """Go back through GELU, batch norm, whose weights' gradients are noted, and a pool."""
        h, w = layer.border[:2]
        channels, n = x.shape[3], self.batch * h * w
        programs, sizes = self._cut_sums(x, n)
        parts = self._new(x, programs[0], 2, channels, kind=torch.float32)
        launch(kernels.slope_kernel, programs, kept, grad, table, parts, n, **_name(layer.border), **sizes)
        count = x.numel() // channels  # of what batch norm read, also where a pool comes after
        means = self._close_slope(parts, float(count), layer.norm, grads)
        shapes = {
            kernels.PLAIN.value: (h, w, channels),
            kernels.PLACES.value: (2 * h, 2 * w, channels),
            kernels.GROUPS.value: (h, w, 4 * channels),
            kernels.AFTER.value: (2 * h, 2 * w, channels),
            kernels.CORNERS.value: (h, w, 4 * channels),
        }
        out = self._new(x, self.batch, *shapes[layer.kind.value])
        # Four values of each window are read where a pool comes after.
        programs, sizes = self._cut(x, n, _TILE // 2 if layer.kind in _POOL_AFTER else _TILE)
        sizes |= _name(layer.border) | {"KIND": layer.kind}
        given = x, kept, grad, table, means, x if which is None else which, out, n
        launch(kernels.back_kernel, programs, *given, **sizes)
        return out

    def _close_slope(self, parts: Tensor, count: float, name: str, grads: Named) -> Tensor:
        channels = parts.shape[2]
        found = self._new(parts, 4, channels, kind=torch.float32)
        grads[f"{name}.weight"], grads[f"{name}.bias"], means = found[0], found[1], found[2:]
        launch(
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
        linear, name, divisor = find_head(self.network)
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
        launch(
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
        launch(
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
        launch(kernels.spread_kernel, programs, x, table, means, by_best, which, out, n, S=h * w, **tile)
        return out


def _name(border: Border) -> dict[str, Any]:
    return dict(zip(("H", "W", "TOP", "OH", "OW"), border, strict=True))
