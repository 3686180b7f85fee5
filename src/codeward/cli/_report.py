"""``codeward report``: a run folder as one HTML file."""

import json
from pathlib import Path

import typer

from codeward._errors import InputError


def report(
    folder: Path = typer.Argument(..., metavar="DIR", help="Run folder, as `codeward run -o DIR` makes it."),
    output: Path = typer.Option(None, "-o", "--output", help="HTML file; by default DIR/report.html."),
    as_json: bool = typer.Option(False, "--json", help="Print what was computed as one JSON object."),
) -> None:
    """Write a report of a run: one HTML file that needs nothing else, for screen, phone and paper.

    It says what was run, what the code guarantees and what it does not, and what was measured: whether the attack
    worked, accuracy, alarms, suspects, ROC curves and certified accuracy. All from records and vote files.

    Example: codeward report runs/mnist -o mnist.html
    """
    from codeward._progress import show_progress
    from codeward.report import count_steps, write_report

    target = output or folder / "report.html"
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{target}: a report ends in .html")
    if target.is_dir():
        raise InputError(f"{target}: is a folder; give the name of a file")
    with show_progress("report", count_steps(folder), quiet=as_json) as progress:
        made = write_report(folder, target, progress)
    if as_json:
        print(json.dumps({"report": str(target), **made.to_json()}))
        return
    for note in made.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"report: {target} ({target.stat().st_size / 1024:.0f} KiB)")
