"""``codeward reproduce writers``: MNIST's 539 writers as users."""

import json
import sys
from pathlib import Path

import typer


def reproduce_writers(
    folder: Path, codes: list[str], data_dir: Path | None, smoke: bool, quiet: bool, as_json: bool
) -> None:
    """Fit, certify and attack code after code; every step goes on from the records that are there."""
    from codeward._errors import InputError
    from codeward._progress import show_progress
    from codeward.data import find_data_dir
    from codeward.reproduction import (
        WriterData,
        attack_writers,
        load_writer_records,
        make_writer_codes,
        plot_writers,
        study_writers,
        tabulate_writers,
    )

    place = folder / "writers"
    place.mkdir(parents=True, exist_ok=True)
    n_users = 60 if smoke else 539
    known = make_writer_codes(n_users, place)
    wanted = [name for text in codes for name in text.split(",")] or list(known)
    for name in wanted:
        if name not in known:
            raise InputError(f"--code {name}: the study has {', '.join(known)}")
    data = WriterData.load(data_dir, find_data_dir(data_dir) / "features", 60 if smoke else None)
    for name in wanted:
        code = known[name]
        with show_progress(name, code.n_models, quiet=quiet or as_json) as bar:
            study_writers(data, name, code, place, bar)
            if name.startswith("track") or (smoke and name == wanted[0]):
                attack_writers(data, name, code, place, bar, (1,) if smoke else (1, 2, 3))
    records, attacks = load_writer_records(place)
    table = tabulate_writers(records, attacks)
    (place / "tables.md").write_text(f"# Writers\n\n{table}", encoding="utf-8")
    try:
        plot_writers(records, place / "certified.svg")
    except InputError as error:
        print(f"codeward: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps({"folder": str(place), "records": records, "attacks": attacks}))
        return
    typer.echo(table)
    typer.echo(f"writers: {len(records)} codes in {place}")
