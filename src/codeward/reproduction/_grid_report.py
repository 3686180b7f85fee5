"""A grid as one page and one file of tables."""

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward._progress import Progress, silent
from codeward.report import Table, adopt_svg, write_page
from codeward.reproduction import _accuracy, _grid_sections, _naming, _past, _rates, _unreached
from codeward.reproduction._grid_folder import Grid, list_runs, open_grid

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
    """

    html: str
    markdown: str
    grid: Grid
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what is there as one JSON object."""
        there, planned, studies = _accuracy.count_progress(self.grid)
        return {
            "runs": len(self.grid.runs),
            "cells": there,
            "planned": planned,
            "studies": studies,
            "notes": list(self.notes),
        }


def count_grid_steps(folder: str | os.PathLike[str]) -> int:
    """Return what `build_grid_report` advances its progress by, in total: one a run, and two."""
    return len(list_runs(folder)) + 2


def collect_tables(grid: Grid) -> dict[str, list[Table]]:
    """Return all tables of a grid by section, from records and studies alone."""
    tables: dict[str, list[Table | None]] = {
        "there": [*_accuracy.tabulate_progress(grid)],
        "attack": [_accuracy.tabulate_weakest(grid), _accuracy.tabulate_success(grid)],
        "figure5": [*_accuracy.tabulate_figure5(grid), _accuracy.tabulate_clean(grid)],
        "table1": [*_naming.tabulate_table1(grid)],
        "past": [
            _past.tabulate_designed(grid),
            _past.tabulate_attacks(grid),
            _unreached.tabulate_unreached(grid),
            _past.tabulate_groups(grid),
            *_past.tabulate_decoders(grid),
            _rates.tabulate_dial(grid),
            _rates.tabulate_assumed(grid),
            _past.tabulate_detection(grid),
        ],
        "certified": [_past.tabulate_certified_shades(grid), _past.tabulate_certified(grid)],
    }
    return {name: [table for table in found if table is not None and table.groups] for name, found in tables.items()}


def write_tables(tables: dict[str, list[Table]]) -> str:
    """Return the tables as Markdown; the same records and studies give the same bytes."""
    parts = [_HEAD]
    for name, found in tables.items():
        if found:
            parts += [f"## {_grid_sections.SECTIONS[name]}\n", *(table.to_markdown() for table in found)]
    return "\n".join(parts)


def build_grid_report(folder: str | os.PathLike[str], progress: Progress | None = None) -> GridReport:
    """Tell a grid folder as one HTML page and a file of Markdown tables, from records and studies; nothing is decoded.

    Guarantees as of `codeward.report.build_report`: the page needs nothing outside itself and runs no script, text from
    the folder is escaped, the same folder gives the same bytes. What is not there is said, and nothing is extrapolated.

    Parameters
    ----------
    folder : path-like
        A folder of run folders ``<data set>-<setting>/<code>``, as `codeward reproduce` fills it.
    progress : Progress, optional
        Advanced by `count_grid_steps` in total.

    Raises
    ------
    InputError
        When there is no record in any run folder, or the parts of a run do not belong together.
    """
    bar = progress or silent()
    grid = open_grid(folder, bar)
    tables = collect_tables(grid)
    bar.advance(note="tables")
    pictures, notes = _find_pictures(grid)
    sections = {
        "there": _grid_sections.write_progress(grid, tables["there"]),
        "attack": _grid_sections.write_attack(tables["attack"]),
        "figure5": _grid_sections.write_figure5(grid, tables["figure5"]),
        "table1": _grid_sections.write_table1(tables["table1"]),
        "past": _grid_sections.write_past(grid, tables["past"]),
        "certified": _grid_sections.write_certified(grid, tables["certified"]),
        "codes": _grid_sections.write_codes(grid),
        "users": _grid_sections.write_users(pictures),
        "limits": _grid_sections.write_limits(),
    }
    shown = {name: body for name, body in sections.items() if body}
    datasets = ", ".join(dict.fromkeys(run.setting.dataset for run in grid.runs))
    footer = (
        "Made by codeward from the records and studies of the grid folder alone. The same tables, with their "
        "denominators, are in tables.md. " + " ".join(notes)
    )
    html = write_page(
        f"The paper's figure and table, and past them: {datasets}",
        "Report of a grid",
        _grid_sections.write_links(list(shown)) + "".join(shown.values()),
        (),
        footer.strip(),
        files("codeward.reproduction").joinpath("grid.css").read_text("utf-8"),
    )
    bar.advance()
    return GridReport(html, write_tables(tables), grid, tuple(notes))


def write_grid_report(
    folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> GridReport:
    """Build a report of a grid and write ``report.html`` in the folder (or ``path``), and ``tables.md`` beside it."""
    report = build_grid_report(folder, progress)
    target = Path(folder) / "report.html" if path is None else Path(path)
    write_text_atomic(target, report.html)
    write_text_atomic(target.with_name("tables.md"), report.markdown)
    return report


def _find_pictures(grid: Grid) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the class shares that runs drew, one a setting, and what is missing."""
    found: dict[str, str] = {}
    notes: list[str] = []
    settings: dict[str, None] = {}
    for run in grid.runs:
        if run.setting.attack:
            continue
        name = run.setting.name
        settings[name] = None
        if name in found or run.picture is None:
            continue
        try:
            found[name] = adopt_svg(run.picture, f"users{len(found)}-", f"Class shares of every user: {name}")
        except InputError as error:
            notes.append(f"{run.path}/plots/users.svg was left out: {error}")
    missing = [name for name in settings if name not in found]
    if missing:
        notes.append(f"Class shares are not shown for: {'; '.join(missing)} (no plots/users.svg).")
    return list(found.items()), notes
