"""Vote files: the contract's ``.npz`` and CSV, whole or in chunks. Nothing is ever unpickled."""

import csv
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward._files import write_atomic
from codeward.decoding._models import check_confusion, check_labels, check_votes


@dataclass(frozen=True)
class VoteSet:
    """Votes with what came along; absent parts are None.

    Attributes
    ----------
    votes : ndarray of int64, shape (N, m)
    labels : ndarray of int64, shape (N,), or None
    confusion : ndarray of float64, shape (m, c, c), or None
    scores : ndarray, shape (N, m, c), or None
    """

    votes: NDArray[np.int64]
    labels: NDArray[np.int64] | None = None
    confusion: NDArray[np.float64] | None = None
    scores: NDArray[Any] | None = None


class VoteReader:
    """A vote file read in chunks, so that it may be larger than memory.

    ``.npz``: arrays ``votes`` (N x m), optional ``labels`` (N), ``confusion`` (m x c x c), ``scores`` (N x m x c).
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
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise InputError(f"{self.path}: no such file")
        self.confusion: NDArray[np.float64] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._header = False
        suffix = self.path.suffix.lower()
        if suffix == ".npz":
            self._open_npz()
        elif suffix == ".csv":
            self._open_csv()
        else:
            raise InputError(f"{self.path}: a vote file ends in .npz or .csv")

    def _open_npz(self) -> None:
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
                if "votes" not in members:
                    raise InputError(f"{self.path}: no array named 'votes' (found: {', '.join(members) or 'none'})")
                for name in ("votes", "labels", "scores"):
                    if name in members:
                        with archive.open(f"{name}.npy") as stream:
                            self._shapes[name] = _read_header(stream, f"{self.path}: {name}")[0]
                if "confusion" in members:
                    with archive.open("confusion.npy") as stream:
                        self.confusion = check_confusion(_read_rows(stream, f"{self.path}: confusion"))
        except zipfile.BadZipFile as error:
            raise InputError(f"{self.path}: not a .npz file") from error
        shape = self._shapes["votes"]
        if len(shape) != 2:
            raise InputError(f"{self.path}: votes: expected shape (inputs, models), got {shape}")
        self.n_inputs, self.n_models = shape
        if self._shapes.get("labels", shape[:1]) != shape[:1]:
            raise InputError(f"{self.path}: labels: expected shape ({shape[0]},), got {self._shapes['labels']}")
        scores = self._shapes.get("scores")
        if scores is not None and (len(scores) != 3 or scores[:2] != shape):
            raise InputError(f"{self.path}: scores: expected shape ({shape[0]}, {shape[1]}, classes), got {scores}")
        if self.confusion is not None and self.confusion.shape[0] != self.n_models:
            raise InputError(f"{self.path}: confusion of {self.confusion.shape[0]} models, votes of {self.n_models}")
        self.has_labels = "labels" in self._shapes
        self.has_scores = "scores" in self._shapes

    def _open_csv(self) -> None:
        with self.path.open(newline="") as handle:
            rows = (row for row in csv.reader(handle) if row)
            first = next(rows, None)
            if first is None:
                raise InputError(f"{self.path}: empty")
            self._header = any(_number(cell) is None for cell in first)
            self.n_inputs = sum(1 for _ in rows) + (not self._header)
        self.has_labels = self._header and first[-1].strip().lower() == "label"
        self.has_scores = False
        self.n_models = len(first) - self.has_labels

    def chunks(self, size: int = 65_536, with_scores: bool = False) -> Iterator[VoteSet]:
        """Yield consecutive parts of at most ``size`` inputs, votes and labels checked to be whole numbers >= 0."""
        parts = self._csv_chunks(size) if self.path.suffix.lower() == ".csv" else self._npz_chunks(size, with_scores)
        for votes, labels, scores in parts:
            checked = check_votes(votes, self.n_models)
            truth = None if labels is None else check_labels(labels, checked.shape[0])
            yield VoteSet(checked, truth, self.confusion, scores)

    def _npz_chunks(self, size: int, with_scores: bool) -> Iterator[tuple[Any, Any, Any]]:
        names = [name for name in self._shapes if name != "scores" or with_scores]
        with zipfile.ZipFile(self.path) as archive:
            streams = {name: archive.open(f"{name}.npy") for name in names}
            try:
                readers = {name: _row_reader(streams[name], f"{self.path}: {name}") for name in names}
                for start in range(0, self.n_inputs, size):
                    count = min(size, self.n_inputs - start)
                    got = {name: read(count) for name, read in readers.items()}
                    scores = got.get("scores")
                    if scores is not None and np.isnan(scores).any():
                        raise InputError(f"{self.path}: scores: NaN among inputs {start}..{start + count - 1}")
                    yield got["votes"], got.get("labels"), scores
            finally:
                for stream in streams.values():
                    stream.close()

    def _csv_chunks(self, size: int) -> Iterator[tuple[Any, Any, Any]]:
        width = self.n_models + self.has_labels
        with self.path.open(newline="") as handle:
            reader = csv.reader(handle)
            skip = self._header
            block: list[list[float]] = []
            for row in reader:
                if not row:
                    continue
                if skip:
                    skip = False
                    continue
                values = [_number(cell) for cell in row]
                if len(row) != width or None in values:
                    raise InputError(f"{self.path}: line {reader.line_num}: expected {width} whole numbers")
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
    """Read a whole vote file (see `VoteReader` for the formats)."""
    reader = VoteReader(path)
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
    )


def save_votes(
    path: str | os.PathLike[str],
    votes: ArrayLike,
    labels: ArrayLike | None = None,
    confusion: ArrayLike | None = None,
    scores: ArrayLike | None = None,
) -> None:
    """Write a vote file, atomically: ``.npz`` with all parts, or ``.csv`` with votes and labels only."""
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
    write_atomic(path, lambda out: np.savez_compressed(out, **arrays))  # type: ignore[arg-type]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _read_header(stream: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of a .npy stream, which is left at its data."""
    try:
        version = npy_format.read_magic(stream)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except ValueError as error:
        raise InputError(f"{what}: not a .npy array") from error
    if dtype.hasobject or dtype.kind not in "iuf":
        raise InputError(f"{what}: expected an array of numbers, got dtype {dtype}")
    return shape, fortran, dtype


def _row_reader(stream: IO[bytes], what: str) -> Any:
    """Return a function that reads the next ``count`` rows of a .npy stream."""
    shape, fortran, dtype = _read_header(stream, what)
    if fortran and len(shape) > 1:
        raise InputError(f"{what}: stored column by column (Fortran order); save it with numpy.ascontiguousarray")
    width = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize

    def read(count: int) -> NDArray[Any]:
        data = stream.read(count * width)
        if len(data) != count * width:
            raise InputError(f"{what}: the file ends early")
        return np.frombuffer(data, dtype=dtype).reshape(count, *shape[1:])

    return read


def _read_rows(stream: IO[bytes], what: str) -> NDArray[Any]:
    """Read one whole .npy stream, either order."""
    shape, fortran, dtype = _read_header(stream, what)
    data = np.frombuffer(stream.read(), dtype=dtype)
    if data.size != int(np.prod(shape, dtype=np.int64)):
        raise InputError(f"{what}: the file ends early")
    return data.reshape(shape, order="F" if fortran else "C")
