import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, named_code
from codeward.decoding._attacker_sets import gather_attacker_sets
from codeward.decoding.soft._explanations import (
    MOST_GROUPS,
    N_DRAWN,
    TrainingSet,
    _draw_questions,
    group_patterns,
    list_explanations,
    log_sum,
    weigh_votes,
)


@settings(max_examples=50, deadline=None)
@given(hits=st.lists(st.integers(1, 14), min_size=1, max_size=60), seed=st.integers(0, 10**6))
def test_patterns_share_a_group_with_equal_or_neighbouring_numbers_of_hits(hits, seed):
    hits = np.array(hits)
    weights = np.random.default_rng(seed).random(hits.size)
    groups = group_patterns(hits, weights)
    order = np.argsort(hits, kind="stable")
    assert (np.diff(groups[order]) >= 0).all()
    assert np.unique(groups).tolist() == list(range(min(np.unique(hits).size, MOST_GROUPS)))
    assert all(np.unique(groups[hits == number]).size == 1 for number in np.unique(hits))


def test_the_lightest_neighbours_are_grouped_first():
    weights = np.array([0.3, 0.01, 0.02, 0.2, 0.1, 0.2, 0.17])
    assert group_patterns(np.array([3, 5, 6, 8, 9, 10, 12]), weights).tolist() == [0, 1, 1, 2, 3, 4, 5]


def test_patterns_that_hit_every_model_explain_nothing():
    explanations = list_explanations(named_code("d"), np.full(4, 0.25))
    assert not explanations.patterns.all(axis=1).any()
    assert (
        explanations.sets.weights.size < gather_attacker_sets(named_code("d"), np.array([0, *[1 / 3] * 3])).weights.size
    )
    assert explanations.sets.starts[-1] == explanations.sets.set_weights.size == len(explanations.sets.users)
    assert explanations.sets.set_weights.sum() == pytest.approx(1)
    assert abs(np.exp(explanations.log_weights).sum() - 1) < 1e-12
    with pytest.raises(InputError, match="no clean model"):
        list_explanations(Code([[1, 1]]), np.array([0.5, 0.5]))
    with pytest.raises(InputError, match="positive number of attackers"):
        list_explanations(named_code("d"), np.array([1.0]))
    with pytest.raises(TooLargeError):
        list_explanations(Code(np.eye(200)), np.full(5, 0.2))


def test_logarithms_of_sums_neither_overflow_nor_lose_what_is_impossible():
    found = log_sum(np.array([[1000.0, 0.0], [-1000.0, -1000.0], [-np.inf, 3.0], [-np.inf, -np.inf]]))
    np.testing.assert_allclose(found, [1000.0, -1000.0 + np.log(2), 3.0, -np.inf])


def test_odds_of_an_attack_are_freed_of_how_many_were_drawn():
    rng = np.random.default_rng(0)
    code = named_code("d")
    explanations = list_explanations(code, np.full(3, 1 / 3))
    labels = rng.integers(0, 3, 40)
    clean = np.where(rng.random((40, 6)) < 0.1, rng.integers(0, 3, (40, 6)), labels[:, None])
    patterns, targets = rng.integers(0, len(explanations.patterns), 25), (labels[:25] + 1) % 3
    attacked = np.where(explanations.patterns[patterns], targets[:, None], clean[:25])

    def weigh(votes):
        return weigh_votes(np.log(np.where(votes[:, :, None] == np.arange(3), 0.8, 0.1)), votes)

    training = TrainingSet(weigh(clean), labels, weigh(attacked), patterns, targets)
    (alarm, naming), constant, discounts = _draw_questions(training, explanations, np.random.default_rng(1))
    said = np.mean([len(set(row)) for row in clean.tolist()])
    assert constant == pytest.approx(np.log(25 * said / (N_DRAWN * 40)))
    # True explanations first, of the same attacks for both questions.
    assert alarm[1].sum() == naming[1].sum() <= 25
    assert alarm[1].tolist() == sorted(alarm[1].tolist(), reverse=True)
    assert (alarm[0][: alarm[1].sum()] == naming[0][: naming[1].sum()]).all()
    assert discounts.shape == (7,)
