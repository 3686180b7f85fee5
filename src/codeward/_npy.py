"""numpy's arrays in files from strangers: what a ``.npy`` stream announces and holds, and what a ``.npz`` lists."""

import ast
import hashlib
import math
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from codeward._errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ArrayHeader:
    """What a .npy array announces of itself."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    fortran: bool

    @property
    def n_bytes(self) -> int:
        """Size of the data."""
        return self.dtype.itemsize * math.prod(self.shape)


def read_header(stream: IO[bytes], what: str, size: int, kinds: str) -> ArrayHeader:
    """Read the header of a .npy stream of ``size`` bytes, which is left at its data and has room for them exactly."""
    import numpy as np

    start = stream.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise InputError(f"{what}: not a readable .npy array")
    width, form = (2, "<H") if start[6] == 1 else (4, "<I")
    length = struct.unpack(form, _read_exactly(stream, width, what))[0]
    if length > 10_000:
        raise InputError(f"{what}: not a readable .npy array (a header of {length:,} bytes)")
    try:
        header = ast.literal_eval(_read_exactly(stream, length, what).decode("latin-1" if start[6] < 3 else "utf-8"))
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        dtype = np.dtype(descr) if isinstance(descr, str) else None
    except InputError:
        raise
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise InputError(f"{what}: not a readable .npy array (its header is damaged)") from error
    if dtype is None or dtype.hasobject or dtype.kind not in kinds or not dtype.itemsize:
        wanted = "not numbers or text; save names with .astype(str)" if "U" in kinds else "not numbers"
        raise InputError(f"{what}: holds dtype {str(descr)[:40]}, {wanted}")
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise InputError(f"{what}: announces an array of shape {str(shape)[:40]}")
    found = ArrayHeader(shape, dtype, bool(fortran))
    room = size - 8 - width - length
    if found.n_bytes != room:
        follow = "fewer" if room < found.n_bytes else "more"
        raise InputError(f"{what}: announces an array of {found.n_bytes:,} bytes, {follow} follow ({room:,})")
    if not room and max(shape) > 1_000_000:
        raise InputError(f"{what}: an empty array that announces {max(shape):,} rows")
    return found


def read_array(stream: IO[bytes], header: ArrayHeader, what: str) -> "NDArray[Any]":
    """Read what a header announced."""
    import numpy as np

    data = np.frombuffer(_read_exactly(stream, header.n_bytes, what), dtype=header.dtype)
    return data.reshape(header.shape, order="F" if header.fortran else "C")


def _read_exactly(stream: IO[bytes], count: int, what: str) -> bytearray:
    """Read ``count`` bytes; memory grows with what is there (LZMA unfolds a piece at once), not what was announced."""
    data = bytearray()
    while len(data) < count:
        piece = stream.read(min(count - len(data), 1 << 16))
        if not piece:
            raise InputError(f"{what}: the file ends early")
        data += piece
    return data


def check_end(stream: IO[bytes], what: str) -> None:
    """Refuse a stream that goes on."""
    if stream.read(1):  # in an archive this is where the checksum is compared
        raise InputError(f"{what}: announces less than it holds")


def check_directory(file: BinaryIO, archive: zipfile.ZipFile, what: str) -> None:
    """Refuse an archive whose directory leaves out or renames something that is in it.

    zipfile believes the directory at the end: one wrong byte there can hide a member, and an array that may be
    missing (labels) would be taken for missing. So the members listed must follow one another without a gap, from
    the first byte to the directory, each under the name that it carries itself.
    """
    place, members = 0, sorted(archive.infolist(), key=lambda member: member.header_offset)
    ends = [member.header_offset for member in members[1:]] + [archive.start_dir]
    agree = True
    for member, end in zip(members, ends, strict=True):
        place = _find_end(file, member, place)
        # A writer that could not seek back put sizes and checksum behind the data.
        agree = agree and end - place in ((12, 16, 20, 24) if member.flag_bits & 0x8 else (0,))
        place = end
    if not agree or place != archive.start_dir:
        raise InputError(f"{what}: damaged (its directory does not list what is in it); save it again with numpy.savez")


def _find_end(file: BinaryIO, member: zipfile.ZipInfo, place: int) -> int:
    """Return where the data of a member end that begins at ``place``; -1 where another one is there, or none."""
    file.seek(place)
    head = file.read(30)
    if member.header_offset != place or len(head) < 30 or head[:4] != b"PK\x03\x04":
        return -1
    crc, packed, _, name_length, extra_length = struct.unpack("<IIIHH", head[14:])
    name = file.read(name_length).decode("utf-8" if member.flag_bits & 0x800 else "cp437")
    extra = file.read(extra_length)
    if packed == 0xFFFFFFFF and extra[:4] == b"\x01\x00\x10\x00":  # as numpy writes it, for files past 4 GB
        packed = int.from_bytes(extra[12:20], "little")
    told = member.flag_bits & 0x8 or (crc, packed) == (member.CRC, member.compress_size)
    if name != member.orig_filename or not told:
        return -1
    return int(place + 30 + name_length + extra_length + member.compress_size)


def hash_arrays(arrays: "Mapping[str, NDArray[Any]]", names: Iterable[str]) -> str:
    """Return the SHA-256 of arrays, with their names, types and shapes, in hex."""
    import numpy as np

    content = hashlib.sha256()
    for name in names:
        content.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        content.update(np.ascontiguousarray(arrays[name]).tobytes())
    return content.hexdigest()
