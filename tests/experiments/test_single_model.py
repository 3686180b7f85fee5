"""Defences around one model, each on the case its authors lead with."""

import numpy as np
import pytest

from codeward.data import load_dataset
from codeward.decoding import alarm_threshold
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


@pytest.mark.slow
def test_neural_cleanse_finds_the_patch_and_unlearns_it(scene):
    before, outcome = single.run_undefended(scene), single.run_neural_cleanse(scene)
    truth = scene.triggered.labels
    assert (before.triggered == truth).mean() < 0.2
    assert (outcome.triggered == truth).mean() > 0.6
