"""One's own data, from wherever they are: the one function that reads them."""

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import LARGEST_FILE, read_npz
from codeward.data._column_files import TABLE_SUFFIXES, Columns, read_frame, read_table_file, stack_arrays
from codeward.data._dataset_files import CATALOG, as_images
from codeward.data._datasets import DatasetPair, load_dataset
from codeward.data._image_folder import choose_shape, list_image_folder, read_images
from codeward.data._samples import MAX_USERS, Inputs, UserData, check_classes, count_rows, number_names
from codeward.data._schema import Column, Schema
from codeward.data._splits import hash_parts
from codeward.data._table import LARGEST, InputTable, as_text, read_columns, read_records, vote_kinds

#: Columns that are taken for the label and the user when there is exactly one of them.
LABELS = ("label", "labels", "target", "class", "y", "outcome", "diagnosis")
USERS = ("user", "users", "user_id", "userid", "group", "groups", "client", "client_id", "site", "site_id", "hospital",
         "clinic", "owner", "contributor", "account", "account_id", "writer", "participant")  # fmt: skip

#: Names of users where there are none.
NOBODY: tuple[str, ...] = ()

#: Parts into which samples without users are hashed, unless told otherwise.
PARTS = 50


@dataclass(frozen=True)
class _Asked:
    """What `load_user_data` was asked for, as it stands in its parameters."""

    label: str | None
    user: str | None
    schema: Schema | None
    text: str | None
    n_parts: int
    data_dir: str | os.PathLike[str] | None
    ignore: Sequence[str]
    classes: Sequence[str] | None
    drop: Sequence[str]

    @property
    def declared(self) -> Sequence[str] | None:
        """The classes there are, where somebody settled them."""
        return self.classes or (None if self.schema is None else self.schema.classes)


def load_user_data(
    source: Any,
    label: str | None = None,
    user: str | None = None,
    *,
    schema: Schema | None = None,
    text: str | None = None,
    n_parts: int = PARTS,
    data_dir: str | os.PathLike[str] | None = None,
    ignore: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> UserData:
    """Read labelled samples and their users.

    Parameters
    ----------
    source : path-like, str, table or arrays
        A file (.csv, .tsv, .jsonl, .parquet, .npz with ``images, labels, groups`` or ``X, y, groups``), a folder of
        images (``user/class/file``, or ``class/file`` with a ``users.csv`` of columns file and user), a data set by
        name; a data frame, a Hugging Face data set, a mapping of columns, or arrays ``(X, y)`` or ``(X, y, groups)``.
    label, user : str, optional
        Columns of the label and the user. By default the one column that is called so (``notes`` says which). Without a
        user column samples are hashed into ``n_parts`` by their content; ``user="none"`` asks for that.
    schema : Schema, optional
        Columns, kinds and classes as declared. By default they are read off the data: a column holds numbers when most
        users' values are numbers, one user being one voice, and what is no number there counts as missing. So no few
        users decide about the models of the others.
    text : str, optional
        The column that holds text; a table whose only column is text needs no word.
    n_parts : int
    data_dir : path-like, optional
        Where data sets with a name are.
    ignore : sequence of str
        Columns to pass over, where there are any of that name.
    classes : sequence of str, optional
        The classes there are, where others settled them: labels of any other are refused, and one of them is enough.
    drop : sequence of str
        Columns that nobody learns from, such as the number of a row; one that is not there is refused.

    Raises
    ------
    InputError
        In one line, with file, row and column.

    Examples
    --------
    >>> import numpy as np
    >>> data = load_user_data((np.zeros((4, 3)), ["no", "yes", "no", "yes"], ["ann", "bob", "ann", "bob"]))
    >>> data.schema.kind, data.class_names, data.user_names
    ('features', ('no', 'yes'), ('ann', 'bob'))
    """
    if isinstance(source, UserData):
        return source
    asked = _Asked(label, user, schema, text, n_parts, data_dir, ignore, classes, drop)
    if isinstance(source, DatasetPair):
        return _from_pair(source, n_parts)
    if isinstance(source, tuple | list) and len(source) in (2, 3):
        return _from_arrays(dict(zip(("X", "y", "groups"), source, strict=False)), "data", asked)
    if isinstance(source, str | os.PathLike):
        return _from_path(source, asked)
    if isinstance(source, Mapping) and source and all(hasattr(part, "column_names") for part in source.values()):
        return _from_splits(source, asked)
    if isinstance(source, Mapping) and "images" in source:
        return _from_arrays(dict(source), "data", asked)
    if isinstance(source, Mapping) or hasattr(source, "columns") or hasattr(source, "column_names"):
        return _from_columns(read_frame(source), "data", asked, 0)
    kind = type(source).__name__
    raise InputError(f"data: cannot read a {kind}; give a path, a data frame, columns by name, or (X, y, groups)")


def _from_splits(source: Mapping[str, Any], asked: _Asked) -> UserData:
    """Read the ``train`` split of several, or the only one, and ``test`` as the test set."""
    if "train" not in source and len(source) > 1:
        raise InputError(f"data: which of the splits {_shown(source)} is to be trained on? give that one")
    data = load_user_data(source.get("train", next(iter(source.values()))), **vars(asked))
    if not {"train", "test"} <= set(source):
        return data
    known = replace(data.schema, classes=data.class_names)
    ignore = tuple({*USERS, asked.user or "", known.user or ""} - set(known.names))
    label = asked.label or known.label
    return replace(data, test=load_user_data(source["test"], label, "none", schema=known, ignore=ignore))


def _from_path(source: str | os.PathLike[str], asked: _Asked) -> UserData:
    path = Path(source)
    if path.is_dir():
        return _from_folder(path, asked)
    if path.suffix.lower() in TABLE_SUFFIXES:
        return _from_columns(read_table_file(path), str(path), asked, 1)
    if path.suffix.lower() == ".npz":
        return _from_arrays(dict(read_npz(path, limit=LARGEST_FILE, kinds="biufUS")), str(path), asked)
    if str(source) in CATALOG:
        return _from_pair(load_dataset(str(source), asked.data_dir), asked.n_parts)
    what = "cannot be read by its name" if path.exists() else "no such file, folder or data set"
    kinds = f"give a file ({', '.join((*TABLE_SUFFIXES, '.npz'))}), a folder of images, or one of {', '.join(CATALOG)}"
    raise InputError(f"{source}: {what}; {kinds}")


def _from_columns(given: Columns, what: str, asked: _Asked, first_row: int) -> UserData:
    for name in asked.drop:
        _find_column(given, name, (), "ignored", what, [])
    ignored = {*asked.ignore, *asked.drop}
    columns = {name: held for name, held in given.items() if not {name, name.lower()} & ignored}
    schema, user = asked.schema, asked.user
    notes: list[str] = []
    known = schema or Schema((Column("unknown", "numeric"),))
    label = _find_column(columns, asked.label or known.label, LABELS, "label", what, notes)
    if label is None:
        raise InputError(f"{what}: which column is the label? give --label COL; columns are {_shown(columns)}")
    if user != "none":
        user = _find_column(columns, user or known.user, USERS, "user", what, notes, (label,))
    inputs = {name: values for name, values in columns.items() if name not in (label, user)}
    # Line 1 of a file is its header.
    row = first_row + 1 if first_row else 0
    classes, labels = number_names(columns[label], f"{what}: column {label!r}", asked.declared, row)
    check_classes(classes, f"{what}: column {label!r}")
    owners, names = None, NOBODY
    if user is not None and user != "none":
        names, owners = number_names(columns[user], f"{what}: column {user!r}", None, row)
    arrays = stack_arrays(inputs, what)
    if arrays is not None:
        arrays |= {"y": columns[label]} | ({} if owners is None else {"groups": columns[user]})  # type: ignore[index]
        return replace(_from_arrays(arrays, what, asked), notes=tuple(notes))
    if schema is not None:
        missing = [name for name in schema.names if name not in inputs]
        if missing:
            raise InputError(f"{what}: no column is named {missing[0]!r}, which the schema asks for")
        firm = None
    else:
        if not inputs:
            raise InputError(f"{what}: no column is left to learn from beside the label and the user")
        cells = (list(map(as_text, values)) for values in zip(*inputs.values(), strict=True))
        voices = _hash_rows(cells, asked.n_parts) if owners is None else owners
        found, firm = vote_kinds(inputs, voices, asked.text)
        schema = Schema(tuple(found), label, None if owners is None else user)
    table = read_columns(inputs, schema, what, first_row=row)
    return _build(table, labels, classes, owners, names, schema, asked.n_parts, firm, notes)


def _from_arrays(arrays: dict[str, Any], what: str, asked: _Asked) -> UserData:
    """Read ``images`` or ``X``, ``labels`` or ``y``, ``groups`` or ``users``, and a test set where there is one."""

    def pick(*names: str) -> Any:
        return next((arrays[name] for name in names if name in arrays), None)

    inputs, labels, groups = pick("images", "X", "x"), pick("labels", "y"), pick("groups", "users")
    if inputs is None or labels is None:
        raise InputError(f"{what}: expected arrays images and labels, or X and y (found: {_shown(arrays)})")
    if hasattr(inputs, "columns"):
        columns = dict(read_frame(inputs))
        # Names that no column of the frame has.
        spare = ((name + "_" * more for more in count()) for name in ("y", "groups"))
        label, user = (next(name for name in names if name not in columns) for names in spare)
        extra = {} if groups is None else {user: list(groups)}
        told = user if extra else "none"
        columns |= {label: list(labels)} | extra
        return _from_columns(columns, what, replace(asked, label=label, user=told, text=None, ignore=()), 0)
    schema, declared = asked.schema, asked.declared
    found, column = _read_inputs(inputs, what)
    if schema is not None and schema.kind == "image" and column.shape != schema.columns[0].shape:
        raise InputError(f"{what}: images of shape {column.shape}, expected {schema.columns[0].shape}")
    size = count_rows(found)
    for name, values in (("labels", labels), ("groups", groups)):
        if values is not None and np.shape(values) != (size,):
            raise InputError(f"{what}: {name} of shape {np.shape(values)}, expected one a sample ({size},)")
    test_inputs, test_labels = pick("test_images", "X_test"), pick("test_labels", "y_test")
    if (test_inputs is None) != (test_labels is None):
        raise InputError(f"{what}: test images and test labels go together")
    if declared is None and test_labels is not None:
        # The server holds the test set: nobody widens the models of all by a class of its own.
        declared = number_names(np.asarray(test_labels).tolist(), f"{what}: test labels", None, 0)[0]
    classes, numbers = number_names(np.asarray(labels).tolist(), f"{what}: labels", declared, 0)
    check_classes(classes, f"{what}: labels")
    schema = replace(schema or Schema((column,)), classes=None if declared is None else tuple(declared))
    names, owners = NOBODY, None
    if groups is not None:
        names, owners = number_names(np.asarray(groups).tolist(), f"{what}: groups", None, 0)
    settled = np.asarray(arrays.get("firm"))  # `codeward features` writes it
    firm = int(settled) if asked.schema is None and settled.shape == () and settled.dtype.kind in "iu" else None
    made = _build(found, numbers, classes, owners, names, schema, asked.n_parts, firm, ())
    if test_inputs is None:
        return made
    other, other_column = _read_inputs(test_inputs, f"{what}: test set")
    if other_column != column:
        raise InputError(f"{what}: test inputs {other_column.shape}, training inputs {column.shape}")
    _, places = number_names(np.asarray(test_labels).tolist(), f"{what}: test labels", classes, 0)
    nobody = np.zeros(count_rows(other), dtype=np.int64)
    return replace(made, test=UserData(other, places, nobody, classes, ("nobody",), schema))


def _from_folder(folder: Path, asked: _Asked) -> UserData:
    listed, schema, firm = list_image_folder(folder), asked.schema, None
    if schema is not None and schema.kind != "image":
        raise InputError(f"{folder}: a folder of images, but the schema is of a {schema.kind}")
    if schema is None:
        shape, firm = choose_shape(listed)
        schema = Schema((Column("image", "image", shape=shape),))
    channels, height, width = schema.columns[0].shape
    classes, labels = number_names(listed.labels, f"{folder}: classes", asked.declared, 1)
    check_classes(classes, f"{folder}: classes")
    owners, names = None, NOBODY
    if listed.users is not None:
        names, owners = number_names(listed.users, f"{folder}: users", None, 1)
    notes = [f"images are read as {width} x {height} {'grey' if channels == 1 else 'colour'} pixels"]
    if listed.others:
        kinds = sorted({file.suffix.lower() or file.name for file in listed.others})
        notes.append(f"files of other kinds are passed over: {len(listed.others)} ({', '.join(kinds[:5])})")
    images = read_images(listed, (channels, height, width))
    return _build(images, labels, classes, owners, names, schema, asked.n_parts, firm, notes)


def _from_pair(pair: DatasetPair, n_parts: int) -> UserData:
    classes = tuple(str(number) for number in range(pair.n_classes))
    schema = Schema((Column("image", "image", shape=pair.train.images.shape[1:]),), classes=classes, origin="declared")
    owners, names = None, NOBODY
    if pair.groups is not None:
        names, owners = number_names(pair.groups.tolist(), f"{pair.name}: groups", None, 0)
    made = _build(pair.train.images, pair.train.labels, classes, owners, names, schema, n_parts, None, [])
    nobody = np.zeros(len(pair.test), dtype=np.int64)
    test = UserData(pair.test.images, pair.test.labels, nobody, classes, ("nobody",), schema)
    return replace(made, test=test)


def _build(
    inputs: Inputs,
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    owners: NDArray[np.int64] | None,
    names: tuple[str, ...],
    schema: Schema,
    n_parts: int,
    firm: int | None,
    notes: Sequence[str],
) -> UserData:
    if len(names) > MAX_USERS:
        raise InputError(
            f"{len(names):,} users are too many ({MAX_USERS:,} at most); is the user column an id of rows?"
        )
    if owners is not None:
        return UserData(inputs, labels, owners, classes, names, schema, False, firm, tuple(notes))
    if n_parts < 2:
        raise InputError(f"parts: expected at least 2, got {n_parts}")
    # A table of numbers is assigned like the same numbers in an array.
    rows: Any = inputs.matrix() if isinstance(inputs, InputTable) else inputs
    rows = rows.tolist() if isinstance(inputs, InputTable) and rows.dtype.kind == "O" else rows
    if hasattr(inputs, "tocsr"):
        thin: Any = inputs.tocsr(copy=True)
        thin.sum_duplicates()
        thin.eliminate_zeros()
        edges = pairwise(thin.indptr.tolist())
        rows = [(thin.indices[start:stop].tolist(), thin.data[start:stop].tolist()) for start, stop in edges]
    parts = _hash_rows(rows, n_parts)
    width = len(str(n_parts - 1))
    named = tuple(f"part-{number:0{width}}" for number in range(n_parts))
    return UserData(inputs, labels, parts, classes, named, schema, True, firm, tuple(notes))


def _hash_rows(rows: NDArray[Any] | Iterable[Any], n_parts: int) -> NDArray[np.int64]:
    """Give every row to a part by its content; the label is left out."""
    inputs = rows if isinstance(rows, np.ndarray) else [repr(row) for row in rows]
    owners = np.zeros(len(inputs), dtype=np.int64)
    for part, own in enumerate(hash_parts(inputs, n_parts, "codeward")):
        owners[own] = part
    return owners


def _read_inputs(inputs: Any, what: str) -> tuple[Inputs, Column]:
    """Take images (N, H, W), (N, H, W, C) or (N, C, H, W), vectors (N, p), also sparse ones, or texts (N,)."""
    if hasattr(inputs, "tocsr"):
        return inputs.tocsr(), Column("features", "numeric", shape=(int(inputs.shape[1]),))
    inputs = np.asarray(inputs)
    if inputs.ndim and not len(inputs):
        raise InputError(f"{what}: no samples")
    if inputs.ndim == 1 and inputs.dtype.kind in "UOS":
        column = Column("text", "text")
        return read_columns({"text": inputs.tolist()}, Schema((column,)), what), column
    if inputs.ndim == 2 and inputs.dtype.kind in "biuf" and inputs.size:
        numbers = inputs.astype(np.float64)
        column = Column("features", "numeric", shape=(inputs.shape[1],))
        return np.where(np.abs(numbers) <= LARGEST, numbers, np.nan), column
    if inputs.ndim not in (3, 4):
        raise InputError(
            f"{what}: inputs {inputs.dtype} {inputs.shape}; expected numbers (N, p), texts (N,), or images of shape "
            "(N, H, W), (N, H, W, C) or (N, C, H, W)"
        )
    pixels = as_images(inputs, what)
    return pixels, Column("image", "image", shape=pixels.shape[1:])


def read_inputs(inputs: Any, schema: Schema, what: str = "X") -> Any:
    """Read inputs without labels under a schema: a data frame, records, rows, vectors, images or texts.

    Examples
    --------
    >>> schema = Schema((Column("age", "numeric"), Column("city", "categorical")))
    >>> read_inputs([[41, "Ulm"]], schema).columns["age"].tolist()
    [41.0]
    """
    if isinstance(inputs, InputTable):
        return inputs
    if schema.kind in ("table", "text"):
        if hasattr(inputs, "columns") or isinstance(inputs, Mapping):
            columns = read_frame(inputs)
            missing = [name for name in schema.names if name not in columns]
            if missing:
                raise InputError(f"{what}: no column is named {missing[0]!r}; columns are {_shown(columns)}")
            return read_columns(columns, schema, what, strict=True, first_row=0)
        if len(inputs) and isinstance(inputs[0], Mapping):
            return read_records(inputs, schema, what)
        rows = [[value] for value in inputs] if schema.kind == "text" and np.ndim(inputs) == 1 else inputs
        if any(len(row) != len(schema.names) for row in rows):
            raise InputError(
                f"{what}: expected {len(schema.names)} values a row ({_shown(dict.fromkeys(schema.names))})"
            )
        return read_records([dict(zip(schema.names, row, strict=True)) for row in rows], schema, what)
    found, column = _read_inputs(inputs, what)
    if (column.kind, column.shape) != (schema.columns[0].kind, schema.columns[0].shape):
        kind, wanted = schema.kind, schema.columns[0].shape
        raise InputError(f"{what}: shape {column.shape}, but the models were fitted on {kind} of shape {wanted}")
    return found


def _find_column(
    columns: Columns, given: str | None, usual: Sequence[str], what: str, where: str, notes: list[str],
    but: Sequence[str] = (),
) -> str | None:  # fmt: skip
    """Return the column that was named, or the only one with a usual name; None when there is none."""
    if given is not None:
        if given not in columns:
            near = difflib.get_close_matches(given, list(columns), 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InputError(f"{where}: no column is named {given!r}{hint}; columns are {_shown(columns)}")
        return given
    found = [name for name in columns if name.strip().lower() in usual and name not in but]
    if len(found) > 1:
        raise InputError(f"{where}: several columns may be the {what} ({', '.join(found)}); give --{what} COL")
    if found:
        notes.append(f"column {found[0]!r} is taken for the {what}")
    return found[0] if found else None


def _shown(columns: Mapping[str, Any]) -> str:
    return ", ".join(name[:40] for name in list(columns)[:12]) + (" ..." if len(columns) > 12 else "")
