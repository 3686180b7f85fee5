"""The pruned posterior piece by piece against plain loops, on codes so small that everything can be counted."""

from itertools import combinations
from math import comb, exp, inf, log

import numpy as np
import pytest

from codeward.codes import Code, pack_words
from codeward.decoding import BayesDecoder
from codeward.decoding._assumptions import ConfusionModel
from codeward.decoding._pruned import PrunedPosterior, sum_pruned
from codeward.decoding._pruned_search import (
    _curvature,
    _rescale,
    choose,
    drop_small,
    greedy_set,
    log_add,
    log_between,
    log_choose,
    widest_union,
)

N_CLASSES = 3
PRIOR = (0.1, 0.5, 0.4)


def small_case(seed, n_users=5, n_models=6):
    rng = np.random.default_rng(seed)
    matrix = rng.random((n_models, n_users)) < 0.4
    matrix[np.arange(n_models), rng.integers(0, n_users, n_models)] = True
    matrix[rng.integers(0, n_models, n_users), np.arange(n_users)] = True
    confusion = rng.dirichlet(np.ones(N_CLASSES), (n_models, N_CLASSES)) * 0.3
    confusion[:, range(N_CLASSES), range(N_CLASSES)] += 0.7
    votes = rng.integers(0, N_CLASSES, (3, n_models))
    votes[0] = 1
    votes[1, Code(matrix).pattern([0])] = 2
    return Code(matrix), confusion, votes


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("success", [0.6, 0.99])
def test_with_all_the_time_it_is_the_exact_posterior(seed, success):
    code, confusion, votes = small_case(seed)
    exact = BayesDecoder(code, confusion, 0.4, success, PRIOR, method="exact").decode(votes)
    pruned = BayesDecoder(code, confusion, 0.4, success, PRIOR, method="pruned")
    found = PrunedPosterior(code, np.array(PRIOR), success, pruned.failure_, 1e-13, 10_000).decode(
        votes, ConfusionModel(confusion).log_likelihood(votes), 0.4
    )
    np.testing.assert_allclose(found.attack_probability, exact.attack_probability, atol=1e-10)
    np.testing.assert_allclose(found.label_probability, exact.label_probability, atol=1e-10)
    np.testing.assert_allclose(found.user_probability, exact.user_probability, atol=1e-10)
    assert found.targets.tolist() == exact.targets.tolist()
    assert found.suspect_sets == exact.suspect_sets
    assert found.suspects == exact.suspects
    assert found.neglected.max() < 1e-10
    assert (found.agreed == exact.agreed).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [1, 3, 7])
def test_what_is_left_out_is_at_most_what_it_says(seed, budget):
    code, confusion, votes = small_case(seed, n_users=6)
    exact = BayesDecoder(code, confusion, 0.4, 0.9, PRIOR, method="exact").decode(votes)
    found = PrunedPosterior(code, np.array(PRIOR), 0.9, log(0.1), 1e-6, budget).decode(
        votes, ConfusionModel(confusion).log_likelihood(votes), 0.4
    )
    slack = found.neglected + 1e-10
    assert (np.abs(found.attack_probability - exact.attack_probability) <= slack).all()
    assert (np.abs(found.label_probability - exact.label_probability) <= slack[:, None]).all()
    assert (found.neglected <= 1).all()
    for row in range(3):
        assert set(found.suspects[row]) <= set(exact.suspects[row])
        if not found.more_sets[row]:
            assert found.suspect_sets[row] == exact.suspect_sets[row]


def bound_slowly(code, base, votes, prior, widest, success, failure):
    """Everything may be left out: the sum over sets of the bound (2) of the module, by its definition."""
    n, n_classes = code.n_users, base.shape[1]
    whole = 0.0
    silent = [t for t in range(n_classes) if t not in votes]
    for target in [t for t in range(n_classes) if t in votes] + silent[:1]:
        said = votes == target
        gains = np.log(success / np.exp(base[said]) + 1 - success)
        for size in range(1, len(prior)):
            for x in combinations(range(n), size):
                v = max(int((code.matrix[:, user] & ~said).sum()) for user in x)
                q = max(0, min(int(said.sum()), int(widest[size]) - v))
                for label in range(n_classes):
                    best = np.sort(gains[:, label])[::-1][:q].sum()
                    mass = exp(base[:, label].sum() + best + failure * v) * prior[size] / comb(n, size)
                    whole += mass * (len(silent) if target in silent else 1)
    return log(whole)


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_on_all_sets_is_its_formula(seed):
    code, confusion, votes = small_case(seed, n_users=6, n_models=7)
    base = ConfusionModel(confusion).log_likelihood(votes)
    prior, success = np.array([0.0, 0.6, 0.4]), 0.8
    posterior = PrunedPosterior(code, prior, success, log(0.2))
    for row in range(3):
        state, kept = np.zeros(5), np.full((64, 2), -1)
        masses, users = np.ones((2, N_CLASSES + 1)), np.ones(6)
        found = sum_pruned(
            votes[row], base[row], posterior.columns_, posterior.rows_, prior, posterior.widest_, success, log(0.2),
            1e30, 10.0, masses, users, kept, state,
        )  # fmt: skip
        expected = bound_slowly(code, base[row], votes[row], prior, posterior.widest_, success, log(0.2))
        assert state[1] == pytest.approx(expected, abs=1e-9)
        assert (found, masses.sum(), users.sum()) == (0, 0.0, 0.0)


def test_the_widest_unions_are_exact_up_to_three_users_and_sums_past_them():
    code, _, _ = small_case(7, n_users=6, n_models=12)
    posterior = PrunedPosterior(code, np.full(6, 1 / 6), 0.9, log(0.1))
    union = [0] + [max(int(code.pattern(x).sum()) for x in combinations(range(6), size)) for size in (1, 2, 3)]
    found = posterior.widest_.tolist()
    assert found[:4] == union
    assert found[4] == min(12, union[3] + union[1])
    assert found[5] == min(12, found[4] + union[1])
    # A pair of light columns is worth a third one that is heavy.
    light = np.zeros((3, 10), dtype=bool)
    light[0, 0] = light[1, 1] = light[2, 2:] = True
    assert widest_union(pack_words(light), 3) == 10
    one = PrunedPosterior(Code([[1], [1]]), np.full(4, 0.25), 0.9, log(0.1))
    assert one.widest_.tolist() == [0, 2, 2, 2]
    # Users in one model each, of more models than they reach together.
    apart = PrunedPosterior(Code(np.eye(9, dtype=int)), np.full(6, 1 / 6), 0.9, log(0.1))
    assert apart.widest_.tolist() == [0, 1, 2, 3, 4, 5]


def test_logarithms_of_sums_and_counts():
    assert log_add(1.0, 2.0) == pytest.approx(log(exp(1) + exp(2)))
    assert log_add(2.0, 1.0) == pytest.approx(log(exp(1) + exp(2)))
    assert log_add(-inf, 3.0) == log_add(3.0, -inf) == 3.0
    assert log_add(-inf, -inf) == -inf
    for n in range(7):
        for size in range(5):
            assert choose(n, size) == pytest.approx(comb(n, size))
            assert log_choose(n, size) == pytest.approx(log(comb(n, size)) if comb(n, size) else -inf)
            for more in range(3):
                gap = comb(n + more, size) - comb(n, size)
                assert log_between(n, n + more, size) == pytest.approx(log(gap) if gap else -inf, abs=1e-9)


def test_the_curvature_is_smooth_at_zero():
    for y in (-2.0, -1e-3, 1e-3, 2.0):
        assert _curvature(y) == pytest.approx((exp(y) - 1 - y) / y**2, rel=1e-6)
    for y in (-9e-5, 0.0, 9e-5):
        assert _curvature(y) == pytest.approx(0.5 + y / 6 + y**2 / 24, abs=1e-9)


def test_small_masses_are_dropped_in_order():
    sets, masses = np.array([[1], [2], [3], [4]]), np.array([0.0, -5.0, -1.0, -2.0])
    assert drop_small(sets, masses, -2.0) == 3
    assert sets[:3, 0].tolist() == [1, 3, 4]
    assert masses[:3].tolist() == [0.0, -1.0, -2.0]


def test_the_greedy_guess_adds_the_nearest_user_the_lowest_on_a_tie():
    columns = pack_words(np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]], dtype=bool))
    said, union = pack_words(np.array([[1, 1, 1, 0]], dtype=bool))[0], np.zeros(1, dtype=np.uint64)
    greedy_set(columns, said, 1, union)
    assert union[0] == 0b0011
    greedy_set(columns, said, 2, union)  # user 0 again changes nothing, user 3 hits one rightly and one wrongly
    assert union[0] == 0b0011
    greedy_set(columns[1:], said, 2, union)
    assert union[0] == 0b0011
    union[:] = 1
    greedy_set(
        columns, pack_words(np.array([[0, 0, 1, 1]], dtype=bool))[0], 1, union
    )  # nothing is left of what it held
    assert union[0] == 0b1100


@pytest.mark.parametrize("prior", [(0.5, 0.0, 0.5), (0.0, 0.6, 0.4)])
def test_sizes_without_prior_and_certain_triggers_are_limits(prior):
    for seed in range(3):
        code, confusion, votes = small_case(seed)
        exact = BayesDecoder(code, confusion, 0.4, 1.0, prior, method="exact").decode(votes)
        found = BayesDecoder(code, confusion, 0.4, 1.0, prior, method="pruned").decode(votes)
        np.testing.assert_allclose(found.label_probability, exact.label_probability, atol=1e-6)
        np.testing.assert_allclose(found.attack_probability, exact.attack_probability, atol=1e-6)
        assert found.best_set == exact.best_set


def test_evidence_past_the_range_of_a_float_is_scaled():
    rng = np.random.default_rng(2)
    matrix = rng.random((70, 4)) < 0.4
    matrix[np.arange(70), rng.integers(0, 4, 70)] = True
    code = Code(matrix)
    confusion = np.full((70, 2, 2), 1e-9) + (1 - 2e-9) * np.eye(2)
    votes = np.stack([np.where(code.pattern(x), 1, 0) for x in ((2,), (0, 3))])
    exact = BayesDecoder(code, confusion, 0.4, 0.99, PRIOR, method="exact").decode(votes)
    found = BayesDecoder(code, confusion, 0.4, 0.99, PRIOR, method="pruned").decode(votes)
    np.testing.assert_allclose(found.label_probability, exact.label_probability, atol=1e-6)
    np.testing.assert_allclose(found.user_probability, exact.user_probability, atol=1e-6)
    assert found.suspects == exact.suspects


#: Users 0 to 5 are in models 0 to 3 only, 6 and 7 in the others.
BLOCKS = Code(
    [[1, 0, 1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]]
    + [[0, 0, 0, 0, 0, 0, 1, 1]] * 4
)


#: Bounds on what is left out of `sum_blocks`, and its attack probabilities.
NEGLECTED, ATTACKED = (0.2392316715, 0.4007428233, 0.0158297738), (0.9937884709, 0.7804333714, 0.3303246593)


def sum_blocks(budget):
    confusion = np.full((8, N_CLASSES, N_CLASSES), 0.1) + 0.7 * np.eye(N_CLASSES)
    votes = np.array([[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 2, 0, 2], [2, 2, 2, 2, 2, 2, 2, 2]])
    posterior = PrunedPosterior(BLOCKS, np.array(PRIOR), 0.9, log(0.1), 1e-6, budget)
    found = posterior.decode(votes, ConfusionModel(confusion).log_likelihood(votes), 0.4)
    return found, BayesDecoder(BLOCKS, confusion, 0.4, 0.9, PRIOR, method="exact").decode(votes)


def test_sets_added_in_bulk_are_bounded_from_both_sides():
    found, exact = sum_blocks(1)
    slack = found.neglected + 1e-10
    assert (np.abs(found.attack_probability - exact.attack_probability) <= slack).all()
    assert (np.abs(found.label_probability - exact.label_probability) <= slack[:, None]).all()
    # No looser than it was when this was written: a bound that holds may still be worthless.
    assert (found.neglected <= np.array(NEGLECTED) * 1.001).all()
    assert (found.neglected >= np.array(NEGLECTED) * 0.999).all()
    np.testing.assert_allclose(found.attack_probability, ATTACKED, rtol=1e-6)


def test_more_sets_than_are_kept_name_nobody_and_are_counted():
    code = Code([[1] * 50, [1] * 50, [0] * 49 + [1]])
    confusion = np.full((3, 2, 2), 0.1) + 0.8 * np.eye(2)
    exact = BayesDecoder(code, confusion, 0.4, 0.9, (0.0, 0.0, 1.0), method="exact").decode([[1, 1, 0]])
    found = BayesDecoder(code, confusion, 0.4, 0.9, (0.0, 0.0, 1.0), method="pruned").decode([[1, 1, 0]])
    assert comb(49, 2) > 1024
    assert found.suspects == [()]
    assert found.best_set == exact.best_set
    assert found.more_sets[0] >= 1
    np.testing.assert_allclose(found.user_probability, exact.user_probability, atol=1e-6)


def test_a_scale_moves_up_with_everything_on_it():
    masses, users, state = np.ones((2, 3)), np.ones(4), np.array([1.0, 200.0, 7.0, 8.0, 9.0])
    _rescale(masses, users, state, 301.0)
    assert (masses == 1).all()
    assert state[0] == 1.0
    _rescale(masses, users, state, 302.0)
    np.testing.assert_allclose(masses, exp(-301))
    np.testing.assert_allclose(users, exp(-301))
    assert state.tolist() == [302.0, 200.0, 7.0, 8.0, 9.0]


def test_where_the_budget_went_on_negligible_sets_nothing_is_known():
    # Twenty users who each explain one of sixty votes come first; the two who explain all of them fail twice.
    matrix = np.zeros((82, 22), dtype=bool)
    matrix[np.arange(20), np.arange(20)] = matrix[60 + np.arange(20), np.arange(20)] = True
    matrix[:30, 20] = matrix[30:60, 21] = matrix[80:, 20:] = True
    votes = (np.arange(82) < 60).astype(np.int64)[None]
    confusion = np.full((82, 3, 3), 0.02) + 0.94 * np.eye(3)
    base = ConfusionModel(confusion).log_likelihood(votes)
    found = PrunedPosterior(Code(matrix), np.array([0.0, 0.0, 1.0]), 0.9, log(0.1), 1e-6, 1).decode(votes, base, 0.4)
    assert found.neglected[0] > 0.999
    assert found.attack_probability[0] < 1e-100
    total = base[0].sum(axis=0)
    np.testing.assert_allclose(found.label_probability[0], np.exp(total - total.max()), rtol=1e-6)
    assert found.suspects == [()]
    assert found.more_sets.tolist() == [1]


def test_nobody_attacks_alike_under_every_target():
    code, confusion, votes = small_case(3)
    votes = np.where(votes == 0, 1, votes)
    exact = BayesDecoder(code, confusion, 0.4, 0.9, (1.0, 0.0), method="exact").decode(votes)
    found = BayesDecoder(code, confusion, 0.4, 0.9, (1.0, 0.0), method="pruned").decode(votes)
    assert found.targets.tolist() == exact.targets.tolist() == [0, 0, 0]
    np.testing.assert_allclose(found.label_probability, exact.label_probability, atol=1e-12)


def test_more_users_than_words_of_models_are_added_in_bulk():
    matrix = np.zeros((3, 200), dtype=bool)
    matrix[0, ::2] = matrix[1, 1::2] = matrix[1, ::3] = matrix[2, 150:] = True
    code, confusion = Code(matrix), np.full((3, 2, 2), 0.1) + 0.8 * np.eye(2)
    votes = np.array([[1, 1, 0], [1, 1, 1]])
    exact = BayesDecoder(code, confusion, 0.4, 0.9, PRIOR, method="exact").decode(votes)
    found = PrunedPosterior(code, np.array(PRIOR), 0.9, log(0.1), 1e-6, 100).decode(
        votes, ConfusionModel(confusion).log_likelihood(votes), 0.4
    )
    assert (np.abs(found.attack_probability - exact.attack_probability) <= found.neglected).all()
    np.testing.assert_allclose(found.neglected, [0.12509669, 0.02996848], rtol=1e-6)
    np.testing.assert_allclose(found.attack_probability, [0.48396729, 0.32059116], rtol=1e-6)


@pytest.mark.parametrize(("budget", "left"), [(1, 6.23755510e-01), (15, 3.54278852e-02), (60, 4.21633323e-08)])
def test_more_models_than_a_word_holds_and_a_small_budget(budget, left):
    rng = np.random.default_rng(5)
    matrix = rng.random((70, 12)) < 0.3
    matrix[np.arange(70), rng.integers(0, 12, 70)] = True
    code, confusion = Code(matrix), np.full((70, 3, 3), 0.15) + 0.55 * np.eye(3)
    votes = np.stack([np.where(code.pattern((2, 7)), 1, 0), np.where(code.pattern((3,)), 2, 1), rng.integers(0, 3, 70)])
    votes[0, rng.integers(0, 70, 6)] = 2
    exact = BayesDecoder(code, confusion, 0.4, 0.9, PRIOR, method="exact").decode(votes)
    found = PrunedPosterior(code, np.array(PRIOR), 0.9, log(0.1), 1e-6, budget).decode(
        votes, ConfusionModel(confusion).log_likelihood(votes), 0.4
    )
    assert found.suspect_sets == exact.suspect_sets == [((2, 7),), ((3,),), ((),)]
    assert found.more_sets.tolist() == [0, 0, int(left > 1e-6)]
    np.testing.assert_allclose(found.attack_probability, exact.attack_probability, atol=1e-8)
    np.testing.assert_allclose(found.neglected[[0, 2]], [3.97210299e-09, left], rtol=1e-6)
