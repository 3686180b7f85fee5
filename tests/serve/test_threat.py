"""Where users sent updates, only the arbitrary threat model is promised."""

import pytest

from codeward.certificates import Agreement, certify_agreement
from codeward.codes import inspect, named_code
from codeward.experiments import run_experiment, run_federated
from codeward.runs import find_cell, load_config, load_federated_config
from codeward.serve._guard import state_guarantee
from codeward.serve._opening import open_run


def test_a_federated_run_is_served_with_the_arbitrary_guarantee_and_without_certificates(tmp_path):
    overrides = ["code.name=c", "attack.attackers=[0]", "federated.rounds=1", "federated.local_epochs=1"]
    list(run_federated(load_federated_config(overrides=overrides), tmp_path, engine="reference"))
    assert find_cell(tmp_path, 0, 0).threat == "arbitrary"
    guard = open_run(tmp_path, 0, 0).guard
    assert guard.guarantee["threat"] == "arbitrary"
    assert guard.guarantee["k"] == inspect(named_code("c")).correct_arbitrary == 2
    assert guard.certify([(0,) * 15]) == ["null"]


def test_a_pooled_run_keeps_the_deterministic_one(tmp_path):
    overrides = ["code.name=d", "decoder.name=bayes", "attack.attackers=[0]", "training.epochs=1"]
    list(run_experiment(load_config(overrides=overrides), tmp_path))
    assert find_cell(tmp_path, 0, 0).threat == "deterministic"
    # d promises two attackers; what is said of the decoder is what error-free attacks on the served one give.
    guard = open_run(tmp_path, 0, 0).guard
    kept = certify_agreement(guard.code, guard.decoder, 10, max_attackers=2)
    assert guard.guarantee["k"] == 2
    assert kept.n_attackers < 2
    assert guard.guarantee["text"] == state_guarantee(guard.inspection, "deterministic", kept)["text"]


@pytest.mark.parametrize(
    ("kept", "searched", "words"),
    [
        (0, 2, "does not always find it, even with one attacker"),
        (1, 1, "by one user as long as no other model errs; of more nothing is proved."),
        (1, 2, "by one user as long as no other model errs, and not for all attacks by more."),
        (2, 2, "by up to 2 users as long as no other model errs."),
    ],
)
def test_how_far_the_served_decoder_finds_what_the_votes_determine_is_said(kept, searched, words):
    stated = state_guarantee(inspect(named_code("d")), "deterministic", Agreement(kept, searched, None, None))
    assert words in stated["text"]
    assert "served here" not in state_guarantee(inspect(named_code("d")))["text"]


@pytest.mark.parametrize(("name", "k"), [("c", 2), ("d", 1), ("g", 0), ("a", 5)])
def test_the_arbitrary_guarantee_names_its_k_and_claims_nothing_for_the_bayes_decoder(name, k):
    stated = state_guarantee(inspect(named_code(name)), "arbitrary")
    assert (stated["threat"], stated["k"]) == ("arbitrary", k)
    assert ("None" in stated["text"]) == (k == 0)
    assert ("not guaranteed" in stated["text"]) == (k > 0)
