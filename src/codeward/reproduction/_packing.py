"""Packing a setting of a grid into one file and writing it out again; see `PackedSetting` for what it holds."""

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import ArrayFile, format_json, write_atomic
from codeward.decoding import estimate_confusion, load_votes
from codeward.reproduction._packed_setting import (
    FORMAT,
    KEPT,
    Entry,
    PackedSetting,
    name_validation,
)
from codeward.runs import CONFIG_FILE, format_lines

#: Arrays of vote files that are packed.
_PACKED = {"votes", "labels", "confusion", "code_digest"}


def pack_setting(folder: str | os.PathLike[str], setting: str) -> tuple[PackedSetting, dict[str, str]]:
    """Pack the run folders of a setting into one file, check that it gives back every byte that counts, remove them.

    Guarantees: a file is removed only after it was read back from the packed files and found equal: text byte by byte,
    votes, labels and confusion matrices number by number and type by type. A crash leaves plain files, packed ones, or
    both; what is packed already is unpacked first. The same runs give the same bytes.

    Returns
    -------
    packed : PackedSetting
    left_out : dict of str to str
        Runs that stay plain (class scores are not packed), and why.

    Raises
    ------
    InputError
        When a file is not readable.

    Examples
    --------
    >>> packed, left_out = pack_setting("no/such/folder", "mnist-iid")  # no runs: nothing happens
    >>> packed.exists, left_out
    (False, {})
    """
    unpack_setting(folder, setting)
    packed = PackedSetting(Path(folder, setting))
    builder, left_out = _Builder(), dict[str, str]()
    plain = {file.parent.name: file.parent for file in sorted(packed.path.glob(f"*/{CONFIG_FILE}"))}
    taken = []
    for run, place in plain.items():
        files = {f"{run}/{file.relative_to(place).as_posix()}": file for file in sorted(place.rglob("*"))}
        chosen = {name: file for name, file in files.items() if KEPT.fullmatch(name) and file.is_file()}
        try:
            builder.take(chosen)
            taken.append((place, chosen))
        except _CannotPackError as error:
            left_out[run] = str(error)
    if not taken:
        return packed, left_out
    data = builder.pack()
    write_atomic(packed.file, lambda out: out.write(data))
    packed = PackedSetting(packed.path)
    for _, chosen in taken:
        for name, file in chosen.items():
            _compare(packed, name, file)
    for place, chosen in taken:
        (place / CONFIG_FILE).unlink()  # first: now the packed run counts
        for file in chosen.values():
            file.unlink(missing_ok=True)
        for part in [*(place / name for name in ("records", "studies", "votes", "plots")), place, packed.path]:
            if part.is_dir() and not any(part.iterdir()):
                part.rmdir()
    return packed, left_out


def unpack_setting(folder: str | os.PathLike[str], setting: str) -> None:
    """Write the run folders of a packed setting as plain files again, and remove the packed ones.

    Runs that are there as plain files are left as they are. Nothing happens where the setting is not packed.

    Examples
    --------
    >>> unpack_setting("no/such/folder", "mnist-iid")  # not packed: nothing happens
    """
    packed = PackedSetting(Path(folder, setting))
    if not packed.exists:
        return
    for run in packed.runs:
        if not (packed.path / run / CONFIG_FILE).exists():
            packed.unpack_run(run, packed.path / run)
    packed.file.unlink()


class _CannotPackError(Exception):
    """A run has something that packed files would lose."""


class _Builder:
    """Distinct columns and lines of the index, as files come in."""

    def __init__(self) -> None:
        self.files: dict[str, Entry] = {}
        self.rows: dict[str, dict[bytes, int]] = {}

    def take(self, files: Mapping[str, Path]) -> None:
        """Take the files of a run."""
        found = {name: _read(name, file) if file.suffix != ".npz" else {} for name, file in files.items()}
        for name, file in files.items():
            if file.suffix == ".npz":
                given = _load_arrays(file)
                confusion, found[name] = given.get("confusion"), self._fold(given["votes"], given["labels"])
                if confusion is not None:
                    validation = files.get(name_validation(name))
                    if validation is None or not np.array_equal(confusion, _estimate(validation, confusion)):
                        raise _CannotPackError(f"{file.name}: confusion matrices of other votes than the validation's")
                    found[name]["confusion"] = [str(confusion.dtype), confusion.shape[1]]
                if "code_digest" in given:
                    found[name]["code_digest"] = given["code_digest"].tobytes().decode("ascii")
        self.files |= found

    def _fold(self, votes: NDArray[Any], labels: NDArray[Any]) -> Entry:
        columns = np.ascontiguousarray((votes - labels.astype(votes.dtype)[:, None]).T)
        return {
            "labels": [_shape(labels), self._number(f"labels-{_shape(labels)}", labels)],
            "votes": [_shape(votes), [self._number(f"votes-{_shape(votes)}", column) for column in columns]],
        }

    def _number(self, name: str, column: NDArray[Any]) -> int:
        known = self.rows.setdefault(name, {})
        return known.setdefault(column.tobytes(), len(known))

    def pack(self) -> bytes:
        """Return index and columns as an ``.npz``; the same runs give the same bytes."""
        lines = [{"format": FORMAT}, *({"file": name, **self.files[name]} for name in sorted(self.files))]
        tables = {"index": np.frombuffer(format_lines(lines), dtype=np.uint8)}
        for name, rows in sorted(self.rows.items()):
            dtype = np.dtype(name.split("-")[1])
            tables[name] = np.frombuffer(b"".join(rows), dtype=dtype).reshape(len(rows), -1)
        return pack_arrays(tables)


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return an ``.npz`` in LZMA; the same arrays give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # its date is always the same
            info.compress_type = zipfile.ZIP_LZMA
            with archive.open(info, "w") as part:
                np.lib.format.write_array(part, np.ascontiguousarray(array), allow_pickle=False)
    return out.getvalue()


def _read(name: str, file: Path) -> Entry:
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if name.endswith(".json") else None
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not readable ({error})") from error
    return {"json": content} if content is not None and format_json(content) == text else {"text": text}


def _load_arrays(file: Path) -> dict[str, NDArray[Any]]:
    load_votes(file)  # checks what it reads
    with ArrayFile(file) as arrays:
        if "labels" not in arrays.headers or set(arrays.headers) - _PACKED:
            raise _CannotPackError(f"{file.name}: class scores, no labels, or something else that is not packed")
        return {name: arrays.read(name) for name in arrays.headers}


def _compare(packed: PackedSetting, name: str, file: Path) -> None:
    if file.suffix != ".npz":
        same = packed.read_text(name).encode() == file.read_bytes()
    else:
        ours, given = packed._restore(name), _load_arrays(file)
        same = list(ours) == list(given) and all(
            ours[part].dtype == given[part].dtype and np.array_equal(ours[part], given[part]) for part in ours
        )
    if not same:
        raise InputError(f"{file}: the packed files do not give it back; nothing was removed")


def _estimate(validation: Path, like: NDArray[Any]) -> NDArray[Any]:
    found = load_votes(validation)
    assert found.labels is not None  # it was read before
    return estimate_confusion(found.votes, found.labels, like.shape[1]).astype(like.dtype)


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype}-{len(array)}"
