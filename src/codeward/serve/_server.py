"""Below the endpoint: a socket, connections that cannot pile up, a graceful end; and work that waits together."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from codeward.serve._access import Limits, ServeSettings, group_address

#: Seconds an idle connection is kept.
KEEP_ALIVE = 15
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


Item = TypeVar("Item")
Result = TypeVar("Result")


class Overloaded(Exception):
    """More items wait than are let in."""


@dataclass(frozen=True)
class _Waiting(Generic[Item, Result]):
    items: Sequence[Item]
    answer: "asyncio.Future[list[Result]]"


class MicroBatcher(Generic[Item, Result]):
    """Queues items for one worker thread; whatever has arrived while it worked goes into its next pass.

    Nothing waits for company: an idle worker starts at once, and batches grow with the load by themselves.

    Parameters
    ----------
    work : callable
        Items to as many results, in order; called from one thread only.
    batch : int
        Items of one pass, unless a single request has more.
    waiting : int
        Items let in at most; `Overloaded` beyond.
    observe : callable
        Told the size of every pass.
    """

    def __init__(
        self,
        work: Callable[[list[Item]], list[Result]],
        batch: int,
        waiting: int,
        observe: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.work = work
        self.batch = batch
        self.waiting = waiting
        self.observe = observe
        self.queued = 0
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="codeward")
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """Return the results of the items, in order; an exception of the pass they were in is raised here.

        Cancelled before its pass begins, a request is left out of it.
        """
        if self.queued + len(items) > self.waiting:
            raise Overloaded
        entry = _Waiting[Item, Result](items, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        self.queued += len(items)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._run())
        return await entry.answer

    def close(self) -> None:
        """Let the pass in hand finish and stop the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            taken = self._take()
            if not taken:
                continue
            items = [item for entry in taken for item in entry.items]
            self.observe(len(items))
            try:
                results = await loop.run_in_executor(self._executor, self.work, items)
            except Exception as error:
                for entry in taken:
                    if not entry.answer.done():
                        entry.answer.set_exception(error)
                continue
            start = 0
            for entry in taken:
                stop = start + len(entry.items)
                if not entry.answer.done():
                    entry.answer.set_result(results[start:stop])
                start = stop

    def _take(self) -> list[_Waiting[Item, Result]]:
        taken: list[_Waiting[Item, Result]] = []
        size = 0
        while self._queue and (not taken or size + len(self._queue[0].items) <= self.batch):
            entry = self._queue.popleft()
            self.queued -= len(entry.items)
            if not entry.answer.done():  # a request that ran out of time costs no work
                taken.append(entry)
                size += len(entry.items)
        return taken
