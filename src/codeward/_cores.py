"""What there is to work on: cores, with rows shared out among them, and the addresses of Ray clusters."""

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from codeward._errors import InputError

#: Fewest rows that are worth a thread.
LEAST_ROWS = 16


def count_cores() -> int:
    """Return the number of cores this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_rows(n_rows: int, work: Callable[[slice], None]) -> None:
    """Call ``work`` on slices that cover rows 0 to ``n_rows``, one a core that this process may use.

    For work on rows that do not depend on each other: the result is the same with any number of cores. The first error
    is raised when all have ended.
    """
    n_parts = max(1, min(count_cores(), n_rows // LEAST_ROWS))
    if n_parts == 1:
        work(slice(0, n_rows))
        return
    borders = [n_rows * part // n_parts for part in range(n_parts + 1)]
    with ThreadPoolExecutor(n_parts) as pool:
        tasks = [pool.submit(work, slice(*pair)) for pair in pairwise(borders)]
    for task in tasks:
        task.result()


def check_address(address: str) -> str:
    """Return ``local``, ``auto`` or ``HOST:PORT`` as it came; refuse everything else."""
    if address in ("local", "auto"):
        return address
    if address.startswith("ray://"):
        raise InputError(
            f"cluster {address}: Ray Client is not supported; run codeward on a machine of the cluster, with HOST:PORT"
        )
    match = re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", address, re.ASCII)
    if match is None or not 0 < int(match[2]) < 65536:
        raise InputError(f"cluster {address!r}: expected local, auto or HOST:PORT (the head's port is 6379 by default)")
    return address
