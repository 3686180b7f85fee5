"""A consortium on this machine's loopback, with real processes: the commands are those of the README files.

A SuperLink with TLS and node authentication behind the gate, one SuperNode per user, one of them killed while it
trains; a stranger whose key nobody registered, and an intruder whose key is registered but not in the roster.
"""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

import httpx

from codeward.codes import Code
from codeward.data import Samples, load_dataset
from codeward.federated import (
    FederatedSettings,
    FederationPlan,
    OneRound,
    OneRoundPlan,
    load_one_round,
    make_statistics,
    train_federated,
    train_update,
)
from codeward.federated._federation_folder import FederationFolder
from codeward.federated._local_training import save_samples
from codeward.federated.consortium import _consortium_texts as commands
from codeward.federated.consortium import write_consortium
from codeward.federated.consortium._roster import make_key, private_text, public_line, write_private
from codeward.training import PRESETS

pytestmark = pytest.mark.slow

NAMES = ("alice", "bob", "carol")
CAROL = 2
# Each message starts a fresh client process, which imports torch first: seconds on a quiet machine, many on a busy one.
ROUND_SECONDS = 240.0
PATIENCE = 240.0

# Every Python process of the deployment notes where it connects and which names it looks up.
WATCHER = """
import os, sys
def watch(event, arguments):
    if event == "socket.connect":
        place = arguments[1]
        host = place[0] if isinstance(place, tuple) else "127.0.0.1"
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if isinstance(host, bytes):
        host = host.decode()
    with open(os.environ["CONTACTS"], "a") as out:
        out.write(f"{host} {' '.join(sys.argv[:1])}\\n")
sys.addaudithook(watch)
if os.environ.get("HOSTILE") and "flwr-clientapp" in " ".join(sys.orig_argv):
    import numpy
    from codeward.federated import _one_round
    honest = _one_round.make_statistics
    def spoil(*arguments):
        arrays = honest(*arguments)
        return arrays | {"sums": numpy.full_like(arrays["sums"], numpy.nan)}
    _one_round.make_statistics = spoil
"""


@dataclass
class Stage:
    """Processes by name, each in the folder and environment its README asks for; ended by pid."""

    contacts: Path
    library: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    logs: dict[str, Path] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def line(self, command: str) -> list[str]:
        return ["bash", "-c", f"{commands.load_environment()} && exec nice -n 5 {command}"]

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        # Whatever asks for the outside world asks a proxy that is not there.
        dead = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
        # The processes import the code under test, wherever another copy is installed.
        paths = os.pathsep.join([str(self.library), *filter(None, [os.environ.get("PYTHONPATH")])])
        watch = {"PYTHONPATH": paths, "CONTACTS": str(self.contacts), "PYTHONUNBUFFERED": "1"}
        return kept | dead | watch | {"OMP_NUM_THREADS": "1"}

    def start(self, name: str, command: str, folder: Path, **more: str) -> subprocess.Popen[bytes]:
        self.logs[name] = folder / f"{name}.log"
        own = self.environment() | more
        with self.logs[name].open("wb") as log:
            process = subprocess.Popen(
                self.line(command), cwd=folder, env=own, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.processes[name] = process
        return process

    def call(self, command: str, folder: Path) -> str:
        done = subprocess.run(
            self.line(command), cwd=folder, env=self.environment(), capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        return self.logs[name].read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a process and all it started, by pid and without a chance to say goodbye."""
        process = self.processes.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            end(pid, signal.SIGKILL)
        process.wait(10)

    def close(self) -> None:
        for process in reversed(self.processes.values()):
            self.seen |= descendants(process.pid)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        # Flower's executors notice by themselves that their parent is gone; those that have not yet are told.
        for pid in self.seen:
            if is_flower(pid):
                end(pid, signal.SIGKILL)


def end(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_flower(pid: int) -> bool:
    return "flower-" in command_line(pid) or "flwr-" in command_line(pid)


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = {int(child) for child in task.read_text().split()}
        except OSError:
            continue
        for child in children:
            found |= {child} | descendants(child)
    return found


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask_control(port: int, server: Path) -> int:
    """Ask for the list of nodes as anybody could who has the consortium's certificate, which is no secret."""
    trust = ssl.create_default_context(cafile=str(server / "ca.crt"))
    kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    with httpx.Client(verify=trust, trust_env=False) as client:
        return client.post(f"https://127.0.0.1:{port}/v1/control/list-nodes", headers=kind, content=b"").status_code


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def assign_digits() -> list[Samples]:
    """Three users; the third has so much that its training takes a while, to be killed in."""
    train = load_dataset("digits").train
    parts = [Samples(train.images[user::3], train.labels[user::3]) for user in range(3)]
    big = parts[CAROL]
    parts[CAROL] = Samples(np.tile(big.images, (4, 1, 1, 1)), np.tile(big.labels, 4))
    return parts


@dataclass(frozen=True)
class Site:
    """A consortium whose SuperLink and gate run and whose users are registered; their nodes are still to be started."""

    plan: FederationPlan
    users: list[Samples]
    stage: Stage
    path: Path
    address: commands.Address
    ports: list[int]

    @property
    def server(self) -> Path:
        return self.path / "server"

    @property
    def direct(self) -> commands.Address:
        """The SuperLink's own address, past the gate."""
        return commands.Address("127.0.0.1", self.address.superlink_port, self.address.superlink_port)

    def start_nodes(self, **hostile: str) -> None:
        for name, port in zip(NAMES, self.ports, strict=False):
            more = {"HOSTILE": hostile[name]} if name in hostile else {}
            self.stage.start(name, commands.start_supernode(self.address, port), self.path / "users" / name, **more)


@contextlib.contextmanager
def open_site(place: Path, settings: FederatedSettings) -> Iterator[Site]:
    code = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 0, 0]], users=NAMES)
    plan, users = FederationPlan(code, PRESETS["digits"], settings, (1, 8, 8), seed=7), assign_digits()
    gate_port, link_port, *ports = free_ports(7)
    written = write_consortium(place / "c", plan, ["127.0.0.1"], gate_port, link_port, join_timeout=180)
    for name, samples in zip(NAMES, users, strict=True):
        save_samples(written.path / "users" / name / "data.npz", samples)
    library = place / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(WATCHER)
    site = Site(plan, users, Stage(place / "contacts.txt", library), written.path, written.address, ports)
    stage = site.stage
    try:
        stage.start("superlink", commands.start_superlink(site.address), site.server)
        stage.start("gate", commands.start_gate(site.address, listen="127.0.0.1"), site.server)
        wait_for(lambda: listens(link_port) and listens(gate_port), PATIENCE, "SuperLink and gate listen")
        for name in NAMES:
            assert "registered successfully" in stage.call(commands.register_user(name), site.server)
        yield site
    except BaseException:
        for name in stage.logs:
            print(f"----- {name}\n{stage.log(name)[-3000:]}")
        raise
    finally:
        stage.close()


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
