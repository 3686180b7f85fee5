"""Plurality and consensus decoders."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import NO_VERDICT, ConsensusDecoder, PluralityDecoder


def explain_slowly(code, votes, n_attackers, n_errors, n_classes):
    """Each explained label with its first smallest set, by the definition."""
    found = {}
    for label in range(n_classes):
        for size in range(n_attackers + 1):
            for x in combinations(range(code.n_users), size):
                unexplained = sum(v != label and not hit for v, hit in zip(votes, code.pattern(x), strict=True))
                if unexplained <= n_errors and label not in found:
                    found[label] = x
    return found


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_users=st.integers(1, 5),
    n_models=st.integers(1, 7),
    n_attackers=st.integers(0, 3),
    n_errors=st.integers(0, 2),
)
def test_the_consensus_verdict_is_the_only_explained_label(seed, n_users, n_models, n_attackers, n_errors):
    rng = np.random.default_rng(seed)
    matrix = rng.random((n_models, n_users)) < 0.5
    matrix[np.arange(n_models), rng.integers(0, n_users, n_models)] = True
    matrix[rng.integers(0, n_models, n_users), np.arange(n_users)] = True
    code = Code(matrix)
    votes = rng.integers(0, 3, (4, n_models))
    votes[0] = votes[0, 0]
    decoder = ConsensusDecoder(code, n_attackers, n_errors, n_classes=3)
    decoded = decoder.decode(votes)
    for row, word in enumerate(votes):
        found = explain_slowly(code, word, n_attackers, n_errors, 3)
        if len(found) == 1:
            ((label, suspects),) = found.items()
            assert decoded.labels[row] == label
            assert decoded.best_set[row] == suspects
            assert decoded.attack_probability[row] == bool(suspects)
        else:
            assert decoded.labels[row] == NO_VERDICT
            assert decoded.attack_probability[row] == 1
        np.testing.assert_allclose(decoded.label_probability[row].sum(), 1)
    assert (decoder.predict(votes) == decoded.labels).all()


def test_the_guarantee_holds_under_every_arbitrary_attack_and_every_error():
    # Five models of one user each: every 2-sum has 3 zeros, enough for k = 1 and e = 1.
    code = Code(np.eye(5, dtype=int))
    decoder = ConsensusDecoder(code, 1, 1, n_classes=2)
    for attacker, wrong, said in product(range(5), range(5), product(range(2), repeat=2)):
        votes = np.ones(5, dtype=int)
        votes[attacker], votes[wrong] = said
        assert decoder.predict([votes])[0] == 1


def test_without_the_guarantee_two_explanations_give_no_verdict():
    code = Code(np.eye(4, dtype=int))
    decoder = ConsensusDecoder(code, 2)
    decoded = decoder.decode([[0, 0, 1, 1], [0, 0, 0, 1]])
    assert decoded.labels.tolist() == [NO_VERDICT, 0]
    assert list(decoded.suspects) == [(), (3,)]
    # One user in every model: a label nobody voted for is explained as well.
    assert ConsensusDecoder(Code([[1, 0], [1, 1]]), 1).predict([[0, 0]])[0] == NO_VERDICT


def test_negative_counts_are_refused():
    with pytest.raises(InputError, match="n_attackers"):
        ConsensusDecoder(Code([[1]]), -1).predict([[0]])
    with pytest.raises(InputError, match="n_errors"):
        ConsensusDecoder(Code([[1]]), 1, -1).predict([[0]])


def test_plurality_breaks_ties_towards_the_smaller_label():
    decoded = PluralityDecoder(n_classes=4).decode([[3, 3, 1, 1], [2, 2, 2, 0], [3, 3, 3, 3]])
    assert decoded.labels.tolist() == [1, 2, 3]
    assert decoded.attack_probability.tolist() == [1, 1, 0]
    assert PluralityDecoder().predict([[5, 5, 0]])[0] == 5
    with pytest.raises(InputError, match=r"0\.\.3"):
        PluralityDecoder(n_classes=4).predict([[4]])
