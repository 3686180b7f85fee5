"""What a sub-model is trained with: one frozen value that is part of every model's key."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from codeward._errors import InputError

AUGMENTATIONS = ("none", "crop-flip")
PRECISIONS = ("auto", "float32", "bfloat16")

#: Border in pixels that a random crop may cut into (the paper's CIFAR recipe, as in its ResNet18 source).
CROP_PADDING = 4


@dataclass(frozen=True)
class TrainingSettings:
    """The recipe of a sub-model; defaults are the paper's ("Experimental Details", Training).

    Adam with L2 weight decay added to the gradient (as ``torch.optim.Adam`` does), cross-entropy, no schedule. Nothing
    here is estimated from data: normalisation constants and the number of classes are stated, because a value measured
    on all users' data would leak one user into models that never saw it.

    Attributes
    ----------
    architecture : str
        A name from `ARCHITECTURES` or ``package.module:function``.
    epochs : int
    batch_size : int
        Samples of a full batch; every batch holds data of one user.
    learning_rate, weight_decay : float
    augmentation : {"none", "crop-flip"}
        ``crop-flip``: random crop after padding by 4 and random horizontal flip.
    n_classes : int
    mean, std : tuple of float
        Normalisation of pixels on the 0..1 scale; one value for all channels or one a channel.
    precision : {"auto", "float32", "bfloat16"}
        ``auto``: float32 on a CPU, bfloat16 compute with float32 weights on a GPU.

    Examples
    --------
    >>> TrainingSettings(architecture="mlp", epochs=5).batch_size
    128
    >>> TrainingSettings(epochs=0)
    Traceback (most recent call last):
    codeward._errors.InputError: epochs: expected a positive whole number, got 0
    """

    architecture: str = "mnist-cnn"
    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    augmentation: str = "none"
    n_classes: int = 10
    mean: tuple[float, ...] = (0.1307,)
    std: tuple[float, ...] = (0.3081,)
    precision: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "n_classes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}: expected a positive whole number, got {value!r}")
        for name, least in (("learning_rate", 0.0), ("weight_decay", 0.0)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < least or (name == "learning_rate" and value == 0):
                raise InputError(f"{name}: expected a finite number above {least}, got {value!r}")
        for name, allowed in (("augmentation", AUGMENTATIONS), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        object.__setattr__(self, "mean", tuple(float(v) for v in self.mean))
        object.__setattr__(self, "std", tuple(float(v) for v in self.std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise InputError(
                f"mean and std: {len(self.mean)} and {len(self.std)} values; give one each, or one a channel"
            )
        if not all(map(math.isfinite, self.mean + self.std)) or min(self.std) <= 0:
            raise InputError("mean and std: expected finite numbers, std above 0")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON has them, names in alphabetical order: equal settings, equal text."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in sorted(asdict(self).items())
        }


#: The recipes of the paper (``mnist``, ``cifar10``), Fashion-MNIST like MNIST, and one for scikit-learn's digits.
PRESETS: dict[str, TrainingSettings] = {
    "mnist": TrainingSettings(),
    "fashion-mnist": TrainingSettings(mean=(0.2860,), std=(0.3530,)),
    "cifar10": TrainingSettings(
        architecture="resnet18",
        epochs=20,
        augmentation="crop-flip",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "digits": TrainingSettings(architecture="digits-cnn", epochs=20, learning_rate=3e-3, mean=(0.305,), std=(0.376,)),
}
