"""Child processes that start children of their own, and an end that reaches all of them."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from codeward._errors import InputError


class ProcessTree:
    """A process and all that descend from it.

    Flower's SuperLink starts its helpers in a session of their own, and these start Ray: ending the SuperLink, or its
    process group, leaves a running simulation behind. Descendants are therefore noted while their parents live
    (`note`); psutil knows each by number and time of birth, so that a number that was given to somebody else is never
    signalled.

    Parameters
    ----------
    command : sequence of str
        The first word is looked up in the environment's ``PATH``.
    environment : mapping
    folder : Path
        Working directory.
    log : Path
        Gets what the process prints.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
        found = shutil.which(command[0], path=environment["PATH"])
        if found is None:
            raise InputError(f"{command[0]} is missing: pip install 'codeward[flower]'")
        with log.open("wb") as out:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the tree.
            self.process = psutil.Popen(
                [found, *command[1:]],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.known: set[psutil.Process] = set()

    @property
    def running(self) -> bool:
        """Whether the first process still runs."""
        return self.process.poll() is None

    def note(self) -> None:
        """Remember all that descend from the process now."""
        for process in [self.process, *self.known]:
            with suppress(psutil.NoSuchProcess):
                self.known.update(process.children(recursive=True))

    def end(self, patience: float = 15.0) -> None:
        """End the process and everything noted: politely first, after ``patience`` seconds not."""
        self.note()
        rest = [self.process, *self.known]
        for signal in ("terminate", "kill"):
            for process in rest:
                with suppress(psutil.NoSuchProcess):
                    getattr(process, signal)()
            _, rest = psutil.wait_procs(rest, timeout=patience)
            if not rest:
                return
