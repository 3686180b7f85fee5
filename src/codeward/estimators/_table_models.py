"""Sub-models of the family ``tables``: scikit-learn classifiers, one a row of the code, in the model store."""

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.data import Schema, UserData
from codeward.estimators._kept_models import dump_model, load_model
from codeward.estimators._model_choice import ModelChoice, arrange
from codeward.estimators._roles import Roles

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
        rows = arrange(inputs, self.schema, self.form)
        order = np.argsort(self.class_names)
        names = np.array(self.class_names)[order]
        votes = np.empty((rows.shape[0], self.n_models), dtype=np.int64)
        with _one_thread():
            for number, model in enumerate(self.models if len(votes) else ()):
                votes[:, number] = order[np.searchsorted(names, np.asarray(model.predict(rows)).astype(str))]
        return votes

    def scores(self, inputs: Any) -> NDArray[np.float32] | None:
        """Return log-probabilities of the classes, shape (N, m, c); None when a model gives labels only."""
        if not all(hasattr(model, "predict_proba") for model in self.models):
            return None
        rows = arrange(inputs, self.schema, self.form)
        place = {name: number for number, name in enumerate(self.class_names)}
        shares = np.full((rows.shape[0], self.n_models, self.n_classes), _NEVER)
        with _one_thread():
            for number, model in enumerate(self.models if len(shares) else ()):
                columns = [place[str(name)] for name in model.classes_]
                shares[:, number, columns] = np.maximum(np.nan_to_num(model.predict_proba(rows)), _NEVER)
        scores: NDArray[np.float32] = np.log(shares).astype(np.float32)
        return scores

    def save(self, store: "ModelStore", plans: "Sequence[ModelPlan]") -> None:
        """Write the models under their keys; one that cannot be kept safely is refused by name."""
        for key, model, plan in zip(self.keys, self.models, plans, strict=True):
            store.save_bytes(key, dump_model(model), _tell(plan), "skops")


def train_tables(
    data: UserData,
    roles: Roles,
    choice: ModelChoice,
    plans: "Sequence[ModelPlan]",
    store: "ModelStore | None",
    progress: Progress | None = None,
    n_jobs: int | None = None,
) -> TableModels:
    """Fit the sub-models of a code, or find them in the store.

    Isolation (Proposition 15 of docs/theory.md): a model is a function of its users' samples in an order of their own,
    of the unfitted pipeline with its encoders, and of its seed. It learns names of classes, so that not even the number
    of classes crosses models.

    Parameters
    ----------
    data : UserData
    roles : Roles
        Which samples of each user train.
    choice : ModelChoice
        Of the family ``tables``; its estimator is cloned for every row.
    plans : sequence of ModelPlan
        Users and seed of each row.
    store : ModelStore or None
        Without one the models live in memory only.
    progress : Progress, optional
        Advanced by one a model.
    n_jobs : int, optional
        Models that are fitted at a time; changes no result.

    Raises
    ------
    InputError
        When not a single model can be fitted: no attacker reaches all of them, so it is not the data of a few.
    """
    from sklearn.utils.parallel import Parallel, delayed

    matrix, names = arrange(data.inputs, data.schema, choice.form), np.array(data.class_names, dtype=object)
    keys = _make_keys(data.schema, roles, choice, plans, store is not None)
    # A store that inherits from another takes a model over when it is asked whether it has it.
    kept = {key: store.load_bytes(key) for key in keys if store is not None and store.holds(key)}
    missing = [(key, plan) for key, plan in zip(keys, plans, strict=True) if key not in kept]
    bar, failed, fitted = progress or silent(), [], {}
    bar.advance(len(keys) - len(missing))

    def prepare() -> Iterator[Any]:
        for _, plan in missing:
            own = np.concatenate([roles.training[user] for user in plan.users])
            rows = matrix.iloc[own] if choice.form == "frame" else matrix[own]
            yield delayed(_fit)(choice.estimator, rows, names[data.labels[own]], plan, data.class_names[0])

    made = Parallel(n_jobs=n_jobs, return_as="generator")(prepare())
    for (key, plan), (model, error) in zip(missing, made, strict=True):
        if error:
            _LOG.warning("sub-model of users %s could not be fitted and votes a constant: %s", plan.users, error)
            failed.append(error)
        if store is not None:
            kept[key] = content = dump_model(model)
            store.save_bytes(key, content, _tell(plan), "skops")
        fitted[key] = model
        bar.advance(1)
    if failed and len(failed) == len(plans):
        raise InputError(f"model: {choice.name} could be fitted to no users' samples ({failed[0]})")
    # What votes is what is kept, also the first time.
    models = [load_model(kept[key] or b"", f"model {key[:12]}") if key in kept else fitted[key] for key in keys]
    return TableModels(tuple(models), data.class_names, data.schema, keys, len(missing), choice.form)


def _make_keys(
    schema: Schema, roles: Roles, choice: ModelChoice, plans: "Sequence[ModelPlan]", kept: bool
) -> tuple[str, ...]:
    """Return the content address of each model; of one that cannot be kept, and need not be, one of its name."""
    import sklearn

    try:
        recipe = hashlib.sha256(dump_model(choice.estimator)).hexdigest()
    except InputError:
        if kept:
            raise
        recipe = f"unkept {choice.name}"
    content = {
        "family": "tables",
        "format": FORMAT,
        "model": recipe,
        "columns": [column.to_json() for column in schema.columns],
        "scikit-learn": sklearn.__version__,
    } | ({"form": choice.form} if choice.form != "matrix" else {})
    keys = []
    for plan in plans:
        own = {"data": [roles.digests[user] for user in plan.users], "seed": plan.seed}
        keys.append(hashlib.sha256(json.dumps(content | own, sort_keys=True).encode()).hexdigest())
    return tuple(keys)


def _tell(plan: "ModelPlan") -> dict[str, Any]:
    return {"users": list(plan.users), "replica": plan.replica, "family": "tables"}


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


def _fit(estimator: Any, rows: Any, labels: NDArray[Any], plan: "ModelPlan", fallback: str) -> tuple[Any, str]:
    """Fit one model; return it and, where it is a constant because it could not be fitted, why."""
    from sklearn.base import clone
    from sklearn.dummy import DummyClassifier

    said = labels if len(labels) else np.array([fallback])  # a part of the hash may be empty
    constant = DummyClassifier(strategy="most_frequent").fit(np.zeros((len(said), 1)), said.astype(str))
    if (said == said[0]).all():
        return constant, ""
    fresh = clone(estimator)
    seeded = sorted(name for name in fresh.get_params() if name.rpartition("__")[2] == "random_state")
    seeds = np.random.default_rng(plan.seed).integers(2**31 - 1, size=len(seeded))
    fresh.set_params(**{name: int(seed) for name, seed in zip(seeded, seeds, strict=True)})
    try:
        with warnings.catch_warnings(), _one_thread():
            warnings.simplefilter("ignore")
            return fresh.fit(rows, labels.astype(str)), ""
    except MemoryError:
        raise
    except Exception as error:
        # Data that no model can be fitted to stop nobody else's models: this one says its most frequent class.
        return constant, " ".join(str(error).split())[:160]


def _one_thread() -> Any:
    """Let every fit use one thread: the order of a sum is then the same on every machine."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1)
