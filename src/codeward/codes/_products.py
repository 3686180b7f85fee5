"""Dynamic-programming (product) coverings.

After Gordon, Kuperberg and Patashnik ("New constructions for covering designs", 1995): split the points in two, and for
every way a t-set can fall on the parts take a product of coverings.
"""

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

#: The recursion visits every smaller size; past this many points it takes longer than a search is worth.
MAX_PRODUCT_POINTS = 28


@lru_cache(maxsize=200_000)
def _plan(v: int, b: int, t: int) -> tuple[int, int, tuple[int, ...]]:
    """Fewest blocks by products: (blocks, points of the first part, its block size for s = 0..t); part 0 is a leaf."""
    if t == 0 or b >= v:
        return 1, 0, ()
    if t == 1:
        return -(-v // b), 0, ()
    best: tuple[int, int, tuple[int, ...]] = (comb(v, t), 0, ())  # every t-set a block of its own
    for first in range(1, v // 2 + 1):
        second, total = v - first, 0
        sizes: list[int] = []
        for s in range(t + 1):
            if s > first or t - s > second:
                sizes.append(-1)  # no t-set falls that way
                continue
            low, high = max(s, 0), min(first, b - (t - s))
            cost, size = min(
                (_plan(first, size, s)[0] * _plan(second, b - size, t - s)[0], size) for size in range(low, high + 1)
            )
            total += cost
            sizes.append(size)
            if total >= best[0]:
                break
        else:
            best = (total, first, tuple(sizes))
    return best


def product_size(n_points: int, block_size: int, strength: int) -> int:
    """Blocks of `product_covering`, without building it."""
    return _plan(n_points, block_size, strength)[0]


def product_covering(n_points: int, block_size: int, strength: int) -> NDArray[np.bool_]:
    """Build the covering in which every ``strength``-set of points lies in a block of at most ``block_size`` points."""
    blocks, first, sizes = _plan(n_points, block_size, strength)
    if strength == 0 or block_size >= n_points:
        return np.arange(n_points)[None, :] < block_size
    if strength == 1:
        return np.asarray(np.arange(n_points)[None, :] // block_size == np.arange(blocks)[:, None])
    if first == 0:
        rows = np.zeros((blocks, n_points), dtype=bool)
        for i, chosen in enumerate(combinations(range(n_points), strength)):
            rows[i, list(chosen)] = True
        return rows
    parts = []
    for s, size in enumerate(sizes):
        if size < 0:
            continue
        left = product_covering(first, size, s)
        right = product_covering(n_points - first, block_size - size, strength - s)
        parts.append(np.hstack([np.repeat(left, len(right), axis=0), np.tile(right, (len(left), 1))]))
    return np.vstack(parts)
