"""BayesDecoder against the formula as printed."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.decoding.exact_posterior import decode_exact

from codeward._errors import InputError, TooLargeError
from codeward.codes import Code
from codeward.decoding import BayesDecoder, ConfusionModel, VoteModel, estimate_confusion
from codeward.decoding._assumptions import CONFUSION_FLOOR
from codeward.decoding._posterior_kernels import log_gain


def draw_code(rng: np.random.Generator, n_models: int, n_users: int, density: float = 0.5) -> Code:
    matrix = rng.random((n_models, n_users)) < density
    matrix[np.arange(n_models), rng.integers(0, n_users, n_models)] = True
    matrix[rng.integers(0, n_models, n_users), np.arange(n_users)] = True
    return Code(matrix)


def assert_same(decoded, row, exact, n_users, tolerance=1e-9):
    assert abs(decoded.attack_probability[row] - exact.attack_probability) <= tolerance
    np.testing.assert_allclose(decoded.label_probability[row], exact.label_probability, atol=tolerance)
    np.testing.assert_allclose(decoded.user_probability[row], exact.user_probability(n_users), atol=tolerance)
    assert decoded.best_set[row] == exact.best_set
    best_label, best_target = decoded.labels[row], decoded.targets[row]
    assert exact.label_probability[best_label] >= exact.label_probability.max() * (1 - 1e-8)
    assert exact.target_probability[best_target] >= exact.target_probability.max() * (1 - 1e-8)


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_users=st.integers(1, 6),
    n_models=st.integers(1, 11),
    n_classes=st.integers(2, 4),
    max_attackers=st.integers(0, 3),
    attack_rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    success_rate=st.sampled_from([0.0, 0.3, 0.99, 1.0]),
    kind=st.sampled_from(["random", "equal", "sharp"]),
)
@example(0, 1, 1, 2, 0, 0.5, 0.99, "random")
@example(1, 4, 11, 2, 3, 0.5, 1.0, "equal")
def test_the_posterior_agrees_with_the_printed_formula(
    seed, n_users, n_models, n_classes, max_attackers, attack_rate, success_rate, kind
):
    rng = np.random.default_rng(seed)
    code = draw_code(rng, n_models, n_users)
    confusion = rng.dirichlet(np.full(n_classes, 0.3 if kind == "sharp" else 2.0), size=(n_models, n_classes))
    votes = rng.integers(0, n_classes, (2, n_models))
    if kind == "equal":
        votes[:] = votes[:, :1]
    # With Q(0) > 0 the printed formula never divides 0 by 0.
    prior = rng.dirichlet(np.ones(max_attackers + 1))
    decoder = BayesDecoder(code, confusion, attack_rate, success_rate, prior)
    decoded = decoder.decode(votes)
    floored = np.maximum(confusion, CONFUSION_FLOOR)
    for row in range(2):
        exact = decode_exact(code, floored, votes[row], attack_rate, success_rate, prior)
        assert_same(decoded, row, exact, n_users)
    assert (decoder.predict(votes) == decoded.labels).all()
    assert (decoded.neglected == 0).all()


@pytest.mark.parametrize("success_rate", [0.9, 1.0])
@pytest.mark.parametrize("method", ["exact", "pruned"])
def test_zero_cells_never_produce_nan(success_rate, method):
    code = Code([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    confusion = np.repeat(np.eye(3)[None], 4, axis=0)
    votes = np.array([[0, 1, 2, 0], [0, 0, 0, 0], [2, 2, 2, 1]])
    for attack_rate in (0.0, 0.5, 1.0):
        # Q(0) = 0 and S = 1: no explanation of the first votes is possible at all.
        decoder = BayesDecoder(code, confusion, attack_rate, success_rate, (0, 1), method=method)
        decoded = decoder.decode(votes)
        for values in (decoded.attack_probability, decoded.user_probability, decoded.label_probability):
            assert np.isfinite(values).all()
        np.testing.assert_allclose(decoded.label_probability.sum(axis=1), 1)
        assert all(len(found) == 1 for found in decoded.best_set)


def test_unlikely_hypotheses_keep_their_posterior_given_an_attack():
    code = Code(np.eye(40, dtype=int).repeat(30, axis=0))  # 1200 models: likelihoods far below the smallest float
    confusion = np.repeat((np.full((2, 2), 0.001) + np.eye(2) * 0.998)[None], 1200, axis=0)
    votes = np.zeros((1, 1200), dtype=int)
    votes[0, :30] = 1
    decoded = BayesDecoder(code, confusion, 0.5, 0.99, (0, 0.5, 0.5)).decode(votes)
    assert decoded.best_set == [(0,)]
    assert decoded.targets[0] == 1
    assert decoded.labels[0] == 0
    assert decoded.attack_probability[0] > 0.999


def test_ties_go_to_the_fewest_users_then_the_lowest_indices():
    code = Code(np.ones((3, 4)))  # any nonempty set hits everything
    decoded = BayesDecoder(code, np.full((3, 2, 2), 0.5), attackers_prior=(0, 0.5, 0.5)).decode([[1, 1, 1]])
    assert decoded.best_set == [(0,)]  # each single has prior 0.5 / 4, each pair 0.5 / 6
    favour_pairs = BayesDecoder(code, np.full((3, 2, 2), 0.5), attackers_prior=(0, 0.1, 0.9)).decode([[1, 1, 1]])
    assert favour_pairs.best_set == [(0, 1)]  # 0.1 / 4 < 0.9 / 6
    tie = BayesDecoder(code, np.full((3, 2, 2), 0.5), attackers_prior=(0, 0.4, 0.6)).decode([[1, 1, 1]])
    assert tie.best_set == [(0,)]  # 0.4 / 4 = 0.6 / 6
    assert tie.targets[0] == 1
    assert tie.labels[0] == 0  # the votes say nothing about the label: the smaller one


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_posterior_and_log_likelihood_are_consistent_with_decode(seed):
    rng = np.random.default_rng(seed)
    code = draw_code(rng, 10, 5)
    confusion = rng.dirichlet(np.ones(3), size=(10, 3))
    votes = rng.integers(0, 3, (4, 10))
    decoder = BayesDecoder(code, confusion)
    decoded, joint = decoder.decode(votes), np.exp(decoder.posterior(votes))
    np.testing.assert_allclose(joint.sum(axis=(1, 2)), 1)
    np.testing.assert_allclose(joint.sum(axis=2) @ decoder.sets_.members, decoded.user_probability, atol=1e-9)
    attacked = np.exp(decoder.log_likelihood(votes)) * decoder.sets_.weights[None, :, None] / 3
    odds = attacked.sum(axis=(1, 2)) / np.exp(decoder.clean_log_likelihood(votes))
    np.testing.assert_allclose(odds / (1 + odds), decoded.attack_probability, rtol=1e-9)


def test_repeated_and_shuffled_inputs_decode_alike():
    rng = np.random.default_rng(5)
    code = draw_code(rng, 70, 6)  # two words a pattern
    confusion = rng.dirichlet(np.ones(10), size=(70, 10))
    votes = rng.integers(0, 10, (20, 70))
    again = rng.integers(0, 20, 100)
    decoder = BayesDecoder(code, confusion)
    once, many = decoder.decode(votes), decoder.decode(votes[again])
    assert (once.labels[again] == many.labels).all()
    assert [once.best_set[i] for i in again] == many.best_set
    np.testing.assert_array_equal(once.user_probability[again], many.user_probability)
    assert len(decoder.decode(np.zeros((0, 70), dtype=int))) == 0


def test_a_torch_device_gives_the_same_answer():
    pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    code = draw_code(rng, 12, 6)
    confusion = rng.dirichlet(np.ones(4), size=(12, 4))
    votes = rng.integers(0, 4, (30, 12))
    for success_rate in (0.0, 0.99, 1.0):
        here = BayesDecoder(code, confusion, success_rate=success_rate).decode(votes)
        there = BayesDecoder(code, confusion, success_rate=success_rate, device="cpu").decode(votes)
        np.testing.assert_allclose(here.attack_probability, there.attack_probability, atol=1e-9)
        np.testing.assert_allclose(here.user_probability, there.user_probability, atol=1e-9)
        np.testing.assert_allclose(here.label_probability, there.label_probability, atol=1e-9)
        assert here.best_set == there.best_set


def test_another_vote_model_can_stand_in():
    class Uniform:
        n_models, n_classes = 3, 2

        def log_likelihood(self, votes):
            return np.full((*votes.shape, 2), np.log(0.5))

    code = Code([[1, 0], [0, 1], [1, 1]])
    assert isinstance(Uniform(), VoteModel)
    mine = BayesDecoder(code, Uniform()).decode([[0, 1, 1]])
    paper = BayesDecoder(code, np.full((3, 2, 2), 0.5)).decode([[0, 1, 1]])
    np.testing.assert_allclose(mine.attack_probability, paper.attack_probability)
    assert isinstance(ConfusionModel(np.full((3, 2, 2), 0.5)), VoteModel)


def test_confusion_is_counted_with_half_a_vote_per_cell_and_unseen_labels_are_uniform():
    votes, labels = np.array([[0, 1], [0, 2], [1, 1]]), np.array([0, 0, 1])
    confusion = estimate_confusion(votes, labels, 3)
    for model in range(2):
        for label in range(3):
            for vote in range(3):
                count = ((votes[:, model] == vote) & (labels == label)).sum()
                expected = (count + 0.5) / ((labels == label).sum() + 1.5)
                assert confusion[model, label, vote] == pytest.approx(expected)
    np.testing.assert_allclose(confusion[:, 2], 1 / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"votes": [[0, 1]]}, "3 models"),
        ({"votes": [[0, 1, 2]]}, r"entry \[0, 2\] is 2; classes must be in 0..1"),
        ({"votes": [[0, -1, 1]]}, "is -1"),
        ({"votes": [[0, np.nan, 1]]}, "not a whole number"),
        ({"votes": [[0, 0.5, 1]]}, "not a whole number"),
        ({"votes": [0, 1, 1]}, "expected shape"),
        ({"confusion": np.full((3, 2, 2), 0.6)}, "sums to 1.2"),
        ({"confusion": np.full((2, 2, 2), 0.5)}, "2 models, but the code has 3"),
        ({"confusion": np.full((3, 2), 0.5)}, "expected shape"),
        ({"confusion": np.array([[[1.5, -0.5], [0.5, 0.5]]] * 3)}, "negative"),
        ({"confusion": np.full((3, 2, 2), np.nan)}, "NaN"),
        ({"attack_rate": 1.5}, "attack_rate"),
        ({"success_rate": -0.1}, "success_rate"),
        ({"attackers_prior": (0.5, 0.4)}, "sum to 0.9"),
        ({"attackers_prior": (1.5, -0.5)}, "negative"),
        ({"method": "fast"}, "method"),
    ],
)
def test_wrong_input_is_refused_in_words(change, message):
    votes = change.pop("votes", [[0, 1, 1]])
    arguments = {"confusion": np.full((3, 2, 2), 0.5)} | change
    with pytest.raises(InputError, match=message):
        BayesDecoder(Code([[1, 0], [0, 1], [1, 1]]), **arguments).decode(votes)


def test_evidence_of_every_set_is_refused_when_there_are_too_many():
    rng = np.random.default_rng(7)
    code = draw_code(rng, 12, 200)
    with pytest.raises(TooLargeError):
        BayesDecoder(code, np.full((12, 2, 2), 0.5)).log_likelihood(np.zeros((1, 12), dtype=int))


@pytest.mark.parametrize("base", [-0.5, -699.0, -701.0, -5000.0])
def test_a_trigger_that_never_works_gains_nothing_however_unlikely_the_vote(base):
    assert log_gain(base, 0.0) == 0.0
    assert log_gain(base, 1.0) == pytest.approx(-base)
