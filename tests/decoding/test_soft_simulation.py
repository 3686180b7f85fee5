import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward.codes import named_code
from codeward.decoding.soft._explanations import list_explanations
from codeward.decoding.soft._fitting import FAMILIES, draw_attacks, overwrite_scores, overwrite_votes
from codeward.decoding.soft._learners import log_softmax


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_classes=st.integers(2, 6),
    family=st.sampled_from(FAMILIES),
    sharpness=st.sampled_from([0.1, 3.0, 30.0]),
)
def test_a_simulated_attack_changes_hit_models_alone_and_makes_them_say_the_target(seed, n_classes, family, sharpness):
    generator = np.random.default_rng(seed)
    explanations = list_explanations(named_code("bcc248"), np.array([0.0, 0.5, 0.5]))
    n_models = explanations.patterns.shape[1]
    scores = log_softmax(sharpness * generator.normal(size=(30, n_models, n_classes)))
    labels = generator.integers(0, n_classes, 30)
    prior = np.exp(explanations.log_weights)
    rows = generator.integers(0, 30, 50)
    attacks = draw_attacks(labels, rows, explanations.patterns, prior, n_classes, (family,), generator)
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
    attacks = draw_attacks(labels, np.arange(200), explanations.patterns, prior, 10, (family,), generator)
    made = overwrite_scores(scores, attacks, generator)
    sure = np.exp(made[np.arange(200), :, attacks.targets])[attacks.hits]
    assert ((sure >= low) & (sure <= high)).mean() > 0.5
