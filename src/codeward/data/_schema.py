"""What an input looks like: its columns, their kinds, and the classes; the same for every user and every model."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_json, write_text_atomic

#: Changes when a reader of older files would misread newer ones.
FORMAT = "codeward-schema/1"

KINDS = ("numeric", "categorical", "text", "image")

#: Columns of a table, and characters of a name: more is a mistake or meant badly.
MAX_COLUMNS, MAX_NAME = 10_000, 200


@dataclass(frozen=True)
class Column:
    """One column of the inputs.

    Attributes
    ----------
    name : str
    kind : {"numeric", "categorical", "text", "image"}
    categories : tuple of str or None
        Of a categorical column, where they are declared; others count as missing then.
    shape : tuple of int
        Of an image (channels, height, width) or a vector of numbers (length); empty for a single value.
    range : (float, float) or None
        Of numbers, where it is declared: values beyond it are taken for its ends, in training and afterwards. So a
        trigger far outside of what was ever measured moves no model by more than the end of the range does.

    Examples
    --------
    >>> age = Column("age", "numeric", range=(0.0, 120.0))
    >>> age.clip(np.array([41.0, 9e9, np.nan])).tolist(), Column("photo", "image", shape=(3, 32, 32)).shape
    ([41.0, 120.0, nan], (3, 32, 32))
    """

    name: str
    kind: str
    categories: tuple[str, ...] | None = None
    shape: tuple[int, ...] = ()
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_NAME:
            raise InputError(f"schema: a column needs a name of at most {MAX_NAME} characters, got {self.name[:40]!r}")
        if self.kind not in KINDS:
            raise InputError(f"schema: column {self.name!r}: kind {self.kind!r}; choose {', '.join(KINDS)}")
        if self.kind == "image" and len(self.shape) != 3:
            raise InputError(f"schema: column {self.name!r}: an image has channels, height and width")
        if any(size < 1 for size in self.shape):
            raise InputError(f"schema: column {self.name!r}: shape {self.shape}")
        if self.range is not None and (self.kind != "numeric" or not -1e100 <= self.range[0] < self.range[1] <= 1e100):
            raise InputError(f"schema: column {self.name!r}: a range is of numbers, the lower end first, and finite")

    def clip(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers within the declared range; missing ones (NaN) stay missing."""
        return values if self.range is None else np.clip(values, *self.range)

    def to_json(self) -> dict[str, Any]:
        """Return the column as JSON has it; what is not declared is left out."""
        told: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.categories is not None:
            told["categories"] = list(self.categories)
        told |= {"shape": list(self.shape)} if self.shape else {}
        return told | ({"range": list(self.range)} if self.range is not None else {})


@dataclass(frozen=True)
class Schema:
    """The columns a model reads, and what was declared about labels and users.

    A schema that somebody wrote down (or that trusted data gave) is the same whatever users hand in; one that was read
    off the users' data may not be, and ``origin`` says so. Everything that is common to all sub-models comes from here.

    Attributes
    ----------
    columns : tuple of Column
    label, user : str or None
        Names of the columns that hold the label and the user, where the data are a table.
    classes : tuple of str or None
        The classes there are, where declared; other labels are refused then.
    origin : {"declared", "trusted", "users"}
        Who fixed it.

    Examples
    --------
    >>> schema = Schema((Column("age", "numeric"), Column("city", "categorical")), label="risk", user="clinic")
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    columns: tuple[Column, ...]
    label: str | None = None
    user: str | None = None
    classes: tuple[str, ...] | None = None
    origin: str = "users"

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(names) > MAX_COLUMNS:
            raise InputError(f"schema: {len(names)} columns; expected 1 to {MAX_COLUMNS:,}")
        twice = [name for place, name in enumerate(names) if name in names[:place]] if len(names) < 2_000 else []
        if twice or len(set(names)) < len(names):
            raise InputError(f"schema: a column stands there twice{f': {twice[0]!r}' if twice else ''}")
        if self.origin not in ("declared", "trusted", "users"):
            raise InputError(f"schema: origin {self.origin!r}; choose declared, trusted or users")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def kind(self) -> str:
        """What the inputs are: ``image``, ``features`` (one vector), ``text`` (one column of it) or ``table``."""
        if len(self.columns) == 1:
            only = self.columns[0]
            if only.kind in ("image", "text"):
                return only.kind
            if only.shape:
                return "features"
        return "table"

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON has it."""
        return {
            "format": FORMAT,
            "columns": [column.to_json() for column in self.columns],
            "label": self.label,
            "user": self.user,
            "classes": None if self.classes is None else list(self.classes),
            "origin": self.origin,
        }

    @classmethod
    def from_json(cls, content: Any, what: str = "schema") -> "Schema":
        """Read a schema from somebody else; ``what`` names it in errors."""
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            raise InputError(f"{what}: not a {FORMAT}")
        try:
            columns = tuple(_read_column(column) for column in _list(content["columns"]))
            classes = content.get("classes")
            names = None if classes is None else tuple(map(str, _list(classes)))
            label, user = (None if content.get(key) is None else str(content[key]) for key in ("label", "user"))
            return cls(columns, label, user, names, str(content.get("origin", "declared")))
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"{what}: not readable as a schema ({' '.join(str(error).split())[:80]})") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schema as a JSON file."""
        write_text_atomic(path, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Schema":
        """Read a schema that somebody wrote down: it counts as declared."""
        return replace(cls.from_json(read_json(path), str(path)), origin="declared")


def _read_column(content: Mapping[str, Any]) -> Column:
    categories = content.get("categories")
    declared = None if categories is None else tuple(map(str, _list(categories)))
    shape = tuple(int(size) for size in _list(content.get("shape", [])))
    ends = content.get("range")
    if ends is not None:
        low, high = (float(end) for end in _list(ends))
        return Column(str(content["name"]), str(content["kind"]), declared, shape, (low, high))
    return Column(str(content["name"]), str(content["kind"]), declared, shape)


def _list(content: Any) -> Sequence[Any]:
    if not isinstance(content, list):
        raise TypeError(f"expected a list, got {str(content)[:40]}")
    return content
