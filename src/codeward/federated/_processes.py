"""Child processes that start children of their own, and an end that reaches all of them."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from codeward._errors import InputError


class ProcessTree:
    """A process and all that descend from it.

    Flower's SuperLink starts its helpers in a session of their own, and these start Ray: ending the SuperLink, or its
    process group, leaves a running simulation behind. Descendants are therefore noted while their parents live
    (`note`), each with its time of birth, so that a number that was given to somebody else is never signalled.

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
        self.born: dict[int, str] = {}
        with log.open("wb") as out:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the tree.
            self.process = subprocess.Popen(
                [found, *command[1:]],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the first process still runs."""
        return self.process.poll() is None

    def note(self) -> None:
        """Remember all that descend from the process now."""
        listed = _list_processes()
        known = {self.process.pid} | {pid for pid, birth in self.born.items() if listed.get(pid, (0, ""))[1] == birth}
        while True:
            new = {pid for pid, (parent, _) in listed.items() if parent in known and pid not in known}
            if not new:
                break
            known |= new
            self.born.update({pid: listed[pid][1] for pid in new})

    def end(self, patience: float = 15.0) -> None:
        """End the process and everything noted: politely first, after ``patience`` seconds not."""
        self.note()
        for kind in (signal.SIGTERM, signal.SIGKILL):
            if self.running:
                self.process.send_signal(kind)
            for pid in self._living():
                with suppress(ProcessLookupError):
                    os.kill(pid, kind)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                if not self.running and not self._living():
                    return
                time.sleep(0.2)

    def _living(self) -> list[int]:
        listed = _list_processes()
        return [pid for pid, birth in self.born.items() if pid in listed and listed[pid][1] == birth]


def _list_processes() -> dict[int, tuple[int, str]]:
    """Return parent and time of birth of every process that is not a zombie, by number."""
    if not Path("/proc/self/stat").exists():
        command = ["ps", "-eo", "pid=,ppid=,stat=,lstart="]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = (line.split(maxsplit=3) for line in output.splitlines())
        return {int(pid): (int(parent), birth) for pid, parent, state, birth in rows if not state.startswith("Z")}
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # proc(5): the name, in brackets, may hold anything; after it come state, parent, ..., and 22nd the birth.
            fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                found[int(file.parent.name)] = (int(fields[1]), fields[19])
    return found
