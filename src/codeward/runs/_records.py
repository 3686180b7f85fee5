"""Records of runs: one JSON file each, with versions, seeds, configuration, and figures with their denominators.

Records that are kept go into one file a folder, compressed JSON lines.
"""

import gzip
import json
import os
import platform
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import parse_json, read_json, write_atomic, write_json
from codeward._version import __version__

#: Changes when a reader of older records would misread newer ones.
FORMAT = "codeward-record/1"

#: An input is called attacked when its attack probability passes this; the prior is even at the default attack rate.
ALARM = 0.5

#: Shares of false alarms at which detection is told.
FALSE_ALARMS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2)

#: Most bytes that a file of compressed lines may unfold to.
MOST_BYTES = 1 << 28
#: The records of a folder, packed.
PACKED = "records.jsonl.gz"
#: The two files that make a folder a run; all other paths are of `codeward.runs.RunFolder`.
CONFIG_FILE, CODE_FILE = "config.yaml", "code.json"

_PACKAGES = ("numpy", "scipy", "numba", "torch", "scikit-learn")


@dataclass(frozen=True)
class SimulatedAttack:
    """One attacking group of a cell.

    Attributes
    ----------
    attackers : tuple of int
        Columns of the code; those who were revoked are left out.
    target : int
        The label the trigger stands for.
    targets : tuple of int or None
        Where every model has a target of its own (federated attacks): one a model.
    names : tuple of str
        Names of all attackers, also of those who were revoked.

    Examples
    --------
    >>> SimulatedAttack(attackers=(2, 7), target=9).targets is None
    True
    """

    attackers: tuple[int, ...]
    target: int
    targets: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Say whether a folder is a run: it has a configuration and a code. Nothing is read.

    Examples
    --------
    >>> is_run("no/such/folder")
    False
    """
    return Path(folder, CONFIG_FILE).is_file() and Path(folder, CODE_FILE).is_file()


def list_inner_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the runs two levels inside a folder, as grids of runs keep them, in order.

    Examples
    --------
    >>> list_inner_runs("no/such/folder")
    []
    """
    return sorted(file.parent for file in Path(folder).glob(f"*/*/{CONFIG_FILE}") if is_run(file.parent))


def share(count: int, total: int) -> dict[str, int]:
    """Return a figure that says what it is a fraction of.

    Examples
    --------
    >>> share(9, 12)
    {'count': 9, 'of': 12}
    """
    return {"count": int(count), "of": int(total)}


def rate(figure: dict[str, int]) -> float:
    """Return the value of a `share`; nan when it is a fraction of nothing.

    Examples
    --------
    >>> rate({"count": 9, "of": 12})
    0.75
    """
    return figure["count"] / figure["of"] if figure["of"] else float("nan")


def decoder_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record counts of its run's own decoder; of older runs, and of the paper's decoder by name, bayes's.

    Returns
    -------
    dict
        ``name``, ``clean`` (``right``, ``alarms``) and ``groups``: ``all`` and ``other_labels`` (the same, and in
        ``all`` where known ``unreached``: right labels of models that no attacker reaches), and ``pooled`` or None.

    Examples
    --------
    >>> clean = {"all": {"bayes": share(9, 10), "alarms": share(1, 10)}}
    >>> decoder_figures({"figures": {"clean": clean, "groups": []}})["clean"]["right"]
    {'count': 9, 'of': 10}
    """
    figures: dict[str, Any] = record["figures"]
    if "decoder" in figures:
        kept: dict[str, Any] = figures["decoder"]
        return kept

    def take(part: Mapping[str, Any]) -> dict[str, Any]:
        return {"right": part["bayes"], "alarms": part["alarms"]}

    groups = [{name: take(part) for name, part in group["triggered"].items()} for group in figures["groups"]]
    clean = take(figures["clean"]["all"])
    return {"name": "bayes", "clean": clean, "groups": [{**group, "pooled": None} for group in groups]}


def describe_detection(
    clean: NDArray[np.float64], triggered: NDArray[np.float64], others: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return how well attack probabilities tell triggered inputs from clean ones: area under the ROC curve, and points.

    Parameters
    ----------
    clean, triggered : ndarray of float64
        Attack probabilities of inputs without and with the trigger.
    others : ndarray of bool
        Triggered inputs whose label is not the target.

    Examples
    --------
    >>> found = describe_detection(np.array([0.1, 0.2]), np.array([0.3, 0.15]), np.array([True, False]))
    >>> found["auc"], found["auc_others"], found["detected"]["0.0"]
    (0.75, 1.0, 0.5)
    """
    from codeward.decoding import roc_curve

    curve = roc_curve(clean, triggered)
    return {
        "auc": curve.auc,
        "auc_others": roc_curve(clean, triggered[others]).auc,
        "detected": {str(r): float(curve.tpr[np.flatnonzero(curve.fpr <= r)[-1]]) for r in FALSE_ALARMS},
        "inputs": {"clean": clean.size, "triggered": triggered.size, "others": int(others.sum())},
    }


def describe_machine(device: str, gpu: str | None = None) -> dict[str, Any]:
    """Return versions and hardware, for the record.

    Parameters
    ----------
    device : str
        What trained the models, as torch names it.
    gpu : str, optional
        Name of the GPU, where it was one.

    Examples
    --------
    >>> describe_machine("cpu")["hardware"]["device"]
    'cpu'
    """
    # Not from the package's metadata: a tree that was copied somewhere has none.
    versions = {"python": platform.python_version(), "codeward": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    hardware: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), "device": device}
    if gpu is not None:
        hardware["gpu"] = gpu
    return {"versions": versions, "hardware": hardware}


def save_record(record: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a record atomically; see `load_record`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_record({"repeat": 0}, Path(folder, "record.json"))
    ...     load_record(Path(folder, "record.json"))["repeat"]
    0
    """
    write_json(path, {"format": FORMAT, **record})


def load_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a record; a file of another kind is refused by name.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_record({"repeat": 0, "n_attackers": 3}, Path(folder, "record.json"))
    ...     load_record(Path(folder, "record.json"))["n_attackers"]
    3
    """
    return check_record(read_json(path), path)


def check_record(record: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what was read of a record; something else is refused by the name of its file."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{path}: not a {FORMAT} file")
    for key in ("repeat", "n_attackers"):
        if key in record and (not isinstance(record[key], int) or record[key] < 0):
            raise InputError(f"{path}: {key}: expected a number, got {record[key]!r:.40}")
    return record


def load_records(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read all records of a run folder, in order of repeat and number of attackers.

    Examples
    --------
    >>> load_records("no/such/folder")
    []
    """
    found = [load_record(file) for file in sorted(Path(folder, "records").glob("*.json"))]
    for record in found:
        check_keys(record, {"repeat": int, "n_attackers": int}, {}, f"{folder}: a record")
    return sorted(found, key=lambda record: (record["repeat"], record["n_attackers"]))


def read_lines(file: str | os.PathLike[str]) -> list[Any]:
    """Read gzipped JSON lines; a file that is none, or unfolds to more than `MOST_BYTES`, is refused in one line.

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/records.jsonl.gz"
    >>> write_lines(file, [{"right": 7, "of": 8}])
    >>> read_lines(file)
    [{'right': 7, 'of': 8}]
    """
    try:
        with gzip.open(file) as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file}: not readable ({error})") from error
    if len(data) > MOST_BYTES:
        raise InputError(f"{file}: unfolds to more than {MOST_BYTES:,} bytes")
    return parse_lines(data, str(file))


def write_lines(file: str | os.PathLike[str], content: Iterable[Any]) -> None:
    """Write gzipped JSON lines, atomically; the same content gives the same bytes (see `read_lines`).

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/records.jsonl.gz"
    >>> write_lines(file, [1, "a"])
    >>> read_lines(file)
    [1, 'a']
    """
    data = gzip.compress(format_lines(content), 9, mtime=0)
    write_atomic(file, lambda out: out.write(data))


def parse_lines(data: bytes, what: str) -> list[Any]:
    """Return JSON lines from somebody else; ``what`` names them in errors.

    Examples
    --------
    >>> parse_lines(b'{"a": 1}\\n[]\\n', "here")
    [{'a': 1}, []]
    """
    return [parse_json(line, f"{what}: line {number}") for number, line in enumerate(data.split(b"\n"), 1) if line]


def format_lines(content: Iterable[Any]) -> bytes:
    """Return JSON lines, see `parse_lines`.

    Examples
    --------
    >>> format_lines([{"a": 1}, []])
    b'{"a":1}\\n[]\\n'
    """
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in content).encode()


def read_record_folder(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON files of a folder by name: plain ones, and those that `pack_record_folder` put into one file.

    A plain file counts before a packed one of the same name.

    Examples
    --------
    >>> read_record_folder("no/such/folder")
    {}
    """
    packed = Path(folder, PACKED)
    try:
        found = {str(line["file"]): line["json"] for line in (read_lines(packed) if packed.is_file() else ())}
    except (TypeError, KeyError) as error:
        raise InputError(f"{packed}: not the records of a folder ({error})") from error
    found |= {file.name: read_json(file) for file in Path(folder).glob("*.json")}
    return dict(sorted(found.items()))


def pack_record_folder(folder: str | os.PathLike[str]) -> int:
    """Put the JSON files of a folder into ``records.jsonl.gz`` and remove them; return how many records it has.

    Files are removed only after what was written gave them back. `read_record_folder` reads both.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = Path(folder, "one.json").write_text("[1]")
    >>> pack_record_folder(folder), read_record_folder(folder), [file.name for file in folder.iterdir()]
    (1, {'one.json': [1]}, ['records.jsonl.gz'])
    """
    found, packed = read_record_folder(folder), Path(folder, PACKED)
    if found:
        write_lines(packed, ({"file": name, "json": record} for name, record in found.items()))
        if {line["file"]: line["json"] for line in read_lines(packed)} != found:
            raise InputError(f"{packed}: does not give the records back; nothing was removed")
        for name in found:
            Path(folder, name).unlink(missing_ok=True)
    return len(found)


def check_keys(content: dict[str, Any], needed: Mapping[str, type], optional: Mapping[str, type], what: str) -> None:
    """Refuse what lacks one of the needed keys, or has another type of value under a key than it should."""
    missing = [key for key in needed if key not in content]
    if missing:
        raise InputError(f"{what} lacks {', '.join(missing)}")
    for key, expected in (*needed.items(), *optional.items()):
        if content.get(key) is None and key in optional:
            continue
        if not isinstance(content[key], expected):
            raise InputError(f"{what} has no {expected.__name__} under {key}")
