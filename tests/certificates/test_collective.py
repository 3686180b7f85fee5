"""The collective certificate against a plain loop over attacker sets, and MILP against patterns."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.certificates import certify, certify_collective
from codeward.codes import Code
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder


def draw(seed, n_inputs=12, n_classes=3):
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(2, 8)), int(rng.integers(2, 7))
    matrix = rng.random((m, n)) < 0.4
    matrix[np.arange(m), np.arange(m) % n] = True
    matrix[np.arange(n) % m, np.arange(n)] = True
    true = rng.integers(0, n_classes, n_inputs)
    noise = rng.integers(0, n_classes, (n_inputs, m))
    votes = np.where(rng.random((n_inputs, m)) < 0.8, true[:, None], noise)
    return Code(matrix), votes, true


def most_changed(code, votes, counted, predict, k, n_classes):
    """One attacker set for all inputs, its own target for each."""
    label, best = predict(votes), 0
    for size in range(k + 1):
        for attackers in combinations(range(code.n_users), size):
            hit = code.matrix[:, attackers].any(axis=1)
            after = [predict(np.where(hit, t, votes)) for t in range(n_classes)]
            best = max(best, int((counted & np.any([labels != label for labels in after], axis=0)).sum()))
    return best


@pytest.mark.parametrize("kind", ["plurality", "consensus", "bayes"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 3), with_labels=st.booleans())
def test_patterns_find_the_most_any_one_set_can_change(kind, seed, k, with_labels):
    code, votes, true = draw(seed)
    confusion = np.tile(0.8 * np.eye(3) + 0.2 / 3, (code.n_models, 1, 1))
    decoder = {
        "plurality": PluralityDecoder(),
        "consensus": ConsensusDecoder(code, 1, n_classes=3),
        "bayes": BayesDecoder(code, confusion),
    }[kind]
    threat = "deterministic" if kind == "bayes" else "arbitrary"
    labels = decoder.predict(votes)
    counted = (labels >= 0) & ((labels == true) | (not with_labels))
    given_labels = true if with_labels else None
    result = certify_collective(votes, code, k, labels=given_labels, threat=threat, decoder=decoder)
    assert result.changed == most_changed(code, votes, counted, decoder.predict, k, 3)
    assert result.exact
    assert result.n_counted == counted.sum()
    radius = certify(votes, code, threat=threat, decoder=decoder, max_attackers=k).radius
    assert result.pointwise == (counted & (radius < k)).sum() >= result.changed


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 3))
def test_milp_agrees_with_patterns(seed, k):
    code, votes, true = draw(seed, n_inputs=8)
    exact = certify_collective(votes, code, k, labels=true, method="patterns")
    solved = certify_collective(votes, code, k, labels=true, method="milp")
    assert (solved.changed, solved.pointwise, solved.exact) == (exact.changed, exact.pointwise, True)


def test_a_timeout_costs_sharpness_and_not_soundness():
    rng = np.random.default_rng(0)
    code = Code((rng.random((30, 40)) < 0.15) | (np.arange(30)[:, None] == np.arange(40) % 30))
    votes = np.where(rng.random((200, 30)) < 0.9, 1, rng.integers(0, 4, (200, 30)))
    hurried = certify_collective(votes, code, 2, method="milp", time_limit=0.2)
    truth = certify_collective(votes, code, 2, method="patterns")
    assert hurried.changed_by_attackers <= truth.changed <= hurried.changed <= len(votes)


def test_wrong_requests_are_refused():
    code, votes, _ = draw(0)
    with pytest.raises(InputError, match="at least 1"):
        certify_collective(votes, code, 0)
    with pytest.raises(InputError, match="labels"):
        certify_collective(votes, code, 1, labels=[0])
    with pytest.raises(InputError, match="milp"):
        certify_collective(votes, code, 1, decoder=ConsensusDecoder(code, 1), method="milp")
