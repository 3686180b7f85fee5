"""Sub-models of the family ``tables``: scikit-learn classifiers, one a row of the code, kept as bytes by skops.

Nothing is unpickled, and equal models have equal bytes.
"""

import hashlib
import importlib
import io
import itertools
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.data import Schema, UserData, arrange_inputs

if TYPE_CHECKING:
    from codeward.estimators._model_choice import ModelChoice
    from codeward.estimators._roles import Roles
    from codeward.training import ModelPlan, ModelStore

_LOG = logging.getLogger(__name__)

#: Part of every key; raised when fitting changes what it computes for the same inputs.
FORMAT = 1

#: Probability that stands for "never" in scores: a class that a row's users do not have.
_NEVER = 1e-12

#: Bytes that one model may unpack to.
MAX_UNPACKED = 1 << 30

#: What a file may name beyond skops' own list: classes of these packages, and these harmless functions.
_PACKAGES = ("sklearn.", "scipy.sparse.")
_ALLOWED = frozenset({"functools.partial", "sklearn.utils.validation.check_array", "numpy.dtype", "numpy.ndarray"})


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
        rows = arrange_inputs(inputs, self.schema, self.form)
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
        rows = arrange_inputs(inputs, self.schema, self.form)
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
    roles: "Roles",
    choice: "ModelChoice",
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

    matrix, names = arrange_inputs(data.inputs, data.schema, choice.form), np.array(data.class_names, dtype=object)
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
    schema: Schema, roles: "Roles", choice: "ModelChoice", plans: "Sequence[ModelPlan]", kept: bool
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


def dump_model(model: Any) -> bytes:
    """Return a fitted model as bytes; equal models give equal bytes, whenever and wherever they were fitted.

    Raises
    ------
    InputError
        Names what cannot be kept safely.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> model = DummyClassifier().fit([[0.0]], ["yes"])
    >>> load_model(dump_model(model)).predict([[1.0]]).tolist()
    ['yes']
    """
    from skops import io as skops

    try:
        raw = skops.dumps(model)
    except Exception as error:  # skops raises whatever the object raises
        raise InputError(f"{_name(model)} cannot be kept safely ({_short(error)}); use a scikit-learn model") from error
    _check_types(raw, _name(model))
    return _strip_times(raw)


def load_model(content: bytes, what: str = "model") -> Any:
    """Return the model that `dump_model` made bytes of; a file that names anything but known types is refused."""
    from skops import io as skops

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_UNPACKED:
            raise InputError(f"{what}: unpacks to {unpacked:,} bytes; too many ({MAX_UNPACKED:,} at most)")
        return skops.loads(content, trusted=_check_types(content, what))
    except InputError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise InputError(f"{what}: not readable as a kept model ({_short(error)})") from error


def _check_types(content: bytes, what: str) -> list[str]:
    """Return the types that must be trusted; refuse all that are not classes of scikit-learn or SciPy."""
    from skops import io as skops

    named: list[str] = skops.get_untrusted_types(data=content)
    for name in named:
        if name not in _ALLOWED and not (name.startswith(_PACKAGES) and _is_class(name)):
            raise InputError(f"{what} cannot be kept safely: it holds a {name}; use scikit-learn's own classes")
    return named


def _is_class(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        return isinstance(getattr(importlib.import_module(module), attribute, None), type)
    except ImportError:
        return False


def _strip_times(raw: bytes) -> bytes:
    """Write a skops file anew without times and memory addresses, which differ from run to run."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    schema = json.loads(members.pop("schema.json"))
    places: dict[str, str] = {}
    _number(schema, places, itertools.count())
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        renamed = {re.sub(r"^\d+", lambda found: places[found[0]], name): part for name, part in members.items()}
        for name, part in [*sorted(renamed.items()), ("schema.json", json.dumps(schema).encode())]:
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), part, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _number(node: Any, places: dict[str, str], count: Iterator[int]) -> None:
    """Give objects numbers in the order of the tree in place of their addresses; plain values are nobody's twin."""
    if isinstance(node, dict):
        if "_stop_words_id" in node:  # scikit-learn's note of an address
            node["_stop_words_id"]["content"] = "0"
        if "__id__" in node:
            address = f"value {next(count)}" if node.get("is_json") else str(node["__id__"])
            node["__id__"] = int(places.setdefault(address, str(len(places))))
        if isinstance(node.get("file"), str):
            stem, dot, suffix = node["file"].partition(".")
            node["file"] = places.setdefault(stem, str(len(places))) + dot + suffix
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        _number(child, places, count)


def _name(model: Any) -> str:
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    return f"{type(last).__module__}.{type(last).__qualname__}"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
