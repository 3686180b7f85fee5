"""Isolation on a GPU: what a user hands in, overlays included, moves no bit of a model that the user does not feed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from codeward.codes import Code
from codeward.data import Overlay, Samples
from codeward.training import MODERN, PRESETS, plan_models, train_ensemble

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CODE = Code([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 1, 0]])


def make_users(seed=0, sizes=(300, 200, 250, 280)):
    rng = np.random.default_rng(seed)
    return [Samples(rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, n)) for n in sizes]


def same(first, second):
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


# The compiler warns of its own doings.
@pytest.mark.filterwarnings("default")
def test_a_model_without_a_user_is_bit_identical_whatever_that_user_hands_in():
    users, recipe = make_users(), replace(PRESETS["cifar10"], epochs=2)
    before = train_ensemble(users, CODE, recipe, 1, device="cuda")
    stamp = Overlay(np.full((3, 32, 32), 0.5, np.float32), np.ones((3, 32, 32), np.float32))
    noise = make_users(9, (411,))[0]
    garbage = Samples(noise.images, np.full(411, 3), (stamp,), np.arange(411, dtype=np.int32) % 2 - 1)
    after = train_ensemble([garbage, *users[1:]], CODE, recipe, 1, device="cuda")
    for model, row in enumerate(CODE.matrix):
        assert same(before.weights(model), after.weights(model)) != row[0]


@pytest.mark.filterwarnings("default")
def test_a_model_does_not_depend_on_what_trains_beside_it():
    users, recipe = make_users(), replace(PRESETS["cifar10"], epochs=2)
    many = train_ensemble(users, CODE, recipe, 1, device="cuda")
    few = train_ensemble(users, Code(np.vstack([CODE.matrix[2:3], np.ones((1, 4))])), recipe, 1, device="cuda")
    assert same(many.weights(2), few.weights(0))


@pytest.mark.filterwarnings("default")
def test_a_model_does_not_depend_on_how_much_others_hand_in():
    users, recipe = make_users(), replace(MODERN["cifar10"], epochs=2, batch_size=64)
    few = train_ensemble(users, CODE, recipe, 1, device="cuda")
    many = train_ensemble([make_users(9, (30_000,))[0], *users[1:]], CODE, recipe, 1, device="cuda")
    for model, row in enumerate(CODE.matrix):
        assert same(few.weights(model), many.weights(model)) != row[0]


MODERN_SMALL = replace(MODERN["cifar10"], epochs=2, batch_size=64)
RECIPES = [MODERN_SMALL, replace(MODERN["mnist"], epochs=2, mean=(0.5,), std=(0.25,))]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("recipe", RECIPES)
def test_modern_models_keep_to_themselves(recipe):
    users = make_users()
    many = train_ensemble(users, CODE, recipe, 1, device="cuda")
    stamp = Overlay(np.full((3, 32, 32), 0.5, np.float32), np.ones((3, 32, 32), np.float32))
    noise = make_users(9, (411,))[0]
    garbage = Samples(noise.images, np.full(411, 3), (stamp,), np.arange(411, dtype=np.int32) % 2 - 1)
    after = train_ensemble([garbage, *users[1:]], CODE, recipe, 1, device="cuda")
    few = train_ensemble(users, plan_models(CODE, 1)[2:3], recipe, 1, device="cuda")
    for model, row in enumerate(CODE.matrix):
        assert same(many.weights(model), after.weights(model)) != row[0]
    assert same(many.weights(2), few.weights(0))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("recipe", RECIPES)
def test_compiled_steps_compute_what_the_plain_loop_does(recipe, monkeypatch):
    # Two steps in float32, every weight by itself. After more steps or in bfloat16 biases of batch norm, which start at
    # 0, tell nothing: a pixel changed by one moves them by 1% in two steps of the plain loop and by 7% in four.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    exact = replace(recipe, precision="float32", epochs=1, batch_size=64)
    users, code = make_users(sizes=(128,)), Code([[1]])
    graphs, loop = (train_ensemble(users, code, exact, 1, device="cuda", engine=name) for name in ("graphs", "loop"))
    for name, plain in loop.weights(0).items():
        assert torch.isfinite(plain).all()
        assert (plain.float() - graphs.weights(0)[name].float()).norm() <= 0.05 * plain.float().norm(), name


@pytest.mark.filterwarnings("default")
def test_modern_models_learn():
    rng = np.random.default_rng(0)
    faces, labels = rng.integers(0, 256, (10, 3, 4, 4)), rng.integers(0, 10, 600)
    images = np.kron(faces[labels], np.ones((1, 1, 8, 8))) + rng.normal(0, 60, (600, 3, 32, 32))
    samples = Samples(images.clip(0, 255).astype(np.uint8), labels)
    ensemble = train_ensemble([samples], Code([[1]]), replace(MODERN_SMALL, epochs=20), 1, device="cuda")
    assert (ensemble.votes(samples)[:, 0] == labels).mean() > 0.9
