"""``codeward reproduce``: the paper's figure and table, and what goes past them."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from codeward.cli._cluster import open_cluster
from codeward.cli._sample_study import reproduce_samples
from codeward.cli._writers_study import reproduce_writers

if TYPE_CHECKING:
    from codeward.runs import RunConfig


def reproduce(
    study: str = typer.Argument(
        ...,
        metavar="figure5|table1|past|samples|writers|pack|unpack|claims",
        help="What to reproduce; or what to do with the grid folder.",
    ),
    dataset: str = typer.Option("mnist", help="mnist or cifar10; any data set that `codeward data list` knows."),
    smoke: bool = typer.Option(False, "--smoke", help="The whole pipeline on the embedded digits, in under a minute."),
    repeats: int = typer.Option(None, min=1, help="Repeats; by default the paper's 5 (figure5) and 10 (table1)."),
    codes: list[str] = typer.Option([], "--code", "--codes", help="Only this code; may be given several times."),
    splits: list[str] = typer.Option([], "--split", help="Only this setting: iid, alpha1, ...; past: iid-blended, ..."),
    recipe: str = typer.Option("paper", metavar="paper|modern", help="How models are trained; modern: beside it."),
    attackers: list[int] = typer.Option([], "--attackers", min=0, help="Only cells with this many; several times."),
    parts: str = typer.Option(None, "--parts", help="samples: numbers of parts, such as 50,250,1000."),
    decoders: str = typer.Option("plurality,runoff", "--decoders", help="samples: plurality, runoff, consensus."),
    seed: int = typer.Option(0, "--seed", min=0, help="samples: seed of the models and of random codes."),
    epochs: int = typer.Option(None, "--epochs", min=1, help="samples: epochs instead of the recipe's own number."),
    output: Path = typer.Option(None, "-o", "--output", help="Grid folder; by default results (runs/smoke: --smoke)."),
    store: Path = typer.Option(None, help="Model store; by default in the grid folder."),
    data_dir: Path = typer.Option(None, "--data-dir", help="Where the data sets are; else CODEWARD_DATA."),
    scores: bool = typer.Option(False, "--scores", help="Keep class scores in the vote files (large)."),
    without_scores: bool = typer.Option(False, "--drop-scores", help="pack: class scores too, by leaving them out."),
    votes_only: bool = typer.Option(False, "--votes-only", help="Train and vote, but count on another machine."),
    count_only: bool = typer.Option(False, "--count-only", help="Train nothing; count what vote files there are."),
    studies: bool = typer.Option(True, help="Study the votes beyond the records: other decoders, certificates, ..."),
    engine: str = typer.Option(None, "--engine", metavar="serial|ray", help="Train here (default) or with Ray."),
    address: str = typer.Option(
        None, "--address", metavar="auto|HOST:PORT", help="Ray cluster to join; by default Ray starts on this machine."
    ),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bars."),
    as_json: bool = typer.Option(False, "--json", help="Print what is complete as one JSON object."),
) -> None:
    """Reproduce Figure 5 or Table 1 of the paper, or run the studies past it.

    The grid is a folder of run folders, <data set>-<setting>/<code>. The same command goes on from whatever records and
    vote files are there, so that short slots on a GPU add up; nothing is trained twice. Afterwards `codeward report` on
    the grid folder makes the page, with the figure as small multiples, the table, and what is complete.

    `samples` deals the training samples to parts by a hash of their content and trains a code over the parts:
    `--codes` partition, boosted, shifted-hash, shifted-hash-16, bagging, designed. Then it certifies how many samples
    may be inserted, removed or relabelled (a changed input counts two) before a test label may change.

    `writers` takes MNIST's 539 real writers as users, linear heads on features that nobody trained, and certifies
    against colluding writers (docs/writers.md).

    `pack` puts the run folders of each setting (with --split: of these) into two small files that `codeward report`
    reads as well; `unpack` writes them out again. A study unpacks the settings it goes on with. `claims` computes the
    figures of claims.json anew and says which of those that pages quote do not agree.

    Example: codeward reproduce table1 --dataset mnist --data-dir data && codeward report results
    """
    from codeward._errors import InputError
    from codeward.reproduction import count_grid, plan_cells, plan_study, study_grid, unpack_setting, vote_grid
    from codeward.training import ModelStore

    if votes_only and count_only:
        raise InputError("--votes-only and --count-only exclude each other")
    folder = output or Path("runs/smoke" if smoke else "results")
    if study == "claims":
        _claim(folder)
        return
    if study in ("pack", "unpack"):
        _pack(folder, study, [f"{dataset}-{split}" for split in splits], without_scores, as_json)
        return
    if study == "writers":
        reproduce_writers(folder, codes, data_dir, smoke, quiet, as_json)
        return
    if study == "samples":
        reproduce_samples(
            folder,
            dataset,
            parts,
            codes,
            decoders,
            seed,
            epochs,
            data_dir,
            votes_only,
            count_only,
            smoke,
            quiet,
            as_json,
        )
        return
    if recipe not in ("paper", "modern"):
        raise InputError(f"--recipe {recipe}: expected paper or modern")
    runs = plan_study(study, dataset, repeats, codes, splits, smoke, attackers=attackers, recipe=recipe)
    for setting in dict.fromkeys(path.split("/")[0] for path in runs):
        unpack_setting(folder, setting)
    shown = not quiet and not as_json
    try:
        if not count_only:
            with open_cluster(engine, address) as cluster:
                vote_grid(runs, folder, ModelStore(store or folder / "store"), shown, scores, cluster, data_dir)
        recorded = 0 if votes_only else sum(1 for _ in count_grid(runs, folder, shown))
        if studies and not votes_only:
            study_grid(runs, folder, shown, smoke)
        if not votes_only:
            _draw(runs, folder, data_dir)
    except KeyboardInterrupt:
        print(f"codeward: interrupted; the same command goes on from what is in {folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    cells = plan_cells(runs, folder)
    voted = sum(planned.is_there for planned in cells)
    if as_json:
        print(json.dumps({"folder": str(folder), "cells": len(cells), "voted": voted, "recorded": recorded}))
        return
    typer.echo(f"{study}: {voted} of {len(cells)} cells have votes, {recorded} are recorded, in {folder}")
    if not votes_only:
        typer.echo(f"next: codeward report {folder}")


def _pack(folder: Path, action: str, settings: list[str], without_scores: bool, as_json: bool) -> None:
    """Pack or unpack settings of a grid folder, all by default, and say what became of them."""
    from codeward._errors import InputError
    from codeward.reproduction import drop_scores, list_packed, pack_setting, unpack_setting

    plain = {file.parents[1].name for file in folder.glob("*/*/config.yaml")}
    packed = {setting.path.name for setting in list_packed(folder)}
    known = plain | packed if action == "pack" else packed
    for setting in settings:
        if setting not in known:
            raise InputError(f"{folder}: no setting {setting} to {action}, but {', '.join(sorted(known)) or 'none'}")
    done: dict[str, dict[str, str]] = {}
    for setting in sorted(settings or (plain if action == "pack" else packed)):
        if action == "pack" and without_scores:
            drop_scores(folder, setting)
        done[setting] = pack_setting(folder, setting)[1] if action == "pack" else {}
        if action == "unpack":
            unpack_setting(folder, setting)
    if as_json:
        print(json.dumps({"folder": str(folder), "settings": list(done), "left_out": done}))
        return
    for setting, left_out in done.items():
        typer.echo(f"{action}ed: {setting}")
        for run, why in left_out.items():
            typer.echo(f"note: {setting}/{run} stays as it is: {why}")


def _claim(folder: Path) -> None:
    """Compute quoted figures anew; status 1 where a page says something else."""
    from codeward.reproduction import check_claims, fill_claims

    typer.echo(f"claims: {fill_claims(folder)} figures in {folder / 'claims.json'}")
    wrong = check_claims(folder)
    for line in wrong:
        typer.echo(line, err=True)
    if wrong:
        raise typer.Exit(1)


def _draw(runs: "Mapping[str, RunConfig]", folder: Path, data_dir: Path | None) -> None:
    """Draw who holds what; where the data or matplotlib are not, say so and go on."""
    from codeward._errors import InputError
    from codeward.reproduction import draw_grid

    try:
        draw_grid(runs, folder, data_dir)
    except ImportError:
        print("codeward: no plots, matplotlib is missing (pip install 'codeward[plot]')", file=sys.stderr)
    except InputError as error:
        print(f"codeward: users' class shares not drawn: {error}", file=sys.stderr)
