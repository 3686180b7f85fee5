"""Where users sent updates, only the arbitrary threat model is promised."""

import pytest

from codeward.codes import inspect, named_code
from codeward.experiments import load_config, load_served, run_experiment
from codeward.experiments._federated_config import load_federated_config
from codeward.experiments._federation import run_federated
from codeward.serve._guard import state_guarantee
from codeward.serve._opening import open_run


def test_a_federated_run_is_served_with_the_arbitrary_guarantee_and_without_certificates(tmp_path):
    overrides = ["code.name=c", "attack.attackers=[0]", "federated.rounds=1", "federated.local_epochs=1"]
    list(run_federated(load_federated_config(overrides=overrides), tmp_path, engine="reference"))
    assert load_served(tmp_path, 0, 0).threat == "arbitrary"
    guard = open_run(tmp_path, 0, 0).guard
    assert guard.guarantee["threat"] == "arbitrary"
    assert guard.guarantee["k"] == inspect(named_code("c")).correct_arbitrary == 2
    assert guard.certify([(0,) * 15]) == ["null"]


def test_a_pooled_run_keeps_the_deterministic_one(tmp_path):
    overrides = ["code.name=d", "attack.attackers=[0]", "training.epochs=1"]
    list(run_experiment(load_config(overrides=overrides), tmp_path))
    assert load_served(tmp_path, 0, 0).threat == "deterministic"


@pytest.mark.parametrize(("name", "k"), [("c", 2), ("d", 1), ("g", 0), ("a", 5)])
def test_the_arbitrary_guarantee_names_its_k_and_claims_nothing_for_the_bayes_decoder(name, k):
    stated = state_guarantee(inspect(named_code(name)), "arbitrary")
    assert (stated["threat"], stated["k"]) == ("arbitrary", k)
    assert ("None" in stated["text"]) == (k == 0)
    assert ("not guaranteed" in stated["text"]) == (k > 0)
