import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, named_code
from codeward.decoding._attacker_sets import gather_attacker_sets
from codeward.decoding.soft._explanations import MOST_GROUPS, group_patterns, list_explanations


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
