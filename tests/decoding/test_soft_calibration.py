import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward.decoding.soft._learners import (
    N_FOLDS,
    calibrate,
    calibration_loss,
    center_scores,
    cross_calibrate,
    log_softmax,
)


def make_scores(seed: int, n_inputs: int, n_models: int, n_classes: int, heat: float = 1.0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, n_classes, n_inputs)
    logits = generator.normal(size=(n_inputs, n_models, n_classes))
    logits[np.arange(n_inputs), :, labels] += 1.5
    return log_softmax(heat * logits), labels


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n_classes=st.integers(2, 5))
def test_the_gradient_of_the_calibration_is_that_of_its_loss(seed, n_classes):
    scores, labels = make_scores(seed, 20, 3, n_classes)
    inputs, truth = center_scores(scores).transpose(2, 1, 0), np.eye(n_classes)[labels].T
    point = np.random.default_rng(seed).normal(0, 0.3, 3 * (1 + n_classes))
    _, gradient = calibration_loss(point, inputs, truth)
    for k in range(point.size):
        step = 1e-6 * np.eye(point.size)[k]
        high, low = (calibration_loss(point + sign * step, inputs, truth)[0] for sign in (1, -1))
        assert abs((high - low) / 2e-6 - gradient[k]) < 1e-6


def test_every_model_is_calibrated_as_if_it_were_alone():
    scores, labels = make_scores(3, 150, 4, 3)
    together = calibrate(scores, labels).parameters
    for model in range(4):
        alone = calibrate(scores[:, [model]], labels).parameters[0]
        np.testing.assert_allclose(together[model], alone, atol=2e-3)


def test_calibration_undoes_overconfidence():
    scores, labels = make_scores(0, 3000, 2, 4, heat=6.0)
    calibrated = calibrate(scores, labels).apply(scores)
    rows = np.arange(labels.size)
    assert calibrated[rows, :, labels].mean() > scores[rows, :, labels].mean() + 0.5
    confidence = np.exp(calibrated.max(axis=2)).mean()
    accuracy = (calibrated.argmax(axis=2) == labels[:, None]).mean()
    assert abs(confidence - accuracy) < 0.02
    np.testing.assert_allclose(np.exp(calibrated).sum(axis=2), 1)


def test_a_fold_has_no_say_in_its_own_calibration():
    scores, labels = make_scores(1, 90, 2, 3)
    first = cross_calibrate(scores, labels, np.random.default_rng(5))
    changed = labels.copy()
    own = first.folds == 0
    changed[own] = (changed[own] + 1) % 3
    second = cross_calibrate(scores, changed, np.random.default_rng(5))
    assert len(first.held_out) == N_FOLDS
    np.testing.assert_array_equal(first.held_out[0].parameters, second.held_out[0].parameters)
    assert np.abs(first.held_out[1].parameters - second.held_out[1].parameters).max() > 1e-3
    rows = np.flatnonzero(own)
    np.testing.assert_array_equal(first.apply_held_out(scores[rows], rows), first.held_out[0].apply(scores[rows]))
