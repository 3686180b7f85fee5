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

from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import bit_count, compiled
from codeward.codes import Code, pack_words
from codeward.decoding._attacker_sets import NEARLY, Masses, Ranked, join_ranked, rank_sets
from codeward.decoding._decoded import Decoded, first_best, have_agreed
from codeward.decoding._posterior_kernels import GROUP, list_voters, read_votes, tabulate_groups, tabulate_joint
from codeward.decoding._pruned_search import (
    KEEP,
    PER_SET,
    add_bulk,
    choose,
    drop_small,
    greedy_set,
    log_add,
    log_between,
    log_choose,
    search_sets,
    widest_union,
)

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


@dataclass(eq=False, repr=False)
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

    code: Code
    prior: NDArray[np.float64]
    success_rate: float
    failure: float
    tolerance: float = TOLERANCE
    budget: float = BUDGET

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


@compiled
def sum_pruned(
    votes: NDArray[np.int64],
    base: NDArray[np.float64],
    columns: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    prior: NDArray[np.float64],
    widest: NDArray[np.int64],
    success_rate: float,
    failure: float,
    tolerance: float,
    budget: float,
    masses: NDArray[np.float64],
    user_mass: NDArray[np.float64],
    kept_sets: NDArray[np.int64],
    state: NDArray[np.float64],
) -> int:
    """Sum p(x, y, t, l) of one vote vector over the attacker sets worth it, and bound the rest.

    Parameters
    ----------
    votes, base : shapes (m,), (m, c)
    columns, rows : shapes (n, ceil(m / 64)), (m, ceil(n / 64))
        The code as bit sets of models per user, and of users per model.
    prior, widest : shape (k + 1,)
        Q; upper bounds on the number of models j users hit together.
    masses, user_mass : shapes (2, c + 1), (n,)
        Outputs times exp(-state[0]): row 0 by label, row 1 by target, its last entry for all targets without a vote.
    kept_sets : shape (KEEP, k)
        Output: sets among which the nearly best ones are, padded with -1.
    state : shape (5,)
        Output: log scale of the masses; log of the bound on what is left out; log of the best mass of one set; how far
        below it the log mass of a kept set may be; log of the largest mass that a set added in bulk may have.

    Returns
    -------
    int
        Number of kept sets.
    """
    n_models, n_classes = base.shape
    n_users, n_words = columns.shape
    n_sizes = prior.size
    total, gains = np.empty(n_classes), np.empty((n_models, n_classes))
    voters = np.empty(n_classes, dtype=np.int64)
    unvoted = read_votes(votes, base, success_rate, total, gains, voters)

    # 1. What is certain to be there: the empty set, alike under every target. `known`: a lower bound on the log mass.
    masses[:] = 0.0
    user_mass[:] = 0.0
    state[:] = -np.inf
    state[3] = np.log(n_classes / NEARLY) + 1e-6
    known = -np.inf
    kept_mass = np.empty(KEEP)
    n_kept = 0
    if prior[0] > 0:
        state[0] = total.max() + np.log(prior[0])
        masses[0, :n_classes] = n_classes * np.exp(total - total.max())
        one = masses[0].sum() / n_classes
        for t in range(n_classes):
            masses[1, t if voters[t] > 0 else n_classes] += one
        known = np.log(masses[0].sum()) + state[0]
        kept_sets[0] = -1
        state[2] = kept_mass[0] = np.log(one) + state[0]
        n_kept = 1

    # 2. Targets by number of voters, most first; slot c stands for all targets nobody voted for.
    order = np.argsort(-voters, kind="mergesort")
    n_voted = n_classes - unvoted
    models = np.empty(n_models, dtype=np.int64)
    said = np.zeros(n_words, dtype=np.uint64)
    near = np.zeros((1, n_words), dtype=np.uint64)
    fails, covers = np.empty(n_users, dtype=np.int64), np.empty(n_users, dtype=np.int64)
    tables = np.empty(((n_models + GROUP - 1) // GROUP, 1 << GROUP, n_classes))
    best_gain = np.zeros((n_classes, n_models + 1))
    bound, skipped = np.empty((n_models + 1, n_models + 1)), np.zeros((n_models + 1, n_models + 1))
    tail = np.empty(n_models + 2)
    for place in range(n_voted + (1 if unvoted else 0)):
        target = order[place] if place < n_voted else n_classes
        log_alike = 0.0 if target < n_classes else np.log(unvoted)
        n_said = list_voters(votes, target, models, said)
        tabulate_groups(gains, votes, target, tables)

        # 3. Per user: hit voters, and failed hits that every set with this user has at least.
        histogram = np.zeros(n_models + 2, dtype=np.int64)
        for user in range(n_users):
            covers[user] = fails[user] = 0
            for w in range(n_words):
                covers[user] += bit_count(columns[user, w] & said[w])
                fails[user] += bit_count(columns[user, w] & ~said[w])
            histogram[fails[user]] += 1
        by_fails = np.argsort(fails, kind="mergesort")

        # 4. bound[q, v]: log of the sum over labels of exp(B(l) + G(l, q) + z v), the bound (2) without the prior.
        for label in range(n_classes):
            ranked = np.sort(gains[models[:n_said], label])
            for q in range(n_said):
                best_gain[label, q + 1] = best_gain[label, q] + ranked[n_said - 1 - q]
        for q in range(n_said + 1):
            top = (total + best_gain[:, q]).max()
            value = top + np.log(np.exp(total + best_gain[:, q] - top).sum())
            for v in range(n_models + 1):
                bound[q, v] = value + failure * v

        for size in range(1, min(n_sizes - 1, n_users) + 1):
            if prior[size] <= 0.0:
                continue
            head = np.log(prior[size]) - log_choose(n_users, size) + log_alike
            # 5. One good guess tells early how much may be left out.
            if n_said:
                greedy_set(columns, said, size, near[0])
                lost, top, value = 0, -np.inf, -np.inf
                for w in range(n_words):
                    lost += bit_count(near[0, w] & ~said[w])
                for label in range(n_classes):
                    top = total[label]
                    for a in range(n_said):
                        i = models[a]
                        if (near[0, i >> 6] >> np.uint64(i & 63)) & np.uint64(1):
                            top += gains[i, label]
                    value = log_add(value, top)
                known = max(known, head + value + failure * lost)
            allowed = known + np.log(0.5 * tolerance / (n_sizes * (n_voted + 1)))

            # 6. tail[v]: bound on the mass of the sets whose worst member has v or more failed hits. Users past the
            #    first class with a negligible tail are not looked at.
            tail[n_models + 1] = -np.inf
            upto = n_users
            for v in range(n_models, -1, -1):
                many = log_between(upto - histogram[v], upto, size)
                tail[v] = log_add(tail[v + 1], many + head + bound[max(0, min(n_said, widest[size] - v)), v])
                upto -= histogram[v]
            cut = 0
            while tail[cut] > allowed:
                cut += 1
            state[1] = log_add(state[1], tail[cut])
            n_free = histogram[:cut].sum()
            if n_free < size:
                continue
            least = known + np.log(tolerance * PER_SET) - head
            n_excluded = 0
            room = min(n_said, widest[size])
            if choose(histogram[0], size) > budget and bound[room, 0] > least:
                n_excluded = histogram[0]
                state[4] = max(state[4], head + bound[room, 0])
                add_bulk(
                    by_fails[:n_excluded], size, rows, models, n_said, gains, total, best_gain[:, room], head, target,
                    masses, user_mass, state,
                )  # fmt: skip
            skipped[:] = 0.0
            farthest = covers[by_fails[:n_free]].max()
            n_kept = search_sets(
                by_fails[:n_free], n_excluded, size, columns, said, n_said, tables, total, bound, least, head,
                failure, farthest, widest[size], budget, target, masses, user_mass, skipped, kept_sets, kept_mass,
                n_kept, state,
            )  # fmt: skip
            for q in range(n_said + 1):
                for v in range(n_models + 1):
                    if skipped[q, v] > 0.0:
                        state[1] = log_add(state[1], np.log(skipped[q, v]) + head + bound[q, v])
            if masses[0].sum() > 0.0:
                known = max(known, np.log(masses[0].sum()) + state[0])
    return int(drop_small(kept_sets[:n_kept], kept_mass[:n_kept], state[2] - state[3]))
