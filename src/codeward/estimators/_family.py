"""Sub-models of any family: trained on the samples that train, and found again in the store of a cell."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from codeward._errors import InputError
from codeward._progress import Shown, show_progress
from codeward.data import Schema, UserData
from codeward.estimators._model_choice import ModelChoice, choose_heads
from codeward.estimators._roles import Roles
from codeward.estimators._table_models import TableModels, load_tables, train_tables
from codeward.runs import Cell
from codeward.training import Ensemble, ModelPlan, ModelStore, SubModels, TrainingSettings, plan_models

if TYPE_CHECKING:
    from codeward.estimators._guarded_plan import GuardedPlan

#: Samples of the small fit from which the time of training is told.
_FEW = 200


def train_family(
    plan: "GuardedPlan",
    plans: Sequence[ModelPlan],
    store: ModelStore | None,
    progress: Shown = None,
    n_jobs: int | None = None,
) -> Any:
    """Train the sub-models of a plan on the samples that train; without a store they live in memory only."""
    data, roles, model = plan.data, plan.roles, plan.model
    if model.family == "heads":
        heads = _fit_heads(data, roles, model, plans, progress)
        if store is not None:
            # Solving takes less than reading them; which of them were there is for the record.
            heads = replace(heads, taken_over=sum(map(store.holds, heads.keys)))
            heads.save(store)
        return heads
    if model.family == "networks":
        from codeward.training import train_ensemble

        assert model.settings is not None
        users = [data.take(own).samples for own in roles.training]
        return train_ensemble(users, plans, model.settings, plan.config.seed, store, progress=progress)
    with show_progress("training", len(plans), progress) as bar:
        return train_tables(data, roles, model, plans, store, bar, n_jobs)


def estimate_seconds(plan: "GuardedPlan") -> float:
    """Return about how long training takes: one small fit, measured, and as many as the plan has, by their samples."""
    sizes = np.array([own.size for own in plan.roles.training])
    wholes = [int(sizes[list(planned.users)].sum()) for planned in plan_models(plan.choice.code, plan.config.seed)]
    few = np.concatenate([own[:_FEW] for own in plan.roles.training])[:_FEW]
    alone = UserData(
        plan.data.take(few).inputs, plan.data.labels[few], np.zeros(len(few), np.int64), plan.data.class_names,
        ("a",), plan.data.schema,
    )  # fmt: skip
    settings, scale = plan.model.settings, sum(wholes) / max(1, len(few))
    if settings is not None:
        shown = sum(settings.for_samples(size).epochs * size for size in wholes)
        settings, scale = replace(settings, epochs=1), shown / max(1, len(few))
    roles = Roles((np.arange(len(few)),), ("a",), plan.roles.validation, plan.roles.clean, False)
    small = replace(plan, data=alone, roles=roles, model=replace(plan.model, settings=settings))
    seconds, log = list[float](), logging.getLogger("codeward.backbones")
    log.disabled = True  # what it has to say is said once, by training itself
    for _ in range(1 if plan.model.family == "tables" else 2):  # the first of networks and heads also compiles
        begin = time.perf_counter()
        train_family(small, [ModelPlan((0,), 0, 0)], None)
        seconds.append(time.perf_counter() - begin)
    log.disabled = False
    return min(seconds) * (scale if plan.model.family != "heads" else len(plan.data) / max(1, len(few)))


def keep_models(models: Any, plans: Sequence[ModelPlan], store: ModelStore) -> None:
    """Write models that were trained without a store into one, under the keys that training with it gives."""
    if isinstance(models, Ensemble):
        size = models.settings.committee
        for place, key in enumerate(models.network_keys):
            number, network = divmod(place, size)
            about = {"users": list(plans[number].users), "replica": plans[number].replica}
            store.save_weights(key, models.weights(number, network), about)
    elif isinstance(models, TableModels):
        models.save(store, plans)
    else:
        models.save(store)


def _fit_heads(data: UserData, roles: Roles, model: ModelChoice, plans: Sequence[ModelPlan], progress: Shown) -> Any:
    """Gather each user's statistics and solve a head a row."""
    from codeward.training.backbones import transform_cached
    from codeward.training.heads import StatisticsSet, UserStatistics, fit_heads

    backbone = model.backbone
    assert backbone is not None
    total = sum(own.size for own in roles.training)
    with show_progress(f"features ({backbone.name})", total, progress) as bar:
        features = transform_cached(backbone, data.inputs, None, bar, roles.training)[0]
    users = [UserStatistics.of(features.take(own), data.labels[own], data.n_classes) for own in roles.training]
    rows = [planned.users for planned in plans]
    with show_progress("heads", len(plans), progress) as bar:
        return fit_heads(
            StatisticsSet(tuple(users)), None, None, rows, data.n_classes, model.ridge, backbone=backbone,
            keep_sums=0, progress=bar,
        )  # fmt: skip


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
        return Ensemble.load(store, cell.keys, read_settings(cell), cell.shape)
    except InputError as error:
        raise InputError(f"{error}; {cell.advice} makes what is missing") from error


def _load_heads(cell: Cell, store: ModelStore) -> SubModels:
    from codeward.training.heads import HeadSet

    told, where = cell.about.get("heads"), f"{cell.folder.path}: {cell.name}"
    schema = Schema.from_json(cell.about.get("schema"), where)
    try:
        assert isinstance(told, dict)
        name, digest, ridge = str(told["backbone"]), str(told["digest"]), float(told["ridge"])
        form = str(told.get("form", "auto"))
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: does not say which backbone its heads are on") from error
    backbone = choose_heads(name, ridge, schema).backbone
    assert backbone is not None
    if backbone.digest != digest:
        raise InputError(f"{where}: backbone {name} has hash {backbone.digest[:16]}, the heads want {digest[:16]}")
    return HeadSet.load(store, cell.keys, cell.code, cell.n_classes, ridge, form, backbone)


def read_settings(cell: Cell) -> TrainingSettings:
    """Return the recipe that a cell of networks was trained with."""
    try:
        return TrainingSettings(**cell.training)
    except (TypeError, ValueError) as error:
        raise InputError(f"{cell.folder.path}: {cell.name}: not readable as a recipe of training ({error})") from error
