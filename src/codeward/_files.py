"""Atomic file writing: a reader sees the old file or the whole new one, never a part."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


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
