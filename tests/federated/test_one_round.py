"""One round: statistics by file and by Flower message, checked, and byte for byte the pooled heads."""

import json

import numpy as np
import pytest

from codeward import Code, InputError
from codeward.cli import main
from codeward.data import load_dataset
from codeward.federated import (
    OneRound,
    OneRoundPlan,
    load_one_round,
    make_statistics,
    save_samples,
    save_statistics,
)
from codeward.training.backbones import make_backbone
from codeward.training.heads import fit_heads

MATRIX = [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]]
NAMES = ["ann", "bob", "cem", "dora"]


@pytest.fixture(scope="module")
def samples():
    pair = load_dataset("digits")
    return [pair.train.take(np.arange(user, 240, 4)) for user in range(4)], pair.test.take(np.arange(50))


@pytest.fixture(scope="module")
def plan():
    return OneRoundPlan.make(Code(MATRIX, users=NAMES), "features", n_classes=10, width=64)


def show(samples):
    return samples.images.reshape(len(samples), -1) / 2048.0


def tell(plan, user, rows=False):
    return make_statistics(plan, show(user), user.labels, rows)


def fit_pooled(plan, users, show=show, backbone=None):
    features = np.concatenate([show(user) for user in users])
    labels = np.concatenate([user.labels for user in users])
    owners = np.repeat(np.arange(len(users)), [len(user) for user in users])
    return fit_heads(features, labels, owners, plan.code, 10, plan.ridge, form="primal", backbone=backbone)


@pytest.fixture(scope="module")
def pooled(samples, plan):
    return fit_pooled(plan, samples[0])


def send_all(plan, users, folder, rows=False):
    for name, user in zip(NAMES, users, strict=True):
        save_statistics(folder / f"{name}.npz", tell(plan, user, rows))


@pytest.mark.parametrize("rows", [False, True])
def test_files_give_the_pooled_heads(tmp_path, samples, plan, pooled, rows):
    send_all(plan, samples[0], tmp_path, rows)
    server = OneRound(plan)
    server.read(tmp_path)
    assert (server.counted, server.silent, server.refusals) == ([0, 1, 2, 3], [], {})
    assert server.fit().weights.tobytes() == pooled.weights.tobytes()


def test_what_is_unsound_is_left_out_and_hurts_nobody_else(tmp_path, samples, plan, pooled):
    users = samples[0]
    send_all(plan, users, tmp_path)
    greedy = tell(plan, users[1])
    greedy["gram"] = greedy["gram"] * 100
    save_statistics(tmp_path / "bob.npz", greedy)
    (tmp_path / "cem.npz").write_bytes(b"no zip")
    (tmp_path / "dora.npz").unlink()
    server = OneRound(plan)
    server.read(tmp_path)
    assert server.counted == [0]
    assert server.silent == [3]
    assert "above the 60 that 60 samples of norm one can have" in server.refusals[1]
    assert "cem.npz" in server.refusals[2]
    with pytest.raises(InputError, match="a model would learn from no samples"):
        server.fit()
    server.accept(2, tell(plan, users[2]))
    assert 2 in server.refusals  # once refused, a second message changes nothing
    again = OneRound(plan)
    for user in (0, 2, 3):
        again.accept(user, tell(plan, users[user]))
    assert again.fit().weights.tobytes() == pooled.revoke(1).weights.tobytes()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda message: message | {"plan": message["plan"][::-1].copy()}, "of another plan"),
        (lambda message: message | {"counts": message["counts"].astype(np.float64)}, "expected int64"),
        (lambda message: message | {"gram": message["gram"][:-1]}, "shape"),
        (lambda message: message | {"sums": message["sums"] + 0.5}, "not on the grid"),
        (lambda message: message | {"sums": message["sums"] * 3}, "not positive semidefinite"),
        (lambda message: message | {"extra": np.zeros(1)}, "expected gram, sums and counts"),
        (lambda message: message | {"gram": np.full_like(message["gram"], np.nan)}, "NaN"),
    ],
)
def test_a_message_is_checked_before_it_counts(samples, plan, spoil, words):
    server = OneRound(plan)
    server.accept(0, spoil(tell(plan, samples[0][0])))
    assert words in server.refusals[0]
    assert server.refusals[0].startswith("ann: ")


def test_plans_that_name_code_or_nonsense_are_refused(tmp_path, plan):
    told = plan.to_json()
    for change, words in (
        ({"backbone": "os:system"}, "one round offers features"),
        ({"width": -1}, "positive whole number"),
        ({"ridge": float("nan")}, "number above 0"),
        ({"matrix": [[2]]}, "not a plan"),
        ({"format": "other"}, "not a codeward-one-round/1 file"),
        ({"surprise": 1}, "not a plan"),
    ):
        (tmp_path / "one-round.json").write_text(json.dumps(told | change).replace("NaN", "1e999"))
        with pytest.raises(InputError, match=words if "1e999" not in words else "."):
            OneRoundPlan.load(tmp_path / "one-round.json")
    other = OneRoundPlan(plan.code, "gradients", "0" * 64, 2048, 10)
    with pytest.raises(InputError, match="agreed"):
        make_statistics(other, np.zeros((1, 1, 8, 8), np.uint8), [0])


def test_the_commands_make_the_pooled_heads(tmp_path, samples, plan, pooled, capsys):
    Code(plan.code.matrix).save(tmp_path / "code.json")  # as `codeward design` writes it: nobody has a name
    agreed, inbox, made = (str(tmp_path / name) for name in ("one-round.json", "inbox", "heads"))
    (tmp_path / "inbox").mkdir()
    command = ["federate", "one-round"]
    assert main([*command, "plan", "--code", str(tmp_path / "code.json"), "--backbone", "features", "--classes", "10",
                 "--users", ", ".join(NAMES), "--width", "64", "-o", agreed]) == 0  # fmt: skip
    for name, user in zip(NAMES, samples[0], strict=True):
        np.savez(tmp_path / f"{name}-own.npz", X=show(user), y=user.labels)
        assert main([*command, "send", str(tmp_path / f"{name}-own.npz"), "--plan", agreed, "--user", name,
                     "-o", f"{inbox}/{name}.npz"]) == 0  # fmt: skip
    np.savez(tmp_path / "test.npz", X=show(samples[1]), y=samples[1].labels)
    capsys.readouterr()
    assert main([*command, "combine", inbox, "--plan", agreed, "-o", made, "--test", str(tmp_path / "test.npz"),
                 "--json"]) == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert told["counted"] == NAMES
    found, heads, who = load_one_round(made)
    assert who["counted"] == dict.fromkeys(NAMES, 60)
    assert found.identity == plan.identity
    assert heads.weights.tobytes() == pooled.weights.tobytes()
    assert heads.rows == pooled.rows
    assert main(["certify", told["votes"], "--code", f"{made}/code.json", "--decoder", "plurality",
                 "--threat", "arbitrary", "--json"]) == 0  # fmt: skip
    assert main(["certify", made, "--threat", "arbitrary", "--json"]) == 0
    assert main([*command, "combine", inbox, "--plan", agreed, "-o", made]) == 2
    assert main([*command, "send", str(tmp_path / "test.npz"), "--plan", agreed, "--user", "zoe"]) == 2
    assert "the plan has ann, bob, cem, dora" in capsys.readouterr().err


def test_a_round_is_served_reported_and_revoked_by_subtraction(tmp_path, samples, plan, pooled, capsys):
    from codeward.estimators import load_sub_models
    from codeward.runs import Card, Cell, RunFolder
    from codeward.serve import Incident, Ledger, open_run

    users, test = samples
    server = OneRound(plan)
    for user, own in enumerate(users):
        server.accept(user, tell(plan, own))
    server.save(tmp_path / "server")
    np.savez(tmp_path / "test.npz", X=show(test), y=test.labels)
    made = str(tmp_path / "run")
    command = ["federate", "collect", str(tmp_path / "server"), "--data", str(tmp_path / "test.npz"), "-o", made]
    assert main(command) == 0
    assert main(command) == 2  # the folder is there
    card = Card.load(tmp_path / "run" / "card.json")
    assert card.facts["data"] == "240 samples of 4 users"
    assert {curve.threat for curve in card.certified} == {"arbitrary"}
    served = open_run(made)
    assert served.cell.threat == "arbitrary"
    assert served.kind.kind == "features"
    said = [verdict.votes for verdict in served.guard.predict(show(test))]
    assert (np.array(said) == pooled.votes(show(test))).all()

    def find(folder):
        return load_sub_models(Cell(RunFolder(folder), 0, 0))

    capsys.readouterr()
    assert main(["revoke", made, "bob", "--yes", "--json", "-o", f"{made}-1"]) == 0
    told = json.loads(capsys.readouterr().out)
    work = {"trained": len(told["retrained"]), "reused": len(told["untouched"])}
    assert told["records"][0]["work"] == {"models": plan.code.n_models} | work
    assert 0 < work["reused"] < plan.code.n_models
    assert find(f"{made}-1").weights.tobytes() == pooled.revoke(1).weights.tobytes()
    kept = {file.name for file in (tmp_path / "run-1" / "statistics").iterdir()}
    assert kept == {"ann.npz", "cem.npz", "dora.npz"}
    # Once more, from what is left: the same as a round in which neither had sent anything.
    assert main(["revoke", f"{made}-1", "dora", "--yes", "--quiet", "-o", f"{made}-2"]) == 0
    alone = OneRound(plan)
    for user in (0, 2):
        alone.accept(user, tell(plan, users[user]))
    assert find(f"{made}-2").weights.tobytes() == alone.fit().weights.tobytes()
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        chances, n_models = (0.5, 0.4, 0.0, 0.1), plan.code.n_models
        ledger.record(Incident((1,) * n_models, 0.9, 1, 1, (), chances, "0" * 64, plan.code.digest, served.cell.id))
    capsys.readouterr()
    assert main(["ledger", "show", "1", "--run", made]) == 0
    assert "ann 50.0%, bob 40.0%, dora 10.0%" in capsys.readouterr().out
    np.savez(tmp_path / "test.npz", X=show(test)[::-1] / 2, y=test.labels)
    assert main(["revoke", made, "ann", "--yes", "--quiet", "-o", f"{made}-3"]) == 2
    assert "are not those it was measured on; restore them" in capsys.readouterr().err


def test_a_row_of_silent_users_goes_with_the_last_who_spoke(samples):
    plan = OneRoundPlan.make(Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]], users=NAMES[:3]), "features", 10, width=64)
    server, without = OneRound(plan), OneRound(plan)
    for user in (0, 1):
        server.accept(user, tell(plan, samples[0][user]))
    heads = server.fit()
    with pytest.raises(InputError, match="revoke its silent users too"):
        heads.revoke(1)
    left = heads.revoke(1, 2)
    assert left.rows == ((0,), (0,))
    without.accept(0, tell(plan, samples[0][0]))
    with pytest.raises(InputError, match="no samples"):
        without.fit()
    alone = fit_heads(without.statistics, None, None, [(0,), (0,)], 10, plan.ridge, form="primal")
    assert left.weights.tobytes() == alone.weights.tobytes()


def test_names_of_classes_are_agreed_on(tmp_path):
    plan = OneRoundPlan.make(Code([[1, 1]]), "hashed-text", 2, class_names=["ham", "spam"])
    (tmp_path / "own.csv").write_text("body,kind\nbuy now,spam\nsee you,ham\n")
    own = plan.read_samples(tmp_path / "own.csv", "kind", "body")
    assert own.labels.tolist() == [1, 0]
    assert make_statistics(plan, own.inputs, own.labels)["counts"].tolist() == [1, 1]
    (tmp_path / "own.csv").write_text("body,kind\nbuy now,spam\n")  # who has one class only counts too
    assert plan.read_samples(tmp_path / "own.csv", "kind", "body").labels.tolist() == [1]
    (tmp_path / "own.csv").write_text("body,kind\nbuy now,eggs\nsee you,ham\n")
    with pytest.raises(InputError, match="'eggs' is not declared; known: ham, spam"):
        plan.read_samples(tmp_path / "own.csv", "kind", "body")
    for names in (["ham"], ["ham", "ham"], ["", "spam"]):
        with pytest.raises(InputError, match="2 different names"):
            OneRoundPlan.make(Code([[1, 1]]), "hashed-text", 2, class_names=names)
    with pytest.raises(InputError, match="cannot name a file"):
        OneRoundPlan.make(Code([[1]], users=["../eve"]), "hashed-text", 2)


class TestFlower:
    """The same by Flower messages: the real apps, no SuperLink."""

    @pytest.fixture(autouse=True)
    def identity(self, monkeypatch):
        pytest.importorskip("flwr")
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("_task_id", "_run_id", "_node_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)

    def run(self, tmp_path, plan, users, unusual=None):
        from flwr.app import Context, RecordDict

        from codeward.federated import client_app, server_app

        server = tmp_path / "one" / "server"
        server.mkdir(parents=True)
        plan.save(server / "one-round.json")
        for user, own in enumerate(users):
            save_samples(tmp_path / "one" / "data" / f"user{user}.npz", own)
        config = {"simulation": str(tmp_path), "federations": "one"}

        class Grid:
            def __init__(self):
                self.replies = {}

            def get_node_ids(self):
                return [7, 3]

            def push_messages(self, messages):
                for message in messages:
                    node = message.metadata.dst_node_id
                    message.metadata.__dict__["_message_id"] = f"message-{node}"
                    context = Context(1, node, {"partition-id": 0}, RecordDict(), config)
                    reply = client_app.app(message=message, context=context)
                    reply.metadata.__dict__["_src_node_id"] = node
                    self.replies[f"message-{node}"] = (unusual or {}).get(node, lambda reply: reply)(reply)
                return [message.metadata.message_id for message in messages]

            def pull_messages(self, names):
                found = self.replies.pop(next(iter(names)))
                if isinstance(found, Exception):
                    raise found
                return [] if found is None else [found]

        server_app.app(Grid(), Context(1, 0, {}, RecordDict(), config))
        return server

    @pytest.fixture
    def plan(self):
        return OneRoundPlan.make(Code([[1, 1], [1, 0]], users=NAMES[:2]), "gradients", n_classes=10)

    def test_messages_give_the_pooled_heads(self, tmp_path, samples, plan):
        backbone = make_backbone("gradients")
        pooled = fit_pooled(plan, samples[0][:2], lambda user: backbone.transform(user.images).to_floats(), backbone)
        server = self.run(tmp_path, plan, samples[0][:2])
        assert load_one_round(server)[1].weights.tobytes() == pooled.weights.tobytes()

    def test_a_bad_message_is_its_senders_loss(self, tmp_path, samples, plan):
        def spoil(reply):
            from flwr.app import Array

            record = reply.content.array_records["statistics"]
            record["gram"] = Array(record["gram"].numpy() * 2)
            return reply

        server = self.run(tmp_path, plan, samples[0][:2], {7: spoil})  # nodes in order: 3, 7
        told = json.loads((server / "one-round-result.json").read_text())
        assert told["counted"] == {"ann": 60}
        assert "samples of norm one" in told["refusals"]["bob"]
        plain, heads, _ = load_one_round(server)
        assert plain.identity == plan.identity
        assert (heads.weights[0] == heads.weights[1]).all()

    def test_replies_that_cannot_be_read_are_refused(self, tmp_path, samples, plan):
        server = self.run(tmp_path, plan, samples[0][:2], {7: lambda reply: ValueError("cannot be inflated")})
        told = json.loads((server / "one-round-result.json").read_text())
        assert told["refusals"] == {"bob": "bob: its reply cannot be read: ValueError"}
