"""Run-off certificates of codes with many users: weighted sums of what an attack must reach (Proposition 36).

To make t win against b, an attack must close three leads: that of b over t in the second round, and those of a third
class e over t and over b in the first. Any sum of them, with weights >= 0, must be closed as well, and no user closes
more of it than the models it hits do.
"""

import numpy as np

from codeward._compiled import compiled
from codeward.certificates._runoff_kernels import count_left, find_strongest, plan_pair

#: Weights of the three leads that are tried: (second round, e over t, e over b).
SUMS = np.array([[0, 1, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1]], dtype=np.int64)


@compiled
def weigh_models(votes, likes, t, b, e, rates, weights):  # type: ignore[no-untyped-def]
    """Write how much of the sum of leads each model closes at most: voting t, voting b, or as it did."""
    second, over_t, over_b = rates[0], rates[1], rates[2]
    for j in range(votes.size):
        v = votes[j]
        likes_t = (likes[j // 64] >> np.uint64(j % 64)) & np.uint64(1)
        says_e = 1 if v == e else 0
        to_t = over_t * ((v != t) + says_e) + over_b * (says_e - (v == b))
        to_b = over_t * (says_e - (v == t)) + over_b * ((v != b) + says_e)
        if likes_t:
            to_b -= 2 * second
        else:
            to_t += 2 * second
        weights[j] = max(0, to_t, to_b)


@compiled
def _fewest_users(weights, need, starts, models, histogram, limit):  # type: ignore[no-untyped-def]
    """Return the least k such that the k most influential users reach ``need``; limit + 1 where none does."""
    if need <= 0:
        return 0
    histogram[:] = 0
    for user in range(starts.size - 1):
        power = 0
        for place in range(starts[user], starts[user + 1]):
            power += weights[models[place]]
        histogram[power] += 1
    taken = 0
    for power in range(histogram.size - 1, 0, -1):
        more = min(histogram[power], (need + power - 1) // power)
        taken += more
        need -= more * power
        if need <= 0 or taken > limit:
            break
    return taken if need <= 0 and taken <= limit else limit + 1


@compiled
def _sum_leads(first, pairs, t, b, e, rates):  # type: ignore[no-untyped-def]
    total = rates[0] * (pairs[b, t] - pairs[t, b] + (b < t))
    if e >= 0:
        total += rates[1] * (first[e] - first[t] + (e < t)) + rates[2] * (first[e] - first[b] + (e < b))
    return total


@compiled
def bound_codes(votes, prefer, first, pairs, labels, fewest, best, starts, models, sums, limit):  # type: ignore[no-untyped-def]
    """Bound from below the users to make every label win (R, c), or, with one column, any label but the output.

    Pairs (t, b) are bounded in three steps, the least one first, and only as far as it may still be the least:
    leads of the first round, the lead of the second, sums of leads. ``best`` (R, 2) gets the pair of the least bound.
    """
    n_inputs, n_classes = first.shape
    n_models = votes.shape[1]
    weights = np.zeros(n_models, dtype=np.int64)
    widest = 0
    for user in range(starts.size - 1):
        widest = max(widest, starts[user + 1] - starts[user])
    histogram = np.zeros(8 * widest + 1, dtype=np.int64)
    in_first, in_second = np.zeros((n_classes, n_classes), np.int64), np.zeros((n_classes, n_classes), np.int64)
    bound, step = np.zeros((n_classes, n_classes), np.int64), np.zeros((n_classes, n_classes), np.int64)
    rates = np.zeros(3, dtype=np.int64)
    single = fewest.shape[1] == 1
    for i in range(n_inputs):
        in_first[:], in_second[:], bound[:], step[:] = -1, -1, 0, 0
        label = labels[i]
        for column in range(fewest.shape[1]):
            while True:
                t, b = -1, -1
                for u in range(n_classes):
                    if (single and u == label) or (not single and u != column):
                        continue
                    for v in range(n_classes):
                        if v != u and (
                            t < 0
                            or bound[u, v] < bound[t, b]
                            or (bound[u, v] == bound[t, b] and step[u, v] > step[t, b])
                        ):
                            t, b = u, v
                if step[t, b] == 3 or bound[t, b] > limit:
                    break
                step[t, b] += 1
                strongest = find_strongest(first[i], t, b)
                found = bound[t, b]
                for which in range(2):
                    e = label if which else strongest
                    if e < 0 or e in (t, b) or (which and label == strongest):
                        continue
                    if step[t, b] == 1:
                        for a in (t, b):
                            if in_first[a, e] < 0:
                                rates[0], rates[1], rates[2] = 0, 1, 0
                                # The other class of the pair does not matter to this lead.
                                other = b if a == t else t
                                need = _sum_leads(first[i], pairs[i], a, other, e, rates)
                                if need > 0:
                                    for j in range(n_models):
                                        weights[j] = int(votes[i, j] != a) + int(votes[i, j] == e)
                                in_first[a, e] = _fewest_users(weights, need, starts, models, histogram, limit)
                            found = max(found, in_first[a, e])
                    elif step[t, b] == 3:
                        for kind in range(sums.shape[0]):
                            need = _sum_leads(first[i], pairs[i], t, b, e, sums[kind])
                            if need > 0:
                                weigh_models(votes[i], prefer[i, t, b], t, b, e, sums[kind], weights)
                            found = max(found, _fewest_users(weights, need, starts, models, histogram, limit))
                if step[t, b] == 2:
                    if in_second[t, b] < 0:
                        rates[0], rates[1], rates[2] = 1, 0, 0
                        need = _sum_leads(first[i], pairs[i], t, b, -1, rates)
                        if need > 0:
                            weigh_models(votes[i], prefer[i, t, b], t, b, -1, rates, weights)
                        in_second[t, b] = _fewest_users(weights, need, starts, models, histogram, limit)
                    found = max(found, in_second[t, b])
                bound[t, b] = found
            fewest[i, column] = min(bound[t, b], limit + 1)
            if single:
                best[i, 0], best[i, 1] = t, b


@compiled
def attack_pairs(votes, votes_words, prefer, first, pairs, best, sizes, users, starts, models, limit):  # type: ignore[no-untyped-def]
    """Take, for each input's pair (t, b), the user who closes most of the open leads, until t wins against b."""
    n_inputs, n_models = votes.shape
    n_classes, n_words = votes_words.shape[1], votes_words.shape[2]
    weights, rates = np.zeros(n_models, dtype=np.int64), np.zeros(3, dtype=np.int64)
    left = np.zeros(n_classes, dtype=np.int64)
    pattern = np.zeros(n_words, dtype=np.uint64)
    for i in range(n_inputs):
        t, b = best[i, 0], best[i, 1]
        sizes[i] = limit + 1
        if t < 0:
            continue
        e = find_strongest(first[i], t, b)
        for kind in range(3):
            rates[:] = 0
            rates[kind] = 1
            weights[kind] = (e >= 0 or kind == 0) and _sum_leads(first[i], pairs[i], t, b, e, rates) > 0
        rates[0], rates[1], rates[2] = weights[0], weights[1], weights[2]
        weigh_models(votes[i], prefer[i, t, b], t, b, e, rates, weights)
        pattern[:] = np.uint64(0)
        for taken in range(limit):
            top, chosen = -1, -1
            for user in range(starts.size - 1):
                power = 0
                for place in range(starts[user], starts[user + 1]):
                    power += weights[models[place]]
                if power > top:
                    top, chosen = power, user
            if top <= 0:
                break
            users[i, taken] = chosen
            for place in range(starts[chosen], starts[chosen + 1]):
                weights[models[place]] = 0
                pattern[models[place] // 64] |= np.uint64(1) << np.uint64(models[place] % 64)
            hit = n_models
            for a in range(n_classes):
                left[a] = count_left(votes_words[i, a], pattern)
                hit -= left[a]
            for_t, for_b = count_left(prefer[i, t, b], pattern), count_left(prefer[i, b, t], pattern)
            if plan_pair(left, find_strongest(left, t, b), t, b, for_t, for_b, hit) >= 0:
                sizes[i] = taken + 1
                break
        if sizes[i] > limit:
            users[i, :] = -1
