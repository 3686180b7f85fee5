"""A consortium whose real processes run on this machine's loopback, for the tests of deployments."""

import contextlib
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

import httpx
import numpy as np

from codeward.codes import Code
from codeward.data import Samples, load_dataset
from codeward.federated import (
    FederatedSettings,
    FederationPlan,
)
from codeward.federated._local_training import save_samples
from codeward.federated.consortium import _consortium_texts as commands
from codeward.federated.consortium import write_consortium
from codeward.training import PRESETS

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
