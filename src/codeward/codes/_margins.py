r"""Margins: how many wrong votes a code tolerates (DESIGN: "Margin").

For two hit patterns s, s' let B be the number of models neither hits. All three margins follow from B and the weights:

- label margin :math:`d(k) = \min (m - |s \oplus s'|) = \min (2B + |s| + |s'| - m)`, the empty set included;
- tracking margin :math:`\min |s \oplus s'|` over distinct attacker sets, the empty set included, so that it also covers
  naming nobody when nobody attacked;
- arbitrary margin :math:`\min B`, the least number of zeros in a 2k-sum.

:math:`\lfloor (d-1)/2 \rfloor` wrong votes are always corrected.
"""

from dataclasses import dataclass

import numpy as np

from codeward.codes._patterns import PatternTable

#: Pairs of patterns compared at most, about 5 s on one core; past it `find_margins` stops at a smaller k.
MAX_PAIRS = 1_000_000_000
_BLOCK = 1024


@dataclass(frozen=True)
class Margins:
    """The three margins for k = 1, 2, ...: entry k - 1 of each tuple."""

    label: tuple[int, ...]
    tracking: tuple[int, ...]
    arbitrary: tuple[int, ...]


def count_pairs(table: PatternTable, max_attackers: int) -> int:
    """Count the pairs of patterns that `find_margins` compares."""
    patterns = int((table.sizes <= max_attackers).sum())
    return patterns * (patterns + 1) // 2


def find_margins(table: PatternTable, max_attackers: int | None = None) -> Margins:
    """Compute all margins for k = 1 .. ``max_attackers`` by comparing all pairs of distinct patterns.

    Parameters
    ----------
    table : PatternTable
    max_attackers : int, optional
        Largest k; what the table enumerates when not given. See `count_pairs` for the cost.
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
                if other < stop and end > start:
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
