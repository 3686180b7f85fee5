"""Sub-models of the family ``tables``: scikit-learn classifiers, one a row of the code, in the model store."""

import hashlib
import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.data import InputTable, Schema
from codeward.estimators._kept_models import dump_model, load_model
from codeward.estimators._model_choice import as_matrix

if TYPE_CHECKING:
    from codeward.training import ModelPlan, ModelStore

_LOG = logging.getLogger(__name__)

#: Part of every key; raised when fitting changes what it computes for the same inputs.
FORMAT = 1

#: Probability that stands for "never" in scores: a class that a row's users do not have.
_NEVER = 1e-12


@dataclass(frozen=True)
class TableModels:
    """The fitted scikit-learn models of a code, in the order of its rows.

    Attributes
    ----------
    models : tuple of classifiers
        Each says names of classes; a class its users never showed it does not know.
    class_names : tuple of str
    schema : Schema
    keys : tuple of str
        Content address of each model.
    trained : int
        How many of them were fitted now; the others were in the store.
    form : {"matrix", "frame"}
        What the models were fitted on: rows of values, or a data frame, whose columns they may select by name.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> from codeward.data import Column
    >>> schema = Schema((Column("features", "numeric", shape=(1,)),))
    >>> model = DummyClassifier().fit([[0.0]], ["yes"])
    >>> TableModels((model,), ("no", "yes"), schema, ("0" * 64,)).votes(np.zeros((2, 1))).tolist()
    [[1], [1]]
    """

    models: tuple[Any, ...]
    class_names: tuple[str, ...]
    schema: Schema
    keys: tuple[str, ...]
    trained: int = 0
    form: str = "matrix"

    @property
    def n_models(self) -> int:
        """Number of sub-models m."""
        return len(self.models)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return len(self.class_names)

    def votes(self, inputs: Any) -> NDArray[np.int64]:
        """Return each model's class for each input, shape (N, m)."""
        rows = self._arrange(inputs)
        place = {name: number for number, name in enumerate(self.class_names)}
        with _one_thread():
            said = [model.predict(rows) if len(rows) else [] for model in self.models]
        votes = np.empty((len(rows), self.n_models), dtype=np.int64)
        for number, names in enumerate(said):
            votes[:, number] = [place[str(name)] for name in names]
        return votes

    def scores(self, inputs: Any) -> NDArray[np.float32] | None:
        """Return log-probabilities of the classes, shape (N, m, c); None when a model gives labels only."""
        if not all(hasattr(model, "predict_proba") for model in self.models):
            return None
        rows = self._arrange(inputs)
        place = {name: number for number, name in enumerate(self.class_names)}
        shares = np.full((len(rows), self.n_models, self.n_classes), _NEVER)
        with _one_thread():
            for number, model in enumerate(self.models if len(rows) else ()):
                columns = [place[str(name)] for name in model.classes_]
                shares[:, number, columns] = np.maximum(np.nan_to_num(model.predict_proba(rows)), _NEVER)
        scores: NDArray[np.float32] = np.log(shares).astype(np.float32)
        return scores

    def _arrange(self, inputs: Any) -> Any:
        if self.form == "frame" and isinstance(inputs, InputTable):
            from pandas import DataFrame

            return DataFrame(dict(inputs.columns))
        return as_matrix(inputs, self.schema)


def train_tables(
    inputs: Any,
    labels: NDArray[np.int64],
    class_names: tuple[str, ...],
    rows: Sequence[NDArray[np.int64]],
    digests: Sequence[str],
    plans: "Sequence[ModelPlan]",
    estimator: Any,
    schema: Schema,
    store: "ModelStore",
    progress: Progress | None = None,
) -> TableModels:
    """Fit the sub-models of a code, or find them in the store.

    Isolation (Proposition 15 of docs/theory.md): a model is a function of its users' samples in an order of their own,
    of the unfitted pipeline with its encoders, and of its seed. It learns names of classes, so that not even the number
    of classes crosses models.

    Parameters
    ----------
    inputs : InputTable or ndarray
    labels : ndarray of int64, shape (N,)
    class_names : tuple of str
    rows : sequence of ndarray
        Samples of each user that train, in canonical order.
    digests : sequence of str
        Of each user's training samples.
    plans : sequence of ModelPlan
        Users and seed of each row.
    estimator : classifier
        Unfitted; cloned for every row.
    schema : Schema
    store : ModelStore
    progress : Progress, optional
        Advanced by one a model.
    """
    import sklearn

    matrix, names = as_matrix(inputs, schema), np.array(class_names, dtype=object)
    recipe = hashlib.sha256(dump_model(estimator)).hexdigest()
    columns = [column.to_json() for column in schema.columns]
    bar, trained, models, keys = progress or silent(), 0, [], []
    with _one_thread():
        for plan in plans:
            content = {
                "family": "tables",
                "format": FORMAT,
                "data": [digests[user] for user in plan.users],
                "model": recipe,
                "columns": columns,
                "seed": plan.seed,
                "scikit-learn": sklearn.__version__,
            }
            key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
            # A store that inherits from another takes a model over when it is asked whether it has it.
            kept = store.load_bytes(key) if store.holds(key) else None
            if kept is None:
                own = np.concatenate([rows[user] for user in plan.users])
                kept = dump_model(_fit(estimator, matrix[own], names[labels[own]], plan))
                about = {"users": list(plan.users), "replica": plan.replica, "family": "tables"}
                store.save_bytes(key, kept, about, "skops")
                trained += 1
            # What votes is what is kept, also the first time.
            models.append(load_model(kept, f"model {key[:12]}"))
            keys.append(key)
            bar.advance(1)
    return TableModels(tuple(models), class_names, schema, tuple(keys), trained)


def load_tables(
    store: "ModelStore", keys: Sequence[str], class_names: tuple[str, ...], schema: Schema, form: str = "matrix"
) -> TableModels:
    """Return fitted models of a store; one that is missing or damaged is an `InputError`."""
    models = []
    for key in keys:
        content = store.load_bytes(key)
        if content is None:
            raise InputError(f"{store.root}: lacks sub-model {key[:12]} (moved or damaged)")
        model = load_model(content, f"{store.root}: model {key[:12]}")
        strange = {str(name) for name in getattr(model, "classes_", ())} - set(class_names)
        if not hasattr(model, "predict") or strange:
            raise InputError(f"{store.root}: model {key[:12]} is of other classes")
        models.append(model)
    return TableModels(tuple(models), class_names, schema, tuple(keys), form=form)


def _fit(estimator: Any, rows: Any, labels: NDArray[Any], plan: "ModelPlan") -> Any:
    from sklearn.base import clone
    from sklearn.dummy import DummyClassifier

    if len(labels) == 0:
        raise InputError(f"the users {', '.join(map(str, plan.users))} of one sub-model have no samples to train on")
    constant = DummyClassifier(strategy="most_frequent").fit(np.zeros((len(labels), 1)), labels.astype(str))
    if (labels == labels[0]).all():
        return constant
    fresh = clone(estimator)
    seeded = sorted(name for name in fresh.get_params() if name.rpartition("__")[2] == "random_state")
    seeds = np.random.default_rng(plan.seed).integers(2**31 - 1, size=len(seeded))
    fresh.set_params(**{name: int(seed) for name, seed in zip(seeded, seeds, strict=True)})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fresh.fit(rows, labels.astype(str))
    except (ValueError, ArithmeticError) as error:
        # Data that no model can be fitted to stop nobody else's models: this one says its most frequent class.
        _LOG.warning("sub-model of users %s could not be fitted and votes a constant: %s", plan.users, error)
        return constant


def _one_thread() -> Any:
    """Let every fit use one thread: the order of a sum is then the same on every machine."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1)
