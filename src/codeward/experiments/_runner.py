"""The main job: for every repeat and every number of attackers train, vote, decode, and write a record."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from codeward._errors import InputError
from codeward._progress import show_progress
from codeward.codes import Code
from codeward.data import DatasetPair, plot_class_shares
from codeward.experiments._measure import record_cell
from codeward.experiments._setting import (
    Parts,
    Setting,
    load_pair,
    name_users,
    prepare_setting,
    settle_users,
    split_data,
)
from codeward.experiments._voting import vote_cell
from codeward.runs import Cell, RunConfig, RunFolder, find_code
from codeward.training import Cluster, Ensemble, ModelStore, train_ensembles


@dataclass(frozen=True)
class Experiment:
    """A configuration and the folder where its cells go. Data are loaded, and split, once and only when needed.

    Examples
    --------
    >>> import tempfile
    >>> few = {"code": {"name": "d"}, "attack": {"attackers": [0]}, "training": {"epochs": 1}}
    >>> config = RunConfig(**few, decoder={"name": "bayes"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [(cell, made)] = Experiment(config, RunFolder(folder)).run()
    ...     [(same, again)] = Experiment(config, RunFolder(folder)).run()
    ...     made, again, cell.keys == same.keys, holds_models(cell, ModelStore(cell.store))
    (True, False, True, True)
    """

    config: RunConfig
    folder: RunFolder

    @cached_property
    def pair(self) -> DatasetPair:
        """The data set."""
        return load_pair(self.config)

    @cached_property
    def parts(self) -> Parts:
        """Which training samples each user holds in the first repeat."""
        return split_data(self.config, 0, self.pair)

    def prepare(self, repeat: int) -> Setting:
        """Split the data of a repeat."""
        parts = None if repeat else self.parts
        return prepare_setting(self.config, repeat, self.pair, self.folder.code, parts)

    def run(self, progress: bool = False) -> Iterator[tuple[Cell, bool]]:
        """Make every cell; yield it with whether something of it was made just now.

        A cell is left alone when its record, its vote files and its models are there as they were written. What is
        missing or damaged is made again: a folder of an older version gets the keys of its models, and models that the
        store lost are trained again.
        """
        config = self.config
        cluster = None if config.cluster is None else Cluster(config.cluster)
        if not self.folder.config_file.exists():
            self.parts  # noqa: B018 - an impossible split is refused before a code is designed and a folder made
        if cluster is not None:
            cluster.check()
        self.folder.open(config, None if self.folder.code_file.exists() else self._find_code())
        with nullcontext() if cluster is None else cluster:
            for repeat in range(config.repeats):
                cells = [Cell(self.folder, repeat, size) for size in config.attack.attackers]
                store = ModelStore(cells[0].store)
                lacking = [cell for cell in cells if not holds_models(cell, store)]
                ensembles: dict[Cell, Ensemble] = {}
                if lacking:
                    setting = self.prepare(repeat)
                    ensembles = dict(zip(lacking, _train(setting, lacking, store, progress, cluster), strict=True))
                for cell in cells:
                    made = cell in ensembles or not cell.has_record
                    if cell in ensembles:
                        cell = vote_cell(setting, cell, ensembles[cell])
                    if made:
                        with show_progress("decode", 1, quiet=not progress) as bar:
                            bar.advance(0, f"fit the {config.decoder.name} decoder, count")
                            cell = record_cell(config, cell)
                            bar.advance()
                    yield cell, made

    def _find_code(self) -> Code:
        """Find the code; its columns bear the names of the users where the data bring any."""
        code, names = find_code(self.config), None
        if self.config.split.kind == "groups":
            names = name_users(self.pair)
        if names is None or code.users == names:
            return code
        if code.users is not None:
            raise InputError(f"code: names users {', '.join(code.users)[:80]}, the data {', '.join(names)[:80]}")
        return Code(code.matrix, users=names, models=code.models, construction=code.construction)

    def draw_users(self, path: str | os.PathLike[str]) -> None:
        """Draw which user holds how much of which class in the first repeat; needs matplotlib."""
        plot_class_shares(self.pair.train.labels, self.parts, path, n_classes=self.pair.n_classes)


def run_experiment(
    config: RunConfig, folder: str | os.PathLike[str], progress: bool = False
) -> Iterator[dict[str, Any]]:
    """Run every cell of a configuration, yielding its record; cells that are there are read, not run.

    Interrupted at any moment, the same call goes on where it was: finished records stay, finished sub-models are in the
    store.

    Parameters
    ----------
    config : RunConfig
    folder : path-like
        The run folder; see `RunFolder`.
    progress : bool
        Show training progress on stderr.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.runs import RunConfig, rate
    >>> few = {"code": {"name": "d"}, "attack": {"attackers": [1]}, "training": {"epochs": 1}}
    >>> config = RunConfig(**few, decoder={"name": "bayes"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [record] = run_experiment(config, folder)
    >>> record["n_attackers"], 0 <= rate(record["figures"]["clean"]["all"]["bayes"]) <= 1
    (1, True)
    """
    for cell, _ in Experiment(settle_users(config), RunFolder(Path(folder))).run(progress):
        yield cell.record


def holds_models(cell: Cell, store: ModelStore) -> bool:
    """Tell whether a cell's vote files and the models that gave them are there as they were written.

    Examples
    --------
    >>> holds_models(Cell(RunFolder("no/such/folder"), 0, 0), ModelStore("no/such/store"))
    False
    """
    return cell.is_whole and all(store.holds(key) for key in dict.fromkeys(cell.keys))


def find_device(cells: Sequence[Cell]) -> str | None:
    """Return the device on which recorded cells were trained; elsewhere their models would come out different."""
    devices = {str(cell.record["hardware"]["device"]).partition(":")[0] for cell in cells if cell.has_record}
    if len(devices) > 1:
        raise InputError(f"the run was trained on {' and '.join(sorted(devices))}; models of both cannot be made here")
    if "cuda" in devices and not torch.cuda.is_available():
        raise InputError("the run was trained on a GPU, which this machine lacks: models trained here would be others")
    return devices.pop() if devices else None


def _train(
    setting: Setting, cells: Sequence[Cell], store: ModelStore, progress: bool, cluster: Cluster | None
) -> list[Ensemble]:
    """Train the sub-models of one repeat under each number of attackers, all in one go."""
    config = setting.config
    device = find_device(cells) if cluster is None else None
    return train_ensembles(
        [(setting.poisoned(cell.n_attackers), setting.code) for cell in cells],
        setting.training,
        seed=setting.model_seed,
        store=store,
        device=device or config.training.device,
        engine=config.training.engine,
        show_progress=progress,
        cluster=cluster,
    )
