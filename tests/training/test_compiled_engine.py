from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Samples
from codeward.training import ARCHITECTURES, PRESETS, _compiled_engine, build_network, train_ensemble
from codeward.training._engines import is_compilable

SHAPE = (1, 12, 12)
CODE = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
STACKABLE = [name for name in ARCHITECTURES if is_compilable(build_network(name, (3, 32, 32), 10, 0))]


def make_users(seed=0, sizes=(20, 33, 16)):
    rng = np.random.default_rng(seed)
    return [Samples(rng.integers(0, 256, (n, *SHAPE), dtype=np.uint8), rng.integers(0, 10, n)) for n in sizes]


def train(users, architecture, engine, code=CODE, **others):
    recipe = replace(PRESETS["mnist"], architecture=architecture, epochs=2, batch_size=16, **others)
    return train_ensemble(users, code, recipe, 4, device="cpu", engine=engine)


def test_the_sequential_architectures_are_stackable():
    assert STACKABLE == ["mnist-cnn", "digits-cnn", "mlp"]
    assert not is_compilable(nn.Sequential(nn.Flatten()))


@pytest.mark.parametrize("others", [{}, {"label_smoothing": 0.3, "schedule": "one-cycle", "batches": "mixed"}])
@pytest.mark.parametrize("architecture", STACKABLE)
def test_compiled_training_follows_the_loop_for_every_architecture(architecture, others, monkeypatch):
    def without_dropout(shape, n_classes):
        # The engines draw a model's masks in another order: only without them can weights be compared.
        network = build(shape, n_classes)
        for layer in network:
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        return network

    build = ARCHITECTURES[architecture]
    monkeypatch.setitem(ARCHITECTURES, architecture, without_dropout)
    users = make_users()
    compiled, loop = (train(users, architecture, engine, **others) for engine in ("compiled", "loop"))
    start = build_network(architecture, SHAPE, 10, 0).state_dict()
    for model in range(3):
        for name, value in loop.weights(model).items():
            assert value.shape == start[name].shape
            assert torch.allclose(compiled.weights(model)[name], value, atol=1e-4), (model, name)


def test_mixed_batches_above_what_the_users_would_fill_alone_are_trained_as_they_are():
    # Batches of one user would have 48 places here. The kernels once read the other 16 from behind their arrays.
    users, code = make_users(sizes=(90, 84, 90)), Code(np.ones((1, 3)))
    settings = replace(PRESETS["mnist"], architecture="mlp", epochs=2, batch_size=64, batches="mixed")
    compiled, loop = (train_ensemble(users, code, settings, 4, device="cpu", engine=e) for e in ("compiled", "loop"))
    for name, value in loop.weights(0).items():
        assert torch.allclose(compiled.weights(0)[name], value, atol=1e-4), name


@pytest.mark.parametrize("architecture", STACKABLE)
def test_in_every_architecture_a_model_without_a_user_is_bit_identical_whatever_that_user_hands_in(architecture):
    users = make_users()
    garbage = make_users(7, (70,))
    before = train(users, architecture, "compiled")
    after = train([*garbage, *users[1:]], architecture, "compiled")
    alone = train(users, architecture, "compiled", Code([[0, 1, 1], [1, 1, 1]]))
    for name, value in before.weights(1).items():
        assert torch.equal(after.weights(1)[name], value)
        assert torch.equal(alone.weights(0)[name], value)
    for model in (0, 2):
        assert any(not torch.equal(after.weights(model)[name], value) for name, value in before.weights(model).items())


def test_networks_that_the_compiled_layers_would_get_wrong_are_not_stackable():
    relu = nn.ReLU()
    frozen = nn.Linear(4, 2)
    frozen.weight.requires_grad_(False)
    for layers in (
        [nn.Flatten(), nn.Linear(4, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2)],  # a layer that stands twice
        [nn.Linear(2, 2), nn.Flatten(), nn.Linear(4, 2)],  # a dense layer along the width
        [nn.Flatten(), frozen],
        [nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten()],
        [nn.Conv2d(1, 2, 3, stride=2), nn.Flatten()],
        [nn.Conv2d(1, 2, 2), nn.MaxPool2d(3, 2), nn.Flatten()],
        [nn.Flatten(), nn.Linear(4, 2), nn.Sigmoid()],
    ):
        assert not is_compilable(nn.Sequential(*layers)), layers


@pytest.mark.parametrize("architecture", STACKABLE)
def test_bytes_do_not_depend_on_the_number_of_threads_or_on_how_many_batches_are_gathered_together(
    architecture, monkeypatch
):
    users = make_users()
    before = train(users, architecture, "compiled")
    monkeypatch.setattr(_compiled_engine, "count_workers", lambda n_tasks: 1)
    # A batch at a time, of samples that are prepared once, then of samples that are too many for that.
    monkeypatch.setattr(_compiled_engine, "_GATHERED", 1)
    for kept in (_compiled_engine._KEPT, 0):
        monkeypatch.setattr(_compiled_engine, "_KEPT", kept)
        after = train(users, architecture, "compiled")
        for model in range(3):
            for name, value in before.weights(model).items():
                assert torch.equal(after.weights(model)[name], value)


def test_a_network_with_too_few_outputs_is_refused(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "mlp", lambda shape, n_classes: nn.Sequential(nn.Flatten(), nn.Linear(144, 9)))
    with pytest.raises(InputError, match="9 outputs, but n_classes is 10"):
        train(make_users(), "mlp", "compiled")
