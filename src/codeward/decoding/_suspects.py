"""Whom an input speaks against: every explanation nearly as good as the best, and the users in all of them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward._errors import InputError
from codeward.decoding._attacker_sets import AttackerSets

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
        fewer += (users[one, k] < 0) - (users[other, k] < 0)
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
