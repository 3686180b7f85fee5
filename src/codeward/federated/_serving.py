"""The server's part of a Flower run: plan in, rounds, models out."""

import logging
import os
import time
from dataclasses import asdict
from pathlib import Path

from flwr.serverapp import Grid

from codeward.federated._binding import NodeBinding
from codeward.federated._federation import FederatedResult, RoundReport
from codeward.federated._folder import FederationFolder
from codeward.federated._rounds import Traffic, run_rounds

_LOG = logging.getLogger("codeward.federated")


def run_federation(
    grid: Grid,
    folder: str | os.PathLike[str],
    binding: NodeBinding,
    join_timeout: float = 120.0,
    quorum: int | None = None,
    label: str = "",
) -> FederatedResult:
    """Train the federation whose plan is in a server's folder, and leave the result there.

    Where a server was killed between two rounds, or within one, the next call goes on after the last finished round and
    ends with the same bytes. A federation that has finished is trained anew.

    Parameters
    ----------
    grid : Grid
    folder : path-like
        See `FederationFolder`; ``rounds.jsonl`` grows while it trains.
    binding : NodeBinding
        Who speaks for whom; a deployment hands in one that goes by registered keys.
    join_timeout, quorum, label
        As for `run_rounds`.
    """
    place = FederationFolder(Path(folder))
    if place.finished:
        place.clear()
    federation = place.open_federation()
    total = federation.plan.settings.rounds
    if federation.round:
        _LOG.warning("goes on after round %d of %d", federation.round, total)
    begin = time.perf_counter()

    def watch(report: RoundReport, traffic: Traffic) -> None:
        nonlocal begin
        now = time.perf_counter()
        place.add_round(federation, {"seconds": round(now - begin, 3), **asdict(traffic)})
        begin = now
        _LOG.info(
            "round %d/%d: %d users counted, %d silent, %d refusals",
            report.round, total, len(report.counted), len(report.silent), len(report.refusals),
        )  # fmt: skip

    run_rounds(grid, federation, binding, watch, join_timeout, quorum, label=label)
    result = federation.result()
    place.save_result(result)
    return result
