from dataclasses import replace

import numpy as np
import pytest
import torch

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Overlay, Samples
from codeward.training import (
    PRESETS,
    ModelStore,
    TrainingSettings,
    build_network,
    plan_batches,
    plan_models,
    train_ensemble,
    train_from,
    vote,
)
from codeward.training._device_batches import DeviceSamples

RECIPE = replace(PRESETS["digits"], epochs=2, batch_size=32)
ENGINES = ("loop", "compiled")
CODE = Code([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1], [1, 0, 1, 0]])


def make_users(seed=0, sizes=(40, 30, 50, 20), shape=(1, 8, 8)):
    rng = np.random.default_rng(seed)
    return [Samples(rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, 10, n)) for n in sizes]


def same(first, second):
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("architecture", ["digits-cnn", "mlp"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_without_a_user_is_bit_identical_whatever_that_user_hands_in(engine, architecture):
    # A learning rate that makes every model diverge to NaN in the end would hide nothing: use images of noise, all
    # labels alike and an absurd amount of data instead, and check below that the models with user 0 did change.
    recipe = replace(RECIPE, architecture=architecture)
    users = make_users()
    rng = np.random.default_rng(9)
    overlay = Overlay(np.ones((1, 8, 8), np.float32), np.full((1, 8, 8), 0.5, np.float32))
    garbage = Samples(
        rng.integers(0, 256, (333, 1, 8, 8), dtype=np.uint8), np.full(333, 3), (overlay,), np.zeros(333, np.int32)
    )
    before = train_ensemble(users, CODE, recipe, 1, device="cpu", engine=engine)
    after = train_ensemble([garbage, *users[1:]], CODE, recipe, 1, device="cpu", engine=engine)
    test = make_users(5, (60,))[0]
    votes = before.votes(test), after.votes(test)
    for model, row in enumerate(CODE.matrix):
        assert same(before.weights(model), after.weights(model)) != row[0]
        assert (before.keys[model] == after.keys[model]) != row[0]
        if not row[0]:
            assert (votes[0][:, model] == votes[1][:, model]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_does_not_depend_on_what_trains_beside_it_or_on_its_place(engine):
    users = make_users()
    whole = train_ensemble(users, CODE, RECIPE, 1, device="cpu", engine=engine)
    for rows in ([2], [4, 3, 0, 1], list(range(5)) * 2):
        code = Code(np.vstack([CODE.matrix[rows], np.ones((1, 4))]))
        part = train_ensemble(users, code, RECIPE, 1, device="cpu", engine=engine)
        for place, model in enumerate(rows[:5]):
            assert same(part.weights(place), whole.weights(model))


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_agree_with_a_plain_loop(engine):
    recipe = replace(RECIPE, epochs=1)
    users = make_users(sizes=(40, 33, 50, 20))
    ensemble = train_ensemble(users, CODE, recipe, 1, device="cpu", engine=engine)
    images = torch.from_numpy(np.concatenate([user.images for user in users])).float() / 255
    images = (images - recipe.mean[0]) / recipe.std[0]
    labels = torch.from_numpy(np.concatenate([user.labels for user in users]))
    for model, plan in enumerate(plan_models(CODE, 1)):
        network = build_network(recipe.architecture, (1, 8, 8), 10, plan.seed)
        optimizer = torch.optim.Adam(network.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
        stream = plan_batches(plan, [len(user) for user in users], recipe, 32)
        for row, count in zip(torch.from_numpy(stream.index), stream.counts, strict=True):
            optimizer.zero_grad()
            losses = torch.nn.functional.cross_entropy(
                network(images[row[:count]]), labels[row[:count]], reduction="sum"
            )
            (losses / stream.full).backward()
            optimizer.step()
        for name, value in network.state_dict().items():
            assert torch.allclose(ensemble.weights(model)[name], value, atol=2e-5), (model, name)


def test_digits_are_learned():
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    images, labels = (digits.images * 15.9).astype(np.uint8)[:, None], digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    users = [Samples(images[i:1400:4], labels[i:1400:4]) for i in range(4)]
    test = Samples(images[1400:], labels[1400:])
    ensemble = train_ensemble(users, CODE, replace(PRESETS["digits"], epochs=8), 0, device="cpu")
    assert (ensemble.votes(test) == test.labels[:, None]).mean(axis=0).min() > 0.85


def test_dropout_and_batch_norm_networks_repeat_bit_by_bit_and_differ_between_replicas():
    users = make_users(sizes=(20, 10), shape=(3, 12, 12))
    recipe = replace(PRESETS["cifar10"], architecture="mnist-cnn", epochs=1, batch_size=8)
    code = Code([[1, 1], [1, 1]])
    first, second = (train_ensemble(users, code, recipe, 3, device="cpu") for _ in range(2))
    assert same(first.weights(0), second.weights(0))
    assert not same(first.weights(0), first.weights(1))


def test_augmentation_crops_and_flips_and_the_overlay_comes_last():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 3, 10, 10), dtype=np.uint8)
    alpha = np.zeros((3, 10, 10), np.float32)
    alpha[:, -3:, -3:] = 1
    values = rng.random((3, 10, 10), dtype=np.float32)
    samples = Samples(
        images, np.zeros(6, np.int64), (Overlay(values, alpha),), np.array([0, -1, 0, -1, 0, -1], np.int32)
    )
    recipe = replace(PRESETS["cifar10"], mean=(0.0,), std=(1.0,))
    resident = DeviceSamples([samples], recipe, torch.device("cpu"))
    codes = np.array([0, 40, 80, 81, 121, 161], dtype=np.uint8)
    got = resident.gather(torch.arange(6), torch.from_numpy(codes)).numpy()
    padded = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)))
    for i, code in enumerate(codes.tolist()):
        row, column = code % 81 // 9, code % 9
        wanted = padded[i, :, row : row + 10, column : column + 10].astype(np.float32) / 255
        wanted = wanted[:, :, ::-1] if code >= 81 else wanted
        if i % 2 == 0:
            wanted = wanted * (1 - alpha) + alpha * values
        assert np.allclose(got[i].transpose(2, 0, 1), wanted, atol=1e-6)
    assert np.allclose(resident.gather(torch.tensor([1])).numpy()[0].transpose(2, 0, 1), images[1] / 255)


def test_votes_take_the_smaller_label_on_ties_and_zero_for_nan():
    scores = np.array([[0.0, 1.0, 1.0], [np.nan, np.nan, np.nan], [np.nan, 0.0, 2.0]], dtype=np.float32)
    assert vote(scores).tolist() == [1, 0, 2]


def test_scores_are_log_probabilities_and_are_read_from_the_store_the_second_time(tmp_path):
    users, test = make_users(), make_users(5, (30,))[0]
    store = ModelStore(tmp_path)
    ensemble = train_ensemble(users, CODE, RECIPE, 1, store, "cpu")
    scores = ensemble.scores(test)
    assert scores.shape == (30, 5, 10)
    assert scores.dtype == np.float32
    assert np.allclose(np.exp(scores).sum(axis=2), 1, atol=1e-5)
    again = train_ensemble(users, CODE, RECIPE, 1, ModelStore(tmp_path), "cpu")
    assert (again.trained, again.reused) == (0, 5)
    for file in tmp_path.rglob("*.safetensors"):
        if ".scores." not in file.name:
            file.unlink()
    assert (again.scores(test) == scores).all()
    with pytest.raises(InputError, match="train again"):
        again.scores(users[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"users": make_users()[:3]}, "4 columns"),
        ({"users": [*make_users()[:3], make_users(shape=(1, 9, 9))[0]]}, "shape"),
        ({"settings": replace(RECIPE, n_classes=5)}, "n_classes is 5"),
        ({"settings": replace(RECIPE, mean=(0.1,) * 3, std=(0.1,) * 3)}, "channels"),
        ({"settings": replace(RECIPE, architecture="lenet")}, "package.module:function"),
        ({"settings": replace(RECIPE, architecture="collections:Counter")}, "Module"),
        ({"engine": "graphs"}, "GPU"),
        ({"engine": "compiled", "settings": replace(RECIPE, architecture="resnet18")}, "sequential"),
        ({"device": "tpu"}, "auto, cpu or cuda"),
    ],
)
def test_impossible_requests_are_refused_with_a_reason(change, words):
    arguments = {"users": make_users(), "code": CODE, "settings": RECIPE, "seed": 0, "device": "cpu"} | change
    with pytest.raises(InputError, match=words):
        train_ensemble(**arguments)


def test_engines_are_found_by_their_former_names():
    users = make_users()
    now, before = (
        train_ensemble(users, CODE, RECIPE, 3, device="cpu", engine=name) for name in ("compiled", "stacked")
    )
    assert now.keys == before.keys
    with pytest.raises(InputError, match="graphs needs a GPU"):
        train_ensemble(users, CODE, RECIPE, 3, device="cpu", engine="lanes")


def test_the_plain_loop_lets_no_stopwatch_choose_kernels(monkeypatch):
    seen = []

    def note(job, context, alone):
        seen.append((torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark))

    monkeypatch.setattr("codeward.training._loop_engine._train_one", note)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    samples = Samples(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1]))
    settings = TrainingSettings(architecture="mlp", epochs=1, n_classes=2)
    with pytest.raises(IndexError):  # nothing was trained
        train_from(build_network("mlp", (1, 8, 8), 2, 0).state_dict(), samples, settings, seed=1)
    assert seen == [(True, False)]
    assert torch.backends.cudnn.benchmark is True
