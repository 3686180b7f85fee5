"""The inner loops of the Bayes decoder, compiled by numba.

For a target t let V be the models that say t. With :math:`z = \\log(1 - S)` and
:math:`g_i(l) = \\log(S / C^{(i)}_{l y_i} + 1 - S)` the logarithm of the paper's p(x, y, t, l) is

    log prior(s) + sum_i log C_i(l, y_i) + sum over i in s and V of g_i(l) + z * |s outside V|,

so it depends on the pattern s only through ``s & V`` (a small number of subsets when few models say t) and the number
of failed hits. Subset sums are tabulated for `GROUP` voters at a time.

Two groups of attackers (`sum_pairs`) are added up without logarithms, for votes whose probabilities fit into the range
of a float. A product over the models that x' hits and x does not is one over the bits of a word, put together from
tables of all products of `GROUP` factors: a pair of patterns costs a few multiplications and no exponential.
"""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import bit_count, compiled

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]

#: Voters whose subset sums share one table (2**GROUP rows).
GROUP = 8


@compiled
def extract_bits(words: _Words, row: int, models: _Ints, n_models: int) -> int:
    """Bits of pattern ``row`` at the first ``n_models`` of ``models``, as an index."""
    index = np.int64(0)
    for k in range(n_models):
        i = models[k]
        index |= np.int64((words[row, i >> 6] >> np.uint64(i & 63)) & np.uint64(1)) << k
    return int(index)


@compiled
def tabulate_subsets(gains: _Floats, models: _Ints, start: int, stop: int, table: _Floats) -> None:
    """table[mask, l] = sum over bits k of mask of gains[models[start + k], l]."""
    n_classes = gains.shape[1]
    for label in range(n_classes):
        table[0, label] = 0.0
    for k in range(stop - start):
        half = 1 << k
        for mask in range(half):
            for label in range(n_classes):
                table[half + mask, label] = table[mask, label] + gains[models[start + k], label]


@compiled
def pick_group(words: _Words, row: int, group: int) -> int:
    """Bits of pattern ``row`` at the models GROUP * group and on, as an index (GROUP divides 64)."""
    first = group * GROUP
    return int((words[row, first >> 6] >> np.uint64(first & 63)) & np.uint64((1 << GROUP) - 1))


@compiled
def tabulate_groups(gains: _Floats, votes: _Ints, target: int, tables: _Floats) -> None:
    """tables[g, mask, l]: sum of the gains of the models in mask of group g that say the target."""
    n_models, n_classes = gains.shape
    for g in range(tables.shape[0]):
        tables[g, 0] = 0.0
        for k in range(GROUP):
            i, half = g * GROUP + k, 1 << k
            for mask in range(half):
                for label in range(n_classes):
                    gain = gains[i, label] if i < n_models and votes[i] == target else 0.0
                    tables[g, half + mask, label] = tables[g, mask, label] + gain


@compiled
def add_groups(words: _Words, row: int, tables: _Floats, total: _Floats, exponent: _Floats) -> None:
    """exponent[l] = total[l] + what the tables have for pattern ``row``, group by group."""
    exponent[:] = total
    for g in range(tables.shape[0]):
        mask = pick_group(words, row, g)
        for label in range(total.size):
            exponent[label] += tables[g, mask, label]


@compiled
def log_gain(base: float, success_rate: float) -> float:
    """Return log(S / C + 1 - S) for log C = base; 0 for a trigger that never works, however small C is."""
    if success_rate == 0.0:
        return 0.0
    if base < -700.0:
        return float(np.log(success_rate) - base)
    return float(np.log(success_rate * np.exp(-base) + (1.0 - success_rate)))


@compiled
def read_votes(votes: _Ints, base: _Floats, success_rate: float, total: _Floats, gains: _Floats, voters: _Ints) -> int:
    """Fill in clean log-likelihoods (c,), gains (m, c) and votes of each class (c,); return how many have none."""
    total[:] = 0.0
    voters[:] = 0
    for i in range(votes.size):
        voters[votes[i]] += 1
        for label in range(total.size):
            total[label] += base[i, label]
            gains[i, label] = log_gain(base[i, label], success_rate)
    return int((voters == 0).sum())


@compiled
def list_voters(votes: _Ints, target: int, models: _Ints, said: _Words) -> int:
    """List the models that say the target, also as bits; return how many."""
    n_said = 0
    said[:] = 0
    for i in range(votes.size):
        if votes[i] == target:
            models[n_said] = i
            n_said += 1
            said[i >> 6] |= np.uint64(1) << np.uint64(i & 63)
    return n_said


@compiled
def sum_posterior(
    votes: _Ints,
    base: _Floats,
    words: _Words,
    hits: _Ints,
    weights: _Floats,
    success_rate: float,
    failure: float,
    label_mass: _Floats,
    target_mass: _Floats,
    clean_mass: _Floats,
    pattern_mass: _Floats,
    scales: _Floats,
) -> None:
    """Sum p(x, y, t, l) over patterns for each vote vector.

    The three attack outputs of a row are relative to ``exp(scales[u, 0])``, the clean one to ``exp(scales[u, 1])``:
    they keep their precision even where one of the two hypotheses is impossible beside the other.

    Parameters
    ----------
    votes : shape (U, m)
    base : shape (U, m, c)
        Log-likelihood of a clean vote.
    words, hits, weights : shapes (P, W), (P,), (P,)
        Patterns, their weight in models, their prior.
    success_rate, failure : float
        S and z, the logarithm of 1 - S (a large negative number for S = 1).
    label_mass, target_mass, clean_mass : shape (U, c)
        Outputs: sums over (x, t), over (x, l), and the clean product of each label.
    pattern_mass : shape (U, P), or (0, 0) when not wanted
        Output: sums over (t, l).
    scales : shape (U, 2)
        Output: log scales of the attack and the clean masses.
    """
    n_inputs, n_models, n_classes = base.shape
    n_patterns = words.shape[0]
    want_patterns = pattern_mass.shape[0] > 0
    n_groups = (n_models + GROUP - 1) // GROUP
    tables = np.empty((n_groups, 1 << GROUP, n_classes))
    size = 1 << GROUP
    direct, fewest, used = np.empty(size), np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    by_mask, exponent = np.empty(size), np.empty(n_classes)
    index = np.empty(n_patterns, dtype=np.int64)
    failed = np.empty(n_patterns, dtype=np.int64)
    shrink = np.exp(failure * np.arange(n_models + 1))
    gains = np.empty((n_models, n_classes))
    models = np.empty(n_models, dtype=np.int64)
    said = np.empty(words.shape[1], dtype=np.uint64)
    total = np.empty(n_classes)
    voters = np.empty(n_classes, dtype=np.int64)
    scale = np.empty(n_classes + 1)
    label_part = np.empty((n_classes + 1, n_classes))
    pattern_part = np.zeros((n_classes + 1, n_patterns if want_patterns else 0))

    for u in range(n_inputs):
        # 1. Clean log-likelihoods and the gain of a model that says the target and is hit.
        unvoted = read_votes(votes[u], base[u], success_rate, total, gains, voters)

        # 2. One target at a time; slot c stands for all targets nobody voted for, which are alike.
        top = -np.inf
        for t in range(n_classes + 1):
            scale[t] = -np.inf
            if (t < n_classes and voters[t] == 0) or (t == n_classes and unvoted == 0):
                continue
            n_said = list_voters(votes[u], t, models, said)
            label_part[t] = 0.0
            if n_said <= GROUP:
                # 2a. Few voters: gather the patterns by s & V first. Failures are counted from the fewest of a mask,
                #     so that nothing underflows when every explanation has failed hits.
                n_used = 0
                tabulate_subsets(gains, models, 0, n_said, tables[0])
                for mask in range(1 << n_said):
                    fewest[mask] = -1
                for p in range(n_patterns):
                    mask = extract_bits(words, p, models, n_said)
                    index[p] = mask
                    failed[p] = hits[p] - bit_count(mask)
                    if fewest[mask] < 0:
                        used[n_used] = mask
                        n_used += 1
                        fewest[mask] = failed[p]
                        direct[mask] = 0.0
                    elif failed[p] < fewest[mask]:
                        fewest[mask] = failed[p]
                for p in range(n_patterns):
                    direct[index[p]] += weights[p] * shrink[failed[p] - fewest[index[p]]]
                best = -np.inf
                for k in range(n_used):
                    mask = used[k]
                    for label in range(n_classes):
                        best = max(best, total[label] + tables[0, mask, label] + failure * fewest[mask])
                for k in range(n_used):
                    mask = used[k]
                    by_mask[mask] = 0.0
                    for label in range(n_classes):
                        value = np.exp(total[label] + tables[0, mask, label] + failure * fewest[mask] - best)
                        by_mask[mask] += value
                        label_part[t, label] += value * direct[mask]
                if want_patterns:
                    for p in range(n_patterns):
                        pattern_part[t, p] = weights[p] * by_mask[index[p]] * shrink[failed[p] - fewest[index[p]]]
            else:
                # 2b. Many voters: one sum per pattern; the largest exponent first, then the exponentials.
                tabulate_groups(gains, votes[u], t, tables)
                best = -np.inf
                for sweep in range(2):
                    for p in range(n_patterns):
                        add_groups(words, p, tables, total, exponent)
                        hit_voters = 0
                        for w in range(said.size):
                            hit_voters += bit_count(words[p, w] & said[w])
                        lost = failure * (hits[p] - hit_voters)
                        if sweep == 0:
                            for label in range(n_classes):
                                best = max(best, exponent[label] + lost)
                        else:
                            mass = 0.0
                            for label in range(n_classes):
                                # Below e^-80 of the largest a term cannot move any sum at double precision.
                                if exponent[label] + lost - best > -80.0:
                                    value = weights[p] * np.exp(exponent[label] + lost - best)
                                    mass += value
                                    label_part[t, label] += value
                            if want_patterns:
                                pattern_part[t, p] = mass
            scale[t] = best
            top = max(top, best)

        # 3. All targets on one scale.
        scales[u, 0] = top
        scales[u, 1] = total.max()
        for label in range(n_classes):
            clean_mass[u, label] = np.exp(total[label] - scales[u, 1])
            label_mass[u, label] = 0.0
        if want_patterns:
            pattern_mass[u, :] = 0.0
        alike = 0.0
        for t in range(n_classes + 1):
            if scale[t] == -np.inf:
                if t < n_classes:
                    target_mass[u, t] = 0.0
                continue
            factor = np.exp(scale[t] - top) * (unvoted if t == n_classes else 1)
            mass = 0.0
            for label in range(n_classes):
                mass += label_part[t, label] * factor
                label_mass[u, label] += label_part[t, label] * factor
            if want_patterns:
                for p in range(n_patterns):
                    pattern_mass[u, p] += pattern_part[t, p] * factor
            if t < n_classes:
                target_mass[u, t] = mass
            else:
                alike = mass / unvoted
        for t in range(n_classes):
            if voters[t] == 0:
                target_mass[u, t] = alike


@compiled
def tabulate_joint(
    votes: _Ints,
    base: _Floats,
    words: _Words,
    success_rate: float,
    failure: float,
    joint: _Floats,
) -> None:
    """joint[u, p, t] = log of the sum over labels of Pr(y | pattern p, target t, label l); else as `sum_posterior`."""
    n_inputs, n_models, n_classes = base.shape
    tables = np.empty(((n_models + GROUP - 1) // GROUP, 1 << GROUP, n_classes))
    said = np.empty(words.shape[1], dtype=np.uint64)
    gains = np.empty((n_models, n_classes))
    models, voters = np.empty(n_models, dtype=np.int64), np.empty(n_classes, dtype=np.int64)
    total, exponent = np.empty(n_classes), np.empty(n_classes)
    for u in range(n_inputs):
        read_votes(votes[u], base[u], success_rate, total, gains, voters)
        for t in range(n_classes):
            list_voters(votes[u], t, models, said)
            tabulate_groups(gains, votes[u], t, tables)
            for p in range(words.shape[0]):
                add_groups(words, p, tables, total, exponent)
                failed = 0
                for w in range(said.size):
                    failed += bit_count(words[p, w] & ~said[w])
                best = exponent.max()
                mass = 0.0
                for label in range(n_classes):
                    mass += np.exp(exponent[label] - best)
                joint[u, p, t] = best + np.log(mass) + failure * failed


@compiled
def sum_pairs(
    words: _Words,
    prior: _Floats,
    other_words: _Words,
    other_prior: _Floats,
    bases: _Floats,
    ratios: _Floats,
    other_ratios: _Floats,
    weight: _Floats,
    ways: _Floats,
    labels: _Floats,
    by_kind: _Floats,
    alone: _Floats,
    both: _Floats,
) -> None:
    """Add up what `PairWeights` holds, times one common factor.

    Parameters
    ----------
    words, other_words : ndarray of uint64, shape (P,) and (P',)
        Hit patterns of x and x' as bits.
    prior, other_prior : ndarray, shape (P,) and (P',)
    bases : ndarray, shape (c,)
        Clean likelihood of the votes for each label, times the common factor.
    ratios, other_ratios : ndarray, shape (c, kinds, m)
        ``h / C`` of every model, for every label and target, at the rates S and S'.
    weight, ways : ndarray, shape (kinds,) and (kinds, kinds)
        Classes of a kind of target, and the ways to choose t' beside one t of a kind.
    labels, by_kind : ndarray, shape (2, c) and (2, kinds), zeros
    alone, both : ndarray, shape (P,) and (P, P'), zeros
    """
    n_labels, n_kinds, n_models = ratios.shape
    n_tables = (n_models + GROUP - 1) // GROUP
    table = np.empty((n_tables, 1 << GROUP))
    one = np.empty((n_kinds, words.size))
    second = np.empty((n_kinds, words.size))
    chosen = np.empty(words.size)
    for label in range(n_labels):
        # 1. x and t: w(x) times the ratios of the models that x hits.
        for kind in range(n_kinds):
            _tabulate(ratios[label, kind], table)
            for x in range(words.size):
                one[kind, x] = bases[label] * prior[x] * _multiply(table, words[x])
                labels[0, label] += weight[kind] * one[kind, x]
                by_kind[0, kind] += one[kind, x]
                alone[x] += weight[kind] * one[kind, x]
        # 2. x' and t' given x: w(x') times those of the models that x' hits and x does not.
        for kind in range(n_kinds):
            _tabulate(other_ratios[label, kind], table)
            for x in range(words.size):
                chosen[x] = 0.0
                for first in range(n_kinds):
                    chosen[x] += weight[first] * ways[first, kind] * one[first, x]
            for x in range(words.size):
                free = ~words[x]
                total = 0.0
                for other in range(other_words.size):
                    mass = other_prior[other] * _multiply(table, other_words[other] & free)
                    total += mass
                    both[x, other] += chosen[x] * mass
                second[kind, x] = total
                labels[1, label] += chosen[x] * total
        for first in range(n_kinds):
            for kind in range(n_kinds):
                for x in range(words.size):
                    by_kind[1, first] += ways[first, kind] * one[first, x] * second[kind, x]


@compiled
def _tabulate(factors: _Floats, table: _Floats) -> None:
    """Write the product of every subset of `GROUP` factors: that without the highest bit, times one factor."""
    for number in range(table.shape[0]):
        table[number, 0] = 1.0
        for bit in range(GROUP):
            place = number * GROUP + bit
            factor = factors[place] if place < factors.size else 1.0
            for subset in range(1 << bit):
                table[number, (1 << bit) + subset] = table[number, subset] * factor


@compiled
def _multiply(table: _Floats, word: np.uint64) -> float:
    total = 1.0
    for number in range(table.shape[0]):
        total *= table[number, (word >> np.uint64(GROUP * number)) & np.uint64((1 << GROUP) - 1)]
    return total
