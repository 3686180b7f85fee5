"""Who speaks for whom: on Flower's own link state, with members that lie about it."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import load_dataset
from codeward.federated import OneRound, OneRoundPlan, load_one_round, make_statistics, save_samples
from codeward.federated.consortium import KeyBinding, Member, Roster, SignedGrid, bind_nodes, sign_reply
from codeward.federated.consortium._roster import make_key, private_text, public_line, write_private
from codeward.federated.consortium._signed_grid import CHALLENGE, SIGNATURE, check_content, sign_content

NAMES = ("alice", "bob", "carol")
KEYS = {name: make_key() for name in (*NAMES, "mallory")}
ROSTER = Roster(
    tuple(Member(user, name, public_line(KEYS[name].public_key())) for user, name in enumerate(NAMES)), 3, "digest"
)


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def update(value: float) -> RecordDict:
    weights = ArrayRecord({"weight": Array(np.full((2, 3), value, np.float32))})
    return RecordDict({"model-0": weights, "reply": ConfigRecord({"round": 1, "samples": 9})})


@dataclass
class Link:
    """Flower's link state, in memory: three members and one registered stranger, all online."""

    grid: InMemoryGrid
    nodes: dict[str, int]

    def ask(self, signed: SignedGrid, name: str) -> tuple[str, Message]:
        """Send a question to a user; return its name and the message as the user's node gets it."""
        (sent,) = signed.push_messages([Message(update(0.0), self.nodes[name], "train")])
        (question,) = self.grid.state.get_message_ins(self.nodes[name], limit=1)
        return sent, question

    def reply(self, question: Message, content: RecordDict) -> str | None:
        """Store a reply as the SuperLink does for whoever sends it: the sender is read from the message itself."""
        reply = Message(content, reply_to=question)
        reply.metadata.__dict__["_message_id"] = f"reply {np.random.default_rng().integers(2**62)}"
        return self.grid.state.store_message_res(reply)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    state = factory.state()
    nodes = {}
    for name, key in KEYS.items():
        nodes[name] = state.create_node("owner", "owner", pem(key), 30.0)
        assert state.activate_node(nodes[name], 30.0)
    run = state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
    grid = InMemoryGrid(factory)
    grid.set_run(state.get_run_info(run_ids=[run])[0])
    for name, value in (("_run_id", run), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    return Link(grid, nodes)


def test_nodes_are_bound_by_key_in_the_order_of_the_columns(link: Link) -> None:
    bound = KeyBinding(ROSTER).bind(link.grid)
    assert bound == {link.nodes[name]: user for user, name in enumerate(NAMES)}
    assert list(bound.values()) == [0, 1, 2]


def test_what_a_node_says_of_itself_counts_for_nothing(link: Link) -> None:
    liar = NodeInfo(node_id=5, public_key=pem(KEYS["mallory"]), name="alice", owner_name="alice", location="0,0")
    keyless = NodeInfo(node_id=6, name="alice")
    garbage = NodeInfo(node_id=7, public_key=b"\xff" * 40)
    assert bind_nodes([liar, keyless, garbage], ROSTER) == {}


def test_one_key_in_two_encodings_is_one_user(link: Link) -> None:
    twice = [
        NodeInfo(node_id=9, public_key=pem(KEYS["bob"]) + b"\n"),
        NodeInfo(node_id=4, public_key=ROSTER.member("bob").public_key.encode()),
    ]
    assert bind_nodes(twice, ROSTER) == {4: 1}


def test_a_signed_reply_arrives_as_it_was_sent(link: Link) -> None:
    signed = SignedGrid(link.grid, ROSTER, look_every=0.0)
    sent, question = link.ask(signed, "bob")
    nonce = question.content[CHALLENGE]["nonce"]
    content = update(1.5)
    sign_content(content, nonce, KEYS["bob"])
    assert list(signed.pull_messages([sent])) == []
    assert link.reply(question, content)
    (reply,) = signed.pull_messages([sent])
    assert reply.content == update(1.5)
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (link.nodes["bob"], sent)
    assert list(signed.pull_messages([sent])) == []


def test_a_member_that_answers_in_anothers_name_is_refused(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    signed = SignedGrid(link.grid, ROSTER, look_every=0.0)
    sent, question = link.ask(signed, "bob")
    forged = update(666.0)
    sign_content(forged, question.content[CHALLENGE]["nonce"], KEYS["alice"])
    # Flower 1.41 takes it: it never compares the sender inside a message with the key that signed the request.
    assert link.reply(question, forged)
    (reply,) = signed.pull_messages([sent])
    assert reply.has_error()
    assert "not signed by its key" in reply.error.reason


def test_a_reply_to_another_question_is_refused(link: Link) -> None:
    signed = SignedGrid(link.grid, ROSTER, look_every=0.0)
    _, first = link.ask(signed, "bob")
    sent, second = link.ask(signed, "bob")
    assert first.content[CHALLENGE]["nonce"] != second.content[CHALLENGE]["nonce"]
    replayed = update(1.0)
    sign_content(replayed, first.content[CHALLENGE]["nonce"], KEYS["bob"])
    assert link.reply(second, replayed)
    (reply,) = signed.pull_messages([sent])
    assert reply.has_error()


def test_no_question_goes_to_a_node_of_nobody(link: Link) -> None:
    signed = SignedGrid(link.grid, ROSTER, look_every=0.0)
    assert list(signed.push_messages([Message(update(0.0), link.nodes["mallory"], "train")])) == []
    assert link.grid.state.get_message_ins(link.nodes["mallory"], limit=1) == []
    # An answer without a question is not looked for either.
    assert list(signed.pull_messages(["made up"])) == []


def test_one_content_for_many_users_gets_a_nonce_each(link: Link) -> None:
    signed = SignedGrid(link.grid, ROSTER, look_every=0.0)
    content = update(0.0)
    list(signed.push_messages([Message(content, link.nodes[name], "train") for name in NAMES]))
    assert CHALLENGE not in content
    questions = [link.grid.state.get_message_ins(link.nodes[name], limit=1)[0] for name in NAMES]
    assert len({question.content[CHALLENGE]["nonce"] for question in questions}) == 3


def test_a_look_for_a_reply_is_a_request_and_is_not_repeated_at_once(link: Link) -> None:
    signed = SignedGrid(link.grid, ROSTER, look_every=0.3)
    sent, question = link.ask(signed, "bob")
    assert list(signed.pull_messages([sent])) == []
    content = update(1.0)
    sign_content(content, question.content[CHALLENGE]["nonce"], KEYS["bob"])
    link.reply(question, content)
    assert list(signed.pull_messages([sent])) == []
    time.sleep(0.3)
    assert len(list(signed.pull_messages([sent]))) == 1


def test_a_round_trip_waits_for_nobody_beyond_its_timeout(link: Link) -> None:
    signed = SignedGrid(link.grid, ROSTER, look_every=0.0)
    assert list(signed.send_and_receive([Message(update(0.0), link.nodes["bob"], "train")], timeout=0.2)) == []


def test_every_part_of_a_reply_is_signed() -> None:
    nonce, key = b"n" * 32, KEYS["bob"]

    def check(change: RecordDict, used: bytes = nonce) -> bool:
        content = update(1.0)
        sign_content(content, nonce, key)
        change[SIGNATURE] = content[SIGNATURE]
        return check_content(change, used, key.public_key())

    assert check(update(1.0))
    assert not check(update(1.0), b"m" * 32)
    assert not check(update(1.0000001))
    for edit in (
        lambda c: c["reply"].update(samples=10),
        lambda c: c["reply"].update(samples=9.0),
        lambda c: c["reply"].update(samples="9"),
        lambda c: c["reply"].update(extra=1),
        lambda c: c.__setitem__("other", ConfigRecord()),
        lambda c: c.__setitem__("reply", MetricRecord({"round": 1, "samples": 9})),
        lambda c: c.__setitem__("model-1", c.pop("model-0")),
        lambda c: c.__delitem__("model-0"),
        lambda c: c["model-0"].__setitem__("bias", c["model-0"].pop("weight")),
        lambda c: c["model-0"].__setitem__("weight", Array(np.ones((3, 2), np.float32))),
        lambda c: c["model-0"].__setitem__("weight", Array(np.ones((2, 3), np.float64))),
    ):
        content = update(1.0)
        edit(content)
        assert not check(content), edit


def test_a_signature_that_is_none_is_refused_without_an_error() -> None:
    key = KEYS["bob"].public_key()
    for record in (
        ConfigRecord(),
        ConfigRecord({"signature": "text"}),
        ConfigRecord({"signature": b""}),
        ConfigRecord({"signature": b"\0" * 10_000}),
        MetricRecord({"signature": 1}),
        ArrayRecord({"signature": Array(np.zeros(3))}),
    ):
        content = update(1.0)
        content[SIGNATURE] = record
        assert not check_content(content, b"n" * 32, key)
    assert not check_content(update(1.0), b"n" * 32, key)


def test_the_client_signs_with_the_key_its_own_command_names(tmp_path: Path) -> None:
    write_private(tmp_path / "node.key", private_text(KEYS["bob"]))
    nonce = b"n" * 32

    def call(node_config: dict[str, object], content: RecordDict) -> Message:
        metadata = Metadata(1, "id", 1, 2, "", "", 2e9, 100.0, "train")
        question = make_message(metadata=metadata, content=content)
        context = Context(1, 2, node_config, RecordDict(), {"key-file": "/chosen/by/the/server"})  # type: ignore[arg-type]
        return sign_reply(
            question, context, lambda asked, _: make_message(metadata=metadata, content=update(len(asked.content)))
        )

    asked = update(0.0)
    asked[CHALLENGE] = ConfigRecord({"nonce": nonce})
    reply = call({"key-file": str(tmp_path / "node.key")}, asked)
    assert check_content(reply.content, nonce, KEYS["bob"].public_key())
    # The app behind it sees the question without the nonce.
    assert reply.content == update(2)
    with pytest.raises(InputError, match="--node-config"):
        call({}, asked)
    with pytest.raises(InputError, match="no nonce"):
        call({"key-file": str(tmp_path / "node.key")}, update(0.0))


HOSTILE = {
    "NaN": (lambda arrays: arrays | {"sums": np.full_like(arrays["sums"], np.nan)}, "sums holds NaN or infinity"),
    "off the grid": (lambda arrays: arrays | {"gram": arrays["gram"] + 0.25}, "gram is not on the grid of 2^-12"),
    "not PSD": (lambda arrays: arrays | {"sums": 40 * arrays["sums"]}, "not positive semidefinite"),
    "trace": (lambda arrays: arrays | {"gram": 2 * arrays["gram"]}, "samples of norm one can have"),
    "size": (lambda arrays: arrays | {"extra": np.zeros(1 << 22)}, "its message is too large"),
    "width": (lambda arrays: arrays | {"gram": arrays["gram"][:-1]}, "gram: shape"),
    "count": (lambda arrays: arrays | {"counts": arrays["counts"] - 7}, "a count is below 0"),
}


@pytest.mark.parametrize(
    "hostile",
    [pytest.param(kind, marks=[] if kind in ("NaN", "not PSD") else pytest.mark.slow) for kind in HOSTILE]
    + ["forged", pytest.param("unsigned", marks=pytest.mark.slow)],
)
def test_members_of_a_consortium_sign_their_statistics(tmp_path: Path, link: Link, hostile: str):
    """Flower's own link state, the consortium's client app and grid; bob sends what no samples give, or as another."""
    from codeward.federated.consortium import client_app
    from codeward.federated.server_app import run_one_round

    own = [load_dataset("digits").train.take(np.arange(user, 24, 3)) for user in range(3)]
    plan = OneRoundPlan.make(Code([[1, 1, 0], [1, 0, 1]], users=NAMES), "gradients", n_classes=10)
    plan.save(tmp_path / "one-round.json")
    for user, name in enumerate(NAMES):
        write_private(tmp_path / f"{name}.key", private_text(KEYS[name]))
        save_samples(tmp_path / f"{name}.npz", own[user])

    def answer(name, question):
        config = {"key-file": str(tmp_path / f"{name}.key"), "data": str(tmp_path / f"{name}.npz")}
        if name == "bob" and hostile == "forged":
            config["key-file"] = str(tmp_path / "carol.key")
        context = Context(1, link.nodes[name], config, RecordDict(), {})

        def reply(message, context):
            sent = client_app.query(message, context)
            if name == "bob" and hostile in HOSTILE:
                arrays = {key: array.numpy() for key, array in sent.content.array_records["statistics"].items()}
                spoilt = HOSTILE[hostile][0](arrays)
                sent.content["statistics"] = ArrayRecord({key: Array(array) for key, array in spoilt.items()})
            return sent

        if name == "bob" and hostile == "unsigned":
            question.content.pop("codeward.challenge")
            return reply(question, context)
        return sign_reply(question, context, reply)

    class Answering(SignedGrid):
        def pull_messages(self, message_ids):
            for name in NAMES:
                for question in link.grid.state.get_message_ins(link.nodes[name], limit=1):
                    link.reply(question, answer(name, question).content)
            return super().pull_messages(message_ids)

    server = run_one_round(Answering(link.grid, ROSTER, look_every=0.0), tmp_path, KeyBinding(ROSTER), poll=0.01)
    assert server.counted == [0, 2]
    words = HOSTILE[hostile][1] if hostile in HOSTILE else "its reply is not signed by its key for this question"
    assert words in server.refusals[1]
    assert server.refusals[1].startswith("bob: ")
    assert "\n" not in server.refusals[1]
    alone = OneRound(plan)
    for user in (0, 2):
        alone.accept(user, make_statistics(plan, own[user].images, own[user].labels))
    assert load_one_round(tmp_path)[1].weights.tobytes() == alone.fit().weights.tobytes()
