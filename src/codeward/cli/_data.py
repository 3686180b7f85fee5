"""``codeward data`` and ``codeward features``: data sets, whether they are whole, and inputs turned into features."""

import json
from pathlib import Path

import typer

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
    with show_progress(f"features ({made.name})", sum(map(len, parts.values())), quiet or as_json) as bar:
        for name, part in parts.items():
            found, known = transform_cached(made, part.inputs, folder, bar)
            arrays[name] = found.to_floats()
            arrays[name.replace("X", "y")] = np.array(given.class_names)[part.labels]
            reused += known
    arrays["groups"] = np.array(given.user_names)[given.users]
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
