"""Bounds and branches of the pruned posterior, compiled by numba; `codeward.decoding._pruned` has the proofs."""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import bit_count, compiled
from codeward.decoding._posterior_kernels import add_groups

#: Sets remembered per vote vector as candidates for the most probable ones.
KEEP = 1024
#: A branch of the search is skipped when none of its sets can have more than this part of the tolerance.
PER_SET = 1e-3


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


@compiled
def _rescale(masses: NDArray[np.float64], users: NDArray[np.float64], state: NDArray[np.float64], top: float) -> None:
    """Move the common log scale ``state[0]`` up when a term would overflow it."""
    if top > state[0] + 300.0:
        shrink = np.exp(state[0] - top)
        masses *= shrink
        users *= shrink
        state[0] = top


@compiled
def drop_small(sets: NDArray[np.int64], masses: NDArray[np.float64], least: float) -> int:
    """Move the sets of at least this log mass to the front, in order; return how many."""
    kept = 0
    for k in range(masses.size):
        if masses[k] >= least:
            sets[kept] = sets[k]
            masses[kept] = masses[k]
            kept += 1
    return kept


@compiled
def choose(n: int, size: int) -> float:
    """C(n, size) as a float, 0 where there is none."""
    value = 1.0
    for k in range(size):
        value *= max(n - k, 0) / (size - k)
    return value


@compiled
def greedy_set(columns: NDArray[np.uint64], said: NDArray[np.uint64], size: int, union: NDArray[np.uint64]) -> None:
    """Leave in ``union`` a pattern near ``said``: users added one by one, each the nearest (lowest index on a tie)."""
    n_users, n_words = columns.shape
    union[:] = 0
    for _ in range(size):
        nearest, least = 0, 1 << 30
        for user in range(n_users):
            distance = 0
            for w in range(n_words):
                distance += bit_count((union[w] | columns[user, w]) ^ said[w])
            if distance < least:
                nearest, least = user, distance
        for w in range(n_words):
            union[w] |= columns[nearest, w]


@compiled
def search_sets(
    order: NDArray[np.int64],
    n_excluded: int,
    size: int,
    columns: NDArray[np.uint64],
    said: NDArray[np.uint64],
    n_said: int,
    tables: NDArray[np.float64],
    total: NDArray[np.float64],
    bound: NDArray[np.float64],
    least: float,
    head: float,
    failure: float,
    farthest: int,
    widest: int,
    budget: float,
    target: int,
    masses: NDArray[np.float64],
    user_mass: NDArray[np.float64],
    skipped: NDArray[np.float64],
    kept_sets: NDArray[np.int64],
    kept_mass: NDArray[np.float64],
    n_kept: int,
    state: NDArray[np.float64],
) -> int:
    """Depth-first over the ``size``-subsets of ``order`` not inside its first ``n_excluded`` users, last member first.

    With ``order`` by failed hits the first member chosen is the worst one, and the sets with the best worst members
    come first.

    A branch whose sets have at most ``least`` (log of the bound (2) of one set, prior left out) is skipped whole, and
    so is every branch once the budget of visits is spent; ``skipped[q, v]`` counts the sets by the entry of ``bound``
    that holds for them. Returns the number of kept sets.
    """
    n_free, n_words = order.size, columns.shape[1]
    n_classes = total.size
    picked = np.empty(size, dtype=np.int64)
    union = np.zeros((size + 1, n_words), dtype=np.uint64)
    exponent = np.empty(n_classes)
    visits = 0.0
    depth = 0
    picked[0] = max(n_excluded, size - 1) - 1
    while depth >= 0:
        picked[depth] += 1
        place, chosen = picked[depth], depth + 1
        if place >= (picked[depth - 1] if depth else n_free):
            depth -= 1
            continue
        user = order[place]
        covered, lost = 0, 0
        for w in range(n_words):
            union[chosen, w] = union[depth, w] | columns[user, w]
            covered += bit_count(union[chosen, w] & said[w])
            lost += bit_count(union[chosen, w] & ~said[w])
        room = max(covered, min(n_said, covered + (size - chosen) * farthest, widest - lost))
        visits += 1.0
        if bound[room, lost] <= least or visits > budget:
            skipped[room, lost] += choose(place, size - chosen)
            continue
        if chosen < size:
            depth += 1
            picked[depth] = size - depth - 2
            continue
        add_groups(union, size, tables, total, exponent)
        shift = head + failure * lost
        _rescale(masses, user_mass, state, exponent.max() + shift)
        mass = 0.0
        for label in range(n_classes):
            if exponent[label] + shift > state[0] - 80.0:
                value = np.exp(exponent[label] + shift - state[0])
                masses[0, label] += value
                mass += value
        if mass == 0.0:
            continue
        masses[1, target] += mass
        for k in range(size):
            user_mass[order[picked[k]]] += mass
        # A set nearly as good as the best has, under one of its targets, at least NEARLY / c of the best mass. Where
        # these are too many, only those stay that may be the best: 1 / c.
        log_mass = np.log(mass) + state[0]
        if log_mass > state[2] - state[3]:
            state[2] = max(state[2], log_mass)
            if n_kept == KEEP:
                n_kept = drop_small(kept_sets, kept_mass, state[2] - state[3])
            if n_kept == KEEP:
                state[3] = np.log(n_classes) + 1e-6
                n_kept = drop_small(kept_sets, kept_mass, state[2] - state[3])
            if n_kept < KEEP:
                kept_sets[n_kept] = -1
                for k in range(size):
                    kept_sets[n_kept, k] = order[picked[k]]
                kept_mass[n_kept] = log_mass
                n_kept += 1
    return n_kept


@compiled
def add_bulk(
    free: NDArray[np.int64],
    size: int,
    rows: NDArray[np.uint64],
    models: NDArray[np.int64],
    n_said: int,
    gains: NDArray[np.float64],
    total: NDArray[np.float64],
    ceiling: NDArray[np.float64],
    head: float,
    target: int,
    masses: NDArray[np.float64],
    user_mass: NDArray[np.float64],
    state: NDArray[np.float64],
) -> None:
    """Add the sets inside ``free`` (users without failed hits) by (3): lower end found, the rest left out."""
    inside = np.zeros(rows.shape[1], dtype=np.uint64)
    for user in free:
        inside[user >> 6] |= np.uint64(1) << np.uint64(user & 63)
    counts = np.zeros(n_said, dtype=np.int64)
    pairs = np.zeros((n_said, n_said), dtype=np.int64)
    for a in range(n_said):
        for w in range(rows.shape[1]):
            row = rows[models[a], w] & inside[w]
            counts[a] += bit_count(row)
            for b in range(a):
                pairs[a, b] += bit_count(row & rows[models[b], w])
    start = head + log_choose(free.size, size)
    for label in range(total.size):
        low, high = bulk_interval(gains, models, n_said, label, counts, pairs, free.size, size, ceiling[label])
        low, high = low + start + total[label], high + start + total[label]
        _rescale(masses, user_mass, state, low)
        mass = np.exp(low - state[0])
        masses[0, label] += mass
        masses[1, target] += mass
        for user in free:
            user_mass[user] += mass * size / free.size
        if high > low:
            state[1] = log_add(state[1], high + np.log(-np.expm1(low - high)))
