"""From one's own data to a folder of guarded models, and to the same without some users: ``train`` and ``revoke``."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._progress import Shown
from codeward.certificates import certify
from codeward.codes import count_attacker_sets
from codeward.data import Schema
from codeward.decoding import promise_rate
from codeward.estimators._code_choice import CodeChoice
from codeward.estimators._family import read_settings, train_family
from codeward.estimators._guarded_plan import EXTRAPOLATION, GuardedPlan, plan_training
from codeward.estimators._roles import vote_roles
from codeward.report import write_card as write_page
from codeward.runs import (
    Card,
    CardCurve,
    Cell,
    Revocation,
    RunFolder,
    TrainConfig,
    count_votes,
    describe_machine,
    make_card,
    say_planted,
    say_uncovered,
    share,
)
from codeward.training import ModelPlan, ModelStore, plan_models

#: Places of files in the configuration, and the folder of a run that keeps those that came from memory.
PLACES, KEPT = ("data", "test", "trusted", "columns", "weights", "model"), "data"
#: What guarantees suppose about users.
_USERS = (
    "those in the data, one account each: k counts accounts that collude; who hands in nothing at all changes the code "
    "of the others, which no certificate covers"
)
#: Attacks (sets, targets, inputs) up to which the decoder is certified: some seconds.
_AFFORDABLE = 2_000_000


def train_guarded(plan: GuardedPlan, folder: str | Path, progress: Shown = None) -> tuple[Cell, Card, bool]:
    """Train what the folder lacks, let it vote, count, and write the card; return whether something was made.

    Interrupted at any moment, the same call goes on where it was: finished sub-models are in the store.

    Parameters
    ----------
    plan : GuardedPlan
        From `plan_training`.
    folder : path-like
        A run folder of this very plan, or none yet.
    progress : Progress or bool, optional
        Show progress on stderr.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.estimators import plan_training
    >>> rows = {"x": [0.0, 1.0] * 20, "y": ["no", "yes"] * 20, "user": [f"u{place // 8}" for place in range(40)]}
    >>> config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train={"model": "logistic"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell, card, made = train_guarded(plan_training(config, rows), folder)
    >>> made, card.accuracy, cell.code.users[:2]
    (True, {'count': 5, 'of': 5}, ('u0', 'u1'))
    """
    place = RunFolder(folder)
    code = place.open(plan.config, plan.choice.code)
    if code.users != plan.choice.code.users:
        raise InputError(f"{place.path}: its code is of other users; choose another folder with -o, or --force")
    cell, begin = Cell(place, 0, 0), time.perf_counter()
    store = ModelStore(cell.store)
    plans = plan_models(code, plan.config.seed)
    if cell.is_whole and cell.has_record and place.card_file.exists() and store.holds_all(cell.keys, cell.committee):
        return cell, Card.load(place.card_file), False
    models = train_family(plan, plans, store, progress)
    return *write_folder(cell, plan, models, begin), True


def write_folder(
    cell: Cell, plan: GuardedPlan, models: Any, begin: float, about: Mapping[str, Any] | None = None, **more: Any
) -> tuple[Cell, Card]:
    """Let trained models vote, count, and write all that a folder says of them; ``begin`` is when training began.

    ``about`` goes to what describes the votes, ``more`` to the record.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.estimators import load_sub_models, plan_training
    >>> rows = {"x": [0.0, 1.0] * 20, "y": ["no", "yes"] * 20, "user": [f"u{place // 8}" for place in range(40)]}
    >>> config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train={"model": "logistic"})
    >>> plan = plan_training(config, rows)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell, _, _ = train_guarded(plan, folder)
    ...     _, card = write_folder(cell, plan, load_sub_models(cell), time.perf_counter())
    >>> card.accuracy
    {'count': 5, 'of': 5}
    """
    cell = write_cell(cell, plan, models, about or {})
    cell = cell.save_record(
        plan.config, {**count_votes(cell), **more, "seconds": round(time.perf_counter() - begin, 3)}
    )
    return cell, write_card(cell, plan)


def write_cell(cell: Cell, plan: GuardedPlan, models: Any, more: Mapping[str, Any]) -> Cell:
    """Write vote files and what they are."""
    data, roles, model = plan.data, plan.roles, plan.model
    votes = vote_roles(plan, models, cell.code)
    networks = model.settings is not None
    about: dict[str, Any] = {
        "classes": data.n_classes,
        "training": model.settings.to_json() if model.settings is not None else {},
        "groups": [],
        "family": model.family,
        "model": model.name,
        "inputs": model.form,
        "schema": data.schema.to_json(),
        "firm": data.firm,
        "hashed": int(data.hashed),
        "class_names": list(data.class_names),
        "keys": list(models.keys),
        **describe_machine(str(models.device) if networks else "cpu"),
        "work": {"models": models.n_models, "trained": models.trained, "reused": models.n_models - models.trained},
    }
    if (counts := plan.count_classes(cell.code)) is not None:
        about["class_counts"] = counts
    if model.backbone is not None:
        told = {"backbone": model.backbone.name, "digest": model.backbone.digest, "trust": model.backbone.trust}
        about["heads"] = {**told, "ridge": model.ridge, "form": models.form}
    if data.schema.kind == "image":
        about["shape"] = list(data.inputs.shape[1:])  # type: ignore[union-attr]
        _, first = np.unique(roles.clean.labels, return_index=True)
        cell.save_gallery({"clean": (roles.clean.inputs[first[:12]], roles.clean.labels[first[:12]])})
    return cell.save_votes(votes, about | dict(more))


def _describe(backbone: Any) -> str:
    words = {"nobody to trust": "a pure function, nobody trained it and nobody is trusted"}
    trust = words.get(backbone.trust, "frozen, trained by others who are trusted; it never sees the users' data")
    return f"{backbone.name} (sha256 {backbone.digest[:16]}): {trust}"


def _say_promise(n_inputs: int, rate: float) -> str:
    """Say what rate of false alarms is promised, and from how many inputs."""
    promised = promise_rate(n_inputs, rate)
    said = (
        f"at most {show_percent(promised)} of clean inputs like the {n_inputs} validation inputs raise one, on average"
    )
    if promised <= rate:
        return said
    return (
        f"{said}: too few to promise {show_percent(rate)}, so votes must be {1 / rate:.3g} times likelier under attack"
    )


def write_card(cell: Cell, plan: GuardedPlan) -> Card:
    """Write ``card.json`` and ``card.html``: what was reached, what is guaranteed, and what that rests on."""
    data, roles, config = plan.data, plan.roles, plan.config
    movable = plan.movable
    classes = "declared" if data.schema.classes is not None else "those in the users' data"
    if data.schema.origin == "trusted":
        classes = "those of the trusted samples"
    kinds = {"declared": "declared", "trusted": "from trusted samples"}.get(data.schema.origin)
    if kinds is None and data.firm is None:
        kinds = "as the format has them; nothing is read off the users' data"
    kinds = kinds or f"read off the users' data by majority; {data.firm} users cannot change it"
    trusted = f"trusted: {len(roles.validation)} samples of the operator fit confusion and threshold"
    k = plan.choice.n_attackers
    own = (
        f"the users' own: {len(cell.validation.votes)} held-out samples fit confusion, decoder and threshold; the "
        f"{f'{k} users' if k > 1 else 'user'} whose labels the sub-models without them contradict most "
        f"{'are' if k > 1 else 'is'} left out, of the figures too. Alarms rest on this; no certificate on the card does"
    )
    assumed = {
        "validation": trusted if roles.trusted else own,
        "classes": classes,
        "encoders": "fitted by each sub-model on its own users" if plan.model.family == "tables" else "none",
        "columns": kinds if plan.model.family == "tables" else kinds.replace("change it", "change their size"),
        "backbone": "none" if plan.model.backbone is None else _describe(plan.model.backbone),
        "users": "none known: parts by hash" if data.hashed else _USERS,
    }
    if cell.decoding.name == "calibrated":
        assumed["alarms"] = _say_promise(len(cell.validation.votes), cell.decoding.false_alarm_rate)
    if said := say_planted(cell):
        assumed["validation"] += f". Left out: {said}"
    if said := say_uncovered(cell):
        assumed["left out"] = f"{said}; against these the calibrated decoder's certificate says nothing"
    if plan.extrapolates:
        assumed["values"] = EXTRAPOLATION
    elif any(column.range is not None for column in data.schema.columns):
        assumed["values"] = "numbers are clipped to the ranges that the schema declares"
    card = make_card(
        cell,
        assumed,
        {"data": config.train.data_digest},
        title=config.dataset,
        warnings=movable,
        certifiable=not movable,
    )
    if not roles.trusted or movable:
        # What the decoder in use keeps depends on confusion matrices, or models, that users had a hand in.
        card = replace(card, guarantees=tuple(said for said in card.guarantees if said.property != "undo"))
    elif cell.threat == "deterministic":
        card = replace(card, certified=(*card.certified, *_certify_trusted(cell, plan.choice.n_attackers)))
    # Of a federation only the numbers of samples are here.
    pairs = zip(data.parts, roles.training, strict=True)
    handed_in = sum(max(own.size, used.size) for own, used in pairs if used.size)
    facts = {"data": f"{handed_in:,} samples of {cell.code.n_users} users", "model": plan.model.name}
    card = replace(card, facts=facts | dict(card.facts))
    write_page(card, cell.folder.path / "card.html")
    card.save(cell.folder.card_file)  # last: with it the folder is whole
    return card


def _certify_trusted(cell: Cell, n_attackers: int) -> list[CardCurve]:
    """Certify the paper's decoder under *deterministic*: its confusion matrices are of trusted samples."""
    clean, decoder = cell.clean, cell.decoder("bayes")
    sets = count_attacker_sets(cell.code.n_users, n_attackers)
    if sets * cell.n_classes * len(clean.votes) > _AFFORDABLE:
        return []
    found = certify(clean.votes, cell.code, threat="deterministic", decoder=decoder, max_attackers=n_attackers)
    assert clean.labels is not None
    right = found.labels == clean.labels
    held = [int((right & (found.radius >= k)).sum()) for k in range(n_attackers + 1)]
    return [CardCurve("bayes", "deterministic", tuple(share(count, len(right)) for count in held))]


def retrain_without(
    cell: Cell, old: RunFolder, revocation: Revocation, plans: Sequence[ModelPlan], store: ModelStore, progress: Shown
) -> Cell:
    """Make the cell of a trained folder again without the revoked users.

    Exact unlearning: the revoked users' samples are taken out before anything is trained, validated or measured, so
    that every sub-model is the one that training from scratch without them gives.

    Parameters
    ----------
    cell : Cell
        Of the new folder, which has its code and configuration.
    old : RunFolder
        The folder before.
    revocation : Revocation
    plans : sequence of ModelPlan
        What is left to train, in the numbers of the original users.
    store : ModelStore
        Of the new folder.
    progress : Progress or bool, optional

    Examples
    --------
    Where the users' data are elsewhere now, or others, it says so; `codeward.experiments.revoke_users` calls it.

    >>> import tempfile
    >>> from codeward.estimators import plan_training
    >>> from codeward.experiments import revoke_users
    >>> from codeward.runs import foresee_revocation
    >>> rows = [f"{place % 2},{place % 2},u{place // 8}" for place in range(40)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data, run = Path(folder, "own.csv"), Path(folder, "run")
    ...     _ = data.write_text("\\n".join(["x,y,user", *rows]))
    ...     told = {"data": str(data), "model": "logistic"}
    ...     config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train=told)
    ...     cell, *_ = train_guarded(plan_training(config), run)
    ...     [after] = revoke_users(run, foresee_revocation(run, ["u3"]), Path(folder, "without"))
    >>> cell.code.n_users, after["code"]["users"], after["work"]["reused"] > 0
    (5, 4, True)
    """
    begin = time.perf_counter()
    plan = reopen_plan(old, revocation)
    # The new folder says where the data are now; where things are is no part of what a run is.
    config = cell.folder.config
    assert isinstance(config, TrainConfig)
    section = config.train.model_copy(update={"data": plan.config.train.data})
    cell.folder.save_config(config.model_copy(update={"train": section}))
    models = train_family(plan, plans, store, progress)
    gone = {"users": revocation.names(revocation.revoked), "state": revocation.digest}
    return write_folder(cell, plan, models, begin, revoked=gone)[0]


def reopen_plan(folder: RunFolder, revocation: Revocation) -> GuardedPlan:
    """Read the data of a trained folder again, check that they are those, and take the revoked users' samples out."""
    config, cell = folder.config, Cell(folder, 0, 0)
    assert isinstance(config, TrainConfig)
    if not config.train.data:
        raise InputError(
            f"{folder.path}: its data came from memory and were not kept, so nothing can be trained again; "
            "save the classifier with its data, or fit anew without the user"
        )
    config = _find_files(config, folder.path)
    original = revocation.original
    choice = CodeChoice(original, config.code.attackers, config.code.guarantee, config.code.margin, ())
    schema, firm = None, cell.about.get("firm", "")
    if firm != "":  # what was read off the users' data, or declared, once and for all
        schema = Schema.from_json(cell.about.get("schema"), f"{folder.path}: its schema")
    settings = read_settings(cell) if cell.about.get("family") == "networks" else None
    plan = plan_training(config, model=settings, schema=schema, code=choice)
    for what in ("data_digest", "trusted_digest", "test_digest"):
        if getattr(plan.config.train, what) != getattr(config.train, what):
            told = what.removesuffix("_digest")
            raise InputError(
                f"{folder.path}: the {told} at {getattr(config.train, told)} are not those it was trained on; "
                "restore them"
            )
    data = plan.data if firm == "" else replace(plan.data, firm=firm)
    return replace(plan, data=data, roles=plan.roles.without(set(revocation.revoked)))


def _find_files(config: TrainConfig, folder: Path) -> TrainConfig:
    """Say where files are that were kept in the folder (or in that of which it is a state), should it have moved."""
    near = [place / KEPT for place in (folder.resolve(), *folder.resolve().parents[:2])]
    near.append(Path(config.train.data).parent)
    found = {}
    for place in PLACES:
        path = getattr(config.train, place)
        if path and not Path(path).exists():
            found[place] = next(
                (str(home / Path(path).name) for home in near if (home / Path(path).name).exists()), path
            )
    return config.model_copy(update={"train": config.train.model_copy(update=found)})
