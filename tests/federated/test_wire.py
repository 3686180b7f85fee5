from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from codeward.codes import Code
from codeward.data import Samples
from codeward.federated import Parcel, Reply, answer, check_reply, train_federated, train_update
from codeward.federated._flower_rounds import pack_assignment, pack_reply, unpack_assignment, unpack_reply
from codeward.training import ARCHITECTURES


def same(first, second):
    return {name: (array.tobytes(), array.dtype, array.shape) for name, array in first.items()} == {
        name: (array.tobytes(), array.dtype, array.shape) for name, array in second.items()
    }


def test_an_assignment_survives_the_wire(assignment):
    again = unpack_assignment(pack_assignment(assignment))
    for name in ("user", "round", "nonce", "shape", "training", "seeds"):
        assert getattr(again, name) == getattr(assignment, name)
    assert set(again.models) == set(assignment.models)
    assert all(same(again.models[model], arrays) for model, arrays in assignment.models.items())


def test_a_reply_survives_the_wire(assignment):
    reply = answer(assignment, 24, assignment.models)
    checked = check_reply(unpack_reply(pack_reply(reply)), assignment, 1000)
    assert not checked.refusals
    assert all(same(checked.models[model], arrays) for model, arrays in assignment.models.items())


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_architecture_trains_over_the_wire_as_it_does_without(architecture, users, plan):
    """Real local training on four images a user, through Flower's records and the server's checks, two rounds."""
    shape = (1, 28, 28) if architecture == "mnist-cnn" else (1, 8, 8)
    rng = np.random.default_rng(0)
    own = [Samples(rng.integers(0, 256, (4, *shape), np.uint8), np.arange(4)) for _ in range(2)]
    other = replace(
        plan, code=Code([[1, 1], [0, 1]]), training=replace(plan.training, architecture=architecture), shape=shape
    )

    def carried(assignment, samples):
        arrived = unpack_assignment(pack_assignment(assignment))
        return unpack_reply(pack_reply(train_update(arrived, samples)))

    result = train_federated(own, other, honest=carried)
    assert not result.refusals
    assert all(set(report.counted) == {0, 1} for report in result.rounds)
    reference = train_federated(own, other)
    assert result.keys == reference.keys
    assert all(same(first, second) for first, second in zip(result.models, reference.models, strict=True))


def test_an_array_without_dimensions_keeps_its_form_on_the_wire(assignment):
    models = {model: {"steps": np.array(3), "turned": np.ones((2, 3)).T} for model in assignment.models}
    bare = replace(assignment, models=models)
    assert all(same(arrays, models[0]) for arrays in unpack_assignment(pack_assignment(bare)).models.values())
    checked = check_reply(unpack_reply(pack_reply(answer(bare, 24, models))), bare, 1000)
    assert not checked.refusals
    assert checked.models[0]["steps"].shape == ()


@pytest.mark.parametrize("lost", ["assignment", "model-0"])
def test_a_client_refuses_a_message_that_is_no_assignment(assignment, lost):
    content = pack_assignment(assignment)
    del content[lost]
    with pytest.raises(ValueError, match="not an assignment"):
        unpack_assignment(content)


def judge(assignment, content):
    checked = check_reply(unpack_reply(content), assignment, 1000)
    return set(checked.models), [refusal.reason for refusal in checked.refusals]


def content_with(assignment, array):
    content = pack_reply(answer(assignment, 24, assignment.models))
    name = next(iter(assignment.models[0]))
    arrays = dict(content["model-0"])
    arrays[name] = array
    content["model-0"] = ArrayRecord(arrays)
    return content


def npy(array, **options):
    out = BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def lying_header(shape):
    out = BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return out.getvalue() + bytes(64)


def test_arrays_that_lie_about_themselves_are_refused_without_being_allocated(assignment):
    template = next(iter(assignment.models[0].values()))
    shape, kind = template.shape, "numpy.ndarray"
    pickled = np.empty(shape, object)
    liars = {
        "header of 10 TB": lying_header((2_500_000_000_000,)),
        "other values": npy(template.astype(np.float64)),
        "other shape": npy(template[:1]),
        "pickle": npy(pickled, allow_pickle=True)[:2000],
        "short": npy(template)[:-4],
        "empty": b"",
        "noise": b"\x93NUMPY\x09\x00" + bytes(100),
    }
    for data in liars.values():
        models, reasons = judge(assignment, content_with(assignment, Array("float32", shape, kind, data)))
        assert models == {2}
        assert len(reasons) == 1
        assert "cannot be decoded" in reasons[0] or "bytes" in reasons[0]


def test_more_bytes_than_the_model_has_are_refused_unopened(assignment):
    template = next(iter(assignment.models[0].values()))
    data = npy(template) + bytes(template.nbytes + 8192)
    models, reasons = judge(
        assignment, content_with(assignment, Array("float32", template.shape, "numpy.ndarray", data))
    )
    assert models == {2}
    assert "not opened" in reasons[0]


def test_records_that_have_no_place_in_a_reply_are_refused(assignment):
    good = pack_reply(answer(assignment, 24, assignment.models))
    models, reasons = judge(assignment, RecordDict())
    assert (models, len(reasons)) == (set(), 1)
    assert "envelope without round, nonce, samples" in reasons[0]
    good["metrics"] = MetricRecord({"loss": 0.1})
    good["config"] = ConfigRecord({"user": "bob"})
    good["model-1"] = ArrayRecord()
    good["model-"] = ArrayRecord()
    models, reasons = judge(assignment, good)
    assert models == {0, 2}
    assert len(reasons) == 4


def test_two_names_for_one_model_do_not_confuse_the_server(assignment):
    content = pack_reply(answer(assignment, 24, assignment.models))
    # "0" and "model-0" both mean model 0: whichever is taken, it is an array of the right form or refused.
    content["0"] = ArrayRecord({"x": Array(np.zeros(3))})
    models, reasons = judge(assignment, content)
    assert models <= {0, 2}
    assert len(reasons) == 1


def test_a_dishonest_reply_keeps_its_form_on_the_wire(assignment):
    good = answer(assignment, 24, assignment.models)
    parts = {name: Parcel.wrap(np.full(parcel.shape, np.nan, np.float32)) for name, parcel in good.models["0"].items()}
    content = pack_reply(Reply(dict(good.envelope) | {"user": "ann"}, dict(good.models) | {"0": parts}))
    models, reasons = judge(assignment, content)
    assert models == set()
    assert "says it is user" in reasons[0]
