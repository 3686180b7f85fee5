import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward.codes import named_code
from codeward.decoding.soft import DiscountedDecoder, SoftDecoder, _fitting
from codeward.decoding.soft._attack_draws import (
    FAMILIES,
    KEPT_SHARE,
    LEAD,
    ON_SCORES,
    ON_VOTES,
    SHARE,
    SOFTEST,
    Success,
    draw_attacks,
    draw_donors,
    overwrite_scores,
    overwrite_votes,
)
from codeward.decoding.soft._explanations import list_explanations
from codeward.decoding.soft._learners import log_softmax


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_classes=st.integers(2, 6),
    family=st.sampled_from(FAMILIES),
    sharpness=st.sampled_from([0.1, 3.0, 30.0]),
    uneven=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_simulated_attack_changes_hit_models_alone_and_makes_them_say_the_target(
    seed, n_classes, family, sharpness, uneven
):
    generator = np.random.default_rng(seed)
    explanations = list_explanations(named_code("bcc248"), np.array([0.0, 0.5, 0.5]))
    n_models = explanations.patterns.shape[1]
    scores = log_softmax(sharpness * generator.normal(size=(30, n_models, n_classes)))
    labels = generator.integers(0, n_classes, 30)
    prior = np.exp(explanations.log_weights)
    rows = generator.integers(0, 30, 50)
    known = (labels, rows, explanations.patterns, prior, n_classes, (family,), Success(0.5, uneven))
    attacks = draw_attacks(*known, generator)
    made = overwrite_scores(scores, labels, np.arange(30) % 3, attacks, generator)
    assert (attacks.targets != labels[rows]).all()
    assert attacks.hits.any(axis=1).all()
    assert not (attacks.hits & ~explanations.patterns[attacks.patterns]).any()
    np.testing.assert_array_equal(made[~attacks.hits], scores[rows][~attacks.hits])
    np.testing.assert_allclose(np.exp(made).sum(axis=2), 1)
    if family == "weak":
        # A mixture: at most 65% of what the model says without the trigger is lost, at least 5% is the trigger's.
        assert (np.exp(made) >= 0.35 * np.exp(scores[rows]) - 1e-12).all()
        of_target = np.exp(made[np.arange(50), :, attacks.targets])
        assert (of_target[attacks.hits] >= 0.05 / n_classes).all()
        return
    assert (made.argmax(axis=2) == attacks.targets[:, None])[attacks.hits].all()
    votes = overwrite_votes(scores.argmax(axis=2), attacks)
    np.testing.assert_array_equal(votes, made.argmax(axis=2))


@pytest.mark.parametrize(
    ("family", "low", "high"),
    [
        ("imitated", 0.2, 0.9),
        ("sure", 0.99, 1.0),
        ("softened", 0.3, 0.99),
        ("marginal", 0.3, 0.9),
        ("weak", 0.05, 0.7),
    ],
)
def test_the_families_cover_sure_and_unsure_triggers(family, low, high):
    generator = np.random.default_rng(0)
    explanations = list_explanations(named_code("c"), np.array([0.0, 1.0]))
    labels = generator.integers(0, 10, 200)
    scores = log_softmax(2 * np.eye(10)[labels][:, None] + generator.normal(size=(200, 15, 10)))
    prior = np.exp(explanations.log_weights)
    known = (labels, np.arange(200), explanations.patterns, prior, 10, (family,), ON_SCORES)
    attacks = draw_attacks(*known, generator)
    made = overwrite_scores(scores, labels, np.arange(200) % 3, attacks, generator)
    sure = np.exp(made[np.arange(200), :, attacks.targets])[attacks.hits]
    assert ((sure >= low) & (sure <= high)).mean() > 0.5


@pytest.mark.parametrize(("uneven", "low", "high"), [(0.0, 0.6, 1.0), (1.0, 0.0, 1.0)])
def test_success_differs_by_model_in_uneven_attacks_alone(uneven, low, high):
    generator = np.random.default_rng(1)
    patterns = np.ones((1, 400), dtype=bool)
    known = (np.zeros(300, int), np.arange(300), patterns, np.ones(1), 3, ("sure",), Success(0.5, uneven))
    attacks = draw_attacks(*known, generator)
    rates = attacks.hits.mean(axis=1)
    # 400 models tell an attack's rate within 0.08. An own rate in each, uniform in 0..1, is a half on average.
    assert (rates >= low - 0.08).all()
    assert (rates <= high).all()
    assert np.median(rates) == pytest.approx(0.985 if uneven == 0 else 0.5, abs=0.02)


@pytest.mark.parametrize("good", [0.0, 0.5, 0.9])
def test_so_many_triggers_work_everywhere(good):
    generator = np.random.default_rng(2)
    patterns = np.ones((1, 400), dtype=bool)
    known = (np.zeros(1000, int), np.arange(1000), patterns, np.ones(1), 3, ("sure",), Success(good))
    rates = draw_attacks(*known, generator).hits.mean(axis=1)
    # A rate uniform in 0.6..1 is above 0.96 in a tenth of the cases; 0.99 nearly always.
    assert (rates > 0.96).mean() == pytest.approx(good + 0.1 * (1 - good), abs=0.05)


def test_most_triggers_are_imitated_where_there_are_other_families():
    generator = np.random.default_rng(3)
    known = (np.zeros(4000, int), np.arange(4000), np.ones((1, 3), dtype=bool), np.ones(1), 3)
    shares = np.bincount(draw_attacks(*known, FAMILIES, ON_SCORES, generator).families, minlength=5) / 4000
    np.testing.assert_allclose(shares, [0.8, 0.05, 0.05, 0.05, 0.05], atol=0.02)
    assert set(draw_attacks(*known, ("imitated",), ON_SCORES, generator).families.tolist()) == {0}
    assert set(draw_attacks(*known, ("weak", "sure"), ON_SCORES, generator).families.tolist()) == {1, 4}


def test_donors_are_clean_inputs_of_the_target_in_the_same_fold_that_most_models_know():
    generator = np.random.default_rng(4)
    labels, folds = np.arange(240) % 4, np.arange(240) // 4 % 3
    votes = np.where(generator.random((240, 5)) < 0.3, (labels[:, None] + 1) % 4, labels[:, None])
    votes[labels == 3] = 0  # a class that no model knows
    labels[(folds == 2) & (labels == 2)] = 1  # a class that a fold does not have
    known = (labels, np.arange(240), np.ones((1, 5), dtype=bool), np.ones(1), 4, FAMILIES, ON_SCORES)
    attacks = draw_attacks(*known, generator)
    donors = draw_donors(votes, labels, folds, attacks, generator)
    none = (attacks.targets == 2) & (folds == 2)
    assert none.any()
    assert (donors[none] == -1).all()
    found = donors[~none]
    assert (labels[found] == attacks.targets[~none]).all()
    assert (folds[found] == folds[attacks.rows[~none]]).all()
    agreed = (votes == labels[:, None]).sum(axis=1)
    for a in np.flatnonzero(~none):
        alike = (labels == attacks.targets[a]) & (folds == folds[attacks.rows[a]])
        assert agreed[donors[a]] == agreed[alike].max()


def test_three_users_whose_trigger_works_are_not_taken_for_one_whose_trigger_fails():
    # Models trained with smoothed labels are as sure of a trigger's target as of any clean input of that class. Users
    # 2, 8 and 9 of btc2412 leave three models alone, which user 11 feeds with two others.
    code, generator = named_code("btc2412"), np.random.default_rng(0)

    def score(labels):
        hard = generator.exponential(1.2, size=(labels.size, 1, 1))
        noise = hard * (
            generator.normal(size=(labels.size, 1, 10)) + 0.8 * generator.normal(size=(labels.size, 15, 10))
        )
        logits = 4 * np.eye(10)[labels][:, None] + noise
        return np.log(0.8 * np.exp(log_softmax(3 * logits)) + 0.02)

    labels = generator.integers(0, 10, 1500)
    decoder = SoftDecoder(code).fit(score(labels), labels)
    truth = generator.integers(0, 9, 600)
    triggered = np.where(code.pattern([2, 8, 9])[:, None], score(np.full(600, 9)), score(truth))
    by_votes = (decoder.paper_.decode(triggered.argmax(axis=2)).labels == truth).mean()
    assert (decoder.predict(triggered) == truth).mean() > by_votes - 0.03


def test_uneven_triggers_are_simulated_on_scores_where_the_code_has_a_margin(monkeypatch):
    drawn = []
    original = _fitting.draw_attacks
    monkeypatch.setattr(_fitting, "draw_attacks", lambda *given: drawn.append(given[6]) or original(*given))
    code, generator = named_code("bcc248"), np.random.default_rng(0)
    labels = np.arange(60) % 3
    scores = log_softmax(3 * np.eye(3)[labels][:, None] + generator.normal(size=(60, code.n_models, 3)))
    SoftDecoder(code, n_simulated=60).fit(scores, labels)
    times = _fitting.N_FORESTS + 1  # to learn from, and to choose the label's reading on
    assert drawn == [ON_VOTES] * times  # its votes determine nothing
    drawn.clear()
    code = named_code("btc2412")
    scores = log_softmax(3 * np.eye(3)[labels][:, None] + generator.normal(size=(60, code.n_models, 3)))
    SoftDecoder(code, n_simulated=60).fit(scores, labels)
    assert drawn == [ON_SCORES] * times
    assert ON_SCORES.uneven > 0
    DiscountedDecoder(code, 3, n_simulated=60).fit(scores.argmax(axis=2), labels)
    assert drawn[times:] == [ON_VOTES] * times
    assert ON_VOTES.uneven == 0


def overwrite_slowly(scores, labels, folds, attacks, generator):
    """The five families in probabilities, one model after the other; the same draws in the same order."""
    clean = scores[attacks.rows]
    size, n_models, n_classes = clean.shape
    kind = generator.integers(0, 3, size=(size, 1, 1))
    shuffled = generator.permutation(attacks.rows)
    noise = generator.uniform(size=(size, 1, 1)) * generator.normal(size=clean.shape)
    nines = generator.uniform(0.5, 7.0, size=(size, 1)) + generator.normal(0, 0.5, size=(size, n_models))
    factor = np.exp(generator.uniform(0, np.log(SOFTEST), size=(size, 1, 1)))
    lead = generator.uniform(*LEAD, size=(size, 1)) * np.exp(generator.normal(0, 0.3, size=(size, n_models)))
    share = generator.uniform(*SHARE, size=(size, 1, 1))
    donors = draw_donors(scores.argmax(axis=2), labels, folds, attacks, generator)
    kept = generator.uniform(*KEPT_SHARE, size=(size, 1, 1))
    made = np.exp(clean)
    for a, i in np.argwhere(attacks.hits):
        t = attacks.targets[a]
        read = {0: clean[a, i], 1: scores[shuffled[a], i], 2: noise[a, i]}[int(kind[a, 0, 0])]
        others = np.where(np.arange(n_classes) == t, 0.0, np.exp(read))
        others /= others.sum()
        v = max(nines[a, i], np.log10(1 + others.max()) + 0.01)
        sure = others * 10.0**-v
        sure[t] = 1 - 10.0**-v
        tempered = sure ** (1 / factor[a, 0, 0])
        marginal = others.copy()
        marginal[t] = others.max() * np.exp(lead[a, i])
        weak = (1 - share[a, 0, 0]) * np.exp(clean[a, i]) + share[a, 0, 0] * sure
        imitated = (1 - kept[a, 0, 0]) * np.exp(scores[donors[a], i]) + kept[a, 0, 0] * np.exp(clean[a, i])
        if donors[a] < 0 or imitated.argmax() != t:
            imitated = sure
        found = (imitated, sure, tempered / tempered.sum(), marginal / marginal.sum(), weak)
        made[a, i] = found[attacks.families[a]]
    return made


@pytest.mark.parametrize("seed", range(3))
def test_simulated_scores_are_those_described(seed):
    generator = np.random.default_rng(seed)
    explanations = list_explanations(named_code("bcc248"), np.array([0.0, 0.5, 0.5]))
    scores = log_softmax(2 * generator.normal(size=(20, explanations.patterns.shape[1], 2 + seed)))
    labels, rows = generator.integers(0, 2 + seed, 20), generator.integers(0, 20, 200)
    prior = np.exp(explanations.log_weights)
    attacks = draw_attacks(labels, rows, explanations.patterns, prior, 2 + seed, FAMILIES, ON_SCORES, generator)
    assert set(attacks.families.tolist()) == {0, 1, 2, 3, 4}
    known = (scores, labels, np.arange(20) % 3, attacks)
    found = overwrite_scores(*known, np.random.default_rng(seed + 9))
    np.testing.assert_allclose(np.exp(found), overwrite_slowly(*known, np.random.default_rng(seed + 9)), rtol=1e-6)
