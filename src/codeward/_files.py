"""Files that can be trusted neither to be whole nor to be kind: atomic writes, and readers with a bound.

A reader here takes no more memory than its limit and what a file announces, checks that the file keeps to it, and
raises one line of `InputError` for everything that is wrong with a file.
"""

import csv
import io
import json
import lzma
import os
import re
import secrets
import socket
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from codeward._errors import InputError, TooLargeError
from codeward._npy import ArrayHeader, check_directory, check_end, read_array, read_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

AnyPath = str | os.PathLike[str]

#: Bytes that are read from one file, or unpacked from it, unless the caller knows better.
LARGEST_FILE = 2 << 30
#: Bytes of a JSON file.
LARGEST_JSON = 64 << 20
#: How deep JSON may be nested: far above what anything here writes, far below what recursion could not follow.
DEEPEST_JSON = 64
#: Lists and objects a JSON file may hold: each takes twenty times the memory of its brackets.
MOST_NODES = 200_000
#: How numpy packs the arrays of a .npz file.
NUMPY_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: A short name of this machine: numbers of processes mean nothing on another one that shares a folder.
_MACHINE = f"{zlib.crc32(socket.gethostname().encode()):08x}"


def write_atomic(path: AnyPath, write: Callable[[BinaryIO], object]) -> None:
    """Write a file through ``write(handle)`` so that a crash at any moment leaves no partial file.

    The bytes go to a temporary file beside the target, are flushed to disk, and are renamed onto it. Missing parent
    folders are made. Temporary files that a killed process of this machine left in the folder are removed.

    Parameters
    ----------
    path : path-like
        The file to create or replace.
    write : callable
        Called once with the open binary handle.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent.resolve())
    part = target.parent / f".{target.name}.{_MACHINE}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with part.open("xb") as out:
            _lock(out)
            write(out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(target)  # a full disk says no name by itself
        raise


def write_text_atomic(path: AnyPath, text: str) -> None:
    """Write ``text`` as UTF-8, atomically (see `write_atomic`)."""
    write_atomic(path, lambda out: out.write(text.encode()))


def format_json(content: Any) -> str:
    """Return JSON as all writers of folders write it."""
    return json.dumps(content, indent=1) + "\n"


def format_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, quoted where they must be."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def write_json(path: AnyPath, content: Any) -> None:
    """Write JSON, atomically (see `write_atomic`)."""
    write_text_atomic(path, format_json(content))


@lru_cache(maxsize=1024)
def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of processes of this machine that are gone, once a folder and process."""
    if os.name == "nt":
        return
    for part in folder.glob(f".*.{_MACHINE}.*.tmp"):
        found = re.search(r"\.(\d+)\.[0-9a-f]{8}\.tmp$", part.name)
        if found is None or _is_alive(int(found[1])):
            continue
        # A container may share the folder and the machine's name but not the numbers of its processes: it has the lock.
        with suppress(OSError), part.open("rb") as left:
            if _lock(left):
                part.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        pass
    return True


def _lock(handle: IO[bytes]) -> bool:
    """Take the lock of an open file if nobody has it; where there are no locks, say that somebody has."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, AttributeError):
        return False
    return True


def read_bytes(path: AnyPath, limit: int = LARGEST_FILE) -> bytes:
    """Read a whole regular file of at most ``limit`` bytes."""
    with open_regular(path, limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise TooLargeError(f"{path}: more than {limit:,} bytes")
    return content


def read_text(path: AnyPath, limit: int = LARGEST_JSON) -> str:
    """Read a text file in UTF-8, with or without a byte order mark."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start:,}") from error


def read_json(path: AnyPath, limit: int = LARGEST_JSON) -> Any:
    """Read a JSON file; see `parse_json`."""
    return parse_json(read_bytes(path, limit), str(path))


def parse_json(raw: bytes | str, what: str) -> Any:
    """Read JSON from somebody else; ``what`` names it in errors.

    Refused: text that is not UTF-8, names given twice, nesting deeper than `DEEPEST_JSON`, numbers of thousands of
    digits, more than `MOST_NODES` lists and objects, and lone surrogates, which no terminal prints and no file takes.
    """
    try:
        text = raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw
        nodes = text.count("[") + text.count("{")
        if nodes > MOST_NODES:
            raise InputError(f"{nodes:,} lists and objects are too many ({MOST_NODES:,} at most)")
        content = json.loads(text, object_pairs_hook=_unique)
        if re.search(r"\\u[dD][89a-fA-F]", text) or not isinstance(raw, bytes):
            json.dumps(content, ensure_ascii=False).encode()
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{what}: not readable as JSON (nested too deeply)") from error
    except ValueError as error:
        raise InputError(f"{what}: not readable as JSON ({_one_line(error)})") from error
    level, depth = [content], 0
    while level := [inner for outer in level for inner in _children(outer)]:
        depth += 1
        if depth > DEEPEST_JSON:
            raise InputError(f"{what}: not readable as JSON (nested too deeply: {DEEPEST_JSON} levels at most)")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"the name {name[:40]!r} is given twice")
    return made


def _children(content: Any) -> list[Any]:
    values = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return [value for value in values if isinstance(value, (dict, list))]


def read_npy(path: AnyPath, limit: int = LARGEST_FILE, kinds: str = "biuf") -> "NDArray[Any]":
    """Read a .npy file of numbers; ``kinds`` are numpy's letters of the types allowed. Nothing is unpickled."""
    with open_regular(path, limit) as file:
        return read_array(file, read_header(file, str(path), os.fstat(file.fileno()).st_size, kinds), str(path))


def read_npz(
    path: AnyPath,
    expected: Collection[str] = (),
    optional: Collection[str] | None = None,
    *,
    limit: int = LARGEST_FILE,
    kinds: str = "biuf",
    packings: Collection[int] = NUMPY_PACKINGS,
) -> "dict[str, NDArray[Any]]":
    """Read arrays of numbers from a .npz file, all of which together take at most ``limit`` bytes.

    Parameters
    ----------
    path : path-like
    expected : collection of str
        Arrays that must be there.
    optional : collection of str, optional
        Arrays that may be; by default any. Others are not looked at.
    limit : int
    kinds, packings : str, collection of int
        numpy's letters of the types allowed, and `zipfile`'s numbers of the ways of packing.
    """
    only = None if optional is None else {*expected, *optional}
    with ArrayFile(path, kinds, only, packings) as file:
        for name in expected:
            file.require(name)
        total = sum(header.n_bytes for header in file.headers.values())
        if total > limit:
            raise TooLargeError(f"{path}: {total:,} bytes when unpacked are too many ({limit:,} at most)")
        return {name: file.read(name) for name in file.headers}


class ArrayFile:
    """An open .npz file: what it announces is read and checked first, the arrays whole or row by row."""

    def __init__(self, path: AnyPath, kinds: str = "biuf", only: Any = None, packings: Any = NUMPY_PACKINGS) -> None:
        self.path, self._kinds, self._only, self._packings = Path(path), kinds, only, packings

    def __enter__(self) -> "ArrayFile":
        self._file = open_regular(self.path, None)
        try:
            with self._complain():
                self._archive = zipfile.ZipFile(self._file)
                check_directory(self._file, self._archive, str(self.path))
            self.headers  # noqa: B018 - a file that is wrong does not open
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._file.close()

    @cached_property
    def headers(self) -> dict[str, ArrayHeader]:
        """Headers by name of array, of those asked for; nothing else is unpacked yet."""
        found: dict[str, ArrayHeader] = {}
        for member in self._archive.infolist():
            name = member.filename.removesuffix(".npy")
            if self._only is not None and name not in self._only:
                continue
            what = f"{self.path}: {name[:40]!r}"
            if not member.filename.endswith(".npy"):
                raise InputError(f"{what} is no array")
            if name in found:
                raise InputError(f"{what} is there twice")
            if member.flag_bits & 0x1:
                raise InputError(f"{what} is encrypted")
            if member.compress_type not in self._packings:
                raise InputError(f"{what} is packed in a way numpy does not write; save it with numpy.savez_compressed")
            with self._complain(), self._archive.open(member) as stream:
                found[name] = read_header(stream, what, member.file_size, self._kinds)
        return found

    def require(self, name: str) -> ArrayHeader:
        """Return the header of an array that must be there."""
        if name not in self.headers:
            listed = [member.filename.removesuffix(".npy")[:40] for member in self._archive.infolist()[:10]]
            members = [member if member.isprintable() else repr(member) for member in listed]
            raise InputError(f"{self.path}: no array named {name!r} (found: {', '.join(members) or 'none'})")
        return self.headers[name]

    def read(self, name: str) -> "NDArray[Any]":
        """Read a whole array."""
        with self._complain(), self._archive.open(f"{name}.npy") as stream:
            what = f"{self.path}: {name!r}"
            read_header(stream, what, self._archive.getinfo(f"{name}.npy").file_size, self._kinds)
            array = read_array(stream, self.headers[name], what)
            check_end(stream, what)
        return array

    def rows(self, name: str, sizes: Collection[int]) -> "Iterator[NDArray[Any]]":
        """Yield the next ``size`` rows of an array for each of ``sizes``, which add up to its length."""
        header, what = self.headers[name], f"{self.path}: {name!r}"
        if header.fortran and len(header.shape) > 1:
            raise InputError(f"{what}: stored column by column (Fortran order); save it with numpy.ascontiguousarray")
        with self._complain(), self._archive.open(f"{name}.npy") as stream:
            read_header(stream, what, self._archive.getinfo(f"{name}.npy").file_size, self._kinds)
            for size in sizes:
                yield read_array(stream, replace(header, shape=(size, *header.shape[1:])), what)
            check_end(stream, what)

    @contextmanager
    def _complain(self) -> Iterator[None]:
        """Turn whatever zipfile raises on a damaged file into one line."""
        try:
            yield
        except InputError:
            raise
        except NotImplementedError as error:
            raise InputError(f"{self.path}: packed in a way numpy does not write ({_one_line(error)})") from error
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
            reason = _one_line(error)
            damaged = "not a .npz file" if isinstance(error, zipfile.BadZipFile) and "CRC" not in reason else "damaged"
            raise InputError(f"{self.path}: {damaged} ({reason})") from error
        except (OSError, ValueError, RuntimeError, LookupError, struct.error, ArithmeticError, MemoryError) as error:
            raise InputError(f"{self.path}: damaged ({_one_line(error)})") from error


def open_regular(path: AnyPath, limit: int | None = LARGEST_FILE) -> BinaryIO:
    """Open a regular file (no folder, pipe or device) of at most ``limit`` bytes for reading."""
    try:
        found = os.stat(path)
        file = Path(path).open("rb") if stat.S_ISREG(found.st_mode) else None  # noqa: SIM115 - the caller closes it
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or _one_line(error)}") from error
    except ValueError as error:
        raise InputError(f"{str(path)!r}: not a path") from error
    if file is None:
        raise InputError(f"{path}: not a plain file")
    if limit is not None and found.st_size > limit:
        file.close()
        raise TooLargeError(f"{path}: {found.st_size:,} bytes are too many ({limit:,} at most)")
    return file


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
