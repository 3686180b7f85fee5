"""``codeward train``, ``data`` and ``features``: from data to guarded models with a card; known data sets; features."""

import json
import os
import sys
import textwrap
from pathlib import Path

import typer

from codeward._errors import InputError

_GUARANTEES = ("detect", "correct", "correct-arbitrary", "track")


def train(
    data: str = typer.Argument(
        ..., metavar="DATA", help=".csv, .tsv, .jsonl, .parquet, .npz, a folder of images, or a data set's name."
    ),
    output: Path = typer.Option(..., "-o", "--output", help="Folder that gets everything."),
    label: str = typer.Option(None, "--label", metavar="COL", help="Column of the label; guessed if there is one."),
    user: str = typer.Option(
        None, "--user", metavar="COL", help="Column of the user; guessed if there is one. none: hash samples."
    ),
    text: str = typer.Option(None, "--text", metavar="COL", help="Column to read as text."),
    ignore: list[str] = typer.Option([], "--ignore", metavar="COL", help="Column to leave out: an id; repeatable."),
    schema: Path = typer.Option(None, "--schema", help="Columns, kinds and classes as declared (.json)."),
    test: Path = typer.Option(None, "--test", help="Samples that figures are taken on."),
    test_fraction: float = typer.Option(0.2, "--test-fraction", help="Otherwise: held out of every user's samples."),
    trusted: Path = typer.Option(None, "--trusted", help="Clean samples of your own, of no user."),
    attackers: int = typer.Option(None, "--attackers", "-k", help="Colluding users to withstand; 2 where possible."),
    guarantee: str = typer.Option(None, "--guarantee", help="detect, correct, correct-arbitrary or track."),
    margin: int = typer.Option(None, "--margin", help="Of the code: D absorbs (D-1)/2 wrong votes."),
    utilization: float = typer.Option(None, "--utilization", help="Least share of the users a sub-model learns from."),
    weights: Path = typer.Option(None, "--weights", help="CSV user,weight: declared sizes, for the order of columns."),
    model: str = typer.Option(
        None, "--model", help="boosting, logistic, text, a network, sklearn.svm.SVC(C=2), file.py:function."
    ),
    committee: int = typer.Option(
        None, "--committee", min=1, help="Networks a sub-model, averaged: stronger, at so many times the work."
    ),
    backbone: str = typer.Option(
        None,
        "--backbone",
        help="Heads on fixed features: `codeward features list`, file.onnx, mod:function.",
    ),
    ridge: float = typer.Option(0.1, "--ridge", help="Of the heads: stated, never estimated."),
    parts: int = typer.Option(50, "--parts", help="Without users: parts that samples are hashed into."),
    false_alarms: float = typer.Option(0.05, "--false-alarms", help="Share of clean inputs that may raise an alarm."),
    fail_under: list[str] = typer.Option(
        [], "--fail-under", help="k=1:0.80: exit 1 if no curve of the card has 80% at k = 1; repeatable."
    ),
    seed: int = typer.Option(0, "--seed"),
    force: bool = typer.Option(False, "--force", help="Move a folder with another run aside (to FOLDER.1, ...)."),
    as_json: bool = typer.Option(False, "--json", help="Print the card and the plan as one JSON object."),
) -> None:
    """Train guarded models on your own data; nobody is attacked, nothing is simulated.

    Says first what it will do: users, code and why, model. Ends with a certificate card: accuracy, false alarms, what
    is guaranteed under which threat model, what that rests on (also card.json and card.html). serve, report, decode,
    certify, ledger and revoke take the folder. Run it again to go on after an interruption.

    Example: codeward train patients.csv --label risk --user clinic -o runs/clinics
    """
    floors = []
    if fail_under:
        from codeward.certificates import parse_floor

        floors = [parse_floor(floor) for floor in fail_under]
    if backbone and model:
        raise InputError("--backbone and --model exclude each other: heads are linear models")
    if guarantee is not None and guarantee not in _GUARANTEES:
        raise InputError(f"--guarantee: choose {', '.join(_GUARANTEES)}, got {guarantee!r}")
    if not 0 < false_alarms < 1:
        raise InputError(f"--false-alarms: expected a share above 0 and below 1, got {false_alarms}")
    for name, file in (("--schema", schema), ("--test", test), ("--trusted", trusted), ("--weights", weights)):
        if file is not None and not file.exists():
            raise InputError(f"{name}: {file}: no such file")
    if not Path(data).exists() and (Path(data).suffix or os.sep in data):
        raise InputError(f"{data}: no such file or folder")
    code = {"attackers": attackers, "guarantee": guarantee, "margin": margin, "utilization": utilization}
    told = {
        "data": _place(data),
        "label": label,
        "user": user,
        "text": text,
        "ignore": ignore,
        "columns": _place(schema),
        "test": _place(test),
        "test_fraction": test_fraction,
        "trusted": _place(trusted),
        "weights": _place(weights),
        "model": model,
        "backbone": backbone,
        "ridge": ridge,
        "parts": parts,
    }
    from codeward.runs import TrainConfig

    config = TrainConfig.checked(
        {
            "dataset": Path(data).name,
            "code": {key: value for key, value in code.items() if value is not None},
            "attack": {"attackers": [0]},
            "decoder": {"false_alarm_rate": false_alarms},
            "training": {} if committee is None else {"committee": committee},
            "seed": seed,
            "train": told,
        }
    )

    from codeward.data import Schema, load_user_data

    if sys.stderr.isatty() and not as_json:
        print("codeward: reads the data and chooses a code ...", file=sys.stderr)
    known = None
    if config.train.trusted is None:  # trusted samples settle first how the others are read
        declared = Schema.load(config.train.columns) if config.train.columns else None
        # What is wrong with the data is said before scikit-learn and torch are loaded.
        known = load_user_data(config.train.data, schema=declared, **config.train.reading)

    from codeward.estimators import plan_training, train_guarded
    from codeward.runs import RunFolder

    plan = plan_training(config, known)
    lines = plan.describe()
    if not as_json:
        for line in lines:
            print(textwrap.fill(f"- {line}", 80, subsequent_indent="  ", break_long_words=False), flush=True)
    folder = RunFolder(output)
    moved = folder.move_aside() if force else None
    if moved is not None:
        print(f"codeward: what was in {output} is now in {moved}", file=sys.stderr)
    try:
        cell, card, made = train_guarded(plan, output, progress=not as_json)
    except KeyboardInterrupt:
        print("codeward: interrupted; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    work = cell.about["work"]
    if as_json:
        print(json.dumps({"folder": str(output), "plan": lines, "trained": work["trained"], "card": card.to_json()}))
    else:
        done = f"{work['trained']} of {work['models']} sub-models trained" if made else "already there"
        print(f"{done}; {output} holds\nconfig.yaml, code.json, card.json, card.html, records/, votes/, store/\n")
        print(card.to_text(80))
        print(f"next: codeward serve {output}")
    for floor in floors:
        floor.check(card.certified_at(floor.n_attackers), card.accuracy["of"])


def _place(path: str | Path | None) -> str | None:
    """Return where something is from anywhere; names of data sets stay as they are."""
    if path is None:
        return None
    return str(Path(path).resolve()) if Path(path).exists() else str(path)


data_app = typer.Typer(
    help="List, fetch and check data sets.\n\nExample: codeward data fetch mnist", no_args_is_help=True
)

_DIR = typer.Option(None, "--data-dir", help="Data directory; else CODEWARD_DATA, else the user's cache.")
_JSON = typer.Option(False, "--json", help="Print one JSON object.")
_NAMES = typer.Argument(None, metavar="[NAME]...", help="Data sets; all when none is named.")


@data_app.command("list")
def list_datasets(data_dir: Path = _DIR, as_json: bool = _JSON) -> None:
    """List the data sets codeward knows by name and where their files go.

    Example: codeward data list --data-dir data
    """
    from codeward.data import CATALOG, find_data_dir

    folder = find_data_dir(data_dir)
    rows = {name: {"title": entry.title, "folder": str(folder / entry.folder)} for name, entry in CATALOG.items()}
    rows["digits"]["folder"] = "(embedded)"
    if as_json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print(f"{name:14} {row['title']:45} {row['folder']}")
    print("any .npz with images and labels can be named by its path")


@data_app.command("fetch")
def fetch(
    names: list[str] = _NAMES,
    data_dir: Path = _DIR,
    url: str = typer.Option(None, "--url", help="Mirror that holds the files under their own names."),
    as_json: bool = _JSON,
) -> None:
    """Download data sets and check their published hashes.

    Example: codeward data fetch mnist cifar10 --data-dir data
    """
    from codeward.data import fetch_dataset

    folders = {name: str(fetch_dataset(name, data_dir, url, progress=not as_json)) for name in _pick(names)}
    if "digits" in folders:
        folders["digits"] = "(embedded)"
    if as_json:
        print(json.dumps(folders))
        return
    for name, folder in folders.items():
        print(f"{name}: {'embedded' if name == 'digits' else f'whole, in {folder}'}")


@data_app.command("check")
def check(names: list[str] = _NAMES, data_dir: Path = _DIR, as_json: bool = _JSON) -> None:
    """Verify the files that are there against their checksums; exits 1 when a named or present set is not whole.

    Example: codeward data check mnist --data-dir data
    """
    from codeward.data import check_dataset

    states = {name: check_dataset(name, data_dir) for name in _pick(names)}
    if as_json:
        print(json.dumps(states))
    else:
        for name, state in states.items():
            print(f"{name}: {state}")
    # A set nobody named may be missing; a damaged one never passes.
    if any(state != "ok" and (names or state != "missing") for state in states.values()):
        raise typer.Exit(1)


@data_app.command("schema")
def schema(
    data: str = typer.Argument(..., metavar="DATA", help="What `codeward train` takes."),
    label: str = typer.Option(None, "--label", metavar="COL", help="Column of the label; guessed if there is one."),
    user: str = typer.Option(None, "--user", metavar="COL", help="Column of the user; guessed if there is one."),
    text: str = typer.Option(None, "--text", metavar="COL", help="Column to read as text."),
    ignore: list[str] = typer.Option([], "--ignore", metavar="COL", help="Column to leave out; repeatable."),
    output: Path = typer.Option(Path("schema.json"), "-o", "--output", help="The schema."),
    as_json: bool = _JSON,
) -> None:
    """Write down how data are read: kinds of columns, size of images, classes; for `codeward train --schema`.

    It is read off the users' data, by majority. Check it: what is declared, no user can move any more.

    Example: codeward data schema patients.csv --label risk --user clinic -o schema.json
    """
    from dataclasses import replace

    from codeward.data import load_user_data

    found = load_user_data(data, label, user, text=text, drop=ignore)
    made = replace(found.schema, classes=found.class_names)
    made.save(output)
    if as_json:
        print(json.dumps({"file": str(output), "schema": made.to_json()}))
        return
    size = len(made.columns)
    print(f"{output}: {size} column{'s' * (size != 1)}, {found.n_classes} classes, as most users have them")
    print(f"check it, then: codeward train {data} --schema {output}")


def _pick(names: list[str] | None) -> list[str]:
    """Return the names given, all when none is; a wrong one is refused before anything is done."""
    from codeward._errors import InputError
    from codeward.data import CATALOG

    for name in names or []:
        if name not in CATALOG:
            raise InputError(f"no data set is named {name!r}; choose one of {', '.join(CATALOG)}")
    return list(names or CATALOG)


def features(
    data: str = typer.Argument(..., metavar="DATA", help="File, folder of images, data set; `list`: backbones."),
    output: Path = typer.Option(Path("features.npz"), "-o", "--output", help="Where the features go, an .npz."),
    backbone: str = typer.Option(
        "strokes", metavar="NAME|package.module:function|FILE.onnx", help="What makes them: `codeward features list`."
    ),
    label: str = typer.Option(None, help="Column of the label."),
    user: str = typer.Option(None, help="Column of the user."),
    device: str = typer.Option("cpu", metavar="cpu|cuda", help="Where a network computes; a GPU in half precision."),
    data_dir: Path = typer.Option(None, "--data-dir", help="Where the data sets are; else CODEWARD_DATA."),
    cache: bool = typer.Option(True, help="Keep features by content in the data directory, and take them from there."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bar."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Turn inputs into features on the grid, once, for `codeward train` and for heads.

    The file holds X (float32, multiples of 2^-12, norm at most one), y and groups; X_test and y_test where the data
    bring a test set. A backbone is a fixed function: it never learns from what users hand in.

    Example: codeward features mnist-writers -o writers.npz --backbone strokes
    """
    from codeward.training.backbones import BACKBONES

    if data == "list":
        lines = "\n".join(f"{name:20} {words}" for name, words in BACKBONES.items())
        print(json.dumps(BACKBONES) if as_json else lines)
        return
    import numpy as np

    from codeward._errors import InputError
    from codeward._files import write_atomic
    from codeward._progress import show_progress
    from codeward.data import InputTable, find_data_dir, load_user_data
    from codeward.training.backbones import make_backbone, transform_cached

    if output.suffix != ".npz":
        raise InputError(f"{output}: features are written as .npz")
    given = load_user_data(data, label, user, data_dir=data_dir)
    first = np.arange(1)
    sample = given.inputs.take(first) if isinstance(given.inputs, InputTable) else given.inputs[first]
    made = make_backbone(backbone, given.schema, sample, device)
    folder = find_data_dir(data_dir) / "features" if cache else None
    parts = {"X": given} | ({"X_test": given.test} if given.test is not None else {})
    arrays: dict[str, object] = {
        "backbone": np.array(f"{made.name} {made.digest}"),
        "trust": np.array(made.trust),
    }
    reused = 0
    with show_progress(f"features ({made.name})", sum(map(len, parts.values())), not (quiet or as_json)) as bar:
        for name, part in parts.items():
            found, known = transform_cached(made, part.inputs, folder, bar, part.parts if part.n_users > 1 else None)
            arrays[name] = found.to_floats()
            arrays[name.replace("X", "y")] = np.array(given.class_names)[part.labels]
            reused += known
    arrays["groups"] = np.array(given.user_names)[given.users]
    if given.firm is not None:
        arrays["firm"] = np.array(given.firm)  # how inputs are read was settled by the users, which a card must say
    write_atomic(output, lambda out: np.savez_compressed(out, **arrays))  # type: ignore[arg-type]
    told = {
        "file": str(output),
        "samples": len(given),
        "width": made.width,
        "backbone": made.name,
        "digest": made.digest,
        "trust": made.trust,
        "from_cache": reused == len(parts),
    }
    if as_json:
        print(json.dumps(told))
        return
    typer.echo(f"{len(given):,} samples of {given.n_users:,} users, {made.width:,} features each, in {output}")
    typer.echo(f"backbone: {made.name}, {made.trust}, sha256 {made.digest[:16]}")
