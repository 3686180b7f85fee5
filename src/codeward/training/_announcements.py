"""Tell a caller of finished ensembles while others are still in training."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class Announcer:
    """Calls back once for every task, as soon as its last model is there; one call at a time, in a thread of its own.

    Tasks that lack nothing are announced on entering, before any training begins: while CUDA graphs are captured, no
    other thread may use the device. Leaving the context waits for the calls that are due and raises the first error of
    any of them.

    Parameters
    ----------
    tasks : sequence of sequence of str
        The keys of each task's models.
    missing : set of str
        Keys that are yet to be trained.
    tell : callable, optional
        Takes the position of a task.
    """

    def __init__(self, tasks: Sequence[Sequence[str]], missing: set[str], tell: Callable[[int], None] | None) -> None:
        self.left = [set(keys) & missing for keys in tasks]
        self.tell = tell
        self.lock = threading.Lock()
        self.calls: list[Future[None]] = []
        self.pool = ThreadPoolExecutor(1, "announce")

    def __enter__(self) -> "Announcer":
        for task, left in enumerate(self.left):
            if not left:
                self._announce(task)
        for call in self.calls:
            call.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error or Ctrl-C in training, calls that have not begun are dropped: the caller starts again anyway.
        self.pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            for call in self.calls:
                call.result()

    def note(self, key: str) -> None:
        """Take note that a model is finished and kept."""
        with self.lock:
            for task, left in enumerate(self.left):
                if key in left:
                    left.discard(key)
                    if not left:
                        self._announce(task)

    def _announce(self, task: int) -> None:
        if self.tell is not None:
            self.calls.append(self.pool.submit(self.tell, task))
