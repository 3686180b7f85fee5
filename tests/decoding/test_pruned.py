"""The pruned posterior: its bound holds, and it is exact where it says so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._compiled import bit_count
from codeward.codes import Code
from codeward.decoding import BayesDecoder
from codeward.decoding._assumptions import ConfusionModel
from codeward.decoding._pruned import PrunedPosterior
from codeward.decoding._pruned_search import bulk_interval, widest_union


def draw_case(rng, n_users, n_models, n_classes, density, accuracy, triggered):
    matrix = rng.random((n_models, n_users)) < density
    matrix[np.arange(n_models), rng.integers(0, n_users, n_models)] = True
    matrix[rng.integers(0, n_models, n_users), np.arange(n_users)] = True
    code = Code(matrix)
    confusion = rng.dirichlet(np.ones(n_classes), size=(n_models, n_classes)) * (1 - accuracy)
    confusion[:, np.arange(n_classes), np.arange(n_classes)] += accuracy
    labels = rng.integers(0, n_classes, 6)
    votes = np.array([[rng.choice(n_classes, p=row) for row in confusion[:, label]] for label in labels])
    for row in range(triggered):
        votes[row, code.pattern(rng.choice(n_users, 2, replace=False))] = rng.integers(0, n_classes)
    return code, confusion, votes


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_users=st.integers(2, 22),
    n_models=st.sampled_from([6, 14, 70]),
    density=st.sampled_from([0.15, 0.5, 0.8]),
    accuracy=st.sampled_from([0.0, 0.8, 0.97]),
    success_rate=st.sampled_from([0.5, 0.99, 1.0]),
    attack_rate=st.sampled_from([0.01, 0.5, 1.0]),
    budget=st.sampled_from([1, 30, 10_000]),
    tolerance=st.sampled_from([1e-12, 1e-6, 1e-2]),
    empty=st.sampled_from([0.0, 0.25]),
)
def test_the_bound_on_the_neglected_mass_holds(
    seed, n_users, n_models, density, accuracy, success_rate, attack_rate, budget, tolerance, empty
):
    rng = np.random.default_rng(seed)
    code, confusion, votes = draw_case(rng, n_users, n_models, 4, density, accuracy, 3)
    prior = np.array([empty, *((1 - empty) / 3,) * 3])
    decoder = BayesDecoder(code, confusion, attack_rate, success_rate, prior, method="exact")
    truth = decoder.decode(votes)
    pruned = PrunedPosterior(code, prior, success_rate, decoder.failure_, tolerance, budget)
    found = pruned.decode(votes, ConfusionModel(confusion).log_likelihood(votes), attack_rate)
    slack = found.neglected + 1e-9
    assert (np.abs(found.attack_probability - truth.attack_probability) <= slack).all()
    assert (np.abs(found.label_probability - truth.label_probability) <= slack[:, None]).all()
    # The most probable set is right wherever its probability is above what was left out and no interval was used.
    joint = np.exp(decoder.posterior(votes)).sum(axis=2) * decoder.sets_.best_weights / decoder.sets_.weights
    for row in range(votes.shape[0]):
        if budget == 10_000 and truth.attack_probability[row] * joint[row].max() > 3 * slack[row]:
            assert found.best_set[row] == truth.best_set[row]
        # Nobody is named who is not in every nearly best explanation, whatever was left out.
        assert set(found.suspects[row]) <= set(truth.suspects[row])
        if found.more_sets[row] == 0:
            assert found.suspect_sets[row] == truth.suspect_sets[row]
            assert found.suspects[row] == truth.suspects[row]
    assert np.isfinite(found.user_probability).all()
    if budget == 10_000 and tolerance == 1e-12:
        assert found.neglected.max() < 1e-9
        np.testing.assert_allclose(found.user_probability, truth.user_probability, atol=1e-8)
        assert list(found.best_set) == list(truth.best_set)


def test_what_cannot_be_pruned_is_enumerated_and_the_bound_is_zero():
    rng = np.random.default_rng(3)
    code, confusion, votes = draw_case(rng, 8, 10, 3, 0.5, 0.5, 2)
    pruned = PrunedPosterior(code, np.full(4, 0.25), 0.99, float(np.log(0.01)), tolerance=0.0)
    with np.errstate(divide="ignore"):
        found = pruned.decode(votes, ConfusionModel(confusion).log_likelihood(votes), 0.5)
    assert (found.neglected == 0).all()


def test_many_users_are_pruned_automatically_and_the_attacker_is_found():
    rng = np.random.default_rng(8)
    code, confusion, votes = draw_case(rng, 300, 60, 10, 0.5, 0.95, 0)
    votes[0, code.pattern([17])] = 4
    decoder = BayesDecoder(code, confusion)
    assert not decoder.is_exact
    decoded = decoder.decode(votes)
    assert decoded.best_set[0] == decoded.suspects[0] == (17,)
    assert decoded.neglected[0] < 0.01
    assert decoded.attack_probability[0] > 0.99
    assert (decoder.predict(votes) == decoded.labels).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), n_users=st.integers(2, 9), size=st.integers(1, 3), scale=st.sampled_from([0.1, 2.0])
)
def test_the_interval_for_sets_without_failed_hits_holds_the_mean(seed, n_users, size, scale):
    from itertools import combinations

    rng = np.random.default_rng(seed)
    size, n_models = min(size, n_users), 7
    matrix = rng.random((n_models, n_users)) < 0.4
    gains = rng.random((n_models, 2)) * scale
    sums = [gains[matrix[:, list(x)].any(axis=1), 1].sum() for x in combinations(range(n_users), size)]
    truth = np.log(np.mean(np.exp(sums)))
    pairs = (matrix[:, None] & matrix[None]).sum(axis=2).astype(np.int64)
    ceiling = max(sums) + rng.random()
    counts, models = matrix.sum(axis=1).astype(np.int64), np.arange(n_models)
    low, high = bulk_interval(gains, models, n_models, 1, counts, pairs, n_users, size, ceiling)
    assert low - 1e-12 <= truth <= high + 1e-12


def test_bit_counts_and_widest_unions_are_those_of_the_columns():
    rng = np.random.default_rng(4)
    words = rng.integers(0, 2**63, 50, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    assert [bit_count(word) for word in words] == [int(word).bit_count() for word in words]
    from itertools import combinations

    from codeward.codes import pack_words

    matrix = rng.random((70, 9)) < 0.2
    for size in (2, 3):
        best = max(int(matrix[:, list(x)].any(axis=1).sum()) for x in combinations(range(9), size))
        assert widest_union(pack_words(matrix.T), size) == best


@pytest.mark.slow
def test_a_thousand_users_are_decoded_within_a_minute():
    rng = np.random.default_rng(9)
    code, confusion, votes = draw_case(rng, 1000, 60, 10, 0.3, 0.95, 3)
    decoded = BayesDecoder(code, confusion).decode(votes)
    assert np.isfinite(decoded.attack_probability).all()
    assert ((decoded.neglected >= 0) & (decoded.neglected <= 1)).all()
