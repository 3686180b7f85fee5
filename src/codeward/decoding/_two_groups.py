"""A Bayes decoder for two attacking groups whose triggers are taken for each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._cores import share_rows
from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, count_attacker_sets
from codeward.decoding._assumptions import DEFAULTS, VoteModel, check_rate, check_votes
from codeward.decoding._attacker_sets import (
    NEARLY,
    TIE_TOLERANCE,
    AttackerSets,
    Ranked,
    gather_attacker_sets,
    join_ranked,
    rank_sets,
)
from codeward.decoding._bayes import EXACT_SETS, BayesDecoder, log_failure
from codeward.decoding._decoded import ALARM, Decoded, distinct_rows, first_best, have_agreed
from codeward.decoding._posterior_kernels import sum_pairs

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


#: Pairs of hit patterns that a vote vector is compared with at most.
MOST_PAIRS = 4_000_000
#: Nearly best pairs of patterns whose users are listed at most; past it nobody is named for certain.
MOST_EXPLAINED = 500


@dataclass(eq=False, repr=False)
class TwoGroupDecoder:
    r"""Posterior over (attack?, attackers x, target t, a second group x' with target t', label l) given the m votes.

    Goes past the paper, whose decoder knows one group. Independent groups that stamp the same place with patterns that
    are alike break its assumption: models that only the *other* group poisoned answer to this trigger too, with the
    other target, and an input shows two targets. Here

    .. math::

        Pr(y \mid x, t, x', t', l) = \prod_{i \in x} h_i(S, t) \prod_{i \in x' \setminus x} h_i(S', t')
            \prod_{i \notin x \cup x'} C^{(i)}_{l y_i},
        \qquad h_i(S, t) = S [y_i = t] + (1 - S) C^{(i)}_{l y_i}

    (:math:`i \in x`: model i is hit by somebody in x), and an attack has a second group with probability B, of 1 to k
    users, with any target but t. Threat model: *deterministic*, twice. A probability statement, not a certificate:
    under *arbitrary* attacks both groups together count as one, see `ConsensusDecoder`. With B = 0 this is
    `BayesDecoder`.

    Parameters
    ----------
    code : Code
    confusion : array_like of shape (m, c, c), or VoteModel
        As for `BayesDecoder`.
    attack_rate, success_rate : float
        A and S of `BayesDecoder`.
    attackers_prior : sequence of float
        Q(0), ..., Q(k); that of the second group is the same without 0.
    second_rate : float
        B, prior probability that an attack has a second group, in 0..1.
    second_success_rate : float
        S', how often a model of the second group answers to the first one's trigger, in 0..1.

    Notes
    -----
    Exact; a vote vector takes time in proportion to the pairs of hit patterns, so this is for tens of users, not for
    hundreds. Ties as in `BayesDecoder`, and one
    group before two. More than two groups are not implemented.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> confusion = [[[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]]] * 6
    >>> decoder = TwoGroupDecoder(code, confusion, attackers_prior=(0.5, 0.5), second_rate=0.5)
    >>> found = decoder.decode([[0, 0, 1, 1, 2, 2]])
    >>> found.suspect_sets, found.suspects  # any two of the three
    ([((0, 1), (0, 2), (1, 2))], [()])
    """

    needs: ClassVar[Literal["votes"]] = "votes"
    threshold: ClassVar[float] = ALARM

    code: Code
    confusion: ArrayLike | VoteModel
    attack_rate: float = DEFAULTS.attack_rate
    success_rate: float = DEFAULTS.success_rate
    attackers_prior: Sequence[float] = DEFAULTS.attackers_prior
    second_rate: float = DEFAULTS.second_rate
    second_success_rate: float = DEFAULTS.second_success_rate

    @cached_property
    def single_(self) -> BayesDecoder:
        """The decoder for one group; the rates are checked here."""
        check_rate("second_rate", self.second_rate)
        check_rate("second_success_rate", self.second_success_rate)
        rates = (self.attack_rate, self.success_rate)
        single = BayesDecoder(self.code, self.confusion, *rates, self.attackers_prior, method="exact")
        if single.n_classes < 2:
            raise InputError("two groups have two targets, so there must be at least two classes")
        # Before any of them is listed.
        sets = count_attacker_sets(self.code.n_users, single.prior_.size - 1)
        if sets > EXACT_SETS:
            raise TooLargeError(f"{sets:,} attacker sets; allow fewer attackers a group, or use BayesDecoder")
        return single

    @cached_property
    def second_(self) -> AttackerSets:
        """Hit patterns of a second group, with their prior."""
        prior = self.single_.prior_.copy()
        prior[0] = 0
        if not prior.sum():
            raise InputError("attackers_prior: a second group has a user at least, but only 0 has a probability")
        second = gather_attacker_sets(self.code, prior / prior.sum())
        pairs = self.single_.sets_.weights.size * second.weights.size
        if pairs > MOST_PAIRS:
            raise TooLargeError(f"{pairs:,} pairs of hit patterns; allow fewer attackers a group, or use BayesDecoder")
        return second

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return self.single_.n_classes

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m); see `Decoded`.

        Targets are those of the group whose trigger the input carries; suspects and user probabilities are of both.
        """
        single, second = self.single_, self.second_
        n_classes = single.n_classes
        distinct, inverse = distinct_rows(check_votes(votes, self.code.n_models, n_classes), n_classes)
        size = len(distinct)
        by_label, by_target = np.empty((size, n_classes)), np.empty((size, n_classes))
        attacked, by_user = np.empty(size), np.empty((size, self.code.n_users))
        suspects: list[Ranked] = [((), (), 0)] * size
        clean = single.vote_model_.log_likelihood(distinct)
        patterns, others = Patterns.take(single.sets_), Patterns.take(second)
        rates = [(log_rate(rate), log_failure(rate)) for rate in (self.success_rate, self.second_success_rate)]
        # (1 - B) for one group; B / (c - 1) for two, since the second target is another than the first.
        one, two = log_rate(1 - self.second_rate), log_rate(self.second_rate) - np.log(n_classes - 1)

        def work(rows: slice) -> None:
            for row in range(rows.start, rows.stop):
                found = weigh_pairs(distinct[row], clean[row], patterns, others, *rates)
                # 1. A sum over (x, t, x', t'), and (1 - A) c times the clean likelihood: no target is drawn there.
                hit = np.logaddexp(one + found.labels[0], two + found.labels[1]) + log_rate(self.attack_rate)
                quiet = clean[row].sum(axis=0) + np.log(n_classes) + log_rate(1 - self.attack_rate)
                total = np.logaddexp(hit, quiet)
                by_label[row] = np.exp(total - add_logs(total))
                attacked[row] = np.exp(add_logs(hit) - add_logs(total))
                # 2. Target and attackers, given an attack.
                target = np.logaddexp(one + found.targets[0], two + found.targets[1])
                by_target[row] = np.exp(target - add_logs(target))
                alone, both = one + found.alone, two + found.both
                scale = np.logaddexp(add_logs(alone), add_logs(both))
                by_user[row], suspects[row] = self._name(np.exp(alone - scale), np.exp(both - scale))

        share_rows(size, work)
        labels, targets = first_best(by_label), first_best(by_target)
        named = join_ranked(suspects)
        known = (labels, attacked, targets, named.certain, by_user, by_label, np.zeros(size))
        return Decoded(*known, named.sets, named.more, have_agreed(distinct)).take(inverse).named(self.code.users)

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,)."""
        return self.decode(votes).labels

    def _name(self, alone: NDArray[np.float64], both: NDArray[np.float64]) -> tuple[NDArray[np.float64], Ranked]:
        """Return Pr(j in x or x') of each user and the suspects (see `rank_sets`), from the posterior of patterns."""
        sets, second = self.single_.sets_, self.second_
        # Given the patterns, who is in x and who in x' is independent.
        mine, theirs = both.sum(axis=1) @ sets.members, both.sum(axis=0) @ second.members
        shared = (second.members.T @ (sets.members.T @ both).T).diagonal()
        by_user = np.clip(alone @ sets.members + mine + theirs - shared, 0.0, 1.0)
        share, other = sets.best_weights / sets.weights, second.best_weights / second.weights
        scores = np.concatenate([alone * share, (both * share[:, None] * other).ravel()])
        # Explanations by patterns, nearly best ones only; then the sets behind each. Two pairs may name the same users.
        masses: dict[tuple[int, ...], float] = {}
        near = np.flatnonzero(scores >= scores.max() * NEARLY * (1 - TIE_TOLERANCE))
        best = np.sort(near[np.argsort(-scores[near], kind="stable")[:MOST_EXPLAINED]])
        for place in best.tolist():
            row, last = (place, None) if place < alone.size else divmod(place - alone.size, other.size)
            for x, weight in _list_sets(sets, row):
                for x2, weight2 in [((), 1.0)] if last is None else _list_sets(second, last):
                    users = tuple(sorted({*x, *x2}))
                    masses[users] = max(masses.get(users, 0.0), scores[place] * weight * weight2)
        return by_user, rank_sets(masses, near.size - best.size)


def _list_sets(sets: AttackerSets, row: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the attacker sets of a pattern with their prior as a part of the best one's."""
    chosen = slice(int(sets.starts[row]), int(sets.starts[row + 1]))
    found = [tuple(user for user in users if user >= 0) for users in sets.users[chosen].tolist()]
    return list(zip(found, (sets.set_weights[chosen] / sets.best_weights[row]).tolist(), strict=True))
