"""What a grid folder holds for a report: run folders with their records and studies, and what is planned."""

import contextlib
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.codes import Code
from codeward.decoding import VoteSet
from codeward.report import Share
from codeward.reproduction._findings import check_study
from codeward.reproduction._packed_setting import PackedRun, list_packed
from codeward.reproduction._studies import PAPER_DATASETS, PAPER_STUDIES, STUDIES, is_usual_attack, plan_study
from codeward.runs import Cell, RunConfig, RunFolder, list_inner_runs, name_triggered

#: Runs of no study.
OTHER = "other"

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

    Examples
    --------
    >>> grid = Grid(Path("grid"), (), {study: plan_study(study, "mnist") for study in STUDIES})
    >>> grid.sizes, grid.plans["figure5"]["mnist-iid/d"].users
    ([], 12)
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

    def pick_attacked(self, codes: Iterable[str]) -> list[GridRun]:
        """Return the runs with one of these codes that somebody attacks; all of them where nobody attacks any."""
        found = self.pick(codes)
        return [run for run in found if any(record["n_attackers"] for record in run.records)] or found

    @property
    def sizes(self) -> list[int]:
        """Numbers of attackers that have a record somewhere."""
        return sorted({record["n_attackers"] for run in self.runs for record in run.records})


def is_grid(folder: str | os.PathLike[str]) -> bool:
    """Say whether a folder is no run folder but has runs in it, as ``<data set>-<setting>/<code>``, or packed ones.

    Examples
    --------
    >>> is_grid("no/such/folder")
    False
    """
    return not RunFolder(folder).config_file.exists() and bool(list_inner_runs(folder) or list_packed(folder))


def list_runs(folder: str | os.PathLike[str]) -> dict[str, RunFolder]:
    """Return the runs of a grid by path: run folders, and those of packed settings.

    Examples
    --------
    >>> list_runs("no/such/folder")
    {}
    """
    found: dict[str, RunFolder] = {}
    for setting in list_packed(folder):
        found |= {f"{setting.path.name}/{run}": PackedRun(setting, run) for run in setting.runs}
    found |= {path.relative_to(folder).as_posix(): RunFolder(path) for path in list_inner_runs(folder)}
    return dict(sorted(found.items()))


def drop_scores(folder: str | os.PathLike[str], setting: str) -> None:
    """Write the vote files of a setting anew without class scores and example images, which are not packed.

    What was computed from scores stays in records and studies, and cannot be computed again.

    Examples
    --------
    >>> drop_scores("no/such/folder", "mnist-iid")  # no runs: nothing happens
    """
    for path, place in list_runs(folder).items():
        if path.split("/")[0] == setting and not isinstance(place, PackedRun):
            for known in place.list_votes():
                drop_cell_scores(Cell(place, *known))


def drop_cell_scores(cell: Cell) -> None:
    """Write the vote files of one cell anew without class scores, and remove its example images."""
    parts = {"validation": cell.validation, "clean": cell.clean}
    count = len(cell.triggered)
    parts |= {name_triggered(number, count): votes for number, votes in enumerate(cell.triggered)}
    if any(given.scores is not None for given in parts.values()):
        about = {key: value for key, value in cell.about.items() if key not in ("format", "digests")}
        cell.save_votes({name: VoteSet(v.votes, v.labels) for name, v in parts.items()}, about)
    picture = cell.folder.gallery(cell.repeat, cell.n_attackers)
    picture.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # there are others, or another process was first
        picture.parent.rmdir()


def read_picture(place: RunFolder) -> str | None:
    """Return the picture of the users' class shares that a run drew; None where there is none."""
    file = place.plots / "users.svg"
    return place.read_text(file) if place.holds(file) else None


def open_grid(folder: str | os.PathLike[str], progress: Progress | None = None) -> Grid:
    """Read a grid folder, advancing the progress by one a run.

    Raises
    ------
    InputError
        When it holds no run, or a run whose records, studies and code do not belong together.

    Examples
    --------
    >>> open_grid("no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no records in any run folder; ...
    """
    bar = progress or silent()
    root = Path(folder)
    runs = []
    for path, place in list_runs(root).items():
        runs.append(_open_run(place, path))
        bar.advance(note="records")
    if not any(run.records for run in runs):
        raise InputError(f"{root}: no records in any run folder; `codeward reproduce figure5 -o {root}` makes them")
    runs.sort(key=lambda run: (run.setting.rank, rank_code(run.code_name)))
    kinds = dict.fromkeys(
        (run.config.dataset, run.config.training.recipe or "modern", run.config.training.committee or 1) for run in runs
    )
    plans: dict[str, dict[str, RunConfig]] = {study: {} for study in STUDIES}
    for dataset, recipe, committee in kinds:
        for study in STUDIES:
            planned = plan_study(study, dataset, recipe=recipe, committee=committee)
            whole = dataset in PAPER_DATASETS and study in PAPER_STUDIES and (recipe, committee) == ("paper", 1)
            if not whole:
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
    modern = config.dataset in PAPER_DATASETS and config.training.recipe != "paper"
    dataset += ", modern recipe" if modern else ""
    committee = config.training.committee or 1
    dataset += f", {committee} networks a model" if committee > 1 else ""
    alpha = config.split.alpha
    split = config.split.kind.upper() if config.split.kind == "iid" else config.split.kind
    if alpha is not None:
        split = f"alpha = {alpha:g}"
    attack = config.attack
    usual = is_usual_attack(config)
    parts = [] if attack.kind == "patch" else [f"{attack.kind} trigger"]
    parts += [] if attack.position == "corner" else [f"trigger {_PLACES[attack.position]}"]
    alone = attack.groups == config.users
    parts += [] if attack.groups == 1 else ["every user alone" if alone else f"{attack.groups} groups"]
    words = "" if usual else " and ".join(parts)
    rank = (place, modern, dataset, not usual, config.split.kind != "iid", -(alpha or 0), words)
    return GridSetting(rank, dataset, split, words)


def rank_code(name: str) -> tuple[int, str]:
    """Order the paper's codes by letter, then ours."""
    known = ("a", "b", "c", "d", "e", "f", "g", "h16", "h", "btc3416")
    return (known.index(name) if name in known else len(known), name)


def _open_run(place: RunFolder, path: str) -> GridRun:
    records = tuple(Cell(place, *known).record for known in place.list_records())
    studies = [check_study(place.read_json(file), file) for file in place.list_json("studies")]
    if len({record["config_digest"] for record in records}) > 1:
        raise InputError(f"{place.path}: holds records of different configurations; one run at a time")
    if any(study["code_digest"] != place.code.digest for study in studies):
        raise InputError(f"{place.path}: a study of another code than code.json")
    studies.sort(key=lambda study: (study["repeat"], study["n_attackers"]))
    return GridRun(path, place.config, place.code, records, tuple(studies), read_picture(place))


def list_records(run: GridRun, size: int, repeats: Collection[int] | None = None) -> list[Record]:
    """Return the records of a run with so many attackers, one a repeat."""
    return [r for r in run.records if r["n_attackers"] == size and (repeats is None or r["repeat"] in repeats)]


def list_shares(
    run: GridRun, size: int, decoder: str, kept: str = "all", repeats: Collection[int] | None = None
) -> list[Share]:
    """Return right labels by repeat and group: of clean inputs without attackers, else of triggered ones."""
    found = []
    for record in list_records(run, size, repeats):
        figures = record["figures"]
        cells = [group["triggered"] for group in figures["groups"]] if size else [figures["clean"]]
        found += [cell[kept][decoder] for cell in cells]
    return found


def list_calibrated(
    run: GridRun, size: int, figure: str = "right", kept: str = "all", repeats: Collection[int] | None = None
) -> list[Share]:
    """Return right labels or alarms of the run's own decoder, where records have it, like `list_shares`."""
    records = list_records(run, size, repeats)
    parts = [record["figures"]["decoder"] for record in records if "decoder" in record["figures"]]
    cells = [group[kept] for part in parts for group in part["groups"]] if size else [part["clean"] for part in parts]
    return [cell[figure] for cell in cells]


def list_success(
    run: GridRun, size: int, models: str = "hit_models", repeats: Collection[int] | None = None
) -> list[Share]:
    """Return target votes of hit or of clean models, by repeat and group."""
    records = list_records(run, size, repeats)
    return [group["success"][models] for record in records for group in record["figures"]["groups"]]


def list_common(run: GridRun, size: int, part: str, names: Sequence[str]) -> dict[str, list[Record]]:
    """Return what studies say of every name, on the repeats that all names have which have any.

    Costly decoders are studied on a few repeats only; on others' repeats, other attackers are drawn, and the figures
    would differ for that alone.

    Parameters
    ----------
    run : GridRun
    size : int
        Number of attackers.
    part : {"decoders", "tracking", "detection"}
    names : sequence of str
    """
    studies = [study for study in run.studies if study["n_attackers"] == size]
    repeats = [{study["repeat"] for study in studies if name in study.get(part, {})} for name in names]
    known = [found for found in repeats if found]
    common = set.intersection(*known) if known else set()
    chosen = [study[part] for study in studies if study["repeat"] in common and part in study]
    return {name: [figures[name] for figures in chosen if name in figures] for name in names}


def list_certified(run: GridRun, kind: str) -> dict[int, list[Share]]:
    """Return certified accuracy by k, a share a repeat; ``kind`` starts the certificate's name."""
    found: dict[int, list[Share]] = {}
    for study in run.studies:
        for name, curve in study.get("certified", {}).items():
            if name.startswith(kind):
                for k, count in enumerate(curve["right"]):
                    found.setdefault(k, []).append({"count": count, "of": curve["inputs"]})
    return found
