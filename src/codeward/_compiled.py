"""The one decorator of compiled kernels. Its cache never outlives the sources it was made from.

numba keeps machine code until the file of *that* function changes and does not see a change in a function or constant
that it calls in another file. Here the folder of the cache is named by a digest of every kernel source in the package
and of the versions of Python, numba and llvmlite, so that a change anywhere compiles everything anew.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

#: Caches of other versions of Python and numba may be in use beside this one: only those of other sources go.
_PREFIX = f"kernels-{sys.implementation.cache_tag}-{numba.__version__}-{llvmlite.__version__}-"
_COMPILES = re.compile(rb"^\s*(?:from|import) (?:numba|llvmlite|codeward\._compiled)\b", re.MULTILINE)
_IMPORTS = re.compile(rb"^\s*from codeward\.([\w.]+) import\b", re.MULTILINE)


def compiled(function: Any = None, /, *, error_model: Literal["python", "numpy"] = "python") -> Any:
    """Compile a kernel with numba on first call, without Python's lock, and keep the machine code on disk.

    The cache lies where numba would put it (NUMBA_CACHE_DIR, the package's ``__pycache__``, or the user's cache folder
    where that cannot be written), in a folder named by `digest_kernels`. Folders of older sources are removed; a
    process that still runs those compiles again. Where nothing can be written there is no cache.

    Parameters
    ----------
    error_model : {"python", "numpy"}
        As in numba: whether a division by zero raises.

    Examples
    --------
    >>> @compiled
    ... def add(a, b):
    ...     return a + b
    >>> add(1, 2)
    3
    """
    if function is None:
        return lambda inner: _compile(inner, error_model)
    return _compile(function, error_model)


def _compile(function: Any, error_model: Literal["python", "numpy"]) -> Any:
    kernel = numba.njit(nogil=True, error_model=error_model)(function)
    # Plain Python under NUMBA_DISABLE_JIT; and the digest stands only for sources as they were when it was made.
    if hasattr(kernel, "_cache") and _is_covered(Path(function.__code__.co_filename)):
        # Where there is no folder that can be written, every process compiles for itself.
        with suppress(RuntimeError, OSError):
            kernel._cache = _KernelCache(function)  # type: ignore[no-untyped-call]
    return kernel


@cache
def digest_kernels() -> str:
    """Digest of every source that kernels are made from and of the versions of Python, numba and llvmlite."""
    digest = hashlib.sha256(_PREFIX.encode())
    for path, source in _kernel_sources().items():
        digest.update(f"\n{path.relative_to(Path(__file__).resolve().parent)} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


@cache
def _kernel_sources() -> dict[Path, bytes]:
    """Read the files that compile something, or tell numba how, and the modules whose names these import."""
    package = Path(__file__).resolve().parent
    files = {path: path.read_bytes() for path in sorted(package.rglob("*.py"))}
    kernels = {path for path, source in files.items() if _COMPILES.search(source)}
    for path in tuple(kernels):
        modules = [name.decode().split(".") for name in _IMPORTS.findall(files[path])]
        kernels.update(package.joinpath(*parts).with_suffix(".py") for parts in modules)
    return {path: files[path] for path in sorted(kernels & files.keys())}


@cache
def _is_covered(path: Path) -> bool:
    """Whether the file is in the digest, and has not changed since the digest was made."""
    source = _kernel_sources().get(path.resolve())
    return source is not None and source == path.read_bytes()


@cache
def _prepare(place: Path) -> Path:
    """Return this version's folder below a place of numba's choice, after removing those of older sources there."""
    folder = place / f"{_PREFIX}{digest_kernels()}"
    for other in place.glob(f"{_PREFIX}*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


class _DigestLocator(_CacheLocator):
    """A folder named by the digest, below the one that numba's own locator found."""

    def __init__(self, found: Any) -> None:
        self._found, self._py_file = found, found._py_file
        self._folder = _prepare(Path(found.get_cache_path()))
        self.ensure_cache_path()  # type: ignore[no-untyped-call]

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> Any:
        return digest_kernels()

    def get_disambiguator(self) -> Any:
        return self._found.get_disambiguator()


class _DigestImpl(CompileResultCacheImpl):
    def __init__(self, function: Any) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._locator = _DigestLocator(self._locator)


class _KernelCache(FunctionCache):
    """numba's cache of one function, for which a file that cannot be read or written is only a cache that misses."""

    _impl_class = _DigestImpl

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        # Newer sources may have removed the folder, the disk may be full, a file may be torn.
        with suppress(OSError, EOFError, UnpicklingError):
            yield


@compiled
def bit_count(value: int) -> int:
    """Count the ones of a word of 64 bits (the classic parallel sum).

    Examples
    --------
    >>> int(bit_count(np.uint64(6)))
    2
    """
    v = np.uint64(value)
    v -= (v >> np.uint64(1)) & np.uint64(0x5555555555555555)
    v = (v & np.uint64(0x3333333333333333)) + ((v >> np.uint64(2)) & np.uint64(0x3333333333333333))
    v = (v + (v >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((v * np.uint64(0x0101010101010101)) >> np.uint64(56))
