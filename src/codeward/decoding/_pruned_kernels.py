"""The inner loops of the pruned posterior, compiled by numba; `codeward.decoding._pruned` has the proofs."""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.decoding._attacker_sets import NEARLY
from codeward.decoding._posterior_kernels import GROUP, bit_count, log_gain, pick_group, tabulate_groups
from codeward.decoding._pruned_bounds import bulk_interval, log_add, log_between, log_choose

#: Sets remembered per vote vector as candidates for the most probable ones.
KEEP = 1024
#: A branch of the search is skipped when none of its sets can have more than this part of the tolerance.
PER_SET = 1e-3


@compiled
def _rescale(masses: NDArray[np.float64], users: NDArray[np.float64], state: NDArray[np.float64], top: float) -> None:
    """Move the common log scale ``state[0]`` up when a term would overflow it."""
    if top > state[0] + 300.0:
        shrink = np.exp(state[0] - top)
        masses *= shrink
        users *= shrink
        state[0] = top


@compiled
def _drop_small(sets: NDArray[np.int64], masses: NDArray[np.float64], least: float) -> int:
    """Move the sets of at least this log mass to the front, in order; return how many."""
    kept = 0
    for k in range(masses.size):
        if masses[k] >= least:
            sets[kept] = sets[k]
            masses[kept] = masses[k]
            kept += 1
    return kept


@compiled
def _choose(n: int, size: int) -> float:
    """C(n, size) as a float, 0 where there is none."""
    value = 1.0
    for k in range(size):
        value *= max(n - k, 0) / (size - k)
    return value


@compiled
def _greedy_set(columns: NDArray[np.uint64], said: NDArray[np.uint64], size: int, union: NDArray[np.uint64]) -> None:
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
def _search(
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
    groups = tables.shape[0]
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
            skipped[room, lost] += _choose(place, size - chosen)
            continue
        if chosen < size:
            depth += 1
            picked[depth] = size - depth - 2
            continue
        exponent[:] = total
        for g in range(groups):
            mask = pick_group(union, size, g)
            for label in range(n_classes):
                exponent[label] += tables[g, mask, label]
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
                n_kept = _drop_small(kept_sets, kept_mass, state[2] - state[3])
            if n_kept == KEEP:
                state[3] = np.log(n_classes) + 1e-6
                n_kept = _drop_small(kept_sets, kept_mass, state[2] - state[3])
            if n_kept < KEEP:
                kept_sets[n_kept] = -1
                for k in range(size):
                    kept_sets[n_kept, k] = order[picked[k]]
                kept_mass[n_kept] = log_mass
                n_kept += 1
    return n_kept


@compiled
def _add_bulk(
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


@compiled
def sum_pruned(
    votes: NDArray[np.int64],
    base: NDArray[np.float64],
    columns: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    prior: NDArray[np.float64],
    widest: NDArray[np.int64],
    success_rate: float,
    failure: float,
    tolerance: float,
    budget: float,
    masses: NDArray[np.float64],
    user_mass: NDArray[np.float64],
    kept_sets: NDArray[np.int64],
    state: NDArray[np.float64],
) -> int:
    """Sum p(x, y, t, l) of one vote vector over the attacker sets worth it, and bound the rest.

    Parameters
    ----------
    votes, base : shapes (m,), (m, c)
    columns, rows : shapes (n, ceil(m / 64)), (m, ceil(n / 64))
        The code as bit sets of models per user, and of users per model.
    prior, widest : shape (k + 1,)
        Q; upper bounds on the number of models j users hit together.
    masses, user_mass : shapes (2, c + 1), (n,)
        Outputs times exp(-state[0]): row 0 by label, row 1 by target, its last entry for all targets without a vote.
    kept_sets : shape (KEEP, k)
        Output: sets among which the nearly best ones are, padded with -1.
    state : shape (5,)
        Output: log scale of the masses; log of the bound on what is left out; log of the best mass of one set; how far
        below it the log mass of a kept set may be; log of the largest mass that a set added in bulk may have.

    Returns
    -------
    int
        Number of kept sets.
    """
    n_models, n_classes = base.shape
    n_users, n_words = columns.shape
    n_sizes = prior.size
    gains = np.empty((n_models, n_classes))
    total = np.zeros(n_classes)
    voters = np.zeros(n_classes, dtype=np.int64)
    for i in range(n_models):
        voters[votes[i]] += 1
        for label in range(n_classes):
            total[label] += base[i, label]
            gains[i, label] = log_gain(base[i, label], success_rate)
    unvoted = 0
    for t in range(n_classes):
        unvoted += voters[t] == 0

    # 1. What is certain to be there: the empty set, alike under every target. `known`: a lower bound on the log mass.
    masses[:] = 0.0
    user_mass[:] = 0.0
    state[:] = -np.inf
    state[3] = np.log(n_classes / NEARLY) + 1e-6
    known = -np.inf
    kept_mass = np.empty(KEEP)
    n_kept = 0
    if prior[0] > 0:
        state[0] = total.max() + np.log(prior[0])
        masses[0, :n_classes] = n_classes * np.exp(total - total.max())
        one = masses[0].sum() / n_classes
        for t in range(n_classes):
            masses[1, t if voters[t] > 0 else n_classes] += one
        known = np.log(masses[0].sum()) + state[0]
        kept_sets[0] = -1
        state[2] = kept_mass[0] = np.log(one) + state[0]
        n_kept = 1

    # 2. Targets by number of voters, most first; slot c stands for all targets nobody voted for.
    order = np.argsort(-voters, kind="mergesort")
    n_voted = n_classes - unvoted
    models = np.empty(n_models, dtype=np.int64)
    said = np.zeros(n_words, dtype=np.uint64)
    near = np.zeros((1, n_words), dtype=np.uint64)
    fails, covers = np.empty(n_users, dtype=np.int64), np.empty(n_users, dtype=np.int64)
    tables = np.empty(((n_models + GROUP - 1) // GROUP, 1 << GROUP, n_classes))
    best_gain = np.zeros((n_classes, n_models + 1))
    bound, skipped = np.empty((n_models + 1, n_models + 1)), np.zeros((n_models + 1, n_models + 1))
    tail = np.empty(n_models + 2)
    for place in range(n_voted + (1 if unvoted else 0)):
        target = order[place] if place < n_voted else n_classes
        log_alike = 0.0 if target < n_classes else np.log(unvoted)
        n_said = 0
        said[:] = 0
        for i in range(n_models):
            if votes[i] == target:
                models[n_said] = i
                n_said += 1
                said[i >> 6] |= np.uint64(1) << np.uint64(i & 63)
        tabulate_groups(gains, votes, target, tables)

        # 3. Per user: hit voters, and failed hits that every set with this user has at least.
        histogram = np.zeros(n_models + 2, dtype=np.int64)
        for user in range(n_users):
            covers[user] = fails[user] = 0
            for w in range(n_words):
                covers[user] += bit_count(columns[user, w] & said[w])
                fails[user] += bit_count(columns[user, w] & ~said[w])
            histogram[fails[user]] += 1
        by_fails = np.argsort(fails, kind="mergesort")

        # 4. bound[q, v]: log of the sum over labels of exp(B(l) + G(l, q) + z v), the bound (2) without the prior.
        for label in range(n_classes):
            ranked = np.sort(gains[models[:n_said], label])
            for q in range(n_said):
                best_gain[label, q + 1] = best_gain[label, q] + ranked[n_said - 1 - q]
        for q in range(n_said + 1):
            top = (total + best_gain[:, q]).max()
            value = top + np.log(np.exp(total + best_gain[:, q] - top).sum())
            for v in range(n_models + 1):
                bound[q, v] = value + failure * v

        for size in range(1, min(n_sizes - 1, n_users) + 1):
            if prior[size] <= 0.0:
                continue
            head = np.log(prior[size]) - log_choose(n_users, size) + log_alike
            # 5. One good guess tells early how much may be left out.
            if n_said:
                _greedy_set(columns, said, size, near[0])
                lost, top, value = 0, -np.inf, -np.inf
                for w in range(n_words):
                    lost += bit_count(near[0, w] & ~said[w])
                for label in range(n_classes):
                    top = total[label]
                    for a in range(n_said):
                        i = models[a]
                        if (near[0, i >> 6] >> np.uint64(i & 63)) & np.uint64(1):
                            top += gains[i, label]
                    value = log_add(value, top)
                known = max(known, head + value + failure * lost)
            allowed = known + np.log(0.5 * tolerance / (n_sizes * (n_voted + 1)))

            # 6. tail[v]: bound on the mass of the sets whose worst member has v or more failed hits. Users past the
            #    first class with a negligible tail are not looked at.
            tail[n_models + 1] = -np.inf
            upto = n_users
            for v in range(n_models, -1, -1):
                many = log_between(upto - histogram[v], upto, size)
                tail[v] = log_add(tail[v + 1], many + head + bound[max(0, min(n_said, widest[size] - v)), v])
                upto -= histogram[v]
            cut = 0
            while tail[cut] > allowed:
                cut += 1
            state[1] = log_add(state[1], tail[cut])
            n_free = histogram[:cut].sum()
            if n_free < size:
                continue
            least = known + np.log(tolerance * PER_SET) - head
            n_excluded = 0
            room = min(n_said, widest[size])
            if _choose(histogram[0], size) > budget and bound[room, 0] > least:
                n_excluded = histogram[0]
                state[4] = max(state[4], head + bound[room, 0])
                _add_bulk(
                    by_fails[:n_excluded], size, rows, models, n_said, gains, total, best_gain[:, room], head, target,
                    masses, user_mass, state,
                )  # fmt: skip
            skipped[:] = 0.0
            farthest = covers[by_fails[:n_free]].max()
            n_kept = _search(
                by_fails[:n_free], n_excluded, size, columns, said, n_said, tables, total, bound, least, head,
                failure, farthest, widest[size], budget, target, masses, user_mass, skipped, kept_sets, kept_mass,
                n_kept, state,
            )  # fmt: skip
            for q in range(n_said + 1):
                for v in range(n_models + 1):
                    if skipped[q, v] > 0.0:
                        state[1] = log_add(state[1], np.log(skipped[q, v]) + head + bound[q, v])
            if masses[0].sum() > 0.0:
                known = max(known, np.log(masses[0].sum()) + state[0])
    return int(_drop_small(kept_sets[:n_kept], kept_mass[:n_kept], state[2] - state[3]))
