"""One HTML file that tells a run: self-contained, for screen, phone and paper."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codeward._errors import InputError
from codeward._files import write_json, write_text_atomic
from codeward._notebook import Drawing
from codeward._progress import Progress, silent
from codeward.certificates import CertifiedCurve
from codeward.codes import Inspection, inspect
from codeward.report import _run_sections as sections
from codeward.report._page import adopt_svg, write_page
from codeward.report._run_conclusion import conclude, show_votes, tell_promise, tell_targets
from codeward.report._table_builder import Table
from codeward.runs import Cell, RunFolder, list_cells

ReportKind = Literal["html", "latex", "csv", "json"]
#: Where a report goes by default, in its run folder.
ENDINGS: dict[ReportKind, str] = {
    "html": "report.html",
    "latex": "report.tex",
    "csv": "report-tables",
    "json": "report.json",
}


@dataclass(frozen=True, eq=False)
class Report:
    """A report and the figures it computed.

    Attributes
    ----------
    html : str
        The page.
    cells : tuple of Cell
        What it is about.
    inspection : Inspection
        What the code guarantees.
    detections : list of Detection
    curves : dict of str to CertifiedCurve
    notes : tuple of str
        What is missing from the page, and why.
    tables : tuple of Table
        Those of the page.
    figures : dict of str to Drawing
        Its charts and pictures by name, as SVG elements.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.estimators import plan_training, train_guarded
    >>> from codeward.runs import TrainConfig
    >>> rows = {"x": [0.0, 1.0] * 20, "y": ["no", "yes"] * 20, "user": [f"u{place // 8}" for place in range(40)]}
    >>> config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train={"model": "logistic"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train_guarded(plan_training(config, rows), folder)
    ...     report = build_report(folder)
    >>> report.curves["plurality vote"].at(0), sorted(report.figures)
    (1.0, ['certified', 'code'])
    """

    html: str
    cells: tuple[Cell, ...]
    inspection: Inspection
    detections: list[sections.Detection]
    curves: dict[str, CertifiedCurve]
    notes: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    figures: dict[str, Drawing] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the computed figures as one JSON object."""
        auc: dict[str, list[float]] = {}
        for detection in self.detections:
            auc.setdefault(str(detection.n_attackers), []).append(detection.auc)
        return {
            "title": sections.name_run(self.cells),
            "records": len(self.cells),
            "auc": auc,
            "certified": {name: [float(share) for share in curve.accuracy] for name, curve in self.curves.items()},
            "notes": list(self.notes),
        }


def count_steps(folder: str | os.PathLike[str]) -> int:
    """Return what `build_report` advances its progress by, in total: one a record, and four.

    Examples
    --------
    >>> count_steps("a/folder/without/records")
    4
    """
    return len(RunFolder(folder).list_records()) + 4


def build_report(folder: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Tell a run folder as one HTML page, from its records, its code and its vote files; nothing is trained.

    Guarantees: the page needs nothing outside itself and runs no script; text from the folder is escaped; the same
    folder gives the same bytes. Where vote files are missing, the page lacks their parts and says so.

    Parameters
    ----------
    folder : path-like
        A run folder; see `codeward.runs.RunFolder`.
    progress : Progress, optional
        Advanced by `count_steps` in total.

    Raises
    ------
    InputError
        When the folder is no run folder, has no records, or its parts do not belong together.

    Examples
    --------
    >>> build_report("no/such/folder")
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no such folder
    """
    bar = progress or silent()
    cells = tuple(list_cells(folder))
    inspection = inspect(cells[0].code)
    bar.advance(note="detection")
    detections = sections.measure_detection(cells, bar)
    bar.advance(0, note="certificates")
    curves, notes = sections.certify_cells(cells, inspection, bar)
    kept = sections.certify_promise(cells)
    missing, users = list[str](), None
    drawn = cells[0].folder.plots / "users.svg"
    if drawn.is_file():
        try:
            users = adopt_svg(drawn.read_text(encoding="utf-8"), "users-", "Class shares of every user")
        except (InputError, UnicodeDecodeError) as error:
            missing.append(f"plots/users.svg was left out: {error}")
    content: dict[str, Any] = {
        **conclude(cells, inspection, curves, kept),
        **show_votes(cells, inspection),
        **sections.tell_run(cells, inspection),
        **tell_promise(cells, inspection, kept),
        **sections.tell_figures(cells, inspection),
        **sections.tell_detection(detections),
        **sections.tell_certificates(curves, notes),
        **tell_targets(cells, curves),
    }
    title, footer = (
        sections.name_run(cells),
        "Made by codeward from records, code and vote files of the run folder alone.",
    )
    html = write_page("run.html", title=title, footer=footer, missing=missing, users=users, **content)
    bar.advance()
    shown = (
        *content["measured"].values(),
        content["detected"],
        content["certified"],
        content["forced"],
        content["guarantees"],
        content["margins"],
    )
    drawings = {"votes": content["votes_picture"], "code": content["matrix"]}
    for name in ("accuracy", "roc", "certified"):
        drawings[name] = next((panel.chart for panel in content[f"{name}_panels"]), None)
    tables = tuple(table for table in shown if table is not None)
    figures = {name: chart for name, chart in drawings.items() if chart is not None}
    return Report(html, cells, inspection, detections, curves, (*notes, *missing), tables, figures)


def write_report(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    kind: ReportKind = "html",
) -> Report:
    """Build a report (see `build_report`) and write it, atomically; to ``report.html`` in the folder by default.

    Parameters
    ----------
    folder : path-like
    path : path-like, optional
    progress : Progress, optional
    kind : {"html", "latex", "csv", "json"}
        The page, with its figures as SVG files in ``figures`` beside it; or every table of it: as one ``.tex`` or
        ``.json`` file, or as a folder of ``.csv`` files.

    Examples
    --------
    >>> write_report("no/such/folder")
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no such folder
    """
    report = build_report(folder, progress)
    target = Path(folder) / ENDINGS[kind] if path is None else Path(path)
    if kind == "html":
        write_text_atomic(target, report.html)
        for name, chart in report.figures.items():
            chart.save(target.parent / "figures" / f"{name}.svg")
    else:
        save_tables(report.tables, target, kind, report.to_json())
    return report


def save_tables(tables: Sequence[Table], target: Path, kind: ReportKind, told: Mapping[str, Any]) -> None:
    """Write tables as one ``.tex`` or ``.json`` file (there with ``told``), or as a folder of ``.csv`` files.

    Examples
    --------
    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tables([], Path(folder, "a.json"), "json", {"records": 2})
    ...     json.loads(Path(folder, "a.json").read_text())
    {'records': 2, 'tables': []}
    """
    if kind == "csv":
        for table in tables:
            write_text_atomic(target / f"{table.name}.csv", table.to_csv())
    elif kind == "latex":
        write_text_atomic(target, "\n".join(table.to_latex() for table in tables))
    else:
        found = {**told, "tables": [table.to_json() for table in tables]}
        write_json(target, found)
