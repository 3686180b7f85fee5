"""A consortium on this machine's loopback, with real processes: the commands are those of the README files.

A SuperLink with TLS and node authentication behind the gate, one SuperNode per user, one of them killed while it
trains; a stranger whose key nobody registered, and an intruder whose key is registered but not in the roster.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")


from tests.federated.loopback import (
    CAROL,
    PATIENCE,
    ROUND_SECONDS,
    Site,
    Stage,
    ask_control,
    command_line,
    descendants,
    open_site,
    wait_for,
)

from codeward.federated import (
    FederatedSettings,
    OneRound,
    OneRoundPlan,
    load_one_round,
    make_statistics,
    train_federated,
    train_update,
)
from codeward.federated._federation_folder import FederationFolder
from codeward.federated.consortium import _consortium_texts as commands
from codeward.federated.consortium._roster import make_key, private_text, public_line, write_private

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Outcome:
    site: Site
    folder: FederationFolder
    listeners: set[str]
    control: dict[str, int]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Run the whole story once; the tests then look at what it left."""
    place = tmp_path_factory.mktemp("consortium")
    settings = FederatedSettings(rounds=2, local_epochs=1, timeout=ROUND_SECONDS)
    with open_site(place, settings) as site:
        stage, server = site.stage, site.server
        strangers = {name: _add_stranger(site.path, name) for name in ("stranger", "intruder")}
        ports = {"gate": site.address.port, "superlink": site.address.superlink_port}
        control = {name: ask_control(port, server) for name, port in ports.items()}
        # The operator's mistake, or somebody on the server's machine: a key registered that the roster does not hold.
        stage.call(f"flwr supernode register {strangers['intruder'] / 'node.pub'} consortium", server)
        site.start_nodes()
        stage.start("intruder", commands.start_supernode(site.direct, site.ports[3]), strangers["intruder"])
        for address in (site.address, site.direct):
            command = f"{commands.start_supernode(address, site.ports[4])} --max-retries 1"
            stage.start("stranger", command, strangers["stranger"]).wait(PATIENCE)
            if address == site.address:
                stage.logs["stranger at the gate"] = stage.logs["stranger"].rename(place / "stranger-gate.log")
        wait_for(lambda: "SuperNode ID" in stage.log("intruder"), PATIENCE, "the intruder is connected")

        run = stage.start("run", commands.start_run(), server)
        folder = FederationFolder(server / "federation")
        wait_for(lambda: len(folder.read_rounds()) == 1, 2 * PATIENCE, "round 1 ends")
        carol = stage.processes["carol"].pid
        wait_for(
            lambda: any("flwr-clientapp" in command_line(pid) for pid in descendants(carol)), PATIENCE, "carol trains"
        )
        stage.kill("carol")
        wait_for(lambda: (folder.path / "result.json").exists(), 2 * PATIENCE, "the run ends")
        run.wait(PATIENCE)
        yield Outcome(site, folder, _listeners(stage), control)


@pytest.fixture(scope="module")
def one_round(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, OneRoundPlan]]:
    """The same consortium asked once for statistics; carol's are none that samples could give."""
    with open_site(tmp_path_factory.mktemp("once"), FederatedSettings()) as site:
        plan = OneRoundPlan.make(site.plan.code, "gradients", n_classes=10)
        plan.save(site.server / "federation" / "one-round.json")
        site.start_nodes(carol="NaN")
        run = site.stage.start("run", commands.start_run(), site.server)
        wait_for((site.server / "federation" / "one-round-result.json").exists, 3 * PATIENCE, "the round ends")
        run.wait(PATIENCE)
        yield site, plan


def test_one_round_leaves_out_hostile_statistics_and_equals_the_pooled_heads(one_round) -> None:
    site, plan = one_round
    _, heads, who = load_one_round(site.server / "federation")
    users = site.users
    assert who["counted"] == {"alice": len(users[0]), "bob": len(users[1])}
    assert who["refusals"] == {"carol": "carol: sums holds NaN or infinity"}
    pooled = OneRound(plan)
    for user in (0, 1):
        pooled.accept(user, make_statistics(plan, users[user].images, users[user].labels))
    assert heads.weights.tobytes() == pooled.fit().weights.tobytes()


def test_one_round_becomes_a_run_folder_that_is_reported_certified_and_revoked(one_round, tmp_path: Path) -> None:
    stage, server = one_round[0].stage, one_round[0].server
    command = commands.collect_run().replace("test.npz", "digits").replace("../run", str(tmp_path / "run"))
    stage.call(command, server)
    stage.call(f"codeward report {tmp_path / 'run'}", server)
    stage.call(f"codeward certify {tmp_path / 'run'} --threat arbitrary", server)
    stage.call(f"codeward revoke {tmp_path / 'run'} bob carol --yes -o {tmp_path / 'without'}", server)
    assert not (tmp_path / "without" / "statistics" / "bob.npz").exists()


def _add_stranger(place: Path, name: str) -> Path:
    """Make a folder like a user's, with a key that the consortium does not know."""
    folder = place / name
    folder.mkdir(mode=0o700)
    key = make_key()
    write_private(folder / "node.key", private_text(key))
    (folder / "node.pub").write_text(public_line(key.public_key()))
    for file in ("ca.crt", "environment.sh", "data.npz"):
        (folder / file).write_bytes((place / "users" / "alice" / file).read_bytes())
    return folder


def _listeners(stage: Stage) -> set[str]:
    """Return the addresses that the deployment's processes listen on, from the kernel's tables."""
    inodes = set()
    for process in stage.processes.values():
        for pid in {process.pid} | descendants(process.pid):
            for link in Path(f"/proc/{pid}/fd").glob("*"):
                try:
                    target = os.readlink(link)
                except OSError:
                    continue
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    hosts = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            parts = row.split()
            if parts[3] == "0A" and parts[9] in inodes:
                hosts.add(parts[1].split(":")[0])
    return hosts


def test_the_run_completes_and_the_killed_user_is_reported_missing(outcome: Outcome) -> None:
    first, second = outcome.folder.load_result().rounds
    assert set(first.counted) == {0, 1, 2}
    assert (first.silent, first.refusals) == ((), ())
    assert set(second.counted) == {0, 1}
    # Silent until the timeout, unless the SuperLink notices before that her node is gone and says so.
    assert {*second.silent, *(refusal.user for refusal in second.refusals)} == {CAROL}


def test_the_models_equal_the_engine_free_reference_bit_for_bit(outcome: Outcome) -> None:
    silent = {CAROL: lambda task, samples: train_update(task, samples) if task.round == 1 else None}
    expected = train_federated(outcome.site.users, outcome.site.plan, silent)
    result = outcome.folder.load_result()
    assert result.keys == expected.keys
    for model, twin in zip(result.models, expected.models, strict=True):
        assert all(np.array_equal(model[name], twin[name]) for name in twin)


def test_the_models_become_a_run_folder(outcome: Outcome, tmp_path: Path) -> None:
    command = commands.collect_run().replace("test.npz", "digits").replace("../run", str(tmp_path / "run"))
    outcome.site.stage.call(command, outcome.site.server)
    with np.load(tmp_path / "run" / "votes" / "repeat0-attackers0-clean.npz") as content:
        assert content["votes"].shape == (len(content["labels"]), 4)


def test_a_round_waits_for_the_killed_user_no_longer_than_its_timeout(outcome: Outcome) -> None:
    seconds = [line["seconds"] for line in outcome.folder.read_rounds()]
    assert len(seconds) == 2
    assert seconds[1] < ROUND_SECONDS + 10


def test_a_key_that_nobody_registered_is_refused_by_the_gate_and_by_the_superlink(outcome: Outcome) -> None:
    at_gate, at_link = outcome.site.stage.log("stranger at the gate"), outcome.site.stage.log("stranger")
    assert "SuperNode ID" not in at_gate + at_link
    assert "the key is not in the roster" in outcome.site.stage.log("gate")
    assert "Failed to activate SuperNode" in at_link


def test_a_registered_key_outside_the_roster_speaks_for_nobody(outcome: Outcome) -> None:
    assert "SuperNode ID" in outcome.site.stage.log("intruder")
    assert "bound to no user" in outcome.site.stage.log("run")
    # It was sent nothing, so it never trained.
    assert "flwr-clientapp" not in outcome.site.stage.log("intruder")


def test_the_gate_hides_the_control_interface_that_the_superlink_leaves_open(outcome: Outcome) -> None:
    assert outcome.control == {"gate": 404, "superlink": 200}


def test_no_process_looks_for_anything_outside_this_machine(outcome: Outcome) -> None:
    contacts = [line.split() for line in outcome.site.stage.contacts.read_text().splitlines()]
    programs = {Path(program).name for _, program in contacts}
    watched = {"codeward", "flower-superexec", "flower-supernode", "flwr", "flwr-clientapp", "flwr-serverapp"}
    assert programs == watched, "the watcher does not see every program"
    assert {host for host, _ in contacts} <= {"127.0.0.1", "localhost", "::1"}


def test_everything_listens_on_loopback_alone(outcome: Outcome) -> None:
    assert outcome.listeners, "no listening socket found: the look at the kernel's tables does not work"
    assert outcome.listeners == {"0100007F"}


def test_the_rounds_name_nobody_but_the_users(outcome: Outcome) -> None:
    for line in outcome.folder.read_rounds():
        assert set(map(int, line["counted"])) <= {0, 1, 2}
    assert json.loads((outcome.folder.path / "result.json").read_text())["rounds"]
