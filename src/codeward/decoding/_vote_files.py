"""Vote files: ``.npz`` and CSV, whole or in chunks, and the score files of DPA and Finite Aggregation.

Nothing is unpickled that could run code. DPA and Finite Aggregation write ``torch.save({'labels': labels, 'scores':
predictions}, 'evaluations/NAME.pth')`` with one row of c outputs per input and base model, and take the largest output
(the first one on a tie) as the vote. Both list the checkpoints with ``os.listdir``: the order of the m models in a file
is that of a folder, not of the partitions. A certificate that depends on which model saw which partition needs the
order restored.
"""

import csv
import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError
from codeward._files import LARGEST_FILE, ArrayFile, open_regular, write_atomic
from codeward.decoding._assumptions import VoteSet, check_confusion, check_labels, check_votes

#: Numbers that one part of a file may hold.
_PART = 1 << 25
#: Characters of a line of a CSV file.
_LINE = 1 << 22
#: Classes that a vote file may speak of.
MOST_CLASSES = 1 << 20
_ARRAYS = ("votes", "labels", "scores", "confusion", "code_digest")


class VoteReader:
    """A vote file read in chunks, so that it may be larger than memory.

    ``.npz``: arrays ``votes`` (N x m), optional ``labels`` (N), ``confusion`` (m x c x c), ``scores`` (N x m x c) and
    ``code_digest`` (the digest of the code, its characters as numbers).
    ``.csv``: one row an input, one column a model; an optional header; with a header whose last cell is ``label`` the
    last column holds the labels.

    Parameters
    ----------
    path : path-like

    Attributes
    ----------
    n_inputs, n_models : int
    has_labels, has_scores : bool
    confusion : ndarray of shape (m, c, c), or None
    code_digest : str or None

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "votes.npz"
    >>> save_votes(file, [[0, 1], [1, 1], [0, 0]], labels=[0, 1, 0])
    >>> [len(part.votes) for part in VoteReader(file).chunks(2)]
    [2, 1]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.code_digest: str | None = None
        self.confusion: NDArray[np.float64] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._header = False
        suffix = self.path.suffix.lower()
        if suffix not in (".npz", ".csv"):
            raise InputError(f"{self.path}: a vote file ends in .npz or .csv")
        self._open_npz() if suffix == ".npz" else self._open_csv()

    def _open_npz(self) -> None:
        with ArrayFile(self.path, "iuf", _ARRAYS) as file:
            shape = file.require("votes").shape
            self._shapes = {name: header.shape for name, header in file.headers.items()}
            if len(shape) != 2 or not shape[1]:
                raise InputError(f"{self.path}: votes: expected shape (inputs, models), got {shape}")
            self.n_inputs, self.n_models = shape
            if self._shapes.get("labels", shape[:1]) != shape[:1]:
                raise InputError(f"{self.path}: labels: expected shape ({shape[0]},), got {self._shapes['labels']}")
            scores = self._shapes.get("scores")
            if scores is not None and (len(scores) != 3 or scores[:2] != shape or not scores[2]):
                raise InputError(f"{self.path}: scores: expected shape ({shape[0]}, {shape[1]}, classes), got {scores}")
            if max(int(np.prod(shape[1:])) for shape in (shape, scores or (0, 0))) > _PART:
                raise TooLargeError(f"{self.path}: more than {_PART:,} numbers an input")
            if "confusion" in self._shapes:
                known = self._shapes["confusion"]
                if len(known) == 3 and known[0] != self.n_models:
                    raise InputError(f"{self.path}: confusion of {known[0]} models, votes of {self.n_models}")
                if file.headers["confusion"].n_bytes > LARGEST_FILE:
                    raise TooLargeError(f"{self.path}: confusion matrices of shape {known}")
                self.confusion = check_confusion(file.read("confusion"))
            if "code_digest" in self._shapes:
                self.code_digest = self._read_digest(file)
        self.has_labels = "labels" in self._shapes
        self.has_scores = "scores" in self._shapes

    def _read_digest(self, file: ArrayFile) -> str:
        header = file.headers["code_digest"]
        raw = file.read("code_digest") if header.shape == (64,) and header.dtype == np.uint8 else np.zeros(0, np.uint8)
        text = raw.tobytes().decode("latin-1")
        if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
            raise InputError(f"{self.path}: code_digest: expected the 64 characters of a code's digest as uint8")
        return text

    def _open_csv(self) -> None:
        first, count = None, 0
        for _, row in self._csv_rows():
            first, count = row if first is None else first, count + 1
        if first is None:
            raise InputError(f"{self.path}: empty")
        self._header = any(_number(cell) is None for cell in first)
        self.n_inputs = count - self._header
        self.has_labels = self._header and first[-1].strip().lower() == "label"
        self.has_scores = False
        self.n_models = len(first) - self.has_labels
        if not self.n_models:
            raise InputError(f"{self.path}: no column of votes")

    def _csv_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows that are not empty, with the number of their line."""
        with io.TextIOWrapper(open_regular(self.path, None), encoding="utf-8-sig", newline="") as handle:

            def lines() -> Iterator[str]:
                while line := handle.readline(_LINE):
                    if len(line) == _LINE:
                        raise InputError(f"{self.path}: a line of more than {_LINE:,} characters")
                    yield line

            reader = csv.reader(lines())
            try:
                for row in reader:
                    if row:
                        yield reader.line_num, row
            except (csv.Error, UnicodeDecodeError) as error:
                what = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
                raise InputError(f"{self.path}: line {reader.line_num + 1}: {what}") from error

    @property
    def n_score_classes(self) -> int:
        """Number of classes in the scores; 0 without scores."""
        return self._shapes["scores"][2] if self.has_scores else 0

    def chunks(self, size: int = 65_536, with_scores: bool = False) -> Iterator[VoteSet]:
        """Yield consecutive parts of at most ``size`` inputs, votes and labels checked to be whole numbers >= 0."""
        width = int(np.prod(self._shapes["scores"][1:])) if with_scores and self.has_scores else self.n_models
        size = max(1, min(size, _PART // width))
        parts = self._csv_chunks(size) if self.path.suffix.lower() == ".csv" else self._npz_chunks(size, with_scores)
        for votes, labels, scores in parts:
            try:
                checked = check_votes(votes, self.n_models)
                truth = None if labels is None else check_labels(labels, checked.shape[0])
            except InputError as error:
                raise InputError(f"{self.path}: {error}") from error
            largest = max(int(known.max(initial=0)) for known in (checked, truth) if known is not None)
            if largest >= MOST_CLASSES:
                raise InputError(f"{self.path}: class {largest:,}; a file may speak of {MOST_CLASSES:,} classes")
            yield VoteSet(checked, truth, self.confusion, scores, self.code_digest)

    def _npz_chunks(self, size: int, with_scores: bool) -> Iterator[tuple[Any, Any, Any]]:
        names = [name for name in ("votes", "labels", "scores") if name in self._shapes]
        if not with_scores and self.has_scores:
            names.remove("scores")
        counts = [min(size, self.n_inputs - start) for start in range(0, self.n_inputs, size)]
        with ArrayFile(self.path, "iuf", names) as file:
            if {name: header.shape for name, header in file.headers.items()} != {n: self._shapes[n] for n in names}:
                raise InputError(f"{self.path}: changed while it was read")
            streams = {name: file.rows(name, counts) for name in names}
            for part in zip(*streams.values(), strict=True):
                got = dict(zip(names, part, strict=True))
                scores = got.get("scores")
                if scores is not None and np.isnan(scores).any():
                    raise InputError(f"{self.path}: scores hold NaN")
                yield got["votes"], got.get("labels"), scores

    def _csv_chunks(self, size: int) -> Iterator[tuple[Any, Any, Any]]:
        width = self.n_models + self.has_labels
        block: list[list[float]] = []
        for count, (line, row) in enumerate(self._csv_rows()):
            if not count and self._header:
                continue
            values = [_number(cell) for cell in row]
            if len(row) != width or None in values:
                raise InputError(f"{self.path}: line {line}: expected {width} whole numbers")
            block.append([float(value) for value in values if value is not None])
            if len(block) == size:
                yield self._split(block)
                block = []
        if block:
            yield self._split(block)

    def _split(self, block: list[list[float]]) -> tuple[Any, Any, Any]:
        table = np.array(block)
        return (table[:, :-1], table[:, -1], None) if self.has_labels else (table, None, None)


def load_votes(path: str | os.PathLike[str]) -> VoteSet:
    """Read a whole vote file (see `VoteReader` for the formats), if its arrays take 2 GiB at most.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "votes.csv"
    >>> save_votes(file, [[0, 1], [1, 1]])
    >>> load_votes(file).votes.tolist()
    [[0, 1], [1, 1]]
    """
    reader = VoteReader(path)
    numbers = reader.n_inputs * reader.n_models * (1 + reader.n_score_classes)
    if numbers * 8 > LARGEST_FILE:
        raise TooLargeError(f"{path}: {reader.n_inputs:,} inputs are too many to read at once; use VoteReader.chunks")
    parts = list(reader.chunks(with_scores=True))
    if not parts:
        raise InputError(f"{path}: no inputs")
    labels = [part.labels for part in parts if part.labels is not None]
    scores = [part.scores for part in parts if part.scores is not None]
    return VoteSet(
        np.concatenate([part.votes for part in parts]),
        np.concatenate(labels) if labels else None,
        reader.confusion,
        np.concatenate(scores) if scores else None,
        reader.code_digest,
    )


def save_votes(
    path: str | os.PathLike[str],
    votes: ArrayLike,
    labels: ArrayLike | None = None,
    confusion: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    code_digest: str | None = None,
) -> None:
    """Write a vote file, atomically: ``.npz`` with all parts, or ``.csv`` with votes and labels only.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "votes.npz"
    >>> save_votes(file, [[0, 1], [1, 1]], labels=[0, 1])
    >>> load_votes(file).labels
    array([0, 1])
    """
    checked = check_votes(votes)
    small = np.min_scalar_type(int(checked.max(initial=0)))
    arrays: dict[str, NDArray[Any]] = {"votes": checked.astype(small)}
    if labels is not None:
        known = check_labels(labels, checked.shape[0])
        arrays["labels"] = known.astype(np.min_scalar_type(int(known.max(initial=0))))
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        if confusion is not None or scores is not None:
            raise InputError("a CSV of votes holds no confusion matrices or scores; write .npz")
        names = [f"model{i}" for i in range(checked.shape[1])] + ["label"] * (labels is not None)
        table = np.column_stack([checked, arrays["labels"]]) if labels is not None else checked
        lines = [",".join(names), *(",".join(map(str, row)) for row in table.tolist())]
        write_atomic(path, lambda out: out.write(("\n".join(lines) + "\n").encode()))
        return
    if suffix != ".npz":
        raise InputError(f"{path}: a vote file ends in .npz or .csv")
    if confusion is not None:
        arrays["confusion"] = check_confusion(confusion)
    if scores is not None:
        arrays["scores"] = np.asarray(scores)
        if arrays["scores"].shape[:2] != checked.shape or arrays["scores"].ndim != 3:
            raise InputError(f"scores: expected shape {checked.shape} + (classes,), got {arrays['scores'].shape}")
    if code_digest is not None:
        arrays["code_digest"] = np.frombuffer(code_digest.encode(), dtype=np.uint8)
    write_atomic(path, lambda out: np.savez_compressed(out, **arrays))  # type: ignore[arg-type]


def _number(cell: str) -> float | None:
    with suppress(ValueError):
        return float(cell)
    return None


def load_scores(path: str | os.PathLike[str]) -> VoteSet:
    """Read a score file (torch is imported here, with ``weights_only``: no code is unpickled).

    ``scores`` of shape (N, m, c) are outputs or one-hot votes, the vote being the largest (ties to the smaller class);
    of shape (N, m) they are the votes themselves. An array ``radius`` (N) is kept as what somebody claims.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "scores.pth"
    >>> save_scores(file, [[0, 1, 1]], [1], n_classes=2)
    >>> load_scores(file).votes
    array([[0, 1, 1]])
    """
    import torch

    with open_regular(path) as file:
        _check_packing(file, path)
        try:
            stored = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises several kinds for files it refuses to read
            raise InputError(f"{path}: not a score file that can be read without running code") from error
    if not isinstance(stored, dict) or not {"labels", "scores"} <= stored.keys():
        raise InputError(f"{path}: expected a dictionary with 'labels' and 'scores'")
    scores, labels = (_as_numbers(stored[name], f"{path}: {name}") for name in ("scores", "labels"))
    found = _as_votes(scores, labels, path)
    if "radius" not in stored:
        return found
    radius = _as_numbers(stored["radius"], f"{path}: radius")
    if radius.shape != labels.shape or (radius != np.rint(radius)).any():
        raise InputError(f"{path}: radius: expected {labels.size} whole numbers, got {radius.dtype} {radius.shape}")
    return replace(found, radius=radius.astype(np.int64))


def _as_votes(scores: NDArray[Any], labels: NDArray[Any], path: str | os.PathLike[str]) -> VoteSet:
    if scores.ndim == 2:
        votes = check_votes(scores)
        return VoteSet(votes, check_labels(labels, votes.shape[0]))
    if scores.ndim != 3 or scores.shape[2] == 0:
        raise InputError(f"{path}: scores: expected shape (inputs, models, classes), got {scores.shape}")
    if np.isnan(scores).any():
        raise InputError(f"{path}: scores hold NaN")
    votes = scores.argmax(axis=2).astype(np.int64)
    return VoteSet(votes, check_labels(labels, votes.shape[0], scores.shape[2]), None, scores)


def _check_packing(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """Refuse archives that torch does not write: one whose members are packed could unpack to anything."""
    members: list[zipfile.ZipInfo] = []
    try:
        if zipfile.is_zipfile(file):
            members = zipfile.ZipFile(file).infolist()
    except Exception as error:  # whatever is wrong with its directory
        raise InputError(f"{path}: not a score file: its archive is damaged") from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise InputError(f"{path}: not a score file as torch writes it: packed")
    file.seek(0)


def _as_numbers(stored: Any, what: str) -> NDArray[Any]:
    """Turn what torch read into an array of numbers of a bearable size."""
    import torch

    try:
        tensor = torch.as_tensor(stored).detach()
        # Strides may make much of little: a view of one number can have any shape.
        if tensor.numel() * 8 > LARGEST_FILE:
            raise TooLargeError(f"{what}: shape {tuple(tensor.shape)} is too large to read at once")
        values = np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what}: expected a tensor of numbers") from error
    if values.dtype.kind not in "iuf":
        raise InputError(f"{what}: expected numbers, got dtype {values.dtype}")
    return values


def save_scores(
    path: str | os.PathLike[str],
    votes: ArrayLike,
    labels: ArrayLike,
    n_classes: int,
    scores: NDArray[np.floating] | None = None,
) -> None:
    """Write a score file their scripts read, atomically: the scores, or else one-hot votes, shape (N, m, c).

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "scores.pth"
    >>> save_scores(file, [[0, 1, 1]], [1], n_classes=2)
    >>> load_scores(file).scores.shape
    (1, 3, 2)
    """
    import torch

    checked = check_votes(votes, n_classes=n_classes)
    truth = check_labels(labels, checked.shape[0], n_classes)
    outputs = np.eye(n_classes, dtype=np.float32)[checked] if scores is None else np.asarray(scores, dtype=np.float32)
    if outputs.shape != (*checked.shape, n_classes):
        raise InputError(f"scores: expected shape {(*checked.shape, n_classes)}, got {outputs.shape}")
    content = {"labels": torch.from_numpy(truth.astype(np.int32)), "scores": torch.from_numpy(outputs)}
    write_atomic(path, lambda out: torch.save(content, out))
