"""Committees: several networks a sub-model, averaged, and nobody's data in them but the sub-model's own users'."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Samples
from codeward.experiments import holds_models, revoke_users, run_experiment
from codeward.runs import Cell, FederatedConfig, RunConfig, RunFolder, foresee_revocation
from codeward.serve import open_run
from codeward.training import PRESETS, BatchedEnsemble, Ensemble, ModelStore, train_ensemble

RECIPE = replace(PRESETS["digits"], epochs=2, batch_size=32)
THREE = replace(RECIPE, committee=3)
CODE = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])  # the last row is the first again


def make_users(seed=0, sizes=(40, 30, 50)):
    rng = np.random.default_rng(seed)
    return [Samples(rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, n)) for n in sizes]


def same(first, second):
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def test_a_committee_says_the_mean_of_its_networks_probabilities_and_has_the_single_network_first():
    users, test = make_users(), make_users(5, (20,))[0]
    alone, three = (train_ensemble(users, CODE, recipe, 1, device="cpu") for recipe in (RECIPE, THREE))
    assert three.keys == alone.keys
    assert len(set(three.network_keys)) == 12
    assert three.network_keys[::3] == alone.keys
    assert three.trained == 4  # sub-models, not networks
    parts = []
    for network in range(3):
        of_one = Ensemble(
            alone.keys, 0, 4, RECIPE, alone.shape, alone.device, alone.precision,
            {key: three.weights(model, network) for model, key in enumerate(alone.keys)}, None,
        )  # fmt: skip
        parts.append(np.exp(of_one.scores(test)))
    assert np.allclose(np.exp(three.scores(test)), np.mean(parts, axis=0), atol=1e-6)
    assert np.array_equal(np.log(parts[0]).astype(np.float32).argmax(2), alone.votes(test))
    for model in range(4):
        assert same(three.weights(model), alone.weights(model))
        assert not same(three.weights(model, 1), three.weights(model, 2))


def test_a_user_moves_no_bit_of_any_network_that_is_not_its_own():
    users = make_users()
    noise = make_users(9, (77,))[0]
    before = train_ensemble(users, CODE, THREE, 1, device="cpu")
    after = train_ensemble([noise, *users[1:]], CODE, THREE, 1, device="cpu")
    for model, row in enumerate(CODE.matrix):
        for network in range(3):
            assert same(before.weights(model, network), after.weights(model, network)) != row[0]


def test_a_committee_is_resumed_network_by_network_and_loaded_whole_or_not_at_all(tmp_path):
    users, test = make_users(), make_users(5, (20,))[0]
    store = ModelStore(tmp_path)
    assert train_ensemble(users, CODE, RECIPE, 1, store, device="cpu").trained == 4
    three = train_ensemble(users, CODE, THREE, 1, store, device="cpu")
    assert three.trained == 4  # two networks of each were missing
    assert store.holds_all(three.keys, 3)
    loaded = Ensemble.load(store, three.keys, THREE, three.shape)
    assert np.array_equal(loaded.scores(test), three.scores(test))
    pixels = (test.images / 255).astype(np.float32)
    assert np.allclose(BatchedEnsemble(loaded).scores(pixels), three.scores(test), atol=1e-4)
    lost = three.network_keys[4]  # of the second model
    for file in tmp_path.rglob(f"{lost}*"):
        file.unlink()
    assert store.holds_all(three.keys)
    assert not store.holds_all(three.keys, 3)
    with pytest.raises(InputError, match="lacks 1 of 4 sub-models"):
        Ensemble.load(store, three.keys, THREE, three.shape)
    assert train_ensemble(users, CODE, THREE, 1, store, device="cpu").trained == 1


def test_a_run_of_committees_is_whole_served_and_made_again(tmp_path):
    few = {"users": 6, "code": {"name": "toy-d"}, "attack": {"attackers": [0]}}
    few |= {"decoder": {"name": "bayes", "max_attackers": 1}}
    config = RunConfig(**few, training={"epochs": 2, "committee": 2})
    [record] = run_experiment(config, tmp_path)
    cell = Cell(RunFolder(tmp_path), 0, 0)
    store = ModelStore(cell.store)
    assert record["training"]["committee"] == cell.committee == 2
    assert holds_models(cell, store)
    assert open_run(tmp_path).guard is not None
    second = next(key for key in (path.stem for path in store.root.rglob("*.json")) if key not in cell.keys)
    for file in store.root.rglob(f"{second[:64]}*"):
        file.unlink()
    assert not holds_models(cell, store)
    [again] = run_experiment(config, tmp_path)
    assert again["figures"]["clean"] == record["figures"]["clean"]
    assert holds_models(Cell(RunFolder(tmp_path), 0, 0), store)
    [after] = revoke_users(tmp_path, foresee_revocation(tmp_path, ["3"]), tmp_path / "without")
    left = Cell(RunFolder(tmp_path / "without"), 0, 0)
    assert after["training"]["committee"] == 2
    assert holds_models(left, ModelStore(left.store))
    assert len(open_run(tmp_path / "without").cell.keys) == left.code.n_models


def test_one_network_is_no_committee_and_a_federation_has_none():
    assert "committee" not in RECIPE.to_json()
    assert RunConfig().digest == RunConfig(training={"committee": None}).digest
    assert RunConfig(training={"committee": 2}).digest != RunConfig().digest
    with pytest.raises(InputError, match="committee: expected a positive whole number"):
        replace(RECIPE, committee=0)
    with pytest.raises(ValueError, match="one network a sub-model"):
        FederatedConfig(training={"committee": 2})
