"""Bounds for the pruned posterior, compiled by numba; derived in `codeward.decoding._pruned`."""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.decoding._posterior_kernels import bit_count


@compiled
def log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b)), also where either is -inf."""
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return float(a + np.log1p(np.exp(b - a)))


@compiled
def log_choose(n: int, size: int) -> float:
    """Return log C(n, size), -inf when it is 0."""
    if size > n:
        return -np.inf
    value = 0.0
    for k in range(size):
        value += np.log((n - k) / (size - k))
    return value


@compiled
def log_between(below: int, upto: int, size: int) -> float:
    """Return log(C(upto, size) - C(below, size)), -inf when they are equal."""
    if upto == below or size > upto:
        return -np.inf
    whole, part = log_choose(upto, size), log_choose(below, size)
    return whole if part == -np.inf else float(whole + np.log(-np.expm1(part - whole)))


@compiled
def widest_union(columns: NDArray[np.uint64], size: int) -> int:
    """Return the largest number of models that ``size`` columns hit together, ``size`` 2 or 3, by enumeration."""
    n_users, n_words = columns.shape
    heaviest = 0
    for a in range(n_users):
        weight = 0
        for w in range(n_words):
            weight += bit_count(columns[a, w])
        heaviest = max(heaviest, weight)
    best = 0
    pair = np.empty(n_words, dtype=np.uint64)
    for a in range(n_users):
        for b in range(a + 1, n_users):
            weight = 0
            for w in range(n_words):
                pair[w] = columns[a, w] | columns[b, w]
                weight += bit_count(pair[w])
            if size == 2:
                best = max(best, weight)
                continue
            if weight + heaviest <= best:
                continue
            for d in range(b + 1, n_users):
                weight = 0
                for w in range(n_words):
                    weight += bit_count(pair[w] | columns[d, w])
                best = max(best, weight)
    return best


@compiled
def bulk_interval(
    gains: NDArray[np.float64],
    models: NDArray[np.int64],
    n_said: int,
    label: int,
    counts: NDArray[np.int64],
    pairs: NDArray[np.int64],
    n_free: int,
    size: int,
    ceiling: float,
) -> tuple[float, float]:
    """Bound the logarithm of the mean of exp(h) over all ``size``-subsets of the ``n_free`` users, from both sides.

    h is the sum of the gains of the hit voters; ``counts`` and ``pairs`` hold how many of the users feed a voter, and
    both of two; ``ceiling`` is an upper bound on h.
    """
    # q_i: chance that a random subset misses voter i; q_ij: misses both.
    miss = np.empty(n_said)
    mean = 0.0
    for a in range(n_said):
        miss[a] = _chance_missed(n_free, counts[a], size)
        mean += gains[models[a], label] * (1.0 - miss[a])
    variance = 0.0
    for a in range(n_said):
        ga = gains[models[a], label]
        variance += ga * ga * miss[a] * (1.0 - miss[a])
        for b in range(a):
            both = _chance_missed(n_free, counts[a] + counts[b] - pairs[a, b], size)
            variance += 2.0 * ga * gains[models[b], label] * (both - miss[a] * miss[b])
    variance = max(variance, 0.0)
    above = max(ceiling - mean, 0.0)
    low = mean + np.log1p(variance * _curvature(-mean))
    high = min(ceiling, mean + np.log1p(variance * _curvature(above))) if above < 600.0 else ceiling
    return low, max(low, high)


@compiled
def _curvature(y: float) -> float:
    """(exp(y) - 1 - y) / y**2, increasing in y."""
    if abs(y) < 1e-4:
        return 0.5 + y / 6.0
    return float((np.exp(y) - 1.0 - y) / (y * y))


@compiled
def _chance_missed(n_free: int, n_feeding: int, size: int) -> float:
    """C(n_free - n_feeding, size) / C(n_free, size)."""
    chance = 1.0
    for k in range(size):
        chance *= max(n_free - n_feeding - k, 0) / (n_free - k)
    return chance
