"""Consensus and plurality against their definitions, on all votes of small codes.

Small enough to run without the compiler: these are tests that ``python -m benchmarks.mutate`` asks to notice.
"""

from itertools import combinations, product

import numpy as np
import pytest
from tests.decoding.small_codes import LINE, RING, every_vote, hit

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import NO_VERDICT, ConsensusDecoder, PluralityDecoder


@pytest.mark.parametrize(("n_attackers", "n_errors"), [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (0, 2)])
@pytest.mark.parametrize(("code", "n_classes"), [(RING, 3), (LINE, 2)])
def test_consensus_is_its_definition_on_all_votes(code, n_classes, n_attackers, n_errors):
    votes = every_vote(code.n_models, n_classes)
    decoder = ConsensusDecoder(code, n_attackers, n_errors, n_classes)
    sets = [x for size in range(n_attackers + 1) for x in combinations(range(code.n_users), size)]
    decoded = decoder.decode(votes)
    for row, word in enumerate(votes):
        found = {}
        for label, x in product(range(n_classes), sets):
            if ((word != label) & ~hit(x, code)).sum() <= n_errors:
                found.setdefault(label, x)
        single = len(found) == 1
        assert decoded.labels[row] == (next(iter(found)) if single else NO_VERDICT)
        suspects = next(iter(found.values())) if single else ()
        assert decoded.best_set[row] == suspects
        every = [x for x in sets if single and ((word != next(iter(found))) & ~hit(x, code)).sum() <= n_errors]
        minimal = [x for x in every if not any(set(y) < set(x) for y in every)]
        assert list(decoded.suspect_sets[row]) == minimal
        assert decoded.more_sets[row] == 0
        assert set(decoded.suspects[row]) == (set.intersection(*map(set, every)) if single else set())
        assert decoded.attack_probability[row] == float(not single or suspects != ())
        shares = [np.mean([j in x for x in minimal]) if single else 0.0 for j in range(code.n_users)]
        assert decoded.user_probability[row] == pytest.approx(shares)
        shared = found or range(n_classes)
        assert decoded.label_probability[row] == pytest.approx([(t in shared) / len(shared) for t in range(n_classes)])
    assert decoded.targets.tolist() == [-1] * len(votes)
    assert decoded.neglected.tolist() == [0.0] * len(votes)
    assert (decoder.predict(votes) == decoded.labels).all()
    # Without a number of classes there is one that nobody says, and no more.
    assert ConsensusDecoder(code, 1).decode([[0] * code.n_models]).label_probability.shape == (1, 2)
    assert ConsensusDecoder(LINE, 1).decode([[0, 2, 2, 2, 2]]).label_probability.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    assert ConsensusDecoder(code, 1).decode(np.zeros((0, code.n_models), int)).label_probability.shape == (0, 2)


def test_consensus_names_the_dissenters_however_many_inputs_there_are():
    dissenters = [x for size in range(5) for x in combinations(range(20), size)]  # more than are taken at a time
    votes = np.zeros((len(dissenters), 20), dtype=int)
    for row, x in enumerate(dissenters):
        votes[row, list(x)] = 1
    decoded = ConsensusDecoder(Code(np.eye(20, dtype=int)), 4, n_classes=2).decode(votes)
    assert not decoded.labels.any()
    assert list(decoded.best_set) == dissenters


def test_consensus_and_plurality_refuse_what_they_cannot_count():
    for n_attackers, n_errors in ((0.5, 0), (-1, 0), (0, 0.5), (0, -1)):
        with pytest.raises(InputError, match="whole number"):
            ConsensusDecoder(RING, n_attackers, n_errors).predict([[0, 0, 0]])
    with pytest.raises(InputError, match="no models"):
        PluralityDecoder().predict(np.zeros((2, 0), dtype=int))
    with pytest.raises(InputError, match="3 models"):
        PluralityDecoder(RING).predict([[0, 0]])


@pytest.mark.parametrize(("code", "n_classes"), [(RING, None), (RING, 5), (None, None), (None, 3)])
def test_plurality_counts_votes(code, n_classes):
    votes = every_vote(3, 3)
    decoded = PluralityDecoder(code, n_classes).decode(votes)
    shares = [[word.tolist().count(t) / 3 for t in range(n_classes or 3)] for word in votes]
    assert decoded.label_probability.tolist() == shares
    assert decoded.labels.tolist() == [share.index(max(share)) for share in shares]
    assert decoded.attack_probability.tolist() == [float(max(share) < 1) for share in shares]
    assert decoded.targets.tolist() == [-1] * len(votes)
    assert list(decoded.best_set) == [()] * len(votes)
    assert decoded.user_probability.tolist() == [[0.0] * (3 if code else 0)] * len(votes)
    assert decoded.neglected.tolist() == [0.0] * len(votes)
    assert PluralityDecoder(code, n_classes).predict(votes).tolist() == decoded.labels.tolist()
    assert PluralityDecoder(code, n_classes).decode(np.zeros((0, 3), dtype=int)).labels.tolist() == []
    assert PluralityDecoder().decode(np.zeros((0, 3), dtype=int)).label_probability.shape == (0, 1)
    assert PluralityDecoder().decode([[1]]).label_probability.tolist() == [[0.0, 1.0]]
