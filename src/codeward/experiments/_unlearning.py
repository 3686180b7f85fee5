"""Carrying out a revocation: train what the revoked users reached again, keep the rest, and count anew."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from codeward._errors import InputError
from codeward._files import write_atomic, write_text_atomic
from codeward.attacks import poison_users
from codeward.experiments._cells import count_cell, draw_attack
from codeward.experiments._runner import model_seed
from codeward.experiments._setting import Draw, Setting, load_pair, prepare_setting
from codeward.runs import (
    Outlook,
    Revocation,
    RunConfig,
    RunFolder,
    load_config,
    load_record,
    load_records,
    load_revocation,
    save_record,
)
from codeward.training import Ensemble, ModelPlan, ModelStore, drop_users, plan_models, train_ensemble


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
    """Return where the new state goes by default: ``revoked/<users>`` inside the run folder."""
    name = "-".join(outlook.after.names(outlook.after.steps[-1]))
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}", name)
    return Path(folder) / "revoked" / (name if plain else outlook.after.digest[:16])


def revoke_users(
    folder: str | os.PathLike[str], outlook: Outlook, output: str | os.PathLike[str], progress: bool = False
) -> Iterator[dict[str, Any]]:
    """Make a new state of a run without the revoked users, yielding the record of each of its cells.

    Exact unlearning: every sub-model of the new state is the one that training from scratch without these users gives.
    Those that never saw them are taken over byte for byte, under the same key; those that did are trained again without
    their data (which are not even loaded into training); those left without users are gone. Rows that become equal by
    the revocation are numbered with the untouched ones first, so that these keep their seeds.

    The new state is a whole run folder: code, configuration, its own store, votes and records, each of which says who
    was revoked. The old folder is left as it is and still holds models that saw the revoked users: delete it when they
    must be gone. Interrupted, the same call goes on where it was.

    Parameters
    ----------
    folder : path-like
        The run folder, or a state made by an earlier revocation.
    outlook : Outlook
        From `foresee_revocation` of the same folder.
    output : path-like
        Folder of the new state.
    progress : bool
        Show training progress on stderr.
    """
    old, new = RunFolder(Path(folder)), RunFolder(Path(output))
    records = load_records(old.path)
    if not records:
        raise InputError(f"{old.path}: no finished records; let codeward run finish first")
    device = _find_device(records)
    config = load_config(old.path / "config.yaml")
    _open_state(new, outlook.after, config)
    parent = ModelStore(config.store or old.path / "store")
    store = InheritingStore(new.path / "store", parent)
    pair = load_pair(config)
    for record in records:
        repeat, n_attackers = int(record["repeat"]), int(record["n_attackers"])
        file = new.record(repeat, n_attackers)
        if not file.exists():
            begin = time.perf_counter()
            setting = prepare_setting(config, repeat, pair, outlook.after.original)
            ensemble = _train_without(setting, n_attackers, outlook.after, store, device, progress)
            changes = _recount(setting, n_attackers, outlook.after, ensemble, new)
            changes["seconds"] = round(time.perf_counter() - begin, 3)
            save_record({key: value for key, value in record.items() if key != "format"} | changes, file)
        yield load_record(file)


def _find_device(records: list[dict[str, Any]]) -> str:
    """Return the device the run was trained on; elsewhere even the untouched models would come out different."""
    kinds = {str(record["hardware"]["device"]).partition(":")[0] for record in records}
    if len(kinds) > 1:
        raise InputError(f"the run was trained on {' and '.join(sorted(kinds))}; revoke in a run made on one device")
    device = kinds.pop()
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("the run was trained on a GPU, which this machine lacks: models trained here would be others")
    return device


def _open_state(new: RunFolder, revocation: Revocation, config: RunConfig) -> None:
    if new.revocation_file.exists():
        if load_revocation(new.path) != revocation:
            raise InputError(f"{new.path}: holds another state of a run; choose another folder with -o")
        return
    if new.path.exists() and any(new.path.iterdir()):
        raise InputError(f"{new.path}: is not empty; choose another folder with -o")
    # The configuration deals the data, so it keeps the original number of users; models go to the state's own store.
    write_text_atomic(new.path / "config.yaml", config.model_copy(update={"store": None}).to_yaml())
    revocation.code.save(new.path / "code.json")
    revocation.save(new.path)


def _train_without(
    setting: Setting, n_attackers: int, revocation: Revocation, store: ModelStore, device: str, progress: bool
) -> Ensemble:
    config = setting.config
    groups = draw_attack(setting, n_attackers)
    users = poison_users(setting.users, groups, seed=[config.seed, setting.repeat, int(Draw.POISON)])
    for user in revocation.revoked:
        users[user] = users[user].take(np.zeros(0, dtype=np.int64))
    seed = model_seed(setting)
    engine = config.training.engine
    return train_ensemble(
        users, plan_remaining(revocation, seed), setting.training, seed, store, device, engine, progress
    )


def _recount(
    setting: Setting, n_attackers: int, revocation: Revocation, ensemble: Ensemble, place: RunFolder
) -> dict[str, Any]:
    """Ask the new models, write their votes, and return what changes in the record."""
    columns = {user: column for column, user in enumerate(revocation.columns)}
    counted = count_cell(setting, n_attackers, ensemble, place, revocation.code, columns)
    for figures, group in zip(counted["figures"]["groups"], draw_attack(setting, n_attackers), strict=True):
        figures["revoked"] = revocation.names([user for user in group.attackers if user not in columns])
    return {**counted, "revoked": {"users": revocation.names(revocation.revoked), "state": revocation.digest}}


def plan_remaining(revocation: Revocation, seed: int) -> tuple[ModelPlan, ...]:
    """Return the plan of every row of the code that is left, in the numbers of the original users."""
    plans = plan_models(revocation.original, seed)
    for step in revocation.steps:
        plans = drop_users(plans, step, seed)
    return plans
