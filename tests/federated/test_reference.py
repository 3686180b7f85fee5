from dataclasses import replace

import numpy as np
import pytest
import torch

from codeward.federated import (
    FederatedSettings,
    Federation,
    FederationFolder,
    Reply,
    load_samples,
    save_samples,
    train_federated,
    train_model,
    train_update,
)


def test_a_round_is_the_weighted_average_of_what_the_rows_users_trained(users, plan):
    """The slow, obvious twin: FedAvg as printed, model by model."""
    federation = Federation(plan)
    assignments = federation.assign()
    for user, assignment in assignments.items():
        federation.accept(user, train_update(assignment, users[user]))
    federation.close()
    for model, row in enumerate(plan.code.matrix):
        own = np.flatnonzero(row)
        sizes = np.array([len(users[user]) for user in own], np.float64)
        trained = [train_model(assignments[user], model, users[user]) for user in own]
        for name, array in federation.models[model].items():
            mean = sum(size * one[name].astype(np.float64) for size, one in zip(sizes, trained, strict=True))
            np.testing.assert_allclose(array, mean / sizes.sum(), rtol=1e-6, atol=1e-7)


def test_a_sample_count_weighs_no_more_than_the_cap(users, plan):
    capped = replace(plan, settings=replace(plan.settings, rounds=1, sample_cap=1))
    federation = Federation(capped)
    assignments = federation.assign()
    for user, assignment in assignments.items():
        federation.accept(user, train_update(assignment, users[user]))
    report = federation.close()
    assert set(report.samples.values()) == {1}
    trained = [train_model(assignments[user], 0, users[user]) for user in (0, 1)]
    for name, array in federation.models[0].items():
        np.testing.assert_allclose(array, (trained[0][name] + trained[1][name]) / 2, rtol=1e-5, atol=1e-6)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(users, plan, honest):
    again = train_federated(users, plan)
    assert again.keys == honest.keys
    other = train_federated(users, replace(plan, seed=6))
    assert not set(other.keys) & set(honest.keys)


def test_the_order_of_replies_does_not_matter(users, plan, honest):
    federation = Federation(plan)
    for _ in range(plan.settings.rounds):
        assignments = federation.assign()
        for user in (2, 0, 3, 1):
            federation.accept(user, train_update(assignments[user], users[user]))
        federation.close()
    assert federation.result().keys == honest.keys
    assert federation.result().rounds == honest.rounds


def test_threads_of_the_caller_do_not_change_the_bytes(users, plan, honest):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert train_federated(users, plan).keys == honest.keys
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def never(assignment, samples):
    return None


def late(assignment, samples):
    return None if assignment.round == 1 else train_update(assignment, samples)


def test_a_model_without_any_reply_in_a_round_keeps_its_weights_and_is_named(users, plan, caplog):
    federation = Federation(plan)
    start = list(federation.models)
    for user, assignment in federation.assign().items():
        if user in (2, 3):
            federation.accept(user, train_update(assignment, users[user]))
    report = federation.close()
    for name, array in federation.models[0].items():
        assert array.tobytes() == start[0][name].tobytes()
    assert any(federation.models[1][name].tobytes() != array.tobytes() for name, array in start[1].items())
    assert (report.silent, report.untrained) == ((0, 1), (0,))
    assert "round 1: no reply counted for sub-model 0" in caplog.text
    result = train_federated(users, plan, dict.fromkeys((0, 1), late))
    assert [report.untrained for report in result.rounds] == [(0,), ()]


def test_a_model_that_nobody_ever_trained_is_an_error(users, plan):
    with pytest.raises(ValueError, match=r"sub-model 0 was trained by nobody in any of 2 rounds; nobody answered"):
        train_federated(users, plan, dict.fromkeys((0, 1), never))

    def lie(assignment, samples):
        return Reply({}, {})

    with pytest.raises(ValueError, match=r"sub-model 0 was .* the first: user ann: envelope without round"):
        train_federated(users, plan, dict.fromkeys((0, 1), lie))


def test_a_round_that_counts_nobody_is_an_error_that_says_why(users, plan):
    with pytest.raises(ValueError, match=r"^round 1: no reply of any user counted; nobody answered within 600 s"):
        train_federated(users, plan, dict.fromkeys(range(4), never))

    def vanish(assignment, samples):
        return train_update(assignment, samples) if assignment.round == 1 else Reply({}, {})

    with pytest.raises(ValueError, match=r"^round 2: no reply of any user counted; 4 refusals, the first: user ann: "):
        train_federated(users, plan, dict.fromkeys(range(4), vanish))


def test_training_learns(users, plan):
    from codeward.data import render

    longer = replace(plan, settings=FederatedSettings(rounds=8, local_epochs=4))
    models = train_federated(users, longer).models
    pooled = [users[user] for user in (0, 1)]
    images = np.concatenate([render(samples) for samples in pooled])
    labels = np.concatenate([samples.labels for samples in pooled])
    weights = models[0]
    hidden = ((images - 0.305) / 0.376).reshape(len(images), -1) @ weights["1.weight"].T + weights["1.bias"]
    logits = np.maximum(hidden, 0) @ weights["3.weight"].T + weights["3.bias"]
    assert (logits.argmax(axis=1) == labels).mean() > 0.9


NETWORK = """
from torch import nn

def build(shape, n_classes):
    return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
                         nn.Linear(4 * 36, n_classes))
"""


def test_networks_with_dropout_and_batch_norm_federate_too(users, plan, tmp_path, monkeypatch):
    (tmp_path / "federated_test_network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    other = replace(plan, training=replace(plan.training, architecture="federated_test_network:build"))
    result = train_federated(users, other)
    assert result.keys == train_federated(users, other).keys
    assert not result.refusals
    steps = result.models[0]["1.num_batches_tracked"]
    assert steps.dtype == np.int64
    # 24 and 40 samples in batches of 16 are 2 and 3 steps a round; weighted by samples and rounded: 3, then 6.
    assert steps == 6


def test_a_folder_keeps_plan_and_result_and_notices_damage(tmp_path, plan, honest):
    folder = FederationFolder(tmp_path)
    folder.save_plan(plan)
    again = folder.load_plan()
    assert (again.code, again.training, again.settings, again.shape, again.seed) == (
        plan.code, plan.training, plan.settings, plan.shape, plan.seed,
    )  # fmt: skip
    folder.save_result(honest)
    loaded = folder.load_result()
    assert loaded.keys == honest.keys
    assert loaded.rounds == honest.rounds
    for first, second in zip(loaded.models, honest.models, strict=True):
        assert {name: array.tobytes() for name, array in first.items()} == {
            name: array.tobytes() for name, array in second.items()
        }
    file = tmp_path / "models" / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="model-2"):
        folder.load_result()


def test_a_users_file_holds_its_samples_with_overlays(tmp_path, users):
    from codeward.attacks import draw_patch, stamp

    rng = np.random.default_rng(0)
    stamped = stamp(users[0], np.array([1, 4]), draw_patch((1, 8, 8), "corner", rng), rng)
    for samples in (users[0], stamped):
        save_samples(tmp_path / "user.npz", samples)
        assert load_samples(tmp_path / "user.npz").digest() == samples.digest()
    (tmp_path / "user.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"expected an \.npz"):
        load_samples(tmp_path / "user.npz")
    np.savez(tmp_path / "odd.npz", images=np.zeros((3, 8, 8), np.uint8), labels=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"odd\.npz: images"):
        load_samples(tmp_path / "odd.npz")


def test_what_users_are_sent_cannot_be_written_into(assignment):
    for arrays in assignment.models.values():
        for array in arrays.values():
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0


def test_the_wrong_number_of_users_is_refused(users, plan):
    with pytest.raises(ValueError, match="3 users' data"):
        train_federated(users[:3], plan)
