"""What a grid folder holds for a report: run folders with their records and studies, and what is planned."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.codes import Code
from codeward.experiments import RunConfig, load_config
from codeward.report import read_records
from codeward.reproduction._findings import load_study
from codeward.reproduction._studies import plan_study

STUDIES = ("figure5", "table1", "past")
#: Runs of no study.
OTHER = "other"

#: Data sets of the paper, for which the whole plan is expected; other grids expect what their runs say.
PAPER_DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}

Record = dict[str, Any]


@dataclass(frozen=True, order=True)
class GridSetting:
    """Data set, split and attack, in the order in which they are shown.

    Attributes
    ----------
    rank : tuple
        Sorts settings: data sets as in the paper, IID first, then falling alpha, other attacks last.
    dataset, split, attack : str
        In words; ``attack`` is empty for the paper's.
    """

    rank: tuple[Any, ...]
    dataset: str
    split: str
    attack: str

    @property
    def name(self) -> str:
        """All of it in a few words."""
        return ", ".join(part for part in (self.dataset, self.split, self.attack) if part)


@dataclass(frozen=True)
class GridRun:
    """One run folder of a grid.

    Attributes
    ----------
    path : str
        Within the grid.
    config : RunConfig
    code : Code
    records, studies : tuple of dict
        In order of repeat and number of attackers.
    """

    path: str
    config: RunConfig
    code: Code
    records: tuple[Record, ...]
    studies: tuple[Record, ...]

    @property
    def code_name(self) -> str:
        """The code, as the folder calls it."""
        return self.path.rsplit("/", 1)[1]

    @property
    def setting(self) -> GridSetting:
        """Data set, split and attack."""
        return describe_setting(self.config)

    @property
    def repeats(self) -> set[int]:
        """Repeats that have a record."""
        return {record["repeat"] for record in self.records}


@dataclass(frozen=True)
class Grid:
    """A grid as its folder tells it; nothing is trained, no vote is decoded, no data set is read.

    Attributes
    ----------
    path : Path
    runs : tuple of GridRun
        In order of setting and code.
    plans : dict of str to dict of str to RunConfig
        The runs expected, by study and folder; those of no study are under ``OTHER``.
    """

    path: Path
    runs: tuple[GridRun, ...]
    plans: dict[str, dict[str, RunConfig]]

    def pick(self, codes: Iterable[str] | None = None, attack: bool | None = False) -> list[GridRun]:
        """Return the runs with records and one of these codes; ``attack``: of other attacks than the paper's."""
        wanted = None if codes is None else set(codes)
        return [
            run
            for run in self.runs
            if run.records
            and (wanted is None or run.code_name in wanted)
            and (attack is None or bool(run.setting.attack) == attack)
        ]

    @property
    def sizes(self) -> list[int]:
        """Numbers of attackers that have a record somewhere."""
        return sorted({record["n_attackers"] for run in self.runs for record in run.records})


def is_grid(folder: str | os.PathLike[str]) -> bool:
    """Say whether a folder is no run folder but has run folders in it, as ``<data set>-<setting>/<code>``."""
    path = Path(folder)
    return not (path / "config.yaml").exists() and any(path.glob("*/*/config.yaml"))


def list_run_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the run folders of a grid."""
    return sorted(file.parent for file in Path(folder).glob("*/*/config.yaml") if (file.parent / "code.json").exists())


def open_grid(folder: str | os.PathLike[str], progress: Progress | None = None) -> Grid:
    """Read a grid folder, advancing the progress by one a run.

    Raises
    ------
    InputError
        When it holds no run, or a run whose records, studies and code do not belong together.
    """
    bar = progress or silent()
    root = Path(folder)
    runs = []
    for place in list_run_folders(root):
        runs.append(_open_run(place, place.relative_to(root).as_posix()))
        bar.advance(note="records")
    if not any(run.records for run in runs):
        raise InputError(f"{root}: no records in any run folder; `codeward reproduce figure5 -o {root}` makes them")
    runs.sort(key=lambda run: (run.setting.rank, rank_code(run.code_name)))
    datasets = dict.fromkeys(run.config.dataset for run in runs)
    plans: dict[str, dict[str, RunConfig]] = {study: {} for study in STUDIES}
    for dataset in datasets:
        for study in STUDIES:
            planned = plan_study(study, dataset)
            if dataset not in PAPER_DATASETS:
                planned = {run.path: run.config for run in runs if run.path in planned}
            plans[study] |= planned
    known = {path for plan in plans.values() for path in plan}
    plans[OTHER] = {run.path: run.config for run in runs if run.path not in known}
    return Grid(root, tuple(runs), plans)


#: Where triggers lie that do not lie in a corner, in words.
_PLACES = {
    "fixed-random": "at a random place",
    "per-image": "at another place in every image",
    "early-corner": "there before the crop",
}


def describe_setting(config: RunConfig) -> GridSetting:
    """Return data set, split and attack of a run in words."""
    names = list(PAPER_DATASETS)
    place = names.index(config.dataset) if config.dataset in names else len(names)
    dataset = PAPER_DATASETS.get(config.dataset, Path(config.dataset).stem)
    alpha = config.split.alpha
    split = config.split.kind.upper() if config.split.kind == "iid" else config.split.kind
    if alpha is not None:
        split = f"alpha = {alpha:g}"
    attack = config.attack
    usual = (attack.kind, attack.position, attack.groups) == ("patch", "corner", 1)
    parts = [] if attack.kind == "patch" else [f"{attack.kind} trigger"]
    parts += [] if attack.position == "corner" else [f"trigger {_PLACES[attack.position]}"]
    parts += [] if attack.groups == 1 else [f"{attack.groups} groups"]
    words = "" if usual else " and ".join(parts)
    rank = (place, dataset, not usual, config.split.kind != "iid", -(alpha or 0), words)
    return GridSetting(rank, dataset, split, words)


def rank_code(name: str) -> tuple[int, str]:
    """Order the paper's codes by letter, then ours."""
    known = ("a", "b", "c", "d", "e", "f", "g", "h16", "h", "btc3416")
    return (known.index(name) if name in known else len(known), name)


def _open_run(place: Path, path: str) -> GridRun:
    code = Code.load(place / "code.json")
    records = read_records(place, code)
    studies = [_load_study(file, code) for file in (place / "studies").glob("*.json")]
    studies.sort(key=lambda study: (study["repeat"], study["n_attackers"]))
    return GridRun(path, load_config(place / "config.yaml"), code, records, tuple(studies))


def _load_study(file: Path, code: Code) -> Record:
    study = load_study(file)
    missing = [key for key in ("repeat", "n_attackers", "code_digest") if key not in study]
    if missing:
        raise InputError(f"{file}: a study lacks {', '.join(missing)}")
    if study["code_digest"] != code.digest:
        raise InputError(f"{file}: a study of another code than code.json")
    return study
