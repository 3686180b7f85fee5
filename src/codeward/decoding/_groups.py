"""A Bayes decoder for two attacking groups whose triggers are taken for each other."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, count_attacker_sets
from codeward.decoding._assumptions import DEFAULTS, check_rate
from codeward.decoding._bayes import EXACT_SETS, BayesDecoder, log_failure
from codeward.decoding._decoded import Decoded, distinct_rows, first_best
from codeward.decoding._models import VoteModel, check_votes
from codeward.decoding._pairs import Patterns, add_logs, log_rate, weigh_pairs
from codeward.decoding._sets import AttackerSets, gather_attacker_sets
from codeward.decoding._threads import share_rows

#: Pairs of hit patterns that a vote vector is compared with at most.
MOST_PAIRS = 4_000_000


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
    hundreds. Ties as in `BayesDecoder`, and one group before two. More than two groups are not implemented.
    """

    needs: Literal["votes"] = "votes"

    def __init__(
        self,
        code: Code,
        confusion: ArrayLike | VoteModel,
        attack_rate: float = DEFAULTS.attack_rate,
        success_rate: float = DEFAULTS.success_rate,
        attackers_prior: Sequence[float] = DEFAULTS.attackers_prior,
        second_rate: float = DEFAULTS.second_rate,
        second_success_rate: float = DEFAULTS.second_success_rate,
    ) -> None:
        self.code = code
        self.confusion = confusion
        self.attack_rate = attack_rate
        self.success_rate = success_rate
        self.attackers_prior = attackers_prior
        self.second_rate = second_rate
        self.second_success_rate = second_success_rate

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
        suspects: list[tuple[int, ...]] = [()] * size
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
                calm = clean[row].sum(axis=0) + np.log(n_classes) + log_rate(1 - self.attack_rate)
                total = np.logaddexp(hit, calm)
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
        return Decoded(labels, attacked, targets, suspects, by_user, by_label, np.zeros(size)).take(inverse)

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,)."""
        return self.decode(votes).labels

    def _name(
        self, alone: NDArray[np.float64], both: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], tuple[int, ...]]:
        """Return Pr(j in x or x') of each user and the most probable users, from the posterior of the patterns."""
        sets, second = self.single_.sets_, self.second_
        # Given the patterns, who is in x and who in x' is independent.
        mine, theirs = both.sum(axis=1) @ sets.members, both.sum(axis=0) @ second.members
        shared = (second.members.T @ (sets.members.T @ both).T).diagonal()
        by_user = np.clip(alone @ sets.members + mine + theirs - shared, 0.0, 1.0)
        share, other = sets.best_weights / sets.weights, second.best_weights / second.weights
        best = int(first_best(np.concatenate([alone * share, (both * share[:, None] * other).ravel()])[None])[0])
        if best < alone.size:
            return by_user, sets.best_sets[best]
        first, last = divmod(best - alone.size, other.size)
        return by_user, tuple(sorted({*sets.best_sets[first], *second.best_sets[last]}))
