"""Federated runs: every cell trained by a federation, then counted as any other, into the same kind of folder.

`run_federated` simulates one; `collect_federation` makes the folder from the models of a consortium, with votes on data
the server holds.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from codeward._errors import InputError
from codeward._files import read_bytes, write_atomic
from codeward._progress import Shown
from codeward.estimators import save_heads
from codeward.experiments._malicious_clients import ATTACKER_APP, choose_targets, make_attackers, save_attackers
from codeward.experiments._runner import vote_cell
from codeward.experiments._setting import Draw, Setting, load_pair, prepare_setting, split_data
from codeward.federated import (
    ONE_ROUND_FILE,
    STATISTICS,
    FederatedResult,
    FederatedSettings,
    FederationFolder,
    FederationPlan,
    OneRoundPlan,
    SimulatedFederation,
    load_one_round,
    simulate_federations,
    train_federated,
    train_update,
)
from codeward.runs import (
    AttackSection,
    Cell,
    CodeSection,
    FederatedConfig,
    FederatedSection,
    RunFolder,
    TrainingSection,
    TrainSection,
    count_votes,
    load_record,
    measure_consensus,
)
from codeward.training import Ensemble, ModelStore, TrainingSettings

Engine = Literal["flower", "reference"]

#: How many epochs a user trains and in which number format is the federation's own business, not the recipe's; how
#: pixels are scaled is the plan's, whatever the mean of these data.
_NOT_COMPARED = ("epochs", "precision", "mean", "std")


def run_federated(
    config: FederatedConfig, folder: str | os.PathLike[str], engine: Engine = "flower", progress: Shown = None
) -> Iterator[dict[str, Any]]:
    """Run every cell of a federated configuration, yielding its record; cells whose record is there are not run.

    Threat model: arbitrary. An attacker sends what it likes for each sub-model of its column, so that guarantees that
    assume one target in all hit models (deterministic) do not apply; see docs/federated.md. Interrupted at any moment,
    the same call goes on after the last round that was finished.

    Parameters
    ----------
    config : FederatedConfig
    folder : path-like
        The run folder, of the same kind as `run_experiment` makes; while cells train, with ``training`` inside.
    engine : {"flower", "reference"}
        Both give the same bytes; ``flower`` goes through Flower's simulation runtime, one node a user.
    progress : Progress or bool, optional
        Show rounds on stderr.

    Examples
    --------
    >>> next(run_federated(FederatedConfig(dataset="nowhere.npz"), "runs/nowhere"))
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: nowhere.npz: no such file
    """
    place = RunFolder(Path(folder))
    pair = load_pair(config)
    parts = split_data(config, 0, pair)
    code = place.open(config)
    store = ModelStore(place.store)
    for repeat in range(config.repeats):
        setting = prepare_setting(config, repeat, pair, code, None if repeat else parts)
        cells = {size: Cell(place, repeat, size) for size in config.attack.attackers}
        there = [size for size, cell in cells.items() if cell.has_record and cell.has_keys]
        whole = {size for size in there if all(map(store.holds, cells[size].keys))}
        missing = [size for size in cells if size not in whole]
        begin = time.perf_counter()
        trained = train_cells(setting, missing, place, engine, progress) if missing else {}
        seconds = round((time.perf_counter() - begin) / max(1, len(trained)), 3)
        for n_attackers in config.attack.attackers:
            if n_attackers in trained:
                result, measured = trained[n_attackers]
                about = {"engine": engine, "seconds": seconds, "measured": measured}
                finish_cell(setting, n_attackers, result, place, store, about)
            elif not cells[n_attackers].is_whole:  # of an older version, or votes are gone: the models vote again
                again = replace(setting, training=TrainingSettings(**cells[n_attackers].record["training"]))
                _vote(again, cells[n_attackers], _gather(again, cells[n_attackers].keys, store, 0))
            yield load_record(place.record(repeat, n_attackers))
        shutil.rmtree(_work_folder(place, repeat), ignore_errors=True)


def _work_folder(place: RunFolder, repeat: int) -> Path:
    return place.path / "training" / f"repeat{repeat}"


def plan_cell(setting: Setting) -> FederationPlan:
    """Return the plan of a repeat's federation; who attacks is no part of it.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> config = FederatedConfig(dataset="digits", users=6)
    >>> setting = prepare_setting(config, 0, load_pair(config), Code([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]))
    >>> plan_cell(setting).shape, plan_cell(setting).settings.rounds
    ((1, 8, 8), 10)
    """
    config = setting.config
    assert isinstance(config, FederatedConfig)
    channels, height, width = (int(size) for size in setting.evaluation.images.shape[1:])
    return FederationPlan(
        code=setting.code,
        training=setting.training,
        settings=FederatedSettings(**config.federated.server_settings()),
        shape=(channels, height, width),
        seed=setting.model_seed,
    )


def train_cells(
    setting: Setting, sizes: Sequence[int], place: RunFolder, engine: Engine, progress: Shown = None
) -> dict[int, tuple[FederatedResult, list[dict[str, Any]]]]:
    """Train the federations of one repeat, one for each number of attackers.

    Returns each result and, with Flower, the seconds and the bytes of weights (sent, received) of every round. Flower,
    Ray and the client processes are started once for all of them.
    """
    config, plan, work = setting.config, plan_cell(setting), _work_folder(place, setting.repeat)
    assert isinstance(config, FederatedConfig)
    # A GPU only where one process plays all users, and only when asked: its bytes are not those of the users' CPUs.
    device = "cuda" if config.training.device == "cuda" else "cpu"
    if engine == "flower" and device == "cuda":
        raise InputError("training.device: simulated Flower clients train on the CPU; use --engine reference for a GPU")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("training.device: cuda was asked for, but torch sees no GPU; use cpu")
    seed = setting.seed(Draw.POISON)
    federations, results = [], []
    for size in sizes:
        label, groups = f"attackers{size}", setting.attack(size)
        users = setting.poisoned(size)
        updates = make_attackers(config.federated, groups, setting.code, setting.users, setting.n_classes, seed, device)
        federations.append(SimulatedFederation(label, users, plan))
        if engine == "reference":
            kept = FederationFolder(work / label / "server")
            honest = partial(train_update, device=device)
            results.append(train_federated(users, plan, updates, progress, honest, kept))
        else:
            save_attackers(work / label / "attack", updates)
    if engine == "flower":
        try:
            results = simulate_federations(federations, work, ATTACKER_APP, progress=progress)
        finally:
            # A copy of every user's data has no place in a run folder; rounds and logs stay where it failed.
            for one in federations:
                for name in ("data", "attack"):
                    shutil.rmtree(work / one.label / name, ignore_errors=True)
    found = {}
    for size, one, result in zip(sizes, federations, results, strict=True):
        lines = FederationFolder(work / one.label / "server").read_rounds() if engine == "flower" else []
        found[size] = (result, [{name: line[name] for name in ("seconds", "sent", "received")} for line in lines])
    return found


def finish_cell(
    setting: Setting,
    n_attackers: int,
    result: FederatedResult,
    place: RunFolder,
    store: ModelStore,
    about: dict[str, Any],
) -> None:
    """Put the models of a federation into the store, let them vote, and write vote files and (last) the record.

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
    cell = _vote(setting, Cell(place, setting.repeat, n_attackers), ensemble)
    counted = count_votes(cell)
    counted["figures"]["consensus"] = measure_consensus(cell, config.decoder.max_attackers)
    federated = {
        "threat": "arbitrary",
        "keys": list(result.keys),
        "rounds": [report.to_json() for report in result.rounds],
        **about,
    }
    seconds = round(time.perf_counter() - begin, 3)
    cell.save_record(config, {**counted, "federated": federated, "seconds": seconds})


def _vote(setting: Setting, cell: Cell, ensemble: Ensemble) -> Cell:
    assert isinstance(setting.config, FederatedConfig)
    targets = None
    if setting.config.federated.behaviour == "split-targets":
        groups = setting.attack(cell.n_attackers)
        targets = [choose_targets(group, setting.code.n_models, setting.n_classes) for group in groups]
    return vote_cell(setting, cell, ensemble, targets=targets, knows_labels=False)


def _gather(setting: Setting, keys: tuple[str, ...], store: ModelStore, trained: int) -> Ensemble:
    distinct, shape = len(set(keys)), plan_cell(setting).shape
    cpu = torch.device("cpu")
    return Ensemble(keys, trained, distinct - trained, setting.training, shape, cpu, "float32", {}, store)


def collect_federation(
    server: str | os.PathLike[str],
    dataset: str,
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Make a run folder from a finished federation, so that decode, certify, report and serve work on it.

    The models are asked about the test part of a data set that the server holds; no user's data are needed, and nothing
    is said about who attacked: the record is that of zero known attackers.

    Parameters
    ----------
    server : path-like
        Folder with the plan and the result (``server/federation`` of a consortium), of rounds or of one round.
    dataset : str
        A data set of the catalogue or an .npz; half of its test part estimates confusion matrices, half is counted.
    folder : path-like
        The run folder to make.
    data_dir : path-like, optional
        Where data sets are.

    Returns
    -------
    dict
        The record.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.codes import Code
    >>> config = FederatedConfig(dataset="digits", users=6)
    >>> setting = prepare_setting(config, 0, load_pair(config), Code([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]))
    >>> plan = replace(plan_cell(setting), settings=FederatedSettings(rounds=1))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     server = FederationFolder(Path(place) / "server")
    ...     server.save_result(train_federated(setting.users, plan, folder=server))
    ...     record = collect_federation(server.path, "digits", Path(place) / "run")
    >>> record["n_attackers"], record["federated"]["threat"], len(record["federated"]["rounds"])
    (0, 'arbitrary', 1)
    """
    if (Path(server) / ONE_ROUND_FILE).is_file():
        return collect_one_round(server, dataset, folder, data_dir)
    source, place = FederationFolder(Path(server)), RunFolder(Path(folder))
    plan, result = source.load_plan(), source.load_result()
    if place.path.exists():
        raise InputError(f"{place.path} exists; choose another folder with -o")
    if len(result.models) != plan.code.n_models:
        raise InputError(f"{source.path}: {len(result.models)} models for a code of {plan.code.n_models} rows")
    config = _describe(plan, dataset, data_dir)
    setting = prepare_setting(config, 0, load_pair(config), plan.code)
    _compare(setting, plan, dataset)
    setting = replace(setting, training=plan.training)

    place.save_config(config)
    plan.code.save(place.code_file)
    seconds = round(sum(line.get("seconds", 0.0) for line in source.read_rounds()), 3)
    about = {"engine": "consortium", "seconds": seconds}
    finish_cell(setting, 0, result, place, ModelStore(place.store), about)
    return load_record(place.record(0, 0))


def collect_one_round(
    server: str | os.PathLike[str],
    dataset: str,
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    label: str | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """Make a run folder from the heads of a federation in one round, as `collect_federation` does; return its record.

    The statistics come along, so that a user can be revoked; the folder may be the server's own. Threat model:
    arbitrary (Proposition 31 of docs/theory.md).

    Parameters
    ----------
    server, folder, data_dir
        As for `collect_federation`.
    dataset : str
        Labelled samples of the server: a file or folder as for ``codeward train``, or the test part of a data set.
    label, text : str, optional
        Columns of a table.

    Examples
    --------
    >>> collect_one_round("nowhere", "test.npz", "runs/heads")
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: nowhere/one-round.json: no such file
    """
    source, target = Path(server), Path(folder)
    agreed, heads, told = load_one_round(source)
    if target != source and target.exists():
        raise InputError(f"{target} exists; choose another folder with -o")
    test = agreed.read_samples(dataset, label, text, data_dir)
    section = TrainSection(trusted=dataset, label=label, text=text)
    about = {"threat": "arbitrary", "engine": "one-round", "rounds": [told]}
    sizes, place = list_sizes(agreed, told), None if data_dir is None else Path(data_dir)
    cell = save_heads(target, heads, agreed.code, test, section, sizes, place, federated=about)
    if target != source:
        copy_round(source, target, told["counted"])
    return cell.record


def list_sizes(agreed: OneRoundPlan, told: Mapping[str, Any]) -> list[int]:
    """Return how many samples of each user counted in a round."""
    return [int(told["counted"].get(agreed.name(user), 0)) for user in range(agreed.code.n_users)]


def copy_round(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy the plan and the statistics of some users."""
    for file in (*(Path(STATISTICS) / f"{name}.npz" for name in names), Path(ONE_ROUND_FILE)):
        content = read_bytes(source / file)
        write_atomic(target / file, lambda out, content=content: out.write(content))  # type: ignore[misc]


def _describe(plan: FederationPlan, dataset: str, data_dir: str | os.PathLike[str] | None) -> FederatedConfig:
    """Return the configuration of a federated run that would have had this plan."""
    names = ("architecture", "batch_size", "learning_rate", "weight_decay", "augmentation")
    return FederatedConfig(
        dataset=dataset,
        data_dir=None if data_dir is None else Path(data_dir),
        users=plan.code.n_users,
        # The run folder keeps its own copy and reads that.
        code=CodeSection(file=Path("code.json")),
        attack=AttackSection(attackers=(0,)),
        training=TrainingSection(**{name: getattr(plan.training, name) for name in names}),
        seed=plan.seed,
        federated=FederatedSection(**plan.settings.to_json()),
    )


def _compare(setting: Setting, plan: FederationPlan, dataset: str) -> None:
    """Refuse data that the models were not made for: they would answer, and mean nothing."""
    shape = tuple(int(size) for size in setting.evaluation.images.shape[1:])
    if shape != plan.shape:
        raise InputError(f"{dataset}: images {shape}, but the models take {plan.shape}")
    here, there = asdict(setting.training), asdict(plan.training)
    for name in here:
        if name not in _NOT_COMPARED and here[name] != there[name]:
            raise InputError(f"{dataset}: {name} is {here[name]}, but the models were trained with {there[name]}")
