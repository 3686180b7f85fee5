"""The main job: for every repeat and every number of attackers train, vote, decode, and write a record.

Voting (`vote_cell`) needs the models and the data; counting (`record_cell`) needs the vote files only. So a machine
with a GPU may train and vote, and another one, or the same one later, counts.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._progress import Shown, show_progress
from codeward.codes import Code
from codeward.data import DatasetPair, Samples, count_classes, plot_class_shares, render
from codeward.decoding import VoteSet, estimate_confusion
from codeward.experiments._setting import (
    Parts,
    Setting,
    keep_training,
    load_pair,
    name_users,
    prepare_setting,
    settle_users,
    split_data,
)
from codeward.runs import (
    Cell,
    RunConfig,
    RunFolder,
    describe_machine,
    find_code,
    name_triggered,
    record_cell,
    round_scores,
)
from codeward.training import Cluster, Ensemble, ModelStore, train_ensembles, vote

#: Images of each sort in a cell's gallery, at most one a class.
_GALLERY = 12


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
        """Split the data of a repeat; the recipe is that of the cells that are there."""
        parts = None if repeat else self.parts
        return keep_training(prepare_setting(self.config, repeat, self.pair, self.folder.code, parts), self.folder)

    def run(self, progress: Shown = None) -> Iterator[tuple[Cell, bool]]:
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
                        with show_progress("decode", 1, progress) as bar:
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
        """Draw which user holds how much of which class in the first repeat."""
        plot_class_shares(self.pair.train.labels, self.parts, path, n_classes=self.pair.n_classes)


def run_experiment(
    config: RunConfig, folder: str | os.PathLike[str], progress: Shown = None
) -> Iterator[dict[str, Any]]:
    """Run every cell of a configuration, yielding its record; cells that are there are read, not run.

    Interrupted at any moment, the same call goes on where it was: finished records stay, finished sub-models are in the
    store.

    Parameters
    ----------
    config : RunConfig
    folder : path-like
        The run folder; see `RunFolder`.
    progress : Progress or bool, optional
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
    return cell.is_whole and store.holds_all(cell.keys, cell.committee)


def find_device(cells: Sequence[Cell]) -> str | None:
    """Return the device on which recorded cells were trained; elsewhere their models would come out different."""
    devices = {str(cell.record["hardware"]["device"]).partition(":")[0] for cell in cells if cell.has_record}
    if len(devices) > 1:
        raise InputError(f"the run was trained on {' and '.join(sorted(devices))}; models of both cannot be made here")
    if "cuda" in devices and not torch.cuda.is_available():
        raise InputError("the run was trained on a GPU, which this machine lacks: models trained here would be others")
    return devices.pop() if devices else None


def _train(
    setting: Setting, cells: Sequence[Cell], store: ModelStore, progress: Shown, cluster: Cluster | None
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
        progress=progress,
        cluster=cluster,
    )


def vote_cell(
    setting: Setting,
    cell: Cell,
    ensemble: Ensemble,
    columns: Mapping[int, int] | None = None,
    with_scores: bool = True,
    targets: Sequence[Sequence[int]] | None = None,
    knows_labels: bool = True,
) -> Cell:
    """Let the models of a cell vote on clean and triggered inputs; write vote files and (last) what they are.

    Parameters
    ----------
    setting : Setting
        Its users are numbered as in the data, its code may be an earlier one than the cell's.
    cell : Cell
        Gets the files.
    ensemble : Ensemble
        The sub-models of the cell's code.
    columns : mapping of int to int, optional
        The column of each user that the cell's code still has; attackers without one count as gone. By default nobody
        was revoked.
    with_scores : bool
        Keep class scores, which the score decoder needs, confusion matrices, and a gallery of example inputs; without,
        files are a few kB, and confusion matrices are estimated from the validation file when they are wanted.
    targets : sequence of sequences of int, optional
        Where attackers plant another target in every model: one a model, for every group.
    knows_labels : bool
        Whether users hand in their samples, so that those of every class can be counted; not where they send updates.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.experiments import load_pair, prepare_setting
    >>> from codeward.runs import RunConfig, RunFolder
    >>> from codeward.training import train_ensemble
    >>> config = RunConfig(users=6, code={"name": "toy-d"}, training={"epochs": 1})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell = Cell(RunFolder(folder), 0, 1)
    ...     setting = prepare_setting(config, 0, load_pair(config), cell.folder.open(config))
    ...     ensemble = train_ensemble(setting.poisoned(1), setting.code, setting.training, setting.model_seed)
    ...     vote_cell(setting, cell, ensemble).triggered[0].votes.shape == (270, setting.code.n_models)
    True
    """
    groups = setting.attack(cell.n_attackers)
    columns = {user: user for user in range(setting.config.users)} if columns is None else columns
    inputs = {"validation": setting.validation, "clean": setting.evaluation}
    for number, group in enumerate(groups):
        inputs[name_triggered(number, len(groups))] = setting.triggered(group)
    scores = dict(zip(inputs, ensemble.score_all(list(inputs.values())), strict=True))
    votes = {name: VoteSet(vote(scores[name]), samples.labels) for name, samples in inputs.items()}
    if with_scores:
        confusion = estimate_confusion(votes["validation"].votes, setting.validation.labels, setting.n_classes)
        votes = {name: VoteSet(v.votes, v.labels, confusion, round_scores(scores[name])) for name, v in votes.items()}
        meant = {name_triggered(number, len(groups)): group.target for number, group in enumerate(groups)}
        cell.save_gallery({n: _pick(samples, meant.get(n)) for n, samples in inputs.items() if n != "validation"})
    device = str(ensemble.device)
    counted = {}
    if knows_labels:
        users, left = setting.poisoned(cell.n_attackers), sorted(columns, key=columns.__getitem__)
        counted["class_counts"] = count_classes((users[user].labels for user in left), setting.n_classes)
    about = {
        "classes": setting.n_classes,
        **counted,
        "shape": list(ensemble.shape),
        "training": setting.training.to_json(),
        # A group that is all gone still has its trigger tried.
        "groups": [
            {
                "attackers": [columns[user] for user in group.attackers if user in columns],
                "target": group.target,
                "names": [setting.code.user_name(user) for user in group.attackers],
                **({} if targets is None else {"targets": list(targets[number])}),
            }
            for number, group in enumerate(groups)
        ],
        **describe_machine(device, torch.cuda.get_device_name() if device.startswith("cuda") else None),
        "work": {"models": ensemble.n_models, "trained": ensemble.trained, "reused": ensemble.reused},
        "keys": list(ensemble.keys),
    }
    return cell.save_votes(votes, about, None if ensemble.store is None else ensemble.store.root)


def _pick(samples: Samples, target: int | None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Take the first image of each class that is not the target: not chosen by what the models make of them."""
    labels, first = np.unique(samples.labels, return_index=True)
    chosen = samples.take(first[labels != target][:_GALLERY])
    return np.rint(render(chosen) * 255).astype(np.uint8), chosen.labels
