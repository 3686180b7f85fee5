"""Defences around models on everybody's data, each on the case its authors lead with."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from codeward.data import load_dataset
from codeward.decoding import alarm_threshold
from codeward.experiments.comparison import _coded_defences as many
from codeward.experiments.comparison import _single_model as single
from codeward.experiments.comparison import make_scene
from codeward.training import PRESETS, ModelStore


def make_features(share):
    """Features of a class of which a share lies elsewhere: what poison looks like to its authors."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 6))
    poisoned = np.arange(300) < share * 300
    features[poisoned, :3] += 8
    return features, poisoned


@pytest.mark.parametrize("find", [single.find_outlying, single.find_cluster])
def test_a_tenth_of_a_class_that_lies_elsewhere_is_found(find):
    features, poisoned = make_features(0.1)
    assert find(features)[poisoned].mean() > 0.95
    assert find(features)[~poisoned].mean() < 0.1


def test_spectral_signatures_leave_half_of_twice_the_poison_they_can_remove():
    features, poisoned = make_features(0.3)
    assert single.find_outlying(features)[poisoned].mean() == 0.5


def test_clusters_of_one_size_are_left_alone():
    assert not single.find_cluster(make_features(0.5)[0]).any()


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return make_scene(
        "patch", load_dataset("digits"), PRESETS["digits"], store=ModelStore(tmp_path_factory.mktemp("store"))
    )


@pytest.mark.parametrize("run", [single.run_strip, single.run_sentinet])
def test_a_patch_that_holds_the_answer_is_seen_at_run_time(scene, run):
    outcome = run(scene)
    assert (outcome.triggered == scene.groups[0].target).mean() > 0.9
    assert (outcome.triggered_alarm > alarm_threshold(outcome.clean_alarm, 0.05)).mean() > 0.9


def test_masks_of_all_classes_at_once_are_those_of_one_class_after_the_other(scene):
    model = single._LoneModel(scene.train_one())
    images = model.place(scene.validation.take(np.arange(16)))
    together = single._reverse_some(model, images, torch.arange(3), steps=8)
    for target in range(3):
        alone = single._reverse_some(model, images, torch.tensor([target]), steps=8)
        for one, other in zip(alone, together, strict=True):
            assert one[0].numpy() == pytest.approx(other[target].numpy(), abs=1e-4)


@pytest.mark.slow
def test_neural_cleanse_finds_the_patch_and_unlearns_it(scene):
    before, outcome = single.run_undefended(scene), single.run_neural_cleanse(scene)
    truth = scene.triggered.labels
    assert (before.triggered == truth).mean() < 0.2
    assert (outcome.triggered == truth).mean() > 0.6


def test_changes_within_the_radius_of_noise_leave_the_smoothed_answer():
    """Weber et al.: with Gaussian noise a class of probability p keeps the majority up to sigma times its quantile."""
    rng, sigma = np.random.default_rng(0), 0.2
    p = rng.uniform(0.5, 1, 4000)
    votes = (rng.random((4000, 100)) < p[:, None]).astype(np.int64)
    radius = many.radius_of_noise(votes, sigma)
    # The worst change of that norm moves the class's probability to this, which must stay the larger one.
    after = norm.cdf(norm.ppf(p) - radius / sigma)
    assert (after < 0.5).mean() <= 0.002
    assert (radius > 0).mean() > 0.5
    assert many.radius_of_noise(votes, 2 * sigma) == pytest.approx(2 * radius)


def test_noise_bounds_faint_changes_and_not_a_visible_patch(scene, monkeypatch):
    monkeypatch.setattr(many, "NOISE_MODELS", 4)
    outcome = many.run_noise(scene)
    assert (outcome.triggered == scene.groups[0].target).mean() > 0.9
    assert outcome.guarantee.startswith("changes of norm 0.00 ")  # four votes prove nothing
    assert float(outcome.guarantee.split("attack's is ")[1].split(".")[0]) > 10


def test_an_output_code_corrects_as_many_wrong_models_as_half_the_distance_of_its_words():
    """Dietterich and Bakiri: d bits apart, up to (d - 1) / 2 of the binary models may err."""
    rng = np.random.default_rng(1)
    words = many.draw_words(10, rng)
    apart = (words[:, :, None] != words[:, None, :]).sum(axis=0)[~np.eye(10, dtype=bool)].min()
    labels = rng.integers(0, 10, 500)
    said = words.T[labels]
    for row in said:
        row[rng.permutation(15)[: (apart - 1) // 2]] ^= 1
    assert apart >= 3
    assert (many.nearest_word(said, words) == labels).all()
