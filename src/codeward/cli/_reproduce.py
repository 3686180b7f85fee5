"""``codeward reproduce``: the paper's figure and table, and what goes past them."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from codeward.cli._run import open_cluster

if TYPE_CHECKING:
    pass

#: What `--parts` stands for where it is not given: the field's own numbers.
PARTS = {"cifar10": (50, 250), "mnist": (1200,)}
SMOKE_PARTS = (10,)
#: How many writers plant a trigger, of a code that names them.
ATTACKS = (1, 2, 3, 10)


def reproduce(
    study: str = typer.Argument(
        ...,
        metavar="figure5|table1|past|samples|writers|pack|unpack|claims",
        help="What to reproduce; or what to do with the grid folder.",
    ),
    dataset: str = typer.Option("mnist", help="mnist or cifar10; any data set that `codeward data list` knows."),
    smoke: bool = typer.Option(
        False,
        "--smoke",
        help="The whole pipeline on the embedded digits, in under a minute; with --recipe modern, whose decoder is "
        "fitted for every cell, up to ten.",
    ),
    repeats: int = typer.Option(None, min=1, help="Repeats; by default the paper's 5 (figure5) and 10 (table1)."),
    codes: list[str] = typer.Option([], "--code", "--codes", help="Only this code; may be given several times."),
    splits: list[str] = typer.Option([], "--split", help="Only this setting: iid, alpha1, ...; past: iid-blended, ..."),
    recipe: str = typer.Option("paper", metavar="paper|modern", help="How models are trained; modern: beside it."),
    committee: int = typer.Option(1, "--committee", min=1, help="Networks a sub-model, averaged; grids of their own."),
    attackers: list[int] = typer.Option([], "--attackers", min=0, help="Only cells with this many; several times."),
    parts: str = typer.Option(None, "--parts", help="samples: numbers of parts, such as 50,250,1000."),
    decoders: str = typer.Option("plurality,runoff", "--decoders", help="samples: plurality, runoff, consensus."),
    backbone: str = typer.Option(
        None, "--backbone", metavar="NAME|FILE.npz", help="samples: heads on its features; or on a file of `features`."
    ),
    networks: bool = typer.Option(False, "--networks", help="writers: networks, for a GPU, in place of heads."),
    seed: int = typer.Option(0, "--seed", min=0, help="samples, writers --networks: seed of the models."),
    epochs: int = typer.Option(None, "--epochs", min=1, help="samples: epochs instead of the recipe's own number."),
    output: Path = typer.Option(None, "-o", "--output", help="Grid folder; by default results (runs/smoke: --smoke)."),
    store: Path = typer.Option(None, help="Model store; by default in the grid folder."),
    data_dir: Path = typer.Option(None, "--data-dir", help="Where the data sets are; else CODEWARD_DATA."),
    scores: bool = typer.Option(False, "--scores", help="Keep class scores in the vote files once counted (large)."),
    jobs: int = typer.Option(
        None, "--jobs", min=1, help="Processes that count cells, beside the training too; on a GPU half of the cores."
    ),
    without_scores: bool = typer.Option(False, "--drop-scores", help="pack: class scores too, by leaving them out."),
    pool: int = typer.Option(1, "--pool", min=1, help="Repeats whose models train together: fewer starts of a GPU."),
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

    `samples` assigns the training samples to parts by a hash of their content and trains a code over the parts:
    `--codes` partition, boosted, shifted-hash, shifted-hash-16, bagging, designed. Then it certifies how many samples
    may be inserted, removed or relabelled (a changed input counts two) before a test label may change. With
    `--backbone` models are heads on frozen features (docs/heads.md).

    `writers` takes MNIST's 539 real writers as users, linear heads on features that nobody trained (or, with
    `--networks`, networks), and certifies against colluding writers (docs/writers.md).

    `pack` puts the run folders of each setting (with --split: of these) into one small file that `codeward report`
    reads as well, and the records of `samples` and `writers` into one each; `unpack` writes run folders out again. A
    study unpacks the settings it goes on with. `claims` computes the
    figures of claims.json anew and says which of those that pages quote do not agree.

    Example: codeward reproduce table1 --dataset mnist --data-dir data && codeward report results
    """
    from codeward._errors import InputError
    from codeward.reproduction import (
        CellCounters,
        count_grid,
        draw_grid,
        plan_cells,
        plan_study,
        study_grid,
        unpack_setting,
        vote_grid,
    )
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
        _reproduce_writers(folder, codes, data_dir, networks, seed, store, votes_only, smoke, quiet, as_json)
        return
    if study == "samples":
        name = "digits" if smoke else dataset
        what = (name, parts, codes, decoders, backbone, seed, committee, epochs, data_dir)
        _reproduce_samples(folder, *what, votes_only, count_only, quiet, as_json)
        return
    if recipe not in ("paper", "modern"):
        raise InputError(f"--recipe {recipe}: expected paper or modern")
    runs = plan_study(study, dataset, repeats, codes, splits, smoke, 0, attackers, recipe, committee)
    for setting in dict.fromkeys(path.split("/")[0] for path in runs):
        unpack_setting(folder, setting)
    shown = not quiet and not as_json
    place = ModelStore(store or folder / "store")
    # The decoder of the modern recipe reads class scores: they are there until a cell is counted.
    read = scores or (recipe == "modern" and not votes_only)
    try:
        with CellCounters(jobs or _count_jobs(), studies, smoke, scores or count_only, shown) as counters:
            for planned in () if votes_only else plan_cells(runs, folder):
                if planned.is_cut_off:
                    counters.submit(planned)
            if not count_only:
                voted = None if votes_only else counters.submit
                with open_cluster(engine, address) as cluster:
                    vote_grid(runs, folder, place, shown, read, cluster, data_dir, voted, pool)
        recorded = 0 if votes_only else sum(1 for _ in count_grid(runs, folder, shown))
        if studies and not votes_only:
            study_grid(runs, folder, shown, smoke)
        if not votes_only:
            try:
                draw_grid(runs, folder, data_dir)
            except InputError as error:
                print(f"codeward: users' class shares not drawn: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"codeward: interrupted; the same command goes on from what is in {folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    cells = plan_cells(runs, folder)
    there = sum(planned.is_there for planned in cells)
    if as_json:
        print(json.dumps({"folder": str(folder), "cells": len(cells), "voted": there, "recorded": recorded}))
        return
    typer.echo(f"{study}: {there} of {len(cells)} cells have votes, {recorded} are recorded, in {folder}")
    if not votes_only:
        typer.echo(f"next: codeward report {folder}")


def _count_jobs() -> int:
    """Return half of the cores where a GPU trains, which leaves them idle; else one."""
    import torch

    from codeward._cores import count_cores

    return max(1, count_cores() // 2) if torch.cuda.is_available() else 1


def _reproduce_samples(
    folder: Path,
    dataset: str,
    parts: str | None,
    codes: list[str],
    decoders: str,
    backbone: str | None,
    seed: int,
    committee: int,
    epochs: int | None,
    data_dir: Path | None,
    votes_only: bool,
    count_only: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Certify per poisoned sample: train, certify, show one table; every step goes on from what is there."""
    from codeward._errors import InputError
    from codeward._progress import show_progress
    from codeward.reproduction import SAMPLE_CODES, SAMPLE_DECODERS, SampleStudy

    names = [name for text in codes for name in text.split(",")] or ["partition"]
    wanted = decoders.split(",")
    for option, given, known in (("--codes", names, SAMPLE_CODES), ("--decoders", wanted, SAMPLE_DECODERS)):
        for name in given:
            if name not in known:
                raise InputError(f"{option} {name}: expected some of {', '.join(known)}")
    try:
        sizes = [int(text) for text in parts.split(",")] if parts else PARTS.get(dataset, SMOKE_PARTS)
    except ValueError:
        raise InputError(f"--parts {parts}: expected whole numbers with commas between, such as 50,250") from None
    if min(sizes) < 2:
        raise InputError(f"--parts {min(sizes)}: at least 2")
    place = folder / "samples"
    shown = not quiet and not as_json
    pair = features = None
    if backbone:
        from codeward.data import find_data_dir, load_dataset
        from codeward.reproduction import freeze_features

        pair = load_dataset(dataset, data_dir)
        with show_progress("features", len(pair.train) + len(pair.test), shown) as bar:
            features = freeze_features(pair, backbone, find_data_dir(data_dir) / "features", bar)
    if backbone and committee > 1:
        raise InputError("--committee: heads have no seeds to differ in; leave it or --backbone out")
    frozen = features.name if features else None
    if backbone and epochs:
        raise InputError("--epochs: heads are fitted in one step; leave it or --backbone out")
    kind = seed, frozen, committee, epochs
    studies = [SampleStudy(place, dataset, size, name, *kind) for size in sizes for name in names]
    try:
        if not count_only and not all(study.is_voted for study in studies):
            from codeward.data import load_dataset
            from codeward.reproduction import choose_sample_training, vote_heads, vote_samples

            pair = pair or load_dataset(dataset, data_dir)
            for study in studies:
                if not study.is_voted and features:
                    with show_progress(study.name, 2 * study.code.n_models, shown) as bar:
                        vote_heads(study, pair, features, bar)
                elif not study.is_voted:
                    vote_samples(study, pair, choose_sample_training(study, pair), shown)
    except KeyboardInterrupt:
        print(f"codeward: interrupted; the same command goes on from what is in {place}", file=sys.stderr)
        raise typer.Exit(130) from None
    voted = [study for study in studies if study.is_voted]
    if not votes_only:
        from codeward.reproduction import certify_samples, draw_samples, load_sample_records, tabulate_samples

        with show_progress("certifying", len(voted) * len(wanted), shown) as bar:
            for study in voted:
                certify_samples(study, wanted, bar)
        records = load_sample_records(folder)
        tables = "\n".join(table.to_markdown() for table in tabulate_samples(records))
        (place / "tables.md").write_text(f"# Certified per sample\n\n{tables}", encoding="utf-8")
        draw_samples(records).save(place / "certified.svg")
        if not as_json:
            typer.echo(tables)
    if as_json:
        found = {study.name: study.load_record()["certified"] for study in voted}
        print(json.dumps({"folder": str(place), "studies": len(studies), "voted": len(voted), "certified": found}))
        return
    typer.echo(f"samples: {len(voted)} of {len(studies)} studies have votes, in {place}")


def _reproduce_writers(
    folder: Path,
    codes: list[str],
    data_dir: Path | None,
    networks: bool,
    seed: int,
    store: Path | None,
    votes_only: bool,
    smoke: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """MNIST's 539 writers as users: fit, certify and attack; every step goes on from the records that are there."""
    from codeward._errors import InputError
    from codeward._progress import show_progress
    from codeward.data import find_data_dir
    from codeward.reproduction import (
        WriterData,
        attack_writers,
        draw_writers,
        load_writer_records,
        make_writer_codes,
        study_writers,
        tabulate_writers,
        vote_writers,
    )

    place = folder / "writers"
    place.mkdir(parents=True, exist_ok=True)
    known = make_writer_codes(60 if smoke else 539, place)
    wanted = [name for text in codes for name in text.split(",")] or list(known)
    for name in wanted:
        if name not in known:
            raise InputError(f"--code {name}: the study has {', '.join(known)}")
    data = WriterData.assign_digits(60) if smoke else WriterData.load(data_dir, find_data_dir(data_dir) / "features")
    if networks:
        from codeward.training import ModelStore, choose_recipe

        settings = choose_recipe("digits" if smoke else "mnist")
        data = replace(data, settings=settings, seed=seed, store=ModelStore(store or place / "store"))
    for name in sorted(wanted, key=lambda name: known[name].n_models):
        code = known[name]
        sizes = (1,) if smoke and name == wanted[0] else ATTACKS if name.startswith("track") else ()
        with show_progress(data.title(name), code.n_models, not (quiet or as_json)) as bar:
            vote_writers(data, name, code, place, sizes, bar)
            if not votes_only:
                study_writers(data, name, code, place)
                if sizes:
                    attack_writers(data, name, code, place, sizes=sizes)
    if votes_only:
        typer.echo(f"writers: votes of {len(wanted)} codes in {place}")
        return
    records, attacks = load_writer_records(place)
    table = tabulate_writers(records, attacks)
    (place / "tables.md").write_text(f"# Writers\n\n{table}", encoding="utf-8")
    draw_writers(records).save(place / "certified.svg")
    if as_json:
        print(json.dumps({"folder": str(place), "records": records, "attacks": attacks}))
        return
    typer.echo(table)
    typer.echo(f"writers: {len(records)} codes in {place}")


def _pack(folder: Path, action: str, settings: list[str], without_scores: bool, as_json: bool) -> None:
    """Pack or unpack settings of a grid folder, all by default, and say what became of them."""
    from codeward._errors import InputError
    from codeward.reproduction import drop_scores, list_packed, pack_setting, unpack_setting
    from codeward.runs import list_inner_runs, pack_record_folder

    plain = {run.parent.name for run in list_inner_runs(folder)}
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
    if action == "pack" and not settings:
        done |= {study: {} for study in ("samples", "writers") if pack_record_folder(folder / study)}
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
