"""What a sub-model is trained with: one frozen value that is part of every model's key, and the named recipes."""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from codeward._errors import InputError

PRECISIONS = ("auto", "float32", "bfloat16")
#: Values of the settings that are names.
CHOICES: dict[str, tuple[str, ...]] = {
    "augmentation": ("none", "crop-flip", "shift", "shift-flip", "warp"),
    "precision": PRECISIONS,
    "optimizer": ("adam", "sgd"),
    "schedule": ("constant", "one-cycle"),
    "batches": ("user", "mixed"),
}

#: Border in pixels that a random crop may cut into: the paper's CIFAR recipe (as in its ResNet18 source), and the
#: shift of the modern ones.
CROP_PADDING, SHIFT_PADDING = 4, 2

#: Stands for a value that a model's own number of samples decides; see `TrainingSettings.for_samples`.
BY_SIZE = -1

#: Share of the steps in which the one-cycle rate rises to its peak.
_WARM_UP = 0.2


@dataclass(frozen=True)
class TrainingSettings:
    """The recipe of a sub-model; defaults are the paper's ("Experimental Details", Training).

    The paper's: Adam with L2 weight decay added to the gradient (as ``torch.optim.Adam`` does), cross-entropy, no
    schedule, batches of one user. The modern ones (`MODERN`): SGD with Nesterov momentum 0.9, a rate that rises and
    falls once, smoothed labels, batches drawn from all users of the model, and augmentation. Nothing here is estimated
    from all users' data: normalisation constants and the number of classes are stated, because a value measured on
    everybody's data would leak one user into models that never saw it. A value `BY_SIZE` depends on the number of
    samples of the model's own users, as any other of its properties may.

    Attributes
    ----------
    architecture : str
        A name from `ARCHITECTURES` or ``package.module:function``.
    epochs : int
    batch_size : int
        Samples of a full batch.
    learning_rate, weight_decay : float
        The rate is the highest one of a schedule.
    augmentation : {"none", "crop-flip", "shift", "shift-flip", "warp"}
        ``crop-flip``: random crop after padding by 4 and random horizontal flip, triggers laid on after it (paper).
        The others move an image as it was handed in, triggers included: ``shift`` by up to 2 pixels, ``shift-flip``
        also flips in every other epoch and at inference averages both, ``warp`` turns, scales and bends.
    n_classes : int
    mean, std : tuple of float
        Normalisation of pixels on the 0..1 scale; one value for all channels or one a channel.
    precision : {"auto", "float32", "bfloat16"}
        ``auto``: float32 on a CPU, bfloat16 compute with float32 weights on a GPU.
    optimizer : {"adam", "sgd"}
    schedule : {"constant", "one-cycle"}
        ``one-cycle``: a straight line up in the first fifth of the steps, and down to 0.
    label_smoothing : float
    batches : {"user", "mixed"}
        ``user``: every batch holds data of one user, and users take turns (paper). ``mixed``: of all users of the
        model. A model sees its own users' data only, either way.
    cutout : int
        Side of a square that is blanked in every image; 0 for none.
    mixup : float
        Parameter of the Beta distribution of the share of a second image mixed in; 0 for none.
    jitter : float
        Largest change of contrast and brightness; 0 for none.
    committee : int
        Networks of a sub-model, which differ in their seeds alone; it says the mean of their probabilities. All learn
        from the sub-model's own users, so that whoever does not reach one of them reaches none (Proposition 15).

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
    optimizer: str = "adam"
    schedule: str = "constant"
    label_smoothing: float = 0.0
    batches: str = "user"
    cutout: int = 0
    mixup: float = 0.0
    jitter: float = 0.0
    committee: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "n_classes", "committee"):
            value = getattr(self, name)
            if value == BY_SIZE and name in SIZED:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}: expected a positive whole number, got {value!r}")
        for name in ("learning_rate", "weight_decay", "label_smoothing", "mixup", "jitter", "cutout"):
            value = getattr(self, name)
            if value == BY_SIZE:
                continue
            if not math.isfinite(value) or value < 0 or (name == "learning_rate" and value == 0):
                raise InputError(f"{name}: expected a finite number above 0.0, got {value!r}")
        if self.label_smoothing >= 1:
            raise InputError(f"label_smoothing: expected a number below 1, got {self.label_smoothing!r}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        [_, known], *_ = SIZE_RULES.get(self._rule, ((0, {}),))
        open_ones = [name for name, value in self._sized().items() if value == BY_SIZE and name not in known]
        if open_ones:
            raise InputError(f"{', '.join(open_ones)}: no rule by size for {self._rule}; state a value of your own")
        object.__setattr__(self, "mean", tuple(float(v) for v in self.mean))
        object.__setattr__(self, "std", tuple(float(v) for v in self.std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise InputError(
                f"mean and std: {len(self.mean)} and {len(self.std)} values; give one each, or one a channel"
            )
        if not all(map(math.isfinite, self.mean + self.std)) or min(self.std) <= 0:
            raise InputError("mean and std: expected finite numbers, std above 0")

    def _sized(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in SIZED}

    @property
    def _rule(self) -> str:
        return "adam" if self.optimizer == "adam" else self.augmentation

    @property
    def is_plain(self) -> bool:
        """Whether this is Adam on images as they are, or cropped and flipped: what the compiled CPU layers know."""
        later = ("optimizer", "cutout", "mixup", "jitter")
        return not self.stamps_first and all(getattr(self, name) == _LATER[name] for name in later)

    @property
    def stamps_first(self) -> bool:
        """Whether triggers are part of the image that is augmented (an attacker hands in finished images)."""
        return self.augmentation in ("shift", "shift-flip", "warp")

    @property
    def averages_flips(self) -> bool:
        """Whether inference averages the logits of an image and of its mirror image."""
        return self.augmentation == "shift-flip"

    def for_samples(self, n_samples: int) -> "TrainingSettings":
        """Return the settings of a model whose own users hold ``n_samples`` together: no value is `BY_SIZE` any more.

        Isolation holds: the number is one of the model's own users' data (see `SIZE_RULES`).

        Examples
        --------
        >>> [MODERN["cifar10"].for_samples(size).batch_size for size in (200, 1_000, 4_167, 16_667)]
        [32, 64, 128, 256]
        """
        missing = [name for name, value in self._sized().items() if value == BY_SIZE]
        if not missing:
            return self
        rows = SIZE_RULES[self._rule]
        row = next((values for least, values in rows if n_samples >= least), rows[-1][1])
        chosen = {name: row[name] for name in missing if name != "epochs"}
        if "epochs" in missing:
            # So many images are seen, in the stated number of epochs at most.
            chosen["epochs"] = int(min(row["epochs"], max(1, math.ceil(row["images"] / max(1, n_samples)))))
        return replace(self, **chosen)  # type: ignore[arg-type]

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of step ``step`` (from 0) of ``steps``."""
        if self.schedule == "constant":
            return self.learning_rate
        warm = _WARM_UP * steps
        return self.learning_rate * (step / warm if step < warm else (steps - step) / (steps - warm))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON has them, names in alphabetical order: equal settings, equal text.

        Settings that the paper's recipe does not have are left out where they are as in it: keys of models that were
        trained before there were such settings stay what they are.
        """
        content = {name: value for name, value in asdict(self).items() if value != _LATER.get(name, ...)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in sorted(content.items())}


#: Settings that came later than the first models, with the values those were trained with.
_LATER = {
    field.name: field.default
    for field in fields(TrainingSettings)
    if field.name in ("optimizer", "schedule", "label_smoothing", "batches", "cutout", "mixup", "jitter", "committee")
}

#: Settings that may be `BY_SIZE`.
SIZED = ("epochs", "batch_size", "learning_rate", "weight_decay", "cutout", "mixup", "jitter")


def _row(epochs: int, images: int, batch: int, rate: float, decay: float, *others: float) -> dict[str, float]:
    return dict(zip(("images", *SIZED), (images, epochs, batch, rate, decay, *others), strict=True))


#: By augmentation, or ``adam``: from so many samples of the model's own users on, these values (the first row that
#: fits). Epochs: as many as it takes to see ``images`` images, ``epochs`` at most. Chosen on held-out training images
#: of CIFAR-10, MNIST and digits (docs/development/training-speed.md says what was tried), never on test images.
SIZE_RULES: dict[str, tuple[tuple[int, dict[str, float]], ...]] = {
    "shift-flip": (
        (20_000, _row(40, 10**9, 256, 0.4, 5e-4, 12, 0.0, 0.0)),
        (10_000, _row(40, 10**9, 256, 0.4, 5e-4, 12, 0.2, 0.0)),
        (2_500, _row(80, 10**9, 128, 0.4, 5e-4, 12, 0.2, 0.15)),
        (500, _row(300, 10**9, 64, 0.2, 1e-3, 0, 0.3, 0.2)),
        (0, _row(1_200, 60_000, 32, 0.2, 2e-3, 0, 0.3, 0.2)),
    ),
    # Images of one's own: letters and signs must not be flipped, and two cores must be enough.
    "shift": (
        (2_500, _row(10, 10**9, 128, 0.2, 5e-4, 0, 0.2, 0.1)),
        (0, _row(60, 10_000, 32, 0.1, 1e-3, 0, 0.2, 0.1)),
    ),
    "warp": (
        (2_500, _row(20, 200_000, 128, 0.05, 5e-4, 0, 0.0, 0.0)),
        (0, _row(1_280, 32_000, 64, 0.05, 5e-4, 0, 0.0, 0.0)),
    ),
    # Few rows: models of one row train side by side.
    "adam": tuple((least, {"images": 10**9, "epochs": n}) for least, n in ((300, 16), (100, 32), (40, 64), (0, 128))),
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

_FAST = TrainingSettings(
    **dict.fromkeys(SIZED, BY_SIZE),  # type: ignore[arg-type]
    optimizer="sgd",
    schedule="one-cycle",
    batches="mixed",
    architecture="fast",
    augmentation="shift-flip",
    label_smoothing=0.2,
)

#: Stronger recipes for the same data sets, and one for images of one's own. Digits keep network and optimiser, which
#: two cores train in a second; the rest was chosen on held-out training images (benchmarks/digits_recipe.py).
MODERN: dict[str, TrainingSettings] = {
    "mnist": replace(_FAST, architecture="mnist-fast", augmentation="warp", label_smoothing=0.1),
    "fashion-mnist": replace(_FAST, mean=PRESETS["fashion-mnist"].mean, std=PRESETS["fashion-mnist"].std),
    "cifar10": replace(_FAST, mean=PRESETS["cifar10"].mean, std=PRESETS["cifar10"].std),
    "digits": replace(
        PRESETS["digits"],
        batches="mixed",
        batch_size=16,
        epochs=BY_SIZE,
        learning_rate=0.005,
        schedule="one-cycle",
        label_smoothing=0.4,
    ),
    "images": replace(
        _FAST, architecture="fast-small", augmentation="shift", label_smoothing=0.1, mean=(0.5,), std=(0.25,)
    ),
}

RECIPES = ("modern", "paper")


def choose_recipe(dataset: str, recipe: str = "modern") -> TrainingSettings:
    """Return the recipe of a data set by name; any other name stands for images of one's own.

    Parameters
    ----------
    dataset : str
    recipe : {"modern", "paper"}

    Examples
    --------
    >>> choose_recipe("cifar10").architecture, choose_recipe("cifar10", "paper").architecture
    ('fast', 'resnet18')
    """
    if recipe not in RECIPES:
        raise InputError(f"recipe: expected one of {', '.join(RECIPES)}, got {recipe!r}")
    if recipe == "paper":
        return PRESETS.get(dataset, TrainingSettings())
    return MODERN.get(dataset, MODERN["images"])
