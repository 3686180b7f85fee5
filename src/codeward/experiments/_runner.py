"""The main job: for every repeat and every number of attackers train, ask, decode, and write a record."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from codeward.attacks import poison_users
from codeward.experiments._cells import ask_cell, count_votes, draw_attack
from codeward.experiments._setting import Draw, Setting, deal_data, load_pair, prepare_setting
from codeward.runs import Cell, RunConfig, RunFolder, load_record
from codeward.training import Cluster, Ensemble, ModelStore, train_ensembles


def run_experiment(
    config: RunConfig, folder: str | os.PathLike[str], progress: bool = False
) -> Iterator[dict[str, Any]]:
    """Run every cell of a configuration, yielding its record; cells whose record is there are read, not run.

    Interrupted at any moment, the same call goes on where it was: finished records stay, finished sub-models are in the
    store.

    Parameters
    ----------
    config : RunConfig
    folder : path-like
        The run folder; see `RunFolder`.
    progress : bool
        Show training progress on stderr.
    """
    place = RunFolder(Path(folder))
    pair = load_pair(config)
    deal_data(config, 0, pair)  # an impossible split is refused before a code is designed and a folder made
    cluster = None if config.cluster is None else Cluster(config.cluster)
    if cluster is not None:
        cluster.check()
    code = place.open(config)
    store = ModelStore(place.store)
    columns = {user: user for user in range(config.users)}
    with nullcontext() if cluster is None else cluster:
        for repeat in range(config.repeats):
            setting = prepare_setting(config, repeat, pair, code)
            sizes = [size for size in config.attack.attackers if not place.record(repeat, size).exists()]
            missing = [size for size in sizes if not place.about(repeat, size).exists()]
            ensembles = dict(zip(missing, train_cells(setting, missing, store, progress, cluster), strict=True))
            for n_attackers in config.attack.attackers:
                if n_attackers in ensembles:
                    ask_cell(setting, n_attackers, ensembles[n_attackers], place, code, columns)
                if n_attackers in sizes:
                    record_cell(config, Cell(place, repeat, n_attackers))
                yield load_record(place.record(repeat, n_attackers))


def train_cells(
    setting: Setting, sizes: Sequence[int], store: ModelStore, progress: bool, cluster: Cluster | None = None
) -> list[Ensemble]:
    """Train the sub-models of one repeat under each number of attackers, all in one go.

    Poisoning is a function from data to data; training gets the result and nothing else.
    """
    config = setting.config
    seed = [config.seed, setting.repeat, int(Draw.POISON)]
    return train_ensembles(
        [(poison_users(setting.users, draw_attack(setting, size), seed), setting.code) for size in sizes],
        setting.training,
        seed=model_seed(setting),
        store=store,
        device=config.training.device,
        engine=config.training.engine,
        show_progress=progress,
        cluster=cluster,
    )


def record_cell(config: RunConfig, cell: Cell) -> None:
    """Count the votes of one cell, and write the record."""
    begin = time.perf_counter()
    counted = count_votes(cell)
    cell.save_record(config, {**counted, "seconds": round(time.perf_counter() - begin, 3)})


def model_seed(setting: Setting) -> int:
    """Return the seed from which the models of a repeat derive theirs."""
    return setting.config.seed * 1_000_003 + setting.repeat
