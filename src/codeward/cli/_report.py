"""``codeward report``: a run folder, or a grid of them, as one HTML file."""

import json
from pathlib import Path

import typer

from codeward._errors import InputError


def report(
    folder: Path = typer.Argument(
        ..., metavar="DIR", help="Run folder (`codeward run -o DIR`), or grid folder (`codeward reproduce -o DIR`)."
    ),
    output: Path = typer.Option(None, "-o", "--output", help="HTML file; by default DIR/report.html."),
    as_json: bool = typer.Option(False, "--json", help="Print what was computed as one JSON object."),
) -> None:
    """Write a report of a run or a grid: one HTML file that needs nothing else, for screen, phone and paper.

    Of a run it says what was run, what the code guarantees and what it does not, and what was measured: whether the
    attack worked, accuracy, alarms, suspects, ROC curves and certified accuracy. All from records and vote files.

    Of a grid it shows what is complete, the paper's Figure 5 as small multiples, its Table 1 beside ours, and what goes
    past them, all from records and studies; the tables go to tables.md beside the page, too.

    Example: codeward report runs/mnist -o mnist.html
    """
    from codeward._progress import show_progress
    from codeward.report import Report, count_steps, write_report
    from codeward.reproduction import count_grid_steps, is_grid, write_grid_report

    target = output or folder / "report.html"
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{target}: a report ends in .html")
    if target.is_dir():
        raise InputError(f"{target}: is a folder; give the name of a file")
    of_grid = is_grid(folder)
    steps = count_grid_steps(folder) if of_grid else count_steps(folder)
    with show_progress("report", steps, quiet=as_json) as progress:
        made = (write_grid_report if of_grid else write_report)(folder, target, progress)
    files = {"report": str(target)} if isinstance(made, Report) else _name_files(target)
    if as_json:
        print(json.dumps({**files, **made.to_json()}))
        return
    for note in made.notes:
        typer.echo(f"note: {note}")
    for name, file in files.items():
        typer.echo(f"{name}: {file} ({Path(file).stat().st_size / 1024:.0f} KiB)")


def _name_files(target: Path) -> dict[str, str]:
    return {"report": str(target), "tables": str(target.with_name("tables.md"))}
