"""Carrying out a revocation: train what the revoked users reached again, keep the rest, and count anew."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward._files import write_atomic
from codeward._progress import Shown
from codeward.estimators import load_sub_models, plan_collected, retrain_without, write_folder
from codeward.experiments._federated_run import copy_round, list_sizes
from codeward.experiments._runner import find_device, holds_models, vote_cell
from codeward.experiments._setting import Setting, keep_training, load_pair, prepare_setting
from codeward.federated import OneRound
from codeward.runs import (
    Cell,
    Outlook,
    Revocation,
    RunConfig,
    RunFolder,
    TrainConfig,
    count_votes,
    list_cells,
    load_revocation,
)
from codeward.training import Ensemble, ModelPlan, ModelStore, drop_users, plan_models, train_ensemble
from codeward.training.heads import HeadSet, StatisticsSet


class InheritingStore(ModelStore):
    """A store of its own that takes over, byte for byte, what it is asked for and an older store holds.

    Nothing else of the older one is read: what saw a revoked user has another key and never gets here, and the older
    store can be deleted afterwards.
    """

    def __init__(self, root: str | os.PathLike[str], parent: ModelStore) -> None:
        super().__init__(root)
        self.parent = parent

    def holds(self, key: str) -> bool:
        """Tell whether there is a verified model under ``key``, here or in the older store; it is here afterwards."""
        if not super().holds(key) and self.parent.holds(key):
            source, target = self.parent._folder(key), self._folder(key)
            # The JSON last: it makes the entry whole.
            names = sorted((file.name for file in source.glob(f"{key}.*")), key=lambda name: name.endswith(".json"))
            for name in names:
                if not name.startswith(f"{key}.scores."):
                    content = (source / name).read_bytes()
                    write_atomic(target / name, lambda out, content=content: out.write(content))  # type: ignore[misc]
        return super().holds(key)


def name_output(folder: str | os.PathLike[str], outlook: Outlook) -> Path:
    """Return where the new state goes by default: ``revoked/<users>`` inside the run folder.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.codes import Code
    >>> from codeward.runs import foresee_revocation
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]]).save(RunFolder(folder).code_file)
    ...     name_output("runs/digits", foresee_revocation(folder, ["0", "2"])).as_posix()
    'runs/digits/revoked/0-2'
    """
    name = "-".join(outlook.after.names(outlook.after.steps[-1]))
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}", name)
    return RunFolder(folder).revoked / (name if plain else outlook.after.digest[:16])


def revoke_users(
    folder: str | os.PathLike[str], outlook: Outlook, output: str | os.PathLike[str], progress: Shown = None
) -> Iterator[dict[str, Any]]:
    """Make a new state of a run without the revoked users, yielding the record of each of its cells.

    Exact unlearning: every sub-model of the new state is the one that training from scratch without these users gives.
    Those that never saw them are taken over byte for byte, under the same key; those that did are trained again without
    their data (which are not even loaded into training); those left without users are gone. Rows that become equal by
    the revocation are numbered with the untouched ones first, so that these keep their seeds.

    The new state is a whole run folder: code, configuration, its own store, votes and records, each of which says who
    was revoked. The old folder is left as it is, save for a note in its ``revoked`` where the new one is elsewhere, and
    still holds models that saw the revoked users: delete it when they must be gone. Interrupted, the same call goes on
    where it was.

    Parameters
    ----------
    folder : path-like
        The run folder, or a state made by an earlier revocation.
    outlook : Outlook
        From `foresee_revocation` of the same folder.
    output : path-like
        Folder of the new state.
    progress : Progress or bool, optional
        Show training progress on stderr.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.experiments import run_experiment
    >>> from codeward.runs import foresee_revocation
    >>> few = {"users": 6, "code": {"name": "toy-d"}, "attack": {"attackers": [0]}, "training": {"epochs": 1}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [before] = run_experiment(RunConfig(**few, decoder={"name": "bayes", "max_attackers": 1}), folder)
    ...     [after] = revoke_users(folder, foresee_revocation(folder, ["3"]), Path(folder, "without"))
    >>> before["code"]["users"], after["code"]["users"], after["revoked"]["users"]
    (6, 5, ['3'])
    """
    old, new = RunFolder(Path(folder)), RunFolder(Path(output))
    cells = list_cells(old)
    device = find_device(cells)
    config = old.config
    _open_state(new, outlook.after, config)
    outlook.after.leave_note(old, new)
    store = InheritingStore(new.path / "store", ModelStore(cells[0].store))
    own = isinstance(config, TrainConfig)
    pair = None if own else load_pair(config)
    setting: Setting | None = None
    for cell in cells:
        made = Cell(new, cell.repeat, cell.n_attackers)
        finished = made.has_record and holds_models(made, store)
        if own and not finished and cell.record.get("federated"):
            made = _revoke_from_round(made, old, outlook.after, store)
        elif own and not finished:
            plans = plan_remaining(outlook.after, config.seed)
            made = retrain_without(made, old, outlook.after, plans, store, progress)
        elif not finished:
            assert pair is not None
            begin = time.perf_counter()
            if setting is None or setting.repeat != cell.repeat:
                setting = keep_training(prepare_setting(config, cell.repeat, pair, outlook.after.original), old)
            users = setting.poisoned(cell.n_attackers)
            for user in outlook.after.revoked:
                users[user] = users[user].take(np.zeros(0, dtype=np.int64))
            seed, engine = setting.model_seed, config.training.engine
            plans = plan_remaining(outlook.after, seed)
            ensemble = train_ensemble(users, plans, setting.training, seed, store, device or "auto", engine, progress)
            changes = _recount(setting, made, outlook.after, ensemble)
            changes["seconds"] = round(time.perf_counter() - begin, 3)
            made = made.save_record(config, cell.record | changes)
        yield made.record


def _open_state(new: RunFolder, revocation: Revocation, config: RunConfig) -> None:
    if new.revocation_file.exists():
        if load_revocation(new.path) != revocation:
            raise InputError(f"{new.path}: holds another state of a run; choose another folder with -o")
        return
    if new.path.exists() and any(new.path.iterdir()):
        raise InputError(f"{new.path}: is not empty; choose another folder with -o")
    # The configuration splits the data, so it keeps the original number of users; models go to the state's own store.
    new.save_config(config.model_copy(update={"store": None}))
    revocation.code.save(new.code_file)
    revocation.save(new.path)


def _recount(setting: Setting, cell: Cell, revocation: Revocation, ensemble: Ensemble) -> dict[str, Any]:
    """Let the new models vote, and return what changes in the record."""
    columns = {user: column for column, user in enumerate(revocation.columns)}
    counted = count_votes(vote_cell(setting, cell, ensemble, columns))
    for figures, group in zip(counted["figures"]["groups"], setting.attack(cell.n_attackers), strict=True):
        figures["revoked"] = revocation.names([user for user in group.attackers if user not in columns])
    return {**counted, "revoked": {"users": revocation.names(revocation.revoked), "state": revocation.digest}}


def plan_remaining(revocation: Revocation, seed: int) -> tuple[ModelPlan, ...]:
    """Return the plan of every row of the code that is left, in the numbers of the original users."""
    plans = plan_models(revocation.original, seed)
    for step in revocation.steps:
        plans = drop_users(plans, step, seed)
    return plans


def _revoke_from_round(cell: Cell, old: RunFolder, revocation: Revocation, store: ModelStore) -> Cell:
    """Make the cell of a federation in one round again without the revoked users, whose statistics are subtracted.

    Exact unlearning: the heads have the bytes of a round in which these users sent nothing (Proposition 30 of
    docs/theory.md); heads that did not learn from them are taken over.

    Parameters
    ----------
    cell : Cell
        Of the new folder, which has its code and configuration.
    old : RunFolder
        The folder before.
    revocation : Revocation
    store : ModelStore
        Of the new folder.
    """
    begin, config, cell_before = time.perf_counter(), old.config, Cell(old, 0, 0)
    assert isinstance(config, TrainConfig)
    section, columns = config.train, load_revocation(old.path).columns
    gone = [place for place, user in enumerate(columns) if user in revocation.revoked]
    touched = cell_before.code.matrix[:, gone].any(axis=1)
    needed = np.flatnonzero(cell_before.code.matrix[touched].any(axis=0))
    round_ = OneRound.load(old.path, [columns[place] for place in needed])
    sent, heads = round_.statistics.users, load_sub_models(cell_before)
    assert isinstance(heads, HeadSet)
    heads = replace(heads, statistics=StatisticsSet(tuple(sent[user] for user in columns))).revoke(*gone)
    federated, agreed = cell_before.record["federated"], round_.plan
    told = dict(federated["rounds"][0])
    left = {agreed.name(user) for user in revocation.columns}
    told["counted"] = {name: size for name, size in told["counted"].items() if name in left}
    test = agreed.read_samples(section.trusted, section.label, section.text, config.data_dir)
    plan = plan_collected(test, revocation.original, heads, section, list_sizes(agreed, told))
    if plan.config.train.trusted_digest != section.trusted_digest:
        raise InputError(f"{old.path}: the samples at {section.trusted} are not those it was measured on; restore them")
    heads.save(store)
    copy_round(old.path, cell.folder.path, told["counted"])
    names = {"users": revocation.names(revocation.revoked), "state": revocation.digest}
    about = federated | {"rounds": [told]}
    return write_folder(cell, replace(plan, config=config), heads, begin, federated=about, revoked=names)[0]
