"""What users hand in for heads: rows or Gram matrices, class sums; and the message a server checks, trusting nobody."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from codeward._errors import InputError
from codeward.training.heads._feature_grid import (
    GRID_BITS,
    MOST_SAMPLES,
    GridFeatures,
    check_count,
    check_steps,
    round_to_grid,
)

#: Integer Gram sums times this are the Gram matrix itself; a power of two, so nothing is lost.
GRAM_UNIT = 2.0 ** (-2 * GRID_BITS)
SUM_UNIT = 2.0**-GRID_BITS
#: How far below zero an eigenvalue may be, by sample: what rounding in the check itself needs, far below any ridge.
_SLACK = 1e-10


def packed_size(width: int) -> int:
    """Return the number of entries on and above the diagonal."""
    return width * (width + 1) // 2


def pack_gram(steps: NDArray[np.int16], weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return the upper triangle of Z^T diag(weights) Z in units of 2^-24, column after column; exact (Proposition 30).

    Examples
    --------
    >>> pack_gram(np.array([[1, 2], [0, 3]], np.int16))
    array([ 1.,  2., 13.])
    """
    dense = steps.astype(np.float64)
    if weights is None:
        full = blas.dsyrk(1.0, dense.T, lower=0)
    else:
        full = np.asfortranarray((dense * weights[:, None]).T @ dense)
    packed, _ = lapack.dtrttp(full, uplo="U")
    return np.asarray(packed)


@dataclass(frozen=True)
class UserStatistics:
    """All that heads learn of a user.

    Either ``steps`` and ``labels`` (small users: fewer numbers than a Gram matrix) or ``gram``; in both cases what a
    row of the code needs is a sum, and taking the user out again is a subtraction, without rounding (Proposition 30).

    Attributes
    ----------
    sums : ndarray of float64, shape (d, c)
        Sum of the features of each class, in units of 2^-12.
    counts : ndarray of int64, shape (c,)
        Samples of each class.
    steps : ndarray of int16, shape (N, d), or None
    labels : ndarray of int64, shape (N,), or None
    gram : ndarray of float64, shape (d (d + 1) / 2,), or None
        Upper triangle of the Gram matrix in units of 2^-24, column after column.
    class_weight : tuple of int or None
        How often a sample of each class counts, stated before anybody hands in anything; whole, so sums stay exact.

    Examples
    --------
    >>> user = UserStatistics.of(round_to_grid([[0.5, 0.0], [0.0, 1.0]]), [0, 1], n_classes=2)
    >>> user.n_samples, user.gram is None
    (2, True)
    >>> user.to_gram().gram * 2.0**-24
    array([0.25, 0.  , 1.  ])
    """

    sums: NDArray[np.float64]
    counts: NDArray[np.int64]
    steps: NDArray[np.int16] | None = None
    labels: NDArray[np.int64] | None = None
    gram: NDArray[np.float64] | None = None
    class_weight: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, features: GridFeatures, labels: Any, n_classes: int, class_weight: tuple[int, ...] | None = None
    ) -> "UserStatistics":
        """Gather the statistics of one user's samples; rows are kept while they are fewer than twice the width."""
        given = np.asarray(labels, np.int64)
        hot = np.zeros((len(given), n_classes))
        hot[np.arange(len(given)), given] = 1.0 if class_weight is None else np.asarray(class_weight, np.float64)[given]
        sums = features.steps.astype(np.float64).T @ hot
        counts = np.bincount(given, minlength=n_classes)
        user = cls(sums, counts, features.steps, given, None, class_weight)
        return user if len(given) < 2 * features.width else user.to_gram()

    @property
    def width(self) -> int:
        """Number of features d."""
        return len(self.sums)

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return int(self.counts.sum())

    @cached_property
    def digest(self) -> str:
        """Hash of everything heads learn of this user."""
        hasher = hashlib.sha256(f"statistics 1 {self.sums.shape}".encode())
        hasher.update(repr(self.class_weight).encode())
        for part in (self.sums, self.counts, self.steps, self.labels, self.gram):
            hasher.update(b"-" if part is None else str(part.dtype).encode() + np.ascontiguousarray(part).tobytes())
        return hasher.hexdigest()

    def to_gram(self) -> "UserStatistics":
        """Return the same statistics without feature rows: what a user sends who does not want to show them."""
        if self.steps is None:
            return self
        return UserStatistics(self.sums, self.counts, None, None, self.pack(), self.class_weight)

    def weigh(self) -> NDArray[np.float64]:
        """Return how often each sample counts."""
        assert self.labels is not None
        weights = np.ones(len(self.counts)) if self.class_weight is None else np.asarray(self.class_weight, np.float64)
        return np.asarray(weights[self.labels])

    def pack(self) -> NDArray[np.float64]:
        """Return the upper triangle of the Gram matrix, in units of 2^-24."""
        if self.gram is not None:
            return self.gram
        assert self.steps is not None
        return pack_gram(self.steps, None if self.class_weight is None else self.weigh())


@dataclass(frozen=True)
class StatisticsSet:
    """The statistics of all users, in the order of the code's columns.

    Attributes
    ----------
    users : tuple of UserStatistics
    n_clipped : int
        Samples whose features had a norm above one.

    Examples
    --------
    >>> features = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
    >>> statistics = gather_statistics(features, [0, 1, 1], [0, 1, 1], n_classes=2)
    >>> statistics.n_users, statistics.width, [user.n_samples for user in statistics.users]
    (2, 2, [1, 2])
    """

    users: tuple[UserStatistics, ...]
    n_clipped: int = 0

    def __post_init__(self) -> None:
        if len({(user.width, len(user.counts), user.class_weight) for user in self.users}) != 1:
            raise InputError("statistics: users must agree on the width of features, the classes and their weights")
        check_count(max(self.users[0].class_weight or (1,)) * sum(user.n_samples for user in self.users), "statistics")

    @property
    def n_users(self) -> int:
        """Number of users n."""
        return len(self.users)

    @property
    def width(self) -> int:
        """Number of features d."""
        return self.users[0].width

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return len(self.users[0].counts)


def gather_statistics(
    features: Any,
    labels: Any,
    users: Any,
    n_classes: int,
    n_users: int | None = None,
    class_weight: Sequence[int] | None = None,
) -> StatisticsSet:
    """Return the statistics of each user.

    Parameters
    ----------
    features : array-like of float, shape (N, d), or GridFeatures
        Rounded to the grid; rows of norm above one are scaled down and counted.
    labels, users : array-like of int, shape (N,)
    n_classes : int
    n_users : int, optional
        Users 0..n-1; by default the largest number in ``users`` plus one.
    class_weight : sequence of int, optional
        How often a sample of each class counts: whole numbers from 1.

    Raises
    ------
    InputError
        For NaN, labels that are no class, a user without samples.

    Examples
    --------
    >>> gather_statistics([[1.0, 0.0]], [0], [1], n_classes=2)
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: users: user 0 has no samples; leave it out of the code
    """
    grid = round_to_grid(features)
    classes, owners = _check_ids(labels, len(grid), "labels"), _check_ids(users, len(grid), "users")
    if len(grid) == 0:
        raise InputError("features: no samples")
    if classes.max() >= n_classes:
        raise InputError(f"labels: label {int(classes.max())}, not 0..{n_classes - 1}")
    n = int(owners.max()) + 1 if n_users is None else n_users
    if owners.max() >= n:
        raise InputError(f"users: user {int(owners.max())}, not 0..{n - 1}")
    sizes = np.bincount(owners, minlength=n)
    if not sizes.all():
        raise InputError(f"users: user {int(sizes.argmin())} has no samples; leave it out of the code")
    weights = None if class_weight is None else tuple(class_weight)
    if weights is not None and (len(weights) != n_classes or any(not isinstance(w, int) or w < 1 for w in weights)):
        raise InputError(f"class_weight: expected {n_classes} whole numbers from 1, got {list(weights)[:20]}")
    order = np.argsort(owners, kind="stable")
    parts: Sequence[NDArray[np.int64]] = np.split(order, np.cumsum(sizes)[:-1])
    return StatisticsSet(
        tuple(UserStatistics.of(grid.take(part), classes[part], n_classes, weights) for part in parts), grid.n_clipped
    )


def _check_ids(values: Any, size: int, what: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.shape != (size,) or array.dtype.kind not in "iu":
        raise InputError(f"{what}: expected {size} whole numbers, one a sample, got {array.dtype} {array.shape}")
    if size and array.min() < 0:
        raise InputError(f"{what}: negative number")
    return array.astype(np.int64)


def pack_statistics(user: UserStatistics, rows: bool = False) -> dict[str, NDArray[Any]]:
    """Return a user's statistics as arrays to send: once, for all its models.

    Parameters
    ----------
    user : UserStatistics
    rows : bool
        Send feature rows and labels where the user has them (fewer bytes for small users) instead of the Gram matrix,
        class sums and counts. Either way the receiver learns a good deal about few samples; see docs/heads.md.

    Examples
    --------
    >>> user = gather_statistics([[1.0, 0.0], [0.6, 0.8]], [0, 1], [0, 0], n_classes=2).users[0]
    >>> {name: array.shape for name, array in pack_statistics(user).items()}
    {'gram': (3,), 'sums': (2, 2), 'counts': (2,)}
    """
    if rows and user.steps is not None and user.labels is not None:
        return {"steps": user.steps, "labels": user.labels}
    return {"gram": user.pack(), "sums": user.sums, "counts": user.counts}


def unpack_statistics(
    message: Mapping[str, Any],
    width: int,
    n_classes: int,
    most_samples: int = MOST_SAMPLES,
    class_weight: tuple[int, ...] | None = None,
    sender: str = "statistics",
) -> UserStatistics:
    """Return the statistics of a message from a user who may be an attacker; anything unsound is refused.

    Parameters
    ----------
    message : mapping of str to ndarray
        From `pack_statistics`.
    width, n_classes : int
        What was agreed.
    most_samples : int
        More than this the user cannot claim: trace and sums are bounded by the count.
    class_weight : tuple of int, optional
        As stated to all users.
    sender : str
        Begins every complaint.

    Raises
    ------
    InputError
        One line that says what is wrong.

    Examples
    --------
    >>> user = gather_statistics([[1.0, 0.0], [0.0, 1.0]], [0, 1], [0, 0], n_classes=2).users[0]
    >>> message = pack_statistics(user)
    >>> unpack_statistics(message, 2, 2).n_samples
    2
    >>> message["gram"] = 2 * message["gram"]
    >>> unpack_statistics(message, 2, 2, sender="user 3")
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: user 3: trace 4 is above the 2 that 2 samples of norm one can have
    """
    names = set(message)
    if names == {"steps", "labels"}:
        steps = _check_array(message["steps"], np.dtype(np.int16), (None, width), f"{sender}: steps")
        labels = _check_array(message["labels"], np.dtype(np.int64), (len(steps),), f"{sender}: labels")
        _check_total(len(steps), most_samples, sender)
        if labels.min() < 0 or labels.max() >= n_classes:
            raise InputError(f"{sender}: a label is not 0..{n_classes - 1}")
        hot = np.zeros((len(labels), n_classes))
        hot[np.arange(len(labels)), labels] = 1 if class_weight is None else np.asarray(class_weight)[labels]
        sums = check_steps(steps, sender).astype(np.float64).T @ hot
        counts = np.bincount(labels, minlength=n_classes)
        return UserStatistics(sums, counts, steps.copy(), labels.copy(), None, class_weight)
    if names != {"gram", "sums", "counts"}:
        raise InputError(f"{sender}: expected gram, sums and counts, or steps and labels, got {sorted(names)[:5]}")
    gram = _check_array(message["gram"], np.dtype(np.float64), (packed_size(width),), f"{sender}: gram")
    sums = _check_array(message["sums"], np.dtype(np.float64), (width, n_classes), f"{sender}: sums")
    counts = _check_array(message["counts"], np.dtype(np.int64), (n_classes,), f"{sender}: counts")
    user = UserStatistics(sums.copy(), counts.copy(), None, None, gram.copy(), class_weight)
    check_statistics(user, most_samples, sender)
    return user


def check_statistics(user: UserStatistics, most_samples: int = MOST_SAMPLES, sender: str = "statistics") -> None:
    """Refuse statistics that no samples could have: not whole steps of the grid, too long, not positive semidefinite.

    What passes is worth at most as many samples of norm one as it claims (Proposition 31 of docs/theory.md): the joint
    matrix [[G, B], [B^T, diag(weighted counts)]] is positive semidefinite and its trace is within the count.

    Examples
    --------
    >>> check_statistics(gather_statistics([[0.6, 0.8]], [0], [0], n_classes=2).users[0])
    """
    gram, sums, counts = user.pack(), user.sums, user.counts
    for name, array in (("gram", gram), ("sums", sums)):
        if not np.isfinite(array).all():
            raise InputError(f"{sender}: {name} holds NaN or infinity")
        if (array != np.rint(array)).any() or (np.abs(array) > 2.0**53).any():
            raise InputError(f"{sender}: {name} is not on the grid of 2^-{GRID_BITS}")
    if (counts < 0).any() or (counts > most_samples).any():
        raise InputError(f"{sender}: a count is below 0 or above {most_samples:,}")
    _check_total(int(counts.sum()), most_samples, sender)
    weighted = counts * (np.ones(len(counts)) if user.class_weight is None else np.asarray(user.class_weight))
    unit, total = 2.0 ** (2 * GRID_BITS), float(weighted.sum())
    width = user.width
    trace = float(gram[np.cumsum(np.arange(1, width + 1)) - 1].sum()) / unit
    if trace > total:
        raise InputError(
            f"{sender}: trace {trace:g} is above the {total:g} that {int(counts.sum())} samples of norm one can have"
        )
    joint = np.zeros((width + len(counts),) * 2, order="F")
    joint[:width, :width] = lapack.dtpttr(width, gram, uplo="U")[0] / unit
    joint[:width, width:] = sums / 2.0**GRID_BITS
    joint[np.arange(width, len(joint)), np.arange(width, len(joint))] = weighted
    joint[np.diag_indices_from(joint)] += _SLACK * (1 + total)
    if lapack.dpotrf(joint, lower=0, clean=0, overwrite_a=1)[1] != 0:
        raise InputError(f"{sender}: Gram matrix and class sums are not positive semidefinite; no samples have them")


def _check_total(n_samples: int, most_samples: int, sender: str) -> None:
    if not 1 <= n_samples <= most_samples:
        raise InputError(f"{sender}: {n_samples:,} samples; expected 1 to {most_samples:,}")


def _check_array(given: Any, dtype: np.dtype[Any], shape: tuple[int | None, ...], what: str) -> NDArray[Any]:
    if not isinstance(given, np.ndarray) or given.dtype != dtype or given.ndim != len(shape):
        raise InputError(f"{what}: expected {dtype} with {len(shape)} axes")
    if any(size is not None and size != seen for size, seen in zip(shape, given.shape, strict=True)):
        raise InputError(f"{what}: shape {given.shape}, expected {tuple('any' if s is None else s for s in shape)}")
    return given
