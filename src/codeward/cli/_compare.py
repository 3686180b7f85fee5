"""``codeward compare``: attacks against defences, one table and one picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import typer

from codeward._errors import InputError


def compare(
    config: Path = typer.Argument(
        None,
        metavar="CONFIG",
        help="YAML: dataset, users, attackers, attacks, defences; or records that were packed (.jsonl.gz).",
    ),
    smoke: bool = typer.Option(False, "--smoke", help="Two attacks, six defences, one seed: seconds on digits."),
    output: Path = typer.Option(Path("runs/compare"), "-o", "--output", help="Folder; what is there is kept."),
    data_dir: Path = typer.Option(None, "--data-dir", help="Where data sets are; else CODEWARD_DATA."),
    votes_only: bool = typer.Option(False, "--votes-only", help="Train all models in one go, keep votes."),
    pack: Path = typer.Option(None, "--pack", metavar="FILE", help="Also put all records into one .jsonl.gz."),
    as_json: bool = typer.Option(False, "--json", help="Print figures and files as one JSON object."),
) -> None:
    """Compare defences under attack: right labels, alarms, names, guarantees and costs, on the same users and seeds.

    Every attack meets every defence; one record a cell, so that an interrupted comparison goes on where it was. The
    report has a heatmap and tables with every defence's worst case in bold; LaTeX, CSV and Markdown are beside it.
    Where one machine has the GPU and another the time, --votes-only trains and the same command without it decodes. Of
    packed records (results/comparison/*.jsonl.gz) page and tables are written, and nothing is run.

    Example: codeward compare configs/compare-mnist.yaml -o runs/compare-mnist
    """
    if config is not None and not config.is_file():
        raise InputError(f"{config}: no such configuration file")
    if config is not None and config.suffix == ".gz":
        if any((smoke, votes_only, pack)):
            raise InputError(f"{config}: of records nothing is run; leave --smoke, --votes-only and --pack out")
        _show_packed(config, output, as_json)
        return
    from codeward.experiments.comparison import Comparison, run_comparison
    from codeward.report import pack_comparison, write_comparison

    if smoke:
        given = Comparison(
            attacks=("patch", "own-targets"),
            defences=("none", "spectral", "strip", "partition", "codeward", "fed-krum"),
            seeds=(0,),
            inputs=150,
        )
    else:
        given = Comparison() if config is None else Comparison.load(config)
    figures = {}
    for cell, record in run_comparison(given, output, data_dir, not as_json, votes_only):
        figures[cell.name] = record["figures"]
    if votes_only:
        typer.echo(json.dumps({"votes": str(output / "votes")}) if as_json else f"votes: {output / 'votes'}")
        return
    files = write_comparison(output)
    if pack is not None:
        pack_comparison(output, pack)
        files["pack"] = str(pack)
    _print_table(given.attacks, given.defences, given.seeds, figures, files, as_json)


def _show_packed(file: Path, output: Path, as_json: bool) -> None:
    """Write page and tables of packed records."""
    from codeward.report import ComparedRecords, write_comparison

    found = ComparedRecords.load(file)
    figures = {f"{one['attack']}-{one['defence']}-seed{one['seed']}": one["figures"] for one in found.records}
    seeds = sorted({one["seed"] for one in found.records})
    files = write_comparison(file, output / "report.html")
    _print_table(found.attacks, found.defences, seeds, figures, files, as_json)


def _print_table(
    attacks: Sequence[str],
    defences: Sequence[str],
    seeds: Sequence[int],
    figures: dict[str, dict[str, Any]],
    files: dict[str, str],
    as_json: bool,
) -> None:
    """Print right labels on triggered inputs in percent, each defence's mean and its worst attack, or all as JSON."""
    from codeward.runs import rate

    if as_json:
        print(json.dumps({"figures": figures, "files": files}))
        return
    typer.echo(f"{'right labels, percent':19}{'clean':>8}{'attacked':>10}{'worst':>8}  under")
    for defence in defences:
        means: dict[str, float] = {}
        for attack in attacks:
            found = [figures[name] for seed in seeds if (name := f"{attack}-{defence}-seed{seed}") in figures]
            if found and attack != "none":
                means[attack] = fmean(rate(one["triggered"]) for one in found)
        clean = fmean(rate(one["clean"]) for name, one in figures.items() if f"-{defence}-seed" in name)
        worst = min(means, key=lambda attack: means[attack], default=None)
        if worst is not None:
            mean = fmean(means.values())
            typer.echo(f"{defence:19}{100 * clean:8.1f}{100 * mean:10.1f}{100 * means[worst]:8.1f}  {worst}")
    typer.echo(f"report: {files['report']} (tables as .csv and .tex beside it)")
