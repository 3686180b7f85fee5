import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward.federated import Federation, Parcel, Reply, answer, check_reply


def honest_reply(assignment, **envelope):
    good = answer(assignment, 24, assignment.models)
    return Reply(dict(good.envelope) | envelope, good.models)


def change(reply, model, name, parcel):
    parts = {key: dict(value) for key, value in reply.models.items()}
    parts[str(model)][name] = parcel
    return Reply(reply.envelope, parts)


def test_an_honest_reply_passes_whole(assignment):
    checked = check_reply(honest_reply(assignment), assignment, 1000)
    assert checked.samples == 24
    assert checked.refusals == ()
    assert set(checked.models) == set(assignment.models)


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        ({"round": 0}, "old reply, or a replay"),
        ({"round": 2}, "belongs to round '2', now is round 1"),
        ({"round": True}, "belongs to round"),
        ({"round": "1"}, "belongs to round"),
        ({"nonce": "0" * 32}, "another nonce"),
        ({"nonce": None}, "another nonce"),
        ({"samples": 0}, "claims '0' samples"),
        ({"samples": -3}, "claims"),
        ({"samples": 10**9}, "claims '1000000000' samples"),
        ({"samples": 2**70}, "claims"),
        ({"samples": 10**6000}, "claims an unprintable int samples"),
        ({"user": 10**6000}, "says it is user an unprintable int"),
        ({"samples": 5.5}, "claims"),
        ({"samples": float("nan")}, "claims"),
        ({"samples": True}, "claims"),
        ({"user": "bob"}, "says it is user 'bob'"),
        ({"user": 1}, "says it is user '1'"),
        ({"weight": 3.0}, "unknown keys"),
    ],
)
def test_a_defect_of_the_envelope_refuses_the_whole_reply(assignment, envelope, reason):
    names = ("ann", "bob", "cleo", "dan")
    checked = check_reply(honest_reply(assignment, **envelope), assignment, 1_000_000, names)
    assert not checked.models
    assert len(checked.refusals) == 1
    refusal = checked.refusals[0]
    assert reason in refusal.reason
    assert (refusal.user, refusal.model) == (0, None)


@pytest.mark.parametrize("lost", ["round", "nonce", "samples"])
def test_an_envelope_with_a_gap_is_refused(assignment, lost):
    good = honest_reply(assignment)
    envelope = {key: value for key, value in good.envelope.items() if key != lost}
    checked = check_reply(Reply(envelope, good.models), assignment, 1000)
    assert not checked.models
    assert lost in checked.refusals[0].reason


def test_a_user_may_say_its_own_name(assignment):
    for claim in ("ann", "0", 0):
        reply = honest_reply(assignment, user=claim)
        assert not check_reply(reply, assignment, 1000, ("ann", "bob", "cleo", "dan")).refusals


def bad_parcels():
    def nan(array):
        broken = array.copy()
        broken.flat[-1] = np.nan
        return Parcel.wrap(broken)

    def infinite(array):
        broken = array.copy()
        broken.flat[0] = -np.inf
        return Parcel.wrap(broken)

    def explode():
        raise AssertionError("a refused parcel was opened")

    return {
        "NaN or infinite": nan,
        "NaN or infinite values": infinite,
        "shape": lambda array: Parcel.wrap(array[..., :-1]),
        "shape ": lambda array: Parcel.wrap(array[None]),
        "type 'float64'": lambda array: Parcel.wrap(array.astype(np.float64)),
        "type 'int64'": lambda array: Parcel.wrap(array.astype(np.int64)),
        "type 'object'": lambda array: Parcel("object", array.shape, array.nbytes, explode),
        "10,000,000,000 bytes": lambda array: Parcel(str(array.dtype), array.shape, 10**10, explode),
        "shape '(50000, 50000)'": lambda array: Parcel(str(array.dtype), (50_000, 50_000), 10**10, explode),
        "cannot be decoded": lambda array: Parcel(str(array.dtype), array.shape, 8, lambda: 1 / 0),
        "not what it declares": lambda array: Parcel(
            str(array.dtype), array.shape, 8, lambda: array.astype(np.float64)
        ),
        "not what it declares to": lambda array: Parcel(str(array.dtype), array.shape, 8, lambda: array[..., :1]),
        "not what it declares to be": lambda array: Parcel(str(array.dtype), array.shape, 8, lambda: "weights"),
    }


@pytest.mark.parametrize("reason", list(bad_parcels()))
def test_a_bad_array_refuses_its_model_and_no_other(assignment, reason):
    name = next(iter(assignment.models[0]))
    parcel = bad_parcels()[reason](assignment.models[0][name])
    checked = check_reply(change(honest_reply(assignment), 0, name, parcel), assignment, 1000)
    assert set(checked.models) == {2}
    (refusal,) = checked.refusals
    assert (refusal.user, refusal.model) == (0, 0)
    assert reason.strip() in refusal.reason


def test_missing_and_extra_arrays_refuse_their_model(assignment):
    good = honest_reply(assignment)
    parts = {key: dict(value) for key, value in good.models.items()}
    parts["0"].pop(next(iter(parts["0"])))
    parts["2"]["more"] = next(iter(parts["2"].values()))
    checked = check_reply(Reply(good.envelope, parts), assignment, 1000)
    assert not checked.models
    assert [refusal.model for refusal in checked.refusals] == [0, 2]


def test_a_model_outside_the_column_is_dropped_unopened_and_logged(assignment):
    def explode():
        raise AssertionError("opened")

    good = honest_reply(assignment)
    foreign = {name: Parcel("float32", array.shape, 8, explode) for name, array in assignment.models[0].items()}
    checked = check_reply(Reply(good.envelope, dict(good.models) | {"1": foreign, "3": {}}), assignment, 1000)
    assert set(checked.models) == {0, 2}
    assert ["not a model of its column" in refusal.reason for refusal in checked.refusals] == [True, True]


def test_what_a_client_writes_cannot_break_or_flood_the_log(assignment):
    good = honest_reply(assignment)
    strange = {f"model\n{'x' * 500}{number}": {} for number in range(5000)}
    checked = check_reply(Reply(good.envelope, dict(good.models) | strange), assignment, 1000)
    assert set(checked.models) == {0, 2}
    assert len(checked.refusals) <= 21
    assert all("\n" not in refusal.reason and len(refusal.reason) < 200 for refusal in checked.refusals)
    assert "4980 more" in checked.refusals[-1].reason


@given(
    envelope=st.dictionaries(st.sampled_from(["round", "nonce", "samples", "user", "x"]), st.integers() | st.text()),
    keys=st.lists(st.sampled_from(["0", "1", "2", "-1", "", "00", "model"]), max_size=5),
)
def test_no_reply_raises_or_reaches_a_model_outside_the_column(envelope, keys):
    # Made here: hypothesis wants fixtures that do not change between examples.
    assignment = _tiny_assignment()
    reply = Reply(envelope, {key: {} for key in keys})
    checked = check_reply(reply, assignment, 10)
    assert set(checked.models) <= set(assignment.models)
    assert checked.refusals


def _tiny_assignment():
    from codeward.federated import Assignment
    from codeward.training import TrainingSettings

    arrays = {"w": np.zeros(2, np.float32)}
    return Assignment(0, 1, "n", (1, 8, 8), TrainingSettings(), {0: 1, 2: 1}, {0: arrays, 2: arrays})


def test_refusals_are_log_lines_that_name_the_user(plan, caplog):
    federation = Federation(plan)
    assignments = federation.assign()
    assignment = assignments[1]
    with caplog.at_level(logging.WARNING, "codeward.federated"):
        federation.accept(1, honest_reply(assignment, samples=10**9))
        federation.accept(1, honest_reply(assignment))
        federation.fail(2, "boom\nline")
        federation.accept(3, honest_reply(assignments[3]))
        report = federation.close()
    lines = [record.getMessage() for record in caplog.records]
    assert "refused from user bob" in lines[0]
    assert "a second reply in one round" in lines[1]
    assert "refused from user cleo: its client failed: 'boom\\nline'" in lines[2]
    assert "no reply counted for sub-model 0" in lines[3]
    assert "no reply in time from user ann" in lines[4]
    assert report.silent == (0,)
    assert [refusal.user for refusal in report.refusals] == [1, 1, 2]
    assert set(report.counted) == {3}


def test_a_reply_of_an_earlier_round_is_refused_in_a_later_one(plan):
    federation = Federation(plan)
    first = federation.assign()
    federation.accept(3, honest_reply(first[3]))
    federation.close()
    second = federation.assign()
    old, new = first[0], second[0]
    federation.accept(0, honest_reply(old))
    federation.accept(3, honest_reply(second[3]))
    assert "old reply, or a replay" in federation.close().refusals[0].reason
    # Even with the round corrected the nonce gives it away.
    assert "nonce" in check_reply(honest_reply(old, round=2), new, 1000).refusals[0].reason


def test_another_users_reply_is_refused(plan):
    federation = Federation(plan)
    assignments = federation.assign()
    federation.accept(0, answer(assignments[1], 40, assignments[1].models))
    federation.accept(3, honest_reply(assignments[3]))
    report = federation.close()
    assert "nonce" in report.refusals[0].reason
    assert set(report.counted) == {3}


def test_rounds_open_and_close_in_order(plan):
    federation = Federation(replace(plan, settings=replace(plan.settings, rounds=1)))
    with pytest.raises(ValueError, match="no round is open"):
        federation.accept(0, Reply({}, {}))
    assignments = federation.assign()
    with pytest.raises(ValueError, match="still open"):
        federation.assign()
    federation.accept(0, honest_reply(assignments[0]))
    federation.close()
    with pytest.raises(ValueError, match="rounds are done"):
        federation.assign()
