"""What a grid folder holds for a report: run folders with their records and studies, and what is planned."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.codes import Code
from codeward.experiments import RunConfig, load_config
from codeward.report import check_records, read_records
from codeward.reproduction._findings import check_study, load_study
from codeward.reproduction._packing import PackedSetting, list_packed
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
    picture : str or None
        SVG of the users' class shares, where the run drew it.
    """

    path: str
    config: RunConfig
    code: Code
    records: tuple[Record, ...]
    studies: tuple[Record, ...]
    picture: str | None = None

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
    """Say whether a folder is no run folder but has runs in it, as ``<data set>-<setting>/<code>``, or packed ones."""
    path = Path(folder)
    return not (path / "config.yaml").exists() and (any(path.glob("*/*/config.yaml")) or bool(list_packed(path)))


def list_runs(folder: str | os.PathLike[str]) -> dict[str, PackedSetting | None]:
    """Return the runs of a grid by path, with the packed setting they are in; None where they are plain folders."""
    found: dict[str, PackedSetting | None] = {}
    for setting in list_packed(folder):
        found |= {f"{setting.path.name}/{run}": setting for run in setting.runs}
    for file in Path(folder).glob("*/*/config.yaml"):
        if (file.parent / "code.json").exists():
            found[file.parent.relative_to(folder).as_posix()] = None
    return dict(sorted(found.items()))


def list_drawn(folder: str | os.PathLike[str]) -> list[RunConfig]:
    """Return the configurations of the runs that have a picture of their users' class shares."""
    found = []
    for path, packed in list_runs(folder).items():
        place = Path(folder, path)
        if packed is None and (place / "plots" / "users.svg").exists():
            found.append(load_config(place / "config.yaml"))
        elif packed is not None and f"{place.name}/plots/users.svg" in packed.files:
            found.append(_parse_config(packed.read_text(f"{place.name}/config.yaml"), f"{place}/config.yaml"))
    return found


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
    for path, packed in list_runs(root).items():
        runs.append(_open_run(root / path, path, packed))
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


def _open_run(place: Path, path: str, packed: PackedSetting | None) -> GridRun:
    picture: str | None = None
    if packed is None:
        code, config = Code.load(place / "code.json"), load_config(place / "config.yaml")
        records = read_records(place, code)
        studies = [(str(file), load_study(file)) for file in (place / "studies").glob("*.json")]
        file = place / "plots" / "users.svg"
        picture = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
    else:
        run = place.name
        code, config = (
            packed.load_code(run),
            _parse_config(packed.read_text(f"{run}/config.yaml"), f"{place}/config.yaml"),
        )
        records = check_records([packed.read_json(name) for name in packed.list_files(f"{run}/records")], place, code)
        names = packed.list_files(f"{run}/studies")
        studies = [(f"{packed.path}/{name}", check_study(packed.read_json(name), name)) for name in names]
        name = f"{run}/plots/users.svg"
        picture = packed.read_text(name) if name in packed.files else None
    for file_name, study in studies:
        missing = [key for key in ("repeat", "n_attackers", "code_digest") if key not in study]
        if missing:
            raise InputError(f"{file_name}: a study lacks {', '.join(missing)}")
        if study["code_digest"] != code.digest:
            raise InputError(f"{file_name}: a study of another code than code.json")
    ordered = sorted((study for _, study in studies), key=lambda study: (study["repeat"], study["n_attackers"]))
    return GridRun(path, config, code, records, tuple(ordered), picture)


def _parse_config(text: str, where: str) -> RunConfig:
    try:
        return RunConfig.model_validate(yaml.safe_load(text[:65_536]))
    except (yaml.YAMLError, ValidationError) as error:
        raise InputError(f"{where}: not a configuration ({' '.join(str(error).split())})") from error
