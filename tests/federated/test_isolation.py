"""Whatever a user sends, every model outside its column is bit-identical to a run without the attack."""

import numpy as np
import pytest

from codeward.attacks import AttackGroup, draw_patch
from codeward.experiments import (
    MaliciousUpdate,
    choose_targets,
    load_attacker,
    make_attackers,
    save_attackers,
)
from codeward.federated import Parcel, Reply, train_federated, train_model, train_update
from codeward.runs import FederatedSection

ATTACKER = 0
#: Rows of the code without and with the attacker.
CLEAN, HIT = (1, 3), (0, 2)


def edit_arrays(edit):
    """Return an update that trains honestly and then edits every array it sends."""

    def update(assignment, samples):
        reply = train_update(assignment, samples)
        models = {
            model: {name: edit(parcel.open()) for name, parcel in parts.items()}
            for model, parts in reply.models.items()
        }
        return Reply(reply.envelope, models)

    return update


def edit_envelope(**changes):
    def update(assignment, samples):
        reply = train_update(assignment, samples)
        return Reply(dict(reply.envelope) | changes, reply.models)

    return update


def edit_models(edit):
    def update(assignment, samples):
        reply = train_update(assignment, samples)
        return Reply(reply.envelope, edit({model: dict(parts) for model, parts in reply.models.items()}))

    return update


def fill(value):
    return edit_arrays(lambda array: Parcel.wrap(np.full_like(array, value)))


def never_open():
    raise AssertionError("opened")


class Replay:
    """Sends its first reply again in every round."""

    def __init__(self):
        self.first = None

    def __call__(self, assignment, samples):
        self.first = self.first or train_update(assignment, samples)
        return self.first


def drop_one(models):
    return {model: dict(list(parts.items())[1:]) for model, parts in models.items()}


def add_one(models):
    return {model: parts | {"extra": next(iter(parts.values()))} for model, parts in models.items()}


def reach_out(models):
    return models | {str(model): next(iter(models.values())) for model in range(-1, 6) if str(model) not in models}


REFUSED = {
    "NaN": lambda: fill(np.nan),
    "infinity": lambda: fill(np.inf),
    "wrong shapes": lambda: edit_arrays(lambda array: Parcel.wrap(array.reshape(-1)[:-1])),
    "wrong types": lambda: edit_arrays(lambda array: Parcel.wrap(array.astype(np.float64))),
    "missing arrays": lambda: edit_models(drop_one),
    "extra arrays": lambda: edit_models(add_one),
    "no models": lambda: edit_models(lambda models: {}),
    "a billion samples": lambda: edit_envelope(samples=10**9),
    "no samples": lambda: edit_envelope(samples=0),
    "samples as text": lambda: edit_envelope(samples="40"),
    "10 GB arrays": lambda: edit_arrays(lambda array: Parcel("float32", array.shape, 10**10, never_open)),
    "10 GB shapes": lambda: edit_arrays(lambda array: Parcel("float32", (2_500_000_000,), 10**10, never_open)),
    "another user's name": lambda: edit_envelope(user="bob"),
    "another user's number": lambda: edit_envelope(user=1),
    "a later round": lambda: edit_envelope(round=7),
    "a made-up nonce": lambda: edit_envelope(nonce="f" * 32),
}


def assert_same(first, second, models):
    for model in models:
        assert first.keys[model] == second.keys[model]
        for name, array in first.models[model].items():
            assert array.tobytes() == second.models[model][name].tobytes()


def differs(first, second, model):
    return any(array.tobytes() != second.models[model][name].tobytes() for name, array in first.models[model].items())


@pytest.fixture(scope="module")
def without(users, plan):
    """The run in which the attacker stays silent."""
    return train_federated(users, plan, {ATTACKER: lambda assignment, samples: None})


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_refused_reply_is_as_good_as_none_and_its_user_is_named(name, users, plan, honest, without):
    attacked = train_federated(users, plan, {ATTACKER: REFUSED[name]()})
    assert_same(attacked, honest, CLEAN)
    assert_same(attacked, without, range(plan.code.n_models))
    assert {refusal.round for refusal in attacked.refusals} == {1, 2}
    assert {refusal.user for refusal in attacked.refusals} == {ATTACKER}


def test_a_replayed_reply_counts_once(users, plan, honest):
    attacked = train_federated(users, plan, {ATTACKER: Replay()})
    assert_same(attacked, honest, CLEAN)
    assert [refusal.round for refusal in attacked.refusals] == [2]
    assert attacked.rounds[0].counted[ATTACKER] == HIT


def test_models_outside_the_column_are_dropped_and_the_rest_counts(users, plan, honest):
    attacked = train_federated(users, plan, {ATTACKER: edit_models(reach_out)})
    assert_same(attacked, honest, range(plan.code.n_models))
    dropped = [refusal.reason for refusal in attacked.refusals if "not a model of its column" in refusal.reason]
    assert len(dropped) == 2 * 5


def test_what_a_user_sends_for_one_model_never_changes_another(users, plan, honest):
    def poisoned(models):
        models["0"] = {name: Parcel.wrap(np.full_like(part.open(), np.nan)) for name, part in models["0"].items()}
        return models

    attacked = train_federated(users, plan, {ATTACKER: edit_models(poisoned)})
    assert_same(attacked, honest, (1, 2, 3))
    assert differs(attacked, honest, 0)


def test_a_model_driven_to_extremes_makes_honest_replies_for_it_fail_and_for_no_other(users, plan, honest):
    """A refusal names the sender, not the guilty: after such an update, honest training of the hit model diverges."""
    attacked = train_federated(users, plan, {ATTACKER: fill(3e38)})
    assert_same(attacked, honest, CLEAN)
    assert {(refusal.round, refusal.model) for refusal in attacked.refusals if refusal.user != ATTACKER} == {
        (2, 0),
        (2, 2),
    }


@pytest.fixture
def group():
    trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    return AttackGroup((ATTACKER,), 3, "patch", trigger, 0.5)


@pytest.mark.parametrize("behaviour", ["replacement", "split-targets"])
def test_an_attack_that_passes_every_check_reaches_its_own_column_only(behaviour, users, plan, honest, group):
    section = FederatedSection(behaviour=behaviour)
    attackers = make_attackers(section, [group], plan.code, users, 10, seed=[1])
    attacked = train_federated(users, plan, attackers)
    assert not attacked.refusals
    assert_same(attacked, honest, CLEAN)
    assert all(differs(attacked, honest, model) for model in HIT)


def test_data_poisoning_reaches_its_own_column_only(users, plan, honest, group):
    from codeward.attacks import poison_users

    assert make_attackers(FederatedSection(), [group], plan.code, users, 10, seed=[1]) == {}
    attacked = train_federated(poison_users(users, [group], [1]), plan)
    assert_same(attacked, honest, CLEAN)
    assert all(differs(attacked, honest, model) for model in HIT)


def test_a_replacing_update_moves_the_average_to_the_attackers_model(users, plan, group):
    from codeward.federated import Federation

    federation = Federation(plan)
    assignments = federation.assign()
    # The other user of model 0 sends it back as it was; both hold the same weight.
    boost = {0: 2.0, 2: 2.0}
    federation.accept(0, MaliciousUpdate(boosts=boost, claim=40)(assignments[0], users[0]))
    honest = train_update(assignments[1], users[1])
    still = {"0": {name: Parcel.wrap(array) for name, array in assignments[1].models[0].items()}}
    federation.accept(1, Reply(honest.envelope, dict(honest.models) | still))
    federation.close()
    wanted = train_model(assignments[0], 0, users[0])
    for name, array in federation.models[0].items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)


def test_split_targets_give_every_sub_model_of_the_column_its_own(users, plan, group):
    (update,) = make_attackers(FederatedSection(behaviour="split-targets"), [group], plan.code, users, 10, [1]).values()
    targets = choose_targets(group, plan.code.n_models, 10)
    assert len({targets[model] for model in HIT}) == len(HIT)
    assert set(update.samples) == set(HIT)
    for model, samples in update.samples.items():
        stamped = samples.overlay_ids >= 0
        assert stamped.sum() == 12
        assert set(samples.labels[stamped]) == {targets[model]}
    assert dict(update.boosts) == {0: 2.0, 2: 2.0}


def test_an_attacker_read_from_files_is_the_one_that_was_written(tmp_path, users, plan, group, assignment):
    updates = make_attackers(FederatedSection(behaviour="split-targets"), [group], plan.code, users, 10, [1])
    save_attackers(tmp_path, updates)
    assert load_attacker(tmp_path, 1) is None
    again = load_attacker(tmp_path, ATTACKER)
    first, second = updates[ATTACKER](assignment, users[0]), again(assignment, users[0])
    assert first.envelope == second.envelope
    for model, parts in first.models.items():
        for name, parcel in parts.items():
            assert parcel.open().tobytes() == second.models[model][name].open().tobytes()
