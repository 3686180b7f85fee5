"""One HTML file that tells a run: self-contained, for screen, phone and paper."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward._progress import Progress, silent
from codeward.certificates import CertifiedCurve, plot_certified_accuracy
from codeward.report import _promises as promises
from codeward.report import _sections as sections
from codeward.report._evidence import Detection, certify_clean, certify_promise, measure_detection, plot_roc
from codeward.report._figures import plot_accuracy
from codeward.report._page import write_page
from codeward.report._run import ReportedRun, open_run
from codeward.report._svg import LINES, adopt_svg


@dataclass(frozen=True, eq=False)
class Report:
    """A report and the figures it computed.

    Attributes
    ----------
    html : str
        The page.
    run : ReportedRun
    detections : list of Detection
    curves : dict of str to CertifiedCurve
    notes : tuple of str
        What is missing from the page, and why.
    """

    html: str
    run: ReportedRun
    detections: list[Detection]
    curves: dict[str, CertifiedCurve]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the computed figures as one JSON object."""
        auc: dict[str, list[float]] = {}
        for detection in self.detections:
            auc.setdefault(str(detection.n_attackers), []).append(detection.every.auc)
        return {
            "title": self.run.name,
            "records": len(self.run.records),
            "auc": auc,
            "certified": {name: [float(share) for share in curve.accuracy] for name, curve in self.curves.items()},
            "notes": list(self.notes),
        }


def count_steps(folder: str | os.PathLike[str]) -> int:
    """Return what `build_report` advances its progress by, in total: one a record, and four."""
    return len(list(Path(folder, "records").glob("*.json"))) + 4


def build_report(folder: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Tell a run folder as one HTML page, from its records, its code and its vote files; nothing is trained.

    Guarantees: the page needs nothing outside itself and runs no script; text from the folder is escaped; the same
    folder gives the same bytes. Where vote files or matplotlib are missing, the page lacks their parts and says so.

    Parameters
    ----------
    folder : path-like
        A run folder; see `codeward.experiments.RunFolder`.
    progress : Progress, optional
        Advanced by `count_steps` in total.

    Raises
    ------
    InputError
        When the folder is no run folder, has no records, or its parts do not belong together.
    """
    bar = progress or silent()
    run = open_run(folder)
    bar.advance(note="detection")
    detections = measure_detection(run, bar)
    bar.advance(0, note="certificates")
    curves, notes = certify_clean(run, bar)
    kept = certify_promise(run)
    bar.advance(0, note="pictures")
    pictures, missing = _draw(run, detections, curves)
    parts = (
        sections.write_summary(run),
        promises.write_guarantee(run, kept),
        sections.write_figures(run, pictures),
        sections.write_detection(detections, pictures),
        sections.write_certificates(curves, notes, pictures),
        sections.write_users(pictures),
        promises.write_limits(run),
        promises.write_recipe(run),
    )
    footer = "Made by codeward from records, code and vote files of the run folder alone."
    html = write_page(run.name, "Report of a run", "".join(parts), missing, footer)
    bar.advance()
    return Report(html, run, detections, curves, (*notes, *missing))


def write_report(
    folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> Report:
    """Build a report (see `build_report`) and write it, atomically; to ``report.html`` in the folder by default."""
    report = build_report(folder, progress)
    write_text_atomic(Path(folder) / "report.html" if path is None else path, report.html)
    return report


def _draw(
    run: ReportedRun, detections: list[Detection], curves: Mapping[str, CertifiedCurve]
) -> tuple[dict[str, str], list[str]]:
    """Return the pictures by name, and what could not be drawn."""
    pictures: dict[str, str] = {}
    missing: list[str] = []
    kept = run.place.path / "plots" / "users.svg"
    if kept.is_file():
        try:
            pictures["users"] = adopt_svg(kept.read_text(encoding="utf-8"), "users-", "Class shares of every user")
        except (InputError, UnicodeDecodeError) as error:
            missing.append(f"plots/users.svg was left out: {error}")
    if find_spec("matplotlib") is None:
        missing.append("The plots were left out: matplotlib is missing (pip install 'codeward[plot]').")
        return pictures, missing
    pictures["accuracy"] = _take(lambda path: plot_accuracy(run.records, path), "accuracy-", "Accuracy by attackers")
    if detections:
        pictures["roc"] = _take(lambda path: plot_roc(detections, path), "roc-", "ROC curves of detection")
    if curves:
        label = "Certified accuracy by attackers"
        pictures["certified"] = _take(lambda path: plot_certified_accuracy(curves, path), "certified-", label)
    return pictures, missing


def _take(draw: Callable[[Path], None], prefix: str, label: str) -> str:
    """Draw a picture and take it in, its text as text: small, searchable, in the page's own letters."""
    from matplotlib import rc_context

    with tempfile.TemporaryDirectory() as place, rc_context({"svg.fonttype": "none"}):
        path = Path(place, "picture.svg")
        draw(path)
        return adopt_svg(path.read_text(encoding="utf-8"), prefix, label, LINES)
