"""The run-off election against a slow twin: counts, both rounds, ties, and what it refuses."""

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import RunOffCounts, RunOffDecoder, check_scores, make_decoder


def elect_slowly(scores):
    """Both rounds by the definition, one model at a time."""
    n_classes = len(scores[0])
    votes = [max(range(n_classes), key=lambda v: (own[v], -v)) for own in scores]
    a, b = sorted(sorted(range(n_classes), key=lambda v: (-votes.count(v), v))[:2])
    for_b = sum(own[b] > own[a] for own in scores)
    return b if for_b > len(scores) - for_b else a


def draw_scores(rng, n_inputs=40):
    m, c = int(rng.integers(1, 8)), int(rng.integers(2, 6))
    raw = rng.normal(size=(n_inputs, m, c))
    # Quantised ones tie often.
    return rng.choice([raw, np.rint(2 * raw)]) if rng.random() < 0.5 else np.rint(raw).astype(np.int8)


@pytest.mark.parametrize("seed", range(30))
def test_both_rounds_are_the_twins_from_scores_and_from_counts(seed):
    scores = draw_scores(np.random.default_rng(seed))
    truth = [elect_slowly(own.tolist()) for own in scores]
    found = RunOffDecoder().decode(scores)
    np.testing.assert_array_equal(found.labels, truth)
    np.testing.assert_array_equal(RunOffDecoder().predict(scores), truth)
    counts = RunOffCounts.count(scores, joint=bool(seed % 2))
    np.testing.assert_array_equal(RunOffDecoder().predict(counts), truth)
    same = RunOffDecoder().decode(counts)
    np.testing.assert_array_equal(same.label_probability, found.label_probability)
    votes = scores.argmax(axis=2)
    np.testing.assert_array_equal(found.attack_probability > 0, (votes != found.labels[:, None]).any(axis=1))
    np.testing.assert_allclose(found.label_probability.sum(axis=1), 1)


def test_counts_are_those_of_the_definition():
    scores = draw_scores(np.random.default_rng(1))
    counts = RunOffCounts.count(scores, joint=True)
    votes, c = scores.argmax(axis=2), scores.shape[2]
    for a in range(c):
        for b in range(c):
            above = scores[:, :, a] >= scores[:, :, b] if a < b else scores[:, :, a] > scores[:, :, b]
            np.testing.assert_array_equal(counts.pairs[:, a, b], (above & (a != b)).sum(axis=1))
            for v in range(c):
                own = (above & (a != b) & (votes == v)).sum(axis=1)
                np.testing.assert_array_equal(counts.joint[:, v, a, b], own)
    halves = [RunOffCounts.count(part, joint=True) for part in (scores[:7], scores[7:])]
    np.testing.assert_array_equal(RunOffCounts.concatenate(halves).joint, counts.joint)
    assert RunOffCounts.concatenate([halves[0], RunOffCounts.count(scores)]).joint is None


def test_ties_go_to_the_smaller_class_in_both_rounds():
    # One vote each for 0, 1, 2: 0 and 1 go on; the third model finds them equal, which counts for 0.
    assert RunOffDecoder().predict([[[1, 0, 0], [0, 1, 0], [0, 0, 1]]])[0] == 0
    # 1 against 1 in the second round.
    assert RunOffDecoder().predict([[[0, 0, 1], [0, 1, 0]]])[0] == 1
    # Infinite log-probabilities are compared like others.
    assert RunOffDecoder().predict([[[-np.inf, 0.0], [-np.inf, -np.inf]]])[0] == 0


def test_halves_and_bytes_keep_their_order():
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 255, (50, 9, 4))
    for kind in (np.uint8, np.float16, np.float32, np.int64):
        np.testing.assert_array_equal(RunOffDecoder().predict(whole.astype(kind)), RunOffDecoder().predict(whole))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((2, 3)), "shape"),
        (np.zeros((2, 0, 3)), "shape"),
        (np.zeros((2, 3, 1)), "shape"),
        (np.zeros((2, 3, 2), dtype=complex), "numbers"),
        (np.full((1, 2, 2), np.nan), "NaN"),
        (np.full((1, 2, 2), 2**60), "2\\^53"),
        (np.zeros((1, 3, 2)), "3 models"),
        (np.zeros((1, 2, 4)), "4 classes"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(scores, message):
    with pytest.raises(InputError, match=message):
        make_decoder("runoff", Code([[1, 0], [0, 1]]), n_classes=2).predict(scores)


def test_counts_that_no_models_cast_are_refused():
    good = RunOffCounts.count(np.random.default_rng(2).normal(size=(3, 5, 3)), joint=True)
    more = good.first + np.eye(3, dtype=int)[0]
    with pytest.raises(InputError, match="not of models"):
        RunOffCounts(more, good.pairs)
    with pytest.raises(InputError, match="not of models"):
        RunOffCounts(good.first, good.pairs.transpose(0, 2, 1))
    with pytest.raises(InputError, match="add up"):
        RunOffCounts(good.first, good.pairs, good.joint[:, ::-1])
    with pytest.raises(InputError, match="whole numbers"):
        RunOffCounts(good.first.astype(float), good.pairs)
    with pytest.raises(InputError, match="shape"):
        RunOffCounts(good.first, good.pairs, good.pairs)
    with pytest.raises(InputError, match="5 models"):
        RunOffDecoder(Code([[1, 0], [0, 1]])).predict(good)


@pytest.mark.parametrize(("given", "kept"), [("f2", "f4"), ("i2", "f4"), ("f4", "f4"), ("f8", "f8"), ("i4", "f8")])
def test_scores_take_no_more_room_than_their_order_needs(given, kept):
    assert check_scores(np.zeros((1, 2, 3), dtype=given)).dtype == np.dtype(kept)
