"""Convolutions of one or three input channels as a product with their patches."""

from torch import Tensor, nn
from torch.nn import functional

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
