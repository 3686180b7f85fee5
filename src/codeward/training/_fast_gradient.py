"""The gradient of `FastNetwork` on a GPU, pass by pass: cuDNN's convolutions and our kernels between them."""

from typing import Any, TypeGuard

import torch
import triton
from torch import Tensor

from codeward.training import _fast_kernels as kernels
from codeward.training._architectures import FastNetwork

Named = dict[str, Tensor]

#: Values, and channels at most, of a program that works value by value.
_TILE, _BLOCK = 4096, 64
#: Channels and parts that are added at a time where sums are closed.
_CLOSING: dict[str, Any] = {"B": 4, "G": 256}


class FastGradient:
    """Gradients of a batch by all weights of a `FastNetwork`, without autograd.

    Parameters
    ----------
    network : FastNetwork
        Gives the shapes; weights come with every call.
    shape : tuple of int
        Channels, height and width of an image.
    batch : int
    smoothing : float
        Of the labels.
    kind : torch.dtype
        Type of activations and of their gradients.

    Notes
    -----
    The same function as autograd of the network's training pass, up to rounding (tested). A stage keeps what its
    convolutions gave, pooled, for the backward pass, and computes the rest again. The first convolution has too few
    channels for a GPU: it and the pool's four corners become one 2x2 convolution of blocks of 2x2 places.
    """

    def __init__(
        self, network: FastNetwork, shape: tuple[int, int, int], batch: int, smoothing: float, kind: torch.dtype
    ) -> None:
        self.network, self.batch, self.smoothing, self.kind = network, batch, smoothing, kind
        high, wide = shape[1] - 1, shape[2] - 1
        #: By stage: size of its input, and of its pooled image.
        self.sizes: list[tuple[int, int, int, int]] = []
        for _ in network.stages:
            self.sizes.append((high, wide, high // 2, wide // 2))
            high, wide = high // 2, wide // 2

    @staticmethod
    def fits(network: object, shape: tuple[int, int, int]) -> TypeGuard[FastNetwork]:
        """Tell whether the kernels were written for such a network: all stages pool, widths are powers of two."""
        if not isinstance(network, FastNetwork) or network.head.out_features > 64 or shape[0] > 4:
            return False
        stages: list[Any] = list(network.stages)
        widths = [stage.conv1.out_channels for stage in stages]
        return all(stage.pools for stage in stages) and all(16 <= n <= 256 and n & (n - 1) == 0 for n in widths)

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
        x = self._stem(images, buffers["stem.weight"])
        # 1. Forward. Kept: what a convolution read, its weights, what batch norm read, its table, which of a window.
        for number, (_, _, h, w) in enumerate(self.sizes):
            name = f"stages.{number}"
            weight, kind = parameters[f"{name}.conv1.weight"], kernels.PLACES
            if number == 0:
                weight, kind = self._widen(weight), kernels.GROUPS
            pooled, which, parts = self._pool(self._convolve(x, weight, 0), kind, h, w)
            table = self._close(parts, pooled, f"{name}.norm1", parameters, buffers)
            saved.append((x, weight, pooled, table, which))
            x = self._apply(pooled, table, (h, w, 0, h, w))
            weight = parameters[f"{name}.conv2.weight"]
            inner = self._convolve(x, weight, 1)
            table = self._close(self._sum(inner), inner, f"{name}.norm2", parameters, buffers)
            saved.append((x, weight, inner, table))
            if number + 1 < len(self.sizes):  # the next stage pads what it reads
                x = self._apply(inner, table, _border(h, w))
        # 2. The head, and back to what the last batch norm read.
        x, weight, inner, table = saved.pop()
        name = f"stages.{len(self.sizes) - 1}.norm2"
        grads["head.weight"], grad = self._head(inner, table, parameters["head.weight"], labels, share, name, grads)
        # 3. Backward.
        for number in reversed(range(len(self.sizes))):
            name = f"stages.{number}"
            high, wide, h, w = self.sizes[number]
            grad, grads[f"{name}.conv2.weight"] = self._convolve_back(grad, x, weight, 1)
            x, weight, pooled, table, which = saved.pop()
            kind = kernels.PLACES if number else kernels.GROUPS
            grad = self._back(pooled, grad, table, which, kind, (h, w, 0, h, w), f"{name}.norm1", grads)
            if number == 0:
                _, wider = self._convolve_back(grad, x, weight, 0, only_weight=True)
                grads[f"{name}.conv1.weight"] = self._narrow(wider, parameters[f"{name}.conv1.weight"])
                break
            grad, grads[f"{name}.conv1.weight"] = self._convolve_back(grad, x, weight, 0)
            x, weight, inner, table = saved.pop()
            name = f"stages.{number - 1}.norm2"
            grad = self._back(inner, grad, table, inner, kernels.PLAIN, _border(high, wide), name, grads)
        return grads

    def _new(self, like: Tensor, *shape: int, kind: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=kind or self.kind, device=like.device)

    def _cut(self, x: Tensor, n: int) -> tuple[tuple[int, int], dict[str, Any]]:
        """Return the programs of a kernel over ``n`` places with the channels of ``x``, and what each works on."""
        block = min(_BLOCK, x.shape[3])
        places = _TILE // block
        return (triton.cdiv(n, places), x.shape[3] // block), {"C": x.shape[3], "B": block, "P": places}

    def _stem(self, images: Tensor, weight: Tensor) -> Tensor:
        channels, out = images.shape[3], len(weight)
        high, wide, h, w = self.sizes[0]
        n = self.batch * 4 * (h + 1) * (w + 1)
        blocks = self._new(images, self.batch, h + 1, w + 1, 4 * out)
        sizes: dict[str, Any] = {"H": high, "W": wide, "C": channels, "KP": 16, "F": out, "P": 128}
        sizes["FP"] = max(16, triton.next_power_of_2(out))
        kernels.stem_kernel[(triton.cdiv(n, 128),)](images, weight, blocks, n, *weight.stride(), **sizes)
        return blocks

    def _widen(self, weight: Tensor) -> Tensor:
        out, channels = weight.shape[:2]
        wider = self._new(weight, 4 * out, 2, 2, 4 * channels)
        n = wider.numel()
        kernels.widen_kernel[(triton.cdiv(n, 512),)](weight, wider, n, C=channels, F=out, P=512)
        return wider.permute(0, 3, 1, 2)

    def _narrow(self, grad: Tensor, weight: Tensor) -> Tensor:
        out, channels = weight.shape[:2]
        narrow = torch.empty_like(weight)
        n = narrow.numel()
        flat = grad.permute(0, 2, 3, 1).contiguous()
        kernels.narrow_kernel[(triton.cdiv(n, 128),)](flat, narrow, n, C=channels, F=out, P=128)
        return narrow

    def _convolve(self, x: Tensor, weight: Tensor, padding: int) -> Tensor:
        out = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, padding=padding)
        return out.permute(0, 2, 3, 1).contiguous()

    def _convolve_back(
        self, grad: Tensor, x: Tensor, weight: Tensor, padding: int, only_weight: bool = False
    ) -> tuple[Tensor, Tensor]:
        wanted = (not only_weight, True, False)
        before, by_weight, _ = torch.ops.aten.convolution_backward(
            grad.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), weight, None,
            (1, 1), (padding, padding), (1, 1), False, (0, 0), 1, wanted,
        )  # fmt: skip
        return grad if only_weight else before.permute(0, 2, 3, 1).contiguous(), by_weight

    def _pool(self, x: Tensor, kind: Any, h: int, w: int) -> tuple[Tensor, Tensor, Tensor]:
        channels = x.shape[3] // 4 if kind == kernels.GROUPS else x.shape[3]
        pooled = self._new(x, self.batch, h, w, channels)
        which = self._new(x, *pooled.shape, kind=torch.int8)
        n = self.batch * h * w
        programs, sizes = self._cut(pooled, n)
        parts = self._new(x, programs[0], 2, channels, kind=torch.float32)
        kernels.pool_kernel[programs](x, pooled, which, parts, n, KIND=kind, H=h, W=w, **sizes)
        return pooled, which, parts

    def _sum(self, x: Tensor) -> Tensor:
        n = x.numel() // x.shape[3]
        programs, sizes = self._cut(x, n)
        parts = self._new(x, programs[0], 2, x.shape[3], kind=torch.float32)
        kernels.sum_kernel[programs](x, parts, n, **sizes)
        return parts

    def _close(self, parts: Tensor, x: Tensor, name: str, parameters: Named, buffers: Named) -> Tensor:
        channels = x.shape[3]
        norm: Any = self.network.get_submodule(name)
        table = self._new(x, 4, channels, kind=torch.float32)
        given = parts, parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        running = buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"]
        numbers = float(x.numel() // channels), norm.eps, norm.momentum
        kernels.close_norm_kernel[(channels // _CLOSING["B"],)](
            *given, *running, table, *numbers, PARTS=len(parts), C=channels, **_CLOSING
        )
        return table

    def _apply(self, x: Tensor, table: Tensor, border: tuple[int, int, int, int, int]) -> Tensor:
        out = self._new(x, self.batch, *border[3:], x.shape[3])
        n = out.numel() // x.shape[3]
        programs, sizes = self._cut(x, n)
        kernels.apply_kernel[programs](x, table, out, n, **_name(border), **sizes)
        return out

    def _back(
        self,
        x: Tensor,
        grad: Tensor,
        table: Tensor,
        which: Tensor,
        kind: Any,
        border: tuple[int, int, int, int, int],
        name: str,
        grads: Named,
    ) -> Tensor:
        """Go back through GELU, batch norm, whose weights' gradients are noted, and a pool."""
        h, w = border[:2]
        channels, n = x.shape[3], self.batch * h * w
        programs, sizes = self._cut(x, n)
        sizes |= _name(border)
        parts = self._new(x, programs[0], 2, channels, kind=torch.float32)
        kernels.slope_kernel[programs](x, grad, table, parts, n, **sizes)
        means = self._close_slope(parts, float(n), name, grads)
        shapes = {
            kernels.PLAIN.value: (h, w, channels),
            kernels.PLACES.value: (2 * h, 2 * w, channels),
            kernels.GROUPS.value: (h, w, 4 * channels),
        }
        out = self._new(x, self.batch, *shapes[kind.value])
        kernels.back_kernel[programs](x, grad, table, means, which, out, n, KIND=kind, **sizes)
        return out

    def _close_slope(self, parts: Tensor, count: float, name: str, grads: Named) -> Tensor:
        channels = parts.shape[2]
        found = self._new(parts, 4, channels, kind=torch.float32)
        grads[f"{name}.weight"], grads[f"{name}.bias"], means = found[0], found[1], found[2:]
        kernels.close_slope_kernel[(channels // _CLOSING["B"],)](
            parts, found[0], found[1], means, count, PARTS=len(parts), C=channels, **_CLOSING
        )
        return means

    def _head(
        self, x: Tensor, table: Tensor, weight: Tensor, labels: Tensor, share: Tensor, name: str, grads: Named
    ) -> tuple[Tensor, Tensor]:
        h, w, channels = x.shape[1:]
        classes = len(weight)
        sizes: dict[str, Any] = {"C": channels, "K": classes, "KP": max(16, triton.next_power_of_2(classes))}
        best, which = self._new(x, self.batch, channels), self._new(x, self.batch, channels, kind=torch.int8)
        by_logits = self._new(x, self.batch, sizes["KP"], kind=torch.float32)
        by_best = self._new(x, self.batch, channels, kind=torch.float32)
        parts = self._new(x, self.batch, 2, channels, kind=torch.float32)
        given = x, table, weight, labels, share, best, by_logits, by_best, which, parts
        kernels.head_kernel[(self.batch,)](
            *given, self.batch, self.smoothing, S=h * w, SP=triton.next_power_of_2(h * w), **sizes, num_warps=2
        )
        by_weight = torch.empty_like(weight)
        kernels.head_grad_kernel[(channels // 16,)](best, by_logits, by_weight, BATCH=self.batch, **sizes, B=16, G=64)
        means = self._close_slope(parts, float(self.batch * h * w), name, grads)
        out, n = torch.empty_like(x), self.batch * h * w
        programs, tile = self._cut(x, n)
        kernels.spread_kernel[programs](x, table, means, by_best, which, out, n, S=h * w, **tile)
        return by_weight, out


def _border(h: int, w: int) -> tuple[int, int, int, int, int]:
    """Return size, border above, and size with the border that a stage's first convolution reads: an even one."""
    return h, w, 1, h + 2 - h % 2, w + 2 - w % 2


def _name(border: tuple[int, int, int, int, int]) -> dict[str, int]:
    return dict(zip(("H", "W", "TOP", "OH", "OW"), border, strict=True))
