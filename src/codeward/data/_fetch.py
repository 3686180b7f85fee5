"""Bring data sets from their homes, every file checked against its published hash."""

import contextlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from codeward._errors import InputError
from codeward._files import write_atomic
from codeward._progress import Progress
from codeward._progress import show_progress as open_bar
from codeward.data._catalog import CATALOG, CatalogEntry, DataFile
from codeward.data._dataset_files import read_checked
from codeward.data._datasets import find_data_dir, load_files

#: Environment variable with a mirror to use instead of a data set's home; files keep their names under it.
MIRROR = "CODEWARD_MIRROR"

#: Seconds without a byte from the server after which a download is given up.
_TIMEOUT = 60


def find_entry(name: str) -> CatalogEntry:
    """Return the catalogue's entry; an unknown name is refused with the known ones."""
    entry = CATALOG.get(name)
    if entry is None:
        raise InputError(f"no data set is named {name!r}; choose one of {', '.join(CATALOG)}")
    return entry


def fetch_dataset(
    name: str, data_dir: str | os.PathLike[str] | None = None, base_url: str | None = None, show_progress: bool = False
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
    show_progress : bool
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
    return fetch_files(entry, folder, base_url or os.environ.get(MIRROR) or entry.home, show_progress)


def fetch_files(entry: CatalogEntry, folder: Path, home: str, show_progress: bool = False) -> Path:
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
                packed = _download(url, download.md5, Path(scratch), show_progress)
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


def _download(url: str, md5: str, scratch: Path, show_progress: bool) -> Path:
    import logging

    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    with _open_bar(url.rsplit("/", 1)[1], show_progress) as bar:
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

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self.total = 0
        self._name, self._stack, self._full = name, stack, False
        self._bar: Progress | None = None

    def update(self, amount: int) -> None:
        """Advance by bytes."""
        if self._bar is None:
            self._bar = self._stack.enter_context(open_bar(self._name, max(self.total, 1) / 2**20))
        if not self._full:
            self._bar.advance(amount / 2**20, "MiB")

    def reset(self) -> None:
        """Note that all has come: pooch then counts the whole size once more."""
        self._full = True

    def close(self) -> None:
        """Nothing to do: the bar closes with its context, also when a download fails."""


@contextlib.contextmanager
def _open_bar(name: str, show_progress: bool) -> Iterator[_Bar | bool]:
    with contextlib.ExitStack() as stack:
        yield _Bar(name, stack) if show_progress else False
