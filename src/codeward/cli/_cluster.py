"""``--engine`` and ``--address``: where a command trains, which never changes what comes out."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from codeward._errors import InputError

if TYPE_CHECKING:
    from codeward.training import Cluster


def name_cluster(engine: str | None, address: str | None) -> list[str]:
    """Return the two options as overrides of a configuration's ``cluster``: none where neither is given."""
    address = pick_address(engine, address)
    return [] if engine is None else [f"cluster={json.dumps(address)}"]


@contextmanager
def open_cluster(engine: str | None, address: str | None) -> "Iterator[Cluster | None]":
    """Open the cluster that the two options name for as long as the context lasts; None where this process trains."""
    from codeward.training import Cluster

    chosen = pick_address(engine, address)
    if chosen is None:
        yield None
        return
    with Cluster(chosen) as cluster:
        cluster.check()
        yield cluster


def pick_address(engine: str | None, address: str | None) -> str | None:
    """Return the address of the cluster to train on; None for this process."""
    if engine not in (None, "serial", "ray"):
        raise InputError(
            f"--engine {engine}: expected serial or ray (how a machine computes is --set training.engine=...)"
        )
    if address is not None and engine != "ray":
        raise InputError("--address: goes with --engine ray")
    return (address or "local") if engine == "ray" else None
