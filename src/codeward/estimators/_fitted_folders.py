"""What is fitted already as the folder that ``codeward train`` writes: a classifier, and back; heads from elsewhere."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import write_atomic
from codeward.codes import Code, count_attacker_sets, inspect
from codeward.data import InputTable, Schema, UserData
from codeward.decoding import VoteSet
from codeward.estimators._code_choice import CodeChoice
from codeward.estimators._family import keep_models, load_sub_models
from codeward.estimators._guarded_plan import GuardedPlan, settle_plan
from codeward.estimators._guarded_training import KEPT, write_folder
from codeward.estimators._model_choice import choose_heads
from codeward.estimators._planned_classifier import NAMES, build_decoder
from codeward.estimators._table_models import dump_model
from codeward.runs import (
    AttackSection,
    Card,
    Cell,
    DecoderSection,
    RunFolder,
    TrainConfig,
    TrainSection,
    find_cell,
)
from codeward.training import ModelStore, plan_models

#: Sets of attackers up to which the decoder of heads from elsewhere expects more of them.
_MOST_SETS = 65_536

Kind = TypeVar("Kind", bound="SavedClassifier")


class SavedClassifier:
    """Gives a classifier `save` and `load`."""

    classes_: NDArray[Any]
    code_: Code
    confusion_: NDArray[np.float64]
    decoder_: Any
    estimators_: Any
    schema_: Schema
    users_: NDArray[Any]
    validation_: VoteSet
    decoder: Any
    estimator: Any
    _plan: GuardedPlan | None
    _models: Any

    def save(self, folder: str | os.PathLike[str], data: bool = True) -> Card:
        """Write the fitted classifier as the folder that ``codeward train`` writes; return its certificate card.

        ``serve``, ``report``, ``decode``, ``certify``, ``ledger``, ``revoke`` and `load` open it. Models are kept with
        skops (networks as safetensors), nothing is pickled; one that cannot be kept safely is refused by name. Figures
        are taken on samples that trained nobody and fitted nothing: where `fit` got no ``test``, half of the validation
        samples measure, and the decoder of the folder is fitted on the other half, as ``codeward train`` does.

        Parameters
        ----------
        folder : path-like
            Made; one that holds another run is refused.
        data : bool
            Keep the training data in the folder too (``data/``), so that ``codeward revoke`` has something to train
            from. Without, whoever gets the folder gets no user's samples, and cannot revoke.
        """
        plan, begin = self._plan, time.perf_counter()
        if plan is None:
            raise InputError("this classifier was loaded from a folder; copy that folder")
        if not isinstance(self.decoder, str):
            raise InputError(f"decoder: a function cannot be kept; name one ({', '.join(NAMES)})")
        plan.roles.check(plan.choice.n_attackers)
        place = RunFolder(folder)
        kept: dict[str, UserData] = {}
        if data and not hasattr(plan.data.inputs, "tocsr"):
            kept = {"data": plan.data, "trusted": plan.trusted, "test": plan.test}  # type: ignore[dict-item]
        end = "jsonl" if isinstance(plan.data.inputs, InputTable) else "npz"
        home = place.path.resolve() / KEPT
        files = {name: home / f"{name}.{end}" for name, given in kept.items() if given is not None}
        recipe = b""
        if files and plan.model.estimator is not None and not isinstance(self.estimator, str | None):
            files["model"], recipe = home / f"model.{plan.model.form}.skops", dump_model(plan.model.estimator)
        places = {name: str(path) if name != "model" else path.name for name, path in files.items()}
        section = plan.config.train.model_copy(update=places)
        plan = replace(
            plan, config=plan.config.model_copy(update={"train": section, "dataset": place.path.resolve().name})
        )
        place.open(plan.config, plan.choice.code)
        cell = Cell(place, 0, 0)
        keep_models(self._models, plan_models(plan.choice.code, plan.config.seed), ModelStore(cell.store))
        for name, path in files.items():
            if name == "model":
                write_atomic(path, lambda out: out.write(recipe))
            else:
                _write_data(path, kept[name], plan.data.schema)
        return write_folder(cell, plan, self._models, begin, {"decoder": self.decoder})[1]

    @classmethod
    def load(cls: type[Kind], folder: str | os.PathLike[str], decoder: str | None = None) -> Kind:
        """Open a folder of `save` or of ``codeward train`` as a fitted classifier, to ask, not to fit again.

        Parameters
        ----------
        folder : path-like
        decoder : str, optional
            Which decoder answers; by default the one the folder was saved with, and for ``codeward train`` the one it
            is served with.
        """
        cell = find_cell(folder)
        config, models = cell.folder.config, load_sub_models(cell)
        assert isinstance(config, TrainConfig)
        kept = decoder or cell.about.get("decoder")
        name = kept if isinstance(kept, str) else cell.decoding.name
        made: Any = cls(code=cell.code, n_attackers=config.code.attackers, decoder=name)  # type: ignore[call-arg]
        names = cell.class_names or tuple(map(str, range(cell.n_classes)))
        whole = all(text.isdecimal() for text in names)
        made.classes_ = np.array([int(text) for text in names] if whole else names)
        made.schema_ = Schema.from_json(cell.about.get("schema"), f"{folder}: its schema")
        made.code_, made.design_, made._plan, made._models = cell.code, None, None, models
        made.estimators_ = list(getattr(models, "models", ())) or models
        made.users_ = np.array([cell.code.user_name(user) for user in range(cell.code.n_users)])
        made.users_hashed_ = bool(cell.about.get("hashed"))
        made.validation_, made.confusion_ = cell.validation, cell.confusion
        rate = cell.decoding.false_alarm_rate
        noise = (cell.confusion, made.n_attackers, cell.validation, rate, cell.assumptions.class_counts)
        made.decoder_ = cell.decoder() if kept is None else build_decoder(name, cell.code, *noise)
        columns = made.schema_.columns
        made.n_features_in_ = int(np.prod(columns[0].shape)) if columns[0].shape else len(columns)
        return made  # type: ignore[no-any-return]


def _write_data(path: Path, data: UserData, schema: Schema) -> None:
    """Write samples so that reading them again gives the very same."""
    labels, users = np.array(data.class_names)[data.labels], np.array(data.user_names)[data.users]
    if not isinstance(data.inputs, InputTable):
        arrays: dict[str, Any] = {"images" if schema.kind == "image" else "X": data.inputs, "y": labels}
        arrays |= {} if data.hashed or len(data.user_names) == 1 else {"groups": users}
        write_atomic(path, lambda out: np.savez_compressed(out, **arrays))
        return
    columns = {name: values.tolist() for name, values in data.inputs.columns.items()}
    columns[schema.label or "y"] = labels.tolist()
    if schema.user is not None:
        columns[schema.user] = users.tolist()

    def write(out: Any) -> None:
        for row in zip(*columns.values(), strict=True):
            values = (None if value != value else value for value in row)
            out.write(json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False).encode() + b"\n")

    write_atomic(path, write)


def plan_collected(test: UserData, code: Code, heads: Any, told: TrainSection, sizes: Sequence[int]) -> GuardedPlan:
    """Return the plan of heads that were fitted elsewhere, from statistics that users sent; only votes are missing.

    Parameters
    ----------
    test : UserData
        Labelled samples of the operator, classes declared: half of them fit the decoder, half measure.
    code : Code
    heads : codeward.training.heads.HeadSet
    told : TrainSection
        Says as ``trusted`` where ``test`` is.
    sizes : sequence of int
        How many samples each user has; nobody else has them.

    Examples
    --------
    >>> from codeward.data import load_user_data
    >>> from codeward.training.backbones import make_backbone
    >>> from codeward.training.heads import fit_heads
    >>> code, X = Code([[1, 0], [0, 1]], users=["ann", "bob"]), np.eye(4)
    >>> heads = fit_heads(X, [0, 1, 0, 1], [0, 0, 1, 1], code, 2, backbone=make_backbone("features", sample=X))
    >>> test = load_user_data((X, ["no", "yes", "no", "yes"]))
    >>> plan = plan_collected(test, code, heads, TrainSection(trusted="test.npz"), [2, 2])
    >>> plan.model.name, plan.roles.trusted, plan.config.users
    ('ridge head on features', True, 2)
    """
    test = replace(test, hashed=False)
    names = tuple(code.user_name(user) for user in range(code.n_users))
    nobody = replace(test.take(np.zeros(0, np.int64)), user_names=names)
    told = told.model_copy(update={"backbone": heads.backbone.name, "ridge": heads.ridge})
    title = Path(told.trusted or "own data").stem
    config = TrainConfig(
        dataset=title,
        users=code.n_users,
        attack=AttackSection(attackers=(0,)),
        decoder=DecoderSection(name="bayes", max_attackers=min(DecoderSection().max_attackers, code.n_users)),
        train=told,
    )
    k = max(1, inspect(code).correct)
    while k > 1 and count_attacker_sets(code.n_users, k) > _MOST_SETS:  # what the decoder looks through
        k -= 1
    choice = CodeChoice(code, k, "given", 1, ())
    plan = settle_plan(config, nobody, test, None, choose_heads(heads.backbone, heads.ridge, test.schema), choice)
    plan.roles.check(plan.choice.n_attackers)
    return replace(plan, roles=replace(plan.roles, training=tuple(np.arange(size) for size in sizes)))


def save_heads(
    folder: str | Path,
    heads: Any,
    code: Code,
    test: UserData,
    told: TrainSection | None = None,
    sizes: Sequence[int] | None = None,
    data_dir: str | Path | None = None,
    **more: Any,
) -> Cell:
    """Write heads that are fitted into a run folder to serve, certify and report: models, votes, record, card.

    Parameters
    ----------
    folder : path-like
    heads : codeward.training.heads.HeadSet
        In the order of the code's rows, on a backbone that has a name.
    code : Code
    test : UserData
        Labelled samples of the operator, classes declared: half of them fit the decoder, half measure.
    told, sizes
        As for `plan_collected`; without, nothing is said of where ``test`` is and of how many samples users have.
    data_dir : path-like, optional
        Where data sets with a name are.
    **more
        For the record.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.data import load_user_data
    >>> from codeward.training.backbones import make_backbone
    >>> from codeward.training.heads import fit_heads
    >>> code, X, y = Code([[1, 0], [0, 1], [1, 1]]), np.eye(4)[[0, 1, 0, 1]], [0, 1, 0, 1]
    >>> heads = fit_heads(X, y, [0, 0, 1, 1], code, 2, backbone=make_backbone("features", sample=X))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell = save_heads(folder, heads, code, load_user_data((X, y), classes=("0", "1")))
    >>> cell.record["figures"]["clean"]["all"]["plurality"]
    {'count': 2, 'of': 2}
    """
    begin, place = time.perf_counter(), RunFolder(folder)
    plan = plan_collected(test, code, heads, told or TrainSection(), sizes or [0] * code.n_users)
    place.open(plan.config.model_copy(update={"data_dir": data_dir and Path(data_dir)}), code)
    heads.save(ModelStore(place.store))
    return write_folder(Cell(place, 0, 0), plan, heads, begin, **more)[0]
