"""Pooled evidence, batches, detection and tracking."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.exact_posterior import decode_exact

from codeward._errors import InputError
from codeward.codes import Code, named_code
from codeward.decoding import (
    BayesDecoder,
    _pooling,
    alarm_threshold,
    count_apart,
    count_spare,
    decode_batch,
    make_decoder,
    name_attackers,
    pool_evidence,
    roc_curve,
    tracking_score,
)
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


def check_batch(decoder, observed, **settings):
    """Nothing but the names of alarmed inputs may differ from decoding one by one."""
    alone, together = decoder.decode(observed), decode_batch(decoder, observed, **settings)
    for field in ("labels", "attack_probability", "targets", "label_probability", "neglected", "agreed"):
        np.testing.assert_array_equal(getattr(together, field), getattr(alone, field))
    for threshold in (0.0, 0.1, 0.5, 0.9):
        np.testing.assert_array_equal(together.alarms(threshold), alone.alarms(threshold))
    quiet = ~alone.alarms(settings.get("threshold", decoder.threshold))
    for row in np.flatnonzero(quiet):
        assert together.suspects[row] == alone.suspects[row]
        assert together.suspect_sets[row] == alone.suspect_sets[row]
    np.testing.assert_array_equal(together.user_probability[quiet], alone.user_probability[quiet])
    return alone, together


def test_a_batch_names_who_one_input_leaves_open():
    rng = np.random.default_rng(0)
    code, confusion, votes, labels, triggered = simulate(rng, 400, (3,), 2, 0.3)
    decoder = BayesDecoder(code, confusion)
    alone, together = check_batch(decoder, votes)
    counted = np.flatnonzero(triggered & (labels != 2) & alone.alarms())
    named = [np.mean([found.suspects[row] == (3,) for row in counted]) for found in (alone, together)]
    assert named[0] < 0.7
    assert named[1] > 0.9
    check_batch(decoder, votes[:50], threshold=0.9)
    check_batch(decoder, votes[:0])


@pytest.mark.parametrize("setting", ["mnist-iid", "cifar10-iid"])
def test_recorded_votes_have_the_labels_and_alarms_of_one_by_one(setting):
    (packed,) = [found for found in list_packed(RESULTS) if found.path.name == setting]
    named, alarms = np.zeros(2), 0
    for run in packed.runs:
        code, place = packed.load_code(run), f"{run}/votes/repeat0-attackers1"
        known, clean, hit = (packed.load_votes(f"{place}-{part}.npz") for part in ("validation", "clean", "triggered"))
        decoder = make_decoder("bayes", code, known)
        for size in (1, 10, 120):
            check_batch(decoder, clean.votes[:size])
        alone, together = check_batch(decoder, np.concatenate([clean.votes[:60], hit.votes[:60]]))
        rows = 60 + np.flatnonzero(alone.alarms()[60:])
        named += [sum(bool(found.suspects[row]) for row in rows) for found in (alone, together)]
        alarms += rows.size
    assert len(packed.runs) == 15
    assert named[1] > named[0] > 0
    assert named[1] <= alarms


@pytest.mark.parametrize("false_share", [0.0, 0.3])
@pytest.mark.parametrize("table", [1, 300, 30_000_000])
def test_evidence_is_added_up_whatever_fits_into_memory(table, false_share, monkeypatch):
    rng = np.random.default_rng(5)
    code, confusion, votes, _, _ = simulate(rng, 9, (1,), 0, 0.7)
    decoder = BayesDecoder(code, confusion, attackers_prior=(0.2, 0.4, 0.4))
    groups = [votes[:4], votes[3:9], votes[:0], votes[8:]]
    monkeypatch.setattr(_pooling, "TABLE", table)
    pooled = pool_evidence(decoder, groups, false_share)
    for place, group in enumerate(groups):
        table_ = decoder.log_likelihood(group)
        quiet = decoder.clean_log_likelihood(group)
        with np.errstate(divide="ignore"):
            mixed = np.logaddexp(np.log(1 - false_share) + table_, np.log(false_share) + quiet[:, None, None])
        joint = mixed.sum(axis=0) + np.log(decoder.sets_.weights / 5)[:, None]
        attacked = np.logaddexp.reduce(joint, axis=None)
        expected = 1 / (1 + np.exp(quiet.sum() - attacked))
        assert pooled.attack_probability[place] == pytest.approx(expected)
        posterior = np.exp(joint - attacked)
        assert pooled.targets[place] == posterior.sum(axis=0).argmax()
        np.testing.assert_allclose(pooled.user_probability[place], posterior.sum(axis=1) @ decoder.sets_.members)
    with pytest.raises(InputError, match="false_share"):
        pool_evidence(decoder, groups, 1.5)


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


def test_a_batch_pools_each_target_by_itself():
    code = Code(np.repeat(np.eye(3, dtype=int), 2, axis=0))
    decoder = BayesDecoder(code, [0.7 * np.eye(4) + 0.075] * 6, attackers_prior=(0.5, 0.5))
    votes = [[0, 0, 0, 0, 1, 1]] * 3 + [[2, 2, 0, 0, 0, 0]] * 3 + [[0, 0, 3, 3, 0, 0]] * 3
    found = decode_batch(decoder, votes, threshold=0.4)
    assert found.targets.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert found.suspects == [(2,)] * 3 + [(0,)] * 3 + [(1,)] * 3


def test_somebody_is_named_where_every_explanation_is_too_unlikely_for_a_float():
    code = Code(np.repeat(np.eye(3, dtype=int), 400, axis=0))
    decoder = BayesDecoder(code, [[[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4]]] * 1200)
    votes = np.tile([0, 0, 1, 2], 300)
    votes[800:] = 1
    assert name_attackers(decoder, [votes]) == [(2,)]


def test_names_do_not_depend_on_how_many_inputs_are_weighed_at_a_time(monkeypatch):
    code, confusion, votes, _, _ = simulate(np.random.default_rng(4), 12, (1,), 0, 0.7)
    decoder = BayesDecoder(code, confusion)
    whole = name_attackers(decoder, votes)
    assert len(set(whole)) > 1
    for chunk in (1, 4 * 37 * 5):
        monkeypatch.setattr(_pooling, "_CHUNK", chunk)
        assert name_attackers(decoder, votes) == whole


def test_more_inputs_find_the_attackers_more_often():
    rng = np.random.default_rng(3)
    found = {}
    for q in (1, 5):
        score = []
        for _ in range(60):
            code, confusion, votes, _, _ = simulate(rng, q, (2, 6), 4, 1.0)
            pooled = pool_evidence(BayesDecoder(code, confusion), [votes])
            score.append(pooled.best_set[0] == (2, 6))
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


# --- whom no explanation can do without ---------------------------------------------------------------------------


def make_decoder_of(code, k):
    return BayesDecoder(
        code, np.full((code.n_models, 2, 2), 0.1) + 0.8 * np.eye(2), attackers_prior=[1 / (k + 1)] * (k + 1)
    )


def list_explanations(code, k, obeying):
    """Every set of up to k users who reach all models that obey, and in how many others its trigger would fail."""
    sets = [set(x) for size in range(1, k + 1) for x in combinations(range(code.n_users), size)]
    hits = [code.pattern(sorted(x)) for x in sets]
    return [(x, int((hit & ~obeying).sum())) for x, hit in zip(sets, hits, strict=True) if not (obeying & ~hit).any()]


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_users_are_apart_by_the_models_in_which_the_trigger_would_have_to_fail(seed, k):
    rng = np.random.default_rng(seed)
    matrix = rng.random((6, 5)) < 0.3
    matrix[np.arange(6), np.arange(6) % 5] = True
    code, obeying = Code(matrix), rng.random(6) < 0.4
    found = list_explanations(code, k, obeying)
    apart = count_apart(make_decoder_of(code, k).sets_, obeying)
    if not found:
        assert not apart.any()
        return
    least = min(fails for _, fails in found)
    for user in range(code.n_users):
        without = [fails for x, fails in found if user not in x]
        assert apart[user] == (min(without) - least if without else code.n_models)


@given(st.integers(0, 2**32), st.integers(1, 2))
def test_who_is_further_apart_than_the_trigger_fails_is_an_attacker(seed, k):
    """Proposition 46, whatever fails; with one more model it would be false (the twin below)."""
    rng = np.random.default_rng(seed)
    code = named_code("btc2412")
    attackers = rng.choice(12, k, replace=False).tolist()
    hit = code.pattern(sorted(attackers))
    obeying = hit & (rng.random(15) < rng.random())
    sets = make_decoder_of(code, 2).sets_
    apart = count_apart(sets, obeying)
    best = min(fails for _, fails in list_explanations(code, 2, obeying))
    more = int((hit & ~obeying).sum()) - best
    assert set(np.flatnonzero(apart > more)) <= set(attackers)


def test_fewer_models_to_spare_than_fail_accuse_somebody_honest():
    code, failing = named_code("btc2412"), [3, 12]
    obeying = code.pattern([0, 2])
    obeying[failing] = False
    apart = count_apart(make_decoder_of(code, 2).sets_, obeying)
    assert np.flatnonzero(apart > 0).tolist() == [2, 11]  # user 11 is honest
    assert np.flatnonzero(apart > len(failing)).tolist() == [2]


@pytest.mark.parametrize(
    ("name", "k", "spare"), [("btc2412", 2, 2), ("btc2412", 3, 1), ("g", 1, 0), ("h", 2, 0), ("d", 2, 0)]
)
def test_what_can_be_spared_costs_nothing_where_the_trigger_works_everywhere(name, k, spare):
    code = named_code(name)
    decoder = make_decoder_of(code, k)
    assert count_spare(decoder) == spare

    def lose(size, models):
        """Sets of so many attackers who are not all further apart than that."""
        sets = list(combinations(range(code.n_users), size))
        return [x for x in sets if count_apart(decoder.sets_, code.pattern(x))[list(x)].min() <= models]

    named = [size for size in range(1, k + 1) if not any(lose(small, 0) for small in range(1, size + 1))]
    assert not any(lose(size, spare) for size in named)
    assert not named or spare == 2 or any(lose(size, spare + 1) for size in named)


def test_what_can_be_spared_leaves_those_alone_whom_only_larger_sets_hide():
    # h names two; one in six pairs could be three others as well, and the rest would be lost with one model to spare.
    assert count_spare(make_decoder_of(named_code("h"), 3)) == 0
    assert count_spare(make_decoder_of(named_code("c"), 3)) == 0  # names nobody
    only_pairs = BayesDecoder(named_code("btc2412"), np.full((15, 2, 2), 0.5), attackers_prior=(0, 0, 1))
    assert count_spare(only_pairs) == 2


def test_of_several_possible_targets_the_best_explanation_counts():
    sets = make_decoder_of(named_code("btc2412"), 2).sets_
    rows = np.array([named_code("btc2412").pattern(users) for users in [(0, 2), (5, 6)]])
    assert np.flatnonzero(count_apart(sets, rows[:1]) > 2).tolist() == [0, 2]
    assert not (count_apart(sets, rows) > 0).any()
