"""Bring data sets from their homes, every file checked against its published hash."""

import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from codeward._errors import InputError
from codeward.data._catalog import CATALOG, Entry
from codeward.data._datasets import find_data_dir, load_files

#: Environment variable with a mirror to use instead of a data set's home; files keep their names under it.
MIRROR = "CODEWARD_MIRROR"


def fetch_dataset(
    name: str, data_dir: str | os.PathLike[str] | None = None, base_url: str | None = None, progress: bool = False
) -> Path:
    """Download a data set with pooch, verify it, and return its folder.

    Nothing appears under its final name before its hash matched; what is there already is not fetched again.

    Parameters
    ----------
    name : str
        A name of the catalogue other than ``digits`` (which ships with scikit-learn).
    data_dir : path-like, optional
    base_url : str, optional
        A mirror; else ``CODEWARD_MIRROR``, else the data set's home.
    progress : bool
        Show a bar per file.
    """
    entry = CATALOG.get(name)
    if entry is None:
        raise InputError(f"no data set is named {name!r}; choose one of {', '.join(CATALOG)}")
    folder = find_data_dir(data_dir) / name
    if not entry.downloads:
        return folder
    home = base_url or os.environ.get(MIRROR) or entry.home
    folder.mkdir(parents=True, exist_ok=True)
    for download in entry.downloads:
        if _present(entry, folder, download.name):
            continue
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            packed = _download(home.rstrip("/") + "/" + download.name, download.md5, Path(scratch), progress)
            if download.name.endswith(".tar.gz"):
                with tarfile.open(packed) as archive:
                    archive.extractall(scratch, filter="data")
                inner = next(path for path in Path(scratch).iterdir() if path.is_dir())
                shutil.rmtree(folder / inner.name, ignore_errors=True)
                os.replace(inner, folder / inner.name)
            else:
                os.replace(packed, folder / download.name)
    load_files(entry, folder)  # every file once more, content and header
    return folder


def check_dataset(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Verify what is there; returns ``ok``, ``missing``, or what is wrong."""
    entry = CATALOG[name]
    folder = find_data_dir(data_dir) / name
    if not entry.downloads:
        return "ok"
    if (
        not any((folder / part).exists() for file in entry.train for part in (file.name, file.name + ".gz"))
        and not (folder / "cifar-10-batches-py").is_dir()
    ):
        return "missing"
    try:
        load_files(entry, folder)
    except InputError as error:
        return str(error)
    return "ok"


def _present(entry: Entry, folder: Path, download: str) -> bool:
    if download.endswith(".tar.gz"):
        return all((folder / file.name).is_file() for file in entry.train + entry.test)
    return (folder / download).is_file() or (folder / download.removesuffix(".gz")).is_file()


def _download(url: str, md5: str, scratch: Path, progress: bool) -> Path:
    import logging

    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    try:
        return Path(
            pooch.retrieve(
                url,
                known_hash=f"md5:{md5}",
                fname=url.rsplit("/", 1)[1],
                path=scratch,
                downloader=pooch.HTTPDownloader(progressbar=_Bar(url) if progress else False, timeout=60),
            )
        )
    except ValueError as error:  # pooch's word for a hash that does not match
        raise InputError(f"{url}: the download does not have the published md5 {md5}; nothing was kept") from error
    except OSError as error:  # requests' errors are OSErrors
        raise InputError(f"{url}: could not be downloaded ({error}); give a mirror with --url or {MIRROR}") from error


class _Bar:
    """The progress object pooch drives; drawn by `codeward._progress`."""

    def __init__(self, url: str) -> None:
        from codeward._progress import show_progress

        self.total = 0
        self._context = show_progress(url.rsplit("/", 1)[1], 0)
        self._bar = self._context.__enter__()

    def update(self, amount: int) -> None:
        """Advance by bytes."""
        self._bar.advance(amount)

    def reset(self) -> None:
        """Start over: pooch calls it once at the end."""

    def close(self) -> None:
        """Close the bar."""
        self._context.__exit__(None, None, None)
