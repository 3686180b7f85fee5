"""One HTML file that tells a run: self-contained, for screen, phone and paper."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward._progress import Progress, silent
from codeward.certificates import CertifiedCurve
from codeward.codes import Inspection, inspect
from codeward.report import _run_sections as sections
from codeward.report._page import write_page
from codeward.report._picture import adopt_svg
from codeward.report._run_measures import Detection, certify_clean, certify_promise, measure_detection
from codeward.runs import Cell, RunFolder, list_cells


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
    """

    html: str
    cells: tuple[Cell, ...]
    inspection: Inspection
    detections: list[Detection]
    curves: dict[str, CertifiedCurve]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the computed figures as one JSON object."""
        auc: dict[str, list[float]] = {}
        for detection in self.detections:
            auc.setdefault(str(detection.n_attackers), []).append(detection.every.auc)
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
    detections = measure_detection(cells, bar)
    bar.advance(0, note="certificates")
    curves, notes = certify_clean(cells, inspection, bar)
    kept = certify_promise(cells)
    missing, users = list[str](), None
    drawn = cells[0].folder.plots / "users.svg"
    if drawn.is_file():
        try:
            users = adopt_svg(drawn.read_text(encoding="utf-8"), "users-", "Class shares of every user")
        except (InputError, UnicodeDecodeError) as error:
            missing.append(f"plots/users.svg was left out: {error}")
    html = write_page(
        "run.html",
        title=sections.name_run(cells),
        footer="Made by codeward from records, code and vote files of the run folder alone.",
        missing=missing,
        users=users,
        **sections.tell_run(cells, inspection),
        **sections.tell_promise(cells, inspection, kept),
        **sections.tell_figures(cells, inspection),
        **sections.tell_detection(detections),
        **sections.tell_certificates(curves, notes),
    )
    bar.advance()
    return Report(html, cells, inspection, detections, curves, (*notes, *missing))


def write_report(
    folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> Report:
    """Build a report (see `build_report`) and write it, atomically; to ``report.html`` in the folder by default.

    Examples
    --------
    >>> write_report("no/such/folder")
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no such folder
    """
    report = build_report(folder, progress)
    write_text_atomic(Path(folder) / "report.html" if path is None else path, report.html)
    return report
