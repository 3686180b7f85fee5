"""The uvicorn server: a socket bound before anything is announced, connections that cannot pile up, a graceful end."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from codeward.serve._access import Limits, ServeSettings, group_address
from codeward.serve._endpoint import make_app
from codeward.serve._incident_ledger import Ledger
from codeward.serve._opening import GuardedRun

#: Seconds an idle connection is kept.
KEEP_ALIVE = 15
#: Seconds between changes of thread.
SWITCH = 0.0005
#: Seconds requests in hand get at the end.
GRACE = 10
#: Connections that may wait to be accepted; uvicorn's number.
BACKLOG = 2048
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection, with what keeps strangers from piling them up.

    - A request's head must be there ``limits.header_seconds`` after the connection, or after its first byte on a
      connection in use; 408 and the end of the connection otherwise.
    - Past ``limits.connections``, or ``limits.connections_per_address`` of one address (trusted proxies excepted), the
      connection that has waited longest without a request makes room; a new one is refused only where all are at work.
      So silent connections keep nobody out.
    - A client that closes its sending side after the request still gets the answer.
    """

    limits = Limits()
    settings = ServeSettings()
    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_working(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let a connection in, at the cost of an idle one where there are too many."""
        super().connection_made(transport)
        self.address = group_address(self.client[0] if self.client else "")
        self.since = self.loop.time()
        self._deadline = self.loop.call_later(self.limits.header_seconds, self._expire)
        if not self.settings.trusts(self.client[0] if self.client else ""):
            alike = [other for other in self.connections if getattr(other, "address", None) == self.address]
            self._make_room(alike, self.limits.connections_per_address)
        self._make_room(list(self.connections), self.limits.connections)

    def _make_room(self, among: list[Any], most: int) -> None:
        if len(among) > most:
            idle = [other for other in among if not other.is_working and other is not self]
            (min(idle, key=lambda other: other.since) if idle else self)._drop()

    def _drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and watch how long a request's head takes."""
        super().data_received(data)
        if self.is_working:
            self._stop_clock()
            self.since = self.loop.time()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.header_seconds, self._expire)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Stay open for the answer to a complete request."""
        if not self.is_working or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_clock()
        super().connection_lost(exc)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if not self.is_working and not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()


def listen(settings: ServeSettings) -> tuple[socket.socket, str]:
    """Listen on the address and return the socket with its URL; OSError says why where it cannot be had.

    From here on connections wait for the server instead of being refused: the address may be announced.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named: asyncio turns off Nagle's delay (40 ms an answer) on sockets that say they are TCP only.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise OSError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}") from error
    port = bound.getsockname()[1]
    name = f"[{settings.host}]" if family == socket.AF_INET6 else settings.host
    return bound, f"http://{name}:{port}/"


def make_server(app: FastAPI, settings: ServeSettings | None = None, limits: Limits | None = None) -> uvicorn.Server:
    """Return the server; it says nothing of itself, and speaks HTTP only."""
    settings, limits = settings or ServeSettings(), limits or Limits()
    config = uvicorn.Config(
        app,
        log_level="error",  # what strangers send is no warning
        access_log=False,
        server_header=False,
        ws="none",
        http=type("Connection", (GuardedProtocol,), {"limits": limits, "settings": settings}),
        # A client's address is the one a trusted proxy names; nobody else's word counts.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config)


def serve_run(
    run: GuardedRun,
    ledger: Ledger,
    settings: ServeSettings,
    limits: Limits | None = None,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve a run until interrupted; requests in hand are answered first.

    Parameters
    ----------
    run : GuardedRun
    ledger : Ledger
        Closed at the end.
    settings : ServeSettings
    limits : Limits, optional
    announce : callable
        Called with the address once it takes connections.

    Examples
    --------
    An address that cannot be had is refused before anything is served:

    >>> import socket, tempfile
    >>> from codeward.serve import Ledger, ServeSettings
    >>> with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
    ...     serve_run(None, Ledger(f"{folder}/l.sqlite"), ServeSettings(port=taken.getsockname()[1]))
    Traceback (most recent call last):
    OSError: cannot listen on 127.0.0.1 port ...: Address already in use
    """
    bound, address = listen(settings)
    app = make_app(run, ledger, settings, limits)
    announce(address)
    # One core is left to the event loop: parsing requests and running models overlap.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    # The threads of the models and the ledger take the interpreter back after every call that lets go of it; at the
    # default of 5 ms a time, a busy event loop makes an incident wait for most of a second.
    sys.setswitchinterval(SWITCH)
    with bound, suppress(KeyboardInterrupt):  # uvicorn shuts down first and passes the signal on
        make_server(app, settings, limits).run(sockets=[bound])
