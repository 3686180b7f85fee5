"""Many runs as one: cells of a grid share data, models and one pool of training, and go on from whatever is there."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from codeward._errors import InputError
from codeward._progress import show_progress
from codeward.codes import Code
from codeward.data import DatasetPair, Samples, load_dataset, plot_class_shares
from codeward.experiments import Setting, choose_training, prepare_setting, record_cell, split_data, vote_cell
from codeward.reproduction._findings import choose_parts, study_cell
from codeward.reproduction._grid_folder import list_runs, read_picture
from codeward.runs import Cell, RunConfig, RunFolder, load_record
from codeward.training import Cluster, Ensemble, ModelPlan, ModelStore, plan_models, train_ensembles


@dataclass(frozen=True)
class GridCell:
    """One record of a grid, there or to be made.

    Attributes
    ----------
    path : str
        Folder of the run within the grid.
    config : RunConfig
    place : RunFolder
    repeat, n_attackers : int
    """

    path: str
    config: RunConfig
    place: RunFolder
    repeat: int
    n_attackers: int

    @property
    def is_recorded(self) -> bool:
        """Whether the record is there."""
        return self.place.record(self.repeat, self.n_attackers).exists()

    @property
    def is_asked(self) -> bool:
        """Whether the vote files are there."""
        return self.place.about(self.repeat, self.n_attackers).exists()


def list_cells(runs: Mapping[str, RunConfig], folder: str | os.PathLike[str]) -> list[GridCell]:
    """Return the cells of a grid by repeat, run and number of attackers: early repeats are complete first."""
    most = max((config.repeats for config in runs.values()), default=0)
    return [
        GridCell(path, config, RunFolder(Path(folder, path)), repeat, size)
        for repeat in range(most)
        for path, config in runs.items()
        if repeat < config.repeats
        for size in config.attack.attackers
    ]


def ask_grid(
    runs: Mapping[str, RunConfig],
    folder: str | os.PathLike[str],
    store: ModelStore,
    progress: bool = False,
    with_scores: bool = False,
    cluster: Cluster | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Train what is missing of a grid and write the vote files of every cell as soon as its models are there.

    Cells with a record or vote files are left alone, so that many short slots on a machine add up to the whole grid.
    All runs of a grid have one data set and one recipe of training; the models of all their cells train in one pool (on
    a CPU one repeat at a time, for memory), and a model that several cells need is trained once.

    Parameters
    ----------
    runs : mapping of str to RunConfig
        By folder within the grid; see `plan_study`.
    folder : path-like
        The grid; every run gets a run folder in it.
    store : ModelStore
    progress : bool
        Show training progress on stderr.
    with_scores : bool
        Keep class scores in the vote files.
    cluster : Cluster, optional
        A Ray cluster to train on, kept open by the caller.
    data_dir : path-like, optional
        Where the data sets are; no file of the grid names it, so that a grid may go from machine to machine.
    """
    missing = [cell for cell in list_cells(runs, folder) if not cell.is_recorded and not cell.is_asked]
    if not missing:
        return
    pair = load_dataset(missing[0].config.dataset, data_dir)
    # Codes of all runs first: an impossible one is refused before hours of training.
    codes = {cell.path: cell.place.open(cell.config) for cell in missing}
    pooled = torch.cuda.is_available()
    for repeats in [sorted({cell.repeat for cell in missing})] if pooled else [[r] for r in _repeats(missing)]:
        chosen = [cell for cell in missing if cell.repeat in repeats]
        _train(chosen, codes, pair, store, progress, with_scores, cluster)


def count_grid(
    runs: Mapping[str, RunConfig], folder: str | os.PathLike[str], progress: bool = False
) -> Iterator[tuple[GridCell, dict[str, Any]]]:
    """Yield every cell of a grid that can be had from records or vote files, with its record; nothing is trained."""
    cells = [cell for cell in list_cells(runs, folder) if cell.is_recorded or cell.is_asked]
    with show_progress("counting", len(cells), quiet=not progress) as bar:
        for cell in cells:
            if not cell.is_recorded:
                record_cell(cell.config, Cell(cell.place, cell.repeat, cell.n_attackers))
            bar.advance(note="cells")
            yield cell, load_record(cell.place.record(cell.repeat, cell.n_attackers))


def study_grid(
    runs: Mapping[str, RunConfig], folder: str | os.PathLike[str], progress: bool = False, smoke: bool = False
) -> None:
    """Study the votes of every cell beyond its record; see `choose_parts` for what each gets. Nothing is trained."""
    cells = [cell for cell in list_cells(runs, folder) if cell.is_asked]
    with show_progress("studying", len(cells), quiet=not progress) as bar:
        for cell in cells:
            code = Code.load(cell.place.path / "code.json")
            parts = choose_parts(cell.path, cell.repeat, cell.n_attackers, smoke, cell.config.attack.groups)
            study_cell(cell.place, cell.repeat, cell.n_attackers, code, parts)
            bar.advance(note=f"cells, {cell.path}")


def draw_grid(
    runs: Mapping[str, RunConfig], folder: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Draw which user holds how much of which class, once for each way of dealing data; needs the data, trains nothing.

    The picture (``plots/users.svg``, first repeat) goes to the first run with votes that is dealt so; where a run of
    the grid folder has one, of these runs or not, none is drawn. Needs matplotlib.
    """
    known = {_name_dealing(run.config) for run in list_runs(folder).values() if read_picture(run) is not None}
    drawn = []
    for cell in list_cells(runs, folder):
        config = cell.config
        if cell.repeat or not (cell.is_recorded or cell.is_asked) or _name_dealing(config) in known:
            continue
        known.add(_name_dealing(config))
        pair, file = load_dataset(config.dataset, data_dir), cell.place.path / "plots" / "users.svg"
        plot_class_shares(pair.train.labels, split_data(config, 0, pair), file, n_classes=pair.n_classes)
        drawn.append(file)
    return drawn


def _name_dealing(config: RunConfig) -> str:
    return f"{config.dataset} {config.split}"


def _repeats(cells: Sequence[GridCell]) -> list[int]:
    return sorted({cell.repeat for cell in cells})


def _train(
    cells: Sequence[GridCell],
    codes: Mapping[str, Code],
    pair: DatasetPair,
    store: ModelStore,
    progress: bool,
    with_scores: bool,
    cluster: Cluster | None,
) -> None:
    settings: dict[tuple[str, int], Setting] = {}
    tasks: list[tuple[list[Samples], tuple[ModelPlan, ...]]] = []
    dealt: dict[str, Setting] = {}
    for cell in cells:
        setting = settings.get((cell.path, cell.repeat))
        if setting is None:
            setting = _prepare(cell, codes[cell.path], pair, dealt)
            settings[cell.path, cell.repeat] = setting
        tasks.append((setting.poisoned(cell.n_attackers), plan_models(setting.code, setting.model_seed)))
    first = settings[cells[0].path, cells[0].repeat]
    if any(setting.training != first.training for setting in settings.values()):
        raise InputError("a grid has one recipe of training; run the others on their own")

    def finished(number: int, ensemble: Ensemble) -> None:
        cell = cells[number]
        made = Cell(cell.place, cell.repeat, cell.n_attackers)
        vote_cell(settings[cell.path, cell.repeat], made, ensemble, with_scores=with_scores)

    train_ensembles(
        tasks,
        first.training,
        seed=0,  # plans carry their own
        store=store,
        device=first.config.training.device,
        engine=first.config.training.engine,
        show_progress=progress,
        cluster=cluster,
        finished=finished,
    )


def _prepare(cell: GridCell, code: Code, pair: DatasetPair, dealt: dict[str, Setting]) -> Setting:
    """Deal the data of a run; runs that differ in the code or the attack share one copy."""
    config = cell.config
    key = f"{cell.repeat} {config.seed} {config.users} {config.split}"
    if key not in dealt:
        dealt[key] = prepare_setting(config, cell.repeat, pair, code)
    return replace(dealt[key], config=config, code=code, training=choose_training(config, pair))
