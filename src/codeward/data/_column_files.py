"""Raw columns from wherever people keep tables: CSV, JSON lines, Parquet, data frames, anything with named columns."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError, TooLargeError
from codeward._files import LARGEST_FILE, open_regular
from codeward.data._dataset_files import as_images
from codeward.data._schema import MAX_COLUMNS
from codeward.data._table import MAX_CHARACTERS

#: Values of one table.
MAX_VALUES = 200_000_000

Columns = dict[str, Sequence[Any]]

#: What `read_table_file` reads, by the end of a file's name.
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")


def read_table_file(path: Path) -> Columns:
    """Read a table file into raw columns, by the end of its name; errors say file, row and column."""
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _read_csv(path, "\t" if suffix == ".tsv" else ",")
    if suffix in (".jsonl", ".ndjson"):
        return _read_json_lines(path)
    return _read_parquet(path)


def _read_csv(path: Path, delimiter: str) -> Columns:
    with open_regular(path, LARGEST_FILE) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
        limit = csv.field_size_limit(MAX_CHARACTERS)
        try:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            names = _check_names([name.strip() for name in next(rows, [])], path)
            columns: list[list[str]] = [[] for _ in names]
            for row in rows:
                if len(row) != len(names):
                    if not row:
                        continue
                    raise InputError(
                        f"{path}: line {rows.line_num}: {len(row)} values, but the header names {len(names)} columns"
                        f"{_hint_delimiter(names, delimiter)}"
                    )
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
                if rows.line_num % 65_536 == 0:
                    _check_size(len(columns[0]), len(names), path)
        except csv.Error as error:
            raise InputError(f"{path}: line {rows.line_num}: not readable as CSV ({error})") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 ({error.reason}); save it as UTF-8") from error
        finally:
            csv.field_size_limit(limit)
    return _finish(dict(zip(names, columns, strict=True)), path)


def _hint_delimiter(names: list[str], delimiter: str) -> str:
    """Return what to do about a header that is one name where another separator stands in it."""
    other = next((mark for mark in (";", "\t", ",", "|") if mark != delimiter and mark in names[0]), None)
    if len(names) > 1 or other is None:
        return ""
    return f"; values are separated by {other!r} here: save it with {delimiter!r}, and numbers with a decimal point"


def _read_json_lines(path: Path) -> Columns:
    columns: dict[str, list[Any]] = {}
    n_rows = 0
    with open_regular(path, LARGEST_FILE) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}: line {number}: not readable as JSON ({_short(error)})") from error
            if not isinstance(record, dict):
                raise InputError(f"{path}: line {number}: expected an object with the values by column")
            for name, value in record.items():
                if isinstance(value, dict | list):
                    raise InputError(f"{path}: line {number}, column {name[:40]!r}: expected one value, got several")
                if name not in columns:
                    if len(columns) >= MAX_COLUMNS:
                        raise TooLargeError(f"{path}: line {number}: more than {MAX_COLUMNS:,} columns")
                    columns[name] = [None] * n_rows
                columns[name].append(value)
            n_rows += 1
            for values in columns.values() if len(record) < len(columns) else ():
                if len(values) < n_rows:
                    values.append(None)
            if n_rows % 65_536 == 0:
                _check_size(n_rows, len(columns), path)
    # In an order of their own: whose record comes first must not order the columns of everybody's models.
    return _finish({name: columns[name] for name in sorted(_check_names(list(columns), path))}, path)


def _read_parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install 'codeward[parquet]' brings it") from error
    with open_regular(path, LARGEST_FILE) as file:
        try:
            opened = parquet.ParquetFile(file)
            about = opened.metadata
            _check_size(about.num_rows, about.num_columns, path)
            found = opened.read()
            names = _check_names(list(found.column_names), path)
            return _finish({name: found.column(name).to_pylist() for name in names}, path)
        except InputError:
            raise
        except Exception as error:  # pyarrow raises many kinds
            raise InputError(f"{path}: not readable as Parquet ({_short(error)})") from error


def read_frame(frame: Any) -> Columns:
    """Read anything that names its columns: a data frame, a Hugging Face data set, a mapping of columns.

    Of a data set that knows the names of its classes (``features``), values are these names, not their numbers.
    """
    names: Any = None
    features: Mapping[str, Any] = {}
    if not hasattr(frame, "iloc"):  # a data frame may have columns of these names
        if callable(getattr(frame, "with_format", None)):
            frame = frame.with_format(None)  # plain values, whatever it was set to give
        names, features = getattr(frame, "column_names", None), getattr(frame, "features", None) or {}
    if names is None:
        names = list(frame.keys() if isinstance(frame, Mapping) else getattr(frame, "columns", ()))
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise InputError(f"data: column {strange[0]!r}: names of columns must be text (frame.columns.astype(str))")
    columns: Columns = {}
    for name in _check_names(list(names), "data"):
        values = frame[name]
        # Dates one by one: a column of them reads as it would if a single value in it were none.
        if hasattr(values, "to_numpy") and getattr(getattr(values, "dtype", None), "kind", "") not in ("m", "M"):
            values = values.to_numpy()
        elif not isinstance(values, np.ndarray):
            values = list(values)
        if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
            values = values.astype(f"{values.dtype.kind}8[us]").tolist()
        classes = getattr(features.get(name), "names", None)
        if classes is not None:
            # Hugging Face has -1 for "no label".
            values = [classes[value] if isinstance(value, int) and value >= 0 else None for value in values]
        columns[name] = values
    return _finish(columns, "data")


def stack_arrays(inputs: Columns, what: str) -> dict[str, Any] | None:
    """Return the inputs of a table whose only input column holds pictures, arrays of pixels, or vectors of numbers.

    Every picture is read by itself: whole numbers are bytes and fractions are of 0 to 1, whatever others handed in.
    """
    held = [name for name, values in inputs.items() if _holds_arrays(values)]
    if not held:
        return None
    if len(inputs) > 1:
        other = next(name for name in inputs if name != held[0])
        raise InputError(
            f"{what}: column {held[0]!r} holds an array or image a sample, which is learned from alone; "
            f"leave column {other!r} out"
        )
    values = inputs[held[0]]
    arrays, where = [np.asarray(value) for value in values], f"{what}: column {held[0]!r}"
    if len({array.shape for array in arrays}) > 1:
        odd = next(row for row, array in enumerate(arrays) if array.shape != arrays[0].shape)
        raise InputError(
            f"{where}: arrays of different sizes, {arrays[0].shape} and in row {odd} {arrays[odd].shape}; "
            "bring them to one size"
        )
    if arrays[0].ndim == 1:
        return {"X": np.stack(arrays)}
    return {"images": np.concatenate([_read_pixels(array, f"{where}, row {row}") for row, array in enumerate(arrays)])}


def _holds_arrays(values: Any) -> bool:
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind != "O":
        return False
    return any(hasattr(value, "convert") or isinstance(value, list | tuple | np.ndarray) for value in values)


def _read_pixels(array: NDArray[Any], what: str) -> NDArray[np.uint8]:
    whole = array.dtype.kind in "iu" and array.size and array.min() >= 0 and array.max() <= 255
    return as_images((array.astype(np.uint8) if whole else array)[None], what)


def _check_names(names: list[str], what: Any) -> list[str]:
    if not names:
        raise InputError(f"{what}: empty; expected names of columns and rows")
    if len(names) > MAX_COLUMNS:
        raise TooLargeError(f"{what}: {len(names):,} columns are too many ({MAX_COLUMNS:,} at most)")
    seen: set[str] = set()
    for place, name in enumerate(names, 1):
        if not name:
            raise InputError(f"{what}: column {place} has no name in the header")
        if name in seen:
            raise InputError(f"{what}: two columns are named {name[:40]!r}")
        seen.add(name)
    return names


def _finish(columns: Columns, what: Any) -> Columns:
    sizes = {len(values) for values in columns.values()}
    if len(sizes) != 1:
        raise InputError(f"{what}: columns of different lengths {sorted(sizes)[:5]}")
    if 0 in sizes:
        raise InputError(f"{what}: names of columns, but no rows")
    _check_size(sizes.pop(), len(columns), what)
    return columns


def _check_size(n_rows: int, n_columns: int, what: Any) -> None:
    if n_rows * n_columns > MAX_VALUES:
        raise TooLargeError(f"{what}: {n_rows:,} rows of {n_columns:,} columns are too many ({MAX_VALUES:,} values)")


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
