"""From one's own data to a folder of guarded models: the engine of ``codeward train``."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._progress import show_progress
from codeward.data import Schema, UserData, load_user_data
from codeward.decoding import PluralityDecoder, VoteSet, estimate_confusion
from codeward.estimators._code_choice import CodeChoice, choose_code, hash_code
from codeward.estimators._holdout import estimate_from_users
from codeward.estimators._model_choice import ModelChoice, as_matrix, choose_model
from codeward.estimators._roles import Labelled, Roles, align, assign_roles, digest_data
from codeward.estimators._table_models import train_tables
from codeward.runs import Card, Cell, RunFolder, TrainConfig, describe_machine, make_card, observe, share
from codeward.training import ModelPlan, ModelStore, SubModels, plan_models

#: Log-probability that stands for "never" in a vote file; half precision ends at -65,504.
_LOWEST_SCORE = -60_000.0


@dataclass(frozen=True)
class GuardedPlan:
    """Everything that is settled before a model is trained.

    Attributes
    ----------
    config : TrainConfig
    data : UserData
    roles : Roles
    choice : CodeChoice
    model : ModelChoice
    expected : str
        How long it may take, in words.
    """

    config: TrainConfig
    data: UserData
    roles: Roles
    choice: CodeChoice
    model: ModelChoice

    @property
    def movable(self) -> list[str]:
        """What reaches all rows and users could move all the same: nothing is certified then."""
        data, k = self.data, self.choice.n_attackers
        found = []
        if data.firm is not None and data.firm < k:
            found.append(
                "the kinds of columns (or the size of images) were read off the users' data, and "
                f"{data.firm + 1} of them could have made them others; declare them with --schema"
            )
        if self.model.family == "networks" and not self._classes_are_fixed():
            found.append(
                "the classes were read off the users' data, and the networks of all rows have an output for each; "
                "declare them with --schema, or give --trusted"
            )
        return found

    def _classes_are_fixed(self) -> bool:
        """Tell whether classes are declared, or shown by so many users that k more or fewer change nothing."""
        data, k = self.data, self.choice.n_attackers
        if data.schema.classes is not None:
            return True
        holders = [np.unique(data.users[data.labels == label]).size for label in range(data.n_classes)]
        return min(holders) > 2 * k

    def describe(self) -> list[str]:
        """Say what will be done, in lines."""
        data, code = self.data, self.choice.code
        sizes = np.array([part.size for part in data.parts])
        who = "parts by hash (no users known)" if data.hashed else "users"
        lines = [
            *data.notes,
            f"{len(data):,} samples, {data.n_classes} classes, {data.n_users} {who}: "
            f"{sizes.min()} to {sizes.max()} samples each, median {int(np.median(sizes))}",
            *self.choice.reasons,
            f"each sub-model is a {self.model.name} on {code.row_weight} users or more",
        ]
        if data.hashed:
            lines.append(
                "without users the guarantee is against k poisoned samples, not k users, and nobody is named; "
                "give --user COL if a column says who handed a sample in"
            )
        largest = int(sizes.argmax())
        if not data.hashed and sizes[largest] > sizes.sum() / 2:
            lines.append(
                f"user {data.user_names[largest]} has {sizes[largest] / sizes.sum():.0%} of all samples: sub-models "
                "without it learn from little; if it is several parties, make it several users"
            )
        return lines


def plan_training(
    config: TrainConfig,
    source: Any = None,
    trusted: Any = None,
    test: Any = None,
    model: Any = None,
    schema: Schema | None = None,
    code: CodeChoice | None = None,
) -> GuardedPlan:
    """Read the data and settle everything that all sub-models share: columns, classes, code, model, roles of samples.

    Isolation: code, order of columns and margin come from the users' names, the options and trusted samples; kinds of
    columns from a schema, trusted samples or a majority of users; encoders and imputers are in each sub-model's own
    pipeline. What users could move all the same is in `GuardedPlan.movable`.

    Parameters
    ----------
    config : TrainConfig
        Its ``train`` section names files; sources given here take their place.
    source, trusted, test : optional
        As for `codeward.data.load_user_data`.
    model : optional
        As for `choose_model`; by default ``config.train.model``.
    schema : Schema, optional
        Columns, kinds and classes as declared.
    code : CodeChoice, optional
        A code that is there already.
    """
    told = config.train
    if schema is None and told.columns:
        schema = Schema.load(told.columns)
    columns = {"label": told.label, "user": told.user, "text": told.text}
    given = trusted if trusted is not None else told.trusted
    operators = None
    if given is not None:
        # Trusted samples fix columns and classes; users may then hand in what they like.
        operators = load_user_data(given, told.label, "none", schema=schema, text=told.text, data_dir=config.data_dir)
        if schema is None:
            settled = replace(operators.schema, classes=operators.class_names, origin="trusted")
            schema = replace(settled, user=told.user)
    data = load_user_data(
        source if source is not None else told.data,
        schema=schema,
        n_parts=told.parts,
        data_dir=config.data_dir,
        **columns,
    )
    schema = data.schema
    operators = None if operators is None else align(operators, data, "trusted")
    held = test if test is not None else told.test
    checked = data.test
    if held is not None:
        checked = load_user_data(held, told.label or schema.label, "none", schema=replace(schema, user=None))
    checked = None if checked is None else align(checked, data, "test")
    chosen = choose_model(model if model is not None else told.model, schema, data.n_classes)
    roles = assign_roles(data, operators, checked, told.test_fraction, config.seed)
    if code is None:
        code = _choose_code(config, data, roles, chosen)
    marks = {"data_digest": digest_data(data)}
    marks |= {} if operators is None else {"trusted_digest": digest_data(operators)}
    marks |= {} if checked is None else {"test_digest": digest_data(checked)}
    section = config.code.model_copy(
        update={"attackers": code.n_attackers, "margin": code.margin}
        | ({"guarantee": code.guarantee} if code.guarantee != "partition" else {})
    )
    settled_config = config.model_copy(
        update={
            "train": told.model_copy(update=marks),
            "users": data.n_users,
            "code": section,
            "dataset": config.dataset if config.dataset != "digits" or told.data == "digits" else "own data",
            "decoder": config.decoder.model_copy(
                update={"max_attackers": min(max(code.n_attackers, 1), data.n_users)}
                | ({} if "name" in config.decoder.model_fields_set else {"name": "calibrated"})
            ),
        }
    )
    return GuardedPlan(settled_config, data, roles, code, chosen)


def _choose_code(config: TrainConfig, data: UserData, roles: Roles, model: ModelChoice) -> CodeChoice:
    asked = config.code
    set_by_hand = asked.model_fields_set
    k = asked.attackers if "attackers" in set_by_hand else None
    if data.hashed:
        return hash_code(data.n_users, data.user_names, k or 1)
    return choose_code(
        data.user_names,
        k,
        asked.guarantee if "guarantee" in set_by_hand else None,
        asked.margin if "margin" in set_by_hand else None,
        asked.utilization,
        _estimate_error(roles, data.schema, model, config.seed) if roles.trusted else None,
        _read_weights(config.train.weights, data.user_names),
        min(asked.time_limit, 5.0),
    )


def _estimate_error(roles: Roles, schema: Schema, model: ModelChoice, seed: int) -> float | None:
    """Fit one model on half of the trusted samples and count its errors on the other half."""
    if model.estimator is None or len(roles.validation) < 20:
        return None
    from sklearn.base import clone

    rows, labels = as_matrix(roles.validation.inputs, schema), roles.validation.labels
    order = np.random.default_rng([seed, 3]).permutation(len(labels))
    half = len(labels) // 2
    first, second = order[:half], order[half:]
    if np.unique(labels[first]).size < 2:
        return None
    said = clone(model.estimator).fit(rows[first], labels[first].astype(str)).predict(rows[second])
    return float((said != labels[second].astype(str)).mean())


def _read_weights(file: str | None, users: tuple[str, ...]) -> NDArray[np.float64] | None:
    """Read declared sizes of users; amounts of data are not taken: who hands in more would move the columns of all."""
    if file is None:
        return None
    found = load_weights(file)
    missing = [user for user in users if user not in found]
    if missing:
        raise InputError(f"{file}: no weight for user {missing[0]!r}; every user needs a line user,weight")
    return np.array([found[user] for user in users], dtype=np.float64)


def load_weights(file: str) -> dict[str, float]:
    """Read a CSV of user and weight."""
    import csv
    import io

    from codeward._files import read_text

    rows = list(csv.DictReader(io.StringIO(read_text(file))))
    try:
        return {str(row["user"]).strip(): float(row["weight"]) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: expected columns user and weight, a number each ({str(error)[:60]})") from error


def train_guarded(plan: GuardedPlan, folder: str | Path, progress: bool = False) -> tuple[Cell, Card, bool]:
    """Train what the folder lacks, let it vote, count, and write the card; return whether something was made.

    Interrupted at any moment, the same call goes on where it was: finished sub-models are in the store.
    """
    place = RunFolder(folder)
    code = place.open(plan.config, plan.choice.code)
    if code.users != plan.choice.code.users:
        raise InputError(f"{place.path}: its code is of other users; choose another folder with -o, or --force")
    cell, begin = Cell(place, 0, 0), time.perf_counter()
    store = ModelStore(cell.store)
    plans = plan_models(code, plan.config.seed)
    if cell.is_whole and cell.has_record and place.card_file.exists() and all(map(store.holds, cell.keys)):
        return cell, Card.load(place.card_file), False
    models = train_family(plan.data, plan.roles, plan.model, plans, store, plan.config.seed, progress)
    cell = write_cell(cell, plan.data, plan.roles, plan.model, models)
    cell = write_record(cell, plan.config, time.perf_counter() - begin)
    return cell, write_card(cell, plan), True


def train_family(
    data: UserData,
    roles: Roles,
    model: ModelChoice,
    plans: Sequence[ModelPlan],
    store: ModelStore,
    seed: int,
    progress: bool = False,
) -> SubModels:
    """Train the sub-models of either family on the samples that train."""
    if model.family == "networks":
        from codeward.training import train_ensemble

        assert model.settings is not None
        users = [data.take(own).samples for own in roles.training]
        return train_ensemble(users, plans, model.settings, seed, store, show_progress=progress)
    with show_progress("training", len(plans), quiet=not progress) as bar:
        return train_tables(
            data.inputs, data.labels, data.class_names, roles.training, roles.digests, plans, model.estimator,
            data.schema, store, bar,
        )  # fmt: skip


def write_cell(cell: Cell, data: UserData, roles: Roles, model: ModelChoice, models: Any) -> Cell:
    """Let the models vote on both held-out sets; write vote files and what they are."""
    votes = {"validation": _vote(models, roles.validation), "clean": _vote(models, roles.clean)}
    fitted = votes["validation"]
    assert fitted.labels is not None
    if roles.validation.owners is None:
        confusion = estimate_confusion(fitted.votes, fitted.labels, data.n_classes)
    else:
        everybody = np.ones(cell.code.matrix.shape, dtype=bool)
        trimmed = cell.folder.config.code.attackers
        owners = roles.validation.owners
        confusion = estimate_from_users(fitted.votes, fitted.labels, owners, everybody, trimmed, data.n_classes)
    votes = {name: replace(given, confusion=confusion) for name, given in votes.items()}
    networks = model.settings is not None
    about: dict[str, Any] = {
        "classes": data.n_classes,
        "training": model.settings.to_json() if model.settings is not None else {},
        "groups": [],
        "family": model.family,
        "model": model.name,
        "schema": data.schema.to_json(),
        "class_names": list(data.class_names),
        "keys": list(models.keys),
        **describe_machine(str(models.device) if networks else "cpu"),
        "work": {"models": models.n_models, "trained": models.trained, "reused": models.n_models - models.trained},
    }
    if networks:
        about["shape"] = list(models.shape)
        _, first = np.unique(roles.clean.labels, return_index=True)
        cell.save_gallery({"clean": (roles.clean.inputs[first[:12]], roles.clean.labels[first[:12]])})
    return cell.save_votes(votes, about)


def _vote(models: Any, given: Labelled) -> VoteSet:
    inputs: Any = given.inputs
    if isinstance(inputs, np.ndarray) and inputs.dtype == np.uint8:
        from codeward.data import Samples

        inputs = Samples(np.ascontiguousarray(inputs), given.labels)
    scores = models.scores(inputs)
    said = models.votes(inputs)
    if scores is not None:
        # Half precision halves the file; votes are kept beside the scores, so no argmax depends on it.
        scores = np.clip(np.nan_to_num(scores, nan=_LOWEST_SCORE), _LOWEST_SCORE, 0).astype(np.float16)
    return VoteSet(said, given.labels, None, scores)


def write_record(cell: Cell, config: TrainConfig, seconds: float) -> Cell:
    """Count what the decoder makes of the clean inputs, and write the record."""
    clean, decoder = cell.clean, cell.decoder()
    assert clean.labels is not None
    plain = PluralityDecoder(n_classes=cell.n_classes).predict(clean.votes)
    own, paper = decoder.decode(observe(decoder, clean)), cell.decoder("bayes").decode(clean.votes)
    total = len(clean.labels)
    every = {
        "single_model": share(int((clean.votes == clean.labels[:, None]).sum()), clean.votes.size),
        "plurality": share(int((plain == clean.labels).sum()), total),
        "bayes": share(int((paper.labels == clean.labels).sum()), total),
        "alarms": share(int(paper.alarms().sum()), total),
    }
    said = {"right": share(int((own.labels == clean.labels).sum()), total)}
    said |= {"alarms": share(int(own.alarms().sum()), total)}
    figures = {
        "clean": {"all": every},
        "groups": [],
        "decoder": {"name": cell.decoding.name, "reads": decoder.needs, "clean": said, "groups": []},
    }
    about, code = cell.about, cell.code
    kept = {key: about[key] for key in ("created", "code_digest", "training", "versions", "hardware", "work")}
    shape = {"models": code.n_models, "users": code.n_users, "row_weight": code.row_weight}
    content = {**kept, "code": shape, "figures": figures}
    return cell.save_record(config, {**content, "seconds": round(seconds, 3)})


def write_card(cell: Cell, plan: GuardedPlan) -> Card:
    """Write ``card.json`` and ``card.html``: what was reached, what is guaranteed, and what that rests on."""
    data, roles, config = plan.data, plan.roles, plan.config
    movable = plan.movable
    classes = "declared" if data.schema.classes is not None else "those in the users' data"
    if data.schema.origin == "trusted":
        classes = "those of the trusted samples"
    kinds = {"declared": "declared", "trusted": "from trusted samples"}.get(data.schema.origin)
    kinds = kinds or f"read off the users' data by majority; {data.firm or 0} users cannot change it"
    trusted = f"trusted: {len(roles.validation)} samples of the operator fit confusion and threshold"
    own = (
        f"the users' own: {len(roles.validation)} held-out samples fit confusion and threshold, the "
        f"{plan.choice.n_attackers} users with most errors on a label left out; no certificate below rests on them"
    )
    assumed = {
        "validation": trusted if roles.trusted else own,
        "classes": classes,
        "encoders": "fitted by each sub-model on its own users" if plan.model.family == "tables" else "none",
        "columns": kinds if plan.model.family == "tables" else kinds.replace("it", "their size"),
        "users": "one account each; k counts accounts that collude" if not data.hashed else "none known: parts by hash",
    }
    card = make_card(
        cell,
        assumed,
        {"data": config.train.data_digest},
        title=config.dataset,
        warnings=movable,
        certifiable=not movable,
    )
    if not roles.trusted:
        # What the decoder in use keeps depends on confusion matrices that users had a hand in.
        card = replace(card, guarantees=tuple(said for said in card.guarantees if said.property != "undo"))
    facts = {"data": f"{len(data):,} samples of {data.n_users} users", "model": plan.model.name}
    card = replace(card, facts=facts | dict(card.facts))
    card.save(cell.folder.card_file)
    return card
