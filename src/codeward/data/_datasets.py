"""Data sets by name or by file: loaded, brought from their homes, and checked against their published hashes."""

import contextlib
import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_bytes, write_atomic
from codeward._files import read_npz as read_arrays
from codeward._progress import Progress, Shown, show_progress
from codeward.data._dataset_files import (
    CATALOG,
    CIFAR_PYTHON_MD5,
    MAX_UNPACKED_BYTES,
    CatalogEntry,
    DataFile,
    parse_cifar_binary,
    parse_cifar_python,
    parse_idx_pair,
    read_checked,
    read_npz,
)
from codeward.data._samples import Samples

#: Shares of scikit-learn's digits (and of an .npz without test set) kept for testing.
TEST_SHARE = 0.3
_SPLIT_SEED = 20210


@dataclass(frozen=True)
class DatasetPair:
    """A data set: training and test samples, and constants that describe it.

    Attributes
    ----------
    name : str
    train, test : Samples
    n_classes : int
    mean, std : tuple of float
        Fixed public normalisation constants, never computed from users' data (see `CatalogEntry`).
    groups, test_groups : ndarray or None, shape (N,)
        Real user ids of the training and test samples, where the data bring them.

    Examples
    --------
    >>> pair = load_dataset("digits")
    >>> pair.name, pair.n_classes, pair.mean
    ('digits', 10, (0.305,))
    """

    name: str
    train: Samples
    test: Samples
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    groups: NDArray[Any] | None = None
    test_groups: NDArray[Any] | None = None


def find_data_dir(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory: the argument, else ``CODEWARD_DATA``, else the user's cache.

    Examples
    --------
    >>> find_data_dir("data").name
    'data'
    """
    if data_dir is not None:
        return Path(data_dir)
    if given := os.environ.get("CODEWARD_DATA"):
        return Path(given)
    from platformdirs import user_cache_path

    return user_cache_path("codeward") / "data"


def load_dataset(name: str, data_dir: str | os.PathLike[str] | None = None) -> DatasetPair:
    """Load a data set by name (`CATALOG`) or an ``.npz`` by path.

    Raises
    ------
    InputError
        For an unknown name; for missing files, saying which go where and how to fetch them; for damaged ones.

    Examples
    --------
    >>> pair = load_dataset("digits")
    >>> len(pair.train), len(pair.test), pair.train.images.shape[1:]
    (1258, 539, (1, 8, 8))
    """
    if name.endswith(".npz"):
        return _load_npz(Path(name))
    entry = find_entry(name)
    if name == "digits":
        train, test = _load_digits()
    else:
        train, test = load_files(entry, find_data_dir(data_dir) / entry.folder)
    writers = _read_writers() if name == "mnist-writers" else (None, None)
    return DatasetPair(name, train, test, entry.n_classes, entry.mean, entry.std, *writers)


def _read_writers() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the names of the writers of MNIST's training and test images: census staff or students, and a number."""
    with resources.as_file(resources.files("codeward.data") / "files" / "mnist_writers.npz") as path:
        arrays = read_arrays(path, ("train", "test", "train_series", "test_series"))
    kinds = np.array(["staff", "?", "?", "?", "student"])
    train, test = (
        np.char.add(np.char.add(kinds[arrays[f"{part}_series"]], "-"), np.char.zfill(arrays[part].astype("U4"), 4))
        for part in ("train", "test")
    )
    return train, test


def load_files(entry: CatalogEntry, folder: Path) -> tuple[Samples, Samples]:
    """Read the files of a catalogued data set, every one verified; the whole must have the published size."""
    train, test = _parse_files(entry, folder)
    for part, samples, size in (("training", train, entry.sizes[0]), ("test", test, entry.sizes[1])):
        if len(samples) != size:
            raise InputError(f"{folder}: {len(samples)} {part} images, {entry.name} has {size}; files swapped?")
        if int(samples.labels.max()) >= entry.n_classes:
            raise InputError(f"{folder}: {part} label {int(samples.labels.max())}, not 0..{entry.n_classes - 1}")
    return train, test


def _parse_files(entry: CatalogEntry, folder: Path) -> tuple[Samples, Samples]:
    python_batches = folder / "cifar-10-batches-py"
    names = [file.name for file in entry.train + entry.test]
    missing = [name for name in names if not any((folder / f"{name}{end}").is_file() for end in ("", ".gz"))]
    if missing and entry.name == "cifar10" and python_batches.is_dir():
        parts = {
            name: parse_cifar_python(
                read_bytes(python_batches / name, MAX_UNPACKED_BYTES), md5, str(python_batches / name)
            )
            for name, md5 in CIFAR_PYTHON_MD5.items()
        }
        return _join([parts[name] for name in parts if name != "test_batch"]), parts["test_batch"]
    if missing:
        raise InputError(
            f"{entry.name} is not in {folder}: missing {', '.join(missing)} (plain or .gz); "
            f"run `codeward data fetch {entry.name}`, or put the official files there"
        )
    if entry.name == "cifar10":
        batches = [parse_cifar_binary(read_checked(folder, file), file.name) for file in entry.train + entry.test]
        return _join(batches[:-1]), batches[-1]
    train, test = (
        parse_idx_pair(read_checked(folder, images), read_checked(folder, labels), entry.name, entry.shape)
        for images, labels in (entry.train, entry.test)
    )
    return train, test


def _join(parts: list[Samples]) -> Samples:
    return Samples(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _load_digits() -> tuple[Samples, Samples]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    samples = Samples(images, bunch.target.astype(np.int64))
    kept, held = _shuffle(len(samples))
    return samples.take(kept), samples.take(held)


def _load_npz(path: Path) -> DatasetPair:
    train, test, groups = read_npz(path)
    if test is None:
        # Nobody but the users says which classes there are, so one of them could widen every model by a class of its
        # own: a file with server-held test images is the one to use where users are not trusted.
        n_classes = int(train.labels.max()) + 1
        kept, held = _shuffle(len(train))
        groups = None if groups is None else groups[kept]
        train, test = train.take(kept), train.take(held)
    else:
        n_classes = int(test.labels.max()) + 1
        if train.labels.max() >= n_classes:
            known = f"0..{n_classes - 1}"
            raise InputError(f"{path}: training label {train.labels.max()}, but test_labels know {known} only")
    return DatasetPair(path.stem, train, test, max(n_classes, 2), (0.5,), (0.5,), groups)


def _shuffle(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut 0..size-1 into training and test parts, the same way on every machine."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(size)
    held = max(1, round(size * TEST_SHARE))
    return np.sort(order[held:]), np.sort(order[:held])


#: Environment variable with a mirror to use instead of a data set's home; files keep their names under it.
MIRROR = "CODEWARD_MIRROR"

#: Seconds without a byte from the server after which a download is given up.
_TIMEOUT = 60


def find_entry(name: str) -> CatalogEntry:
    """Return the catalogue's entry; an unknown name is refused with the known ones."""
    entry = CATALOG.get(name)
    if entry is None:
        raise InputError(f"no data set is named {name!r}; choose {', '.join(CATALOG)}, or give the path of an .npz")
    return entry


def fetch_dataset(
    name: str, data_dir: str | os.PathLike[str] | None = None, base_url: str | None = None, progress: Shown = None
) -> Path:
    """Download a data set with pooch, verify it, and return its folder.

    Nothing appears under its final name before its hash matched. What is there and whole is not fetched again, so an
    interrupted fetch goes on with the next file; what is there and damaged is reported, never replaced or removed.

    Parameters
    ----------
    name : str
        A name of the catalogue; ``digits`` ships with scikit-learn and needs nothing.
    data_dir : path-like, optional
    base_url : str, optional
        A mirror; else ``CODEWARD_MIRROR``, else the data set's home.
    progress : Progress or bool, optional
        Show a bar per file.

    Examples
    --------
    >>> fetch_dataset("digits", "data").as_posix()  # ships with scikit-learn: nothing to download
    'data/digits'
    """
    entry = find_entry(name)
    folder = find_data_dir(data_dir) / entry.folder
    if not entry.downloads:
        return folder
    return fetch_files(entry, folder, base_url or os.environ.get(MIRROR) or entry.home, progress)


def fetch_files(entry: CatalogEntry, folder: Path, home: str, progress: Shown = None) -> Path:
    """Bring the files of one entry from ``home`` into ``folder`` (see `fetch_dataset`)."""
    files = entry.train + entry.test
    missing = [file for file in files if not _is_whole(folder, file)]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for download in entry.downloads:
            archive = download.name.endswith(".tar.gz")
            wanted = missing if archive else [file for file in missing if f"{file.name}.gz" == download.name]
            if not wanted:
                continue
            with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
                url = home.rstrip("/") + "/" + download.name
                packed = _download(url, download.md5, Path(scratch), progress)
                if archive:
                    _unpack(packed, wanted, folder, url)
                else:
                    os.replace(packed, folder / download.name)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only when nothing is in it
        raise
    load_files(entry, folder)  # every file once more, content and header
    return folder


def check_dataset(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Verify what is there; returns ``ok``, ``missing``, or what is wrong.

    Examples
    --------
    >>> check_dataset("digits"), check_dataset("mnist", "a-folder-that-is-not-there")
    ('ok', 'missing')
    """
    entry = find_entry(name)
    folder = find_data_dir(data_dir) / entry.folder
    if not entry.downloads:
        return "ok"
    parts = [part for file in entry.train + entry.test for part in (file.name, file.name + ".gz")]
    if not any((folder / part).exists() for part in [*parts, "cifar-10-batches-py"]):
        return "missing"
    try:
        load_files(entry, folder)
    except InputError as error:
        return str(error)
    return "ok"


def _is_whole(folder: Path, file: DataFile) -> bool:
    """Tell whether a file need not be fetched; a damaged one is the user's to remove."""
    if not any((folder / name).is_file() for name in (file.name, file.name + ".gz")):
        return False
    try:
        read_checked(folder, file)
    except InputError as error:
        raise InputError(f"{error}; remove it and fetch again") from error
    return True


def _unpack(packed: Path, wanted: list[DataFile], folder: Path, url: str) -> None:
    """Copy the wanted files out of an archive, and nothing else that may be in it."""
    try:
        with tarfile.open(packed) as archive:
            for file in wanted:
                member = archive.extractfile(file.name)
                if member is None:
                    raise InputError(f"{url}: {file.name} is not a file in it")
                write_atomic(folder / file.name, partial(shutil.copyfileobj, member))
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise InputError(f"{url}: not the expected archive ({error})") from error


def _download(url: str, md5: str, scratch: Path, progress: Shown) -> Path:
    import logging

    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    with contextlib.ExitStack() as stack:
        bar = _Bar(url.rsplit("/", 1)[1], stack, progress) if progress else False
        fetch = pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT)
        try:
            kept = pooch.retrieve(
                url, known_hash=f"md5:{md5}", fname=url.rsplit("/", 1)[1], path=scratch, downloader=fetch
            )
        # requests' errors are OSErrors, some of them ValueErrors too; a hash that does not match is a ValueError only.
        except OSError as error:
            raise InputError(
                f"{url}: could not be downloaded ({error}); give a mirror with --url or {MIRROR}"
            ) from error
        except ValueError as error:
            raise InputError(f"{url}: the download does not have the published md5 {md5}; nothing was kept") from error
    return Path(kept)


class _Bar:
    """The progress object pooch drives, in mebibytes; drawn by `codeward._progress` once the size is known."""

    def __init__(self, name: str, stack: contextlib.ExitStack, shown: Shown) -> None:
        self.total = 0
        self._name, self._stack, self._shown, self._full = name, stack, shown, False
        self._bar: Progress | None = None

    def update(self, amount: int) -> None:
        """Advance by bytes."""
        if self._bar is None:
            self._bar = self._stack.enter_context(show_progress(self._name, max(self.total, 1) / 2**20, self._shown))
        if not self._full:
            self._bar.advance(amount / 2**20, "MiB")

    def reset(self) -> None:
        """Note that all has come: pooch then counts the whole size once more."""
        self._full = True

    def close(self) -> None:
        """Nothing to do: the bar closes with its context, also when a download fails."""
