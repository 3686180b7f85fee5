"""``codeward compare``: attacks against defences, one table and one picture."""

import json
from pathlib import Path

import typer

from codeward._errors import InputError
from codeward._figures import show_percent


def compare(
    config: Path = typer.Argument(None, metavar="CONFIG", help="YAML: dataset, users, attackers, attacks, defences."),
    smoke: bool = typer.Option(False, "--smoke", help="Two attacks, five defences, one seed: a minute on digits."),
    output: Path = typer.Option(Path("runs/compare"), "-o", "--output", help="Folder; what is there is kept."),
    data_dir: Path = typer.Option(None, "--data-dir", help="Where data sets are; else CODEWARD_DATA."),
    as_json: bool = typer.Option(False, "--json", help="Print figures and files as one JSON object."),
) -> None:
    """Compare defences under attack: right labels, alarms, names, guarantees and costs, on the same users and seeds.

    Every attack meets every defence; one record a cell, so that an interrupted comparison goes on where it was. The
    report has the tables with every defence's worst case in bold; LaTeX and CSV files are beside it.

    Example: codeward compare --smoke -o runs/compare
    """
    from codeward._progress import show_progress

    if config is not None and not config.is_file():
        raise InputError(f"{config}: no such configuration file")
    from codeward.experiments.comparison import Comparison, run_comparison
    from codeward.report import write_comparison

    if smoke:
        given = Comparison(
            attacks=("patch", "own-targets"),
            defences=("none", "spectral", "strip", "partition", "codeward"),
            seeds=(0,),
        )
    else:
        given = Comparison() if config is None else Comparison.load(config)
    figures = {}
    with show_progress("compare", given.n_cells, quiet=as_json) as bar:
        for cell, record in run_comparison(given, output, data_dir, bar):
            figures[cell.name] = record["figures"]
    files = write_comparison(output)
    if as_json:
        print(json.dumps({"figures": figures, "files": files}))
        return
    _print_table(given.attacks, given.defences, given.seeds, figures)
    typer.echo(f"report: {files['report']} (tables as .csv and .tex beside it)")


def _print_table(attacks, defences, seeds, figures) -> None:  # type: ignore[no-untyped-def]
    """Print right labels on triggered inputs, the worst of each defence marked."""
    shown = [attack for attack in attacks if attack != "none"]
    typer.echo("right labels on triggered inputs, mean over seeds; * a defence's worst")
    typer.echo(f"{'':17}" + "".join(f"{attack[:12]:>13}" for attack in shown))
    for defence in defences:
        means = []
        for attack in shown:
            found = [figures[f"{attack}-{defence}-seed{seed}"]["triggered"] for seed in seeds]
            means.append(sum(one["count"] / max(1, one["of"]) for one in found) / len(found))
        cells = [f"{show_percent(mean)}{'*' if mean == min(means) else ' '}" for mean in means]
        typer.echo(f"{defence:17}" + "".join(f"{cell:>13}" for cell in cells))
