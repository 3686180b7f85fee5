"""The sub-models of a cell, whatever family they are of."""

from codeward._errors import InputError
from codeward.data import Schema
from codeward.estimators._model_choice import choose_heads
from codeward.estimators._table_models import load_tables
from codeward.runs import Cell
from codeward.training import Ensemble, ModelStore, SubModels, TrainingSettings


def load_sub_models(cell: Cell) -> SubModels:
    """Find the models of a cell in its store, by the keys it keeps; what was trained on a GPU votes without one.

    Raises
    ------
    InputError
        When one is missing or damaged: what is served is what the records describe, or nothing.

    Examples
    --------
    >>> from codeward.runs import RunFolder
    >>> load_sub_models(Cell(RunFolder("nowhere"), 0, 0))
    Traceback (most recent call last):
    codeward._errors.InputError: nowhere...
    """
    family, store = cell.about.get("family") or "networks", ModelStore(cell.store)
    try:
        if family == "tables":
            schema = Schema.from_json(cell.about.get("schema"), f"{cell.folder.path}: {cell.name}")
            form = "frame" if cell.about.get("inputs") == "frame" else "matrix"
            return load_tables(store, cell.keys, cell.class_names or (), schema, form)
        if family == "heads":
            return _load_heads(cell, store)
        if family != "networks":
            raise InputError(f"{cell.folder.path}: {cell.name}: no family of models is named {str(family)[:40]!r}")
        return Ensemble.load(store, cell.keys, _read_settings(cell), cell.shape)
    except InputError as error:
        raise InputError(f"{error}; {cell.advice} trains what is missing") from error


def _load_heads(cell: Cell, store: ModelStore) -> SubModels:
    from codeward.training.heads import HeadSet

    told, where = cell.about.get("heads"), f"{cell.folder.path}: {cell.name}"
    schema = Schema.from_json(cell.about.get("schema"), where)
    try:
        assert isinstance(told, dict)
        name, digest, ridge = str(told["backbone"]), str(told["digest"]), float(told["ridge"])
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: does not say which backbone its heads are on") from error
    backbone = choose_heads(name, ridge, schema).backbone
    assert backbone is not None
    if backbone.digest != digest:
        raise InputError(f"{where}: backbone {name} has hash {backbone.digest[:16]}, the heads want {digest[:16]}")
    return HeadSet.load(store, cell.keys, cell.code, cell.n_classes, ridge, backbone=backbone)


def _read_settings(cell: Cell) -> TrainingSettings:
    try:
        return TrainingSettings(**cell.training)
    except (TypeError, ValueError) as error:
        raise InputError(f"{cell.folder.path}: {cell.name}: not readable as a recipe of training ({error})") from error
