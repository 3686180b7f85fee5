"""A table of inputs by column: numbers with NaN where one is missing, texts with None; read from records and CSV."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data._schema import Column, Schema

#: How files say that a value is missing, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})

#: Numbers beyond this are none: their squares would overflow in the models of whoever learns from them.
LARGEST = 1e100

#: Characters of one value.
MAX_CHARACTERS = 1_000_000

#: A user takes a column for numbers when at most this share of its values is none.
_STRAY = 0.1
#: Words of the median value from which on a column is text.
_WORDS = 4


@dataclass(frozen=True)
class InputTable:
    """The inputs of a table, column by column, as a schema has them.

    Attributes
    ----------
    columns : mapping of str to ndarray
        float64 of shape (N,) for a numeric column, NaN where a value is missing; objects (str, or None where missing)
        for categorical and text columns.

    Examples
    --------
    >>> schema = Schema((Column("age", "numeric"), Column("city", "categorical")))
    >>> table = read_records([{"age": 41, "city": "Ulm"}, {"age": None, "city": ""}], schema)
    >>> len(table), table.columns["age"].tolist(), table.columns["city"].tolist()
    (2, [41.0, nan], ['Ulm', None])
    """

    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, index: NDArray[np.int64]) -> "InputTable":
        """Return the rows at ``index``, in that order."""
        return InputTable({name: values[index] for name, values in self.columns.items()})

    def matrix(self) -> NDArray[Any]:
        """Return the columns side by side, shape (N, p): float64 where all are numbers, objects otherwise."""
        values = list(self.columns.values())
        kind = np.float64 if all(column.dtype == np.float64 for column in values) else object
        made = np.empty((len(self), len(values)), dtype=kind)
        for place, column in enumerate(values):
            made[:, place] = column
        return made


def read_records(records: Sequence[Mapping[str, Any]], schema: Schema, what: str = "records") -> InputTable:
    """Read objects with named values, such as parsed JSON, under a schema.

    A column that is not there counts as missing; one that the schema does not know is refused (the label's and the
    user's are passed over). A number is refused where it cannot be read, a category that is not declared is missing.

    Parameters
    ----------
    records : sequence of mappings
    schema : Schema
    what : str
        Names them in errors.

    Examples
    --------
    >>> schema = Schema((Column("age", "numeric"),), label="risk")
    >>> read_records([{"age": "41", "risk": "high"}], schema).columns["age"].tolist()
    [41.0]
    >>> read_records([{"agee": 41}], schema)
    Traceback (most recent call last):
    codeward._errors.InputError: records: row 1: no column is named 'agee'; the columns are age
    """
    known = {*schema.names, schema.label, schema.user}
    for row, record in enumerate(records, 1):
        if not isinstance(record, Mapping):
            raise InputError(f"{what}: row {row}: expected an object with the values by column")
        for name in record:
            if name not in known:
                listed = ", ".join(schema.names[:10]) + (" ..." if len(schema.names) > 10 else "")
                raise InputError(f"{what}: row {row}: no column is named {str(name)[:40]!r}; the columns are {listed}")
    columns = {column.name: [record.get(column.name) for record in records] for column in schema.columns}
    return read_columns(columns, schema, what, strict=True)


def read_csv_text(text: str, schema: Schema, what: str = "CSV") -> InputTable:
    """Read CSV with a header line under a schema; see `read_records`.

    Examples
    --------
    >>> schema = Schema((Column("age", "numeric"), Column("city", "categorical")))
    >>> read_csv_text("city,age\\nUlm,41\\n", schema).columns["age"].tolist()
    [41.0]
    """
    try:
        rows = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise InputError(f"{what}: not readable as CSV ({error})") from error
    if len(rows) < 2:
        raise InputError(f"{what}: expected a header line with the names of the columns, and rows")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header) and row:
            raise InputError(f"{what}: line {number}: {len(row)} values, the header has {len(header)}")
    return read_records([dict(zip(header, row, strict=True)) for row in rows[1:] if row], schema, what)


def read_columns(
    columns: Mapping[str, Sequence[Any]], schema: Schema, what: str, *, strict: bool = False, first_row: int = 1
) -> InputTable:
    """Turn raw values into a table as the schema wants it.

    Parameters
    ----------
    columns : mapping of str to sequences
        All columns of the schema, of equal length.
    strict : bool
        Refuse what is no number in a numeric column; otherwise it is a missing value, so that nobody stops the training
        of all others with one word.
    first_row : int
        Number of the first row in errors.
    """
    return InputTable({column.name: _convert(columns[column.name], column, what, strict, first_row)
                  for column in schema.columns})  # fmt: skip


def _convert(values: Sequence[Any], column: Column, what: str, strict: bool, first_row: int) -> NDArray[Any]:
    if column.kind == "numeric":
        numbers, bad = parse_numbers(values)
        if strict and bad.any():
            row = int(np.flatnonzero(bad)[0])
            shown = str(values[row])[:40]
            raise InputError(f"{what}: row {row + first_row}, column {column.name!r}: {shown!r} is no number")
        return numbers
    texts = np.empty(len(values), dtype=object)
    allowed = None if column.categories is None else set(column.categories)
    for row, value in enumerate(values):
        text = None if is_missing(value) else as_text(value)
        if text is not None and len(text) > MAX_CHARACTERS:
            raise InputError(f"{what}: row {row + first_row}, column {column.name!r}: {len(text):,} characters")
        texts[row] = text if allowed is None or text in allowed else None
    return texts


def parse_numbers(values: Sequence[Any] | NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return values as numbers, NaN where there is none, and which are neither missing nor a number up to `LARGEST`."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        numbers = values.astype(np.float64)
        bad = np.abs(numbers) > LARGEST
        return np.where(bad, np.nan, numbers), bad
    numbers = np.full(len(values), np.nan)
    bad = np.zeros(len(values), dtype=bool)
    for row, value in enumerate(values):
        if is_missing(value):
            continue
        try:
            # float() also reads digits with underscores, which no file means.
            number = math.nan if isinstance(value, str) and "_" in value else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if abs(number) <= LARGEST:
            numbers[row] = number
        else:
            bad[row] = True
    return numbers, bad


def is_missing(value: Any) -> bool:
    """Tell whether a raw value stands for none."""
    if isinstance(value, str):
        # The length first: nobody strips a million characters to learn that they are something.
        return len(value) < 12 and value.strip().lower() in MISSING
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def as_text(value: Any) -> str:
    """Return a raw value as text: numbers without a needless fraction, so that 3, 3.0 and "3" are one name."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value)


def name_values(values: NDArray[Any]) -> list[str]:
    """Return raw values as the names that classes and users have everywhere.

    Examples
    --------
    >>> name_values(np.array([3.0, 10.0]))
    ['3', '10']
    """
    return [as_text(value) for value in values.tolist()]


def arrange_inputs(inputs: Any, schema: Schema, form: str = "matrix") -> Any:
    """Return inputs in the form that a scikit-learn model was fitted on: rows of values, or a data frame.

    Numbers are within declared ranges, a missing text is an empty one: a function of each value and the schema alone,
    so nothing crosses rows or models.

    Examples
    --------
    >>> table = InputTable({"age": np.array([200.0])})
    >>> arrange_inputs(table, Schema((Column("age", "numeric", range=(0.0, 120.0)),))).tolist()
    [[120.0]]
    """
    if not isinstance(inputs, InputTable):
        if hasattr(inputs, "tocsr"):
            return inputs.tocsr().astype(np.float64)
        rows = np.asarray(inputs, dtype=np.float64)
        rows = rows.reshape(len(rows), int(np.prod(rows.shape[1:])))
        return schema.columns[0].clip(rows)
    columns = dict(inputs.columns)
    for column in schema.columns:
        values = columns[column.name]
        if column.kind == "text":
            columns[column.name] = np.where(values == None, "", values)  # noqa: E711
        elif column.kind == "numeric":
            columns[column.name] = column.clip(values)
    if form != "frame":
        return InputTable(columns).matrix()
    try:
        from pandas import DataFrame
    except ModuleNotFoundError as error:
        raise InputError("this model selects columns by name, which needs pandas: pip install pandas") from error
    return DataFrame(columns)


def vote_kinds(
    inputs: Mapping[str, Sequence[Any]], owners: NDArray[np.int64], text: str | None
) -> tuple[list[Column], int]:
    """Decide the kind of every column by majority of users; return also how many users cannot change it."""
    n_users = int(owners.max()) + 1
    columns, firm = [], max(0, (n_users - 1) // 2)
    if text is not None and text not in inputs:
        raise InputError(f"no column is named {text!r} to read as text; columns are {', '.join(inputs)[:200]}")
    for name, values in inputs.items():
        if name == text:
            columns.append(Column(name, "text"))
            continue
        numbers, bad = parse_numbers(values)
        good = np.bincount(owners[~np.isnan(numbers)], minlength=n_users)
        stray = np.bincount(owners[bad], minlength=n_users)
        heard = good + stray > 0
        numeric = stray <= _STRAY * (good + stray)
        yes, no = int((heard & numeric).sum()), int((heard & ~numeric).sum())
        kind = "numeric" if yes > no else "categorical"
        firm = min(firm, _count_firm(yes, no))
        if kind == "categorical" and len(inputs) == 1:
            words = np.array([0 if is_missing(value) else len(as_text(value).split()) for value in values])
            voices = [np.median(words[owners == user]) >= _WORDS for user in range(n_users) if (owners == user).any()]
            yes = sum(map(bool, voices))
            no = len(voices) - yes
            kind, firm = "text" if yes > no else kind, min(firm, _count_firm(yes, no))
        columns.append(Column(name, kind))
    return columns, firm


def _count_firm(yes: int, no: int) -> int:
    """Count the users who cannot change what more voices than not say; a draw is a no.

    Each can change its own voice, and so the difference by two.
    """
    return max(0, (abs(yes - no) - (1 if yes > no else 0)) // 2)
