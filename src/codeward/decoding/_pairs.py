"""Sums of the joint probability over pairs of hit patterns, for one vote vector."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codeward.decoding._pair_kernels import sum_pairs
from codeward.decoding._sets import AttackerSets

_Floats = NDArray[np.float64]

#: log S and log(1 - S).
Rate = tuple[float, float]

#: Logarithms whose exponentials fit into a float with room to spare; beyond it sums are taken by logarithms.
_RANGE = 600.0


class Patterns(NamedTuple):
    """Hit patterns of a group.

    Attributes
    ----------
    words : ndarray of uint64, shape (P, W)
    bits : ndarray of float64, shape (P, m)
        The same as 0 and 1.
    prior : ndarray of float64, shape (P,)
    """

    words: NDArray[np.uint64]
    bits: _Floats
    prior: _Floats

    @staticmethod
    def take(sets: AttackerSets) -> "Patterns":
        """Return the patterns of these sets."""
        return Patterns(sets.words, sets.bits.astype(np.float64), sets.weights)


class Targets(NamedTuple):
    """Targets that some model says, and one kind that stands for all others: nothing tells those apart.

    Attributes
    ----------
    said : ndarray of int64
    says : ndarray of bool, shape (kinds, m)
        Which model says a target of the kind.
    weight : ndarray, shape (kinds,)
        Classes of the kind.
    ways : ndarray, shape (kinds, kinds)
        Ways to choose t' of one kind (column) beside one t of another (row): any class but t itself.
    """

    said: NDArray[np.int64]
    says: NDArray[np.bool_]
    weight: _Floats
    ways: _Floats


class PairWeights(NamedTuple):
    """Log sums of p(y, x, t, l) (first row) and of p(y, x, t, x', t', l) without the prior of t' (second row).

    Attributes
    ----------
    labels : ndarray, shape (2, c)
        Summed over all but l.
    targets : ndarray, shape (2, c)
        Summed over all but t.
    alone : ndarray, shape (P,)
        Without a second group, summed over all but the pattern of x.
    both : ndarray, shape (P, P')
        With one, summed over all but the patterns of x and x'.
    """

    labels: _Floats
    targets: _Floats
    alone: _Floats
    both: _Floats


def weigh_pairs(
    votes: NDArray[np.int64], clean: _Floats, first: Patterns, second: Patterns, rate: Rate, second_rate: Rate
) -> PairWeights:
    """Sum over everything for the votes (m,) of one input, whose clean log likelihood is ``clean``, shape (m, c)."""
    targets = _find_targets(votes, clean.shape[1])
    gains, others = (_tabulate_gains(targets.says, clean, given) for given in (rate, second_rate))
    base = clean.sum(axis=0)
    reach = np.ptp(base) + sum(float(np.abs(table).sum(axis=2).max()) for table in (gains, others))
    add = _add_plainly if reach < _RANGE and first.words.shape[1] == 1 else _add_by_logs
    labels, by_kind, alone, both = add(base, gains, others, first, second, targets)
    # Every class that no model says has the sum of its kind.
    by_target = np.repeat(by_kind[:, -1:], base.size, axis=1)
    by_target[:, targets.said] = by_kind[:, :-1]
    return PairWeights(labels, by_target, alone, both)


def add_logs(values: _Floats, axis: int | None = None) -> _Floats:
    """Log of the sum of exponentials; scipy's takes longer to begin than these small sums to end."""
    top = values.max(axis=axis, keepdims=True)
    shift = np.where(np.isfinite(top), top, 0.0)
    return np.asarray(_log(np.exp(values - shift).sum(axis=axis)) + shift.squeeze(axis))


def log_rate(rate: float) -> float:
    """Log of a probability, -inf for 0."""
    return float(np.log(rate)) if rate > 0 else -np.inf


def _find_targets(votes: NDArray[np.int64], n_classes: int) -> Targets:
    said = np.unique(votes)
    weight = np.append(np.ones(said.size), n_classes - said.size)
    ways = np.maximum(weight[None, :] - np.eye(weight.size), 0)
    return Targets(said, votes[None, :] == np.append(said, -1)[:, None], weight, ways)


def _tabulate_gains(says: NDArray[np.bool_], clean: _Floats, rate: Rate) -> _Floats:
    """``log h - log C`` of every model for every label and kind of target, shape (c, kinds, m)."""
    success, failure = rate
    usual = clean.T[:, None, :]
    return np.where(says, np.logaddexp(success, failure + usual) - usual, failure)


def _add_plainly(
    base: _Floats, gains: _Floats, others: _Floats, first: Patterns, second: Patterns, targets: Targets
) -> tuple[_Floats, ...]:
    """Add probabilities up, all divided by the largest clean likelihood."""
    top = base.max()
    n_kinds, n_first, n_second = targets.weight.size, first.prior.size, second.prior.size
    sums = tuple(np.zeros(shape) for shape in ((2, base.size), (2, n_kinds), n_first, (n_first, n_second)))
    words = (first.words[:, 0], first.prior, second.words[:, 0], second.prior)
    ratios = (np.exp(base - top), np.exp(gains), np.exp(others))
    sum_pairs(*words, *ratios, targets.weight, targets.ways, *sums)
    return tuple(_log(total) + top for total in sums)


def _add_by_logs(
    base: _Floats, gains: _Floats, others: _Floats, first: Patterns, second: Patterns, targets: Targets
) -> tuple[_Floats, ...]:
    """Do the same by logarithms, for any votes and any number of models."""
    prior, other_prior = np.log(first.prior), np.log(second.prior)
    weight, ways = _log(targets.weight), _log(targets.ways)
    labels, by_kind = np.empty((2, base.size)), np.full((2, weight.size), -np.inf)
    alone, both = np.full(prior.size, -np.inf), np.full((prior.size, other_prior.size), -np.inf)
    for label, (gain, other) in enumerate(zip(gains, others, strict=True)):
        # 1. x and t: log w(x) + sum of log h / C over the models that x hits, shape (kinds, P).
        one = base[label] + prior + gain @ first.bits.T
        # 2. x' and t' given x: the same over the models that x' hits and x does not, shape (kinds, P, P').
        two = other_prior + (other @ second.bits.T)[:, None, :] - (other[:, None, :] * first.bits) @ second.bits.T
        # 3. Sums: over t; over x' and t'; over t and t'.
        over_target = add_logs(weight[:, None] + one, 0)
        over_second = add_logs(ways[:, :, None] + add_logs(two, 2)[None], 1)
        pair = add_logs(add_logs((weight[:, None] + ways)[:, :, None] + one[:, None, :], 0)[:, :, None] + two, 0)
        labels[:, label] = add_logs(over_target), add_logs(pair)
        alone, both = np.logaddexp(alone, over_target), np.logaddexp(both, pair)
        by_kind[0] = np.logaddexp(by_kind[0], add_logs(one, 1))
        by_kind[1] = np.logaddexp(by_kind[1], add_logs(one + over_second, 1))
    return labels, by_kind, alone, both


def _log(values: _Floats) -> _Floats:
    """Logarithm, -inf of 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values))
