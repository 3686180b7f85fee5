"""`certify` as a function: conventions, limits, bad input, curves, and the large-n route."""

import importlib

import numpy as np
import pytest

import codeward
from codeward._errors import InputError
from codeward.certificates import certified_accuracy, certify, join_certificates
from codeward.certificates._coverage import attack_greedily, bound_users, solve_users
from codeward.certificates._pointwise import default_attackers
from codeward.codes import Code
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder

PLANE = Code(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]]))


def random_code(rng, m, n, share):
    matrix = rng.random((m, n)) < share
    matrix[np.arange(m), np.arange(m) % n] = True
    matrix[np.arange(n) % m, np.arange(n)] = True
    return Code(matrix)


def test_codeward_certify_is_a_function_whatever_was_imported_before():
    importlib.import_module("codeward.certificates")
    assert codeward.certify is certify


def test_many_inputs_come_back_in_input_order_with_equal_votes_alike():
    rng = np.random.default_rng(0)
    code = random_code(rng, 7, 6, 0.3)
    votes = rng.integers(0, 2, (300, 7))
    together = certify(votes, code)
    apart = join_certificates([certify(row[None], code) for row in votes])
    for name in ("labels", "radius", "exact", "targets", "attackers"):
        np.testing.assert_array_equal(getattr(together, name), getattr(apart, name))
    alone = join_certificates([together])
    assert (alone.threat, alone.decoder, alone.users) == (together.threat, together.decoder, together.users)


def test_an_input_not_broken_within_the_limit_is_a_lower_bound_and_says_so():
    code = Code(np.eye(9, dtype=int))
    result = certify(np.zeros((1, 9), dtype=int), code, max_attackers=2)
    assert (result.radius[0], result.exact[0], result.witness(0)) == (2, False, None)
    assert "largest searched" in result.reason(0)
    assert certify(np.zeros((1, 9), dtype=int), code).radius[0] == 4


def test_no_verdict_has_radius_zero_and_is_never_counted_as_certified():
    decoder = ConsensusDecoder(PLANE, 1)
    result = certify([[0, 1, 2, 3], [0, 0, 0, 0]], PLANE, decoder=decoder)
    assert result.labels[0] == -1
    assert result.radius[0] == 0
    assert "no verdict" in result.reason(0)
    assert certified_accuracy(result).accuracy[0] == np.mean(result.labels >= 0)


def test_enumeration_and_solver_agree_on_codes_too_large_for_the_exhaustive_harness():
    rng = np.random.default_rng(5)
    for _ in range(5):
        code = random_code(rng, 20, 14, 0.2)
        votes = np.where(rng.random((25, 20)) < 0.8, 2, rng.integers(0, 5, (25, 20)))
        patterns, solved = certify(votes, code, method="patterns"), certify(votes, code, method="milp")
        np.testing.assert_array_equal(patterns.radius, solved.radius)
        assert solved.exact.all()


def test_without_solver_time_the_radius_is_a_sound_bound():
    rng = np.random.default_rng(6)
    code = random_code(rng, 24, 14, 0.25)
    votes = np.where(rng.random((60, 24)) < 0.9, 2, rng.integers(0, 5, (60, 24)))
    truth, hurried = certify(votes, code, method="patterns"), certify(votes, code, method="milp", time_limit=0)
    assert (hurried.radius <= truth.radius).all()
    assert (hurried.radius[hurried.exact] == truth.radius[hurried.exact]).all()


def test_a_thousand_users_are_certified_by_bounds_alone_on_a_partition():
    code = Code(np.arange(50)[:, None] == np.arange(1000) % 50)
    rng = np.random.default_rng(1)
    votes = np.where(rng.random((200, 50)) < 0.9, 3, rng.integers(0, 10, (200, 50)))
    result = certify(votes, code, time_limit=0)
    assert result.exact.all()
    for index in (0, 57):
        witness = result.witness(index)
        assert witness is not None
        assert len(witness.attackers) == result.radius[index] + 1
        after = np.where(code.pattern(witness.attackers), witness.target, votes[index])
        assert PluralityDecoder().predict(after[None])[0] != result.labels[index]


@pytest.mark.parametrize("method", ["patterns", "bound", "milp"])
def test_inputs_with_few_rivals_do_not_suffer_beside_inputs_with_many(method):
    votes = [[1] * 9, [0, 1, 2, 3, 4, 5, 6, 7, 8], [0] * 9, [2] * 5 + [1] * 4]
    for limit, radius in ((2, [2, 0, 2, 0]), (3, [3, 0, 3, 0]), (9, [4, 0, 4, 0])):
        found = certify(votes, Code(np.eye(9, dtype=int)), max_attackers=limit, method=method)
        assert found.radius.tolist() == radius
        assert found.exact.tolist() == [limit > 4, True, limit > 4, True]
        assert found.attackers.max(axis=1).tolist() == [
            -1 if not exact else size for exact, size in zip(found.exact, radius, strict=True)
        ]


def members(m, *rows_of_users):
    """Make a code of m models from the models of each user."""
    return Code(np.array([[model in rows for rows in rows_of_users] for model in range(m)]))


#: Two users share their models, which the bound counts twice: it says 2 users, it takes 3.
SHARED = members(7, {0, 1}, {0, 1}, {2}, {3}, {4}, {5}, {6})
#: The largest user overlaps both that are enough: greedy takes 3, it takes 2.
GREEDY = members(12, {0, 1, 2, 4, 5}, {0, 1, 2, 3}, {4, 5, 6}, {7}, {8}, {9}, {10}, {11})


@pytest.mark.parametrize(("code", "radius", "users", "bound"), [(SHARED, 2, None, 1), (GREEDY, 1, (1, 2), 1)])
def test_the_solver_closes_the_gap_between_bound_and_greedy_from_both_sides(code, radius, users, bound):
    votes = np.zeros((2, code.n_models), dtype=int)
    votes[1] = 1
    truth = certify(votes, code, method="patterns")
    solved = certify(votes, code, method="milp", max_attackers=4)
    for found in (truth, solved, certify(votes, code, method="milp", max_attackers=4, time_limit=0.9)):
        assert found.radius[0] == radius
        assert found.exact.all()
        assert users in (None, found.witness(0).attackers)
        assert len(found.witness(0).attackers) == radius + 1
    np.testing.assert_array_equal(truth.radius, solved.radius)
    # No attack within the limit, though the bound allows for one and greedy fails.
    early = certify(votes, code, method="milp", max_attackers=radius)
    assert (early.radius[0], early.exact[0], early.witness(0)) == (radius, False, None)
    assert (early.targets[0], early.attackers[0].max()) == (-1, -1)
    for hurried in (certify(votes, code, method="milp", time_limit=0.0), certify(votes, code, method="bound")):
        assert (hurried.radius[0], hurried.exact[0], hurried.witness(0)) == (bound, False, None)
        assert "lower bound" in hurried.reason(0)


def test_bound_and_greedy_stand_on_both_sides_of_the_need():
    matrix = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=np.float32)
    weights, need = np.ones((1, 3), dtype=np.float32), np.array([3], dtype=np.float32)
    assert bound_users(weights @ matrix, need, 3).tolist() == [2]  # 2 + 2 counts two models twice
    size, users = attack_greedily(weights, need, matrix, 3)
    assert size.tolist() == [2]
    assert users.tolist() == [[0, 2, -1]]


def test_bayes_by_name_equals_bayes_by_object_and_any_object_with_predict_is_taken():
    confusion = np.tile(0.85 * np.eye(3) + 0.05, (4, 1, 1))
    votes = np.random.default_rng(2).integers(0, 3, (40, 4))
    named = certify(votes, PLANE, threat="deterministic", decoder="bayes", confusion=confusion)
    decoder = BayesDecoder(PLANE, confusion)
    np.testing.assert_array_equal(named.radius, certify(votes, PLANE, threat="deterministic", decoder=decoder).radius)
    assert named.searched == 3

    class Constant:
        def predict(self, votes):
            return np.zeros(len(votes), dtype=np.int64)

    result = certify(votes, PLANE, threat="deterministic", decoder=Constant(), n_classes=3)
    assert (result.radius == PLANE.n_users).all()
    assert result.exact.all()
    assert result.reason(0) == "no set of users changes the output"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"votes": [[0, 1]]}, "votes"),
        ({"votes": [0, 1, 2, 0]}, "votes"),
        ({"votes": [[0, 1, float("nan"), 0]]}, "votes"),
        ({"votes": [[0, 1, -1, 0]]}, "votes"),
        ({"votes": np.zeros((0, 4), dtype=int)}, "no inputs"),
        ({"n_classes": 1}, "n_classes"),
        ({"n_classes": 2}, "votes"),
        ({"threat": "rude"}, "threat"),
        ({"decoder": "oracle"}, "decoder"),
        ({"decoder": "bayes", "threat": "deterministic"}, "confusion"),
        ({"decoder": "consensus"}, "n_attackers"),
        ({"decoder": BayesDecoder(PLANE, np.tile(np.full((3, 3), 1 / 3), (4, 1, 1)))}, "deterministic"),
        ({"method": "guess"}, "method"),
        ({"max_attackers": 0}, "max_attackers"),
        ({"decoder": ConsensusDecoder(PLANE, 1), "method": "milp"}, "patterns"),
        ({"decoder": PluralityDecoder(n_classes=5), "n_classes": 4}, "5 classes"),
    ],
)
def test_bad_requests_are_refused_in_words(change, words):
    request = {"votes": [[0, 1, 2, 0]], "code": PLANE} | change
    with pytest.raises(InputError, match=words):
        certify(**request)


def test_certified_accuracy_counts_right_and_certified_inputs_of_all():
    code = Code(np.eye(5, dtype=int))
    votes = np.array([[1] * 5, [1, 1, 1, 0, 0], [0] * 5])
    result = certify(votes, code)
    assert result.radius.tolist() == [2, 0, 2]
    curve = certified_accuracy(result, [1, 1, 1])
    assert curve.attackers.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(curve.accuracy, [2 / 3, 1 / 3, 1 / 3, 0])
    with pytest.raises(InputError, match="labels"):
        certified_accuracy(result, [1])


def test_a_curve_is_drawn_with_its_counts():
    found = certify(np.array([[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]]), PLANE)
    picture = certified_accuracy(found, [0, 0, 0]).plot()
    assert "k = 0: 66.7% (2 of 3)" in picture
    assert picture.count("<circle") == certified_accuracy(found).attackers.size
    assert found.plot().count("<circle") == certified_accuracy(found).attackers.size


def test_without_a_limit_the_search_goes_as_far_as_sets_and_prior_allow():
    partition = [Code(np.eye(n, dtype=int)) for n in (3, 16, 73, 74, 400)]
    assert [default_attackers(code) for code in partition] == [3, 16, 3, 2, 1]
    confusion = np.tile(0.85 * np.eye(3) + 0.05, (16, 1, 1))
    for prior, limit in (((1.0,), 1), ((0.5, 0.5), 1), ((0.25,) * 4, 3), ((1 / 20,) * 20, 16)):
        assert default_attackers(partition[1], BayesDecoder(partition[1], confusion, attackers_prior=prior)) == limit
    # More users than sets are listed by default: one at least is tried.
    assert default_attackers(Code(np.ones((1, 2**16), dtype=bool))) == 1


def test_a_solved_attack_that_just_reaches_what_is_needed_is_taken():
    users, proved = solve_users(np.ones(4, dtype=np.float32), 2, Code(np.eye(4, dtype=int)), 1, 4, 10.0)
    assert users is not None
    assert users.size == proved == 2


def test_attackers_are_as_wide_as_the_largest_attack_and_one_at_least():
    code = Code(np.eye(5, dtype=int))
    assert certify([[1, 1, 1, 0, 0]], code).attackers.shape == (1, 1)
    assert certify([[1, 1, 1, 1, 1]], code).attackers.shape == (1, 3)
    assert certify([[1, 1, 1, 1, 1]], code, max_attackers=1).attackers.tolist() == [[-1]]
