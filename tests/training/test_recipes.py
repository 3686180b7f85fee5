"""The modern recipes, and that the paper's stay what they were."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Overlay, Samples
from codeward.training import (
    MODERN,
    PRESETS,
    BatchedEnsemble,
    ModelPlan,
    TrainingSettings,
    build_network,
    choose_recipe,
    model_key,
    plan_batches,
    plan_models,
    train_ensemble,
)
from codeward.training._architectures import _GlobalPool, _HalvingPool
from codeward.training._device_batches import DeviceSamples, disturb, draw_uniform, mix_images, mixed_losses, warp
from codeward.training._training_settings import BY_SIZE, SIZED

CODE = Code([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
#: Every part of a modern recipe, on networks and data that take a moment.
SMALL = replace(
    MODERN["cifar10"],
    architecture="fast-small",
    epochs=2,
    batch_size=16,
    learning_rate=0.1,
    weight_decay=1e-3,
    cutout=3,
    mixup=0.3,
    jitter=0.2,
    mean=(0.5,),
    std=(0.3,),
)
WARPED = replace(MODERN["mnist"], architecture="mnist-fast", epochs=2, batch_size=16)


def make_users(seed=0, sizes=(40, 30, 50, 20), shape=(1, 9, 8)):
    rng = np.random.default_rng(seed)
    return [Samples(rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, 10, n)) for n in sizes]


def same(first, second):
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


#: Keys of the paper's recipes before there were others: models trained then are still found.
KEYS = {
    "mnist": "8c5561f3992212efcbbc7061a9c3fd916463dd69dfd40c1a0aceb3f648b0b79c",
    "fashion-mnist": "d5f4ae71f3451c2a84e990dbc47360fc79eee664d57bede0a5c68aca0b939610",
    "cifar10": "8c84f2a34115a47562700847a08e130522282741925b346050b060e3c1bac67d",
    "digits": "07cd239e0cc4cbca70b65add20ba37a9d835cb0131f41240fb48c81946db6e7b",
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_the_papers_recipes_are_those_of_stored_models(name):
    found = model_key(ModelPlan((0, 2), 1, 123), ["a", "b", "c"], PRESETS[name], "net", "cpu loop float32")
    assert found == KEYS[name]
    assert set(PRESETS[name].to_json()) == {
        *("architecture", "augmentation", "batch_size", "epochs", "learning_rate", "mean", "n_classes", "precision"),
        *("std", "weight_decay"),
    }
    assert PRESETS[name].for_samples(7) is PRESETS[name]


def test_the_papers_recipe_still_takes_its_own_steps_bit_by_bit():
    recipe = TrainingSettings(architecture="resnet18", epochs=1, batch_size=8, augmentation="crop-flip")
    users = make_users(sizes=(12, 9))
    trained = train_ensemble(users, Code([[1, 1]]), recipe, 1, device="cpu", engine="loop")
    plan = plan_models(Code([[1, 1]]), 1)[0]
    stream = plan_batches(plan, [12, 9], recipe, 8)
    images = np.concatenate([user.images for user in users])
    padded = torch.from_numpy(np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)))).float() / 255
    labels = torch.from_numpy(np.concatenate([user.labels for user in users]))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = build_network("resnet18", (1, 9, 8), 10, plan.seed).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
        for row, code, count in zip(stream.index, stream.shifts.astype(int), stream.counts, strict=True):
            batch = []
            for sample, one in zip(row, code, strict=True):
                flip, top, left = one // 81, one % 81 // 9, one % 9
                cut = padded[sample, :, top : top + 9, left : left + 8]
                batch.append(cut.flip(2) if flip else cut)
            fed = (torch.stack(batch) - 0.1307) * (1 / torch.tensor(0.3081))
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(network(fed)[:count], labels[row[:count]], reduction="sum")
            (losses / stream.full).backward()
            optimizer.step()
    finally:
        torch.set_num_threads(before)
    assert same(trained.weights(0), {name: value.detach() for name, value in network.state_dict().items()})


@pytest.mark.parametrize("recipe", [SMALL, WARPED, replace(SMALL, augmentation="shift")])
def test_a_model_without_a_user_is_bit_identical_whatever_that_user_hands_in(recipe):
    users = make_users()
    rng = np.random.default_rng(9)
    overlay = Overlay(np.ones((1, 9, 8), np.float32), np.full((1, 9, 8), 0.5, np.float32))
    garbage = Samples(
        rng.integers(0, 256, (333, 1, 9, 8), dtype=np.uint8), np.full(333, 3), (overlay,), np.zeros(333, np.int32)
    )
    before = train_ensemble(users, CODE, recipe, 1, device="cpu")
    after = train_ensemble([garbage, *users[1:]], CODE, recipe, 1, device="cpu")
    alone = train_ensemble(users, plan_models(CODE, 1)[1:2], recipe, 1, device="cpu")
    for model, row in enumerate(CODE.matrix):
        assert same(before.weights(model), after.weights(model)) != row[0]
        assert (before.keys[model] == after.keys[model]) != row[0]
    assert same(before.weights(1), alone.weights(0))


def test_a_recipe_by_size_looks_at_the_models_own_samples_only():
    recipe = MODERN["cifar10"]
    assert {getattr(recipe, name) for name in SIZED} == {BY_SIZE}
    sizes = (50, 200, 1_000, 4_167, 16_667, 25_000)
    resolved = [recipe.for_samples(size) for size in sizes]
    assert [own.batch_size for own in resolved] == [32, 32, 64, 128, 256, 256]
    assert [own.epochs for own in resolved] == [1_200, 300, 300, 80, 40, 40]
    assert replace(recipe, epochs=3).for_samples(200).epochs == 3
    for own in resolved:
        assert own.for_samples(1) is own
        assert BY_SIZE not in own._sized().values()
        assert TrainingSettings(**json.loads(json.dumps(own.to_json()))) == own
    with pytest.raises(InputError, match="no rule by size"):
        TrainingSettings(epochs=BY_SIZE, optimizer="sgd")
    assert [MODERN["digits"].for_samples(size).epochs for size in (0, 39, 40, 100, 300)] == [128, 128, 64, 32, 16]
    assert MODERN["digits"].for_samples(420) == replace(MODERN["digits"], epochs=16)


def test_models_of_unlike_sizes_are_all_trained_each_as_it_would_be_alone(monkeypatch):
    recipe = replace(MODERN["images"], architecture="mlp", epochs=1)
    users, code = make_users(sizes=(2_500, 40), shape=(1, 4, 4)), Code([[1, 0], [0, 1], [1, 1]])
    assert recipe.for_samples(2_500).batch_size != recipe.for_samples(40).batch_size
    together = train_ensemble(users, code, recipe, 1, device="cpu")
    for model, plan in enumerate(plan_models(code, 1)):
        alone = train_ensemble(users, [plan], recipe, 1, device="cpu")
        assert same(together.weights(model), alone.weights(0))
    monkeypatch.setattr("codeward.training._loop_engine.train_loop", lambda jobs, context: None)
    with pytest.raises(RuntimeError, match="3 of 3 models were not trained"):
        train_ensemble(users, code, recipe, 1, device="cpu")


def test_recipes_have_names():
    assert choose_recipe("cifar10", "paper") is PRESETS["cifar10"]
    assert choose_recipe("digits") is MODERN["digits"]
    assert choose_recipe("digits", "paper") is PRESETS["digits"]
    assert choose_recipe("holiday.npz") is MODERN["images"]
    with pytest.raises(InputError, match="modern, paper"):
        choose_recipe("mnist", "secret")


def test_mixed_batches_hold_all_of_a_models_samples_and_nobody_elses():
    settings = replace(SMALL, epochs=3)
    stream = plan_batches(ModelPlan((0, 2), 0, 5), [40, 30, 50, 20], settings, 16)
    own = {*range(40), *range(70, 120)}
    assert stream.index.shape == (3 * 5, 16)
    assert stream.steps_per_epoch == 5
    assert set(stream.index.ravel()) == own
    for epoch in stream.index.reshape(3, -1):
        assert len(set(epoch)) == 80
    assert (stream.counts == 16).all()
    assert ((stream.shares >= 0) & (stream.shares <= 1)).all()
    assert any(len({sample < 40 for sample in row}) == 2 for row in stream.index)
    few = plan_batches(ModelPlan((1,), 0, 5), [40, 3], settings, 16)
    assert few.index.shape == (3, 16)
    assert set(few.index.ravel()) == {40, 41, 42}


def test_every_sample_flips_every_other_epoch():
    stream = plan_batches(ModelPlan((0,), 0, 5), [64], replace(SMALL, epochs=4), 16)
    flips = np.full((4, 64), -1)
    for epoch in range(4):
        rows = slice(epoch * 4, epoch * 4 + 4)
        flips[epoch, stream.index[rows]] = stream.shifts[rows] // 25
    assert (flips[0] == 1 - flips[1]).all()
    assert (flips[0] == flips[2]).all()
    assert 0 < flips[0].mean() < 1


def test_a_trigger_moves_with_the_image_it_was_stamped_on():
    alpha = np.zeros((1, 9, 8), np.float32)
    alpha[:, -1, -1] = 1
    overlay = Overlay(np.ones((1, 9, 8), np.float32), alpha)
    samples = Samples(np.zeros((50, 1, 9, 8), np.uint8), np.zeros(50, np.int64), (overlay,), np.zeros(50, np.int32))
    settings = replace(SMALL, mean=(0.0,), std=(1.0,))
    fed = DeviceSamples([samples], settings, torch.device("cpu"))
    plain = fed.gather(torch.arange(1))[0, :, :, 0]
    assert plain[-1, -1] == 1
    assert plain.sum() == 1
    flipped = fed.gather(torch.arange(1), torch.tensor([25 + 12], dtype=torch.uint8))[0, :, :, 0]
    assert torch.equal(flipped, plain.flip(1))
    moved = fed.gather(torch.arange(1), torch.tensor([3 * 5 + 2], dtype=torch.uint8))[0, :, :, 0]
    assert moved[-2, -1] == 1


def test_augmentation_depends_on_the_key_only_and_does_what_it_says():
    key, other = torch.tensor(5, dtype=torch.int32), torch.tensor(6, dtype=torch.int32)
    numbers = draw_uniform(key, 1, (100, 100))
    assert torch.equal(numbers, draw_uniform(key, 1, (100, 100)))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.01
    assert not torch.equal(numbers, draw_uniform(other, 1, (100, 100)))
    ones = torch.ones(200, 9, 8, 1)
    blank = disturb(ones, key, replace(SMALL, jitter=0.0))
    holes = (blank == 0).sum((1, 2, 3))
    assert set(blank.unique().tolist()) == {0.0, 1.0}
    assert holes.max() == 9
    assert holes.min() >= 1
    changed = disturb(ones, key, replace(SMALL, cutout=0))
    assert changed.std((1, 2)).max() < 1e-6
    assert 0.6 < changed.min() < 0.8
    assert 1.2 < changed.max() < 1.45
    share = torch.tensor(0.25)
    assert torch.allclose(mix_images(torch.arange(3.0)[:, None], share)[:, 0], torch.tensor([1.5, 0.25, 1.25]))
    bar = torch.zeros(64, 28, 28, 1)
    bar[:, 4:24, 12:16] = 1
    warped = warp(bar, key)
    assert warped.shape == bar.shape
    assert torch.equal(warped, warp(bar, key))
    assert 0.6 < float(warped.sum() / bar.sum()) < 1.4
    assert not torch.equal(warped[0], warped[1])


def test_a_mixed_loss_is_the_cross_entropy_with_the_mixed_label():
    logits, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0, 1])
    share = torch.tensor(0.3)
    soft = nn.functional.one_hot(labels, 4).float() * 0.9 + 0.1 / 4
    soft = share * soft + (1 - share) * soft.roll(1, 0)
    wanted = -(soft * logits.log_softmax(1)).sum(1)
    assert torch.allclose(mixed_losses(logits, labels, share, 0.1), wanted, atol=1e-6)


def test_the_stem_whitens_the_patches_of_the_images_it_was_fitted_to():
    images = torch.randn(300, 3, 9, 8, generator=torch.Generator().manual_seed(0)).cumsum(3)
    network = build_network("fast-small", (3, 9, 8), 10, 0)
    network.fit(images)
    out = network.stem(images).permute(1, 0, 2, 3).reshape(24, -1)[:12]
    assert torch.allclose(out @ out.t() / out.shape[1], torch.eye(12), atol=0.05)
    assert not any(name.startswith("stem") for name, _ in network.named_parameters())


@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 8, 8), (1, 5, 30), (3, 33, 32)])
def test_the_fast_network_takes_images_of_any_size(shape):
    network = build_network("fast-small", shape, 7, 0)
    assert network(torch.randn(3, *shape)).shape == (3, 7)
    with pytest.raises(InputError, match="2 x 2"):
        build_network("fast", (1, 1, 9), 7, 0)


def test_the_pool_of_gpus_is_torchs():
    values = torch.randn(3, 5, 8, 6, generator=torch.Generator().manual_seed(0)).round(decimals=1).requires_grad_()
    pooled, wanted = _HalvingPool.apply(values), nn.functional.max_pool2d(values, 2)
    assert torch.equal(pooled, wanted)
    weights = torch.randn(wanted.shape)
    grads = [torch.autograd.grad((out * weights).sum(), values)[0] for out in (pooled, wanted)]
    assert torch.equal(*grads)
    pooled, wanted = _GlobalPool.apply(values), nn.functional.adaptive_max_pool2d(values, 1).flatten(1)
    assert torch.equal(pooled, wanted)
    grads = [torch.autograd.grad((out * weights[:, :, 0, 0]).sum(), values)[0] for out in (pooled, wanted)]
    assert torch.equal(*grads)


def test_flips_are_averaged_at_inference_and_a_server_says_the_same():
    users = make_users(shape=(1, 9, 8))
    ensemble = train_ensemble(users, CODE, SMALL, 1, device="cpu")
    test = make_users(5, (20,))[0]
    mirrored = Samples(np.ascontiguousarray(test.images[..., ::-1]), test.labels)
    scores = ensemble.scores(test)
    assert np.allclose(scores, ensemble.scores(mirrored), atol=1e-5)
    served = BatchedEnsemble(ensemble).scores(test.images.astype(np.float32) / 255)
    assert np.allclose(scores, served, atol=1e-4)
