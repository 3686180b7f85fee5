"""Networks on images through the same estimator."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone

from codeward import InputError
from codeward.codes import Code
from codeward.estimators import CodedClassifier, plan_training, train_guarded
from codeward.runs import TrainConfig
from codeward.training import TrainingSettings

RECIPE = TrainingSettings(
    architecture="digits-cnn", epochs=8, batch_size=16, learning_rate=0.01, n_classes=3, mean=(0.4,), std=(0.3,)
)
CODE = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]])


def draw(seed=0, size=90):
    """Bright rows: label l lights row 2 l of a 8 x 8 image."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=size)
    images = rng.integers(0, 60, size=(size, 8, 8)).astype(np.uint8)
    images[np.arange(size), 2 * labels] += 180
    return images, labels, np.arange(size) % 3


def test_networks_are_trained_one_a_row_and_decoded():
    images, labels, users = draw()
    coded = CodedClassifier(RECIPE, CODE, random_state=0).fit(images, labels, groups=users)
    test, truth, _ = draw(seed=1)
    assert coded.score(test, truth) > 0.95
    assert coded.estimators_.n_models == 3
    assert coded.schema_.columns[0].shape == (1, 8, 8)
    assert coded.n_features_in_ == 64
    assert np.array_equal(coded.votes(test), coded.votes(test[:, None]))
    assert coded.certify(test).shape == (90,)
    assert np.array_equal(clone(coded).fit(images, labels, groups=users).predict_proba(test), coded.predict_proba(test))


def test_a_network_never_learns_what_other_users_hand_in():
    images, labels, users = draw()
    other = images.copy()
    other[users == 2] = 255 - other[users == 2]
    order = np.random.default_rng(0).permutation(len(labels))
    clean = CodedClassifier(RECIPE, CODE, random_state=0).fit(images, labels, groups=users)
    attacked = CodedClassifier(RECIPE, CODE, random_state=0).fit(other[order], labels[order], groups=users[order])
    for model, reached in enumerate(CODE.column(2)):
        one, two = clean.estimators_.weights(model), attacked.estimators_.weights(model)
        assert all(torch.equal(one[name], two[name]) for name in one) != reached


def test_bad_images_and_labels_are_refused():
    images, labels, users = draw(size=30)
    coded = CodedClassifier(replace(RECIPE, epochs=1), CODE, random_state=0)
    with pytest.raises(InputError, match="uint8"):
        coded.fit(images.astype(np.int16), labels, groups=users)
    with pytest.raises(InputError, match="label 3 of sample"):
        coded.fit(images, labels + 1, groups=users)
    with pytest.raises(InputError, match="is not one of the classes"):
        coded.fit(images, labels.astype(str), groups=users)
    coded.fit(images, labels, groups=users)
    with pytest.raises(InputError, match="fitted on"):
        coded.predict(images[:, :4])


def test_a_torch_module_is_refused_with_the_way_to_hand_it_in():
    images, labels, users = draw(size=30)
    with pytest.raises(InputError, match=r"package\.module:function"):
        CodedClassifier(torch.nn.Linear(64, 3), CODE).fit(images, labels, groups=users)


def test_a_committee_of_networks_is_kept_and_found_again(tmp_path):
    images, labels, users = draw()
    recipe = replace(RECIPE, epochs=2, committee=2)
    coded = CodedClassifier(recipe, CODE, random_state=0).fit(images, labels, groups=users)
    coded.save(tmp_path / "kept")
    again = CodedClassifier.load(tmp_path / "kept")
    assert len(again.estimators_.network_keys) == 6
    assert np.array_equal(again.votes(images), coded.votes(images))


def test_only_networks_make_committees():
    rows = {"x": [0.0, 1.0] * 20, "y": ["no", "yes"] * 20, "user": [f"u{place // 8}" for place in range(40)]}
    config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, training={"committee": 2})
    with pytest.raises(InputError, match="only networks have seeds to differ in; the model is boosting"):
        plan_training(config, rows)


def test_a_card_tells_a_committee_from_its_first_network_and_images_from_tables(tmp_path):
    images, labels, users = draw()
    told = {"attack": {"attackers": [0]}, "code": {"attackers": 1}}
    cards = []
    for size in (1, 2):
        config = TrainConfig(**told, training={"committee": size}, train={"model": "digits-cnn"})
        plan = plan_training(config, (images, labels, users))
        cards.append(train_guarded(plan, tmp_path / str(size))[1])
    assert "2 networks digits-cnn" in "".join(plan.describe())
    assert cards[0].digests["code"] == cards[1].digests["code"]
    assert cards[0].digests["models"] != cards[1].digests["models"]
    with pytest.raises(InputError, match="images need a network, got logistic; choose"):
        plan_training(TrainConfig(**told, train={"model": "logistic"}), (images, labels, users))
