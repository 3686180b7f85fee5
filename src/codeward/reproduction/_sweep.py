"""Many runs as one: cells of a grid share data, models and one pool of training, and go on from whatever is there."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType

from codeward._errors import InputError
from codeward._progress import Shown, show_progress
from codeward.codes import Code
from codeward.data import DatasetPair, Samples, load_dataset, plot_class_shares
from codeward.experiments import Setting, choose_training, prepare_setting, record_cell, split_data, vote_cell
from codeward.reproduction._findings import study_cell
from codeward.reproduction._grid_folder import drop_cell_scores, list_runs, read_picture
from codeward.reproduction._studies import choose_parts
from codeward.runs import Cell, RunConfig, RunFolder
from codeward.training import Cluster, Ensemble, ModelPlan, ModelStore, plan_models, train_ensembles


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a grid, there or to be made: the path and configuration that its run is planned with.

    Examples
    --------
    >>> from codeward.reproduction import plan_study
    >>> plan_cells(plan_study("table1", codes=["g"], repeats=1), "no/such/folder")[0].is_there
    False
    """

    path: str
    config: RunConfig
    cell: Cell

    @property
    def is_there(self) -> bool:
        """Whether it has a record or vote files, so that nothing need be trained."""
        return self.cell.has_record or self.cell.has_votes

    @property
    def is_cut_off(self) -> bool:
        """Whether it has votes, but a call ended before it was counted and studied."""
        cell = self.cell
        studied = cell.folder.study(cell.repeat, cell.n_attackers).exists()
        return cell.has_votes and not (cell.has_record and (studied or not self.choose_parts()))

    def choose_parts(self, smoke: bool = False) -> tuple[str, ...]:
        """Return the parts of its study (`codeward.reproduction._studies.choose_parts`)."""
        code = self.path.rpartition("/")[2]
        return choose_parts(self.config, code, self.cell.repeat, self.cell.n_attackers, smoke)

    def reopen(self) -> Cell:
        """Return the cell anew: what it reads goes with it, so that a grid's votes are not all held at once."""
        return Cell(self.cell.folder, self.cell.repeat, self.cell.n_attackers)


def plan_cells(runs: Mapping[str, RunConfig], folder: str | os.PathLike[str]) -> list[PlannedCell]:
    """Return the cells of a grid by repeat, run and number of attackers: early repeats are complete first.

    Examples
    --------
    >>> from codeward.reproduction import plan_study
    >>> found = plan_cells(plan_study("table1", repeats=2, codes=["g"]), "results")
    >>> len(found), found[0].path, found[0].cell.name
    (8, 'mnist-iid/g', 'repeat0-attackers0')
    """
    most = max((config.repeats for config in runs.values()), default=0)
    return [
        PlannedCell(path, config, Cell(RunFolder(Path(folder, path)), repeat, size))
        for repeat in range(most)
        for path, config in runs.items()
        if repeat < config.repeats
        for size in config.attack.attackers
    ]


def vote_grid(
    runs: Mapping[str, RunConfig],
    folder: str | os.PathLike[str],
    store: ModelStore,
    progress: Shown = None,
    with_scores: bool = False,
    cluster: Cluster | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    voted: Callable[["PlannedCell"], None] | None = None,
    pool: int = 1,
) -> None:
    """Train what is missing of a grid and write the vote files of every cell as soon as its models are there.

    Cells with a record or vote files are left alone, so that many short slots on a machine add up to the whole grid.
    All runs of a grid have one data set and one recipe of training; the models of all cells of a repeat train in one
    pool, and a model that several cells need is trained once. Repeats come one after the other: cells whose models are
    of unlike sizes are whole at the end of a pool only, and a slot may end before. Every pool has a start of its own,
    10 s or more on a GPU: where the slot is long enough, several repeats in one are faster.

    Parameters
    ----------
    runs : mapping of str to RunConfig
        By folder within the grid; see `plan_study`.
    folder : path-like
        The grid; every run gets a run folder in it.
    store : ModelStore
    progress : Progress or bool, optional
        Show training progress on stderr.
    with_scores : bool
        Keep class scores in the vote files.
    cluster : Cluster, optional
        A Ray cluster to train on, kept open by the caller.
    data_dir : path-like, optional
        Where the data sets are; no file of the grid names it, so that a grid may go from machine to machine.
    voted : callable, optional
        Called with every cell whose vote files were just written, in another thread (`CellCounters`).
    pool : int
        Repeats whose models train together.

    Examples
    --------
    >>> vote_grid({}, "no/such/folder", ModelStore("no/such/store"))
    """
    missing = [planned for planned in plan_cells(runs, folder) if not planned.is_there]
    if not missing:
        return
    pair = load_dataset(missing[0].config.dataset, data_dir)
    # Codes of all runs first: an impossible one is refused before hours of training.
    codes = {planned.path: planned.cell.folder.open(planned.config) for planned in missing}
    repeats = sorted({planned.cell.repeat for planned in missing})
    for start in range(0, len(repeats), pool):
        chosen = [planned for planned in missing if planned.cell.repeat in repeats[start : start + pool]]
        _train(chosen, codes, pair, store, progress, with_scores, cluster, voted)


def count_grid(
    runs: Mapping[str, RunConfig], folder: str | os.PathLike[str], progress: Shown = None
) -> Iterator[PlannedCell]:
    """Yield every cell of a grid that has a record or vote files, counted where it was not; nothing is trained.

    Examples
    --------
    >>> list(count_grid({}, "no/such/folder"))
    []
    """
    there = [planned for planned in plan_cells(runs, folder) if planned.is_there]
    with show_progress("counting", len(there), progress) as bar:
        for planned in there:
            if not planned.cell.has_record:
                record_cell(planned.config, planned.reopen())
            bar.advance(note="cells")
            yield planned


class CellCounters:
    """Processes that count, study and tidy up cells as soon as they have votes: a GPU that trains waits for none.

    A cell's record and study are those of `count_grid` and `study_grid`, but for the time of writing: nothing in them
    depends on who counts. On leaving, all that was handed over is finished; after an error what has not begun is left
    for the next call.

    Parameters
    ----------
    jobs : int
        Processes; one is this process itself, which counts on leaving.
    studies : bool
        Study the votes beyond the record.
    smoke : bool
        Leave out what takes over a second a cell.
    keep_scores : bool
        Whether class scores stay in the vote files once a cell is counted.
    progress : Progress or bool, optional
        Shows on leaving what is still to be counted.

    Examples
    --------
    >>> with CellCounters(jobs=1, keep_scores=False) as counters:
    ...     vote_grid({}, "no/such/folder", ModelStore("no/such/store"), with_scores=True, voted=counters.submit)
    """

    def __init__(
        self,
        jobs: int,
        studies: bool = True,
        smoke: bool = False,
        keep_scores: bool = True,
        progress: Shown = None,
    ) -> None:
        if jobs < 1:
            raise InputError(f"jobs: expected a positive whole number, got {jobs}")
        self.how = studies, smoke, keep_scores
        self.progress = progress
        # Not forked: this process holds a GPU and threads.
        self.pool = ProcessPoolExecutor(jobs, get_context("spawn"), _stand_back) if jobs > 1 else None
        self.handed: list[tuple[PlannedCell, Future[None] | None]] = []

    def submit(self, planned: PlannedCell) -> None:
        """Take over a cell that has votes."""
        fresh = PlannedCell(planned.path, planned.config, planned.reopen())
        task = None if self.pool is None else self.pool.submit(finish_cell, fresh, *self.how)
        self.handed.append((fresh, task))

    def __enter__(self) -> "CellCounters":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            left = [(cell, task) for cell, task in self.handed if task is None or not task.done() or task.exception()]
            with show_progress("counting", len(left), self.progress if error is None else None) as bar:
                for cell, task in left if error is None else ():
                    if task is None:
                        finish_cell(cell, *self.how)
                    else:
                        task.result()
                    bar.advance(note="cells")
        finally:
            if self.pool is not None:
                self.pool.shutdown(cancel_futures=True)


def finish_cell(planned: PlannedCell, studies: bool = True, smoke: bool = False, keep_scores: bool = True) -> None:
    """Count a cell that has votes where it was not, study it, and forget its class scores unless they are kept."""
    cell = planned.reopen()
    if not cell.has_record:
        record_cell(planned.config, cell)
    if studies:
        study_cell(planned.reopen(), planned.choose_parts(smoke))
    if not keep_scores:
        drop_cell_scores(planned.reopen())


def _stand_back() -> None:
    """Let whoever trains go first, and end at Ctrl-C without a word: files are written whole or not at all."""
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def study_grid(
    runs: Mapping[str, RunConfig], folder: str | os.PathLike[str], progress: Shown = None, smoke: bool = False
) -> None:
    """Study the votes of every cell beyond its record; see `choose_parts` for what each gets. Nothing is trained.

    Examples
    --------
    >>> study_grid({}, "no/such/folder")
    """
    there = [planned for planned in plan_cells(runs, folder) if planned.cell.has_votes]
    with show_progress("studying", len(there), progress) as bar:
        for planned in there:
            study_cell(planned.reopen(), planned.choose_parts(smoke))
            bar.advance(note=f"cells, {planned.path}")


def draw_grid(
    runs: Mapping[str, RunConfig], folder: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Draw which user holds how much of which class, once for each split of the data; needs the data, trains nothing.

    The picture (``plots/users.svg``, first repeat) goes to the first run with votes that has this split; where a run of
    the grid folder has one, of these runs or not, none is drawn.

    Examples
    --------
    >>> draw_grid({}, "no/such/folder")
    []
    """
    known = {_name_split(run.config) for run in list_runs(folder).values() if read_picture(run) is not None}
    drawn = []
    for planned in plan_cells(runs, folder):
        config = planned.config
        if planned.cell.repeat == 0 and planned.is_there and _name_split(config) not in known:
            known.add(_name_split(config))
            pair, file = load_dataset(config.dataset, data_dir), planned.cell.folder.plots / "users.svg"
            plot_class_shares(pair.train.labels, split_data(config, 0, pair), file, n_classes=pair.n_classes)
            drawn.append(file)
    return drawn


def _name_split(config: RunConfig) -> str:
    return f"{config.dataset} {config.split}"


def _train(
    planned: Sequence[PlannedCell],
    codes: Mapping[str, Code],
    pair: DatasetPair,
    store: ModelStore,
    progress: Shown,
    with_scores: bool,
    cluster: Cluster | None,
    voted: Callable[[PlannedCell], None] | None,
) -> None:
    settings: dict[tuple[str, int], Setting] = {}
    tasks: list[tuple[list[Samples], tuple[ModelPlan, ...]]] = []
    shared: dict[str, Setting] = {}
    for one in planned:
        place = one.path, one.cell.repeat
        if place not in settings:
            settings[place] = _prepare(one, codes[one.path], pair, shared)
        setting, cell = settings[place], one.cell
        tasks.append((setting.poisoned(cell.n_attackers), plan_models(setting.code, setting.model_seed)))
    first = settings[planned[0].path, planned[0].cell.repeat]
    if any(setting.training != first.training for setting in settings.values()):
        raise InputError("a grid has one recipe of training; run the others on their own")

    def finished(number: int, ensemble: Ensemble) -> None:
        one = planned[number]
        vote_cell(settings[one.path, one.cell.repeat], one.cell, ensemble, with_scores=with_scores)
        if voted is not None:
            voted(one)

    train_ensembles(
        tasks,
        first.training,
        seed=0,  # plans carry their own
        store=store,
        device=first.config.training.device,
        engine=first.config.training.engine,
        progress=progress,
        cluster=cluster,
        finished=finished,
    )


def _prepare(planned: PlannedCell, code: Code, pair: DatasetPair, shared: dict[str, Setting]) -> Setting:
    """Split the data of a run; runs that differ in the code or the attack share one copy."""
    config, repeat = planned.config, planned.cell.repeat
    key = f"{repeat} {config.seed} {config.users} {config.split}"
    if key not in shared:
        shared[key] = prepare_setting(config, repeat, pair, code)
    return replace(shared[key], config=config, code=code, training=choose_training(config, pair))
