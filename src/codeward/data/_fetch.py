"""Downloading a data set from its official home: checked before it is put in place, or not at all."""

import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.data._registry import REGISTRY, DatasetRecord, Layout
from codeward.data._verify import find_layout, read_verified, resolve_data_dir

_GUIDE = "Check the connection, or fetch the files elsewhere and put them into the data directory"


def fetch_dataset(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    base_url: str | None = None,
    registry: Mapping[str, DatasetRecord] = REGISTRY,
    progress: Progress | None = None,
) -> Path:
    """Download a named data set unless it is there, and return its folder.

    Guarantee: files appear in the data directory only after every checksum of the whole set matched; a failed,
    corrupted or interrupted download leaves nothing behind.

    Parameters
    ----------
    name : str
        A name of ``registry``.
    data_dir : path-like, optional
        As in `codeward.data.load_dataset`.
    base_url : str, optional
        A mirror that serves ``<base_url>/<name>/<file>``; default the publisher's own home.
    registry : mapping, optional
        Files and checksums per name.
    progress : Progress, optional
        Advanced by one per downloaded file.

    Raises
    ------
    InputError
        Unknown name, a server that does not deliver, or a download with the wrong checksum.
    """
    if name not in registry:
        raise InputError(f"cannot fetch {name!r}; expected one of {', '.join(registry)}")
    record, shown = registry[name], progress or silent()
    target = resolve_data_dir(data_dir) / name
    if find_layout(record, target.parent) is not None:
        return target
    target.mkdir(parents=True, exist_ok=True)
    layout = record.layouts[record.fetched]
    source = f"{base_url.rstrip('/')}/{name}" if base_url else record.home
    # Beside the target, so that moving into place is a rename.
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as scratch:
        arrived = []
        for remote, md5 in record.downloads:
            arrived.append(_download(f"{source}/{remote}", remote, md5, Path(scratch)))
            shown.advance(1, remote)
        if layout.format == "cifar-binary":
            _extract(arrived[0], layout, Path(scratch))
        for file in layout.files:
            read_verified(Path(scratch) / file.name, file, layout, registry)
        folder = target / layout.folder
        folder.mkdir(parents=True, exist_ok=True)
        for file in layout.files:
            os.replace(Path(scratch) / file.name, folder / file.name)
    return target


def _download(url: str, name: str, md5: str, folder: Path) -> Path:
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    try:
        return Path(pooch.retrieve(url, known_hash=f"md5:{md5}", fname=name, path=folder))
    except ValueError as error:
        raise InputError(f"{url}: the download was refused, its md5 is not {md5} ({error}); nothing was kept") from None
    except (requests.RequestException, OSError) as error:
        raise InputError(f"{url}: not delivered ({error}). {_GUIDE}") from None


def _extract(archive: Path, layout: Layout, folder: Path) -> None:
    """Copy the wanted members of a tar archive, by exact name; everything else in it is ignored."""
    try:
        with tarfile.open(archive) as tar:
            for file in layout.files:
                member = tar.extractfile(f"{layout.folder}/{file.name}")
                if member is None:
                    raise InputError(f"{archive.name}: {file.name} is not a regular file")
                (folder / file.name).write_bytes(member.read())
    except (tarfile.TarError, KeyError) as error:
        raise InputError(f"{archive.name}: not the expected archive ({error})") from None
