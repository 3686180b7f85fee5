"""``codeward report``: a run folder, or a grid of them, as one HTML file."""

import json
from pathlib import Path

import typer

from codeward._errors import InputError

#: What files of each format end in.
SUFFIXES = {"html": (".html", ".htm"), "latex": (".tex",), "json": (".json",)}


def report(
    folder: Path = typer.Argument(
        ..., metavar="DIR", help="Run folder (`codeward run -o DIR`), or grid folder (`codeward reproduce -o DIR`)."
    ),
    output: Path = typer.Option(
        None, "-o", "--output", help="File to write; by default DIR/report.html (or .tex, ...)."
    ),
    kind: str = typer.Option(
        "html",
        "--format",
        metavar="html|latex|csv|json",
        help="The page, or every table of it (csv: a folder of files).",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print what was computed as one JSON object."),
) -> None:
    """Write a report of a run or a grid: one HTML file that needs nothing else, for screen, phone and paper.

    Of a run it says first whether it was defended and what is guaranteed, then shows one triggered input vote by vote,
    accuracy, alarms, who was named, and what is certified. All from records and vote files.

    Of a grid it shows the paper's Figure 5 as small multiples, its Table 1 beside ours, what goes past them and what is
    there, all from records and studies; all tables go to tables.md beside the page, too.

    Figures go to figures/ beside the page as SVG files. --format latex, csv or json writes every table instead.

    Example: codeward report runs/mnist -o mnist.html
    """
    from codeward._progress import show_progress
    from codeward.report import ENDINGS, Report, count_steps, write_report
    from codeward.reproduction import GridReport, count_grid_steps, is_grid, write_grid_report

    if kind not in ENDINGS:
        raise InputError(f"--format {kind}: choose html, latex, csv or json")
    target, of_grid = output or folder / ENDINGS[kind], is_grid(folder)
    if kind != "csv" and target.suffix.lower() not in SUFFIXES[kind]:
        raise InputError(f"{target}: a report as {kind} ends in {SUFFIXES[kind][0]}")
    if kind != "csv" and target.is_dir():
        raise InputError(f"{target}: is a folder; give the name of a file")
    steps = count_grid_steps(folder) if of_grid else count_steps(folder)
    with show_progress("report", steps, not as_json) as progress:
        if of_grid:
            made: Report | GridReport = write_grid_report(folder, target, progress, kind)
        else:
            made = write_report(folder, target, progress, kind)
    files = {"report": str(target)}
    if of_grid and kind == "html":
        files["tables"] = str(target.with_name("tables.md"))
    if as_json:
        print(json.dumps({**files, **made.to_json()}))
        return
    for note in made.notes:
        typer.echo(f"note: {note}")
    if isinstance(made, Report) and kind == "html":
        typer.echo(f"figures: {target.parent / 'figures'} ({', '.join(made.figures)}.svg)")
    for name, file in files.items():
        size = f" ({Path(file).stat().st_size / 1024:.0f} KiB)" if Path(file).is_file() else ""
        typer.echo(f"{name}: {file}{size}")
