"""Who holds which training samples: IID, Dirichlet, real user ids, a hash of the sample; halves of the test set."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._charts import draw_shares
from codeward._errors import InputError

Split = list[NDArray[np.int64]]


def split_iid(labels: NDArray[np.int64], n_users: int, rng: np.random.Generator) -> Split:
    """Split all samples over users at random, sizes equal up to one.

    Returns
    -------
    list of ndarray of int64
        Sorted sample indices, one array a user.

    Examples
    --------
    >>> import numpy as np
    >>> [part.size for part in split_iid(np.arange(10) % 2, 3, np.random.default_rng(0))]
    [4, 3, 3]
    """
    _check(labels, n_users)
    order = rng.permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, n_users)]


def split_dirichlet(labels: NDArray[np.int64], n_users: int, alpha: float, rng: np.random.Generator) -> Split:
    r"""Give each user its own class shares, :math:`q \sim \mathrm{Dirichlet}(\alpha, \ldots, \alpha)`.

    The paper's non-IID data, after Hsu et al. (2019): every user gets :math:`\lfloor N / n \rfloor` samples, drawn from
    the classes by its shares, without replacement; an image goes to one user at most. When a class runs out, the user's
    shares are renormalised over the classes that are left (users come in random order, so that nobody is always last).
    Samples that do not divide evenly stay unused, as in that work.

    Examples
    --------
    >>> import numpy as np
    >>> parts = split_dirichlet(np.arange(100) % 5, 4, 0.5, np.random.default_rng(0))
    >>> [part.size for part in parts], np.unique(np.concatenate(parts)).size
    ([25, 25, 25, 25], 100)
    """
    _check(labels, n_users)
    if not alpha > 0 or not np.isfinite(alpha):
        raise InputError(f"alpha must be a positive number, got {alpha}")
    n_classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(n_classes)]
    left = np.array([len(pool) for pool in pools])
    shares = rng.dirichlet(np.full(n_classes, alpha), size=n_users)
    if not np.allclose(shares.sum(axis=1), 1):  # the draw overflowed
        raise InputError(f"alpha {alpha} is beyond what can be drawn; use split iid for very large values")
    size = len(labels) // n_users
    split: Split = [np.zeros(0, dtype=np.int64)] * n_users
    for user in rng.permutation(n_users):
        taken = np.zeros(n_classes, dtype=np.int64)
        while taken.sum() < size:
            open_shares = np.where(left > 0, shares[user], 0.0)
            if open_shares.sum() <= 0:  # all of this user's classes are gone: what is left, in proportion
                open_shares = left.astype(float)
            draw = rng.multinomial(size - taken.sum(), open_shares / open_shares.sum())
            draw = np.minimum(draw, left)
            taken += draw
            left -= draw
        parts = []
        for label in range(n_classes):
            parts.append(pools[label][: taken[label]])
            pools[label] = pools[label][taken[label] :]
        split[user] = np.sort(np.concatenate(parts))
    return split


def split_groups(groups: NDArray[Any]) -> Split:
    """Give each distinct group id its own samples, ids in sorted order.

    Examples
    --------
    >>> import numpy as np
    >>> [part.tolist() for part in split_groups(np.array(["ann", "bob", "ann"]))]
    [[0, 2], [1]]
    """
    if groups.ndim != 1 or groups.size == 0:
        raise InputError(f"groups: expected one id a sample, got shape {groups.shape}")
    _, inverse = np.unique(groups, return_inverse=True)
    return [np.flatnonzero(inverse == user) for user in range(int(inverse.max()) + 1)]


def hash_parts(
    inputs: NDArray[Any] | Sequence[str], n_parts: int, key: bytes | str, labels: NDArray[np.int64] | None = None
) -> Split:
    """Assign samples to parts by a keyed hash of their own content, so that a sample is a user's whole power.

    The part is the BLAKE2b digest of the input under ``key``, modulo ``n_parts``. Label, position and the other samples
    have no say in it, and the order inside a part is canonical (by digest, then label). So one inserted sample, one
    removed sample or one new label changes one part, and one changed input two; the other parts stay as they are, to
    the byte (Proposition 32 of docs/theory.md). Equal inputs land in the same part. The guarantee needs
    no secret; a secret key keeps an attacker from choosing which part a sample hits.

    Parameters
    ----------
    inputs : ndarray of shape (N, ...), or sequence of str
        Numbers, compared byte by byte, or texts.
    n_parts : int
        A part may come out empty.
    key : bytes or str
        At most 64 bytes.
    labels : ndarray of int, shape (N,), optional
        Orders equal inputs; without them these keep the order in which they came, and only their order is not
        canonical.

    Returns
    -------
    list of ndarray of int64
        Sample indices in canonical order, one array a part.

    Examples
    --------
    >>> letters = ["ann", "bob", "cid", "dan", "eve", "ann"]
    >>> parts = hash_parts(letters, 2, key="2026")
    >>> [sorted(letters[i] for i in part) for part in parts]
    [['ann', 'ann', 'dan'], ['bob', 'cid', 'eve']]
    """
    secret = key.encode() if isinstance(key, str) else key
    if len(secret) > hashlib.blake2b.MAX_KEY_SIZE:
        raise InputError(f"key: at most {hashlib.blake2b.MAX_KEY_SIZE} bytes, got {len(secret)}")
    if n_parts < 1:
        raise InputError(f"cannot assign samples to {n_parts} parts")
    if labels is not None and np.shape(labels) != (len(inputs),):
        raise InputError(f"labels: expected one a sample, {len(inputs)}, got shape {np.shape(labels)}")
    contents: list[bytes] | NDArray[Any]
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf":
        # One byte order everywhere, and what the bytes mean: the same pixels as other numbers are another input.
        start = f"{inputs.dtype.newbyteorder('<').str} {inputs.shape[1:]}\n".encode()
        contents = np.ascontiguousarray(inputs, dtype=inputs.dtype.newbyteorder("<"))
    elif all(isinstance(text, str) for text in inputs):
        start, contents = b"text\n", [str(text).encode() for text in inputs]
    else:
        raise InputError("inputs: expected an array of numbers, one row a sample, or texts")
    empty = hashlib.blake2b(start, key=secret, digest_size=32)
    digests = []
    for content in contents:
        state = empty.copy()
        state.update(content)
        digests.append(state.digest())
    second = np.zeros(len(digests), dtype=np.int64) if labels is None else labels
    split: list[list[int]] = [[] for _ in range(n_parts)]
    for sample in sorted(range(len(digests)), key=lambda sample: (digests[sample], int(second[sample]))):
        split[int.from_bytes(digests[sample][:8], "little") % n_parts].append(sample)
    return [np.array(part, dtype=np.int64) for part in split]


def halve_test(labels: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Halve the test set: the first half for confusion matrices and fitting, the second for figures.

    5,000 and 5,000 on MNIST and CIFAR-10, as in the paper.

    Examples
    --------
    >>> import numpy as np
    >>> first, second = halve_test(np.zeros(5, np.int64), np.random.default_rng(0))
    >>> first.size, second.size
    (2, 3)
    """
    if len(labels) < 2:
        raise InputError(f"a test set of {len(labels)} cannot be halved")
    order = rng.permutation(len(labels))
    half = len(labels) // 2
    return np.sort(order[:half]), np.sort(order[half:])


def _check(labels: NDArray[np.int64], n_users: int) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (labels.size and labels.min() < 0):
        raise InputError(f"labels: expected classes numbered from 0, one a sample; got {labels.dtype} {labels.shape}")
    if n_users < 1 or len(labels) < n_users:
        raise InputError(f"cannot split {len(labels)} samples over {n_users} users so that everybody gets one")


def plot_class_shares(
    labels: NDArray[np.int64], split: Sequence[NDArray[np.int64]], path: str | os.PathLike[str], n_classes: int = 0
) -> None:
    """Draw the class shares of every user, like the paper's Figure 4: a row a user, a colour a class.

    Parameters
    ----------
    labels : ndarray of int64, shape (N,)
    split : sequence of ndarray
        Sample indices of each user.
    path : path-like
        An ``.svg`` file.
    n_classes : int
        Classes to show; those in ``labels`` when 0.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_class_shares(np.array([0, 1, 1]), [np.array([0, 1]), np.array([2])], f"{folder}/shares.svg")
    ...     (Path(folder) / "shares.svg").exists()
    True
    """
    classes = n_classes or int(labels.max()) + 1
    counts = np.array(count_classes((labels[part] for part in split), classes), dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    draw_shares(shares, "user", "class").save(path)


def count_classes(labels: Iterable[NDArray[np.int64]], n_classes: int) -> list[list[int]]:
    """Count the samples of every class that each user hands in, from their labels, shape (n, c).

    Examples
    --------
    >>> count_classes([np.array([0, 1, 1]), np.array([2])], n_classes=3)
    [[1, 2, 0], [0, 0, 1]]
    """
    return [np.bincount(own, minlength=n_classes).tolist() for own in labels]
