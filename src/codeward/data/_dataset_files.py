"""The data sets known by name: files, checksums, fixed constants; and readers that refuse broken files by name."""

import gzip
import hashlib
import io
import pickle
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward import _files as files
from codeward._errors import InputError
from codeward.data._samples import MAX_CLASSES, Samples

_CIFAR_RECORD = 1 + 3 * 32 * 32
#: Data files and .npz files whose arrays take more are refused before they are read into memory.
MAX_BYTES = files.LARGEST_FILE
#: Official files that are larger, packed or not, are refused before they fill the memory; the largest has 47 MB.
MAX_UNPACKED_BYTES = 2**28


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes
    ----------
    name : str
        Path under the data set's folder, without ``.gz``.
    md5 : str or None
        Of the plain content; None where only the packed file has a published checksum.
    packed_md5 : str or None
        Of the ``.gz`` file as it is published.
    """

    name: str
    md5: str | None
    packed_md5: str | None = None


@dataclass(frozen=True)
class Download:
    """What `codeward data fetch` brings: a file under the home address, an archive when it ends in .tar.gz."""

    name: str
    md5: str


@dataclass(frozen=True)
class CatalogEntry:
    """A data set by name.

    ``mean`` and ``std`` are public constants. They are never computed from users' data: a statistic over all users
    would let one user touch every sub-model, and with that break the isolation every guarantee rests on.

    ``sizes`` are the numbers of training and test images: where a file has no published checksum (Fashion-MNIST's
    unpacked files), they and the label range are what tells a wrong file. ``folder`` is where the files are, by default
    the name.

    Examples
    --------
    >>> CATALOG["mnist"].shape, CATALOG["mnist"].sizes
    ((1, 28, 28), (60000, 10000))
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sizes: tuple[int, int]
    train: tuple[DataFile, ...] = ()
    test: tuple[DataFile, ...] = ()
    home: str = ""
    downloads: tuple[Download, ...] = ()
    folder: str = ""

    def __post_init__(self) -> None:
        if not self.folder:
            object.__setattr__(self, "folder", self.name)


_BATCHES = "cifar-10-batches-bin"

CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry("digits", "8x8 digits, ships with scikit-learn", (1, 8, 8), 10, (0.305,), (0.376,), (1258, 539)),
        CatalogEntry(
            "mnist",
            "28x28 handwritten digits, 60,000 + 10,000",
            (1, 28, 28),
            10,
            (0.1307,),
            (0.3081,),
            (60_000, 10_000),
            (
                DataFile("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
                DataFile("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
            ),
            (
                DataFile("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
                DataFile("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
            ),
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                Download("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                Download("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
                Download("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
                Download("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
            ),
        ),
        CatalogEntry(
            "fashion-mnist",
            "28x28 pieces of clothing, 60,000 + 10,000",
            (1, 28, 28),
            10,
            (0.2860,),
            (0.3530,),
            (60_000, 10_000),
            (
                DataFile("train-images-idx3-ubyte", None, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                DataFile("train-labels-idx1-ubyte", None, "25c81989df183df01b3e8a0aad5dffbe"),
            ),
            (
                DataFile("t10k-images-idx3-ubyte", None, "bef4ecab320f06d8554ea6380940ec79"),
                DataFile("t10k-labels-idx1-ubyte", None, "bb300cfdad3c16e7a12a480ee83cd310"),
            ),
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                Download("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                Download("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
                Download("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
                Download("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
            ),
        ),
        CatalogEntry(
            "cifar10",
            "32x32 colour photographs, 50,000 + 10,000",
            (3, 32, 32),
            10,
            (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616),
            (50_000, 10_000),
            tuple(
                DataFile(f"{_BATCHES}/data_batch_{number}.bin", md5)
                for number, md5 in enumerate(
                    (
                        "5dd7e06a14cb22eb9f671a540d1b7c25",
                        "5ea93a67294ea407fff1d09f752e9692",
                        "942cd6a4bcdd0dd3c604fbe906cb4421",
                        "ae636b3ba5c66a11e91e8cb52e771fcb",
                        "53f37980c15c3d472c316c40844f3f0d",
                    ),
                    start=1,
                )
            ),
            (DataFile(f"{_BATCHES}/test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),),
            "https://www.cs.toronto.edu/~kriz/",
            (Download("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        ),
    )
}

#: MNIST with its writers: the images are MNIST's, who wrote them comes with the package.
CATALOG["mnist-writers"] = replace(
    CATALOG["mnist"], name="mnist-writers", title="MNIST with its 539 writers as users", folder="mnist"
)

#: CIFAR-10 as published for Python: a pickle a batch, read only after its checksum matched.
CIFAR_PYTHON_MD5: dict[str, str] = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def read_checked(folder: Path, file: DataFile) -> bytes:
    """Read a data file, plain or ``.gz``, and compare its content with the official checksum."""
    plain = folder / file.name
    packed = plain.with_name(plain.name + ".gz")
    if plain.is_file():
        content = files.read_bytes(plain, MAX_UNPACKED_BYTES)
        found = plain
    elif packed.is_file():
        raw = files.read_bytes(packed, MAX_UNPACKED_BYTES)
        if file.packed_md5 and _md5(raw) != file.packed_md5:
            raise InputError(f"{packed}: damaged or not the official file (md5 {_md5(raw)}, not {file.packed_md5})")
        try:
            with gzip.open(io.BytesIO(raw)) as stream:
                content = stream.read(MAX_UNPACKED_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{packed}: not a whole gzip file ({error})") from error
        if len(content) > MAX_UNPACKED_BYTES:
            raise InputError(f"{packed}: unpacks to more than {MAX_UNPACKED_BYTES} bytes; not an official file")
        found = packed
    else:
        raise InputError(f"{plain}: missing")
    if file.md5 and _md5(content) != file.md5:
        raise InputError(f"{found}: damaged or not the official file (md5 {_md5(content)}, not {file.md5})")
    return content


def parse_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """Parse an idx file of unsigned bytes (MNIST's format); the header must match the length exactly."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        raise InputError(f"{name}: not an idx file of bytes (wrong magic number)")
    dimensions = content[3]
    head = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, head, 4))
    expected = head + int(np.prod([int(size) for size in shape], dtype=object))
    if len(content) != expected:
        raise InputError(
            f"{name}: header says shape {shape} ({expected} bytes), the file has {len(content)}: truncated?"
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def parse_idx_pair(images: bytes, labels: bytes, name: str, shape: tuple[int, int, int]) -> Samples:
    """Parse MNIST-like images and labels; swapped or mismatched files are refused."""
    pictures, numbers = parse_idx(images, f"{name} images"), parse_idx(labels, f"{name} labels")
    if pictures.ndim != 3 or numbers.ndim != 1:
        raise InputError(f"{name}: images of {pictures.ndim} and labels of {numbers.ndim} dimensions; files swapped?")
    if len(pictures) != len(numbers) or pictures.shape[1:] != shape[1:]:
        raise InputError(
            f"{name}: images of shape {pictures.shape} do not go with {len(numbers)} labels of {shape[1:]}"
        )
    return Samples(pictures[:, None].copy(), numbers.astype(np.int64))


def parse_cifar_binary(content: bytes, name: str) -> Samples:
    """Parse a CIFAR-10 binary batch: records of one label byte and 3 x 32 x 32 pixels."""
    if len(content) == 0 or len(content) % _CIFAR_RECORD:
        raise InputError(f"{name}: {len(content)} bytes are not whole records of {_CIFAR_RECORD}: truncated?")
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
    if records[:, 0].max() > 9:
        raise InputError(f"{name}: label {records[:, 0].max()} outside 0..9; not a CIFAR-10 batch")
    return Samples(records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64))


class _ArraysOnly(pickle.Unpickler):
    """Reads the one pickle codeward accepts, CIFAR-10's, and nothing in it but arrays: no other name can be called.

    It is used only on bytes whose official checksum matched; the restriction is the second lock.
    """

    _allowed = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def parse_cifar_python(content: bytes, md5: str, name: str) -> Samples:
    """Parse a CIFAR-10 batch as published for Python, only after its md5 matched."""
    if _md5(content) != md5:
        raise InputError(f"{name}: md5 {_md5(content)} is not the official {md5}; it is a pickle, so it is not opened")
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        images = np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32)
        return Samples(images, np.asarray(batch["labels"], np.int64))
    except Exception as error:  # a broken pickle may raise anything
        raise InputError(f"{name}: not a CIFAR-10 batch ({error})") from error


def read_npz(path: Path) -> tuple[Samples, Samples | None, NDArray[Any] | None]:
    """Read ``images, labels`` and, where present, ``test_images, test_labels`` and ``groups`` from an ``.npz``.

    Images are uint8, or floats within 0..1; shape (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels.
    """
    optional = ("test_images", "test_labels", "groups")
    arrays = files.read_npz(path, ("images", "labels"), optional, limit=MAX_BYTES, kinds="biufUS")
    train = _npz_samples(arrays["images"], arrays["labels"], path)
    test = None
    if "test_images" in arrays or "test_labels" in arrays:
        if not {"test_images", "test_labels"} <= arrays.keys():
            raise InputError(f"{path}: test_images and test_labels go together")
        test = _npz_samples(arrays["test_images"], arrays["test_labels"], path)
        if test.images.shape[1:] != train.images.shape[1:]:
            raise InputError(f"{path}: test images {test.images.shape[1:]}, training images {train.images.shape[1:]}")
    groups = arrays.get("groups")
    if groups is not None and groups.shape != (len(train),):
        raise InputError(f"{path}: groups of shape {groups.shape}, expected one a training image ({len(train)},)")
    if groups is not None and groups.dtype.kind == "f" and not np.isfinite(groups).all():
        raise InputError(f"{path}: groups must be finite: a number or a name of the user of every training image")
    return train, test, groups


def _npz_samples(images: NDArray[Any], labels: NDArray[Any], path: Path) -> Samples:
    images = as_images(images, str(path))
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise InputError(f"{path}: labels {labels.dtype} {labels.shape}; expected {len(images)} whole numbers")
    if labels.min() < 0 or labels.max() >= MAX_CLASSES:
        raise InputError(f"{path}: labels {labels.min()}..{labels.max()}; expected classes numbered from 0")
    return Samples(images, labels.astype(np.int64))


def as_images(images: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Return images as uint8 (N, C, H, W): bytes, or floats within 0..1; channels before or behind, or none."""
    if images.dtype.kind == "f":
        if not np.isfinite(images).all() or images.min(initial=0) < 0 or images.max(initial=0) > 1:
            raise InputError(f"{what}: float images must be finite and within 0..1")
        images = np.round(images * 255).astype(np.uint8)
    if images.dtype != np.uint8:
        raise InputError(f"{what}: images of {images.dtype}; expected uint8, or floats within 0..1")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise InputError(f"{what}: images of shape {images.shape}; expected (N, H, W), (N, H, W, C) or (N, C, H, W)")
    return np.ascontiguousarray(images)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
