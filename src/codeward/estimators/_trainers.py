"""What fits sub-models and votes with them, behind one interface: scikit-learn classifiers, and networks on images."""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.utils import _safe_indexing, check_consistent_length, column_or_1d, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import assert_all_finite, validate_data

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Samples

if TYPE_CHECKING:
    from codeward.training import Ensemble, TrainingSettings


class Trainer(Protocol):
    """Fits sub-models and votes with them; `TableTrainer` and `ImageTrainer` are the two."""

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
        return ImageTrainer(estimator)
    check_classifier(estimator)
    return TableTrainer(estimator, n_jobs)


class TableTrainer:
    """Fits one clone of a scikit-learn classifier a row of the code.

    Isolation (what every certificate rests on): model i is a function of the samples of its own users, the classifier's
    parameters and (seed, i). Tables become 64-bit floats first and samples arrive in an order made from their content,
    since an array's type and the order of its rows belong to all users together.

    Parameters
    ----------
    estimator : classifier
    n_jobs : int or None
        Models that fit or vote at a time; changes no result.
    """

    def __init__(self, estimator: Any, n_jobs: int | None) -> None:
        self.estimator = estimator
        self.n_jobs = n_jobs

    def check_inputs(self, owner: Any, X: Any, reset: bool = False) -> Any:
        """Check inputs as scikit-learn does; data frames are kept, so that sub-models may select columns by name."""
        if hasattr(X, "iloc"):
            return validate_data(owner, X, reset=reset, skip_check_array=True)
        tags = get_tags(self.estimator).input_tags
        return validate_data(
            owner,
            X,
            reset=reset,
            dtype=np.float64,
            accept_sparse="csr" if tags.sparse else False,
            ensure_all_finite=not tags.allow_nan,
        )

    def check_labels(self, owner: Any, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Check labels; return the classes (as ``owner`` states them, or those found), sorted, and their places."""
        if y is None:
            raise InputError(f"requires y to be passed, but the target y is None; {type(owner).__name__} needs labels")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(X, labels)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        classes = np.unique(labels if owner.classes is None else column_or_1d(owner.classes))
        return classes, place_labels(labels, classes, "y")

    def train(
        self,
        X: Any,
        y: NDArray[np.int64],
        classes: NDArray[Any],
        code: Code,
        rows: tuple[NDArray[np.int64], ...],
        seed: int,
    ) -> list[Any]:
        """Fit the sub-models, one a row of the code, on the rows of their users."""
        tasks = []
        for model, members in enumerate(code.matrix):
            own = np.concatenate([rows[user] for user in np.flatnonzero(members)])
            tasks.append(delayed(_fit_model)(self.estimator, X, classes, y, own, seed, model))
        fitted: list[Any] = Parallel(n_jobs=self.n_jobs)(tasks)
        return fitted

    def vote(self, models: list[Any], X: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
        """Return what every sub-model says; votes are indices into ``classes``, shape (N, m)."""
        said = Parallel(n_jobs=self.n_jobs, prefer="threads")(delayed(_predict)(model, X) for model in models)
        return np.stack([np.searchsorted(classes, labels) for labels in said], axis=1).astype(np.int64)


def _fit_model(
    estimator: Any, X: Any, classes: NDArray[Any], y: NDArray[np.int64], rows: NDArray[np.int64], seed: int, model: int
) -> Any:
    """Fit one sub-model; one that sees no class, or one class only, votes a constant."""
    if rows.size == 0:
        # Only a hashed part can be empty. The smallest class is what a tie would give, too.
        return DummyClassifier(strategy="most_frequent").fit(np.zeros((1, 1)), classes[:1])
    labels, part = classes[y[rows]], _safe_indexing(X, rows)
    if (labels == labels[0]).all():
        return DummyClassifier(strategy="most_frequent").fit(part, labels)
    fresh = clone(estimator)
    _set_random_states(fresh, seed, model)
    try:
        return fresh.fit(part, labels)
    except Exception as error:
        error.add_note(f"while fitting sub-model {model} of a CodedClassifier on {rows.size} samples")
        raise


def _predict(model: Any, X: Any) -> NDArray[Any]:
    return np.asarray(model.predict(X))


def _set_random_states(estimator: Any, seed: int, model: int) -> None:
    """Give every ``random_state`` inside a sub-model its own seed, from (seed, model), in order of their names."""
    names = sorted(
        name for name in estimator.get_params(deep=True) if name == "random_state" or name.endswith("__random_state")
    )
    seeds = np.random.default_rng([seed, 1, model]).integers(2**31 - 1, size=len(names))
    estimator.set_params(**{name: int(value) for name, value in zip(names, seeds, strict=True)})


class ImageTrainer:
    """Trains the networks of a code with `codeward.training.train_ensemble`, whose isolation it inherits.

    Parameters
    ----------
    settings : TrainingSettings
        Architecture and recipe. The number of classes and the normalisation are stated there, not measured.
    """

    def __init__(self, settings: "TrainingSettings") -> None:
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
    ) -> "Ensemble":
        """Train the sub-models, one a row of the code."""
        from codeward.training import train_ensemble

        users = [Samples(np.ascontiguousarray(X[own]), y[own]) for own in rows]
        return train_ensemble(users, code, self.settings, seed)

    def vote(self, models: "Ensemble", X: NDArray[np.uint8], classes: NDArray[Any]) -> NDArray[np.int64]:
        """Return what every network says, shape (N, m)."""
        return models.votes(Samples(np.ascontiguousarray(X), np.zeros(len(X), dtype=np.int64)))


def check_classifier(estimator: Any) -> None:
    """Refuse what is neither a classifier nor training settings, with a hint for torch modules."""
    if hasattr(estimator, "parameters") and hasattr(estimator, "forward"):
        raise InputError(
            "estimator: a torch module has weights already; hand in codeward.training.TrainingSettings with "
            "architecture='package.module:function', a function of (shape, n_classes) that builds the module"
        )
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "predict")):
        raise InputError(
            f"estimator: expected a scikit-learn classifier or codeward.training.TrainingSettings, got {estimator!r}"
        )


def place_labels(y: ArrayLike, classes: NDArray[Any], what: str) -> NDArray[np.int64]:
    """Return the place of each label in ``classes``; refuse one that is not there."""
    labels = column_or_1d(y)
    strange = np.flatnonzero(~np.isin(labels, classes))
    if strange.size:
        label, sample = labels[strange[0]], int(strange[0])
        raise InputError(f"{what}: label {label!s} of sample {sample} is not one of the classes {classes.tolist()}")
    return np.asarray(np.searchsorted(classes, labels), dtype=np.int64)
