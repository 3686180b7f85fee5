"""What one client may ask of the endpoint, who it must be, and how it is told that it asked too much."""

import asyncio
import hmac
import ipaddress
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import HTTPException, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codeward._errors import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds on requests; every one has an answer of its own.

    Attributes
    ----------
    body_bytes, json_bytes : int
        413 beyond. JSON has a lower limit: a number takes thirty times its text while it is read, and nothing else runs
        meanwhile; ``.npy`` has neither fault.
    pending_bytes : int
        Bodies of all requests in hand together; 429 with Retry-After beyond.
    batch : int
        Inputs in one request; 413 beyond.
    in_flight, per_client : int
        Predictions being made, of all clients and of one; 429 with Retry-After beyond.
    connections, connections_per_address : int
        Open connections; beyond, those without a request make room.
    header_seconds : float
        Time for the head of a request to arrive; 408 beyond.
    waiting : int
        Inputs waiting for the models; 429 with Retry-After beyond.
    upload_seconds : float
        Time for a body to arrive; 408 beyond.
    seconds : float
        Time for an answer once the body is there; 504 with Retry-After beyond.

    Examples
    --------
    >>> Limits(batch=16).json_bytes
    1048576
    """

    body_bytes: int = 8 * 2**20
    json_bytes: int = 2**20
    pending_bytes: int = 64 * 2**20
    batch: int = 256
    in_flight: int = 128
    per_client: int = 64
    connections: int = 512
    connections_per_address: int = 256
    header_seconds: float = 10.0
    waiting: int = 1024
    upload_seconds: float = 10.0
    seconds: float = 30.0


def refuse(status: int, message: str, retry_after: int | None = None) -> HTTPException:
    """Return the exception that answers with this status and message."""
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return HTTPException(status, message, headers)


def group_address(host: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 one."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


class BodyPool:
    """Counts the bytes of bodies in hand."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def hold(self, size: int) -> None:
        """Count more bytes; HTTPException 429 where it would be too many."""
        if self.held + size > self.most:
            raise refuse(429, "the bodies of all requests are too large together", retry_after=1)
        self.held += size

    def release(self, size: int) -> None:
        """Count fewer bytes."""
        self.held -= size


async def read_body(request: Request, limits: Limits, pool: BodyPool) -> bytes:
    """Read a body within the limits; what a client announces is not trusted, what arrives is counted.

    The pool holds its length afterwards, and nothing where it could not be read.
    """
    is_json = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    most = min(limits.json_bytes, limits.body_bytes) if is_json else limits.body_bytes
    more = "; larger batches go as .npy" if is_json and most < limits.body_bytes else ""
    too_large = refuse(413, f"the body is larger than {most} bytes{more}")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > most:
        raise too_large
    body = bytearray()
    held = 0
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async for chunk in request.stream():
                pool.hold(len(chunk))
                held += len(chunk)
                body += chunk
                if len(body) > most:
                    raise too_large
        held = 0
    except TimeoutError:
        raise refuse(408, f"the body did not arrive within {limits.upload_seconds:g} seconds") from None
    except ClientDisconnect:
        raise refuse(400, "the connection closed before the body was complete") from None
    finally:
        pool.release(held)
    return bytes(body)


#: Environment variable with the bearer token.
TOKEN_VARIABLE = "CODEWARD_TOKEN"
_LEAST_TOKEN = 16


@dataclass(frozen=True)
class ServeSettings:
    """An address and, unless it is a loopback one, a token.

    Attributes
    ----------
    host : str
    port : int
        0 lets the system choose.
    token : str, optional
        Bearer token that clients must show.
    insecure : bool
        Listen beyond this machine without a token, knowingly.
    trusted_proxies : tuple of str
        Addresses or networks (10.0.0.0/8) of proxies whose X-Forwarded-For says who a client is.

    Examples
    --------
    >>> ServeSettings().is_loopback
    True
    >>> ServeSettings("0.0.0.0", token="a token of 16 or more"[:16], trusted_proxies=("10.0.0.0/8",)).trusts("10.1.2.3")
    True
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    insecure: bool = False
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InputError(f"port: expected 0..65535, got {self.port}")
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise InputError(f"trusted proxy: {proxy} is no address or network ({error})") from error
        if not self.is_loopback and self.token is None and not self.insecure:
            raise InputError(
                f"host: {self.host} is open to other machines; set a token ({TOKEN_VARIABLE} or --token-file), "
                "or say --insecure"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def trusts(self, host: str) -> bool:
        """Whether an address is a trusted proxy's."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(proxy) for proxy in self.trusted_proxies)

    @property
    def allowed_hosts(self) -> frozenset[str] | None:
        """Host names a request may carry; None for any.

        Without a token, any web page the user visits could reach a loopback service under a name of its own (DNS
        rebinding); the Host header tells.
        """
        if self.token is not None or not self.is_loopback:
            return None
        return frozenset({"localhost", "127.0.0.1", "::1", self.host})


def read_token(file: str | os.PathLike[str] | None) -> str | None:
    """Return the token in a file, else the one in the environment, else None.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w") as file:
    ...     _ = file.write("0123456789abcdef")
    ...     file.flush()
    ...     read_token(file.name)
    '0123456789abcdef'
    """
    if file is not None:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"token file: {file} is not readable ({error})") from error
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            return None
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"token: expected at least {_LEAST_TOKEN} printable ASCII characters without spaces")
    return token


#: Nothing from elsewhere, no inline script or style, no framing, no forms.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Answered without a token: the page holds no data, and a health check has nobody's secret.
_OPEN = ("/", "/healthz")


class AccessControl:
    """ASGI middleware around the application.

    Parameters
    ----------
    app : ASGI application
    settings : ServeSettings
    count : callable
        Told path, status and seconds of every request.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, count: Callable[[str, int, float], None]) -> None:
        self.app, self.settings, self.count = app, settings, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        path: str = scope["path"]
        headers = Headers(scope=scope)
        try:
            if not self._knows_host(headers):
                await _answer(send_on, 421, "this name is not served here; use the address that codeward serve printed")
            elif not (path in _OPEN or path.startswith("/page/") or self._has_token(headers)):
                await _answer(send_on, 401, "a bearer token is needed", [("WWW-Authenticate", "Bearer")])
            else:
                await self.app(scope, receive, send_on)
        finally:
            self.count(path, status, time.perf_counter() - begin)

    def _knows_host(self, headers: Headers) -> bool:
        allowed = self.settings.allowed_hosts
        if allowed is None:
            return True
        host = headers.get("host", "").lower()
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        return name in allowed

    def _has_token(self, headers: Headers) -> bool:
        token = self.settings.token
        if token is None:
            return True
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        # Compared in constant time: how long it takes must not tell how much of a guess is right.
        right = hmac.compare_digest(shown.strip().encode(), token.encode())
        return scheme.lower() == "bearer" and right


async def _answer(send: Send, status: int, detail: str, headers: Iterable[tuple[str, str]] = ()) -> None:
    body = json.dumps({"detail": detail}).encode()
    raw = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    raw += [(name.lower().encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
