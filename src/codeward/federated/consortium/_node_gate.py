"""The gate: the only door of the consortium's server that faces the network.

A Flower 1.41 SuperLink serves three interfaces on one port: *Fleet* (for SuperNodes, with key authentication),
*Control* (register keys, start runs, that is run code on the server and on every node) and *Runtime* (act as the
running server app). In the open distribution the last two ask for no credentials: whoever reaches the port owns the
federation, and SuperNode authentication protects nothing. So the SuperLink listens on loopback, and the gate passes on
nothing but Fleet requests signed by a key of the roster, of bounded size and in bounded amount.

Guarantee: without a private key of the roster nothing reaches the SuperLink; with one, only the Fleet interface does,
and at most `GateSettings.budget` bytes per `GateSettings.window` seconds. Threat model: any network client, any member.
Trusted: the server's machine (its local users reach the SuperLink's port) and TLS.
"""

import binascii
import datetime
import json
import logging
import ssl
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from codeward._errors import InputError
from codeward.federated.consortium._roster import Member, Roster, verify

_LOG = logging.getLogger("codeward.gate")
# All of Fleet but register-node and unregister-node: keys are registered by the operator, on the server.
_PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
# Set anew on each leg of the way.
_HOP_HEADERS = frozenset({"host", "connection", "content-length", "transfer-encoding", "keep-alive", "date", "server"})

Headers = list[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class GateSettings:
    """Limits of the gate.

    Attributes
    ----------
    max_request : int
        Largest request in bytes. Flower cuts arrays into objects of 5 MB, so that no honest one is much larger.
    budget, window
        Bytes a member may send in so many seconds. A reply is many requests, and the server app has to hold it in
        memory before it can judge it: a reply of 10 GB is stopped here or nowhere.

    Examples
    --------
    >>> GateSettings(max_request=2**20).budget == 2 * 2**30
    True
    """

    max_request: int = 32 * 2**20
    budget: int = 2 * 2**30
    window: float = 600.0


class _Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class NodeGate:
    """An ASGI application that passes signed Fleet requests of members on to a SuperLink.

    The roster is read again when its file changes: a removed or replaced key is refused from the next request on.

    Parameters
    ----------
    roster_file : Path
        ``users.json``.
    superlink : str
        ``host:port`` of the SuperLink, on loopback.
    authority : Path
        Certificate of the authority that signed the SuperLink's certificate.
    settings : GateSettings, optional

    Examples
    --------
    >>> import asyncio
    >>> gate = NodeGate(Path("users.json"), "127.0.0.1:9095", Path("ca.crt"))
    >>> async def tell(event):
    ...     print(event.get("status", event.get("body")))
    >>> asyncio.run(gate({"type": "http", "method": "GET", "path": "/"}, None, tell))
    404
    b'{"detail": "not an interface for nodes"}'
    """

    def __init__(
        self, roster_file: Path, superlink: str, authority: Path, settings: GateSettings | None = None
    ) -> None:
        self.roster_file = roster_file
        self.superlink = superlink
        self.authority = authority
        self.settings = settings or GateSettings()
        self._roster: tuple[tuple[int, int], Roster] | None = None
        self._used: dict[str, tuple[float, int]] = {}
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event of the ASGI protocol."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            member = self._authenticate(scope)
            body = await self._read(receive, member)
            status, headers, content = await self._forward(scope, body)
        except _Refused as refused:
            _LOG.warning("refused %s %s from %s: %s", scope["method"], scope["path"], _peer(scope), refused)
            status, content = refused.status, json.dumps({"detail": str(refused)}).encode()
            headers = [(b"content-type", b"application/json")]
        except httpx.HTTPError as error:
            _LOG.error("the SuperLink at %s does not answer: %s", self.superlink, error)
            status, headers, content = 503, [], b""
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open and close the one client that all requests share."""
        while (event := (await receive())["type"]) != "lifespan.shutdown":
            if event == "lifespan.startup":
                # Proxies of the environment are for the way out; this way stays on the machine.
                self._client = httpx.AsyncClient(
                    base_url=f"https://{self.superlink}",
                    verify=ssl.create_default_context(cafile=str(self.authority)),
                    trust_env=False,
                    timeout=60.0,
                )
                await send({"type": "lifespan.startup.complete"})
        if self._client is not None:
            await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    def _authenticate(self, scope: Scope) -> Member:
        """Return the member who signed the request's time stamp, as Flower's node authentication does."""
        if scope["method"] != "POST" or scope["path"] not in _PATHS:
            raise _Refused(404, "not an interface for nodes")
        try:
            public_key = b64decode(_read_once(scope, FLEET_HTTP_PUBLIC_KEY_HEADER), validate=True)
            signature = b64decode(_read_once(scope, FLEET_HTTP_SIGNATURE_HEADER), validate=True)
            stamp = _read_once(scope, TIMESTAMP_HEADER)
            signed_at = datetime.datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.datetime.now(datetime.UTC) - signed_at).total_seconds()
        except (ValueError, TypeError, binascii.Error) as error:
            raise _Refused(401, "no node signature") from error
        member = self._current_roster().find(public_key)
        if member is None:
            raise _Refused(401, "the key is not in the roster")
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            raise _Refused(401, f"user {member.name}: the time stamp is {age:.0f} s old; set the clock")
        if not verify(member.key, stamp, signature):
            raise _Refused(401, f"not signed by the key of user {member.name}")
        return member

    def _current_roster(self) -> Roster:
        stat = self.roster_file.stat()
        version = (stat.st_mtime_ns, stat.st_ino)
        if self._roster is None or self._roster[0] != version:
            try:
                self._roster = (version, Roster.load(self.roster_file))
            except InputError as error:
                # A roster that cannot be read admits nobody; the old one may hold a key that was just removed.
                raise _Refused(503, str(error)) from error
        return self._roster[1]

    async def _read(self, receive: Receive, member: Member) -> bytes:
        """Read the body within the limits; every byte counts, also those of a request that is then refused."""
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _Refused(400, f"user {member.name}: the connection ended within a request")
            part = event.get("body", b"")
            size += len(part)
            self._spend(member, len(part))
            if size > self.settings.max_request:
                raise _Refused(413, f"user {member.name}: a request over {self.settings.max_request} bytes")
            parts.append(part)
            more = event.get("more_body", False)
        return b"".join(parts)

    def _spend(self, member: Member, size: int) -> None:
        now = time.monotonic()
        start, used = self._used.get(member.fingerprint, (now, 0))
        if now - start >= self.settings.window:
            start, used = now, 0
        self._used[member.fingerprint] = (start, used + size)
        if used + size > self.settings.budget:
            limit = f"{self.settings.budget} bytes in {self.settings.window:.0f} s"
            raise _Refused(413, f"user {member.name}: more than {limit}")

    async def _forward(self, scope: Scope, body: bytes) -> tuple[int, Headers, bytes]:
        if self._client is None:
            raise _Refused(503, "not started")
        headers = [(key, value) for key, value in scope["headers"] if key.decode("latin-1") not in _HOP_HEADERS]
        # Unread encodings pass through as they are: the gate does not look inside.
        request = self._client.build_request("POST", scope["path"], content=body, headers=headers)
        response = await self._client.send(request, stream=True)
        try:
            content = b"".join([part async for part in response.aiter_raw()])
        finally:
            await response.aclose()
        kept = [
            (key, value) for key, value in response.headers.raw if key.decode("latin-1").lower() not in _HOP_HEADERS
        ]
        return response.status_code, kept, content


def run_gate(
    gate: NodeGate, host: str, port: int, certificate: Path, key: Path, ready: Callable[[], object] | None = None
) -> None:
    """Serve the gate over TLS (1.2 or newer) until the process is told to end.

    Parameters
    ----------
    gate : NodeGate
    host, port
        Where to listen: the address of the interface that users reach.
    certificate, key : Path
        Of the server.
    ready : callable, optional
        Called once the gate listens.

    Examples
    --------
    >>> gate = NodeGate(Path("users.json"), "127.0.0.1:9095", Path("ca.crt"))
    >>> run_gate(gate, "127.0.0.1", 0, Path("no.crt"), Path("no.key"))
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory
    """
    import uvicorn

    class _Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            if self.started and ready is not None:
                ready()

    config = uvicorn.Config(
        gate,
        host=host,
        port=port,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        lifespan="on",
        ws="none",
        # Connections of the standard loop pass Python's audit hooks, so that a test (or an operator) can watch them.
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    _Server(config).run()


def _read_once(scope: Scope, name: str) -> bytes:
    """Return a header that is there exactly once: of two, the gate would check one and the SuperLink the other."""
    (value,) = (value for key, value in scope["headers"] if key == name.encode())
    assert isinstance(value, bytes)
    return value


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "unknown"
