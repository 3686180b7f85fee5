"""A fitted classifier as the folder that ``codeward train`` writes, and back."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import write_atomic
from codeward.codes import Code
from codeward.data import InputTable, Schema, UserData
from codeward.decoding import VoteSet
from codeward.estimators._decisions import NAMES, build_decoder
from codeward.estimators._family import keep_models, load_sub_models
from codeward.estimators._guarded_plan import GuardedPlan
from codeward.estimators._guarded_training import KEPT, write_folder
from codeward.estimators._kept_models import dump_model
from codeward.runs import Card, Cell, RunFolder, TrainConfig, find_cell
from codeward.training import ModelStore, plan_models

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
        plan.roles.check()
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
        noise = (cell.confusion, made.n_attackers, cell.validation, rate)
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
