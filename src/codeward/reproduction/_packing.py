"""Packed results: a setting of a grid in two files, every distinct column of votes once.

A run folder in use is plain files. To keep, the runs of one setting (``mnist-iid/a``, ``mnist-iid/b``, ...) go into

- ``mnist-iid.jsonl.gz``: a line a file. The first line names the format and the digest of the other file; then
  ``{"file": "c/records/repeat0-attackers1.json", "json": {...}}`` for JSON, ``"text"`` for other text, and for vote
  files ``"labels"`` and ``"votes"``, rows of the arrays of
- ``mnist-iid.npz``: distinct labels and distinct vote columns, the latter as (vote - label) modulo the number type, so
  that a model that errs seldom is nearly all zeros. LZMA-compressed; `numpy.load` reads it.

A model that no attacker feeds votes alike in many cells: most columns occur more than once.
"""

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import NUMPY_PACKINGS, parse_json, read_bytes, read_npz, write_atomic, write_text_atomic
from codeward.codes import Code
from codeward.decoding import VoteSet, estimate_confusion, load_votes
from codeward.reproduction._json_lines import LIMIT, read_lines, write_lines

#: Changes when a reader of older files would misread newer ones.
FORMAT = "codeward-results/1"
#: Files of a run that are packed; a model store and what else lies there is not.
_KEPT = re.compile(
    r"[^/\\.][^/\\]*/(config\.yaml|code\.json|(records|studies|votes)/[^/\\.][^/\\]*\.(json|npz)|plots/users\.svg)"
)

#: Arrays of vote files that are packed.
_PACKED = {"votes", "labels", "confusion", "code_digest"}

#: More votes, or values of confusion matrices, than this in one vote file, and it is none.
_MOST_VALUES = 2**26

Entry = dict[str, Any]


@dataclass(frozen=True)
class PackedSetting:
    """The runs of one setting, packed; the files are read when they are first needed.

    Attributes
    ----------
    path : Path
        In the grid folder, without the endings ``.jsonl.gz`` and ``.npz``.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "digits-iid" / "c").mkdir(parents=True)
    >>> _ = (folder / "digits-iid" / "c" / "config.yaml").write_text("users: 12\\n")
    >>> packed, left_out = pack_setting(folder, "digits-iid")
    >>> packed.runs, packed.read_text("c/config.yaml"), left_out
    (['c'], 'users: 12\\n', {})
    >>> unpack_setting(folder, "digits-iid")
    >>> (folder / "digits-iid" / "c" / "config.yaml").read_text(), packed.exists
    ('users: 12\\n', False)
    """

    path: Path

    @property
    def index_file(self) -> Path:
        """The file with records, studies and what the votes are."""
        return self.path.with_name(self.path.name + ".jsonl.gz")

    @property
    def votes_file(self) -> Path:
        """The file with the distinct columns."""
        return self.path.with_name(self.path.name + ".npz")

    @property
    def exists(self) -> bool:
        """Whether the setting is packed."""
        return self.index_file.is_file()

    @cached_property
    def files(self) -> dict[str, Entry]:
        """What is said of each file, by its name within the setting."""
        try:
            head, *entries = read_lines(self.index_file)
            if head["format"] != FORMAT:
                raise InputError(f"{self.index_file}: not a {FORMAT} file")
            found = {str(entry.pop("file")): entry for entry in entries}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{self.index_file}: not a {FORMAT} file ({error})") from error
        unknown = next((name for name in found if not _KEPT.fullmatch(name)), None)
        if unknown is not None:
            raise InputError(f"{self.index_file}: {unknown!r} is no file of a run")
        object.__setattr__(self, "_digest", head.get("votes"))
        return found

    @property
    def runs(self) -> list[str]:
        """Names of the runs."""
        return sorted(name.split("/")[0] for name in self.files if name.endswith("/config.yaml"))

    def list_files(self, folder: str) -> list[str]:
        """Return the files of a folder, such as ``c/records``, in order."""
        return sorted(name for name in self.files if name.rpartition("/")[0] == folder)

    def read_json(self, file: str) -> Any:
        """Return the content of a JSON file."""
        return parse_json(self.read_text(file), f"{self.index_file}: {file}")

    def read_text(self, file: str) -> str:
        """Return a file that is text, as it was."""
        entry = self._find(file)
        if "json" in entry:
            return _write_json(entry["json"])
        if not isinstance(entry.get("text"), str):
            raise InputError(f"{self.index_file}: {file} is not text")
        return str(entry["text"])

    def load_code(self, run: str) -> Code:
        """Return the code of a run."""
        content = self.read_json(f"{run}/code.json")
        try:
            return Code(content["matrix"], content["users"], content["models"], content["construction"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{self.index_file}: {run}/code.json is no code ({error})") from error

    def load_votes(self, file: str) -> VoteSet:
        """Return a vote file as `codeward.decoding.load_votes` would."""
        found = self._restore(file)
        votes, labels = (found[name].astype(np.int64) for name in ("votes", "labels"))
        return VoteSet(votes, labels, found.get("confusion"), code_digest=self._find(file).get("code_digest"))

    def unpack_run(self, run: str, target: str | os.PathLike[str]) -> None:
        """Write a run as plain files, byte for byte those that were packed, into a folder; the packed files stay."""
        names = [name for name in self.files if name.startswith(f"{run}/")]
        if f"{run}/config.yaml" not in names:
            raise InputError(f"{self.index_file}: no run {run} in it, but {', '.join(self.runs)}")
        # The configuration comes last: a folder without it is no run yet.
        for name in sorted(names, key=lambda name: name.endswith("/config.yaml")):
            place = Path(target, name.partition("/")[2])
            if name.endswith(".npz"):
                write_atomic(place, partial(np.savez_compressed, **self._restore(name)))  # type: ignore[arg-type]
            else:
                write_text_atomic(place, self.read_text(name))

    def _find(self, file: str) -> Entry:
        if file not in self.files:
            raise InputError(f"{self.index_file}: no {file} in it")
        return self.files[file]

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        data = read_bytes(self.votes_file, LIMIT) if self.votes_file.is_file() else b""
        known = self.files and getattr(self, "_digest", None)
        if hashlib.sha256(data).hexdigest() != known:
            raise InputError(f"{self.votes_file}: not the votes that {self.index_file.name} is about")
        return read_npz(self.votes_file, limit=LIMIT, kinds="iu", packings=(*NUMPY_PACKINGS, zipfile.ZIP_LZMA))

    def _restore(self, file: str) -> dict[str, NDArray[Any]]:
        entry = self._find(file)
        try:
            [labels] = self._take("labels", entry["labels"][0], [entry["labels"][1]])
            columns = self._take("votes", *entry["votes"])
            if labels.shape != columns.shape[1:]:
                raise InputError("votes and labels of other inputs")
            votes = np.ascontiguousarray((columns + labels.astype(columns.dtype)).T)
            if votes.min(initial=0) < 0 or labels.min(initial=0) < 0:
                raise InputError("votes below 0")
            found = {"votes": votes, "labels": labels}
            if "confusion" in entry:
                validation = _name_validation(file)
                known = found if validation == file else self._restore(validation)
                dtype, n_classes = entry["confusion"]
                if dtype not in ("float64", "float32", "float16") or type(n_classes) is not int:
                    raise InputError("confusion matrices of no numbers")
                if len(columns) * n_classes**2 > _MOST_VALUES:
                    raise InputError("confusion matrices of too many classes")
                said, truth = (known[name].astype(np.int64) for name in ("votes", "labels"))
                found["confusion"] = estimate_confusion(said, truth, n_classes).astype(dtype)
            if "code_digest" in entry:
                found["code_digest"] = np.frombuffer(entry["code_digest"].encode("ascii"), dtype=np.uint8)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{self.index_file}: {file} is no vote file ({error})") from error
        return found

    def _take(self, what: str, shape: str, rows: list[int]) -> NDArray[Any]:
        """Return rows of the distinct labels or vote columns of a shape."""
        table = self._arrays[f"{what}-{shape}"]
        if table.ndim != 2 or not rows or not all(type(row) is int and 0 <= row < len(table) for row in rows):
            raise InputError(f"{what} that are not there")
        if len(rows) * table.shape[1] > _MOST_VALUES:
            raise InputError("too many votes")
        return table[rows]


def list_packed(folder: str | os.PathLike[str]) -> list[PackedSetting]:
    """Return the packed settings of a grid folder.

    Examples
    --------
    >>> list_packed("nowhere")
    []
    """
    suffix = ".jsonl.gz"
    return [PackedSetting(f.with_name(f.name.removesuffix(suffix))) for f in sorted(Path(folder).glob("*-*" + suffix))]


def pack_setting(folder: str | os.PathLike[str], setting: str) -> tuple[PackedSetting, dict[str, str]]:
    """Pack the run folders of a setting into two files, check that they give back every byte that counts, remove them.

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
    """
    unpack_setting(folder, setting)
    packed = PackedSetting(Path(folder, setting))
    builder, left_out = _Builder(), dict[str, str]()
    plain = {file.parent.name: file.parent for file in sorted(packed.path.glob("*/config.yaml"))}
    taken = []
    for run, place in plain.items():
        files = {f"{run}/{file.relative_to(place).as_posix()}": file for file in sorted(place.rglob("*"))}
        chosen = {name: file for name, file in files.items() if _KEPT.fullmatch(name) and file.is_file()}
        try:
            builder.take(chosen)
            taken.append((place, chosen))
        except _CannotPackError as error:
            left_out[run] = str(error)
    if not taken:
        return packed, left_out
    columns = builder.votes()
    digest = hashlib.sha256(columns).hexdigest()
    lines = [
        {"format": FORMAT, "votes": digest},
        *({"file": name, **builder.files[name]} for name in sorted(builder.files)),
    ]
    write_atomic(packed.votes_file, lambda out: out.write(columns))
    write_lines(packed.index_file, lines)
    packed = PackedSetting(packed.path)
    for _, chosen in taken:
        for name, file in chosen.items():
            _compare(packed, name, file)
    for place, chosen in taken:
        (place / "config.yaml").unlink()  # first: now the packed run counts
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
        if not (packed.path / run / "config.yaml").exists():
            packed.unpack_run(run, packed.path / run)
    packed.index_file.unlink()
    packed.votes_file.unlink(missing_ok=True)


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
                    validation = files.get(_name_validation(name))
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

    def votes(self) -> bytes:
        """Return the columns as an ``.npz``; the same columns give the same bytes."""
        tables = {}
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
    return {"json": content} if content is not None and _write_json(content) == text else {"text": text}


def _load_arrays(file: Path) -> dict[str, NDArray[Any]]:
    load_votes(file)  # checks what it reads
    with np.load(file, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files if name != "scores"}
        if len(found) < len(arrays.files) or "labels" not in found or set(found) - _PACKED:
            raise _CannotPackError(f"{file.name}: class scores, no labels, or something else that is not packed")
        return found


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


def _write_json(content: Any) -> str:
    """Return JSON as all writers of run folders write it."""
    return json.dumps(content, indent=1) + "\n"


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype}-{len(array)}"


def _name_validation(file: str) -> str:
    return re.sub(r"-[^-/]+\.npz$", "-validation.npz", file)
