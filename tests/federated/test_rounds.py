"""The Flower server and client apps on a grid inside this process: the real apps and messages, no SuperLink."""

import time
from dataclasses import replace

import pytest

pytest.importorskip("flwr")
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from codeward.federated import Federation, FederationFolder, save_samples, train_federated
from codeward.federated import client_app as client_module
from codeward.federated import server_app as server_module
from codeward.federated._flower_rounds import OrderBinding, run_rounds

NODES = (907, 11, 450, 88)


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Flower's runtime tells a process which task it is; messages are made in its name."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class LocalGrid(Grid):
    """Answers every message at once, by the ClientApp, unless a node is told to behave otherwise."""

    def __init__(self, config, nodes=NODES, unusual=None):
        self.config, self.nodes, self.unusual = config, list(nodes), dict(unusual or {})
        self.replies, self.sent = {}, []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            self.replies[name] = self.unusual.get(message.metadata.dst_node_id, self.answer)(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids):
        found = []
        for name in message_ids:
            reply = self.replies.get(name)
            if isinstance(reply, tuple):  # not before its time
                reply = None if time.monotonic() < reply[0] else self.replies.setdefault(name, reply)[1]
            if isinstance(reply, Exception):
                raise reply
            if reply is not None:
                del self.replies[name]
                found.append(reply)
        return found

    def answer(self, message):
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": 0}, RecordDict(), self.config)
        reply = client_module.app(message=message, context=context)
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


@pytest.fixture
def config(tmp_path, users, plan):
    FederationFolder(tmp_path / "one" / "server").save_plan(plan)
    for user, samples in enumerate(users):
        save_samples(tmp_path / "one" / "data" / f"user{user}.npz", samples)
    return {"simulation": str(tmp_path), "federations": "one"}


def run(grid, plan, timeout=30.0, **options):
    federation = Federation(replace(plan, settings=replace(plan.settings, timeout=timeout)))
    run_rounds(grid, federation, OrderBinding(plan.code.n_users), poll=0.02, label="one", **options)
    return federation.result()


def test_the_server_app_and_the_client_app_equal_the_reference(config, honest):
    grid = LocalGrid(config)
    context = Context(1, 0, {}, RecordDict(), config)
    server_module.app(grid, context)
    folder = FederationFolder(server_path(config))
    assert folder.load_result().keys == honest.keys
    assert folder.load_result().rounds == honest.rounds
    assert [line["round"] for line in folder.read_rounds()] == [1, 2]
    weights = sum(array.nbytes for array in honest.models[0].values())
    # One message a user and round, with the two models of its column.
    assert len(grid.sent) == 8
    for line in folder.read_rounds():
        assert 8 * weights < line["sent"] < 8 * weights * 1.2
        assert 8 * weights < line["received"] < 8 * weights * 1.2


def server_path(config):
    from pathlib import Path

    return Path(config["simulation"]) / "one" / "server"


def test_users_get_the_models_of_their_column_only(config, plan):
    grid = LocalGrid(config)
    run(grid, plan)
    for message in grid.sent:
        user = sorted(NODES).index(message.metadata.dst_node_id)
        wanted = {f"model-{model}" for model in range(4) if plan.code.matrix[model, user]}
        assert set(message.content.array_records) == wanted


def silent(message):
    return None


def failing(message):
    return Message(Error(code=0, reason="disk full"), reply_to=message)


def unreadable(message):
    return ValueError("cannot be inflated")


@pytest.mark.parametrize("behaviour", [silent, failing, unreadable])
def test_a_user_without_a_reply_costs_the_round_its_part_and_no_more(config, users, plan, behaviour):
    node = sorted(NODES)[2]
    reference = train_federated(users, plan, {2: lambda assignment, samples: None})
    begin = time.monotonic()
    result = run(LocalGrid(config, unusual={node: behaviour}), plan, timeout=0.5)
    assert time.monotonic() - begin < 2 * 0.5 + 10
    assert result.keys == reference.keys
    for report in result.rounds:
        assert (report.silent == (2,)) == (behaviour is silent)
        assert len(report.refusals) == (behaviour is not silent)


def test_a_late_reply_counts_in_no_round(config, users, plan):
    grid = LocalGrid(config)
    node = sorted(NODES)[1]
    grid.unusual[node] = lambda message: (time.monotonic() + 0.8, grid.answer(message))
    three = replace(plan, settings=replace(plan.settings, rounds=3))
    result = run(grid, three, timeout=0.4)
    assert result.keys == train_federated(users, three, {1: lambda assignment, samples: None}).keys
    assert all(report.silent == (1,) for report in result.rounds)
    # The replies are there by now, and nobody asked for them again.
    assert len(grid.replies) == 3


def test_a_reply_that_takes_its_time_counts(config, plan, honest):
    grid = LocalGrid(config)
    grid.unusual[sorted(NODES)[1]] = lambda message: (time.monotonic() + 0.3, grid.answer(message))
    assert run(grid, plan).keys == honest.keys


def test_a_reply_from_another_node_does_not_count(config, users, plan):
    nodes = sorted(NODES)
    grid = LocalGrid(config)

    def foreign(message):
        reply = grid.answer(message)
        reply.metadata.__dict__["_src_node_id"] = nodes[3]
        return reply

    grid.unusual[nodes[0]] = foreign
    result = run(grid, plan)
    assert result.keys == train_federated(users, plan, {0: lambda assignment, samples: None}).keys
    assert "another node" in result.refusals[0].reason


def test_a_node_that_leaves_and_comes_back_is_still_the_same_user(config, plan, honest):
    nodes = sorted(NODES)
    grid = LocalGrid(config)
    counted = []

    def watch(report, traffic):
        counted.append(set(report.counted))
        if report.round == 1:
            grid.nodes.remove(nodes[1])
        elif report.round == 2:
            grid.nodes.insert(0, nodes[1])

    federation = Federation(replace(plan, settings=replace(plan.settings, rounds=3)))
    run_rounds(grid, federation, OrderBinding(4), watch, poll=0.02, label="one")
    assert counted == [{0, 1, 2, 3}, {0, 2, 3}, {0, 1, 2, 3}]
    assert federation.reports[1].silent == (1,)


class DoubleBinding:
    def bind(self, grid):
        return {11: 0, 88: 0, 450: 1}


def test_where_two_nodes_are_bound_to_one_user_neither_is_asked(config, plan):
    grid = LocalGrid(config)
    federation = Federation(plan)
    run_rounds(grid, federation, DoubleBinding(), poll=0.02, quorum=2, label="one")
    assert {message.metadata.dst_node_id for message in grid.sent} == {450}


def test_nobody_there_is_said_plainly(config, plan):
    with pytest.raises(ValueError, match="no user's node connected"):
        run(LocalGrid(config, nodes=()), plan, join_timeout=0.1)


def test_messages_expire_with_the_round(config, plan):
    grid = LocalGrid(config)
    run(grid, plan, timeout=7.0)
    assert {message.metadata.ttl for message in grid.sent} == {7.0}


def test_a_deployed_client_takes_its_own_data_and_nothing_the_server_names(config, tmp_path, users):
    own = Context(1, 11, {"data": str(tmp_path / "one" / "data" / "user3.npz")}, RecordDict(), config)
    assert client_module.find_samples(own, 0).digest() == users[3].digest()
    nothing = Context(1, 11, {}, RecordDict(), config)
    with pytest.raises(ValueError, match="no data: start the SuperNode"):
        client_module.find_samples(nothing, 0)


def test_clients_import_little():
    import subprocess
    import sys

    check = (
        "import codeward.federated.client_app, sys; "
        "heavy = {'sklearn', 'matplotlib', 'numba', 'scipy', 'pydantic', 'ray'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Killed(BaseException):
    pass


def test_a_server_that_was_killed_within_a_round_goes_on_after_the_last_one(config, honest, plan):
    """Its first two users answered round 2 already; they are asked again, and the bytes are the same."""
    grid, context = LocalGrid(config), Context(1, 0, {}, RecordDict(), config)
    node = sorted(NODES)[2]

    def kill(message):
        if len(grid.sent) > 4:
            raise Killed
        return grid.answer(message)

    grid.unusual[node] = kill
    folder = FederationFolder(server_path(config))
    with pytest.raises(Killed):
        server_module.app(grid, context)
    assert [line["round"] for line in folder.read_rounds()] == [1]
    assert not folder.finished
    again = LocalGrid(config)
    server_module.app(again, context)
    assert len(again.sent) == 4
    assert folder.load_result().keys == honest.keys
    assert folder.load_result().rounds == honest.rounds
    assert [line["round"] for line in folder.read_rounds()] == [1, 2]
    assert not (folder.path / "checkpoint.safetensors").exists()
