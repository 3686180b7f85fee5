"""Hit patterns: the distinct Boolean sums of at most k columns (k-sums), with how often each occurs.

Properties, margins, decoders and certificates depend on an attacker set only through its hit pattern, so all of them
work on this table instead of on attacker sets.
"""

from dataclasses import dataclass
from math import log10

import numpy as np
from numpy.typing import NDArray

from codeward._errors import TooLargeError
from codeward.codes._code import Code

#: Attacker sets that may be enumerated before a request is refused: about 2 GB for a hundred models.
MAX_ATTACKER_SETS = 20_000_000
#: Numbers kept for each of them at most (members, and four times the words of a pattern), on average.
NUMBERS_PER_SET = 12


@dataclass(frozen=True)
class PatternTable:
    """Distinct hit patterns of all attacker sets of at most ``max_attackers`` users.

    Rows are ordered by their first attacker set: fewest users, then lowest indices. Row 0 is the empty set.

    Attributes
    ----------
    words : ndarray of uint64, shape (P, W)
        The patterns as bit sets; model i is bit ``i % 64`` of word ``i // 64``.
    n_models : int
        Number of models m; bits past it are zero.
    counts : ndarray of int64, shape (P, k + 1)
        ``counts[p, j]``: how many attacker sets of exactly j users have pattern p.
    attackers : ndarray of int32, shape (P, k)
        The first such set (fewest users, then lexicographic), padded with -1.
    twins : ndarray of int32, shape (P, k)
        The second one, all -1 where the pattern belongs to a single set.

    Examples
    --------
    >>> table = enumerate_patterns(Code([[1, 0, 1], [0, 1, 1]]), 1)
    >>> table.bits.astype(int).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    >>> table.attacker_set(3), table.weights.tolist()
    ((2,), [0, 1, 1, 2])
    """

    words: NDArray[np.uint64]
    n_models: int
    counts: NDArray[np.int64]
    attackers: NDArray[np.int32]
    twins: NDArray[np.int32]

    @property
    def max_attackers(self) -> int:
        """Largest size k of an enumerated attacker set."""
        return int(self.counts.shape[1]) - 1

    @property
    def bits(self) -> NDArray[np.bool_]:
        """The patterns as booleans, shape (P, m)."""
        return unpack_words(self.words, self.n_models)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Least number of attackers that make each pattern, shape (P,)."""
        sizes: NDArray[np.int64] = np.argmax(self.counts > 0, axis=1).astype(np.int64)
        return sizes

    @property
    def weights(self) -> NDArray[np.int64]:
        """Number of hit models of each pattern, shape (P,)."""
        weights: NDArray[np.int64] = np.bitwise_count(self.words).sum(axis=1).astype(np.int64)
        return weights

    def attacker_set(self, row: int) -> tuple[int, ...]:
        """Return the first attacker set of a pattern, as user indices."""
        return tuple(int(user) for user in self.attackers[row] if user >= 0)

    def twin_set(self, row: int) -> tuple[int, ...]:
        """Return the second attacker set of a pattern, empty when there is none."""
        return tuple(int(user) for user in self.twins[row] if user >= 0)


def count_attacker_sets(n_users: int, max_attackers: int) -> int:
    r"""Count the attacker sets :math:`\sum_{j=0}^{k} \binom{n}{j}`.

    Examples
    --------
    >>> count_attacker_sets(12, 2)
    79
    """
    total = term = 1
    for j in range(min(max_attackers, n_users)):
        term = term * (n_users - j) // (j + 1)
        total += term
    return total


def enumerate_patterns(code: Code, max_attackers: int, max_sets: int = MAX_ATTACKER_SETS) -> PatternTable:
    """Tabulate the distinct hit patterns of all attacker sets of at most ``max_attackers`` users.

    All that attackers can do depends on their pattern (Proposition 4 of docs/theory.md).

    Parameters
    ----------
    code : Code
    max_attackers : int
        Largest size k, 0 or more; sizes past ``code.n_users`` add nothing.
    max_sets : int
        Refuse (before starting) when there are more attacker sets than this, or fewer that take as much memory.

    Raises
    ------
    TooLargeError
        With the number of sets, when it is over ``max_sets``.

    Examples
    --------
    >>> table = enumerate_patterns(Code([[1, 1, 0], [0, 0, 1]]), 2)
    >>> [table.attacker_set(row) for row in range(len(table.words))]
    [(), (0,), (2,), (0, 2)]
    >>> table.counts.tolist()  # sets of 0, 1 and 2 users with each pattern
    [[1, 0, 0], [0, 2, 1], [0, 1, 0], [0, 0, 2]]
    """
    n_sets = count_attacker_sets(code.n_users, max_attackers)
    numbers = n_sets * (max_attackers + 4 * -(-code.n_models // 64))
    if n_sets > max_sets or numbers > NUMBERS_PER_SET * max_sets:
        shown = f"{n_sets:,}" if n_sets < 10**18 else f"more than 10^{int((n_sets.bit_length() - 1) * log10(2))}"
        raise TooLargeError(
            f"{shown} attacker sets of at most {max_attackers} of {code.n_users} users "
            f"are over the limit of {max_sets:,}; ask for fewer attackers"
        )
    columns = pack_words(code.matrix.T)
    size = min(max_attackers, code.n_users)

    # 1. All attacker sets by size, each in lexicographic order; the OR of their columns.
    sets = np.full((n_sets, max_attackers), -1, dtype=np.int32)
    sums = np.zeros((n_sets, columns.shape[1]), dtype=np.uint64)
    sizes = np.zeros(n_sets, dtype=np.int64)
    start, stop = 0, 1
    for j in range(1, size + 1):
        last = sets[start:stop, j - 2] if j > 1 else np.array([-1], dtype=np.int32)
        children = code.n_users - 1 - last
        parent = np.repeat(np.arange(start, stop), children)
        offset = np.arange(parent.size) - np.repeat(np.cumsum(children) - children, children)
        user = (np.repeat(last, children) + 1 + offset).astype(np.int32)
        here = slice(stop, stop + parent.size)
        sets[here] = sets[parent]
        sets[here, j - 1] = user
        sums[here] = sums[parent] | columns[user]
        sizes[here] = j
        start, stop = here.start, here.stop

    # 2. Equal sums side by side; a stable sort keeps each group in enumeration order.
    order = sort_rows(sums)
    ordered = sums[order]
    new = np.ones(n_sets, dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    group = np.cumsum(new) - 1
    heads = np.flatnonzero(new)

    # 3. One row a group, ordered by its first attacker set.
    first = order[heads]
    rank = np.argsort(first, kind="stable")
    counts = np.zeros((heads.size, max_attackers + 1), dtype=np.int64)
    np.add.at(counts, (group, sizes[order]), 1)
    twins = np.full((heads.size, sets.shape[1]), -1, dtype=np.int32)
    shared = np.flatnonzero(np.diff(np.append(heads, n_sets)) > 1)
    twins[shared] = sets[order[heads[shared] + 1]]
    return PatternTable(sums[first[rank]], code.n_models, counts[rank], sets[first[rank]], twins[rank])


def pack_words(bits: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Pack booleans of shape (P, m) into words of shape (P, ceil(m / 64)), bit i of a row at bit i % 64.

    Examples
    --------
    >>> pack_words(np.array([[True, False, True]])).tolist()
    [[5]]
    """
    packed = np.packbits(bits, axis=1, bitorder="little")
    words = np.zeros((bits.shape[0], -(-bits.shape[1] // 64) * 8), dtype=np.uint8)
    words[:, : packed.shape[1]] = packed
    packed_words: NDArray[np.uint64] = words.view("<u8").astype(np.uint64)
    return packed_words


def unpack_words(words: NDArray[np.uint64], n_bits: int) -> NDArray[np.bool_]:
    """Undo `pack_words`, shape (P, n_bits).

    Examples
    --------
    >>> unpack_words(np.array([[5]], dtype=np.uint64), 3).astype(int).tolist()
    [[1, 0, 1]]
    """
    octets = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=n_bits, bitorder="little").astype(bool)


def distinct_columns(matrix: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first user of each distinct column, ascending, and how many users share it."""
    words = pack_words(matrix.T)
    order = sort_rows(words)
    new = np.ones(order.size, dtype=bool)
    new[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    heads = np.flatnonzero(new)
    first = order[heads]  # the sort is stable
    rank = np.argsort(first)
    return first[rank], np.diff(np.append(heads, order.size))[rank]


def full_words(n_bits: int) -> NDArray[np.uint64]:
    """Return the all-ones pattern, shape (W,)."""
    full: NDArray[np.uint64] = pack_words(np.ones((1, n_bits), dtype=bool))[0]
    return full


def sort_rows(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the stable order that sorts rows of words lexicographically, shape (P,).

    Examples
    --------
    >>> sort_rows(np.array([[2, 1], [1, 9], [1, 3]], dtype=np.uint64)).tolist()
    [2, 1, 0]
    """
    if words.shape[1] == 1:
        return np.argsort(words[:, 0], kind="stable")
    return np.lexsort(words.T[::-1])
