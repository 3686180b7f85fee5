import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, named_code
from codeward.decoding.soft._calibration import log_softmax
from codeward.decoding.soft._evidence import (
    SCORE_LAYOUT,
    UNVOTED_KNOTS,
    VOTE_LAYOUT,
    VOTED_KNOTS,
    weigh_scores,
    weigh_votes,
)
from codeward.decoding.soft._fitting import PATTERN_WEIGHT, PULL, TrainingSet, choose_explanations, fusion_loss
from codeward.decoding.soft._fusion import (
    MOST_GROUPS,
    group_patterns,
    list_explanations,
    log_sum,
    sum_explanations,
    weigh_labels,
)
from codeward.decoding.soft._parameters import ParameterSpace

CODES = {"bcc248": named_code("bcc248"), "toy-d": named_code("toy-d"), "wide": Code(1 - np.eye(40, 5)[::-1])}


def draw_case(seed, name, n_classes, n_inputs=5, use_votes=False):
    generator = np.random.default_rng(seed)
    explanations = list_explanations(CODES[name], np.array([0.2, 0.4, 0.4]))
    n_models = explanations.patterns.shape[1]
    scores = log_softmax(2 * generator.normal(size=(n_inputs, n_models, n_classes)))
    votes = scores.argmax(axis=2)
    evidence, layout = weigh_scores(scores, votes), SCORE_LAYOUT
    if use_votes:
        confusion = generator.dirichlet(np.ones(n_classes), size=(n_models, n_classes))
        evidence, layout = weigh_votes(np.log(confusion)[np.arange(n_models), :, votes], votes), VOTE_LAYOUT
    space = ParameterSpace(explanations.n_groups, 2, layout)
    flat = space.start() + generator.normal(0, 0.2, space.size)
    return explanations, evidence, space, flat, generator


def read_rho(evidence, rho, n, i, t):
    k, share = evidence.knots[n, i, t], evidence.fractions[n, i, t]
    return rho[k] if share == 0 else (1 - share) * rho[k] + share * rho[k + 1]


def slow_joint(evidence, explanations, fusion, n):
    """The formula of SoftDecoder as printed: log joint by (pattern, target, family, label)."""
    clean = weigh_labels(evidence.log_posteriors, fusion)
    n_models, n_classes = clean.shape[1:]
    joint = np.empty((explanations.rows.size, n_classes, 2, n_classes))
    for x, t, f, label in np.ndindex(*joint.shape):
        j = explanations.groups[x]
        beta, eta, success = fusion.clean_discounts[j + 1], fusion.hit_discounts[j], fusion.success_rates[f]
        value = explanations.log_weights[x] + np.log(fusion.family_weights[f]) + fusion.offsets[j] - np.log(n_classes)
        for i in range(n_models):
            if explanations.patterns[x, i]:
                hit = read_rho(evidence, fusion.hit_evidence[f], n, i, t)
                value += np.log(success * np.exp(eta * hit) + (1 - success) * np.exp(beta * clean[n, i, label]))
            else:
                value += beta * clean[n, i, label]
        joint[x, t, f, label] = value
    return joint


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(sorted(CODES)),
    n_classes=st.integers(2, 4),
    every=st.booleans(),
    use_votes=st.booleans(),
)
def test_the_compiled_sums_equal_the_formula(seed, name, n_classes, every, use_votes):
    explanations, evidence, space, flat, _ = draw_case(seed, name, n_classes, 2, use_votes)
    fusion = space.unpack(flat)
    sums = sum_explanations(evidence, explanations, fusion, every_target=every)
    for n in range(2):
        joint = slow_joint(evidence, explanations, fusion, n)
        if not every:
            joint[:, np.setdiff1d(np.arange(n_classes), evidence.votes[n])] = -np.inf
        np.testing.assert_allclose(sums.attacked[n], log_sum(joint.reshape(-1, n_classes).T), atol=1e-9)
        np.testing.assert_allclose(sums.table[n], log_sum(joint.reshape(*joint.shape[:2], -1)), atol=1e-9)
        clean = weigh_labels(evidence.log_posteriors, fusion)[n].sum(axis=0)
        np.testing.assert_allclose(sums.clean[n], fusion.clean_discounts[0] * clean, atol=1e-12)


def draw_training(seed, name, n_classes, use_votes):
    explanations, evidence, space, flat, generator = draw_case(seed, name, n_classes, 5, use_votes)
    patterns = generator.integers(0, explanations.rows.size, 5)
    # A target that some model votes for, as in every simulated attack.
    targets = evidence.votes[np.arange(5), generator.integers(0, evidence.votes.shape[1], 5)]
    patterns[:2] = targets[:2] = -1
    training = TrainingSet(evidence, generator.integers(0, n_classes, 5), patterns, targets)
    return training, explanations, space, flat


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), n_classes=st.integers(2, 4), use_votes=st.booleans())
def test_the_gradient_of_the_fit_is_that_of_its_loss(seed, n_classes, use_votes):
    training, explanations, space, flat = draw_training(seed, "toy-d", n_classes, use_votes)
    chosen = choose_explanations(training, explanations, space.unpack(flat))
    arguments = (space.start(), space, training, explanations, *chosen)
    _, gradient = fusion_loss(flat, *arguments)
    for k in range(flat.size):
        step = 1e-5 * np.eye(flat.size)[k]
        high, low = (fusion_loss(flat + sign * step, *arguments)[0] for sign in (1, -1))
        assert abs((high - low) / 2e-5 - gradient[k]) < 2e-6


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), n_classes=st.integers(2, 3))
def test_the_loss_of_the_fit_is_the_cross_entropy_of_label_alarm_and_explanation(seed, n_classes):
    training, explanations, space, flat = draw_training(seed, "toy-d", n_classes, False)
    fusion = space.unpack(flat)
    # toy-d has few patterns: every voted explanation is kept, so that nothing is cut off.
    chosen = choose_explanations(training, explanations, fusion)
    if explanations.rows.size * n_classes > chosen[0].shape[1]:
        return
    found, _ = fusion_loss(flat, space.start(), space, training, explanations, *chosen)
    wanted = 0.0
    clean = weigh_labels(training.evidence.log_posteriors, fusion).sum(axis=1) * fusion.clean_discounts[0]
    for n in range(5):
        joint = slow_joint(training.evidence, explanations, fusion, n)
        joint[:, np.setdiff1d(np.arange(n_classes), training.evidence.votes[n])] = -np.inf
        attack, nothing = np.exp(joint), np.exp(clean[n])
        total = attack.sum() + nothing.sum()
        label = training.labels[n]
        wanted -= np.log((attack[..., label].sum() + nothing[label]) / total)
        if training.patterns[n] >= 0:
            true = attack[training.patterns[n], training.targets[n]].sum()
            wanted -= np.log(attack.sum() / total) + PATTERN_WEIGHT * np.log(true / attack.sum())
        else:
            wanted -= np.log(nothing.sum() / total)
    pull = 0.5 * PULL * ((flat - space.start()) ** 2).sum()
    assert abs(found - (wanted / 5 + pull)) < 1e-9


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_surer_targets_never_count_for_less(seed):
    space = ParameterSpace(2, 2, SCORE_LAYOUT)
    low, high = np.array(space.bounds()).T
    flat = np.random.default_rng(seed).uniform(low, high)
    assert flat.size == space.size == space.start().size
    assert ((space.start() >= low) & (space.start() <= high)).all()
    rho = space.unpack(flat).hit_evidence
    assert (np.diff(rho[:, : VOTED_KNOTS.size]) >= -1e-12).all()
    assert (np.diff(rho[:, VOTED_KNOTS.size :]) >= -1e-12).all()
    assert rho.shape[1] == VOTED_KNOTS.size + UNVOTED_KNOTS.size


@settings(max_examples=50, deadline=None)
@given(hits=st.lists(st.integers(1, 14), min_size=1, max_size=60), seed=st.integers(0, 10**6))
def test_patterns_share_a_group_with_equal_or_neighbouring_numbers_of_hits(hits, seed):
    hits = np.array(hits)
    weights = np.random.default_rng(seed).random(hits.size)
    groups = group_patterns(hits, weights)
    order = np.argsort(hits, kind="stable")
    assert (np.diff(groups[order]) >= 0).all()
    assert np.unique(groups).tolist() == list(range(min(np.unique(hits).size, MOST_GROUPS)))
    assert all(np.unique(groups[hits == number]).size == 1 for number in np.unique(hits))


def test_the_lightest_neighbours_are_grouped_first():
    weights = np.array([0.3, 0.01, 0.02, 0.2, 0.1, 0.2, 0.17])
    assert group_patterns(np.array([3, 5, 6, 8, 9, 10, 12]), weights).tolist() == [0, 1, 1, 2, 3, 4, 5]


def test_patterns_that_hit_every_model_explain_nothing():
    explanations = list_explanations(named_code("d"), np.full(4, 0.25))
    assert not explanations.patterns.all(axis=1).any()
    assert explanations.sets.weights.size > explanations.rows.size
    assert abs(np.exp(explanations.log_weights).sum() - 1) < 1e-12
    with pytest.raises(InputError, match="no clean model"):
        list_explanations(Code([[1, 1]]), np.array([0.5, 0.5]))
    with pytest.raises(InputError, match="positive number of attackers"):
        list_explanations(named_code("d"), np.array([1.0]))
    with pytest.raises(TooLargeError):
        list_explanations(Code(np.eye(200)), np.full(5, 0.2))
