"""Who holds which sample: IID, Dirichlet over classes, or real user ids; and the two halves of the test set."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError


def split_iid(labels: ArrayLike, n_users: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Deal the samples at random into equal parts.

    Parameters
    ----------
    labels : array-like of int, shape (N,)
    n_users : int
    rng : numpy.random.Generator

    Returns
    -------
    list of ndarray of int64
        ``n_users`` disjoint index arrays of exactly ``N // n_users`` samples each, in random order; the fewer than
        ``n_users`` samples left over go to nobody, so that no user weighs more than another.
    """
    known = _check(labels, n_users)
    size = len(known) // n_users
    order = rng.permutation(len(known)).astype(np.int64)
    return [order[user * size : (user + 1) * size] for user in range(n_users)]


def split_dirichlet(labels: ArrayLike, n_users: int, alpha: float, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Split so that each user's class shares follow a symmetric Dirichlet(alpha) (section 5.1; Hsu et al. 2019).

    Users are served in turn. User j draws class shares ``q_j ~ Dirichlet(alpha, ..., alpha)`` over the classes that
    occur, then ``N // n_users`` samples, each of a class drawn from ``q_j``, without replacement. When a class runs
    out, ``q_j`` is renormalised over the classes that remain (over what is left of them, should ``q_j`` have no mass
    there): late users therefore stray from their draw, the more the smaller ``alpha``.

    Here ``alpha`` is the parameter of *each class*. Hsu et al. write Dirichlet(alpha * p) with class prior p, so their
    alpha is the number of classes times this one.

    Parameters
    ----------
    labels : array-like of int, shape (N,)
    n_users : int
    alpha : float
        Concentration, above 0; the paper uses 10 (nearly IID), 1 and 0.1 (users hold a class or two).
    rng : numpy.random.Generator

    Returns
    -------
    list of ndarray of int64
        As `split_iid`: disjoint, equal sizes, every sample used at most once.
    """
    known = _check(labels, n_users)
    if not (np.isfinite(alpha) and alpha > 0):
        raise InputError(f"alpha: {alpha}; expected a number above 0")
    size = len(known) // n_users
    classes, class_of = np.unique(known, return_inverse=True)
    stock = [rng.permutation(np.flatnonzero(class_of == c)).astype(np.int64) for c in range(len(classes))]
    left = np.array([len(pile) for pile in stock])
    split = []
    for _ in range(n_users):
        # 1. q_j ~ Dirichlet(alpha)
        shares = rng.dirichlet(np.full(len(classes), float(alpha)))
        # 2. counts = number of draws of each class, draws of an exhausted class being repeated
        counts = _draw_counts(shares, left, size, rng)
        # 3. that many from each pile
        parts = [stock[c][left[c] - counts[c] : left[c]] for c in range(len(classes))]
        left = left - counts
        split.append(rng.permutation(np.concatenate(parts)))
    return split


def _draw_counts(
    shares: NDArray[np.float64], left: NDArray[np.int64], size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Count ``size`` draws from ``shares`` without replacement out of piles of ``left`` samples.

    Equal in law to drawing one at a time and repeating a draw whose class is exhausted: the draws that overrun a pile
    are exactly the ones repeated, and they are repeated among the classes that remain.
    """
    counts = np.zeros_like(left)
    while (missing := size - int(counts.sum())) > 0:
        open_shares = np.where(counts < left, shares, 0.0)
        if open_shares.sum() <= 0:
            # All mass on exhausted classes (tiny alpha): follow what is left instead.
            open_shares = (left - counts).astype(np.float64)
        counts = np.minimum(counts + rng.multinomial(missing, open_shares / open_shares.sum()), left)
    return counts


def split_groups(groups: ArrayLike) -> list[NDArray[np.int64]]:
    """Return the samples of each real user, users in the order of ``numpy.unique(groups)``, samples in file order."""
    ids = np.asarray(groups)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iuUS":
        raise InputError(f"groups: expected a list of integers or strings, got {ids.dtype} {ids.shape}")
    users, user_of = np.unique(ids, return_inverse=True)
    order = np.argsort(user_of, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(user_of, minlength=len(users)))[:-1])


def halve_test(n_samples: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a test set at random into (validation, evaluation) halves, indices ascending.

    Validation is for the confusion matrices, evaluation for the figures (appendix, "Data preparation"): 5,000 and
    5,000 images on MNIST and CIFAR-10. Of an odd number the extra sample goes to evaluation.
    """
    if n_samples < 2:
        raise InputError(f"a test set of {n_samples} sample(s) has no halves; at least 2 are needed")
    order = rng.permutation(n_samples).astype(np.int64)
    return np.sort(order[: n_samples // 2]), np.sort(order[n_samples // 2 :])


def count_classes(labels: ArrayLike, split: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return how many samples of each class each user holds, shape (n_users, largest label + 1)."""
    known = np.asarray(labels)
    width = int(known.max()) + 1
    return np.stack([np.bincount(known[index], minlength=width) for index in split]).astype(np.int64)


def _check(labels: ArrayLike, n_users: int) -> NDArray[np.int64]:
    known = np.asarray(labels)
    if known.ndim != 1 or known.dtype.kind not in "iu":
        raise InputError(f"labels: expected a list of integers, got {known.dtype} {known.shape}")
    if not 1 <= n_users <= len(known):
        raise InputError(f"{n_users} users for {len(known)} samples; expected 1 to {len(known)} users")
    return known.astype(np.int64)
