r"""The Bayes posterior for many users: only the attacker sets worth it, and a proved bound on all others.

Write V for the models that say the target t, z = log(1 - S) <= 0, g_i(l) = log(S / C_i(l, y_i) + 1 - S) >= 0, B(l) for
the clean log-likelihood and s for the hit pattern of x. Then (see `codeward.decoding._posterior_kernels`)

    log p(x, y, t, l) = log prior(x) + B(l) + sum of g_i(l) over s & V + z |s - V|.                  (1)

**Failed hits.** Call f(j) = |column of user j outside V|. A set x has |s - V| >= v, v the largest f of its members, and
so at most w - v hit voters when no set of its size hits more than w models. With G(l, q) the sum of the q largest
gains,

    p(x, y, t, l) <= prior(x) exp(B(l) + G(l, min(|V|, w - v)) + z v).                               (2)

There are C(N(v), j) - C(N(v-1), j) sets of size j whose worst member has v failed hits, N(v) being the number of users
with f <= v: a histogram of f bounds the mass of every class v in time linear in n, and users past the first class with
a negligible tail are not looked at. Among the others a depth-first search keeps the union u of the users chosen so far:
every completion has at least |u - V| failed hits and at most |u & V| + (users to come) * max |column & V| hit voters,
and (2) with these numbers bounds each of them. A branch is skipped, and its sets counted with their bound, when none of
them can have more than a thousandth of `TOLERANCE` of the mass found, or when the budget is spent. The budget bounds
the search whatever n is, so the cost per input is linear in n.

**Too many sets without any failed hit** (votes nearly unanimous: anybody could have attacked towards the label that
everybody says). For the N users with f = 0 and size j the sum of (1) is prior * exp(B(l)) * C(N, j) * E exp(h), h the
gain of a uniformly random set. Its mean mu and variance v2 follow exactly from how many of these users feed each voter
and each pair of voters, and 0 <= h <= top = G(l, min(|V|, w)). As (e^y - 1 - y) / y^2 =: k(y) increases in y,

    e^mu (1 + v2 k(-mu)) <= E exp(h) <= min(e^top, e^mu (1 + v2 k(top - mu))).                       (3)

The lower end counts as found (spread evenly over these users), the difference as left out.

**The answer.** With F found, L the sum of all bounds and R the clean mass, the true share of what is left out is at
most A L / (A (F + L) + R): `Decoded.neglected`. Attack and label probabilities are off by no more than that. Where (3)
was not used, the best attacker set is the most probable one if its posterior (times that of an attack) exceeds it;
where (3) was used, user probabilities are approximate and the best set is the best of those enumerated. Users are named
for certain only where no set that was not looked at can be nearly as good as the best: where L and the bound (2) of a
set inside (3) are below 1/c of a twentieth of its mass. Otherwise `Decoded.more_sets` is a lower bound of at least 1.
"""

from functools import cached_property
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward.codes import Code, pack_words
from codeward.decoding._attacker_sets import NEARLY, Masses, Ranked, join_ranked, rank_sets
from codeward.decoding._decoded import Decoded, first_best, have_agreed
from codeward.decoding._posterior_kernels import tabulate_joint
from codeward.decoding._pruned_bounds import widest_union
from codeward.decoding._pruned_kernels import KEEP, sum_pruned

#: Share of the attack mass of an input that may be left out before more sets are enumerated.
TOLERANCE = 1e-6
#: Branches visited per vote vector, target and size (at least every single user).
BUDGET = 50_000
#: Unions enumerated once per code to find how many models j users can hit.
MAX_UNIONS = 300_000_000
#: Exponent that stands for "no bound".
LARGEST = 700.0
#: Log scale of an attack of which nothing was found, beside the clean hypothesis.
IMPOSSIBLE = -600.0


class PrunedPosterior:
    """Posterior of vote vectors over the attacker sets that matter; see the module for the bound and its proof.

    Parameters
    ----------
    code : Code
    prior : ndarray, shape (k + 1,)
        Q(0..k).
    success_rate, failure : float
        S and log(1 - S).
    tolerance, budget : float
        See `TOLERANCE` and `BUDGET`.
    """

    def __init__(
        self,
        code: Code,
        prior: NDArray[np.float64],
        success_rate: float,
        failure: float,
        tolerance: float = TOLERANCE,
        budget: float = BUDGET,
    ) -> None:
        self.code = code
        self.prior = prior
        self.success_rate = success_rate
        self.failure = failure
        self.tolerance = tolerance
        self.budget = budget

    @cached_property
    def columns_(self) -> NDArray[np.uint64]:
        """Models of each user as bit sets, shape (n, ceil(m / 64))."""
        return pack_words(self.code.matrix.T)

    @cached_property
    def rows_(self) -> NDArray[np.uint64]:
        """Users of each model as bit sets, shape (m, ceil(n / 64))."""
        return pack_words(self.code.matrix)

    @cached_property
    def widest_(self) -> NDArray[np.int64]:
        """Upper bounds on the number of models 0..k users hit together, exact where enumeration is affordable."""
        widest = [0, int(self.code.matrix.sum(axis=0).max())]
        for size in range(2, self.prior.size):
            if size <= 3 and comb(self.code.n_users, size) <= MAX_UNIONS:
                found = widest_union(self.columns_, size)
            else:
                found = widest[-1] + widest[1]
            # With fewer users than `size` no set is enumerated; the bound must not fall.
            widest.append(min(self.code.n_models, max(found, widest[-1])))
        return np.array(widest[: self.prior.size], dtype=np.int64)

    def decode(self, votes: NDArray[np.int64], base: NDArray[np.float64], attack_rate: float) -> Decoded:
        """Decode vote vectors of shape (U, m) with clean log-likelihoods of shape (U, m, c)."""
        n_inputs, _, n_classes = base.shape
        sums, users = np.zeros((n_inputs, 2, n_classes + 1)), np.zeros((n_inputs, self.code.n_users))
        kept = np.full((KEEP, self.prior.size - 1), -1, dtype=np.int64)
        state, scales, left = np.zeros(5), np.zeros((n_inputs, 2)), np.zeros(n_inputs)
        ranked: list[Ranked] = []
        everything = np.log(n_classes / NEARLY)
        for u in range(n_inputs):
            n_kept = sum_pruned(
                votes[u],
                base[u],
                self.columns_,
                self.rows_,
                self.prior,
                self.widest_,
                self.success_rate,
                self.failure,
                self.tolerance,
                float(max(self.budget, self.code.n_users)),
                sums[u],
                users[u],
                kept,
                state,
            )
            if state[0] == -np.inf:
                # Nothing was found (the budget went on negligible sets): nothing is known either.
                sums[u], state[0], state[1] = 1.0, base[u].sum(axis=0).max() + IMPOSSIBLE, np.inf
            scales[u, 0] = state[0]
            left[u] = np.exp(min(state[1] - state[0], LARGEST))
            # A set that was left out, added in bulk or not kept may be nearly best: then nobody is certain.
            unlisted = int(state[3] < everything or n_kept == KEEP or state[[1, 4]].max() >= state[2] - everything)
            ranked.append(self._rank_sets(votes[u : u + 1], base[u : u + 1], kept[:n_kept], unlisted))

        labels, targets = sums[:, 0, :n_classes], sums[:, 1, :n_classes]
        silent = (votes[:, :, None] != np.arange(n_classes)).all(axis=1)
        targets = np.where(silent, sums[:, 1, n_classes:] / np.maximum(silent.sum(axis=1, keepdims=True), 1), targets)

        # Posteriors as for the exact sum; A L / (A (F + L) + R) for what is left out.
        total = base.sum(axis=1)
        scales[:, 1] = total.max(axis=1)
        masses = Masses(labels, targets, np.exp(total - scales[:, 1:]), np.empty((0, 0)), scales)
        attacked, clean = masses.hypotheses(attack_rate)
        found = np.maximum(labels.sum(axis=1), np.finfo(np.float64).tiny)
        rest = attacked * left
        by_label = masses.label_probability(attack_rate)
        suspects = join_ranked(ranked)
        return Decoded(
            first_best(by_label),
            masses.attack_probability(attack_rate),
            first_best(targets),
            suspects.certain,
            np.minimum(users / found[:, None], 1.0),
            by_label,
            rest / (attacked * found + rest + clean * masses.clean.sum(axis=1)),
            suspects.sets,
            suspects.more,
            have_agreed(votes),
        )

    def _rank_sets(
        self, votes: NDArray[np.int64], base: NDArray[np.float64], kept: NDArray[np.int64], unlisted: int
    ) -> Ranked:
        """Rank the kept sets by their posterior over all targets; ties to the fewest users, then lowest indices."""
        sets = sorted({tuple(sorted(u for u in row if u >= 0)) for row in kept.tolist()}, key=lambda x: (len(x), x))
        if not sets:
            return (), (), unlisted
        words = np.zeros((len(sets), self.columns_.shape[1]), dtype=np.uint64)
        for row, found in enumerate(sets):
            words[row] = np.bitwise_or.reduce(self.columns_[list(found)], axis=0)
        joint = np.empty((1, len(sets), base.shape[2]))
        tabulate_joint(votes, base, words, self.success_rate, self.failure, joint)
        prior = np.array([self.prior[len(x)] / comb(self.code.n_users, len(x)) for x in sets])
        masses = np.exp(joint[0] - joint.max()).sum(axis=1) * prior
        return rank_sets(dict(zip(sets, masses.tolist(), strict=True)), unlisted)
