import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward.codes import Code, named_code
from codeward.decoding.soft._attack_draws import FAMILIES, ON_SCORES, ON_VOTES, draw_attacks, overwrite_scores
from codeward.decoding.soft._candidates import N_FEATURES, PLAUSIBLE, is_plausible, read_label
from codeward.decoding.soft._explanations import (
    N_DRAWN,
    ModelEvidence,
    RatioModels,
    Sums,
    TrainingSet,
    choose_discounts,
    describe,
    draw_candidates,
    learn_ratios,
    list_explanations,
    log_sum,
    sum_explanations,
    weigh_votes,
)
from codeward.decoding.soft._learners import grow_trees, log_softmax

CODES = {"bcc248": named_code("bcc248"), "toy-d": named_code("toy-d"), "wide": Code(1 - np.eye(40, 5)[::-1])}


def draw_case(seed, name, n_classes, n_inputs=4):
    generator = np.random.default_rng(seed)
    explanations = list_explanations(CODES[name], np.array([0.2, 0.4, 0.4]))
    n_models = explanations.patterns.shape[1]
    # A common part, so that some inputs have a majority.
    common = generator.normal(size=(n_inputs, 1, n_classes)) * generator.choice([0.0, 3.0], size=(n_inputs, 1, 1))
    scores = log_softmax(common + 2 * generator.normal(size=(n_inputs, n_models, n_classes)))
    return explanations, ModelEvidence(scores, scores.argmax(axis=2)), generator


def draw_trees(generator):
    rows = generator.normal(size=(300, N_FEATURES)).astype(np.float32)
    return grow_trees(rows, generator.random(300) < 0.5, np.ones(300))


def slow_features(scores, votes, hit, target):
    """The features as their docstring lists them."""
    p = scores[:, target]
    odds = p - np.log1p(-np.exp(p))
    others = np.arange(scores.shape[1]) != target
    found = []
    for side in (hit, ~hit, np.ones_like(hit)):
        mean = scores[side].mean(axis=0)
        rest = np.sort(mean[others])[::-1]
        found += [mean[target] - rest[0], rest[0] - rest[1] if rest.size > 1 else 0.0]
    label = np.flatnonzero(others)[scores[~hit].sum(axis=0)[others].argmax()]
    for side in (hit, ~hit):
        ordered = np.sort(odds[side])
        last = ordered.size - 1
        found += [ordered[0], ordered[min(1, last)], ordered[last // 4], ordered[last // 2], ordered[3 * last // 4]]
        found += [ordered[last], ordered.mean()]
        found += [(votes[side] == target).mean(), (votes[side] == label).mean(), scores[side].max(axis=1).mean()]
    return np.array([*found, scores[hit][:, label].mean(), hit.mean()])


def test_labels_are_weighed_however_unlikely_all_of_them_are():
    posteriors, out = np.full((100, 3), -10.0), np.empty(3)
    posteriors[0, 1] = -9.0
    read_label(
        posteriors, posteriors.sum(axis=0), np.zeros(100, dtype=int), np.zeros(100, dtype=bool), 0, np.ones(101), out
    )
    np.testing.assert_allclose(out, np.exp([0, 1, 0]) / (2 + np.e))


def test_a_label_has_the_mass_of_both_hypotheses():
    sums = Sums(np.log([[2.0, 1.0]]), np.log([[0.25, 0.75]]), np.empty((0, 0, 0)))
    np.testing.assert_allclose(np.exp(sums.joined), [[2.25, 1.75]])
    np.testing.assert_allclose(sums.gap, np.log(3))


@pytest.mark.parametrize(("said", "hit", "plausible"), [(1, 4, True), (1, 5, False), (2, 8, True), (0, 0, False)])
def test_a_quarter_of_the_hit_models_makes_an_attack_plausible(said, hit, plausible):
    pattern, votes = np.arange(9) < hit, np.where(np.arange(9) < said, 2, 0)
    assert is_plausible(pattern, votes, 2) == plausible
    assert not is_plausible(pattern, votes, 1)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(CODES)), n_classes=st.integers(2, 5))
def test_the_compiled_features_are_those_described(seed, name, n_classes):
    explanations, evidence, generator = draw_case(seed, name, n_classes)
    of = generator.integers(0, 4, 30)
    x = generator.integers(0, explanations.log_weights.size, 30)
    t = generator.integers(0, n_classes, 30)
    found = describe(evidence, explanations, of, x, t)
    for k in range(30):
        wanted = slow_features(evidence.log_posteriors[of[k]], evidence.votes[of[k]], explanations.patterns[x[k]], t[k])
        np.testing.assert_allclose(found[k], wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n_classes=st.integers(2, 5))
def test_a_frame_looks_the_same_whichever_models_and_classes_are_meant(seed, n_classes):
    explanations, evidence, generator = draw_case(seed, "toy-d", n_classes, 1)
    n_models = explanations.patterns.shape[1]
    models, classes = generator.permutation(n_models), generator.permutation(n_classes)
    moved = ModelEvidence(
        evidence.log_posteriors[:, models][:, :, classes], np.argsort(classes)[evidence.votes[:, models]]
    )
    zero, hit = np.zeros(1, dtype=np.int64), explanations.patterns[:1]
    other = type(explanations)(explanations.sets, hit[:, models], np.zeros(1), zero)
    same = type(explanations)(explanations.sets, hit, np.zeros(1), zero)
    target = generator.integers(0, n_classes, 1)
    first = describe(evidence, same, zero, zero, target)
    second = describe(moved, other, zero, zero, np.argsort(classes)[target])
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(sorted(CODES)),
    n_classes=st.integers(2, 4),
    every=st.booleans(),
)
def test_the_compiled_sums_equal_the_formula(seed, name, n_classes, every):
    explanations, evidence, generator = draw_case(seed, name, n_classes, 2)
    n_models = explanations.patterns.shape[1]
    discounts = generator.uniform(0.2, 1.0, n_models + 1)
    ratios = RatioModels(draw_trees(generator), draw_trees(generator), discounts)
    sums = sum_explanations(evidence, explanations, ratios, every_target=every)
    candidates = [(x, t) for x in range(explanations.log_weights.size) for t in range(n_classes)]
    for n in range(2):
        scores, votes = evidence.log_posteriors[n], evidence.votes[n]
        likely = [
            (x, t)
            for x, t in candidates
            if (said := (explanations.patterns[x] & (votes == t)).sum()) > 0
            and said >= PLAUSIBLE * explanations.patterns[x].sum()
        ]
        likely = likely or [(x, t) for x, t in candidates if t in votes]
        used = candidates if every else likely

        def rate(trees, pairs, n=n):
            x, t = np.array(pairs).T
            features = describe(evidence, explanations, np.full(x.size, n), x, t)
            return explanations.log_weights[x] + trees.log_odds(features)

        gap = log_sum(rate(ratios.alarm, likely))
        named = rate(ratios.naming, used)
        shares = np.exp(named - log_sum(named))
        table = np.full((explanations.log_weights.size, n_classes), -np.inf)
        by_label = np.zeros(n_classes)
        for (x, t), share in zip(used, shares, strict=True):
            table[x, t] = gap + np.log(share)
            speaking = ~(explanations.patterns[x] & (votes == t))
            speech = np.exp(discounts[speaking.sum()] * scores[speaking].sum(axis=0))
            by_label += share * speech / speech.sum()
        np.testing.assert_allclose(sums.table[n], table, atol=1e-9)
        np.testing.assert_allclose(np.exp(sums.attacked[n] - gap), by_label, atol=1e-4)
        np.testing.assert_allclose(sums.gap[n], gap, atol=1e-9)
        np.testing.assert_allclose(
            np.exp(sums.clean[n]), np.exp(log_softmax(discounts[n_models] * scores.sum(axis=0))), atol=1e-12
        )


def test_drawn_explanations_are_plausible_and_reach_every_voted_class():
    explanations, evidence, generator = draw_case(3, "bcc248", 4, 300)
    of, x, t, n_voted = draw_candidates(evidence, explanations, generator)
    hit = explanations.patterns[x]
    said = (hit & (evidence.votes[of] == t[:, None])).sum(axis=1)
    assert (said >= PLAUSIBLE * hit.sum(axis=1)).all()
    assert (said > 0).all()
    assert of.size <= N_DRAWN * 300
    np.testing.assert_array_equal(n_voted, [np.unique(row).size for row in evidence.votes])
    drawn = {(n, c) for n, c in zip(of.tolist(), t.tolist(), strict=True)}
    strong = [
        (n, c) for n in range(300) for c in range(4) if (evidence.votes[n] == c).sum() > evidence.votes.shape[1] // 2
    ]
    assert strong
    assert all(pair in drawn for pair in strong)


@pytest.mark.parametrize("copies", [True, False])
def test_models_that_repeat_each_other_are_discounted(copies):
    generator = np.random.default_rng(0)
    explanations = list_explanations(named_code("toy-d"), np.array([0.2, 0.4, 0.4]))
    n_models = explanations.patterns.shape[1]
    labels = generator.integers(0, 3, 4000)
    signal = np.eye(3)[labels][:, None] + generator.normal(size=(4000, 1 if copies else n_models, 3))
    # The exact posterior of one model.
    scores = log_softmax(np.broadcast_to(signal, (4000, n_models, 3)))
    discounts = choose_discounts(ModelEvidence(scores, scores.argmax(axis=2)), labels, explanations, generator)
    assert discounts[1] == 1.0
    assert abs(discounts[n_models] - (1 / n_models if copies else 1.0)) < 0.08


def test_the_alarm_is_the_log_likelihood_ratio_of_an_attack():
    # Votes of independent models with known confusion: the ratio can be computed.
    generator = np.random.default_rng(1)
    explanations = list_explanations(named_code("bcc248"), np.array([0.0, 1.0]))
    n_models, n_classes = explanations.patterns.shape[1], 3
    confusion = np.full((3, 3), 0.15) + 0.55 * np.eye(3)
    labels = generator.integers(0, 3, 6000)
    draws = generator.random((6000, n_models, 1)) > confusion.cumsum(axis=1)[labels][:, None, :]
    votes = draws.sum(axis=2)
    scores = np.log(confusion.T[votes])
    rows = np.arange(6000)
    prior = np.exp(explanations.log_weights)
    attacks = draw_attacks(labels, rows, explanations.patterns, prior, 3, FAMILIES, ON_VOTES, generator)
    attacked = np.where(explanations.patterns[attacks.patterns], attacks.targets[:, None], votes)
    training = TrainingSet(
        weigh_votes(scores, votes),
        labels,
        weigh_votes(np.log(confusion.T[attacked]), attacked),
        attacks.patterns,
        attacks.targets,
    )
    (ratios,) = learn_ratios([training], explanations, generator)
    some = np.concatenate([votes[:300], attacked[:300]])
    found = sum_explanations(weigh_votes(np.log(confusion.T[some]), some), explanations, ratios).gap
    by_label = np.log(confusion.T[some])
    clean = log_sum(by_label.sum(axis=1)) - np.log(3)
    terms = []
    for x in range(explanations.log_weights.size):
        hit = explanations.patterns[x]
        rest = by_label[:, ~hit].sum(axis=1)
        for t in range(n_classes):
            # The label is one of the two other classes.
            value = log_sum(np.delete(rest, t, axis=1)) - np.log(2) + explanations.log_weights[x] - np.log(3)
            terms.append(np.where((some[:, hit] == t).all(axis=1), value, -np.inf))
    exact = log_sum(np.stack(terms, axis=1)) - clean
    known = np.isfinite(exact)
    assert np.corrcoef(found[known], exact[known])[0, 1] > 0.9
    assert abs((found - exact)[known].mean()) < 0.4
    assert np.median(found[~known]) < -2


def test_simulated_scores_feed_the_judges():
    generator = np.random.default_rng(0)
    explanations = list_explanations(named_code("toy-d"), np.array([0.0, 1.0]))
    labels = generator.integers(0, 3, 50)
    scores = log_softmax(
        np.eye(3)[labels][:, None] * 3 + generator.normal(size=(50, explanations.patterns.shape[1], 3))
    )
    prior = np.exp(explanations.log_weights)
    attacks = draw_attacks(labels, np.arange(50), explanations.patterns, prior, 3, FAMILIES, ON_SCORES, generator)
    made = overwrite_scores(scores, labels, np.arange(50) % 3, attacks, generator)
    training = TrainingSet(
        ModelEvidence(scores, scores.argmax(axis=2)),
        labels,
        ModelEvidence(made, made.argmax(axis=2)),
        attacks.patterns,
        attacks.targets,
    )
    (ratios,) = learn_ratios([training.take(labels < 2, labels < 2)], explanations, generator)
    sums = sum_explanations(training.attacked, explanations, ratios)
    assert np.isfinite(sums.attacked).all()
