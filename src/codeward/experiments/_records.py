"""Records of runs: one JSON file each, with versions, seeds, configuration, and figures with their denominators."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from codeward import __version__
from codeward._errors import InputError
from codeward._files import write_text_atomic

#: Changes when a reader of older records would misread newer ones.
FORMAT = "codeward-record/1"

_PACKAGES = ("numpy", "scipy", "numba", "torch", "scikit-learn")


def share(count: int, total: int) -> dict[str, int]:
    """Return a figure that says what it is a fraction of."""
    return {"count": int(count), "of": int(total)}


def rate(figure: dict[str, int]) -> float:
    """Return the value of a `share`; nan when it is a fraction of nothing."""
    return figure["count"] / figure["of"] if figure["of"] else float("nan")


def describe_machine(device: str) -> dict[str, Any]:
    """Return versions and hardware, for the record."""
    # Not from the package's metadata: a tree that was copied somewhere has none.
    versions = {"python": platform.python_version(), "codeward": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    hardware: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), "device": device}
    if device.startswith("cuda"):
        import torch

        hardware["gpu"] = torch.cuda.get_device_name()
    return {"versions": versions, "hardware": hardware}


def save_record(record: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a record atomically."""
    write_text_atomic(path, json.dumps({"format": FORMAT, **record}, indent=1) + "\n")


def load_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a record; a file of another kind is refused by name."""
    file = Path(path)
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not a readable record ({error})") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{file}: not a {FORMAT} file")
    return record


def load_records(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read all records of a run folder, in order of repeat and number of attackers."""
    found = [load_record(file) for file in sorted(Path(folder, "records").glob("*.json"))]
    return sorted(found, key=lambda record: (record["repeat"], record["n_attackers"]))
