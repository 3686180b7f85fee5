"""Attacker sets gathered by hit pattern, with their prior, and the sums of the joint probability over them."""

from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from codeward._errors import InputError
from codeward.codes import Code, pack_words, sort_rows, unpack_words


@dataclass(frozen=True)
class AttackerSets:
    r"""Distinct hit patterns of positive prior, ordered by their most probable attacker set.

    Attributes
    ----------
    words : ndarray of uint64, shape (P, W)
        The patterns as bit sets, as in `PatternTable`.
    n_models : int
    weights : ndarray of float64, shape (P,)
        Prior of a pattern: the sum of :math:`Q(|x|) / \binom{n}{|x|}` over its attacker sets x.
    best_weights : ndarray of float64, shape (P,)
        Prior of the most probable one of them.
    best_sets : tuple of tuple of int, length P
        That set; on a tie the fewest users, then the lowest indices. The rows are in this order too.
    members : csr_array of float64, shape (P, n)
        ``members[p, j]``: probability that user j attacks, given pattern p.
    users : ndarray of int64, shape (S, k)
        All attacker sets, pattern by pattern, each padded with -1.
    set_weights : ndarray of float64, shape (S,)
        Their prior.
    starts : ndarray of int64, shape (P + 1,)
        The sets of pattern p are ``starts[p]`` to ``starts[p + 1]``.
    """

    words: NDArray[np.uint64]
    n_models: int
    weights: NDArray[np.float64]
    best_weights: NDArray[np.float64]
    best_sets: tuple[tuple[int, ...], ...]
    members: csr_array
    users: NDArray[np.int64]
    set_weights: NDArray[np.float64]
    starts: NDArray[np.int64]

    @property
    def bits(self) -> NDArray[np.bool_]:
        """The patterns as booleans, shape (P, m)."""
        return unpack_words(self.words, self.n_models)

    def take(self, rows: NDArray[np.int64]) -> "AttackerSets":
        """Return some of the patterns, their prior again summing to what all had."""
        grown = self.weights.sum() / self.weights[rows].sum()
        sizes = np.diff(self.starts)[rows]
        starts = np.append(0, np.cumsum(sizes))
        listed = np.repeat(self.starts[rows] - starts[:-1], sizes) + np.arange(starts[-1])
        return AttackerSets(
            self.words[rows],
            self.n_models,
            self.weights[rows] * grown,
            self.best_weights[rows] * grown,
            tuple(self.best_sets[row] for row in rows.tolist()),
            self.members[rows],
            self.users[listed],
            self.set_weights[listed] * grown,
            starts,
        )

    @property
    def hits(self) -> NDArray[np.int64]:
        """Number of hit models of each pattern, shape (P,)."""
        return np.asarray(np.bitwise_count(self.words).sum(axis=1), dtype=np.int64)


def gather_attacker_sets(code: Code, prior: NDArray[np.float64]) -> AttackerSets:
    """Enumerate the attacker sets of positive prior and gather them by pattern.

    Parameters
    ----------
    code : Code
    prior : ndarray, shape (k + 1,)
        Q(0..k); sizes past ``code.n_users`` have no sets and add nothing, as in the printed formula.
    """
    # 1. All sets of positive prior, by size, then lexicographic, with the OR of their columns.
    columns = pack_words(code.matrix.T)
    sizes = [j for j in range(prior.size) if prior[j] > 0 and j <= code.n_users]
    if not sizes:
        raise InputError("attackers_prior: no attacker set has a positive probability with this many users")
    sets, sums, weights = [], [], []
    for j in sizes:
        chosen = list_subsets(code.n_users, j)
        sets.append(np.pad(chosen, ((0, 0), (0, sizes[-1] - j)), constant_values=-1))
        sums.append(
            np.bitwise_or.reduce(columns[chosen], axis=1) if j else np.zeros((1, columns.shape[1]), dtype=np.uint64)
        )
        weights.append(np.full(chosen.shape[0], prior[j] / comb(code.n_users, j)))
    users, words, weight = np.concatenate(sets), np.concatenate(sums), np.concatenate(weights)

    # 2. Equal patterns side by side (stable: in enumeration order inside a group).
    order = sort_rows(words)
    ordered = words[order]
    new = np.ones(order.size, dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    group = np.empty(order.size, dtype=np.int64)
    group[order] = np.cumsum(new) - 1

    # 3. The most probable set of each group, the first one enumerated on a tie; rows in the order of these sets.
    ranking = np.lexsort((np.arange(order.size), -weight, group))
    heads = ranking[np.flatnonzero(np.diff(group[ranking], prepend=-1))]
    row_order = np.argsort(heads, kind="stable")
    row_of_group = np.empty(heads.size, dtype=np.int64)
    row_of_group[row_order] = np.arange(heads.size)
    best, row = heads[row_order], row_of_group[group]

    # 4. Pr(j in x | pattern) = sum of the priors of its sets with user j / prior of the pattern.
    total = np.bincount(row, weights=weight, minlength=best.size).astype(np.float64)
    place, slot = np.nonzero(users >= 0)
    members = csr_array(
        ((weight / total[row])[place], (row[place], users[place, slot])), shape=(best.size, code.n_users)
    )
    members.sum_duplicates()
    best_sets = tuple(tuple(u for u in found if u >= 0) for found in users[best].tolist())
    by_row = np.argsort(row, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(row, minlength=best.size)))
    listed = (users[by_row], weight[by_row], starts.astype(np.int64))
    return AttackerSets(words[best], code.n_models, total, weight[best], best_sets, members, *listed)


def list_subsets(n_users: int, size: int) -> NDArray[np.int64]:
    """All subsets of ``size`` of ``n_users`` users in lexicographic order, shape (comb, size)."""
    subsets = np.zeros((1, 0), dtype=np.int64)
    for _ in range(size):
        last = subsets[:, -1] if subsets.shape[1] else np.array([-1])
        children = n_users - 1 - last
        parent = np.repeat(np.arange(subsets.shape[0]), children)
        offset = np.arange(parent.size) - np.repeat(np.cumsum(children) - children, children)
        subsets = np.column_stack([subsets[parent], np.repeat(last, children) + 1 + offset])
    return subsets


class Masses(NamedTuple):
    """Unnormalised sums of p(x, y, t, l) for U vote vectors.

    Attributes
    ----------
    labels, targets : ndarray, shape (U, c)
        Sums over (x, t) and over (x, l), times ``exp(-scales[:, 0])``.
    clean : ndarray, shape (U, c)
        Product of the clean-vote likelihoods of each label, times ``exp(-scales[:, 1])``.
    patterns : ndarray, shape (U, P)
        Sums over (t, l), scaled like ``labels``; empty when not wanted.
    scales : ndarray, shape (U, 2)
    """

    labels: NDArray[np.float64]
    targets: NDArray[np.float64]
    clean: NDArray[np.float64]
    patterns: NDArray[np.float64]
    scales: NDArray[np.float64]

    def hypotheses(self, attack_rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Factors, shape (U,) each, that put ``labels`` and ``clean`` on one scale with the prior of an attack.

        ``A * labels * exp(scales[0]) : (1 - A) * c * clean * exp(scales[1])``, the larger scale taken out.
        """
        with np.errstate(divide="ignore"):
            attacked = np.log(attack_rate) + self.scales[:, 0]
            clean = np.log1p(-attack_rate) + np.log(self.clean.shape[1]) + self.scales[:, 1]
        top = np.maximum(attacked, clean)
        return np.exp(attacked - top), np.exp(clean - top)

    def attack_probability(self, attack_rate: float) -> NDArray[np.float64]:
        """Pr(attack | y), shape (U,)."""
        attacked, clean = self.hypotheses(attack_rate)
        attacked = attacked * self.labels.sum(axis=1)
        return np.asarray(attacked / (attacked + clean * self.clean.sum(axis=1)))

    def label_probability(self, attack_rate: float) -> NDArray[np.float64]:
        """Pr(label | y), shape (U, c)."""
        attacked, clean = self.hypotheses(attack_rate)
        total = attacked[:, None] * self.labels + clean[:, None] * self.clean
        return np.asarray(total / total.sum(axis=1, keepdims=True))
