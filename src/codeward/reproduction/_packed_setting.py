"""Packed results: a setting of a grid in one file, every distinct column of votes once.

A run folder in use is plain files. To keep, the runs of one setting (``mnist-iid/a``, ``mnist-iid/b``, ...) go into
``mnist-iid.runs.npz``, LZMA-compressed arrays that `numpy.load` reads:

- ``index``: bytes of JSON lines, a line a file. The first names the format; then
  ``{"file": "c/records/repeat0-attackers1.json", "json": {...}}`` for JSON, ``"text"`` for other text, and for vote
  files ``"labels"`` and ``"votes"``, rows of the other arrays:
- distinct labels and distinct vote columns, the latter as (vote - label) modulo the number type, so that a model that
  errs seldom is nearly all zeros.

A model that no attacker feeds votes alike in many cells: most columns occur more than once.
"""

import os
import re
import zipfile
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import NUMPY_PACKINGS, format_json, parse_json, read_npz, write_atomic, write_text_atomic
from codeward.codes import Code
from codeward.decoding import VoteSet, estimate_confusion
from codeward.runs import CODE_FILE, CONFIG_FILE, Cell, RunFolder, parse_lines

#: Most bytes that a packed file may unfold to.
LIMIT = 1 << 28
#: How its arrays may be packed.
PACKINGS = (*NUMPY_PACKINGS, zipfile.ZIP_LZMA)
#: Changes when a reader of older files would misread newer ones.
FORMAT = "codeward-results/2"
#: How the name of a packed setting ends.
SUFFIX = ".runs.npz"
#: Files of a run that are packed; a model store and what else lies there is not.
KEPT = re.compile(
    r"[^/\\.][^/\\]*/(config\.yaml|code\.json|(records|studies|votes)/[^/\\.][^/\\]*\.(json|npz)|plots/users\.svg)"
)

#: More votes, or values of confusion matrices, than this in one vote file, and it is none.
_MOST_VALUES = 2**26

Entry = dict[str, Any]


@dataclass(frozen=True)
class PackedSetting:
    """The runs of one setting, packed; the files are read when they are first needed.

    Attributes
    ----------
    path : Path
        In the grid folder, without the ending ``.runs.npz``.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.reproduction import pack_setting, unpack_setting
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
    def file(self) -> Path:
        """The file with everything."""
        return self.path.with_name(self.path.name + SUFFIX)

    @property
    def exists(self) -> bool:
        """Whether the setting is packed."""
        return self.file.is_file()

    @cached_property
    def files(self) -> dict[str, Entry]:
        """What is said of each file, by its name within the setting."""
        try:
            index = read_npz(self.file, ("index",), (), limit=LIMIT, kinds="u", packings=PACKINGS)["index"]
            head, *entries = parse_lines(index.tobytes(), str(self.file))
            if head["format"] != FORMAT:
                raise InputError(f"{self.file}: not a {FORMAT} file")
            found = {str(entry.pop("file")): entry for entry in entries}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{self.file}: not a {FORMAT} file ({error})") from error
        unknown = next((name for name in found if not KEPT.fullmatch(name)), None)
        if unknown is not None:
            raise InputError(f"{self.file}: {unknown!r} is no file of a run")
        return found

    @property
    def runs(self) -> list[str]:
        """Names of the runs."""
        return sorted(name.split("/")[0] for name in self.files if name.endswith(f"/{CONFIG_FILE}"))

    def list_files(self, folder: str) -> list[str]:
        """Return the files of a folder, such as ``c/records``, in order."""
        return sorted(name for name in self.files if name.rpartition("/")[0] == folder)

    def read_json(self, file: str) -> Any:
        """Return the content of a JSON file."""
        return parse_json(self.read_text(file), f"{self.file}: {file}")

    def read_text(self, file: str) -> str:
        """Return a file that is text, as it was."""
        entry = self._find(file)
        if "json" in entry:
            return format_json(entry["json"])
        if not isinstance(entry.get("text"), str):
            raise InputError(f"{self.file}: {file} is not text")
        return str(entry["text"])

    def load_code(self, run: str) -> Code:
        """Return the code of a run."""
        content = self.read_json(f"{run}/{CODE_FILE}")
        try:
            return Code(content["matrix"], content["users"], content["models"], content["construction"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{self.file}: {run}/{CODE_FILE} is no code ({error})") from error

    def load_votes(self, file: str) -> VoteSet:
        """Return a vote file as `codeward.decoding.load_votes` would."""
        found = self._restore(file)
        votes, labels = (found[name].astype(np.int64) for name in ("votes", "labels"))
        return VoteSet(votes, labels, found.get("confusion"), code_digest=self._find(file).get("code_digest"))

    def unpack_run(self, run: str, target: str | os.PathLike[str]) -> None:
        """Write a run as plain files, byte for byte those that were packed, into a folder; the packed files stay."""
        names = [name for name in self.files if name.startswith(f"{run}/")]
        if f"{run}/{CONFIG_FILE}" not in names:
            raise InputError(f"{self.file}: no run {run} in it, but {', '.join(self.runs)}")
        # The configuration comes last: a folder without it is no run yet.
        for name in sorted(names, key=lambda name: name.endswith(f"/{CONFIG_FILE}")):
            place = Path(target, name.partition("/")[2])
            if name.endswith(".npz"):
                write_atomic(place, partial(np.savez_compressed, **self._restore(name)))  # type: ignore[arg-type]
            else:
                write_text_atomic(place, self.read_text(name))

    def _find(self, file: str) -> Entry:
        if file not in self.files:
            raise InputError(f"{self.file}: no {file} in it")
        return self.files[file]

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        return read_npz(self.file, limit=LIMIT, kinds="iu", packings=PACKINGS)

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
                validation = name_validation(file)
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
            raise InputError(f"{self.file}: {file} is no vote file ({error})") from error
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
    return [PackedSetting(f.with_name(f.name.removesuffix(SUFFIX))) for f in sorted(Path(folder).glob("*" + SUFFIX))]


def name_validation(file: str) -> str:
    return re.sub(r"-[^-/]+\.npz$", "-validation.npz", file)


class PackedRun(RunFolder):
    """A run of a packed setting: a `codeward.runs.RunFolder` that is read from there and not written to.

    Examples
    --------
    >>> PackedRun(PackedSetting(Path("results/mnist-iid")), "c").path.as_posix()
    'results/mnist-iid/c'
    """

    def __init__(self, setting: PackedSetting, name: str) -> None:
        super().__init__(setting.path / name)
        object.__setattr__(self, "setting", setting)

    setting: PackedSetting

    @cached_property
    def code(self) -> Code:
        """The code of the run."""
        return self.setting.load_code(self.path.name)

    def list_json(self, part: str) -> list[Path]:
        """Return the JSON files of ``records``, ``votes`` or ``studies``, in order."""
        return [self.setting.path / name for name in self.setting.list_files(f"{self.path.name}/{part}")]

    def _name(self, file: Path) -> str:
        return file.relative_to(self.setting.path).as_posix()

    def holds(self, file: Path) -> bool:
        """Say whether a file of the run is there."""
        return self._name(file) in self.setting.files

    def read_text(self, file: Path) -> str:
        """Return a text file of the run."""
        return self.setting.read_text(self._name(file))

    def read_json(self, file: Path) -> Any:
        """Return the content of a JSON file of the run."""
        return self.setting.read_json(self._name(file))

    def load_votes(self, file: Path, digest: str | None = None) -> VoteSet | None:
        """Return a vote file of the run; it has the numbers of what was packed, not its bytes."""
        return self.setting.load_votes(self._name(file))

    def cell(self, repeat: int, n_attackers: int) -> Cell:
        """Return a cell of the run."""
        return Cell(self, repeat, n_attackers)


def is_packed(folder: str | os.PathLike[str]) -> bool:
    """Say whether a folder is, holds or lies in a packed setting.

    Examples
    --------
    >>> is_packed("no/such/folder")
    False
    """
    path = Path(folder)
    known = {setting.path for place in (path, path.parent, path.parent.parent) for setting in list_packed(place)}
    return bool(known & {path, path.parent}) or any(setting.parent == path for setting in known)
