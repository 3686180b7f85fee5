"""Data sets by name or file, checked and ready to be split among users."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data._formats import parse_cifar_binary, parse_cifar_python, parse_idx
from codeward.data._npz import read_npz
from codeward.data._registry import REGISTRY, DatasetRecord
from codeward.data._samples import Samples
from codeward.data._verify import describe_missing, find_layout, read_verified, resolve_data_dir

#: Share of a set without a test part of its own that is held out.
TEST_SHARE = 0.2


@dataclass(frozen=True)
class DatasetPair:
    """A data set: what users will hold, and what the server keeps to measure with.

    Attributes
    ----------
    name : str
    train, test : Samples
    n_classes : int
    mean, std : tuple of float
        Normalisation per channel on the 0..1 scale. **Fixed public constants of the data set, never computed from
        what users hand in**: a mean over all users would let a single user touch every sub-model, and with it the
        isolation on which every guarantee rests (DESIGN.md, "Sub-models are content-addressed").
    groups : ndarray or None
        User id of each training sample where the data set knows its users (see `codeward.data.split_groups`).
    """

    name: str
    train: Samples
    test: Samples
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    groups: NDArray[np.generic] | None = None


def load_dataset(
    name_or_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    registry: Mapping[str, DatasetRecord] = REGISTRY,
) -> DatasetPair:
    """Load a data set, refusing every file that is not what it should be.

    Parameters
    ----------
    name_or_path : str or path-like
        ``digits`` (ships with scikit-learn; 8 x 8, 1,438 training and 359 test images), ``mnist``, ``fashion-mnist``,
        ``cifar10``, or a path ending in ``.npz`` (see the user guide of `codeward.data` for its arrays).
    data_dir : path-like, optional
        Where named sets lie; default the environment's ``CODEWARD_DATA``, else the user's cache.
    registry : mapping, optional
        Files and checksums per name.

    Returns
    -------
    DatasetPair
        The same bytes on every machine. A set without a test part (``digits``, an .npz without ``test_images``) has a
        fifth held out by hash of the index, per user where users are known, so that how much one user hands in never
        changes what is held out of another's. Such a test part still comes from the users: for a guarantee against
        attackers give test images that the server collected itself.

    Raises
    ------
    InputError
        Unknown name, missing files (the message says which files go where), or a file that is truncated, swapped,
        damaged or malformed. Nothing is ever unpickled.
    """
    name = os.fspath(name_or_path)
    if name.endswith(".npz"):
        return _load_npz(Path(name).expanduser())
    if name == "digits":
        return _load_digits()
    if name not in registry:
        known = ", ".join(["digits", *registry])
        raise InputError(f"unknown data set {name!r}; expected one of {known}, or the path of an .npz file")
    return _load_named(registry[name], resolve_data_dir(data_dir), registry)


def _load_named(record: DatasetRecord, data_dir: Path, registry: Mapping[str, DatasetRecord]) -> DatasetPair:
    found = find_layout(record, data_dir)
    if found is None:
        raise InputError(describe_missing(record, data_dir))
    layout, folder = found
    parts: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]
    contents = (
        (folder / file.name, file, read_verified(folder / file.name, file, layout, registry)) for file in layout.files
    )
    if layout.format == "idx":
        arrays = [parse_idx(content, file, path) for path, file, content in contents]
        parts = [(arrays[0][:, None], arrays[1]), (arrays[2][:, None], arrays[3])]
    else:
        parse = parse_cifar_binary if layout.format == "cifar-binary" else parse_cifar_python
        parts = [parse(content, file, path) for path, file, content in contents]
    for images, labels in parts:
        if len(images) != len(labels) or images.shape[1:] != record.image_shape or labels.max() >= record.n_classes:
            raise InputError(f"{folder}: the files of {record.name} do not belong together, or labels are out of range")
    train, test = parts[:-1], parts[-1]
    return DatasetPair(
        record.name,
        Samples(
            np.concatenate([images for images, _ in train]),
            np.concatenate([labels for _, labels in train]).astype(np.int64),
        ),
        Samples(test[0], test[1].astype(np.int64)),
        record.n_classes,
        record.mean,
        record.std,
    )


def _load_digits() -> DatasetPair:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Pixels count 0..16 dark cells; the public constants below are of that same published set.
    images = np.rint(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    samples = Samples(images, bunch.target.astype(np.int64))
    held_out = _hold_out(len(samples), "digits")
    train, test = samples.take(np.flatnonzero(~held_out)), samples.take(np.flatnonzero(held_out))
    return DatasetPair("digits", train, test, 10, (0.3053,), (0.3761,))


def _load_npz(path: Path) -> DatasetPair:
    content = read_npz(path)
    channels = content.train.images.shape[1]
    train, test, groups = content.train, content.test, content.groups
    if test is None:
        if groups is None:
            held_out = _hold_out(len(train), "npz")
        else:
            held_out = np.zeros(len(train), dtype=bool)
            for user in np.unique(groups):
                own = np.flatnonzero(groups == user)
                held_out[own[_hold_out(len(own), "npz")]] = True
        if held_out.all() or not held_out.any():
            raise InputError(f"{path}: too few images to hold out a test part; add test_images and test_labels")
        test, train = train.take(np.flatnonzero(held_out)), train.take(np.flatnonzero(~held_out))
        groups = groups if groups is None else groups[~held_out]
    half = (0.5,) * channels
    return DatasetPair(path.name, train, test, content.n_classes, half, half, groups)


def _hold_out(n_samples: int, salt: str) -> NDArray[np.bool_]:
    """Mark a fifth of ``n_samples``, the same ones on every machine and under every NumPy version.

    Samples are ranked by the hash of their index: NumPy does not promise the same random stream for ever.
    """
    ranks = sorted(range(n_samples), key=lambda i: hashlib.sha256(f"{salt} {i}".encode()).digest())
    mask = np.zeros(n_samples, dtype=bool)
    mask[ranks[: round(TEST_SHARE * n_samples)]] = True
    return mask
