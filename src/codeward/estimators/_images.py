"""Sub-models that are networks, trained on images by codeward's own trainer. Imports torch when used."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Samples
from codeward.training import Ensemble, TrainingSettings, train_ensemble


class ImageTrainer:
    """Trains the networks of a code with `codeward.training.train_ensemble`, whose isolation it inherits.

    Parameters
    ----------
    settings : TrainingSettings
        Architecture and recipe. The number of classes and the normalisation are stated there, not measured.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings

    def check_inputs(self, owner: Any, X: Any, reset: bool = False) -> NDArray[np.uint8]:
        """Check images: uint8 of shape (N, H, W) or (N, C, H, W); grey ones get their channel."""
        images = np.asarray(X)
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
            raise InputError(
                f"images: expected uint8 of shape (N, H, W) or (N, C, H, W), at least one, got {images.dtype} "
                f"{images.shape}"
            )
        images = images[:, None] if images.ndim == 3 else images
        shape = tuple(int(size) for size in images.shape[1:])
        if reset:
            owner.image_shape_ = shape
            owner.n_features_in_ = int(np.prod(shape))
        elif shape != owner.image_shape_:
            raise InputError(f"images: shape {shape}, but the classifier was fitted on {owner.image_shape_}")
        return images

    def check_labels(self, owner: Any, X: NDArray[np.uint8], y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Check labels: whole numbers below the settings' number of classes."""
        labels = np.asarray(y)
        if labels.shape != (len(X),) or labels.dtype.kind not in "iu":
            raise InputError(f"labels: expected {len(X)} whole numbers, got {labels.dtype} {labels.shape}")
        if labels.min() < 0 or labels.max() >= self.settings.n_classes:
            raise InputError(
                f"labels: {int(labels.min())}..{int(labels.max())} do not fit in 0..{self.settings.n_classes - 1}; "
                "state the number of classes in the training settings"
            )
        return np.arange(self.settings.n_classes), labels.astype(np.int64)

    def train(
        self,
        X: NDArray[np.uint8],
        y: NDArray[np.int64],
        classes: NDArray[Any],
        code: Code,
        rows: tuple[NDArray[np.int64], ...],
        seed: int,
    ) -> Ensemble:
        """Train the sub-models, one a row of the code."""
        users = [Samples(np.ascontiguousarray(X[own]), y[own]) for own in rows]
        return train_ensemble(users, code, self.settings, seed)

    def vote(self, models: Ensemble, X: NDArray[np.uint8], classes: NDArray[Any]) -> NDArray[np.int64]:
        """Return what every network says, shape (N, m)."""
        return models.votes(Samples(np.ascontiguousarray(X), np.zeros(len(X), dtype=np.int64)))
