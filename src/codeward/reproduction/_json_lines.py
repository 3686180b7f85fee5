"""Gzipped JSON lines: many records in one small file."""

import gzip
import json
import os
import zlib
from collections.abc import Iterable
from typing import Any

from codeward._errors import InputError
from codeward._files import parse_json, write_atomic

#: Most bytes that a packed file may unfold to.
LIMIT = 1 << 28


def read_lines(file: str | os.PathLike[str]) -> list[Any]:
    """Read gzipped JSON lines; a file that is none, or unfolds to more than `LIMIT`, is refused in one line.

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/records.jsonl.gz"
    >>> write_lines(file, [{"right": 7, "of": 8}])
    >>> read_lines(file)
    [{'right': 7, 'of': 8}]
    """
    try:
        with gzip.open(file) as stream:
            data = stream.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise InputError(f"{file}: unfolds to more than {LIMIT:,} bytes")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file}: not readable ({error})") from error
    return [parse_json(line, f"{file}: line {number}") for number, line in enumerate(data.split(b"\n"), 1) if line]


def write_lines(file: str | os.PathLike[str], content: Iterable[Any]) -> None:
    """Write gzipped JSON lines, atomically; the same content gives the same bytes (see `read_lines`).

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/records.jsonl.gz"
    >>> write_lines(file, [1, "a"])
    >>> read_lines(file)
    [1, 'a']
    """
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in content)
    write_atomic(file, lambda out: out.write(gzip.compress(text.encode(), 9, mtime=0)))
