"""Attacker sets by hit pattern with their prior, the sums over them, and whom an input speaks against."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import comb
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from codeward._compiled import compiled
from codeward._errors import InputError
from codeward.codes import Code, pack_words, sort_rows, unpack_words

#: Probabilities that differ by less than this fraction of the larger one count as tied. Mathematically equal ones
#: differ by rounding that depends on the order of summation; without a tolerance the tie-break would be chance.
TIE_TOLERANCE = 1e-9
#: An explanation is nearly as good as the best when its posterior is at least this part of the best one's.
NEARLY = 1 / 20
#: Explanations shown for an input at most.
SHOWN = 20

Users = tuple[int, ...]
#: Suspects of one input: users in all nearly best explanations, those shown, how many more.
Ranked = tuple[Users, tuple[Users, ...], int]


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


class Suspects(NamedTuple):
    """Whom N inputs speak against.

    Attributes
    ----------
    certain : list of tuple of int, length N
        Users in *all* nearly best explanations, those past the shown ones included.
    sets : list of tuple of tuple of int, length N
        The nearly best explanations, best first, at most `SHOWN`; ties by fewest users, then lowest indices.
    more : ndarray of int64, shape (N,)
        How many more there are.
    """

    certain: list[Users]
    sets: list[tuple[Users, ...]]
    more: NDArray[np.int64]


def name_suspects(sets: AttackerSets, by_pattern: NDArray[np.float64]) -> Suspects:
    """Suspects by the posterior of the hit patterns, shape (N, P): a set has the share of its prior in its pattern's.

    Users with equal columns share their patterns, so that nothing but the prior tells their sets apart.
    """
    n_inputs = by_pattern.shape[0]
    shown = np.full((n_inputs, SHOWN), -1, dtype=np.int64)
    certain = np.full((n_inputs, sets.users.shape[1]), -1, dtype=np.int64)
    counts = np.zeros(n_inputs, dtype=np.int64)
    best = sets.best_weights / sets.weights
    _list_nearly_best(by_pattern, best, sets.weights, sets.users, sets.set_weights, sets.starts, shown, certain, counts)
    names = [tuple(user for user in row if user >= 0) for row in sets.users.tolist()]
    listed = [tuple([names[place] for place in row if place >= 0]) for row in shown.tolist()]
    sure = [tuple([user for user in row if user >= 0]) for row in certain.tolist()]
    return Suspects(sure, listed, np.maximum(counts - SHOWN, 0))


def join_ranked(each: Sequence[Ranked]) -> Suspects:
    """Put the suspects of single inputs together."""
    return Suspects(
        [certain for certain, _, _ in each],
        [sets for _, sets, _ in each],
        np.array([more for _, _, more in each], dtype=np.int64),
    )


def rank_sets(masses: Mapping[Users, float], unlisted: int = 0) -> Ranked:
    """Suspects of one input from the posterior of its attacker sets, up to a factor: certain, sets, more.

    Parameters
    ----------
    masses : mapping from attacker set to posterior
        Of tied ones the first comes first.
    unlisted : int
        Sets nearly as good as the best that are not listed.
    """
    best = max(masses.values(), default=0.0)
    if best <= 0:
        return (), (), unlisted
    near = [(x, mass) for x, mass in masses.items() if mass >= best * NEARLY * (1 - TIE_TOLERANCE)]
    found = [x for x, _ in sorted(near, key=lambda each: _level(best, each[1]))]
    shared = reduce(set.intersection, map(set, found))
    return tuple(sorted(shared)) if not unlisted else (), tuple(found[:SHOWN]), max(len(found) - SHOWN, 0) + unlisted


@compiled
def _level(best: float, mass: float) -> int:
    """How many tolerances a posterior is below the best one: 0 for a tie."""
    return int(max(np.log(best / mass), 0.0) / TIE_TOLERANCE)


@compiled
def _list_nearly_best(
    by_pattern: NDArray[np.float64],
    best_share: NDArray[np.float64],
    weights: NDArray[np.float64],
    users: NDArray[np.int64],
    set_weights: NDArray[np.float64],
    starts: NDArray[np.int64],
    shown: NDArray[np.int64],
    certain: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Fill in the places of the best sets (N, SHOWN), the users in all near ones (N, k) and how many there are (N,)."""
    n_inputs, n_patterns = by_pattern.shape
    width = users.shape[1]
    levels = np.empty(shown.shape[1], dtype=np.int64)
    for n in range(n_inputs):
        best = 0.0
        for p in range(n_patterns):
            best = max(best, by_pattern[n, p] * best_share[p])
        if not best > 0.0:
            continue
        least = best * NEARLY * (1 - TIE_TOLERANCE)
        n_shown, n_certain = 0, -1
        for p in range(n_patterns):
            if by_pattern[n, p] * best_share[p] < least:
                continue
            for s in range(starts[p], starts[p + 1]):
                mass = by_pattern[n, p] * (set_weights[s] / weights[p])
                if mass < least:
                    continue
                counts[n] += 1
                # 1. Users in all sets so far.
                if n_certain < 0:
                    n_certain = 0
                    for k in range(width):
                        if users[s, k] >= 0:
                            certain[n, n_certain] = users[s, k]
                            n_certain += 1
                elif n_certain > 0:
                    kept = 0
                    for k in range(n_certain):
                        if (users[s] == certain[n, k]).any():
                            certain[n, kept] = certain[n, k]
                            kept += 1
                    certain[n, kept:n_certain] = -1
                    n_certain = kept
                # 2. The best ones, by level and then in the order of the sets.
                level = _level(best, mass)
                place = n_shown
                while place > 0 and (
                    levels[place - 1] > level
                    or (levels[place - 1] == level and _comes_before(users, s, shown[n, place - 1]))
                ):
                    place -= 1
                if place >= shown.shape[1]:
                    continue
                for k in range(min(n_shown, shown.shape[1] - 1), place, -1):
                    levels[k], shown[n, k] = levels[k - 1], shown[n, k - 1]
                levels[place], shown[n, place] = level, s
                n_shown = min(n_shown + 1, shown.shape[1])


@compiled
def _comes_before(users: NDArray[np.int64], one: int, other: int) -> bool:
    """Whether a set (padded with -1 behind) has fewer users than another, or as many and lower ones."""
    fewer = 0
    for k in range(users.shape[1]):
        fewer += int(users[one, k] < 0) - int(users[other, k] < 0)
    if fewer:
        return fewer > 0
    for k in range(users.shape[1]):
        if users[one, k] != users[other, k]:
            return bool(users[one, k] < users[other, k])
    return False


def tracking_score(
    suspects: Sequence[Iterable[int]], true_attackers: Iterable[int] | Sequence[Iterable[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count true and false positives among the suspects of each input (paper, table "attacker tracking").

    Parameters
    ----------
    suspects : sequence of N sets of users
    true_attackers : set of users, or sequence of N sets
        The attackers behind all inputs, or behind each.

    Returns
    -------
    true_positives, false_positives : ndarray of int64, shape (N,)
        Suspects who attacked, and suspects who did not; the paper reports their means.

    Examples
    --------
    >>> tracking_score([(0, 1), (2,)], true_attackers=(1, 2))
    (array([1, 1]), array([1, 0]))
    """
    truth: list[Any] = list(true_attackers)
    each: list[set[int]] = (
        [set(truth)] * len(suspects)
        if all(isinstance(t, (int, np.integer)) for t in truth)
        else [set(t) for t in truth]
    )
    if len(each) != len(suspects):
        raise InputError(f"{len(each)} attacker sets for {len(suspects)} inputs")
    found = [set(s) for s in suspects]
    hits = np.array([len(s & t) for s, t in zip(found, each, strict=True)], dtype=np.int64)
    return hits, np.array([len(s) for s in found], dtype=np.int64) - hits
