"""Files: atomic writing (a reader sees the old file or the whole new one) and reading that a stranger cannot abuse.

The readers raise `InputError` with one line that names the file, and never use more memory than they announce.
"""

import json
import os
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, BinaryIO

from codeward._errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Lists and objects a JSON file may hold: each takes twenty times the memory of its brackets.
MAX_JSON_NODES = 200_000


def write_atomic(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file through ``write(handle)`` so that a crash at any moment leaves no partial file.

    The bytes go to a temporary file beside the target, are flushed to disk, and are renamed onto it. Missing parent
    folders are made.

    Parameters
    ----------
    path : path-like
        The file to create or replace.
    write : callable
        Called once with the open binary handle.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        # mkstemp makes files private; a result should be as readable as any file the user makes.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8, atomically (see `write_atomic`)."""
    write_atomic(path, lambda out: out.write(text.encode()))


def open_regular(path: str | os.PathLike[str], limit: int) -> BinaryIO:
    """Open a plain file of at most ``limit`` bytes; a device, a pipe, a folder or a larger file is refused unread."""
    file = Path(path)
    try:
        found = file.stat()
        if not S_ISREG(found.st_mode):
            raise InputError(f"{file}: not a plain file")
        if found.st_size > limit:
            raise InputError(f"{file}: {found.st_size:,} bytes are too many ({limit:,} at most)")
        return file.open("rb")
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a plain file of at most ``limit`` bytes."""
    with open_regular(path, limit) as handle:
        content = handle.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path}: more than {limit:,} bytes")
    return content


def read_json(path: str | os.PathLike[str], limit: int) -> Any:
    """Read a JSON file of at most ``limit`` bytes and `MAX_JSON_NODES` lists and objects, without lone surrogates."""
    content = read_bytes(path, limit)
    nodes = content.count(b"[") + content.count(b"{")
    if nodes > MAX_JSON_NODES:
        raise InputError(f"{path}: {nodes:,} lists and objects are too many ({MAX_JSON_NODES:,} at most)")
    try:
        text = content.decode("utf-8-sig")
        parsed = json.loads(text)
        if "\\u" in text or "\\U" in text:
            # A lone surrogate is no character: no terminal prints it and no file takes it.
            json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise InputError(f"{path}: not readable as JSON (nested too deeply)") from error
    except ValueError as error:  # what json and the codec raise is one
        raise InputError(f"{path}: not readable as JSON ({_shorten(error)})") from error
    return parsed


def read_npy(path: str | os.PathLike[str], limit: int) -> "NDArray[Any]":
    """Read a numeric ``.npy`` array of at most ``limit`` bytes, after checking what its header announces."""
    import numpy as np

    with open_regular(path, limit + 4096) as handle:
        try:
            version = np.lib.format.read_magic(handle)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"format {version[0]}.{version[1]}")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, columns_first, dtype = read(handle)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError) as error:
            raise InputError(f"{path}: not a readable .npy file ({_shorten(error)})") from error
        if dtype.hasobject or dtype.kind not in "biuf":
            raise InputError(f"{path}: holds {_shorten(dtype)}, not numbers")
        if any(length < 0 for length in shape) or prod(shape) * dtype.itemsize > limit:
            raise InputError(f"{path}: announces an array of {_shorten(shape)}; {limit:,} bytes are the most")
        size = prod(shape) * dtype.itemsize
        content = handle.read(size + 1)
    if len(content) != size:
        raise InputError(
            f"{path}: its header announces {size:,} bytes, {'fewer' if len(content) < size else 'more'} follow"
        )
    return np.frombuffer(content, dtype).reshape(shape, order="F" if columns_first else "C")


def _shorten(thing: object, width: int = 80) -> str:
    text = " ".join(str(thing).split())
    return text if len(text) <= width else text[: width - 3] + "..."
