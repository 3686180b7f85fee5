"""Bounds, greedy attacks and demands of a run-off against plain Python, and the counts that are refused.

Small enough to run without the compiler: these are tests that ``python -m benchmarks.mutate`` asks to notice.
"""

from itertools import combinations, permutations, product

import numpy as np
import pytest

from codeward._errors import InputError
from codeward._progress import silent
from codeward.certificates import certify
from codeward.certificates._runoff_attacks import (
    RunOffBreaker,
    _solve_gaps,
    attack_greedily_by_pairs,
    search_users,
    solve_pair,
)
from codeward.certificates._runoff_bounds import weigh_models
from codeward.codes import Code, partition_code
from codeward.decoding import RunOffCounts, RunOffDecoder


def draw(seed, m, n, c, n_inputs=4):
    rng = np.random.default_rng(seed)
    matrix = rng.random((m, n)) < 0.3
    matrix[np.arange(m), np.arange(m) % n] = True
    matrix[np.arange(n) % m, np.arange(n)] = True
    matrix[0, :2] = True  # no partition
    scores = rng.integers(0, 4, (n_inputs, m, c)) + 2.0 * (rng.random((n_inputs, m, 1)) < 0.5) * (np.arange(c) == 1)
    return Code(matrix), scores


class Count:
    """One input's votes, by the definitions."""

    def __init__(self, scores):
        m, c = scores.shape
        self.says = [max(range(c), key=lambda a, j=j: (scores[j, a], -a)) for j in range(m)]
        self.first = [self.says.count(a) for a in range(c)]
        self.likes = [[[(own[a], -a) > (own[b], -b) for own in scores] for b in range(c)] for a in range(c)]
        self.m, self.c = m, c
        one, two = sorted(range(c), key=lambda a: (-self.first[a], a))[:2]
        self.label = max((one, two), key=lambda a: (sum(self.likes[a][one + two - a]), -a))

    def strongest(self, *others):
        rest = [e for e in range(self.c) if e not in others]
        return max(rest, key=lambda e: (self.first[e], -e), default=None)

    def lead(self, e, a):
        return self.first[e] - self.first[a] + (e < a)

    def second(self, t, b):
        return sum(self.likes[b][t]) - sum(self.likes[t][b]) + (b < t)

    def weigh(self, t, b, e, rates):
        """How much of a sum of leads each model closes at most: by voting t, by voting b, or as it did."""
        last, over_t, over_b = rates
        found = []
        for j, v in enumerate(self.says):
            likes = self.likes[t][b][j]
            to_t = over_t * ((v != t) + (v == e)) + over_b * ((v == e) - (v == b)) + 2 * last * (not likes)
            to_b = over_t * ((v == e) - (v == t)) + over_b * ((v != b) + (v == e)) - 2 * last * likes
            found.append(max(0, to_t, to_b))
        return found

    def wins(self, hit, t, b):
        """Whether the hit models can make t win against b (Proposition 34)."""
        left = [j for j in range(self.m) if not hit[j]]
        first = [sum(self.says[j] == a for j in left) for a in range(self.c)]
        third = [e for e in range(self.c) if e not in (t, b)]
        lent = max([0, *(first[e] + (e < b) - first[b] for e in third)])
        spent = int(sum(hit)) - lent
        for_t = sum(self.likes[t][b][j] for j in left)
        enters = spent >= 0 and all(first[t] + spent >= first[e] + (e < t) for e in third)
        return enters and for_t + spent >= len(left) - for_t + lent + (b < t)


def fewest(weights, need, code, limit):
    power = sorted((sum(w for w, holds in zip(weights, column, strict=True) if holds) for column in code.matrix.T),
                   reverse=True)  # fmt: skip
    if need <= 0:
        return 0
    return next((k for k in range(1, limit + 1) if sum(power[:k]) >= need), limit + 1)


def bound_pair(count, code, t, b, limit):
    """The most that a lead, or one of four sums of leads, asks for (Proposition 36)."""
    found = [fewest(count.weigh(t, b, None, (1, 0, 0)), count.second(t, b), code, limit)]
    for e in {count.strongest(t, b), count.label} - {t, b, None}:
        found += [fewest([(v != a) + (v == e) for v in count.says], count.lead(e, a), code, limit) for a in (t, b)]
        for rates in ((0, 1, 1), (1, 1, 0), (1, 0, 1), (1, 1, 1)):
            leads = (count.second(t, b), count.lead(e, t), count.lead(e, b))
            need = sum(rate * lead for rate, lead in zip(rates, leads, strict=True))
            found.append(fewest(count.weigh(t, b, e, rates), need, code, limit))
    return max(found)


CASES = [(seed, 5 + seed % 5, 6, 2 + seed % 3) for seed in range(20)] + [(8, 70, 9, 3), (9, 66, 40, 4), (10, 130, 6, 2)]


@pytest.mark.parametrize(("seed", "m", "n", "c"), CASES)
def test_codes_are_bounded_by_leads_and_their_sums(seed, m, n, c):
    code, scores = draw(seed, m, n, c, 2 if m > 60 else 4)
    limit = 1 + seed % n
    breaker = RunOffBreaker(scores, code, RunOffDecoder(code, c))
    every, single = np.zeros((len(scores), c), dtype=np.int64), np.zeros((len(scores), 1), dtype=np.int64)
    search_users(breaker, code, limit, every, np.zeros((len(scores), 2), dtype=np.int64))
    best = np.full((len(scores), 2), -1, dtype=np.int64)
    search_users(breaker, code, limit, single, best)
    for row, own in enumerate(scores):
        count = Count(own)
        assert count.label == breaker.labels[row]
        pairs = {(t, b): min(bound_pair(count, code, t, b, limit), limit + 1) for t, b in permutations(range(c), 2)}
        assert every[row].tolist() == [min(v for (t, _), v in pairs.items() if t == u) for u in range(c)]
        others = {pair: value for pair, value in pairs.items() if pair[0] != count.label}
        assert single[row, 0] == min(others.values()) == others[tuple(best[row].tolist())]


@pytest.mark.parametrize(("seed", "m", "n", "c"), CASES)
def test_greedy_attacks_close_the_open_leads(seed, m, n, c):
    code, scores = draw(seed, m, n, c, 2)
    breaker = RunOffBreaker(scores, code, RunOffDecoder(code, c))
    for row, own in enumerate(scores):
        count, found = Count(own), []
        for t, b in permutations(range(c), 2):
            if t == count.label:
                continue
            e = count.strongest(t, b)
            leads = [count.second(t, b)] + ([count.lead(e, t), count.lead(e, b)] if e is not None else [0, 0])
            weights = count.weigh(t, b, e, [int(lead > 0) for lead in leads])
            users = []
            while len(users) < n and not (users and count.wins(code.pattern(users), t, b)):
                hit = code.pattern(users)
                power = [sum(w for j, w in enumerate(weights) if code.matrix[j, u] and not hit[j]) for u in range(n)]
                if max(power) <= 0:
                    break
                users.append(int(np.argmax(power)))
            if users and count.wins(code.pattern(users), t, b):
                found.append(users)
        expected = min(found, key=len, default=None)
        assert attack_greedily_by_pairs(breaker, code, row, n) == expected
        if expected is not None and len(expected) > 1:
            assert attack_greedily_by_pairs(breaker, code, row, len(expected) - 1) is None


@pytest.mark.parametrize(("seed", "m", "n", "c"), [(1, 7, 5, 3), (2, 6, 4, 4), (3, 7, 5, 2), (8, 66, 5, 3)])
def test_the_solver_finds_the_fewest_users_of_a_pair(seed, m, n, c):
    code, scores = draw(seed, m, n, c, 2)
    breaker = RunOffBreaker(scores, code, RunOffDecoder(code, c))
    for row, own in enumerate(scores):
        count = Count(own)
        for t, b in permutations(range(c), 2):
            if t == count.label:
                continue
            sizes = [
                len(x) for k in range(1, n + 1) for x in combinations(range(n), k) if count.wins(code.pattern(x), t, b)
            ]
            users, proved = solve_pair(breaker, row, t, b, code, 1, n, 30.0)
            if sizes:
                assert proved == min(sizes)
                assert len(users) == min(sizes)
                assert any(count.wins(code.pattern(users.tolist()), t, other) for other in range(c) if other != t)
            assert solve_pair(breaker, row, t, b, code, 3, 2, 1.0) == (None, 3)


def test_demands_are_leads_of_the_round_that_asks_for_more():
    for seed in range(8):
        c = 2 + seed % 4
        code, scores = draw(seed, 7, 4, c)
        breaker = RunOffBreaker(scores, code, RunOffDecoder(code, c))
        for row, own in enumerate(scores):
            count = Count(own)
            label, strongest = count.label, count.strongest(count.label)
            winning = [t if t != label else -1 for t in range(c)]
            assert breaker.rivals[row].tolist() == winning + [
                a if a not in (label, strongest) else -1 for a in range(c)
            ]
            for rank in np.flatnonzero(breaker.rivals[row] >= 0).tolist():
                weights, need = breaker.demands(rank, np.array([row]))
                rival = rank % c
                over = label
                lead = -1
                if rank < c:
                    lead = count.second(rival, label)
                    over = count.strongest(label, rival) if c > 2 else label
                passed = count.lead(over, rival)
                if rank < c and lead >= passed:
                    assert (need[0], weights[0].tolist()) == (lead, [2 * likes for likes in count.likes[label][rival]])
                else:
                    assert (need[0], weights[0].tolist()) == (passed, [(v != rival) + (v == over) for v in count.says])
            for rank in np.flatnonzero(breaker.rivals[row] < 0).tolist():
                assert breaker.demands(rank, np.array([row]))[1][0] == np.inf


def test_a_partition_names_who_changes_the_output():
    """Where what third voters prefer matters: counts without it prove less."""
    less = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        m, c = int(rng.integers(5, 9)), int(rng.integers(3, 5))
        code = partition_code(m, m)
        scores = rng.integers(0, 4, (12, m, c)) + 0.5 * (rng.random((12, m, c)) < 0.3)
        counts = [Count(own) for own in scores]
        found = certify(scores, code, decoder="runoff", targets=True)
        joint = certify(RunOffCounts.count(scores, joint=True), code, decoder="runoff", targets=True)
        rough = certify(RunOffCounts.count(scores), code, decoder="runoff", targets=True)
        np.testing.assert_array_equal(joint.radius_to, found.radius_to)
        single = certify(RunOffCounts.count(scores[:1], joint=True), code, decoder="runoff", targets=True)
        np.testing.assert_array_equal(single.radius_to, found.radius_to[:1])
        less += int((rough.radius_to < found.radius_to).sum())
        for row, count in enumerate(counts):
            witness = found.witness(row)
            assert len(witness.attackers) == found.radius[row] + 1
            assert count.wins(code.pattern(witness.attackers), witness.target, witness.opponent)
            hits = [bits for bits in np.ndindex(*(2,) * m) if sum(bits) <= found.radius[row]]
            for t, b in permutations(range(c), 2):
                assert t == count.label or not any(count.wins(bits, t, b) for bits in hits)
    assert less > 0


def test_counts_that_cannot_be_are_refused():
    scores = np.random.default_rng(0).random((4, 5, 3))
    good = RunOffCounts.count(scores, joint=True)
    assert (len(good), good.n_classes, good.n_models) == (4, 3, 5)
    rows = np.arange(2)

    def changed(array, place, value):
        copy = array.copy()
        copy[place] += value
        return copy

    shifted = changed(good.joint, (0, 0, [1, 2], [2, 1]), np.array([1, -1]))
    fewer = RunOffCounts.count(scores[:, :4])
    for first, pairs, joint in (
        (good.first, good.pairs, shifted),
        (np.concatenate([good.first, fewer.first]), np.concatenate([good.pairs, fewer.pairs]), None),
        (changed(good.first, (0, 0), 1), good.pairs, None),
        (good.first, changed(good.pairs, (1, 0, 1), 1), None),
        (changed(good.first, (0, rows), np.array([9, -9])), good.pairs, None),
        (good.first, good.pairs, changed(good.joint, (0, 0, 1, 2), 1)),
        (good.first, good.pairs, changed(good.joint, (2, 1, 1, 0), 1)),
        (good.first, good.pairs, good.joint[:, :2]),
        (good.first, good.pairs[:, :2], None),
        (good.first[:, :1], good.pairs[:, :1, :1], None),
        (good.first.astype(float), good.pairs, None),
    ):
        with pytest.raises(InputError, match=r"counts|joint"):
            RunOffCounts(first, pairs, joint)


@pytest.mark.parametrize(("seed", "m", "c"), [(0, 7, 3), (1, 8, 4), (2, 66, 5)])
def test_a_model_closes_what_its_best_vote_closes(seed, m, c):
    code, scores = draw(seed, m, 5, c, 1)
    breaker, count = RunOffBreaker(scores, code, RunOffDecoder(code, c)), Count(scores[0])
    for t, b, e in permutations(range(c), 3):
        for rates in product((0, 1), repeat=3):
            weights = np.zeros(m, dtype=np.int64)
            weigh_models(breaker.votes[0], breaker.prefer[0, t, b], t, b, e, np.array(rates), weights)
            assert weights.tolist() == count.weigh(t, b, e, rates)


@pytest.mark.parametrize(("seed", "m", "n", "c"), [(1, 7, 5, 3), (4, 9, 6, 3), (5, 6, 4, 2)])
def test_gaps_are_closed_from_both_sides(seed, m, n, c):
    code, scores = draw(seed, m, n, c, 3)
    truth = certify(scores, code, decoder="runoff", method="patterns")
    assert truth.exact.all()
    breaker = RunOffBreaker(scores, code, RunOffDecoder(code, c))
    lower, most = np.zeros(3, dtype=np.int64), np.full(3, n + 1)
    users = np.full((3, n), -1, dtype=np.int32)
    _solve_gaps(breaker, code, n, 60.0, lower, most, users, silent())
    assert lower.tolist() == most.tolist() == (truth.radius + 1).tolist()
    for row in range(3):
        named = users[row][users[row] >= 0].tolist()
        assert len(set(named)) == most[row]
        assert most[row] > n or breaker.broken(code.pattern(named)[None], np.array([row]))[0, 0]


#: Who votes for a third class prefers decides here: from the counts alone one user may be enough.
APART = [[1, 2, 1, 1], [0, 3, 3, 1], [2, 0, 0, 3], [1, 1, 1, 3], [3, 0, 1, 0], [0, 2, 3, 2], [0, 3, 0, 3], [0, 0, 1, 3],
         [2, 3, 0, 3]]  # fmt: skip


def test_one_input_alone_is_searched_exactly():
    code = partition_code(9, 9)
    assert certify(RunOffCounts.count([APART]), code, decoder="runoff").radius.tolist() == [0]
    assert certify(RunOffCounts.count([APART], joint=True), code, decoder="runoff").radius.tolist() == [1]
    found = certify([APART], code, decoder="runoff")
    assert (found.radius.tolist(), found.exact.tolist()) == ([1], [True])
    assert certify(RunOffCounts.count([APART]), code, decoder="runoff").reason(0).startswith("lower bound")
    told = certify(RunOffCounts.count([APART], joint=True), code, decoder="runoff").reason(0)
    assert told == "some 2 users change the output; the counts do not say which"
