"""One progress bar for everything: rich on a terminal, a plain line now and then elsewhere, always on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

#: Seconds between plain lines when stderr is not a terminal.
PLAIN_INTERVAL = 10.0


class Progress(Protocol):
    """What a long job calls while it works."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Move on by ``amount``; ``note`` replaces the text behind the bar when it is not empty."""


class _Silent:
    def advance(self, amount: float = 1, note: str = "") -> None:
        """Do nothing."""


class _Plain:
    def __init__(self, description: str, total: float) -> None:
        self.description, self.total, self.done, self.note = description, total, 0.0, ""
        self.start = self.last = time.monotonic()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Count, and print when the last line is old enough."""
        self.done += amount
        self.note = note or self.note
        now = time.monotonic()
        if now - self.last >= PLAIN_INTERVAL:
            self.last = now
            share = f"{self.done:g}/{self.total:g}" if self.total else f"{self.done:g}"
            print(f"{self.description}: {share} {self.note} ({now - self.start:.0f} s)", file=sys.stderr, flush=True)


def silent() -> Progress:
    """Return a progress that shows nothing: the default of every library function."""
    return _Silent()


#: What a function that opens bars of its own takes: the caller's progress, True for its own bars, else nothing.
Shown = Progress | bool | None


@contextmanager
def show_progress(description: str, total: float, shown: Shown = True) -> Iterator[Progress]:
    """Show a bar with time left on a terminal, plain lines elsewhere.

    Parameters
    ----------
    description : str
        Words before the bar.
    total : float
        What `Progress.advance` adds up to; 0 when unknown.
    shown : Progress, bool or None
        A progress of the caller's is advanced instead; False or None: nothing is shown.
    """
    if not isinstance(shown, bool):
        yield shown or _Silent()
        return
    if not shown:
        yield _Silent()
        return
    if not sys.stderr.isatty():
        yield _Plain(description, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:g}" + ("/{task.total:g}" if total else "") + " {task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(description, total=total or None, note="")

        class _Rich:
            def advance(self, amount: float = 1, note: str = "") -> None:
                if note:
                    bar.update(task, note=note)
                bar.advance(task, amount)

        yield _Rich()
