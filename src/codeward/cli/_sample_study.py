"""``codeward reproduce samples``: certified accuracy per poisoned sample."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import typer

#: What `--parts` stands for where it is not given: the field's own numbers.
PARTS = {"cifar10": (50, 250), "mnist": (1200,)}
SMOKE_PARTS = (10,)


def reproduce_samples(
    folder: Path,
    dataset: str,
    parts: str | None,
    codes: list[str],
    decoders: str,
    seed: int,
    epochs: int | None,
    data_dir: Path | None,
    votes_only: bool,
    count_only: bool,
    smoke: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train, certify, and show one table; every step goes on from what is there."""
    from codeward._errors import InputError
    from codeward._progress import show_progress
    from codeward.reproduction import SAMPLE_CODES, SAMPLE_DECODERS, SampleStudy

    if smoke:
        dataset = "digits"
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
    studies = [SampleStudy(place, dataset, size, name, seed) for size in sizes for name in names]
    shown = not quiet and not as_json
    try:
        if not count_only and not all(study.is_voted for study in studies):
            from codeward.data import load_dataset
            from codeward.reproduction import choose_sample_training, vote_samples

            pair = load_dataset(dataset, data_dir)
            for study in studies:
                if not study.is_voted:
                    settings = choose_sample_training(study, pair)
                    vote_samples(study, pair, replace(settings, epochs=epochs or settings.epochs), shown)
    except KeyboardInterrupt:
        print(f"codeward: interrupted; the same command goes on from what is in {place}", file=sys.stderr)
        raise typer.Exit(130) from None
    voted = [study for study in studies if study.is_voted]
    if not votes_only:
        from codeward.reproduction import certify_samples, load_sample_records, plot_samples, tabulate_samples

        with show_progress("certifying", len(voted) * len(wanted), quiet=not shown) as bar:
            for study in voted:
                certify_samples(study, wanted, bar)
        records = load_sample_records(folder)
        tables = "\n".join(table.to_markdown() for table in tabulate_samples(records))
        (place / "tables.md").write_text(f"# Certified per sample\n\n{tables}", encoding="utf-8")
        try:
            plot_samples(records, place / "certified.svg")
        except InputError as error:
            print(f"codeward: {error}", file=sys.stderr)
        if not as_json:
            typer.echo(tables)
    if as_json:
        found = {study.name: study.load_record()["certified"] for study in voted}
        print(json.dumps({"folder": str(place), "studies": len(studies), "voted": len(voted), "certified": found}))
        return
    typer.echo(f"samples: {len(voted)} of {len(studies)} studies have votes, in {place}")
