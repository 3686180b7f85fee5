r"""Which attacker sets break a code: detection, correction and tracking, each with a witness.

Everything is nested in k (what two users break, three break), so a property is described by the *size* of the smallest
coalition that breaks it: the property holds exactly for the k below that size.

Margins: how many wrong votes a code tolerates (Propositions 12 to 14 of docs/theory.md).

For two hit patterns s, s' let B be the number of models neither hits. All three margins follow from B and the weights:

- label margin :math:`d(k) = \min (m - |s \oplus s'|) = \min (2B + |s| + |s'| - m)`, the empty set included;
- tracking margin :math:`\min |s \oplus s'|` over distinct attacker sets, the empty set included, so that it also covers
  naming nobody when nobody attacked;
- arbitrary margin :math:`\min B`, the least number of zeros in a 2k-sum.

:math:`\lfloor (d-1)/2 \rfloor` wrong votes are always corrected.
"""

from dataclasses import dataclass

import numpy as np

from codeward.codes._code import Code
from codeward.codes._patterns import PatternTable, full_words, sort_rows

#: Entries of a code past which the set-cover program takes seconds before it looks at its clock.
MAX_COVER_CELLS = 1_000_000

AttackerSets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Break:
    """The smallest coalition that breaks a property.

    Attributes
    ----------
    size : int
        Users needed. The property holds for every k below.
    attackers : tuple of attacker sets
        One set that hits every model, or the two sets whose outcomes cannot be told apart.

    Examples
    --------
    >>> Break(2, ((0, 1),)).size - 1  # the largest k for which the property holds
    1
    """

    size: int
    attackers: AttackerSets


def find_detection_break(table: PatternTable) -> Break | None:
    """Find the fewest users that hit every model: BDC(k) holds below that size (Proposition 1 of docs/theory.md).

    Examples
    --------
    >>> from codeward.codes import Code, enumerate_patterns
    >>> table = enumerate_patterns(Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), 3)
    >>> find_detection_break(table)
    Break(size=3, attackers=((0, 1, 2),))
    """
    rows = np.flatnonzero((table.words == full_words(table.n_models)).all(axis=1))
    if rows.size == 0:
        return None
    found = table.attacker_set(int(rows[0]))
    return Break(len(found), (found,))


def find_correction_break(table: PatternTable) -> Break | None:
    """Find the least k at which two k-sums are complements: BCC(k) holds below (Proposition 2 of docs/theory.md).

    The empty set and a set that hits every model are complements too, so a break of detection is found here as well.
    No pairwise loop: patterns and complements are sorted together, and equal neighbours are the pairs (Proposition 4).

    Examples
    --------
    >>> from codeward.codes import Code, enumerate_patterns
    >>> table = enumerate_patterns(Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), 3)
    >>> find_correction_break(table)
    Break(size=2, attackers=((0,), (1, 2)))
    """
    flipped = table.words ^ full_words(table.n_models)
    both = np.concatenate([table.words, flipped])
    order = sort_rows(both)
    equal = np.flatnonzero((both[order[1:]] == both[order[:-1]]).all(axis=1))
    if equal.size == 0:
        return None
    size = len(table.words)
    # Within each half rows are distinct, so equal neighbours are one pattern and one complement.
    first, second = order[equal], order[equal + 1] - size
    sizes = table.sizes
    level = np.maximum(sizes[first], sizes[second])
    # Fewest attackers, then the pair that comes first in enumeration order.
    best = np.lexsort((np.maximum(first, second), np.minimum(first, second), level))[0]
    pair = sorted((int(first[best]), int(second[best])))
    return Break(int(level[best]), tuple(table.attacker_set(row) for row in pair))


def find_twin_break(table: PatternTable) -> Break | None:
    """Find the least k at which two attacker sets share a hit pattern and cannot be told apart.

    BTC(k) holds while neither this nor `find_correction_break` has happened (Proposition 3 of docs/theory.md).

    Examples
    --------
    >>> from codeward.codes import Code, enumerate_patterns
    >>> find_twin_break(enumerate_patterns(Code([[1, 1, 0], [0, 0, 1]]), 1))
    Break(size=1, attackers=((0,), (1,)))
    """
    sizes = (table.twins >= 0).sum(axis=1)
    rows = np.flatnonzero(sizes > 0)
    if rows.size == 0:
        return None
    row = int(rows[np.argmin(sizes[rows])])  # ties: the pattern that comes first in enumeration order
    return Break(int(sizes[row]), (table.attacker_set(row), table.twin_set(row)))


def find_tracking_break(table: PatternTable) -> Break | None:
    """Find the least k at which BTC(k) fails: by confusion of labels or by twins, whichever needs fewer users.

    Proposition 3 of docs/theory.md.

    Examples
    --------
    >>> from codeward.codes import Code, enumerate_patterns
    >>> table = enumerate_patterns(Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), 3)
    >>> find_tracking_break(table)
    Break(size=2, attackers=((0,), (1, 2)))
    """
    breaks = [found for found in (find_correction_break(table), find_twin_break(table)) if found]
    return min(breaks, key=lambda found: found.size, default=None)


def find_smallest_cover(code: Code, time_limit: float = 5.0) -> tuple[int, tuple[int, ...]]:
    """Find the fewest users that together hit every model, for codes too large to enumerate.

    A set-cover program solved by HiGHS through SciPy; past `MAX_COVER_CELLS` entries a greedy cover and no bound.

    Returns
    -------
    lower : int
        Proved: no coalition smaller than this hits every model. Equals ``len(cover)`` when solved to the end.
    cover : tuple of int
        A coalition that does (not always a smallest one when time ran out).

    Examples
    --------
    >>> find_smallest_cover(Code([[1, 0, 1], [0, 1, 1]]))
    (1, (2,))
    """
    cover = _greedy_cover(code)
    if code.matrix.size > MAX_COVER_CELLS:
        return 1, cover
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    solved = milp(
        np.ones(code.n_users),
        constraints=LinearConstraint(csr_array(code.matrix.astype(float)), lb=1),
        integrality=np.ones(code.n_users, dtype=np.int64),
        bounds=Bounds(0, 1),
        options={"time_limit": time_limit},
    )
    if solved.x is not None:
        found = tuple(int(user) for user in np.flatnonzero(np.round(solved.x) > 0))
        if code.pattern(found).all() and len(found) < len(cover):
            cover = found
    bound = solved.mip_dual_bound
    # The optimum is an integer: round the dual bound up, less what floating point may have added.
    lower = 1 if bound is None or not np.isfinite(bound) else max(1, int(np.ceil(bound - 1e-6)))
    return min(lower, len(cover)), cover


def _greedy_cover(code: Code) -> tuple[int, ...]:
    """Cover all models greedily; ties to the lowest user."""
    left = np.ones(code.n_models, dtype=bool)
    gains = code.matrix.sum(axis=0)
    chosen: list[int] = []
    while left.any():
        user = int(np.argmax(gains))
        chosen.append(user)
        hit = left & code.matrix[:, user]
        gains -= code.matrix[hit].sum(axis=0)
        left &= ~hit
    return tuple(sorted(chosen))


#: Pairs of patterns compared at most, about 5 s on one core; past it `find_margins` stops at a smaller k.
MAX_PAIRS = 1_000_000_000
_BLOCK = 1024


@dataclass(frozen=True)
class Margins:
    """The three margins for k = 1, 2, ...: entry k - 1 of each tuple.

    Examples
    --------
    >>> Margins(label=(3, 1), tracking=(2, 0), arbitrary=(1, 0)).label[0]  # one attacker
    3
    """

    label: tuple[int, ...]
    tracking: tuple[int, ...]
    arbitrary: tuple[int, ...]


def count_pairs(table: PatternTable, max_attackers: int) -> int:
    """Count the pairs of patterns that `find_margins` compares."""
    patterns = int((table.sizes <= max_attackers).sum())
    return patterns * (patterns + 1) // 2


def find_margins(table: PatternTable, max_attackers: int | None = None) -> Margins:
    """Compute all margins for k = 1 .. ``max_attackers`` by comparing all pairs of distinct patterns.

    What they are worth: Proposition 12 (label), 13 (tracking) and 14 (arbitrary attackers) of docs/theory.md; what the
    last can be at most: Proposition 42.

    Parameters
    ----------
    table : PatternTable
    max_attackers : int, optional
        Largest k; what the table enumerates when not given. See `count_pairs` for the cost.

    Examples
    --------
    >>> from codeward.codes import enumerate_patterns, named_code
    >>> find_margins(enumerate_patterns(named_code("c"), 4)).label
    (7, 5, 3, 1)
    """
    limit = table.max_attackers if max_attackers is None else min(max_attackers, table.max_attackers)
    m = table.n_models
    # Rows come by growing size, so patterns of at most k users are a prefix.
    sizes = table.sizes
    edges = np.searchsorted(sizes, np.arange(limit + 2))
    zeros = (~table.bits[: edges[limit + 1]]).astype(np.float32)
    n_zeros = zeros.sum(axis=1)

    # agree[k], differ[k], clear[k]: least values over pairs whose larger set has exactly k users.
    agree = np.full(limit + 1, m, dtype=np.int64)
    differ = np.full(limit + 1, m, dtype=np.int64)
    clear = np.full(limit + 1, m, dtype=np.int64)
    for k in range(limit + 1):
        for start in range(edges[k], edges[k + 1], _BLOCK):
            stop = min(start + _BLOCK, edges[k + 1])
            for other in range(0, stop, _BLOCK):
                end = min(other + _BLOCK, stop)
                both = zeros[start:stop] @ zeros[other:end].T  # B, exact in float32
                clear[k] = min(clear[k], int(both.min()))
                both *= 2  # 2B + |s| + |s'| - m, with |s| = m - zeros
                both += m - n_zeros[start:stop, None]
                both -= n_zeros[None, other:end]
                agree[k] = min(agree[k], int(both.min()))
                # A pattern is not compared with itself: blocks on the diagonal leave the diagonal out.
                rows = np.arange(max(start, other), min(stop, end))
                both[rows - start, rows - other] = 0
                differ[k] = min(differ[k], m - int(both.max()))

    twins = (table.twins >= 0).sum(axis=1)
    shared = twins[twins > 0]
    alike = int(shared.min()) if shared.size else limit + 1
    return Margins(
        label=_running(agree),
        tracking=tuple(0 if k >= alike else best for k, best in enumerate(_running(differ), start=1)),
        arbitrary=_running(clear),
    )


def _running(least: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, ...]:
    """Accumulate the minimum, without the entry of the empty set alone."""
    return tuple(int(value) for value in np.minimum.accumulate(least)[1:])
