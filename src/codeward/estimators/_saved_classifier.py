"""A fitted classifier as a run folder and back: what `CodedClassifier.save` writes, serve, report and certify open."""

import hashlib
import os
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Column, InputTable, Samples, Schema, read_records
from codeward.decoding import VoteSet
from codeward.estimators._decisions import build_decoder
from codeward.estimators._family import load_sub_models
from codeward.estimators._guarded_training import write_record
from codeward.estimators._kept_models import dump_model
from codeward.estimators._table_models import TableModels
from codeward.runs import Card, Cell, RunFolder, TrainConfig, describe_machine, find_cell, make_card
from codeward.training import ModelStore, SubModels

Kind = TypeVar("Kind", bound="SavedClassifier")


class OpenedModels:
    """Sub-models of a folder behind the interface that the classifier asks for votes."""

    def __init__(self, models: SubModels, schema: Schema) -> None:
        self.models, self.schema = models, schema

    def check_inputs(self, owner: Any, X: Any, reset: bool = False) -> Any:
        """Read inputs as the folder's schema has them: records, a data frame, an array of numbers or images."""
        if isinstance(X, InputTable | Samples):
            return X
        if self.schema.kind == "image":
            images = np.asarray(X)
            images = images[:, None] if images.ndim == 3 else images
            if images.dtype != np.uint8 or images.shape[1:] != self.schema.columns[0].shape:
                raise InputError(
                    f"images: {images.dtype} {images.shape}, expected uint8 {self.schema.columns[0].shape}"
                )
            return images
        if self.schema.kind == "features":
            return np.asarray(X, dtype=np.float64).reshape(len(X), *self.schema.columns[0].shape)
        if hasattr(X, "to_dict"):
            return read_records(X.to_dict("records"), self.schema, "X")
        records = (
            X if len(X) and isinstance(X[0], dict) else [dict(zip(self.schema.names, row, strict=True)) for row in X]
        )
        return read_records(records, self.schema, "X")

    def vote(self, models: Any, X: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the vote of each model on each input, shape (N, m)."""
        if isinstance(X, np.ndarray) and X.dtype == np.uint8:
            X = Samples(np.ascontiguousarray(X), np.zeros(len(X), dtype=np.int64))
        return self.models.votes(X)


def describe_inputs(X: Any) -> Schema | None:
    """Return the schema of checked inputs: columns of a data frame by their types, a vector of numbers, or images.

    None where columns have no names that tell them apart: such a classifier answers, but is not kept.
    """
    if hasattr(X, "iloc") and len({str(name) for name in X.columns}) < len(X.columns):
        return None
    if hasattr(X, "iloc"):
        numeric = {str(name): kind.kind in "biuf" for name, kind in X.dtypes.items() if hasattr(kind, "kind")}
        kinds = {name: "numeric" if numeric.get(str(name)) else "categorical" for name in X.columns}
        return Schema(tuple(Column(str(name), kind) for name, kind in kinds.items()))
    if getattr(X, "dtype", None) == np.uint8 and X.ndim == 4:
        return Schema((Column("image", "image", shape=tuple(int(size) for size in X.shape[1:])),))
    return Schema((Column("features", "numeric", shape=(int(X.shape[1]),)),))


class SavedClassifier:
    """Gives a classifier `save` and `load`."""

    classes_: NDArray[Any]
    code_: Code
    confusion_: NDArray[np.float64]
    estimators_: Any
    users_: NDArray[Any]
    validation_: VoteSet
    schema_: Schema | None
    users_hashed_: bool
    n_attackers: int
    decoder: Any

    def save(self, folder: str | os.PathLike[str]) -> Card:
        """Write the fitted classifier as a run folder, and its certificate card; return the card.

        ``serve``, ``report``, ``decode``, ``certify`` and `load` open it. Half of the validation samples are kept as
        such, figures are taken on the other half. Models are kept with skops (networks as safetensors), nothing is
        pickled; a model that cannot be kept safely is refused by name. The data stay where they are, so that
        ``revoke`` has nothing to train again from: ``codeward train`` is for that.

        Parameters
        ----------
        folder : path-like
            Made; one that holds another run is refused.
        """
        if not isinstance(self.decoder, str):
            raise InputError("decoder: a function cannot be kept; name one (bayes, plurality, consensus, groups)")
        if self.schema_ is None:
            raise InputError(
                "two columns of the data frame have one name; only columns with names of their own are kept"
            )
        code = self.code_
        if code.users is None:
            code = Code(code.matrix, users=[str(user) for user in self.users_.tolist()], construction=code.construction)
        place, k = RunFolder(folder), min(int(self.n_attackers), code.n_users)
        config = TrainConfig.model_validate(
            {
                "dataset": place.path.resolve().name,
                "users": code.n_users,
                "attack": {"attackers": [0]},
                "code": {"attackers": k},
                "decoder": {"name": self.decoder if self.decoder == "groups" else "bayes", "max_attackers": k},
                "train": {"data_digest": _digest(self.validation_)},
            }
        )
        place.open(config, code)
        cell = Cell(place, 0, 0)
        store = ModelStore(cell.store)
        about = {**self._keep(store), "decoder": self.decoder, "hashed": int(self.users_hashed_)}
        votes, labels = self.validation_.votes, np.asarray(self.validation_.labels)
        halves = {"validation": slice(0, None, 2), "clean": slice(1, None, 2)}
        sets = {name: VoteSet(votes[rows], labels[rows], self.confusion_) for name, rows in halves.items()}
        cell = cell.save_votes(sets, about)
        cell = write_record(cell, config, 0.0)
        card = make_card(cell, {"validation": "as handed to fit", "classes": "as handed to fit"}, title=config.dataset)
        card = replace(card, guarantees=tuple(said for said in card.guarantees if said.property != "undo"))
        card.save(place.card_file)
        return card

    @classmethod
    def load(cls: type[Kind], folder: str | os.PathLike[str]) -> Kind:
        """Open a folder of `save` or of ``codeward train`` as a fitted classifier, to ask, not to fit again.

        Parameters
        ----------
        folder : path-like
        """
        cell = find_cell(folder)
        models = load_sub_models(cell)
        made: Any = cls(estimator=None, code=cell.code, n_attackers=cell.folder.config.code.attackers)  # type: ignore[call-arg]
        schema = Schema.from_json(cell.about.get("schema"), f"{folder}: its schema")
        made._opened = OpenedModels(models, schema)
        names = cell.class_names or tuple(map(str, range(cell.n_classes)))
        whole = all(name.isdecimal() for name in names)
        made.classes_ = np.array([int(name) for name in names] if whole else names)
        made.code_, made.design_, made.schema_, made.estimators_ = cell.code, None, schema, models
        made.users_ = np.array([cell.code.user_name(user) for user in range(cell.code.n_users)])
        made.users_hashed_, made.confusion_, made.validation_ = (
            bool(cell.about.get("hashed")),
            cell.confusion,
            cell.validation,
        )
        name = cell.about.get("decoder")
        kept = build_decoder(name, cell.code, cell.confusion, made.n_attackers) if isinstance(name, str) else None
        # A folder of ``codeward train`` has a decoder that may read scores; the classifier asks for votes.
        made.decoder, made.decoder_ = name or "bayes", kept or cell.decoder("bayes")
        made.n_features_in_ = len(schema.columns) if schema.kind == "table" else int(np.prod(schema.columns[0].shape))
        return made  # type: ignore[no-any-return]

    def _keep(self, store: ModelStore) -> dict[str, Any]:
        """Write the sub-models; return what the folder says about them."""
        names = [str(name) for name in self.classes_.tolist()]
        told: dict[str, Any] = {"classes": len(names), "class_names": names, "groups": [], **describe_machine("cpu")}
        assert self.schema_ is not None  # `save` looked
        told["schema"] = self.schema_.to_json()
        models = self.estimators_
        if isinstance(models, TableModels):
            raise InputError("this classifier was loaded from a folder; copy that folder")
        if not isinstance(models, list):
            for number, key in enumerate(models.keys):
                store.save_weights(key, models.weights(number), {"family": "networks"})
            told |= {"family": "networks", "model": models.settings.architecture, "keys": list(models.keys)}
            told |= {"training": models.settings.to_json(), "shape": list(models.shape)}
        else:
            contents = [dump_model(model) for model in models]
            keys = [hashlib.sha256(b"classifier" + content).hexdigest() for content in contents]
            for key, content in zip(keys, contents, strict=True):
                store.save_bytes(key, content, {"family": "tables"}, "skops")
            frame = self.schema_.kind == "table"
            told |= {"family": "tables", "model": type(models[0]).__name__, "keys": keys, "training": {}}
            told |= {"inputs": "frame" if frame else "matrix"}
        count = len(told["keys"])
        return told | {"work": {"models": count, "trained": count, "reused": 0}}


def _digest(given: VoteSet) -> str:
    content = np.ascontiguousarray(given.votes).tobytes() + np.ascontiguousarray(given.labels).tobytes()
    return hashlib.sha256(content).hexdigest()
