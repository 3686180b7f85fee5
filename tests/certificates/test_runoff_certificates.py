"""Certificates of the run-off: exhaustive attacks, known-bad twins, bounds of many users, the published ones."""

import time
from itertools import combinations, permutations, product

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.certificates import certify, certify_collective, certify_run_off_election
from codeward.codes import Code, partition_code, shifted_hash_code
from codeward.decoding import RunOffCounts, RunOffDecoder


def draw_code(rng, max_models=5, max_users=4):
    m, n = int(rng.integers(1, max_models + 1)), int(rng.integers(1, max_users + 1))
    matrix = rng.random((m, n)) < rng.choice([0.1, 0.3, 0.5])
    matrix[np.arange(m), np.arange(m) % n] = True
    matrix[np.arange(n) % m, np.arange(n)] = True
    return Code(matrix[rng.permutation(m)])


def draw_scores(rng, shape, agree=0.0):
    """Scores that often tie; with ``agree`` some models favour one class of the input."""
    scores = rng.integers(0, 4, shape).astype(np.float32)
    liked = rng.integers(0, shape[2], shape[0])
    bonus = (rng.random(shape[:2]) < agree)[:, :, None] * (np.arange(shape[2]) == liked[:, None, None])
    return scores + 4 * bonus


def fewest_by_trying(scores, code, limit):
    """Fewest users to make each label win: all attacker sets, all orders that hit models may have."""
    c = scores.shape[1]
    found = np.full(c, limit + 1)
    for k in range(limit, -1, -1):
        for users in combinations(range(code.n_users), k):
            spots = np.flatnonzero(code.matrix[:, list(users)].any(axis=1))
            orders = list(product(permutations(range(c)), repeat=spots.size))
            changed = np.repeat(scores[None], len(orders), axis=0)
            changed[:, spots] = np.reshape(orders, (len(orders), spots.size, c))
            found[np.unique(RunOffDecoder().predict(changed))] = k
    return found


def reference(scores, code, limit, *, ties=1, lend=True, late=0):
    """Fewest users by patterns, in plain Python after Proposition 34; the arguments break it."""
    m, c = scores.shape
    votes = [max(range(c), key=lambda v: (own[v], -v)) for own in scores]
    found = np.full(c, limit + 1)
    for k in range(limit, -1, -1):
        for users in combinations(range(code.n_users), k):
            hit = code.matrix[:, list(users)].any(axis=1)
            left = [i for i in range(m) if not hit[i]]
            first = [sum(votes[i] == a for i in left) for a in range(c)]
            for t, b in permutations(range(c), 2):
                third = [e for e in range(c) if e not in (t, b)]
                lent = max([0, *(first[e] + ties * (e < b) - first[b] for e in third)]) if lend else 0
                spent = hit.sum() - lent
                for_t = sum(scores[i][t] > scores[i][b] or (scores[i][t] == scores[i][b] and t < b) for i in left)
                wins = for_t + spent >= len(left) - for_t + lent + ties * (b < t)
                enters = spent >= 0 and all(first[t] + spent >= first[e] + ties * (e < t) for e in third)
                stays = lend or all(first[b] >= first[e] + ties * (e < b) for e in third)
                if wins and enters and stays:
                    found[t] = k
    return np.where(found > 0, np.minimum(found + late, limit + 1), found)


@pytest.mark.parametrize("seed", range(8))
def test_every_label_takes_as_many_users_as_trying_says(seed):
    rng = np.random.default_rng(seed)
    code = draw_code(rng, max_models=3 if seed % 2 else 5)
    scores = draw_scores(rng, (4, code.n_models, 4 if seed % 2 else 3), agree=0.4)
    n = code.n_users
    truth = np.array([fewest_by_trying(own, code, n) for own in scores])
    np.testing.assert_array_equal([reference(own, code, n) for own in scores], truth)
    for method in ("patterns", "milp", "auto"):
        found = certify(scores, code, decoder="runoff", method=method, max_attackers=n, targets=True)
        others = np.where(np.arange(truth.shape[1]) == found.labels[:, None], n + 1, truth)
        np.testing.assert_array_equal(found.radius, others.min(axis=1) - 1)
        assert (truth[np.arange(4), found.labels] == 0).all()
        if method == "patterns":
            np.testing.assert_array_equal(found.radius_to, truth - 1)
        assert (found.radius_to <= truth - 1).all()


def faults(bad):
    """Judge a certificate (scores, code -> fewest users): on how many cases it claims more than what is true.

    The truth by trying where that is possible, else by patterns, which the test above holds against trying.
    """
    rng = np.random.default_rng(5)
    unsound = 0
    for case in range(61):
        code = draw_code(rng, max_models=4 if case < 20 else 9, max_users=5)
        scores = draw_scores(rng, (1, code.n_models, 3), agree=0.4)
        if case == 60:
            # 0 leads and would win against 1; two of its voters, one lent to 2, put it out of the second round.
            code = partition_code(12, 12)
            scores = np.array([[[2, 1, 0]] * 5 + [[1, 2, 0]] * 4 + [[1, 0, 2]] * 3], dtype=np.float32)
        if case < 20:
            truth = fewest_by_trying(scores[0], code, code.n_users)
        else:
            truth = certify(scores, code, decoder="runoff", method="patterns", targets=True).radius_to[0] + 1
        unsound += bool((bad(scores[0], code) > truth).any())
    return unsound


def test_the_harness_passes_the_reference_and_catches_known_bad_twins():
    n = lambda code: code.n_users  # noqa: E731
    assert faults(lambda scores, code: reference(scores, code, n(code))) == 0
    # Off by one; no votes lent to the opponent; ties against the attacker, so that an attack that ties is not seen.
    assert faults(lambda scores, code: reference(scores, code, n(code), late=1))
    assert faults(lambda scores, code: reference(scores, code, n(code), lend=False))
    assert faults(lambda scores, code: reference(scores, code, n(code), ties=2))


@pytest.mark.parametrize("seed", range(6))
def test_a_partition_is_searched_exactly_from_scores_and_from_joint_counts(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 9))
    owner = np.concatenate([np.arange(m), rng.integers(0, m, 2)])
    code = Code((owner == np.arange(m)[:, None]).astype(int))
    scores = draw_scores(rng, (300, m, int(rng.integers(2, 6))), agree=rng.choice([0.0, 0.3, 0.6]))
    slow = certify(scores, code, decoder="runoff", method="patterns", targets=True)
    for observed in (scores, RunOffCounts.count(scores, joint=True)):
        fast = certify(observed, code, decoder="runoff", targets=True)
        np.testing.assert_array_equal(fast.radius, slow.radius)
        np.testing.assert_array_equal(fast.radius_to, np.where(slow.radius_to == 10, fast.searched, slow.radius_to))
        assert fast.exact.all()
        assert fast.reason(0)
    rough = certify(RunOffCounts.count(scores), code, decoder="runoff", targets=True)
    assert (rough.radius <= slow.radius).all()
    assert (rough.radius_to <= slow.radius_to).all()
    assert (rough.radius >= certify_run_off_election(scores, code)).all()
    assert not rough.exact.any()


def check_witnesses(found, scores, code, n_inputs=40):
    for i in np.flatnonzero((found.attackers >= 0).any(axis=1))[:n_inputs]:
        witness = found.witness(i)
        assert len(witness.attackers) == found.radius[i] + 1
        hit = code.pattern(witness.attackers)
        said = np.full(hit.sum(), witness.target)
        said[: witness.n_opponent] = witness.opponent
        changed = scores[i].copy()
        changed[hit] = 99 * np.eye(scores.shape[2])[said]
        assert RunOffDecoder().predict(changed[None])[0] == witness.target != found.labels[i]


CODES = {
    "partition": partition_code(30, 30),
    "shifted-hash": shifted_hash_code(10, 4, np.random.default_rng(0)),
    "random": Code((np.random.default_rng(1).random((25, 30)) < 0.1) | (np.arange(30) % 25 == np.arange(25)[:, None])),
}


@pytest.mark.parametrize("name", CODES)
def test_many_users_are_never_below_what_is_published_and_never_above_an_attack(name):
    code, rng = CODES[name], np.random.default_rng(3)
    scores = draw_scores(rng, (60, code.n_models, 5), agree=0.7)
    published = certify_run_off_election(scores, code)
    bound = certify(scores, code, decoder="runoff", method="bound", targets=True)
    solved = certify(scores, code, decoder="runoff", time_limit=3, targets=True)
    assert (bound.radius >= published).all()
    assert (solved.radius >= bound.radius).all()
    other = np.where(np.arange(5) == solved.labels[:, None], 99, solved.radius_to)
    assert (other >= solved.radius[:, None]).all()
    np.testing.assert_array_equal(other.min(axis=1)[solved.exact], solved.radius[solved.exact])
    check_witnesses(solved, scores, code)
    # Random attackers break nothing that is certified.
    for _ in range(300):
        i = int(rng.integers(60))
        users = rng.choice(code.n_users, min(code.n_users, int(bound.radius[i])), replace=False)
        hit = code.pattern(users.tolist())
        changed = np.repeat(scores[i][None], 20, axis=0)
        changed[:, hit] = 99 * np.eye(5)[rng.choice(rng.choice(5, 2), (20, hit.sum()))]
        assert (RunOffDecoder().predict(changed) == bound.labels[i]).all()


@pytest.mark.parametrize("seed", range(10))
def test_bounds_of_small_codes_are_never_above_the_truth(seed):
    rng = np.random.default_rng(seed)
    code = draw_code(rng, max_models=9, max_users=7)
    scores = draw_scores(rng, (80, code.n_models, int(rng.integers(2, 5))), agree=rng.choice([0.2, 0.6]))
    truth = certify(scores, code, decoder="runoff", method="patterns", targets=True)
    bound = certify(scores, code, decoder="runoff", method="bound", targets=True)
    assert (bound.radius <= truth.radius).all()
    assert (bound.radius_to <= truth.radius_to).all()
    assert (bound.radius >= certify_run_off_election(scores, code)).all()
    solved = certify(scores[:8], code, decoder="runoff", method="milp")
    np.testing.assert_array_equal(solved.radius, truth.radius[:8])
    assert solved.exact.all()
    check_witnesses(solved, scores, code)
    k = int(rng.integers(1, code.n_users + 1))
    at_once = certify_collective(scores, code, k, decoder="runoff", method="patterns")
    rough = certify_collective(scores, code, k, decoder="runoff", method="milp", time_limit=2)
    assert rough.changed_by_attackers <= at_once.changed <= rough.changed <= rough.pointwise
    assert at_once.pointwise == (truth.radius < k).sum()


def test_two_leads_over_one_class_by_the_published_recursion():
    # Steps of (2, 1) or (1, 2) until both leads are closed, as DPA+ROE counts them.
    def fewest(a, b):
        return 0 if a <= 0 and b <= 0 else 1 + min(fewest(a - 2, b - 1), fewest(a - 1, b - 2))

    for a, b in product(range(9), repeat=2):
        assert fewest(a, b) == max((a + 1) // 2, (b + 1) // 2, (a + b + 2) // 3)


def test_ten_thousand_inputs_of_many_parts_are_quick():
    rng = np.random.default_rng(0)
    scores = draw_scores(rng, (2000, 250, 10), agree=0.4)
    code = partition_code(250, 250)
    certify(scores[:40], code, decoder="runoff", targets=True)
    begin = time.process_time()
    certify(scores, code, decoder="runoff")
    assert time.process_time() - begin < 10  # a fifth of the inputs; on two free cores 10,000 take about as long


@pytest.mark.parametrize(
    ("observed", "more", "message"),
    [
        (np.zeros((2, 3), dtype=int), {}, "class scores"),
        (np.zeros((2, 3, 2)), {"threat": "deterministic"}, "arbitrary"),
        (np.zeros((2, 3, 2)), {"n_classes": 3}, "2 classes, not 3"),
        (np.zeros((0, 3, 2)), {}, "no inputs"),
        (np.zeros((1, 2, 2)), {}, "2 models"),
        (RunOffCounts.count(np.zeros((2, 3, 2))), {}, "one model"),
    ],
)
def test_what_cannot_be_certified_is_said(observed, more, message):
    code = Code([[1, 0], [0, 1], [1, 1]])
    for ask in (certify, lambda *a, **b: certify_collective(*a, 1, **b)):
        with pytest.raises(InputError, match=message):
            ask(observed, code, decoder="runoff", **more)


def test_counts_alone_certify_a_partition_at_once():
    code, scores = partition_code(6, 6), draw_scores(np.random.default_rng(2), (50, 6, 3), agree=0.5)
    counts = RunOffCounts.count(scores)
    found = certify_collective(counts, code, 1, decoder="runoff")
    assert found.changed == found.pointwise == (certify(counts, code, decoder="runoff").radius < 1).sum()
    with pytest.raises(InputError, match="patterns"):
        certify(counts, code, decoder="runoff", method="patterns")
