"""Sums of the joint probability over pairs of hit patterns, for one vote vector; logarithms throughout."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]

#: Hit patterns, (P, m) of 0 and 1, and the logarithm of their prior, (P,).
Patterns = tuple[_Floats, _Floats]
#: log S and log(1 - S).
Rate = tuple[float, float]


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
    (bits, prior), (other_bits, other_prior) = first, second
    n_classes = clean.shape[1]
    # 1. Targets that some model says, and one that stands for all others: nothing tells those apart.
    said = np.unique(votes)
    kinds = np.append(said, -1)
    many = np.append(np.ones(said.size), n_classes - said.size)
    says = votes[None, :] == kinds[:, None]
    # Ways to choose t', given one t of a kind: any class but t itself.
    with np.errstate(divide="ignore"):
        weight, ways = np.log(many), np.log(np.maximum(many[None, :] - np.eye(kinds.size), 0))
    labels, by_kind = np.empty((2, n_classes)), np.full((2, kinds.size), -np.inf)
    alone, both = np.full(prior.size, -np.inf), np.full((prior.size, other_prior.size), -np.inf)
    for label in range(n_classes):
        usual = clean[:, label]
        base = usual.sum()
        # 2. x and t: log w(x) + sum of log h / C over the models that x hits, shape (kinds, P).
        one = base + prior + _gain(says, usual, rate) @ bits.T
        # 3. x' and t' given x: the same over the models that x' hits and x does not, shape (kinds, P, P').
        gain = _gain(says, usual, second_rate)
        two = other_prior + (gain @ other_bits.T)[:, None, :] - (gain[:, None, :] * bits) @ other_bits.T
        # 4. Sums: over t, over t' and x', over t and t'.
        over_target = add_logs(weight[:, None] + one, 0)
        second_sum = add_logs(ways[:, :, None] + add_logs(two, 2)[None], 1)
        pair = add_logs(add_logs((weight[:, None] + ways)[:, :, None] + one[:, None, :], 0)[:, :, None] + two, 0)
        labels[:, label] = add_logs(over_target), add_logs(pair)
        alone, both = np.logaddexp(alone, over_target), np.logaddexp(both, pair)
        by_kind[0] = np.logaddexp(by_kind[0], add_logs(one, 1))
        by_kind[1] = np.logaddexp(by_kind[1], add_logs(one + second_sum, 1))
    targets = np.repeat(by_kind[:, -1:], n_classes, axis=1)
    targets[:, said] = by_kind[:, :-1]
    return PairWeights(labels, targets, alone, both)


def add_logs(values: _Floats, axis: int | None = None) -> _Floats:
    """Log of the sum of exponentials; scipy's takes longer to begin than these small sums to end."""
    top = values.max(axis=axis, keepdims=True)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - shift).sum(axis=axis)) + shift.squeeze(axis))


def log_rate(rate: float) -> float:
    """Log of a probability, -inf for 0."""
    return float(np.log(rate)) if rate > 0 else -np.inf


def _gain(says: NDArray[np.bool_], usual: _Floats, rate: Rate) -> _Floats:
    """``log h - log C`` of every model for every target, shape (kinds, m)."""
    success, failure = rate
    return np.where(says, np.logaddexp(success, failure + usual) - usual, failure)
