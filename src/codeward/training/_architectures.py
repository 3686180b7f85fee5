"""Networks by name, each a function of the image shape and the number of classes."""

import hashlib
import importlib
import inspect
import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn

from codeward._errors import InputError

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


#: Names accepted as `TrainingSettings.architecture`.
ARCHITECTURES: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mnist-cnn": mnist_cnn,
    "digits-cnn": digits_cnn,
    "mlp": mlp,
    "resnet18": resnet18,
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
    try:
        build = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"architecture {architecture!r}: {error}") from error
    if not callable(build):
        raise InputError(f"architecture {architecture!r} is not a function")
    return build  # type: ignore[no-any-return]


def _takes_two(build: Callable[..., nn.Module]) -> bool:
    try:
        inspect.signature(build).bind((1, 1, 1), 2)
    except TypeError:
        return False
    return True
