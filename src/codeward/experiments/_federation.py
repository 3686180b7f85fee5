"""A federated run: every cell trained by a federation, then counted as any other, into the same kind of folder."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from codeward._errors import InputError
from codeward.attacks import poison_users
from codeward.experiments._cells import count_cell, draw_attack
from codeward.experiments._federated_attacks import choose_targets, make_attackers, save_attackers
from codeward.experiments._runner import model_seed
from codeward.experiments._setting import Draw, Setting, deal_data, load_pair, prepare_setting
from codeward.federated import (
    CLIENT_APP,
    FederatedResult,
    FederatedSettings,
    FederationFolder,
    FederationPlan,
    simulate_federation,
    train_federated,
    train_update,
)
from codeward.runs import FederatedConfig, RunFolder, load_record, save_record
from codeward.training import Ensemble, ModelStore, TrainingSettings

Engine = Literal["flower", "reference"]

#: Simulated attackers live here, not in the honest client.
_CLIENT_APP = "codeward.experiments._federated_client:app"


def run_federated(
    config: FederatedConfig, folder: str | os.PathLike[str], engine: Engine = "flower", progress: bool = False
) -> Iterator[dict[str, Any]]:
    """Run every cell of a federated configuration, yielding its record; cells whose record is there are not run.

    Threat model: arbitrary. An attacker sends what it likes for each sub-model of its column, so that guarantees that
    assume one target in all hit models (deterministic) do not apply; see docs/federated.md.

    Parameters
    ----------
    config : FederatedConfig
    folder : path-like
        The run folder, of the same kind as `run_experiment` makes; while a cell trains with Flower, ``flower`` inside.
    engine : {"flower", "reference"}
        Both give the same bytes; ``flower`` goes through Flower's simulation runtime, one node a user.
    progress : bool
        Show rounds on stderr.
    """
    place = RunFolder(Path(folder))
    pair = load_pair(config)
    deal_data(config, 0, pair)
    code = place.open(config)
    store = ModelStore(config.store or place.path / "store")
    for repeat in range(config.repeats):
        setting = prepare_setting(config, repeat, pair, code)
        for n_attackers in config.attack.attackers:
            if not place.record(repeat, n_attackers).exists():
                begin = time.perf_counter()
                result, measured = train_cell(setting, n_attackers, place, engine, progress)
                about = {"engine": engine, "seconds": round(time.perf_counter() - begin, 3), "measured": measured}
                finish_cell(setting, n_attackers, result, place, store, about)
            yield load_record(place.record(repeat, n_attackers))


def plan_cell(setting: Setting) -> FederationPlan:
    """Return the plan of a repeat's federation; who attacks is no part of it."""
    config = setting.config
    assert isinstance(config, FederatedConfig)
    channels, height, width = (int(size) for size in setting.evaluation.images.shape[1:])
    return FederationPlan(
        code=setting.code,
        training=setting.training,
        settings=FederatedSettings(**config.federated.server_settings()),
        shape=(channels, height, width),
        seed=model_seed(setting),
    )


def train_cell(
    setting: Setting, n_attackers: int, place: RunFolder, engine: Engine, progress: bool = False
) -> tuple[FederatedResult, list[dict[str, Any]]]:
    """Train the federation of one repeat under one number of attackers.

    Returns the result and, with Flower, the seconds and the bytes of weights (sent, received) of every round.
    """
    config = setting.config
    assert isinstance(config, FederatedConfig)
    groups = draw_attack(setting, n_attackers)
    seed = [config.seed, setting.repeat, int(Draw.POISON)]
    users = poison_users(setting.users, groups, seed)
    # A GPU only where one process plays all users, and only when asked: its bytes are not those of the users' CPUs.
    device = "cuda" if config.training.device == "cuda" else "cpu"
    updates = make_attackers(config.federated, groups, setting.code, setting.users, setting.n_classes, seed, device)
    plan = plan_cell(setting)
    if engine == "reference":
        return train_federated(users, plan, updates, progress, partial(train_update, device=device)), []
    if device == "cuda":
        raise InputError("training.device: simulated Flower clients train on the CPU; use --engine reference for a GPU")
    work = place.path / "flower" / f"repeat{setting.repeat}-attackers{n_attackers}"
    values: dict[str, str] = {}
    if updates:
        attack = (work / "attack").resolve()
        save_attackers(attack, updates)
        values = {"attack-folder": str(attack)}
    client = _CLIENT_APP if updates else CLIENT_APP
    try:
        result = simulate_federation(users, plan, work, client, values, progress=progress)
    finally:
        # A copy of every user's data has no place in a run folder; logs stay where it failed.
        for name in ("data", "attack"):
            shutil.rmtree(work / name, ignore_errors=True)
    measured = [
        {name: line[name] for name in ("seconds", "sent", "received")}
        for line in FederationFolder(work / "server").read_rounds()
    ]
    shutil.rmtree(work)
    with suppress(OSError):
        work.parent.rmdir()
    return result, measured


def finish_cell(
    setting: Setting,
    n_attackers: int,
    result: FederatedResult,
    place: RunFolder,
    store: ModelStore,
    about: dict[str, Any],
) -> None:
    """Put the models of a federation into the store, ask them, and write vote files and (last) the record.

    Parameters
    ----------
    about : dict
        More for the record's ``federated`` part, such as the engine.
    """
    config, begin = setting.config, time.perf_counter()
    assert isinstance(config, FederatedConfig)
    for key, arrays in zip(result.keys, result.models, strict=True):
        weights = {name: torch.tensor(array) for name, array in arrays.items()}
        store.save_weights(key, weights, {"federated": config.federated.model_dump(mode="json")})
    ensemble = _gather(setting, result.keys, store, len(set(result.keys)))
    columns = {user: user for user in range(config.users)}
    counted = count_cell(setting, n_attackers, ensemble, place, setting.code, columns)
    if config.federated.behaviour == "split-targets":
        for figures, group in zip(counted["figures"]["groups"], draw_attack(setting, n_attackers), strict=True):
            figures["targets"] = list(choose_targets(group, setting.code.n_models, setting.n_classes))
    federated = {
        "threat": "arbitrary",
        "keys": list(result.keys),
        "rounds": [report.to_json() for report in result.rounds],
        **about,
    }
    save_record(
        {
            "repeat": setting.repeat,
            "n_attackers": n_attackers,
            "seed": config.seed,
            "config": config.described(),
            "config_digest": config.digest,
            **counted,
            "federated": federated,
            "seconds": round(time.perf_counter() - begin, 3),
        },
        place.record(setting.repeat, n_attackers),
    )


def find_models(setting: Setting, n_attackers: int, place: RunFolder) -> Ensemble:
    """Find the models of a federated cell in the run's store; its record names their keys.

    Nothing else could: a key is the hash of every update that counted, and those are gone.
    """
    record = load_record(place.record(setting.repeat, n_attackers))
    keys = tuple(record["federated"]["keys"])
    # The recipe of the record: a deployed federation may have trained by another than the data set's.
    setting = replace(setting, training=TrainingSettings(**record["training"]))
    store = ModelStore(setting.config.store or place.path / "store")
    if not all(store.holds(key) for key in keys):
        raise InputError(
            f"{place.path}: the store lacks sub-models of repeat {setting.repeat} (moved or damaged); delete "
            f"the record, and codeward federate simulate {place.path / 'config.yaml'} -o {place.path} trains them again"
        )
    return _gather(setting, keys, store, 0)


def _gather(setting: Setting, keys: tuple[str, ...], store: ModelStore, trained: int) -> Ensemble:
    distinct, shape = len(set(keys)), plan_cell(setting).shape
    cpu = torch.device("cpu")
    return Ensemble(keys, trained, distinct - trained, setting.training, shape, cpu, "float32", {}, store)
