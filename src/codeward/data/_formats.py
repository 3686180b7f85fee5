"""Readers of the idx and CIFAR formats: bytes in, arrays out, everything checked, nothing executed."""

import pickletools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data._registry import DataFile

#: idx: two zero bytes, 8 for unsigned bytes, the number of dimensions.
_IDX_UBYTE = 8
_CIFAR_SHAPE = (3, 32, 32)


def parse_idx(content: bytes, file: DataFile, path: Path) -> NDArray[np.uint8]:
    """Return the array of an idx file of unsigned bytes whose header says ``file.shape``."""
    n_dims = len(file.shape)
    start = 4 + 4 * n_dims
    if len(content) < start or content[:4] != bytes((0, 0, _IDX_UBYTE, n_dims)):
        raise InputError(f"{path}: not an idx file of unsigned bytes with {n_dims} dimension(s)")
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=n_dims, offset=4))
    if shape != file.shape:
        raise InputError(f"{path}: the header says shape {shape}, {file.name} has {file.shape}; another file?")
    if len(content) != start + int(np.prod(shape)):
        raise InputError(f"{path}: {len(content)} bytes, the header promises {start + int(np.prod(shape))}; truncated?")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def parse_cifar_binary(content: bytes, file: DataFile, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images (N, 3, 32, 32) and labels of a CIFAR-10 binary batch: records of a label byte and 3072 pixels."""
    n_records, width = file.shape
    if len(content) != n_records * width:
        raise InputError(f"{path}: {len(content)} bytes, expected {n_records} records of {width}; truncated?")
    records = np.frombuffer(content, dtype=np.uint8).reshape(n_records, width)
    return records[:, 1:].reshape(n_records, *_CIFAR_SHAPE), records[:, 0]


def parse_cifar_python(content: bytes, file: DataFile, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images (N, 3, 32, 32) and labels of a CIFAR-10 python batch, **without unpickling it**.

    A python batch is a pickle. Its opcodes are listed with `pickletools`, which only tokenises: no name is looked up
    and no call is made, whatever the file holds. Two tokens are enough: the one string as long as the pixels, and the
    small integers after the key ``labels``. Callers verify the official checksum first (`read_verified`), so anything
    but the six official files is refused before it comes here.
    """
    n_images, width = file.shape
    pixels: bytes | None = None
    labels: list[int] = []
    fortran = in_labels = False
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if isinstance(argument, str | bytes) and "STRING" in opcode.name:
                raw = argument.encode("latin-1") if isinstance(argument, str) else argument
                in_labels = raw == b"labels"
                if len(raw) == n_images * width:
                    pixels = raw
            elif pixels is None and (opcode.name in ("NEWTRUE", "NEWFALSE") or isinstance(argument, bool)):
                # The last boolean before the pixels is NumPy's "stored in Fortran order".
                fortran = opcode.name == "NEWTRUE" or argument is True
            elif in_labels and isinstance(argument, int) and "INT" in opcode.name:
                labels.append(argument)
    except ValueError as error:
        raise InputError(f"{path}: not a CIFAR-10 python batch ({error})") from None
    if pixels is None or len(labels) != n_images or min(labels) < 0 or max(labels) > 255:
        raise InputError(f"{path}: not a CIFAR-10 python batch of {n_images} images")
    flat = np.frombuffer(pixels, dtype=np.uint8).reshape((n_images, width), order="F" if fortran else "C")
    return np.ascontiguousarray(flat).reshape(n_images, *_CIFAR_SHAPE), np.array(labels, dtype=np.uint8)
