"""What fits sub-models and asks them: one interface, two makers."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codeward.codes import Code
from codeward.estimators._tables import TableTrainer, check_classifier


class Trainer(Protocol):
    """Fits sub-models and asks them; `TableTrainer` and `ImageTrainer` are the two."""

    def check_inputs(self, owner: Any, X: Any, reset: bool = False) -> Any:
        """Check inputs; at ``reset`` remember their shape on ``owner``."""

    def check_labels(self, owner: Any, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the classes and the number of each label."""

    def train(
        self,
        X: Any,
        y: NDArray[np.int64],
        classes: NDArray[Any],
        code: Code,
        rows: tuple[NDArray[np.int64], ...],
        seed: int,
    ) -> Any:
        """Fit one sub-model a row of the code on the rows of its users."""

    def vote(self, models: Any, X: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the vote of each model on each input, shape (N, m)."""


def choose_trainer(estimator: Any, n_jobs: int | None) -> Trainer:
    """Return the trainer for training settings (networks on images) or a scikit-learn classifier."""
    # By name: looking the class up would import torch for people who only have tables.
    if type(estimator).__name__ == "TrainingSettings":
        from codeward.estimators._images import ImageTrainer

        return ImageTrainer(estimator)
    check_classifier(estimator)
    return TableTrainer(estimator, n_jobs)
