r"""Attacker sets that a code hardly tells apart, found by lookup instead of by comparing all pairs.

Tracking with margin d asks that the hit patterns of any two attacker sets differ in at least d models, and agree in at
least d. So every pattern and its complement is a word, and no two words of different sets may be at distance below d.
Two words that near agree on one of any d blocks of bits (pigeonhole), up to complement: sets are sorted by each block,
and only neighbours are compared (Proposition 33 of docs/theory.md). Sets are walked, not stored, so that the 26 million
sets of at most three of 539 users take seconds and the memory of one column of keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb, log2

import numpy as np
from numpy.typing import NDArray

from codeward._errors import TooLargeError
from codeward.codes._patterns import count_attacker_sets, pack_words

Words = NDArray[np.uint64]
#: Keys sorted at once: 128 MiB. More sets are looked up in several passes.
MAX_KEYS = 2**24
#: Sets whose patterns are kept; the largest size of more is computed anew in every pass.
MAX_KEPT = 2**21
#: Pairs compared at most for one choice of blocks; past it a code is too far from telling its users apart.
MAX_CANDIDATES = 200_000_000
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Conflict:
    """Two attacker sets and the number of models in which their hit patterns differ.

    Examples
    --------
    >>> Conflict((0,), (1, 2), 1).differ
    1
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    differ: int


def find_conflicts(matrix: NDArray[np.bool_], n_attackers: int, margin: int, most: int = 1) -> list[Conflict]:
    """Find attacker sets of at most k users whose patterns differ, or agree, in fewer than ``margin`` models.

    None found proves that label and tracking margin are at least ``margin``: with margin 1, BTC(k) (Proposition 33 of
    docs/theory.md).

    Parameters
    ----------
    matrix : ndarray of bool, shape (m, n)
    n_attackers : int
        k; the empty set counts as well.
    margin : int
    most : int
        Stop after so many conflicts (those found together are all returned).

    Raises
    ------
    TooLargeError
        When the blocks leave more than `MAX_CANDIDATES` pairs to compare: nothing is known then.

    Examples
    --------
    >>> find_conflicts(np.eye(3, dtype=bool), 1, 1)
    []
    >>> find_conflicts(np.eye(3, dtype=bool), 2, 1)
    [Conflict(first=(0,), second=(1, 2), differ=3), Conflict(first=(1,), second=(0, 2), differ=3), \
Conflict(first=(2,), second=(0, 1), differ=3)]
    """
    n_models, n_users = matrix.shape
    if n_models < margin:
        return [Conflict((), (0,), int(matrix[:, 0].sum()))]
    walk = _Walk(pack_words(matrix.T), min(n_attackers, n_users))
    found: dict[tuple[int, int], int] = {}
    for block in _choose_blocks(n_models, margin, log2(walk.n_sets)):
        for part in range(-(-walk.n_sets // MAX_KEYS)):
            found.update(_compare_neighbours(walk, block, part, margin, n_models, most - len(found)))
            if len(found) >= most:
                break
        if len(found) >= most:
            break
    return [Conflict(walk.name(a), walk.name(b), differ) for (a, b), differ in sorted(found.items())]


def look_up_margin(matrix: NDArray[np.bool_], n_attackers: int, most: int = 5) -> int | None:
    """Find the least of label and tracking margin for k attackers, up to ``most``; None when it cannot be looked up.

    Examples
    --------
    >>> look_up_margin(np.eye(3, dtype=bool), 1)  # one user differs from nobody, and agrees with another, in one model
    1
    """
    try:
        return next((d for d in range(most) if find_conflicts(matrix, n_attackers, d + 1)), most)
    except TooLargeError:
        return None


def count_tables(n_models: int, margin: int, n_sets: int) -> int:
    """Count the sorted tables that `find_conflicts` needs: its cost is this times the number of sets."""
    return len(_choose_blocks(n_models, margin, log2(n_sets)))


def _choose_blocks(n_models: int, margin: int, bits: float) -> list[NDArray[np.bool_]]:
    """Cut the models into d - 1 + q blocks; near words agree on some q of them. Returns each choice as a mask.

    The least q whose keys are half as long again as the sets need to be numbered; longer keys leave fewer pairs.
    """
    q = 1
    while margin > 1 and q < 4 and margin + q <= n_models and n_models * q < 1.5 * bits * (margin - 1 + q):
        q += 1
    owner = np.arange(n_models) * (margin - 1 + q) // n_models
    return [np.isin(owner, chosen) for chosen in combinations(range(margin - 1 + q), q)]


class _Walk:
    """All attacker sets of at most k users with their patterns, in the order of their numbers.

    Sets of a size come in colexicographic order: those whose largest user is v are the sets of one user less below v,
    each with v, so that a size is made from the one before.
    """

    def __init__(self, columns: Words, k: int) -> None:
        self.columns, self.k, self.n_users = columns, k, len(columns)
        self.n_sets = count_attacker_sets(self.n_users, k)
        self.levels = [np.zeros((1, columns.shape[1]), dtype=np.uint64)]
        while len(self.levels) <= k and count_attacker_sets(self.n_users, len(self.levels)) <= MAX_KEPT:
            size = len(self.levels)
            self.levels.append(np.concatenate([self._with(v, size) for v in range(size - 1, self.n_users)]))

    def _with(self, user: int, size: int) -> Words:
        """Patterns of the sets of this size whose largest user is ``user``."""
        patterns: Words = self._below(size - 1, user) | self.columns[user]
        return patterns

    def _below(self, size: int, user: int) -> Words:
        """Patterns of the sets of this size among the first ``user`` users."""
        if size < len(self.levels):
            return self.levels[size][: comb(user, size)]
        return np.concatenate([self._with(v, size) for v in range(size - 1, user)])

    def __iter__(self) -> Iterator[tuple[int, Words]]:
        """Yield (number of the first set, patterns) in pieces."""
        start = 0
        for size in range(self.k + 1):
            if size < len(self.levels):
                yield start, self.levels[size]
            else:
                for user in range(size - 1, self.n_users):
                    yield start + comb(user, size), self._with(user, size)
            start += comb(self.n_users, size)

    def name(self, number: int) -> tuple[int, ...]:
        """Return the users of a set."""
        size = 0
        while number >= comb(self.n_users, size):
            number -= comb(self.n_users, size)
            size += 1
        users = []
        for left in range(size, 0, -1):
            user = left - 1
            while comb(user + 1, left) <= number:
                user += 1
            number -= comb(user, left)
            users.append(user)
        return tuple(reversed(users))


def _key(words: Words, mask: Words, place: int) -> Words:
    """Return one word a pattern that is equal where the masked bits are equal or complementary."""
    flip = words[:, place // 64] >> np.uint64(place % 64) & np.uint64(1)
    key = np.zeros(len(words), dtype=np.uint64)
    for i, bits in enumerate(mask):
        if bits:
            # Multiplying by an odd number, xor with a shift and adding spread the bits; unlike parts may meet, which
            # costs a comparison and loses nothing.
            key = (key ^ key >> np.uint64(29)) * _ODD + (words[:, i] & bits ^ flip * bits)
    key *= _ODD
    return key


def _compare_neighbours(
    walk: _Walk, block: NDArray[np.bool_], part: int, margin: int, n_models: int, most: int
) -> dict[tuple[int, int], int]:
    """Compare the sets of one part of the keys whose block is equal up to complement."""
    mask, place = pack_words(block[None, :])[0], int(np.argmax(block))
    n_parts = -(-walk.n_sets // MAX_KEYS)

    def keys_of(words: Words) -> tuple[Words, NDArray[np.int64] | None]:
        key = _key(words, mask, place)
        if n_parts == 1:
            return key, None
        inside = np.flatnonzero((key >> np.uint64(40)) % np.uint64(n_parts) == part)
        return key[inside], inside

    keys = np.concatenate([keys_of(words)[0] for _, words in walk])
    keys.sort()
    shared = np.unique(keys[1:][keys[1:] == keys[:-1]])
    del keys
    if not shared.size:
        return {}
    # The sets behind the keys that occur more than once, found on a second walk.
    numbers: list[NDArray[np.int64]] = []
    patterns: list[Words] = []
    owners: list[NDArray[np.int64]] = []
    n_kept = 0
    for start, words in walk:
        key, inside = keys_of(words)
        at = np.searchsorted(shared, key)
        kept = np.flatnonzero(shared[np.minimum(at, shared.size - 1)] == key)
        own = kept if inside is None else inside[kept]
        numbers.append(start + own)
        patterns.append(words[own])
        owners.append(at[kept])
        n_kept += own.size
        if n_kept > MAX_KEYS:
            raise TooLargeError(f"more than {MAX_KEYS:,} attacker sets share a block of their patterns with another")
    return _compare_runs(
        np.concatenate(numbers), np.concatenate(patterns), np.concatenate(owners), margin, n_models, most
    )


def _compare_runs(
    numbers: NDArray[np.int64],
    patterns: Words,
    owners: NDArray[np.int64],
    margin: int,
    n_models: int,
    most: int,
) -> dict[tuple[int, int], int]:
    """Compare every two sets with the same owner; stop when ``most`` conflicts are found."""
    sizes = np.bincount(owners)
    n_pairs = int((sizes * (sizes - 1) // 2).sum())
    order = np.argsort(owners, kind="stable")
    numbers, patterns, owners = numbers[order], patterns[order], owners[order]
    found: dict[tuple[int, int], int] = {}
    left, step, compared = np.arange(len(owners)), 1, 0
    while True:
        left = left[left + step < len(owners)]
        left = left[owners[left] == owners[left + step]]
        compared += left.size
        if not left.size:
            return found
        if compared > MAX_CANDIDATES:
            raise TooLargeError(f"{n_pairs:,} pairs of attacker sets agree on a block; {MAX_CANDIDATES:,} are the most")
        differ = np.bitwise_count(patterns[left] ^ patterns[left + step]).sum(axis=1, dtype=np.int64)
        for i in np.flatnonzero((differ < margin) | (differ > n_models - margin)):
            a, b = sorted((int(numbers[left[i]]), int(numbers[left[i] + step])))
            found[a, b] = int(differ[i])
            if len(found) >= 100 * most:
                return found
        if len(found) >= most:
            return found
        step += 1
