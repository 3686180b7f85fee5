"""Compiled arithmetic of run-off certificates (Propositions 34 to 37 of docs/theory.md).

Models are bits of words: ``votes[i, a]`` holds those that vote a on input i, ``prefer[i, a, b]`` those that score a
above b. To make t win against b, hit models vote b as often as it takes to bring it into the second round, and else t.
"""

import numpy as np

from codeward._compiled import bit_count, compiled

#: More than any number of users.
NEVER = 1 << 40


@compiled
def count_left(words, pattern):  # type: ignore[no-untyped-def]
    """Count the models of ``words`` that a pattern leaves alone."""
    total = 0
    for w in range(words.size):
        total += bit_count(words[w] & ~pattern[w])
    return total


@compiled
def find_strongest(first, t, b):  # type: ignore[no-untyped-def]
    """Return the class other than t and b with most votes, ties to the smaller; -1 of two classes."""
    best = -1
    for e in range(first.size):
        if e not in (t, b) and (best < 0 or first[e] > first[best]):
            best = e
    return best


@compiled
def _rank(first, top):  # type: ignore[no-untyped-def]
    """Write the three classes with most votes, ties to the smaller; -1 past the last."""
    top[0] = find_strongest(first, -1, -1)
    top[1] = find_strongest(first, top[0], -1)
    top[2] = find_strongest(first, top[0], top[1])


@compiled
def _third(top, t, b):  # type: ignore[no-untyped-def]
    """Return the strongest class other than t and b."""
    for e in top:
        if e not in (t, b):
            return e
    return -1


@compiled
def plan_pair(first, e, t, b, for_t, for_b, hit):  # type: ignore[no-untyped-def]
    """Return how many of ``hit`` models must vote b so that t wins against b, or -1 where it cannot (Proposition 34).

    ``first``, ``for_t`` and ``for_b`` count the other models; e is their strongest class beside t and b.
    """
    lent = 0
    if e >= 0:
        lent = max(0, first[e] + (e < b) - first[b])
        if lent > hit or first[t] + hit - lent < first[e] + (e < t):
            return -1
    return lent if for_t + hit - lent >= for_b + lent + (b < t) else -1


@compiled
def _count_hit(votes, pattern, first):  # type: ignore[no-untyped-def]
    """Count the votes (c,) of the models that a pattern leaves alone; return how many it hits."""
    for a in range(first.size):
        first[a] = count_left(votes[a], pattern)
    hit = 0
    for word in pattern:
        hit += bit_count(word)
    return hit


@compiled
def force_labels(votes, prefer, patterns, forced):  # type: ignore[no-untyped-def]
    """Tell which labels (R, P, c) the hit models of each pattern (P, W) can make win on each input."""
    n_inputs, n_classes, _ = votes.shape
    first, top = np.zeros(n_classes, dtype=np.int64), np.zeros(3, dtype=np.int64)
    for i in range(n_inputs):
        for p in range(patterns.shape[0]):
            hit = _count_hit(votes[i], patterns[p], first)
            alone = first.sum()
            _rank(first, top)
            for t in range(n_classes):
                forced[i, p, t] = False
                for b in range(n_classes):
                    if b != t:
                        e = _third(top, t, b)
                        # The first round alone, before anybody is asked what they prefer.
                        if plan_pair(first, e, t, b, alone, 0, hit) < 0:
                            continue
                        for_t = count_left(prefer[i, t, b], patterns[p])
                        if plan_pair(first, e, t, b, for_t, alone - for_t, hit) >= 0:
                            forced[i, p, t] = True
                            break


@compiled
def plan_attacks(votes, prefer, patterns, labels, plans):  # type: ignore[no-untyped-def]
    """Write (t, b, models that vote b) of the first attack by pattern i that changes label i; -1 without any."""
    n_inputs, n_classes, _ = votes.shape
    first, top = np.zeros(n_classes, dtype=np.int64), np.zeros(3, dtype=np.int64)
    for i in range(n_inputs):
        plans[i, :] = -1
        hit = _count_hit(votes[i], patterns[i], first)
        _rank(first, top)
        for t in range(n_classes):
            for b in range(n_classes):
                if t == b or t == labels[i] or plans[i, 0] >= 0:
                    continue
                for_t = count_left(prefer[i, t, b], patterns[i])
                lent = plan_pair(first, _third(top, t, b), t, b, for_t, first.sum() - for_t, hit)
                if lent >= 0:
                    plans[i, 0], plans[i, 1], plans[i, 2] = t, b, lent


@compiled
def _least_hits(first, pairs, t, b):  # type: ignore[no-untyped-def]
    """Bound the models to hit from below: each changes a lead by 2 at most, two leads over one class by 3."""
    least = max(0, (pairs[b, t] - pairs[t, b] + (b < t) + 1) // 2)
    for e in range(first.size):
        if e not in (t, b):
            lead_t, lead_b = first[e] - first[t] + (e < t), first[e] - first[b] + (e < b)
            least = max(least, (lead_t + 1) // 2, (lead_b + 1) // 2, (lead_t + lead_b + 2) // 3)
    return least


@compiled
def _fits(first, against, known, t, b, moved, shift, missing, quota):  # type: ignore[no-untyped-def]
    """Tell whether moving ``moved`` third votes, ``shift`` net votes of them to b, makes t win against b.

    ``against[e]`` counts the voters of e that prefer b; without ``known``, ``against[b]`` is their sum. ``quota`` gets
    the voters of each third class to hit: that many in its first row, of these in its second row those that prefer b.
    """
    needed, gained, spare = 0, 0, 0
    for e in range(first.size):
        quota[0, e] = quota[1, e] = 0
        if e not in (t, b):
            cap = min(first[t] + moved - shift - (e < t), first[b] + shift - (e < b))
            if cap < 0:
                return False
            quota[0, e] = max(0, first[e] - cap)
            needed += quota[0, e]
            if known:
                quota[1, e] = min(quota[0, e], against[e])
                gained += quota[1, e]
                spare += against[e] - quota[1, e]
    if needed > moved:
        return False
    most = gained + min(moved - needed, spare) if known else min(moved, against[b])
    return most >= shift + missing


@compiled
def _search_pair(first, pairs, against, known, t, b, least, most, plan, quota):  # type: ignore[no-untyped-def]
    """Find the fewest models, from ``least`` to ``most``, whose votes make t win against b (Proposition 35)."""
    others = 0
    for e in range(first.size):
        if e not in (t, b):
            others += first[e]
    # Floor division: half of what t lacks in the second round, rounded up.
    missing = -((pairs[t, b] - pairs[b, t] - (b < t)) // 2)
    for hits in range(least, most + 1):
        # 1. Third votes only, some to b. 2. All of them to t, and votes of b as well.
        if hits <= others:
            for shift in range(min(hits, hits - missing) + 1):
                if _fits(first, against, known, t, b, hits, shift, missing, quota):
                    plan[0], plan[1] = hits, shift
                    return hits
        for taken in range(1, min(hits, first[b]) + 1):
            if hits - taken <= others and _fits(first, against, known, t, b, hits - taken, -taken, missing, quota):
                plan[0], plan[1] = hits - taken, -taken
                return hits
    return NEVER


@compiled
def search_partition(first, pairs, joint, votes, prefer, labels, fewest, best, limit):  # type: ignore[no-untyped-def]
    """Find the fewest models to hit on each input of a partition: for every label (R, c), or for any but its own.

    With ``fewest`` of one column the latter, and ``best`` (R, 4) gets t, b, third votes moved and net votes to b. What
    third voters prefer comes from ``joint`` (R, c, c, c) or from words; where both are empty it is bounded.
    """
    n_inputs, n_classes = first.shape
    known = joint.shape[0] > 0 or votes.shape[0] > 0
    least = np.zeros((n_classes, n_classes), dtype=np.int64)
    against, plan = np.zeros(n_classes, dtype=np.int64), np.zeros(2, dtype=np.int64)
    quota = np.zeros((2, n_classes), dtype=np.int64)
    single = fewest.shape[1] == 1
    for i in range(n_inputs):
        for t in range(n_classes):
            for b in range(n_classes):
                least[t, b] = NEVER if b == t else _least_hits(first[i], pairs[i], t, b)
        for column in range(fewest.shape[1]):
            found = limit + 1
            while True:
                # The most promising pair that is left.
                t, b = -1, -1
                for u in range(n_classes):
                    if (single and u == labels[i]) or (not single and u != column):
                        continue
                    for v in range(n_classes):
                        if least[u, v] < found and (t < 0 or least[u, v] < least[t, b]):
                            t, b = u, v
                if t < 0:
                    break
                against[:] = 0
                for e in range(n_classes):
                    if e in (t, b):
                        continue
                    if joint.shape[0] > 0:
                        against[e] = joint[i, e, b, t]
                    elif known:
                        for w in range(votes.shape[2]):
                            against[e] += bit_count(votes[i, e, w] & prefer[i, b, t, w])
                if not known:
                    against[b] = pairs[i, b, t] - first[i, b]
                hits = _search_pair(first[i], pairs[i], against, known, t, b, least[t, b], found - 1, plan, quota)
                least[t, b] = NEVER
                if hits < found:
                    found = hits
                    if single:
                        best[i, 0], best[i, 1], best[i, 2], best[i, 3] = t, b, plan[0], plan[1]
            fewest[i, column] = found


@compiled
def choose_models(first, pairs, votes, prefer, best, chosen):  # type: ignore[no-untyped-def]
    """Name the models (R, m) that the plans of `search_partition` hit, lowest numbers first."""
    n_inputs, n_models = chosen.shape
    n_classes = first.shape[1]
    quota, against = np.zeros((2, n_classes), dtype=np.int64), np.zeros(n_classes, dtype=np.int64)
    for i in range(n_inputs):
        t, b, moved, shift = best[i, 0], best[i, 1], best[i, 2], best[i, 3]
        if t < 0:
            continue
        for e in range(n_classes):
            against[e] = 0
            for w in range(votes.shape[2]):
                against[e] += bit_count(votes[i, e, w] & prefer[i, b, t, w])
        missing = -((pairs[i, t, b] - pairs[i, b, t] - (b < t)) // 2)
        _fits(first[i], against, True, t, b, moved, shift, missing, quota)
        left = moved
        for e in range(n_classes):
            left -= quota[0, e]
        # What is left over goes to voters that prefer b, then to any.
        for e in range(n_classes):
            if e not in (t, b):
                more = min(left, against[e] - quota[1, e])
                quota[0, e], quota[1, e], left = quota[0, e] + more, quota[1, e] + more, left - more
        for e in range(n_classes):
            if e not in (t, b):
                more = min(left, first[i, e] - quota[0, e])
                quota[0, e], left = quota[0, e] + more, left - more
        quota[:, b] = max(0, -shift)
        for j in range(n_models):
            word, bit = j // 64, np.uint64(1) << np.uint64(j % 64)
            for e in range(n_classes):
                if votes[i, e, word] & bit:
                    # Row 1: still to take of those that prefer b; row 0: of all.
                    likes_b = (prefer[i, b, t, word] & bit) != 0
                    row = quota[1, e] if likes_b else quota[0, e] - quota[1, e]
                    if row > 0:
                        chosen[i, j] = True
                        quota[0, e] -= 1
                        if likes_b:
                            quota[1, e] -= 1
