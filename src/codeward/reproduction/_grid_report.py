"""A grid as one page and one file of tables."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward._progress import Progress, silent
from codeward.codes import inspect
from codeward.report import (
    ENDINGS,
    Panel,
    ReportKind,
    Style,
    Table,
    TableEntry,
    adopt_svg,
    draw_matrix,
    draw_sample,
    make_table,
    save_tables,
    sum_up_shares,
    write_page,
)
from codeward.reproduction import _panels, _paper_tables, _sample_tables, _study_tables
from codeward.reproduction._grid_folder import (
    Grid,
    GridRun,
    list_calibrated,
    list_runs,
    list_shares,
    list_success,
    open_grid,
)
from codeward.reproduction._studies import DESIGNED_SCHEME, PAPER_CODE, SCHEMES, STUDIES, TABLE1

#: Sections by id, with the words of the links at the top.
SECTIONS = {
    "story": "In short",
    "attack": "Does the attack work?",
    **{name: study.title for name, study in STUDIES.items()},
    "certified": "Certified accuracy",
    "samples": "Certified per sample",
    "codes": "The codes and what they promise",
    "users": "Who holds what",
    "limits": "What is not covered",
    "there": "What is there",
}
#: Tables that only files have: details of details.
FILED = (
    *("success", "figure5-other-labels", "clean", "table1-all", "unreached", "decoders-alarms", "dial", "assumed"),
    *("detection", "certified-all"),
)
_HEAD = """# Tables

Made by `codeward report` from the records and studies in this folder, and from nothing else. Where there are several
repeats or attacking groups: mean ± sample standard deviation over them. In brackets: the denominator.
"""


@dataclass(frozen=True, eq=False)
class GridReport:
    """A report of a grid.

    Attributes
    ----------
    html, markdown : str
        The page and the tables.
    grid : Grid
    notes : tuple of str
        What is missing from the page, and why.
    tables : tuple of Table
        All there are; the page leaves some to the files.

    Examples
    --------
    >>> GridReport("", "# Tables", Grid(Path("grid"), (), {}), notes=("no figure5.svg",)).to_json()["runs"]
    0
    """

    html: str
    markdown: str
    grid: Grid
    notes: tuple[str, ...]
    tables: tuple[Table, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what is there as one JSON object."""
        there, planned, studies = _paper_tables.count_progress(self.grid)
        return {
            "runs": len(self.grid.runs),
            "cells": there,
            "planned": planned,
            "studies": studies,
            "notes": list(self.notes),
        }


def count_grid_steps(folder: str | os.PathLike[str]) -> int:
    """Return what `build_grid_report` advances its progress by, in total: one a run, and two.

    Examples
    --------
    >>> count_grid_steps("a/folder/without/runs")
    2
    """
    return len(list_runs(folder)) + 2


def collect_tables(grid: Grid) -> dict[str, list[Table]]:
    """Return all tables of a grid by section, from records and studies alone."""
    tables: dict[str, list[Table]] = {
        "attack": [_paper_tables.tabulate_weakest(grid), _paper_tables.tabulate_success(grid)],
        "figure5": [
            *_paper_tables.tabulate_figure5(grid),
            _paper_tables.tabulate_clean(grid),
            _paper_tables.tabulate_calibrated(grid),
        ],
        "table1": [
            _paper_tables.tabulate_headline(grid),
            _paper_tables.tabulate_trackers(grid),
            _paper_tables.tabulate_contrast(grid),
        ],
        "past": [
            _study_tables.tabulate_designed(grid),
            _study_tables.tabulate_attacks(grid),
            _study_tables.tabulate_unreached(grid),
            _study_tables.tabulate_groups(grid),
            *_study_tables.tabulate_decoders(grid),
            _study_tables.tabulate_dial(grid),
            _study_tables.tabulate_assumed(grid),
            _study_tables.tabulate_detection(grid),
        ],
        "certified": [_study_tables.tabulate_certified_shades(grid), _study_tables.tabulate_certified(grid)],
        "samples": [*_sample_tables.tabulate_samples(_sample_tables.load_sample_records(grid.path))],
        "there": [*_paper_tables.tabulate_progress(grid)],
    }
    return {name: [table for table in found if table.groups] for name, found in tables.items()}


def write_tables(tables: Mapping[str, Sequence[Table]]) -> str:
    """Return the tables as Markdown; the same records and studies give the same bytes."""
    parts = [_HEAD]
    for name, found in tables.items():
        if found:
            parts += [f"## {SECTIONS[name]}\n", *(table.to_markdown() for table in found)]
    return "\n".join(parts)


def build_grid_report(folder: str | os.PathLike[str], progress: Progress | None = None) -> GridReport:
    """Tell a grid folder as one HTML page and a file of Markdown tables, from records and studies; nothing is decoded.

    Guarantees as of `codeward.report.build_report`: the page needs nothing outside itself and runs no script, text from
    the folder is escaped, the same folder gives the same bytes. What is not there is said, and nothing is extrapolated.

    Parameters
    ----------
    folder : path-like
        A folder of run folders ``<data set>-<setting>/<code>``, as `codeward reproduce` fills it, or packed settings.
    progress : Progress, optional
        Advanced by `count_grid_steps` in total.

    Raises
    ------
    InputError
        When there is no record in any run folder, or the parts of a run do not belong together.

    Examples
    --------
    >>> build_grid_report("no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no records in any run folder; ...
    """
    bar = progress or silent()
    grid = open_grid(folder, bar)
    tables = collect_tables(grid)
    bar.advance(note="tables")
    pictures, notes = _find_pictures(grid)
    there, planned, studied = _paper_tables.count_progress(grid)
    figure5, figure5_legend, absent = _panels.draw_figure5(grid)
    roc, roc_legend = _panels.draw_detection(grid)
    certified, certified_legend = _panels.draw_certified(grid)
    designed = _panels.draw_designed(grid)
    filed = [table.title for found in tables.values() for table in found if table.name in FILED]
    empty = {
        "figure5": not (figure5 or tables["figure5"]),
        "table1": not tables["table1"],
        "past": not (designed or tables["past"]),
        "certified": not (certified or tables["certified"]),
        "samples": not tables["samples"],
        "users": not pictures,
    }
    footer = "Made by codeward from the records and studies of the grid folder alone. " + " ".join(notes)
    html = write_page(
        "grid.html",
        "codeward.reproduction",
        title="The paper's figure and table, and past them: "
        + ", ".join(dict.fromkeys(run.setting.dataset.partition(",")[0] for run in grid.runs)),
        footer=footer.strip(),
        sections=SECTIONS,
        shown=[name for name in SECTIONS if not empty.get(name)],
        tables={name: [table for table in found if table.name not in FILED] for name, found in tables.items()},
        filed=filed,
        story=_tell_story(grid),
        tiles_of=_list_tiles(grid),
        there=there,
        planned=planned,
        studied=studied,
        figure5=figure5,
        figure5_legend=_sample(figure5_legend),
        absent=absent,
        designed=designed,
        roc=roc,
        roc_legend=_sample(roc_legend),
        certified=certified,
        certified_legend=_sample(certified_legend),
        users=pictures,
        **_tell_codes(grid),
    )
    bar.advance()
    every = tuple(table for found in tables.values() for table in found)
    return GridReport(html, write_tables(tables), grid, tuple(notes), every)


def write_grid_report(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    kind: ReportKind = "html",
) -> GridReport:
    """Build a report of a grid and write it, into the folder by default: the page, and ``tables.md`` beside it.

    Of another ``kind`` than html: every table, as `codeward.report.write_report` writes those of a run.

    Examples
    --------
    >>> write_grid_report("no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no records in any run folder; ...
    """
    report = build_grid_report(folder, progress)
    target = Path(folder) / ENDINGS[kind] if path is None else Path(path)
    if kind == "html":
        write_text_atomic(target, report.html)
        write_text_atomic(target.with_name("tables.md"), report.markdown)
    else:
        save_tables(report.tables, target, kind, report.to_json())
    return report


def _find_pictures(grid: Grid) -> tuple[list[Panel], list[str]]:
    """Return the class shares that runs drew, of the most uneven split of each data set, and what is missing."""
    found: dict[str, Panel] = {}
    notes: list[str] = []
    for run in grid.runs:  # in the order of their splits, the most uneven last
        if run.setting.attack or run.picture is None:
            continue
        name = run.setting.name
        try:
            drawn = adopt_svg(run.picture, f"users-{run.setting.dataset.replace(' ', '-')}-", f"Class shares: {name}")
            found[run.setting.dataset] = Panel(name, "", drawn)
        except InputError as error:
            notes.append(f"{run.path}/plots/users.svg was left out: {error}")
    return list(found.values()), notes


def _tell_codes(grid: Grid) -> dict[str, Any]:
    """Give picture and promises of every code."""
    runs: dict[str, GridRun] = {}
    for run in grid.runs:
        runs.setdefault(run.code.digest, run)
    codes, rows = [], []
    for run in runs.values():
        code, found = run.code, inspect(run.code)
        weights = sorted({int(weight) for weight in code.matrix.sum(axis=1)})
        users = str(weights[0]) if len(weights) == 1 else f"{weights[0]} to {weights[-1]}"
        held = (found.detect, found.correct, found.correct_arbitrary, found.track)
        margins = ", ".join("not computed" if margin is None else str(margin) for margin in found.margin[:3])
        texts = (run.code_name, str(code.n_models), users, *(str(k) if k else "nobody" for k in held), margins)
        rows.append(tuple(map(TableEntry, texts)))
        scheme = SCHEMES.get(run.code_name, DESIGNED_SCHEME)
        picture = draw_matrix(code.matrix, small=True)
        size = f"{code.n_models} by {code.n_users}"
        codes.append({"name": run.code_name, "size": size, "scheme": scheme, "picture": picture})
    heads = ("code", "models", "users a model", "detect", "recover the label", "recover, arbitrary", "name attackers")
    table = make_table(
        "codes-promises",
        "What the codes promise",
        "Colluding users up to which each property holds, deterministic where nothing else is said. Margin d leaves "
        "room for (d - 1) / 2 wrong votes of models that no attacker reaches, rounded down.",
        (*heads, "margin at k = 1, 2, 3"),
        rows,
    )
    return {"codes": codes, "promises": table}


def _tell_story(grid: Grid) -> list[str]:
    """Return what the grid found, a sentence a data set: labels under the largest attack, and who was named."""
    told, top = [], max(grid.sizes)
    usual = [run for run in grid.pick() if run.setting.split == "IID"]
    for run in usual:
        if run.code_name == "c" and top and (right := list_shares(run, top, "bayes")):
            vote, of = sum_up_shares(list_shares(run, top, "plurality"))
            said = f"the paper's decoder is right on {sum_up_shares(right)[0]} of triggered inputs"
            if own := list_calibrated(run, top):
                said = f"the calibrated decoder is right on {sum_up_shares(own)[0]} of triggered inputs"
                said += f", the paper's on {sum_up_shares(right)[0]}"
            told.append(
                f"{run.setting.name}: with {top} of {run.code.n_users} users attacking {said} and a plain vote on "
                f"{vote} ({run.code.n_models} models of {run.code.row_weight} users, {of})."
            )
    named: set[str] = set()
    for run in sorted(usual, key=lambda run: run.code_name != "h16"):
        printed = TABLE1.get((run.config.dataset, PAPER_CODE.get(run.code_name, "")))
        found = _paper_tables.list_tracking(run, 2, "bayes")
        if run.code_name in ("h16", "h") and found and printed and run.setting.name not in named:
            named.add(run.setting.name)
            cell = _paper_tables.tracking_cell(found)
            rightly, wrongly = cell.value.split(" / ")
            told.append(
                f"{run.setting.name}: of 2 attackers {rightly} are named and {wrongly} others, by {run.code.n_models} "
                f"models of {run.code.row_weight} of {run.code.n_users} users (paper: "
                f"{printed[1].true_positives:.2f} and {printed[1].false_positives:.2f}; {cell.of})."
            )
    return told


def _list_tiles(grid: Grid) -> list[tuple[str, str, str]]:
    """Return the headline figures: the largest attack on code c, if possible with a decoder fitted to its models."""
    tiles, top = [], max(grid.sizes)
    there = grid.pick(["c"])
    usual = [run for run in there if run.setting.split == "IID"] or there
    modern = [run for run in usual if list_calibrated(run, top)]
    for run in modern[-1:] or usual[:1]:
        if hit := list_success(run, top):
            tiles.append((f"{run.setting.name}: trigger works in hit models", *sum_up_shares(hit)))
        own = list_calibrated(run, top) or list_shares(run, top, "bayes")
        for shares, word in ((list_shares(run, top, "plurality"), "a vote"), (own, "the decoder")):
            if top and shares:
                tiles.append((f"{run.code.n_models} models, {top} attackers: {word} is right", *sum_up_shares(shares)))
    return tiles


def _sample(legend: Sequence[Style]) -> list[tuple[Any, str]]:
    return [(draw_sample(style), style.words) for style in legend]
