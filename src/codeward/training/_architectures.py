"""Networks by name, each a function of the image shape and the number of classes."""

import hashlib
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from codeward._errors import InputError
from codeward._importing import import_named

Shape = tuple[int, int, int]

_SEEDING = threading.RLock()


def mnist_cnn(shape: Shape, n_classes: int) -> nn.Module:
    """Return the paper's 4-layer CNN: 3x3 convolutions 32 and 64, 2x2 max-pool, dropout, dense 128 and classes.

    The paper ("Model Design") leaves the dropout rate, the ReLUs after the second convolution and the first dense
    layer, and the padding open; this takes 0.5 (0.25 ends 0.05 points lower on MNIST), both ReLUs and no padding.
    """
    channels, height, width = shape
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(flat, 128),
        nn.ReLU(),
        nn.Linear(128, n_classes),
    )


def digits_cnn(shape: Shape, n_classes: int) -> nn.Module:
    """Return a small CNN for 8x8 digits: two padded 3x3 convolutions 16 and 32 with pooling, dense 64 and classes."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, n_classes),
    )


def mlp(shape: Shape, n_classes: int) -> nn.Module:
    """Return a perceptron with one hidden layer of 64."""
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 64), nn.ReLU(), nn.Linear(64, n_classes))


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut (He et al. 2016, basic block)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        """Map a batch through the block.

        The 1x1 shortcut reads every stride-th pixel by a slice, which is the same function as a strided convolution and
        spares GPU libraries their slowest case.
        """
        inner = torch.relu(self.bn1(self.conv1(images)))
        passed = images if self.stride == 1 else images[:, :, :: self.stride, :: self.stride]
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(passed))


def resnet18(shape: Shape, n_classes: int) -> nn.Module:
    """Return ResNet18 for small images: 3x3 stem without pooling, 64-128-256-512 channels, two blocks each."""
    blocks: list[nn.Module] = []
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [_ResidualBlock(inputs, outputs, stride), _ResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    stem = [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, n_classes))


class _Whitening(nn.Module):
    """A frozen 2x2 convolution to 8 channels a channel: patches turned and scaled to unit covariance, and negated.

    Its weights are a function of the images that `fit` is given: those of the model's own users, nobody else's.
    """

    weight: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(8 * channels, channels, 2, 2) / (4 * channels) ** 0.5)

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Take the principal directions of all 2x2 patches of normalised images (N, C, H, W)."""
        channels = images.shape[1]
        patches = torch.cat(
            [part.flatten(2) for part in _shifted(images)], dim=1
        )  # (N, 4 C, places), N, rows of patches
        covariance = torch.einsum("nip,njp->ij", patches, patches).double().cpu() / (len(images) * patches.shape[2])
        values, vectors = torch.linalg.eigh(covariance)
        scaled = (vectors / (values.clamp_min(0) + 5e-4).sqrt()).t().flip(0).float()
        kernels = scaled.reshape(-1, 2, 2, channels).permute(0, 3, 1, 2)
        self.weight.copy_(torch.cat([kernels, -kernels]))

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type == "cpu":
            return nn.functional.conv2d(images, self.weight)
        # GPU libraries have no fast convolution for so few channels: multiply the patches instead.
        size = 4 * images.shape[1]
        patches = torch.cat([part.permute(0, 2, 3, 1) for part in _shifted(images)], dim=3)
        patches = nn.functional.pad(patches, (0, -size % 16))
        kernel = nn.functional.pad(self.weight.permute(2, 3, 1, 0).reshape(size, -1), (0, 0, 0, -size % 16))
        return (patches @ kernel.to(patches.dtype)).permute(0, 3, 1, 2)


def _shifted(images: Tensor) -> list[Tensor]:
    """Return the four views of (N, C, H, W) from which 2x2 patches are made."""
    high, wide = images.shape[2] - 1, images.shape[3] - 1
    return [images[:, :, top : top + high, left : left + wide] for top in (0, 1) for left in (0, 1)]


class _HalvingPool(torch.autograd.Function):
    """2x2 max-pool of even sizes whose gradient is one elementwise pass: what a compiler fuses with its neighbours."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        best = values[:, :, 0::2, 0::2]
        which = torch.zeros(best.shape, dtype=torch.int8, device=best.device)
        for number, (row, column) in enumerate(((0, 1), (1, 0), (1, 1)), start=1):
            other = values[:, :, row::2, column::2]
            larger = other > best
            best = torch.where(larger, other, best)
            which = torch.where(larger, number, which)
        ctx.save_for_backward(which)
        return best

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (which,) = ctx.saved_tensors
        numbers = torch.arange(4, dtype=torch.int8, device=grad.device).view(1, 1, 2, 1, 2, 1)
        spread = [part.permute(0, 2, 3, 1)[:, :, None, :, None] for part in (which, grad)]
        batch, channels, high, wide = grad.shape
        whole = torch.where(spread[0] == numbers, spread[1], 0).reshape(batch, 2 * high, 2 * wide, channels)
        return whole.permute(0, 3, 1, 2)


class _GlobalPool(torch.autograd.Function):
    """Maximum over all places of (batch, channels, height, width), whose gradient goes to the place that was chosen.

    A gradient that looks for the maximum again, as that of ``amax`` does, finds none where a compiler computes the
    values a second time with another rounding.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        best, which = values.flatten(2).max(dim=2)
        ctx.save_for_backward(which)
        ctx.places = values.shape[2:]
        return best

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (which,) = ctx.saved_tensors
        high, wide = ctx.places
        numbers = torch.arange(high * wide, device=grad.device)[None, :, None]
        whole = torch.where(which[:, None] == numbers, grad[:, None], 0)  # (batch, places, channels)
        return whole.view(len(grad), high, wide, -1).permute(0, 3, 1, 2)


class _PoolingStage(nn.Module):
    """Convolution, 2x2 max-pool, convolution, with batch norm and GELU; no pool where an image is a line or a point.

    The first convolution computes only what the pool looks at: of an odd number of rows, all but the last.
    """

    def __init__(self, inputs: int, outputs: int, pools: bool) -> None:
        super().__init__()
        self.pools = pools
        self.conv1 = nn.Conv2d(inputs, outputs, 3, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, momentum=0.4)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, momentum=0.4)

    def forward(self, images: Tensor) -> Tensor:
        high, wide = (1 - size % 2 if self.pools else 1 for size in images.shape[2:])
        inner = self.conv1(nn.functional.pad(images, (1, wide, 1, high)))
        if self.pools and inner.device.type == "cpu":
            inner = nn.functional.max_pool2d(inner, 2)
        elif self.pools:
            inner = _HalvingPool.apply(inner)  # type: ignore[no-untyped-call]
        inner = nn.functional.gelu(self.norm1(inner))
        return nn.functional.gelu(self.norm2(self.conv2(inner)))


class FastNetwork(nn.Module):
    """A small wide network that learns in few epochs: whitened stem, three pooling stages, global max-pool, one layer.

    Parameters
    ----------
    shape : tuple of int
        Channels, height, width; at least 2 x 2 pixels.
    n_classes : int
    widths : sequence of int
        Channels of the stages.

    Notes
    -----
    The stem is fitted by `fit` to the images of the model's own users before the first step, and frozen: isolation
    holds, since nobody else's images enter. The other parts are common knowledge of fast training on CIFAR-10.
    """

    def __init__(self, shape: Shape, n_classes: int, widths: Sequence[int] = (64, 256, 256)) -> None:
        super().__init__()
        channels, high, wide = shape[0], shape[1] - 1, shape[2] - 1
        if min(high, wide) < 1:
            raise ValueError("it needs images of at least 2 x 2 pixels")
        self.stem = _Whitening(channels)
        inputs, stages = 8 * channels, []
        for outputs in widths:
            pools = min(high, wide) > 1
            stages.append(_PoolingStage(inputs, outputs, pools))
            high, wide, inputs = (high // 2, wide // 2, outputs) if pools else (high, wide, outputs)
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, n_classes, bias=False)

    def fit(self, images: Tensor) -> None:
        """Fit the stem to normalised images (N, C, H, W) of the model's own users."""
        self.stem.fit(images)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits; divided by 9, which keeps smoothed labels within reach of small weights."""
        values = self.stages(nn.functional.gelu(self.stem(images)))
        on_cpu = values.device.type == "cpu"
        best = values.amax((2, 3)) if on_cpu else _GlobalPool.apply(values)  # type: ignore[no-untyped-call]
        return self.head(best) / 9  # type: ignore[no-any-return]


def fast(shape: Shape, n_classes: int) -> nn.Module:
    """Return `FastNetwork` of 64, 256 and 256 channels: CIFAR-10 in seconds a model on a GPU."""
    return FastNetwork(shape, n_classes)


def fast_small(shape: Shape, n_classes: int) -> nn.Module:
    """Return `FastNetwork` of 32, 64 and 128 channels, a sixth of the arithmetic, for a CPU."""
    return FastNetwork(shape, n_classes, (32, 64, 128))


def mnist_fast(shape: Shape, n_classes: int) -> nn.Module:
    """Return five 3x3 convolutions (32, 64, pool, 96, 96, pool, 128) with batch norm and GELU, global max-pool."""
    layers: list[nn.Module] = []
    inputs = shape[0]
    for outputs, pools in ((32, False), (64, True), (96, False), (96, True), (128, False)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.GELU()]
        layers += [nn.MaxPool2d(2)] if pools else []
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(inputs, n_classes))


#: Names accepted as `TrainingSettings.architecture`.
ARCHITECTURES: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mnist-cnn": mnist_cnn,
    "digits-cnn": digits_cnn,
    "mlp": mlp,
    "resnet18": resnet18,
    "fast": fast,
    "fast-small": fast_small,
    "mnist-fast": mnist_fast,
}


def build_network(architecture: str, shape: Shape, n_classes: int, seed: int) -> nn.Module:
    """Build a network whose initial weights depend on ``seed`` alone.

    Layers draw their initial weights from torch's global generator; it is seeded for the call and put back after, so
    the caller's random state is untouched.

    Parameters
    ----------
    architecture : str
        A name from `ARCHITECTURES`, or ``package.module:function``; the function is called with ``(shape, n_classes)``
        when it takes two positional arguments and with nothing otherwise, and returns an ``nn.Module`` that maps
        (B, C, H, W) to (B, n_classes) logits.
    shape : tuple of int
        Channels, height, width.

    Examples
    --------
    >>> network = build_network("mlp", (1, 8, 8), 10, seed=0)
    >>> sum(weights.numel() for weights in network.parameters())
    4810
    """
    build = ARCHITECTURES.get(architecture) or _import_builder(architecture)
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            network = build(shape, n_classes) if _takes_two(build) else build()  # type: ignore[call-arg]
        except (ValueError, RuntimeError, ZeroDivisionError) as error:
            raise InputError(f"architecture {architecture!r} cannot be built for images {shape}: {error}") from error
    if not isinstance(network, nn.Module):
        raise InputError(f"architecture {architecture!r} returned {type(network).__name__}; expected a torch nn.Module")
    return network


def fingerprint(network: nn.Module) -> str:
    """SHA-256 of the layers and of the names, shapes and types of the weights: changes when the source of a net does.

    Code inside ``forward`` is not seen; rename the function when only that changes.

    Examples
    --------
    >>> first, second = (build_network("mlp", (1, 8, 8), 10, seed) for seed in (0, 1))
    >>> fingerprint(first) == fingerprint(second)  # the same layers; weights are not looked at
    True
    """
    lines = [repr(network)]
    lines += [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in network.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _import_builder(architecture: str) -> Callable[[Shape, int], nn.Module]:
    module_name, _, function = architecture.partition(":")
    if not module_name or not function:
        known = ", ".join(ARCHITECTURES)
        raise InputError(f"architecture {architecture!r}: expected one of {known}, or package.module:function")
    build = getattr(import_named(module_name, f"architecture {architecture!r}"), function, None)
    if build is None:
        raise InputError(f"architecture {architecture!r}: {module_name} has no {function}")
    if not callable(build):
        raise InputError(f"architecture {architecture!r} is not a function")
    return build  # type: ignore[no-any-return]


def _takes_two(build: Callable[..., nn.Module]) -> bool:
    try:
        inspect.signature(build).bind((1, 1, 1), 2)
    except TypeError:
        return False
    return True
