"""The sums of `_pairs` compiled, without logarithms: for votes whose probabilities fit into the range of a float.

A product over the models that x' hits and x does not is a product over the bits of one word: it is put together from
tables of all products of eight factors, so a pair of patterns costs a few multiplications and no exponential.
"""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled

_Floats = NDArray[np.float64]
_Words = NDArray[np.uint64]

#: Bits of a table, and its size.
_BITS, _SIZE = 8, 256


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
    n_tables = (n_models + _BITS - 1) // _BITS
    table = np.empty((n_tables, _SIZE))
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
    """Write the product of every subset of eight factors: that without the highest bit, times one factor."""
    for number in range(table.shape[0]):
        table[number, 0] = 1.0
        for bit in range(_BITS):
            place = number * _BITS + bit
            factor = factors[place] if place < factors.size else 1.0
            for subset in range(1 << bit):
                table[number, (1 << bit) + subset] = table[number, subset] * factor


@compiled
def _multiply(table: _Floats, word: np.uint64) -> float:
    total = 1.0
    for number in range(table.shape[0]):
        total *= table[number, (word >> np.uint64(_BITS * number)) & np.uint64(_SIZE - 1)]
    return total
