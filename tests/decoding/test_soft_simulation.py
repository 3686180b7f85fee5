import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward.codes import named_code
from codeward.decoding.soft import DiscountedDecoder, SoftDecoder, _fitting
from codeward.decoding.soft._explanations import list_explanations
from codeward.decoding.soft._fitting import FAMILIES, draw_attacks, overwrite_scores, overwrite_votes
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
    attacks = draw_attacks(labels, rows, explanations.patterns, prior, n_classes, (family,), uneven, generator)
    made = overwrite_scores(scores, attacks, generator)
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
    [("sure", 0.99, 1.0), ("softened", 0.3, 0.99), ("marginal", 0.3, 0.9), ("weak", 0.05, 0.7)],
)
def test_the_families_cover_sure_and_unsure_triggers(family, low, high):
    generator = np.random.default_rng(0)
    explanations = list_explanations(named_code("c"), np.array([0.0, 1.0]))
    scores = log_softmax(generator.normal(size=(200, 15, 10)))
    labels = generator.integers(0, 10, 200)
    prior = np.exp(explanations.log_weights)
    attacks = draw_attacks(labels, np.arange(200), explanations.patterns, prior, 10, (family,), 0.5, generator)
    made = overwrite_scores(scores, attacks, generator)
    sure = np.exp(made[np.arange(200), :, attacks.targets])[attacks.hits]
    assert ((sure >= low) & (sure <= high)).mean() > 0.5


@pytest.mark.parametrize(("uneven", "low", "high"), [(0.0, 0.6, 1.0), (1.0, 0.0, 1.0)])
def test_success_differs_by_model_in_uneven_attacks_alone(uneven, low, high):
    generator = np.random.default_rng(1)
    patterns = np.ones((1, 400), dtype=bool)
    attacks = draw_attacks(np.zeros(300, int), np.arange(300), patterns, np.ones(1), 3, ("sure",), uneven, generator)
    rates = attacks.hits.mean(axis=1)
    # 400 models tell an attack's rate within 0.08. An own rate in each, uniform in 0..1, is a half on average.
    assert (rates >= low - 0.08).all()
    assert (rates <= high).all()
    assert np.median(rates) == pytest.approx(0.985 if uneven == 0 else 0.5, abs=0.02)


def test_a_quarter_of_the_attacks_on_scores_is_uneven_where_the_code_has_a_margin(monkeypatch):
    drawn = []
    original = _fitting.draw_attacks
    monkeypatch.setattr(_fitting, "draw_attacks", lambda *given: drawn.append(given[6]) or original(*given))
    code, generator = named_code("bcc248"), np.random.default_rng(0)
    labels = np.arange(60) % 3
    scores = log_softmax(3 * np.eye(3)[labels][:, None] + generator.normal(size=(60, code.n_models, 3)))
    SoftDecoder(code, n_simulated=60).fit(scores, labels)
    assert drawn == [0.0, 0.0]  # its votes determine nothing
    drawn.clear()
    code = named_code("btc2412")
    scores = log_softmax(3 * np.eye(3)[labels][:, None] + generator.normal(size=(60, code.n_models, 3)))
    SoftDecoder(code, n_simulated=60).fit(scores, labels)
    assert drawn == [0.25, 0.25]
    DiscountedDecoder(code, 3, n_simulated=60).fit(scores.argmax(axis=2), labels)
    assert drawn[2:] == [0.0, 0.0]


def overwrite_slowly(scores, attacks, generator):
    """The four families in probabilities, one model after the other; the same draws in the same order."""
    clean = scores[attacks.rows]
    size, n_models, n_classes = clean.shape
    kind = generator.integers(0, 3, size=(size, 1, 1))
    shuffled = generator.permutation(attacks.rows)
    noise = generator.uniform(size=(size, 1, 1)) * generator.normal(size=clean.shape)
    nines = generator.uniform(0.5, 7.0, size=(size, 1)) + generator.normal(0, 0.5, size=(size, n_models))
    factor = np.exp(generator.uniform(0, np.log(_fitting.SOFTEST), size=(size, 1, 1)))
    lead = generator.uniform(*_fitting.LEAD, size=(size, 1)) * np.exp(generator.normal(0, 0.3, size=(size, n_models)))
    share = generator.uniform(*_fitting.SHARE, size=(size, 1, 1))
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
        found = (sure, tempered / tempered.sum(), marginal / marginal.sum(), weak)
        made[a, i] = found[attacks.families[a]]
    return made


@pytest.mark.parametrize("seed", range(3))
def test_simulated_scores_are_those_described(seed):
    generator = np.random.default_rng(seed)
    explanations = list_explanations(named_code("bcc248"), np.array([0.0, 0.5, 0.5]))
    scores = log_softmax(2 * generator.normal(size=(20, explanations.patterns.shape[1], 2 + seed)))
    labels, rows = generator.integers(0, 2 + seed, 20), generator.integers(0, 20, 60)
    prior = np.exp(explanations.log_weights)
    attacks = draw_attacks(labels, rows, explanations.patterns, prior, 2 + seed, FAMILIES, 0.5, generator)
    assert set(attacks.families.tolist()) == {0, 1, 2, 3}
    found = overwrite_scores(scores, attacks, np.random.default_rng(seed + 9))
    np.testing.assert_allclose(
        np.exp(found), overwrite_slowly(scores, attacks, np.random.default_rng(seed + 9)), rtol=1e-6
    )
