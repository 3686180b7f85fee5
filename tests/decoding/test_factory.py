"""One way to a verdict: names, assumptions and the protocol all decoders share."""

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import (
    DECODERS,
    Assumptions,
    BayesDecoder,
    ConfusionModel,
    ConsensusDecoder,
    Decoded,
    PluralityDecoder,
    TwoGroupDecoder,
    VerdictMemory,
    VoteSet,
    _factory,
    conformal_threshold,
    count_confusion,
    estimate_confusion,
    make_decoder,
    pool_counts,
    promise_rate,
    smooth_confusion,
    uniform_prior,
)

FITTED = ("soft", "discounted", "calibrated")
CODE = Code([[1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])


@pytest.fixture(scope="module")
def clean():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 220)
    scores = rng.normal(size=(220, 6, 3)) + 3 * np.eye(3)[labels][:, None, :]
    scores -= np.log(np.exp(scores).sum(axis=2, keepdims=True))
    return VoteSet(scores.argmax(axis=2), labels, None, scores)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("soft", "discounted", "calibrated")))
        for name in DECODERS
    ],
)
def test_every_decoder_keeps_the_protocol(name, clean):
    decoder = make_decoder(name, CODE, clean, Assumptions.uniform(1, n_attackers=1))
    assert decoder.needs == ("scores" if name in ("soft", "runoff", "calibrated") else "votes")
    assert decoder.n_classes == 3
    observed = clean.scores if decoder.needs == "scores" else clean.votes
    found = decoder.decode(observed)
    assert isinstance(found, Decoded)
    assert len(found) == 220
    np.testing.assert_array_equal(decoder.predict(observed), found.labels)
    assert found.user_probability.shape == (220, 3)
    assert found.label_probability.shape == (220, 3)
    # Verdicts on parts, joined, are those on the whole.
    parts = Decoded.concatenate([decoder.decode(observed[:40]), decoder.decode(observed[40:])])
    np.testing.assert_array_equal(parts.labels, found.labels)
    np.testing.assert_allclose(parts.attack_probability, found.attack_probability)
    assert list(parts.suspects) == list(found.suspects)


def test_the_calibrated_decoder_is_the_best_that_the_clean_inputs_allow(clean, monkeypatch):
    with pytest.raises(InputError, match="clean inputs"):
        make_decoder("calibrated", CODE, np.full((6, 3, 3), 1 / 3))
    monkeypatch.setattr(_factory, "EXACT_SETS", 3)
    decoder = make_decoder("calibrated", CODE, clean, Assumptions.uniform(1, false_alarm_rate=0.05))
    assert isinstance(decoder, BayesDecoder)
    counts = count_confusion(clean.votes, clean.labels, 3)
    np.testing.assert_array_equal(decoder.confusion, smooth_confusion(pool_counts(counts)))
    # Cross-fitted by hand: 11 of 221 ranks are above the threshold.
    scores = np.zeros(220)
    for fold in range(10):
        rows, own = np.arange(220) % 10 != fold, np.arange(220) % 10 == fold
        counts = count_confusion(clean.votes[rows], clean.labels[rows], 3)
        found = BayesDecoder(CODE, smooth_confusion(pool_counts(counts)), attackers_prior=(0.5, 0.5))
        found = found.decode(clean.votes[own])
        scores[own] = np.where(found.agreed, 0, found.attack_probability)
    assert decoder.threshold == np.sort(scores)[220 - 11]


def test_few_clean_inputs_are_for_the_bayes_decoder(clean):
    few = VoteSet(clean.votes[:199], clean.labels[:199], None, clean.scores[:199])
    assert isinstance(make_decoder("calibrated", CODE, few, Assumptions.uniform(1)), BayesDecoder)


def draw_clean(rng, n_inputs):
    """Clean inputs some of which are hard for all models: errors are far from independent, as in practice."""
    labels = rng.integers(0, 3, n_inputs)
    errs = rng.random((n_inputs, 6)) < rng.choice([0.02, 0.5], n_inputs, p=[0.8, 0.2])[:, None]
    return VoteSet(np.where(errs, (labels[:, None] + 1) % 3, labels[:, None]), labels)


@pytest.mark.parametrize(("n_inputs", "promised"), [(4, 0.2), (12, 1 / 13), (19, 0.05), (40, 0.05), (130, 0.05)])
def test_false_alarms_keep_to_what_is_promised_on_average(n_inputs, promised):
    assert promise_rate(n_inputs, 0.05) == pytest.approx(promised)
    rng, rates = np.random.default_rng(n_inputs), []
    for _ in range(40):
        decoder = make_decoder("calibrated", CODE, draw_clean(rng, n_inputs), Assumptions.uniform(1), 3)
        rates.append(decoder.decode(draw_clean(rng, 300).votes).alarms(decoder.threshold).mean())
    assert np.mean(rates) <= promised + 2 * np.std(rates) / np.sqrt(40)


def test_too_few_inputs_ask_for_votes_that_errors_do_not_explain():
    labels = np.arange(16) % 3
    said = VoteSet(np.tile(labels[:, None], 6), labels)
    decoder = make_decoder("calibrated", CODE, said, Assumptions.uniform(1), 3)
    assert decoder.threshold == pytest.approx(1 / 1.05)
    assert make_decoder("calibrated", CODE, draw_clean(np.random.default_rng(0), 1), n_classes=3).threshold == 1


def test_a_fresh_score_passes_the_conformal_threshold_no_more_often_than_asked():
    rng = np.random.default_rng(0)
    for n_inputs, rate in ((19, 0.05), (50, 0.1), (5, 0.05), (40, 0.9)):
        # A coarse grid: ties must not break it.
        drawn = rng.integers(0, 40, (2000, n_inputs + 1)) / 40
        passed = np.mean([fresh > conformal_threshold(seen, rate) for *seen, fresh in drawn])
        assert passed <= max(rate, 1 / (n_inputs + 1)) + 0.02
    assert conformal_threshold([0.2, 0.5], 1.0) == -np.inf


def test_the_parts_of_the_assumptions_reach_the_decoders(clean):
    confusion = estimate_confusion(clean.votes, clean.labels, 3)
    assumed = Assumptions(0.2, 0.8, (0.3, 0.7), 0.1, 0.6, n_attackers=1, n_errors=2)
    for noise in (confusion, ConfusionModel(confusion), clean):
        bayes = make_decoder("bayes", CODE, noise, assumed)
        direct = BayesDecoder(CODE, confusion, 0.2, 0.8, (0.3, 0.7))
        found, expected = bayes.decode(clean.votes), direct.decode(clean.votes)
        np.testing.assert_array_equal(found.attack_probability, expected.attack_probability)
        np.testing.assert_array_equal(found.labels, expected.labels)
    groups = make_decoder("groups", CODE, confusion, assumed)
    assert isinstance(groups, TwoGroupDecoder)
    assert (groups.second_rate, groups.second_success_rate) == (0.1, 0.6)
    consensus = make_decoder("consensus", CODE, None, assumed, n_classes=3)
    assert isinstance(consensus, ConsensusDecoder)
    assert (consensus.n_attackers, consensus.n_errors, consensus.n_classes) == (1, 2, 3)
    plain = make_decoder("plurality", CODE)
    assert isinstance(plain, PluralityDecoder)
    assert plain.n_classes is None


def test_the_defaults_are_those_of_the_paper():
    assert Assumptions() == Assumptions(0.5, 0.99, [0.25] * 4)
    assert Assumptions().max_attackers == 3
    assert uniform_prior(0) == (1.0,)
    decoder = BayesDecoder(CODE, np.full((6, 2, 2), 0.5))
    assert (decoder.attack_rate, decoder.success_rate, decoder.attackers_prior) == (0.5, 0.99, (0.25,) * 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attack_rate": 1.5}, "attack_rate"),
        ({"success_rate": float("nan")}, "success_rate"),
        ({"attackers_prior": (0.5,)}, "sum to 0.5"),
        ({"second_rate": -1}, "second_rate"),
        ({"false_alarm_rate": 2}, "false_alarm_rate"),
    ],
)
def test_assumptions_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Assumptions(**arguments)
    with pytest.raises(InputError, match="max_attackers"):
        uniform_prior(-1)


@pytest.mark.parametrize(
    ("name", "noise", "message"),
    [
        ("oracle", None, "unknown decoder 'oracle'; choose plurality, "),
        ("bayes", None, "needs confusion matrices"),
        ("groups", VoteSet(np.zeros((2, 6), int)), "true label"),
        ("consensus", None, "n_attackers"),
        ("soft", np.full((6, 2, 2), 0.5), "fitted on clean inputs"),
        ("soft", VoteSet(np.zeros((2, 6), int), np.zeros(2, int)), "no.* class scores|discounted"),
        ("discounted", VoteSet(np.zeros((2, 6), int)), "true label"),
    ],
)
def test_what_is_missing_is_said(name, noise, message):
    with pytest.raises(InputError, match=message):
        make_decoder(name, CODE, noise)


def test_verdicts_are_taken_joined_and_compared(clean):
    found = make_decoder("bayes", CODE, clean).decode(clean.votes)
    some = found.take([3, 3, 1])
    assert some.labels.tolist() == found.labels[[3, 3, 1]].tolist()
    assert some.suspects[0] == found.suspects[3]
    np.testing.assert_array_equal(found.take(clean.labels == 1).labels, found.labels[clean.labels == 1])
    assert len(found.take(np.zeros(220, bool))) == 0
    level = float(found.attack_probability.max())
    assert not found.alarms(level).any()
    np.testing.assert_array_equal(found.alarms(), found.attack_probability > 0.5)
    with pytest.raises(InputError, match="no verdicts"):
        Decoded.concatenate([])


@pytest.mark.parametrize("limit", [0, 300, 10**6])
def test_a_decoder_with_a_memory_says_the_same(limit):
    rng = np.random.default_rng(1)
    decoder = BayesDecoder(CODE, np.full((6, 3, 3), 0.1) + 0.7 * np.eye(3))
    calls = []

    class Counting:
        needs, n_classes = "votes", 3

        def decode(self, votes):
            calls.append(len(votes))
            return decoder.decode(votes)

    memory = VerdictMemory(Counting(), limit)
    votes = np.where(rng.random((400, 6)) < 0.3, rng.integers(0, 3, (400, 6)), rng.integers(0, 3, (400, 1)))
    for start in range(0, 400, 37):
        found, expected = memory.decode(votes[start : start + 37]), decoder.decode(votes[start : start + 37])
        for name in ("labels", "attack_probability", "targets", "user_probability", "label_probability"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert list(found.suspects) == list(expected.suspects)
        np.testing.assert_array_equal(memory.predict(votes[start : start + 37]), expected.labels)
    if limit == 10**6:
        assert sum(calls) == len(np.unique(votes, axis=0))
    with pytest.raises(InputError, match=r"0\.\.2"):
        memory.decode([[0, 0, 0, 0, 0, 3]])
