"""The gate between the network and the SuperLink: what it passes on, and what it keeps out."""

import contextlib
import datetime
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from codeward.cli import main
from codeward.codes import Code
from codeward.federated import FederatedSettings, FederationPlan
from codeward.federated.consortium import Consortium, GateSettings, NodeGate, Roster, write_consortium
from codeward.federated.consortium._roster import make_key, read_private_key
from codeward.training import PRESETS

PULL = "/v1/fleet/pull-messages"
LIMITS = GateSettings(max_request=10_000, budget=25_000, window=600.0)


@dataclass
class Upstream:
    """Stands where the SuperLink stands; notes what reaches it."""

    seen: list[tuple[str, dict[bytes, bytes], bytes]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        self.seen.append((scope["path"], dict(scope["headers"]), body))
        headers = [(b"content-type", b"application/protobuf"), (b"x-note", b"kept")]
        await send({"type": "http.response.start", "status": 207, "headers": headers})
        await send({"type": "http.response.body", "body": b"answer to " + body[:20]})


@contextlib.contextmanager
def serving(app: Any, server: Path, lifespan: str) -> Iterator[int]:
    """Serve an application over TLS on a free port of loopback."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        ssl_certfile=str(server / "server.crt"),
        ssl_keyfile=str(server / "server.key"),
        lifespan=lifespan,  # type: ignore[arg-type]
        ws="none",
        log_level="error",
    )
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run)
    thread.start()
    while not runner.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield runner.servers[0].sockets[0].getsockname()[1]
    finally:
        runner.should_exit = True
        thread.join(10)


@dataclass
class Scene:
    consortium: Consortium
    upstream: Upstream
    client: httpx.Client

    def key(self, name: str) -> ec.EllipticCurvePrivateKey:
        return read_private_key(self.consortium.path / "users" / name / "node.key")

    def post(self, path: str, headers: dict[str, str], body: bytes = b"question") -> httpx.Response:
        return self.client.post(path, headers=headers, content=body)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    plan = FederationPlan(
        Code([[1, 0], [0, 1]], users=("alice", "bob")), PRESETS["digits"], FederatedSettings(), (1, 8, 8), 0
    )
    made = write_consortium(tmp_path / "c", plan, ["127.0.0.1"])
    server, upstream = made.path / "server", Upstream()
    trust = ssl.create_default_context(cafile=str(made.path / "users" / "alice" / "ca.crt"))
    with serving(upstream, server, "off") as behind:
        gate = NodeGate(server / "users.json", f"127.0.0.1:{behind}", server / "ca.crt", LIMITS)
        with (
            serving(gate, server, "on") as port,
            httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trust, trust_env=False) as client,
        ):
            yield Scene(made, upstream, client)


def headers(
    key: ec.EllipticCurvePrivateKey, age: float = 0.0, signer: ec.EllipticCurvePrivateKey | None = None
) -> dict[str, str]:
    """Sign as a SuperNode of Flower 1.41 does, with its own functions."""
    stamp = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
    signature = sign_message(signer or key, stamp.encode("ascii"))
    return {
        "flwr-public-key": b64encode(public_key_to_bytes(key.public_key())).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(signature).decode(),
        "content-type": "application/protobuf",
    }


def test_a_members_request_passes_unchanged_and_so_does_the_answer(scene: Scene) -> None:
    signed = headers(scene.key("alice"))
    response = scene.post(PULL, signed, b"a question")
    assert (response.status_code, response.content) == (207, b"answer to a question")
    assert response.headers["x-note"] == "kept"
    ((path, arrived, body),) = scene.upstream.seen
    assert (path, body) == (PULL, b"a question")
    # The SuperLink checks the same signature again.
    for name, value in signed.items():
        assert arrived[name.encode()] == value.encode()


def test_even_a_member_reaches_nothing_but_the_interface_for_nodes(scene: Scene) -> None:
    for path in (
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/runtime/get-nodes",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/pull-messages/",
        "//v1/fleet/pull-messages",
        "/docs",
        "/openapi.json",
        "/",
    ):
        assert scene.post(path, headers(scene.key("alice"))).status_code == 404, path
    assert scene.upstream.seen == []


def test_only_posts_pass(scene: Scene) -> None:
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        assert scene.client.request(method, PULL, headers=headers(scene.key("alice"))).status_code == 404
    assert scene.upstream.seen == []


def test_without_a_members_signature_nothing_passes(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    alice, stranger = scene.key("alice"), make_key()
    good = headers(alice)
    wrong = [
        {},
        headers(stranger),
        headers(alice, signer=stranger),
        headers(alice, signer=scene.key("bob")),
        headers(alice, age=400),
        headers(alice, age=-60),
        good | {"flwr-timestamp": "yesterday"},
        good | {"flwr-timestamp": "2026-01-01T00:00:00"},
        good | {"flwr-signature": "%%%"},
        good | {"flwr-signature": ""},
        good | {"flwr-public-key": b64encode(b"\xff" * 50).decode()},
        {key: value for key, value in good.items() if key != "flwr-signature"},
    ]
    for case in wrong:
        assert scene.post(PULL, case).status_code == 401, case
    # Of two values the gate would check one and the SuperLink might take the other.
    both = [*headers(stranger).items(), *good.items()]
    assert scene.client.post(PULL, headers=both, content=b"x").status_code == 401
    assert scene.upstream.seen == []
    assert scene.post(PULL, good).status_code == 207


def test_a_request_over_the_limit_is_refused_and_the_next_one_passes(scene: Scene) -> None:
    bob = scene.key("bob")
    assert scene.post(PULL, headers(bob), b"x" * (LIMITS.max_request + 1)).status_code == 413
    assert scene.post(PULL, headers(bob), b"x" * LIMITS.max_request).status_code == 207
    assert len(scene.upstream.seen) == 1


def test_a_member_over_its_budget_is_refused_and_the_others_are_not(scene: Scene) -> None:
    bob, alice = scene.key("bob"), scene.key("alice")
    codes = [scene.post(PULL, headers(bob), b"x" * 9_000).status_code for _ in range(4)]
    assert codes == [207, 207, 413, 413]
    assert scene.post(PULL, headers(alice), b"x" * 9_000).status_code == 207


def test_a_removed_or_replaced_key_is_refused_from_the_next_request_on(scene: Scene) -> None:
    file = scene.consortium.path / "server" / "users.json"
    alice, bob, new = scene.key("alice"), scene.key("bob"), make_key()
    assert scene.post(PULL, headers(bob)).status_code == 207
    roster = Roster.load(file).remove("bob").replace_key("alice", public_key_to_bytes(new.public_key()).decode())
    roster.save(file)
    codes = [scene.post(PULL, headers(key)).status_code for key in (bob, alice, new)]
    assert codes == [401, 401, 207]
    file.write_text("{")
    assert scene.post(PULL, headers(new)).status_code == 503


def test_the_gate_says_so_when_the_superlink_is_down(scene: Scene) -> None:
    server = scene.consortium.path / "server"
    gate = NodeGate(server / "users.json", "127.0.0.1:1", server / "ca.crt")
    with (
        serving(gate, server, "on") as port,
        httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=False, trust_env=False) as client,
    ):
        assert client.post(PULL, headers=headers(scene.key("alice")), content=b"x").status_code == 503


def test_the_command_wants_a_server_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federate", "gate", str(tmp_path)]) == 2
    assert "server.crt is missing" in capsys.readouterr().err
    assert main(["federate", "gate", str(tmp_path), "--superlink", "nowhere"]) == 2
    assert "HOST:PORT" in capsys.readouterr().err
