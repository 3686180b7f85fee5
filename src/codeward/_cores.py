"""How many cores there are to work on, and rows shared out among them."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

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
