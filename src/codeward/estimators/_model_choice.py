"""Which model every row of the code is: by a name, an import path or a file, as an object, or what suits the inputs."""

import ast
import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from codeward._errors import InputError
from codeward._files import read_bytes
from codeward._importing import import_named
from codeward.data import Column, InputTable, Schema, arrange_inputs
from codeward.estimators._table_models import MAX_UNPACKED, dump_model, load_model

if TYPE_CHECKING:
    from codeward.training import TrainingSettings
    from codeward.training.backbones import Backbone

#: Models for tables and texts by name.
NAMES = ("boosting", "logistic", "text")

#: Vectors up to this length are boosted by default, longer ones get a linear model.
_BOOSTED = 64
#: Hashed n-grams of a text; different values of a category that are told apart.
_GRAMS, _VALUES = 2**16, 200


@dataclass(frozen=True)
class ModelChoice:
    """The sub-models' family, and what one of them is before it is fitted.

    Attributes
    ----------
    name : str
        As a person would say it.
    family : {"tables", "networks", "heads"}
    estimator : object or None
        Unfitted scikit-learn classifier of the rows of `InputTable.matrix`; encoders and imputers are inside it, so
        that every sub-model fits its own.
    settings : TrainingSettings or None
        Of networks.
    backbone : Backbone or None
        Of heads: what makes their features.
    ridge : float
        Of heads.
    form : {"matrix", "frame"}
        What a scikit-learn model is given: rows of values, or a data frame, whose columns it may select by name.

    Examples
    --------
    >>> from codeward.data import Column
    >>> choose_model(None, Schema((Column("age", "numeric"),)), n_classes=2).name
    'boosting'
    """

    name: str
    family: str
    estimator: Any = None
    settings: "TrainingSettings | None" = None
    backbone: "Backbone | None" = None
    ridge: float = 0.1
    form: str = "matrix"

    @property
    def is_linear(self) -> bool:
        """Whether scores grow without end in the values of a numeric column: linear models, support vectors, layers."""
        last = self.estimator.steps[-1][1] if hasattr(self.estimator, "steps") else self.estimator
        return type(last).__module__.startswith(("sklearn.linear_model", "sklearn.svm", "sklearn.neural_network"))


def choose_heads(backbone: Any, ridge: float, schema: Schema) -> ModelChoice:
    """Return ridge heads on the features of a backbone: by name, as a function, or the path of an ``.onnx`` file.

    The width of a function's features is found on an invented input, so that no user's sample decides it.

    Examples
    --------
    >>> from codeward.data import Column
    >>> choose_heads("gradients", 0.1, Schema((Column("image", "image", shape=(1, 28, 28)),))).name
    'ridge head on gradients'
    """
    from codeward.training.backbones import make_backbone

    if hasattr(backbone, "transform"):
        made = backbone
    else:
        name = name_function(backbone) if callable(backbone) else str(backbone)
        if schema.kind == "table" or schema.kind == "text":
            sample: Any = InputTable({column.name: _invent(column, 1) for column in schema.columns})
        else:
            kind = np.uint8 if schema.kind == "image" else np.float64
            sample = np.zeros((1, *schema.columns[0].shape), kind)
        made = make_backbone(name, schema, sample)
    return ModelChoice(f"ridge head on {made.name}", "heads", backbone=made, ridge=ridge)


def choose_model(model: Any, schema: Schema, n_classes: int, as_is: bool = False) -> ModelChoice:
    """Return the model to fit: what was asked for, or what suits the inputs.

    Only the schema decides, never how much data there are: users could choose the model of all others then.

    Parameters
    ----------
    model : str, scikit-learn classifier, callable, TrainingSettings or None
        ``boosting``, ``logistic``, ``text``; a network of `codeward.training.ARCHITECTURES`; an import path such as
        ``sklearn.svm.SVC(C=2)``, or ``package.module:function`` or ``file.py:function`` of a function that returns a
        classifier or a torch module (of ``(shape, n_classes)``, or of nothing). The working folder is on the path.
    schema : Schema
    n_classes : int
    as_is : bool
        Give a classifier numbers as they are, without imputer and scaler before it, where all columns are numbers; and
        do not look whether it can be kept: what `CodedClassifier` is for.

    Raises
    ------
    InputError
        When there is no such model, or it cannot be kept safely: it is fitted on a few invented rows first.

    Examples
    --------
    >>> from codeward.data import Column
    >>> schema = Schema((Column("age", "numeric"), Column("city", "categorical")))
    >>> choose_model(None, schema, 2).name, choose_model("sklearn.svm.SVC(C=2)", schema, 2).name
    ('boosting', 'sklearn.svm.SVC(C=2)')
    """
    if hasattr(model, "forward") and hasattr(model, "parameters"):
        raise InputError(
            "model: a torch module has weights already; give package.module:function or file.py:function, a function "
            "of (shape, n_classes) that builds it, or codeward.training.TrainingSettings"
        )
    if type(model).__name__ == "TrainingSettings":
        return ModelChoice(str(model.architecture), "networks", settings=replace(model, n_classes=n_classes))
    if schema.kind == "image":
        return _choose_network(model, schema, n_classes)
    from sklearn.base import is_regressor

    # An ensemble that is not fitted has no length, so it has no truth value either.
    name = _suit(schema) if model is None else model
    if isinstance(name, str) and name in NAMES:
        return ModelChoice(name, "tables", _make_named(name, schema))
    found, told = (_find(name), name) if isinstance(name, str) else (name, "")
    if callable(found) and not hasattr(found, "fit"):
        told = told or getattr(found, "__name__", "model")
        try:
            found = found()
        except TypeError as error:
            raise InputError(f"model: {told} is called without arguments to make a classifier: {error}") from error
    if isinstance(found, type) or not (hasattr(found, "fit") and hasattr(found, "predict")):
        raise InputError(f"model: {told or found!r} is no scikit-learn classifier; choose {', '.join(NAMES)}, or one")
    if hasattr(found, "__sklearn_tags__") and is_regressor(found):
        raise InputError(f"model: {told or type(found).__name__} is a regressor; choose a classifier")
    label, form = told or type(found).__name__, "matrix"
    if isinstance(name, str) and name.endswith(".skops"):
        label, form = _describe(found), "frame" if name.endswith(".frame.skops") else "matrix"
    elif hasattr(found, "steps"):
        # A pipeline of one's own may select columns by name.
        form = "frame" if schema.kind == "table" and importlib.util.find_spec("pandas") else "matrix"
    elif not (as_is and all(column.kind == "numeric" for column in schema.columns)):
        found = _with_encoders(found, schema)
    choice = ModelChoice(label, "tables", found, form=form)
    if not as_is:
        check_keepable(choice, schema)
    return choice


def _describe(estimator: Any) -> str:
    return type(estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator).__name__


def check_keepable(choice: ModelChoice, schema: Schema) -> None:
    """Refuse a model that cannot be kept safely, by name, before hours of training: a few invented rows tell."""
    from sklearn.base import clone

    rows: Any = InputTable({column.name: _invent(column, 24) for column in schema.columns})
    if schema.kind == "features":
        rows = np.random.default_rng(0).normal(size=(24, *schema.columns[0].shape))
    try:
        fitted = clone(choice.estimator).fit(arrange_inputs(rows, schema, choice.form), np.array(["no", "yes"] * 12))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"model: {choice.name} does not fit such inputs ({' '.join(str(error).split())[:120]})"
        ) from error
    load_model(dump_model(fitted))


def _invent(column: Column, size: int) -> Any:
    if column.kind == "numeric":
        return np.random.default_rng(0).normal(size=size)
    return np.array((["a b", "c d", "e"] * size)[:size], object)


def _suit(schema: Schema) -> str:
    if any(column.kind == "text" for column in schema.columns):
        return "text"
    if schema.kind == "features" and schema.columns[0].shape[0] > _BOOSTED:
        return "logistic"
    return "boosting"


def _make_named(name: str, schema: Schema) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    if name == "text" and not any(column.kind == "text" for column in schema.columns):
        raise InputError("model: text, but no column is text; name it with --text COL")
    if name in ("text", "logistic"):
        return _with_encoders(LogisticRegression(max_iter=2000), schema)
    return _with_encoders(HistGradientBoostingClassifier(min_samples_leaf=5, max_leaf_nodes=15), schema, ordinal=True)


def _with_encoders(estimator: Any, schema: Schema, ordinal: bool = False) -> Any:
    """Return a pipeline from raw values to the classifier; fitted a row at a time, it crosses no sub-models."""
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
    from sklearn.utils import get_tags

    if schema.kind == "features":
        places: list[int] = list(range(schema.columns[0].shape[0]))
        kinds = ["numeric"] * len(places)
    else:
        kinds = [column.kind for column in schema.columns]
        places = list(range(len(kinds)))
    if ordinal:
        # Trees take missing values as they are; the scaler does nothing but turn objects into numbers.
        numbers: Any = StandardScaler(with_mean=False, with_std=False)
        missing = {"unknown_value": np.nan, "encoded_missing_value": np.nan}
        categories: Any = OrdinalEncoder(handle_unknown="use_encoded_value", max_categories=_VALUES, **missing)
    else:
        numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
        categories = OneHotEncoder(handle_unknown="ignore", max_categories=_VALUES)
    steps: list[tuple[str, Any, Any]] = []
    for title, kind, encoder in (("numbers", "numeric", numbers), ("categories", "categorical", categories)):
        own = [place for place in places if kinds[place] == kind]
        if own:
            steps.append((title, encoder, own))
    for place in places:
        if kinds[place] == "text":
            grams = HashingVectorizer(ngram_range=(1, 2), n_features=_GRAMS, alternate_sign=False)
            steps.append((f"text{place}", grams, place))
    columns = ColumnTransformer(steps)
    dense = hasattr(estimator, "__sklearn_tags__") and not get_tags(estimator).input_tags.sparse
    if dense and not ordinal and "text" not in kinds:
        columns.set_params(sparse_threshold=0)  # else many categories of one user would make a matrix it cannot read
    return make_pipeline(columns, estimator)


def _choose_network(model: Any, schema: Schema, n_classes: int) -> ModelChoice:
    from codeward.training import ARCHITECTURES, choose_recipe

    _, height, width = schema.columns[0].shape
    named = model is not None and model not in ("fast", "fast-small", "mnist-fast")  # the modern rates are not for any
    base = choose_recipe("digits" if min(height, width) <= 12 else "images", "paper" if named else "modern")
    # Constants, not measured: a mean over all users' pixels would let one user touch every model.
    base = replace(base, n_classes=n_classes, mean=(0.5,), std=(0.25,))
    if model is None:
        return ModelChoice(base.architecture, "networks", settings=base)
    if callable(model):
        return ModelChoice(getattr(model, "__name__", "network"), "networks", settings=_name_factory(model, base))
    if not isinstance(model, str) or model in NAMES:
        got = model if isinstance(model, str) else type(model).__name__
        raise InputError(f"model: images need a network, got {got}; choose {', '.join(ARCHITECTURES)}")
    if model not in ARCHITECTURES:
        name, factory = model, _find(model)
        return ModelChoice(name, "networks", settings=_name_factory(factory, base))
    return ModelChoice(model, "networks", settings=replace(base, architecture=model))


def name_function(function: Any, what: str = "backbone: a function") -> str:
    """Return the name under which training and serving find a function again, ``module:name`` or ``file.py:name``."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    known = getattr(sys.modules.get(module), name, None) if module and "<" not in name else None
    if not callable(function) or known is not function:
        raise InputError(f"{what} must stand in a module or a .py file, so that it is found again by name")
    file = getattr(sys.modules[module], "__file__", None)
    path = module if _is_on_path(module) or file is None else str(Path(file).resolve())
    return f"{path}:{name}"


def _name_factory(factory: Any, base: "TrainingSettings") -> "TrainingSettings":
    what = "model: a network is made by a function of (shape, n_classes), which"
    return replace(base, architecture=name_function(factory, what))


def _is_on_path(module: str) -> bool:
    try:
        return module != "__main__" and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _find(path: str) -> Any:
    """Return what an import path or ``file.py:name`` stands for; a class is called with the literals behind it."""
    if path.endswith(".skops"):
        return load_model(read_bytes(path, MAX_UNPACKED), path)
    arguments: dict[str, Any] = {}
    called = path.endswith(")")
    if called:
        try:
            call = ast.parse(path, mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                raise ValueError("no call with names")
            arguments = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            path = ast.unparse(call.func)
        except (SyntaxError, ValueError) as error:
            raise InputError(f"model {path!r}: expected package.Class(name=value, ...)") from error
    module, name = path.partition(":")[::2] if ":" in path else path.rpartition(".")[::2]
    if not module or not name:
        raise InputError(
            f"model {path!r}: choose {', '.join(NAMES)}, or give package.Class, package.module:function, "
            "file.py:function"
        )
    found = getattr(import_named(module), name, None)
    if found is None:
        raise InputError(f"model {path!r}: {module} has no {name}")
    try:
        return found(**arguments) if isinstance(found, type) or called else found
    except (TypeError, ValueError) as error:
        raise InputError(f"model {path!r}: {' '.join(str(error).split())[:120]}") from error
