"""Flower's own simulation runtime, through ``flwr run``, against the reference without any engine."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from codeward.federated import FederationFolder, answer, simulate_federation, train_federated, train_update
from codeward.federated._flower_simulation import QUIET


def same_bytes(first, second):
    return all(
        a[name].tobytes() == b[name].tobytes() and a[name].dtype == b[name].dtype
        for a, b in zip(first.models, second.models, strict=True)
        for name in a
    )


def test_the_simulation_equals_the_reference_bit_for_bit(tmp_path, users, plan, honest):
    result = simulate_federation(users, plan, tmp_path, cores=1)
    assert same_bytes(result, honest)
    assert result.keys == honest.keys
    assert result.rounds == honest.rounds


@pytest.mark.slow
def test_a_simulation_goes_on_after_the_last_finished_round(tmp_path, users, plan, honest):
    """Round 1 was trained with a liar who is honest now: only who trains no more than round 2 gets these bytes."""

    def lie(assignment, samples):
        if assignment.round == 2:
            return train_update(assignment, samples)
        mine = [{name: 2 * array for name, array in model.items()} for model in assignment.models.values()]
        return answer(assignment, len(samples), dict(zip(assignment.models, mine, strict=True)))

    def stop(assignment, samples):
        if assignment.round == 2:
            raise KeyboardInterrupt
        return train_update(assignment, samples)

    with pytest.raises(KeyboardInterrupt):
        train_federated(users, plan, {1: lie, 3: stop}, folder=FederationFolder(tmp_path / "federation" / "server"))
    result = simulate_federation(users, plan, tmp_path, cores=1)
    expected = train_federated(users, plan, {1: lie})
    assert expected.keys != honest.keys
    assert result.keys == expected.keys
    assert same_bytes(result, expected)
    assert len(result.rounds) == 2


def test_the_simulation_talks_to_nobody_and_installs_nothing():
    assert QUIET["FLWR_TELEMETRY_ENABLED"] == "0"
    assert QUIET["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert QUIET["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert QUIET["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert QUIET["RAY_USAGE_STATS_ENABLED"] == "0"
    # Else Ray would join the last cluster somebody started on this machine, and hand it the users' data.
    assert QUIET["RAY_ADDRESS"] == "local"


def test_a_server_that_cannot_start_is_said_plainly(tmp_path, users, plan, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(ValueError, match="flower-superlink is missing"):
        simulate_federation(users, plan, tmp_path / "work")


@pytest.mark.slow
def test_a_failing_client_app_ends_the_simulation_with_its_reason(tmp_path, users, plan):
    short = replace(plan, settings=replace(plan.settings, rounds=1))
    with pytest.raises(RuntimeError, match="no_such_module"):
        simulate_federation(users, short, tmp_path, client_app="no_such_module:app", cores=1)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["poison", "replacement", "split-targets"])
def test_attackers_in_the_simulation_equal_those_of_the_reference(tmp_path, behaviour):
    from codeward.experiments import run_federated
    from codeward.runs import FederatedConfig

    config = FederatedConfig.model_validate(
        {
            "dataset": "digits",
            "users": 4,
            "code": {"file": str(_code_file(tmp_path))},
            "attack": {"attackers": [1]},
            "training": {"architecture": "mlp"},
            "decoder": {"max_attackers": 1},
            "federated": {"rounds": 2, "local_epochs": 1, "behaviour": behaviour},
        }
    )
    (flower,) = run_federated(config, tmp_path / "flower", "flower")
    (reference,) = run_federated(config, tmp_path / "reference", "reference")
    assert flower["federated"]["keys"] == reference["federated"]["keys"]
    assert flower["figures"] == reference["figures"]


def _code_file(folder):
    file = folder / "code.json"
    file.write_text(json.dumps({"matrix": np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]]).tolist()}))
    return file


@pytest.mark.slow
def test_twelve_clients_on_two_cores_with_a_silent_user(tmp_path):
    """A user whose file is missing fails in every round; the others go on, and the record names it."""
    from codeward.codes import named_code
    from codeward.data import load_dataset, split_iid
    from codeward.federated import FederatedSettings, FederationPlan
    from codeward.training import PRESETS

    train = load_dataset("digits", None).train
    users = [train.take(part) for part in split_iid(train.labels, 12, np.random.default_rng(0))]
    users[5] = users[5].take(np.zeros(0, np.int64))
    settings = FederatedSettings(rounds=2, local_epochs=1, timeout=300)
    plan = FederationPlan(named_code("d"), PRESETS["digits"], settings, (1, 8, 8), 0)
    result = simulate_federation(users, plan, tmp_path, cores=2)
    reference = train_federated(users, plan, {5: lambda assignment, samples: None})
    assert result.keys == reference.keys
    assert {refusal.user for refusal in result.refusals} == {5}
    assert all(len(report.counted) == 11 for report in result.rounds)


@pytest.mark.slow
def test_a_simulation_in_which_nobody_counts_says_why_in_one_line(tmp_path, users, plan):
    empty = [samples.take(np.zeros(0, np.int64)) for samples in users]
    with pytest.raises(ValueError, match=r"^round 1: no reply of any user counted; 4 refusals, the first: user ann: "):
        simulate_federation(empty, plan, tmp_path, cores=1)
