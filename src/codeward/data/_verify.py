"""Where data sets lie, and reading a file only when it is the right one."""

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path

from codeward._errors import InputError
from codeward.data._registry import REGISTRY, DataFile, DatasetRecord, Layout

#: An idx header is at most 16 bytes; a python batch is a record array plus labels and file names.
_SLACK = {"idx": 16, "cifar-binary": 0, "cifar-python": 4_000_000}


def resolve_data_dir(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory: the argument, else ``CODEWARD_DATA``, else the user's cache."""
    chosen = data_dir or os.environ.get("CODEWARD_DATA")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("codeward") / "data"


def find_layout(record: DatasetRecord, data_dir: Path) -> tuple[Layout, Path] | None:
    """Return the first layout of ``record`` with every file present, and its folder; None when there is none."""
    for layout in record.layouts:
        folder = data_dir / record.name / layout.folder
        if all((folder / file.name).is_file() for file in layout.files):
            return layout, folder
    return None


def describe_missing(record: DatasetRecord, data_dir: Path) -> str:
    """Say which files of ``record`` go where, what is there already, and how to get the rest."""
    choices = []
    for layout in record.layouts:
        folder = data_dir / record.name / layout.folder
        absent = [file.name for file in layout.files if not (folder / file.name).is_file()]
        part = f" (missing: {', '.join(absent)})" if len(absent) < len(layout.files) else ""
        choices.append(f"{', '.join(file.name for file in layout.files)} into {folder}{part}")
    return (
        f"{record.name}: not found under {data_dir}. Run `codeward data fetch {record.name}` (from {record.home}), "
        f"or put {'; or '.join(choices)}. The data directory is --data-dir, else CODEWARD_DATA, else the user's cache."
    )


def read_verified(
    path: Path, file: DataFile, layout: Layout, registry: Mapping[str, DatasetRecord] = REGISTRY
) -> bytes:
    """Return the (decompressed) content of ``path`` once its checksum matched.

    Guarantee: where `DataFile` carries a checksum, no byte is interpreted before it matched, except by the gzip
    decompressor when only the content's checksum can match; its output is bounded by the size the content must have.

    Raises
    ------
    InputError
        The file is damaged, truncated or another one; the message names it.
    """
    raw = path.read_bytes()
    found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    compressed = path.suffix == ".gz"
    if found == file.md5 or (file.md5 is None and file.content_md5 is None):
        return _decompress(path, raw, _size_bound(file, layout)) if compressed else raw
    if compressed and file.content_md5:
        content = _decompress(path, raw, _size_bound(file, layout))
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == file.content_md5:
            return content
    raise InputError(
        f"{path}: md5 is {found}, the official file has {file.md5}; {_name_twin(found, registry)}. "
        "Delete it and fetch the data set again."
    )


def _size_bound(file: DataFile, layout: Layout) -> int:
    return prod(file.shape) + _SLACK[layout.format]


def _decompress(path: Path, raw: bytes, bound: int) -> bytes:
    try:
        with gzip.open(io.BytesIO(raw)) as stream:
            content = stream.read(bound + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: not a complete gzip file ({error}); delete it and fetch the data set again"
        ) from None
    if len(content) > bound:
        raise InputError(f"{path}: holds more than the {bound} bytes the data set has; it is another file")
    return content


def _name_twin(md5: str, registry: Mapping[str, DatasetRecord]) -> str:
    """Say which official file has this checksum, for files that were swapped."""
    for record in registry.values():
        for layout in record.layouts:
            for file in layout.files:
                if md5 == file.md5:
                    return f"this is {file.name} of {record.name}, in the wrong place"
    return "it is truncated, damaged or another file"
