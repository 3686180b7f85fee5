"""A user's statistics as a message: packed by the user, checked by a server that trusts nobody."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from codeward._errors import InputError
from codeward.training.heads._feature_grid import GRID_BITS, MOST_SAMPLES, check_steps
from codeward.training.heads._user_statistics import UserStatistics, packed_size

#: How far below zero an eigenvalue may be, by sample: what rounding in the check itself needs, far below any ridge.
_SLACK = 1e-10


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
    >>> from codeward.training.heads import gather_statistics
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
    >>> from codeward.training.heads import gather_statistics
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
    >>> from codeward.training.heads import gather_statistics
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
