"""Batches, pooled evidence, detection and tracking."""

from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import (
    BayesDecoder,
    alarm_threshold,
    decode_batch,
    estimate_confusion,
    make_decoder,
    pool_evidence,
    roc_curve,
    tracking_score,
)
from codeward.decoding._reference import decode_exact
from codeward.reproduction import list_packed

RESULTS = Path(__file__).parents[2] / "results"


def simulate(rng, n_inputs, attackers, target, share):
    """Votes of 12 models of 8 users, accuracy 0.8, a share of the inputs triggered."""
    matrix = rng.random((12, 8)) < 0.5
    matrix[np.arange(12), np.arange(12) % 8] = True
    code = Code(matrix)
    confusion = np.full((12, 5, 5), 0.05)
    confusion[:, np.arange(5), np.arange(5)] = 0.8
    labels = rng.integers(0, 5, n_inputs)
    wrong = rng.random((n_inputs, 12)) < 0.2
    votes = np.where(wrong, (labels[:, None] + rng.integers(1, 5, (n_inputs, 12))) % 5, labels[:, None])
    triggered = rng.random(n_inputs) < share
    votes[np.ix_(triggered, code.pattern(attackers))] = target
    return code, confusion, votes, labels, triggered


def test_a_batch_sharpens_alarms_and_suspects():
    rng = np.random.default_rng(0)
    code, confusion, votes, labels, triggered = simulate(rng, 400, (3,), 2, 0.3)
    decoder = BayesDecoder(code, confusion)
    alone, together = decoder.decode(votes), decode_batch(decoder, votes)
    sure = triggered & (labels != 2)
    auc = [roc_curve(d.attack_probability[~triggered], d.attack_probability[sure]).auc for d in (alone, together)]
    assert auc[1] > auc[0]
    assert together.alarms()[~triggered].sum() < alone.alarms()[~triggered].sum()
    assert together.alarms()[sure].mean() >= alone.alarms()[sure].mean() - 0.01
    right = [np.mean([d.suspects[i] == (3,) for i in np.flatnonzero(sure)]) for d in (alone, together)]
    # Less than without the component of hard inputs, which these simulated votes have none of.
    assert right[1] > max(right[0] + 0.04, 0.9)
    assert (together.labels == labels).mean() >= (alone.labels == labels).mean() - 0.01
    np.testing.assert_allclose(together.label_probability.sum(axis=1), 1)


def draw_clean(rng, n_inputs, code, n_classes):
    """Clean votes whose errors depend on each other: a part of the inputs is hard for a random share of the models."""
    labels = rng.integers(0, n_classes, n_inputs)
    share = np.where(rng.random(n_inputs) < 0.2, rng.random(n_inputs), 0.02)
    fooled = rng.random((n_inputs, code.n_models)) < share[:, None]
    other = (labels + rng.integers(1, n_classes, n_inputs)) % n_classes
    return np.where(fooled, other[:, None], labels[:, None]), labels


CODES = {
    "one user a model": np.eye(6, dtype=int),
    "pairs": [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]],
    "all but one": 1 - np.eye(5, dtype=int),
    "everybody": np.ones((4, 3), dtype=int),
}


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("size", [0, 1, 2, 10, 100, 1000])
def test_clean_traffic_raises_no_more_alarms_together_than_one_by_one(name, size):
    rng = np.random.default_rng(size)
    code = Code(CODES[name])
    decoder = BayesDecoder(code, estimate_confusion(*draw_clean(rng, 500, code, 4), 4))
    votes, labels = draw_clean(rng, size, code, 4)
    alone, together = decoder.decode(votes), decode_batch(decoder, votes)
    for threshold in (0.0, 0.1, 0.5, 0.9):
        assert not (together.alarms(threshold) & ~alone.alarms(threshold)).any()
    quiet = ~together.alarms()
    np.testing.assert_array_equal(together.labels[quiet], alone.labels[quiet])
    if size == 1000 and name == "pairs":
        assert together.alarms().sum() < 0.5 * alone.alarms().sum()
        assert (together.labels == labels).mean() >= (alone.labels == labels).mean() - 0.01


@pytest.mark.parametrize("setting", ["mnist-iid", "cifar10-iid"])
def test_recorded_clean_votes_raise_no_more_alarms_together_than_one_by_one(setting):
    (packed,) = [found for found in list_packed(RESULTS) if found.votes_file.stem == setting]
    seen = 0
    for run in packed.runs:
        place = f"{run}/votes/repeat0-attackers2"
        known, clean = (packed.load_votes(f"{place}-{part}.npz") for part in ("validation", "clean"))
        decoder = make_decoder("bayes", packed.load_code(run), known)
        for size in (10, 120):
            alone, together = decoder.decode(clean.votes[:size]), decode_batch(decoder, clean.votes[:size])
            assert not (together.alarms() & ~alone.alarms()).any()
            seen += size
    assert seen == 130 * 15


def test_the_mixture_is_the_one_written_down():
    """A plain twin: every component's likelihood by loops, the same EM."""
    code = Code([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
    rng = np.random.default_rng(4)
    confusion = rng.dirichlet(np.ones(3) * 0.3, size=(4, 3)) * 0.5 + np.eye(3) * 0.5
    votes = rng.integers(0, 3, (30, 4))
    prior = (0.3, 0.4, 0.3)
    decoder = BayesDecoder(code, confusion, 0.4, 0.9, prior)
    together, alone = decode_batch(decoder, votes, max_iterations=7), decoder.decode(votes)

    components = {}
    for size, weight in ((1, 0.4 / 3), (2, 0.3 / 3)):
        for x in combinations(range(3), size):
            hit = tuple(code.pattern(x))
            if any(hit) and not all(hit):
                components[hit] = components.get(hit, 0.0) + weight
    scale = sum(components.values())
    keys = [(hit, t) for hit in components for t in range(3)]
    start = np.array([0.6 * 0.95, 0.6 * 0.05, *(0.4 * components[hit] / scale / 3 for hit, t in keys)])
    table = np.zeros((30, start.size))
    for u, word in enumerate(votes):
        clean = [[confusion[i, label, word[i]] for i in range(4)] for label in range(3)]
        table[u, 0] = np.mean([np.prod(row) for row in clean])
        for label, t, q in product(range(3), range(3), (np.arange(8) + 0.5) / 8):
            if label != t:
                said = [q * (word[i] == t) + (1 - q) * clean[label][i] for i in range(4)]
                table[u, 1] += np.prod(said) / (3 * 2 * 8)
        for k, (hit, t) in enumerate(keys):
            for label in range(3):
                if label != t:
                    honest = np.array(clean[label])
                    table[u, 2 + k] += np.prod(np.where(hit, 0.9 * (word == t) + 0.1 * honest, honest)) / 2
    weights = start
    for _ in range(7):
        shares = table * weights / (table @ weights)[:, None]
        weights = (shares.sum(axis=0) + start) / 31
    shares = table * weights / (table @ weights)[:, None]
    expected = np.minimum(shares[:, 2:].sum(axis=1), alone.attack_probability)
    np.testing.assert_allclose(together.attack_probability, expected, rtol=1e-9)
    with pytest.raises(InputError, match="strength"):
        decode_batch(decoder, votes, strength=0)


def test_pooled_evidence_of_one_input_is_decoding_it_and_of_many_the_product():
    rng = np.random.default_rng(2)
    code, confusion, votes, _, _ = simulate(rng, 3, (1,), 0, 1.0)
    decoder = BayesDecoder(code, confusion, attackers_prior=(0.2, 0.4, 0.4))
    single, decoded = pool_evidence(decoder, [votes[i : i + 1] for i in range(3)]), decoder.decode(votes)
    np.testing.assert_allclose(single.attack_probability, decoded.attack_probability)
    np.testing.assert_allclose(single.user_probability, decoded.user_probability, atol=1e-12)
    assert single.suspects == decoded.suspects
    # The product over inputs of sum_l p(x, y, t, l), by the printed formula: posterior of x from two inputs.
    pooled = pool_evidence(decoder, [votes[:2]])
    mass: dict[tuple[int, ...], float] = {}
    for target in range(5):
        for x in decode_exact(code, confusion, votes[0], attackers_prior=(0.2, 0.4, 0.4)).attackers_probability:
            hit = code.pattern(x)
            product = {0: 0.2, 1: 0.4 / 8, 2: 0.4 / 28}[len(x)]
            for word in votes[:2]:
                clean = confusion[np.arange(12), :, word]
                said = np.where((word == target)[:, None], 0.99, 0.0) + 0.01 * clean
                product *= np.where(hit[:, None], said, clean).prod(axis=0).sum()
            mass[x] = mass.get(x, 0.0) + product
    total = sum(mass.values())
    for user in range(8):
        expected = sum(v for x, v in mass.items() if user in x) / total
        assert pooled.user_probability[0, user] == pytest.approx(expected, abs=1e-9)


def test_more_inputs_find_the_attackers_more_often():
    rng = np.random.default_rng(3)
    found = {}
    for q in (1, 5):
        score = []
        for _ in range(60):
            code, confusion, votes, _, _ = simulate(rng, q, (2, 6), 4, 1.0)
            pooled = pool_evidence(BayesDecoder(code, confusion), [votes])
            score.append(pooled.suspects[0] == (2, 6))
        found[q] = np.mean(score)
    assert found[5] > found[1]


@settings(max_examples=60, deadline=None)
@given(
    clean=st.lists(st.integers(0, 6), min_size=1, max_size=30),
    triggered=st.lists(st.integers(0, 6), min_size=1, max_size=30),
)
def test_the_roc_curve_is_that_of_scikit_learn(clean, triggered):
    metrics = pytest.importorskip("sklearn.metrics")
    curve = roc_curve(np.array(clean) / 6, np.array(triggered) / 6)
    truth = np.r_[np.zeros(len(clean)), np.ones(len(triggered))]
    scores = np.r_[clean, triggered] / 6
    fpr, tpr, thresholds = metrics.roc_curve(truth, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)
    # Theirs are alarms at the threshold and above, ours above it: every point belongs to the next lower value.
    np.testing.assert_allclose(curve.thresholds, [*thresholds[1:], -np.inf])
    assert curve.auc == pytest.approx(metrics.roc_auc_score(truth, scores))
    for rate in (0.0, 0.1, 0.5, 1.0):
        threshold = curve.threshold_for(rate)
        assert np.mean(np.array(clean) / 6 > threshold) <= rate
        lower = [t for t in curve.thresholds if t < threshold]
        assert all(np.mean(np.array(clean) / 6 > t) > rate for t in lower)


def test_thresholds_and_curves_refuse_what_they_cannot_use():
    assert alarm_threshold([0.1, 0.2, 0.2, 0.9], 0.25) == 0.2
    with pytest.raises(InputError, match="clean"):
        roc_curve([], [0.5])
    with pytest.raises(InputError, match="triggered"):
        roc_curve([0.5], [np.nan])
    with pytest.raises(InputError, match="rate"):
        alarm_threshold([0.5], 1.5)


def test_tracking_counts_hits_and_false_accusations():
    hits, wrong = tracking_score([(0, 1), (2,), ()], (1, 2))
    assert hits.tolist() == [1, 1, 0]
    assert wrong.tolist() == [1, 0, 0]
    hits, wrong = tracking_score([(0, 1), (2,)], [(0,), ()])
    assert (hits.tolist(), wrong.tolist()) == ([1, 0], [1, 1])
    with pytest.raises(InputError, match="2 inputs"):
        tracking_score([(0,), (1,)], [(0,)])
