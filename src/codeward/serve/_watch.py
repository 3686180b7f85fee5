"""What ``/healthz`` knows: whether the ledger takes incidents, and whether the models served are still the run's."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from codeward import __version__
from codeward.serve._incident_ledger import Ledger

#: Seconds between looks, and after which a look that has not come back counts as a failure.
EVERY, PATIENCE = 5.0, 15.0


class HealthWatch:
    """Looks at ledger and run folder from a thread of its own, so that asking costs nothing and never waits.

    Parameters
    ----------
    ledger : Ledger
        Takes a small write every look.
    folder : path-like
        The run folder served.
    files : sequence of path-like
        What the models were opened with; changed on disk, the server serves old ones.
    """

    def __init__(self, ledger: Ledger, folder: str | os.PathLike[str], files: list[Path]) -> None:
        self.ledger, self.folder, self.files = ledger, Path(folder), files
        self._opened = self._stamps()
        self._takes, self._models, self._looked = True, "current", time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="codeward-health")

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._thread, self.look)
            await asyncio.sleep(EVERY)

    def look(self) -> None:
        """Try the ledger and compare the files."""
        try:
            self.ledger.probe()
            self._takes = True
        except OSError:
            self._takes = False
        revoked = self.folder / "revoked"  # states made here, and notes of those made elsewhere
        if any(revoked.glob("*/revocation.json")) or any(revoked.glob("[!.]*.json")):
            self._models = "old: users were revoked from this run; serve the folder without them"
        elif self._stamps() != self._opened:
            self._models = "old: the run folder has changed; start again"
        else:
            self._models = "current"
        self._looked = time.monotonic()

    def note(self, recorded: bool) -> None:
        """Take note of whether incidents were recorded."""
        self._takes = recorded

    def close(self) -> None:
        """Stop looking."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def report(self) -> dict[str, Any]:
        """Return what was seen last: status, version, ledger, models. Nothing in it is a secret."""
        waited = time.monotonic() - self._looked
        ledger = "ok" if self._takes else "takes no incidents"
        if waited > PATIENCE:
            ledger = f"no answer for {waited:.0f} seconds"
        status = "failing" if ledger != "ok" else "ok" if self._models == "current" else "degraded"
        return {"status": status, "version": __version__, "ledger": ledger, "models": self._models}

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(file) for file in self.files]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
