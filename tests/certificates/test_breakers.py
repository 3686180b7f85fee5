"""What breaks which output, cell by cell, against overwriting and decoding one vote vector at a time."""

import numpy as np
import pytest

from codeward.certificates._breakers import OverwriteBreaker, PluralityBreaker, list_rivals
from codeward.codes import Code
from codeward.decoding import ConsensusDecoder, PluralityDecoder


def draw(seed, n_inputs=12, m=5, c=4, n_patterns=9):
    rng = np.random.default_rng(seed)
    votes = rng.integers(0, c, (n_inputs, m)) * (rng.random((n_inputs, 1)) < 0.8)
    return votes, rng.random((n_patterns, m)) < 0.4, rng


def candidates_of(row):
    return [int(target) for target in row if target >= 0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["plurality", "overwrite", "touchy"])
def test_broken_cells_and_smallest_targets(kind, seed):
    votes, bits, rng = draw(seed)
    if kind == "touchy":
        # Changes at the first vote for 3, and to nothing it has said before.
        predict = lambda y: np.where((y == 3).any(axis=1), -1, np.asarray(y)[:, 0])  # noqa: E731
        candidates = np.array([[0, 2, 3], [1, 3, -1], [3, -1, -1], [-1, -1, -1]])[np.arange(12) % 4]
    else:
        predict = PluralityDecoder().predict
        candidates = list_rivals(votes, predict(votes))
    labels = predict(votes)
    breaker = (
        PluralityBreaker(votes, labels) if kind == "plurality" else OverwriteBreaker(votes, labels, candidates, predict)
    )
    rows = rng.permutation(12)[:7]

    def breaking(row, pattern):
        """Targets that work: for plurality those that win themselves, else those that change the verdict."""
        after = [(t, np.where(pattern, t, votes[row])) for t in candidates[row].tolist() if t >= 0]
        if kind != "plurality":
            return [t for t, y in after if predict(y[None])[0] != labels[row]]
        lead = [(t, (y == t).sum() - (y == labels[row]).sum()) for t, y in after]
        return [t for t, ahead in lead if ahead > 0 or (ahead == 0 and t < labels[row])]

    expected = np.array([[bool(breaking(row, pattern)) for pattern in bits] for row in rows])
    np.testing.assert_array_equal(breaker.broken(bits, rows), expected)
    for pattern in bits:
        found = breaker.targets(np.tile(pattern, (rows.size, 1)), rows)
        assert found.tolist() == [min(breaking(row, pattern), default=-1) for row in rows]
    assert expected.any()
    assert not expected.all()


def test_blocks_of_inputs_do_not_change_what_is_broken(monkeypatch):
    votes, bits, _ = draw(9, n_inputs=30)
    predict = PluralityDecoder().predict
    labels = predict(votes)
    breaker = OverwriteBreaker(votes, labels, list_rivals(votes, labels), predict)
    rows = np.arange(30)
    whole = breaker.broken(bits, rows)
    for cells in (1, bits.shape[0], 4 * bits.shape[0], 31 * bits.shape[0]):
        monkeypatch.setattr("codeward.certificates._breakers.BATCH_VECTORS", cells)
        np.testing.assert_array_equal(breaker.broken(bits, rows), whole)


def test_cells_that_are_broken_are_not_decoded_again():
    votes = np.zeros((1, 4), dtype=np.int64)
    seen = []

    def predict(y):
        seen.append(len(y))
        return np.where((y != 0).any(axis=1), 1, 0)

    breaker = OverwriteBreaker(votes, np.array([0]), np.array([[1, 2, 3]]), predict)
    assert breaker.broken(np.eye(4, dtype=bool), np.array([0])).all()
    assert seen == [4]


@pytest.mark.parametrize("seed", range(3))
def test_rivals_are_the_voted_labels_and_the_smallest_unvoted_one_where_it_may_matter(seed):
    votes, _, rng = draw(seed, n_inputs=60, m=4, c=5)
    for labels in (PluralityDecoder().predict(votes), np.full(60, -1), rng.choice(votes[0], 60)):
        found = list_rivals(votes, labels)
        assert found.shape[1] == max(len(candidates_of(row)) for row in found)
        for row, label, listed in zip(votes.tolist(), labels.tolist(), found.tolist(), strict=True):
            voted = set(row) - {label}
            unvoted = min(set(range(7)) - set(row))
            expected = voted | ({unvoted} if unvoted < label or not voted else set())
            assert candidates_of(listed) == sorted(expected)
            assert listed[len(expected) :] == [-1] * (len(listed) - len(expected))


def test_what_a_plurality_rival_needs_is_written_out():
    votes = np.array([[2, 2, 1, 0, 3]])
    breaker = PluralityBreaker(votes, np.array([2]))
    assert breaker.rivals.tolist() == [[0, 1, 3]]
    for rank, (weights, need) in enumerate([([2, 2, 1, 0, 1], 1), ([2, 2, 0, 1, 1], 1), ([2, 2, 1, 1, 0], 2)]):
        found, reach = breaker.demands(rank, np.array([0]))
        assert found.tolist() == [weights]
        assert reach.tolist() == [need]
    alone = PluralityBreaker(np.array([[0, 0], [1, 2]]), np.array([0, 1]))
    assert alone.rivals.tolist() == [[1, -1], [0, 2]]
    assert np.isinf(alone.demands(1, np.array([0]))[1]).all()


def test_consensus_breaks_by_losing_its_explanation_too():
    code = Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    decoder = ConsensusDecoder(code, 1, n_classes=3)
    votes = np.array([[1, 1, 1]])
    breaker = OverwriteBreaker(votes, decoder.predict(votes), list_rivals(votes, np.array([1])), decoder.predict)
    one, two = np.array([[True, False, False]]), np.array([[True, True, False]])
    assert not breaker.broken(one, np.array([0])).any()
    assert breaker.broken(two, np.array([0])).all()
