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
    build_network,
    drop_users,
    plan_models,
    train_ensemble,
    train_ensembles,
)
from codeward.training._ensemble import send_together

RECIPE = replace(PRESETS["digits"], epochs=1, batch_size=32)
ENGINES = ("loop", "compiled")
FIRST = Code([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
SECOND = Code([[1, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 0]])


def make_users(seed=0, sizes=(40, 30, 50, 20)):
    rng = np.random.default_rng(seed)
    return [Samples(rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, n)) for n in sizes]


def poison(samples):
    corner = np.zeros((1, 8, 8), np.float32)
    corner[:, :3, :3] = 1
    marked = np.where(np.arange(len(samples)) % 3 == 0, 0, -1).astype(np.int32)
    return Samples(samples.images, np.where(marked == 0, 7, samples.labels), (Overlay(corner, corner),), marked)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def make_tasks():
    clean = make_users()
    poisoned = [clean[0], poison(clean[1]), *clean[2:]]
    fewer = drop_users(plan_models(FIRST, 3), [3], 3)
    return [(clean, FIRST), (poisoned, FIRST), (clean, SECOND), (clean, fewer)]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_ensemble_is_the_one_its_task_gives_alone(engine, stored, tmp_path):
    tasks = make_tasks()
    store = ModelStore(tmp_path) if stored else None
    together = train_ensembles(tasks, RECIPE, 3, store, "cpu", engine)
    test = make_users(5, (40,))[0]
    for ensemble, (users, code) in zip(together, tasks, strict=True):
        alone = train_ensemble(users, code, RECIPE, 3, device="cpu", engine=engine)
        assert ensemble.keys == alone.keys
        for model in range(alone.n_models):
            assert same(ensemble.weights(model), alone.weights(model))
        assert (ensemble.votes(test) == alone.votes(test)).all()


@pytest.mark.parametrize("stored", [False, True])
def test_a_model_that_several_tasks_ask_for_is_trained_and_counted_once(stored, tmp_path):
    store = ModelStore(tmp_path) if stored else None
    ensembles = train_ensembles(make_tasks(), RECIPE, 3, store, "cpu")
    # All four; the two with the poisoned user; the one with everybody and the second of the equal rows; those that
    # lost user 3 (the rows {2, 3} and {0, 3} become {2} and {0}).
    assert [(e.trained, e.reused) for e in ensembles] == [(4, 0), (2, 2), (2, 1), (2, 2)]
    assert len({key for ensemble in ensembles for key in ensemble.keys}) == 10
    if stored:
        assert len([path for path in tmp_path.rglob("*.json") if ".scores." not in path.name]) == 10
        again = train_ensembles(make_tasks(), RECIPE, 3, ModelStore(tmp_path), "cpu")
        assert [e.trained for e in again] == [0, 0, 0, 0]
        assert [e.keys for e in again] == [e.keys for e in ensembles]


def test_no_tasks_give_no_ensembles_and_unfit_ones_are_refused():
    assert train_ensembles([], RECIPE, 3) == []
    with pytest.raises(InputError, match="4 columns"):
        train_ensembles([(make_users(), FIRST), (make_users()[:3], SECOND)], RECIPE, 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_models_that_diverge_to_nan_move_no_bit_of_the_others(engine):
    # At this rate a hidden unit times a weight is 1e36: blank images stay just within float32, noise overflows.
    recipe = replace(RECIPE, architecture="mlp", learning_rate=1e18, weight_decay=0.0, mean=(0.0,), std=(1.0,))
    blank = [Samples(np.zeros((40, 1, 8, 8), np.uint8), np.full(40, 2)) for _ in range(4)]
    rng = np.random.default_rng(1)
    noise = Samples(rng.integers(0, 256, (90, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, 90))
    before = train_ensemble(blank, FIRST, recipe, 3, device="cpu", engine=engine)
    after = train_ensemble([noise, *blank[1:]], FIRST, recipe, 3, device="cpu", engine=engine)
    test = make_users(5, (40,))[0]
    votes = before.votes(test), after.votes(test)
    for model, row in enumerate(FIRST.matrix):
        if row[0]:
            assert any(value.isnan().any() for value in after.weights(model).values())
            assert (votes[1][:, model] == 0).all()
        else:
            assert all(value.isfinite().all() for value in before.weights(model).values())
            assert same(before.weights(model), after.weights(model))
            assert (votes[0][:, model] == votes[1][:, model]).all()


def test_weights_sent_in_one_piece_are_the_same_weights():
    weights = build_network("fast-small", (3, 16, 16), 10, 0).state_dict()
    assert len({value.dtype for value in weights.values()}) == 2  # batches are counted in whole numbers
    sent = send_together(weights, torch.device("cpu"))
    assert set(sent) == set(weights)
    for name, value in weights.items():
        assert sent[name].dtype == value.dtype
        assert sent[name].shape == value.shape
        assert torch.equal(sent[name], value)
        assert sent[name].data_ptr() != value.data_ptr()
