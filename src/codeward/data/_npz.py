"""A user's own data set: an .npz of images and labels, every array checked before use."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError, TooLargeError
from codeward.data._samples import Samples

_REQUIRED = ("images", "labels")
_OPTIONAL = ("test_images", "test_labels", "groups", "n_classes")
_CHANNELS = (1, 3, 4)
#: More classes than this is a stray label, not a classifier.
MAX_CLASSES = 100_000
#: Uncompressed bytes above which a file is refused: a small .npz can unpack to anything.
MAX_BYTES = 64 * 2**30


@dataclass(frozen=True)
class NpzContent:
    """What a checked .npz holds; ``test`` and ``groups`` are None where the file has none."""

    train: Samples
    test: Samples | None
    groups: NDArray[np.generic] | None
    n_classes: int


def read_npz(path: Path) -> NpzContent:
    """Read and check an .npz with ``images, labels`` and optionally ``test_images, test_labels, groups, n_classes``.

    Images are uint8, or floats in 0..1 (rounded to 1/255); shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C of 1,
    3 or 4. Labels are integers from 0. ``groups`` holds a user id (integer or text) per training image.

    ``n_classes`` is worth giving: without it the largest label of *all* users sets the width of every model's output,
    which is the one way left for a user to touch models that never see its data.
    """
    arrays = _load_arrays(path)
    train = _make_samples(path, "", arrays)
    test = _make_samples(path, "test_", arrays) if "test_images" in arrays or "test_labels" in arrays else None
    if test is not None and test.images.shape[1:] != train.images.shape[1:]:
        raise InputError(f"{path}: test_images are {test.images.shape[1:]}, images are {train.images.shape[1:]}")
    groups = arrays.get("groups")
    if groups is not None and (groups.shape != (len(train),) or groups.dtype.kind not in "iuUS"):
        raise InputError(f"{path}: groups must be {len(train)} integers or strings, one user id per image")
    largest = max(int(part.labels.max()) for part in (train, test) if part is not None)
    n_classes = largest + 1
    if "n_classes" in arrays:
        given = arrays["n_classes"]
        if given.size != 1 or given.dtype.kind not in "iu" or not largest < int(given.reshape(())) <= MAX_CLASSES:
            raise InputError(f"{path}: n_classes must be one integer above the largest label, {largest}")
        n_classes = int(given.reshape(()))
    if not 2 <= n_classes <= MAX_CLASSES:
        raise InputError(f"{path}: labels run up to {largest}; expected 2 to {MAX_CLASSES} classes, numbered from 0")
    return NpzContent(train, test, groups, n_classes)


def _load_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_BYTES:
            raise TooLargeError(f"{path}: unpacks to {size} bytes, more than {MAX_BYTES}")
        with np.load(path, allow_pickle=False) as file:
            unknown = sorted(set(file.files) - {*_REQUIRED, *_OPTIONAL})
            absent = [name for name in _REQUIRED if name not in file.files]
            if unknown or absent:
                raise InputError(
                    f"{path}: "
                    + (f"no {' and no '.join(absent)}; " if absent else "")
                    + (f"unknown array(s) {', '.join(unknown)}; " if unknown else "")
                    + f"expected {', '.join(_REQUIRED)} and optionally {', '.join(_OPTIONAL)}"
                )
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except InputError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a readable .npz of plain arrays ({error})") from None


def _make_samples(path: Path, prefix: str, arrays: dict[str, NDArray[np.generic]]) -> Samples:
    name = f"{path}: {prefix}"
    if prefix + "images" not in arrays or prefix + "labels" not in arrays:
        raise InputError(f"{name}images and {prefix}labels must come together")
    images, labels = arrays[prefix + "images"], arrays[prefix + "labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0:
        raise InputError(f"{name}labels must be a non-empty list of integers, got {labels.dtype} {labels.shape}")
    if int(labels.min()) < 0 or int(labels.max()) >= MAX_CLASSES:
        raise InputError(f"{name}labels run from {labels.min()} to {labels.max()}; expected 0 to {MAX_CLASSES - 1}")
    pixels = _to_uint8(_to_nchw(images, name), name)
    if len(pixels) != len(labels):
        raise InputError(f"{name}images holds {len(pixels)} images, {prefix}labels {len(labels)}")
    return Samples(pixels, labels.astype(np.int64))


def _to_nchw(images: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4:
        first, last = images.shape[1] in _CHANNELS, images.shape[3] in _CHANNELS
        if first == last:
            what = "ambiguous" if first else "neither (N, H, W, C) nor (N, C, H, W) with C of 1, 3 or 4"
            raise InputError(f"{name}images: shape {images.shape} is {what}")
        images = images if first else images.transpose(0, 3, 1, 2)
    else:
        raise InputError(f"{name}images: shape {images.shape}; expected (N, H, W), (N, H, W, C) or (N, C, H, W)")
    if 0 in images.shape:
        raise InputError(f"{name}images: empty, shape {images.shape}")
    return images


def _to_uint8(images: NDArray[np.generic], name: str) -> NDArray[np.uint8]:
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images, dtype=np.uint8)
    if images.dtype.kind != "f":
        raise InputError(f"{name}images: {images.dtype}; expected uint8, or floats in 0..1")
    values = images.astype(np.float64)
    # Written so that NaN fails too.
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise InputError(f"{name}images: float values must be finite and in 0..1; divide by the largest value first")
    return np.ascontiguousarray(np.rint(values * 255).astype(np.uint8))
