"""``codeward data``: the data sets, where they are, and whether they are whole."""

import json
from pathlib import Path

import typer

data_app = typer.Typer(help="List, fetch and check data sets.", no_args_is_help=True)

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

    folders = {name: str(fetch_dataset(name, data_dir, url, show_progress=not as_json)) for name in _pick(names)}
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
