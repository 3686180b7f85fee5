"""The promise of a backbone; and features of texts and tables that nobody trained: hashed n-grams, declared bins."""

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data import InputTable, Schema
from codeward.training.heads import GridFeatures, round_to_grid

#: What a guarantee adds in words: weights that somebody trained, or a pure function of a seed.
TRUSTED, NOBODY = "trusted, frozen", "nobody to trust"


@runtime_checkable
class Backbone(Protocol):
    """A fixed function from inputs to features on the grid.

    Because it is the same whatever anybody hands in, isolation (Proposition 15 of docs/theory.md) holds for heads on
    it; what is added is trust in whoever trained its weights, where anybody did.

    Attributes
    ----------
    name : str
        How `codeward train --backbone` knows it.
    digest : str
        Hash of everything the function is made of.
    trust : str
        ``trusted, frozen`` or ``nobody to trust``.
    width : int
        Number of features d.

    Examples
    --------
    >>> from codeward.training.backbones import make_backbone
    >>> backbone = make_backbone("gradients")
    >>> isinstance(backbone, Backbone), backbone.trust, backbone.width
    (True, 'nobody to trust', 2048)
    """

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def digest(self) -> str:
        """Hash of the function."""

    @property
    def trust(self) -> str:
        """Who must be trusted."""

    @property
    def width(self) -> int:
        """Number of features."""

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features of inputs, each row a function of its own input."""


_VERSION = 1
#: Characters of a text that are read.
_LONGEST = 100_000
_BATCH = 2000


def _place(token: str, width: int) -> tuple[int, float]:
    """Return a token's column and sign: two checksums, the same on every machine."""
    raw = token.encode("utf-8", "surrogatepass")
    return zlib.crc32(raw) % width, 1.0 if zlib.adler32(raw + b"#") & 1 else -1.0


def _spread(rows: Iterable[Iterable[tuple[str, float]]], size: int, width: int) -> NDArray[np.float64]:
    features = np.zeros((size, width))
    for row, tokens in enumerate(rows):
        for token, value in tokens:
            column, sign = _place(token, width)
            features[row, column] += sign * value
    return features


def _scale(features: NDArray[np.float64]) -> NDArray[np.int16]:
    """Each row to norm one; a row without anything stays zero."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return round_to_grid(features / np.where(norms > 0, norms, 1)).steps


@dataclass(frozen=True)
class HashedText:
    """Words, pairs of words and pieces of words of a text, counted (logarithm of one plus the count), hashed.

    There is no vocabulary, so no user decides what others' texts are made of; nobody trained it.

    Attributes
    ----------
    width : int

    Examples
    --------
    >>> backbone = HashedText(width=256)
    >>> backbone.transform(["Dear friend", "dear FRIEND", ""]).steps.shape
    (3, 256)
    >>> a, b, c = backbone.transform(["Dear friend", "dear FRIEND", ""]).to_floats()
    >>> bool((a == b).all()), bool(c.any())
    (True, False)
    """

    width: int = 4096

    @property
    def name(self) -> str:
        """Name on the command line."""
        return "hashed-text"

    @property
    def trust(self) -> str:
        """Who must be trusted: nobody."""
        return NOBODY

    @cached_property
    def digest(self) -> str:
        """Hash of everything the function is made of."""
        return hashlib.sha256(f"hashed text {_VERSION} {self.width}".encode()).hexdigest()

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features of texts: a sequence of str, or a table of one text column."""
        texts = list_texts(inputs, self.name)
        parts = [np.zeros((0, self.width), np.int16)]
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            counted = (Counter(_cut_text(text[:_LONGEST])) for text in batch)
            tokens = ([(token, float(np.log1p(count))) for token, count in found.items()] for found in counted)
            parts.append(_scale(_spread(tokens, len(batch), self.width)))
        return GridFeatures(np.concatenate(parts))


def list_texts(inputs: Any, what: str) -> list[str]:
    """Return texts given as a sequence or as a table of one column; ``what`` names the backbone in errors."""
    if isinstance(inputs, InputTable):
        columns = list(inputs.columns.values())
        if len(columns) != 1:
            raise InputError(f"{what}: expected one column of text, the table has {len(columns)}")
        inputs = columns[0]
    if isinstance(inputs, str) or not isinstance(inputs, Sequence | np.ndarray):
        raise InputError(f"{what}: expected texts, one a sample")
    texts = ["" if text is None else text for text in inputs]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{what}: input {row} is no text but {type(text).__name__}")
    return texts


def _cut_text(text: str) -> Iterable[str]:
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    yield from (f"w {word}" for word in words)
    yield from (f"p {first} {second}" for first, second in pairwise(words))
    for word in words:
        if len(word) > 4:
            framed = f"<{word}>"
            yield from (f"c {framed[i : i + 4]}" for i in range(len(framed) - 3))


@dataclass(frozen=True)
class HashedTable:
    """Categories hashed, numbers put into declared bins, texts as `HashedText` has them; each row scaled to norm one.

    Bins are declared, never read off the data: quantiles over all users would carry one user's numbers into another's
    model. A number column without bins gets fixed ones: its sign and the half octave of its size, shared between the
    two nearest.

    Attributes
    ----------
    schema : Schema
    width : int
    bins : tuple of (str, tuple of float)
        Rising edges of the bins, by name of a number column.

    Examples
    --------
    >>> from codeward.data import load_user_data
    >>> rows = {"age": [41, 5, 38], "risk": ["high", "low", "high"], "clinic": ["b", "a", "b"]}
    >>> data = load_user_data(rows, label="risk", user="clinic")
    >>> HashedTable(data.schema, width=64, bins=(("age", (18, 65)),)).transform(data.inputs).steps.shape
    (3, 64)
    """

    schema: Schema
    width: int = 1024
    bins: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        kinds = {column.name: column.kind for column in self.schema.columns}
        for name, edges in self.bins:
            if kinds.get(name) != "numeric" or not edges or list(edges) != sorted(set(edges)):
                raise InputError(f"bins: {name!r} must be a number column with rising edges")

    @property
    def name(self) -> str:
        """Name on the command line."""
        return "hashed-table"

    @property
    def trust(self) -> str:
        """Who must be trusted: nobody."""
        return NOBODY

    @cached_property
    def digest(self) -> str:
        """Hash of everything the function is made of."""
        columns = [(column.name, column.kind) for column in self.schema.columns]
        return hashlib.sha256(f"hashed table {_VERSION} {self.width} {columns} {self.bins}".encode()).hexdigest()

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features of a table that follows the schema."""
        if not isinstance(inputs, InputTable) or tuple(inputs.columns) != self.schema.names:
            raise InputError(f"hashed-table: expected a table with the columns {', '.join(self.schema.names[:8])}")
        declared = {name: np.asarray(edges, np.float64) for name, edges in self.bins}
        parts = [np.zeros((0, self.width), np.int16)]
        for start in range(0, len(inputs), _BATCH):
            batch = inputs.take(np.arange(start, min(start + _BATCH, len(inputs))))
            rows: list[list[tuple[str, float]]] = [[("constant", 1.0)] for _ in range(len(batch))]
            for column in self.schema.columns:
                values = batch.columns[column.name]
                for row, value in zip(rows, values, strict=True):
                    row.extend(_cut_value(column.name, column.kind, value, declared.get(column.name)))
            parts.append(_scale(_spread(rows, len(batch), self.width)))
        return GridFeatures(np.concatenate(parts))


def _cut_value(name: str, kind: str, value: Any, edges: NDArray[np.float64] | None) -> Iterable[tuple[str, float]]:
    """Return the tokens of one value and their sizes."""
    if value is None or (kind == "numeric" and not np.isfinite(value)):
        return [(f"{name} missing", 1.0)]
    if kind == "numeric":
        if edges is not None:
            return [(f"{name} bin {int(np.searchsorted(edges, value, side='right'))}", 1.0)]
        place = 2 * float(np.sign(value)) * float(np.log2(1 + abs(value)))
        low = int(np.floor(place))
        return [(f"{name} octave {low}", 1 - (place - low)), (f"{name} octave {low + 1}", place - low)]
    if kind == "categorical":
        return [(f"{name} is {value}", 1.0)]
    counted = Counter(_cut_text(str(value)[:_LONGEST]))
    length = float(np.sqrt(sum(np.log1p(count) ** 2 for count in counted.values()))) or 1.0
    return [(f"{name} {token}", float(np.log1p(count)) / length) for token, count in counted.items()]
