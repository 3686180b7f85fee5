"""Micro-batching: what waits together is worked on together, by one thread."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

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
