"""The Flower ServerApp: ``codeward.federated.server_app:app``.

The run configuration names the working folder of a simulation and its federations. Nodes are bound to users in order,
as a simulation does; a deployment wraps `run_federation` with a binding by registered keys.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from flwr.app import Array, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from codeward._errors import InputError
from codeward.federated._federation_folder import FederationFolder
from codeward.federated._flower_rounds import (
    NodeBinding,
    OrderBinding,
    await_nodes,
    by_user,
    exchange,
    open_array,
    pack_assignment,
    run_federation,
    unpack_reply,
)
from codeward.federated._one_round import ANSWER, ONE_ROUND_FILE, QUESTION, OneRound, OneRoundPlan

__all__ = ["NodeBinding", "OrderBinding", "app", "pack_assignment", "run_federation", "run_one_round", "unpack_reply"]

_LOG = logging.getLogger("codeward.federated")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the federations of the run configuration, one after the other, on simulated nodes."""
    work, labels = (context.run_config.get(key) for key in ("simulation", "federations"))
    if not isinstance(work, str) or not isinstance(labels, str) or not labels:
        raise InputError("run config: simulation must name a folder and federations those in it, as codeward writes it")
    for label in labels.split(","):
        folder = FederationFolder(Path(work) / label / "server")
        if (folder.path / ONE_ROUND_FILE).is_file():
            users = OneRoundPlan.load(folder.path / ONE_ROUND_FILE).code.n_users
            run_one_round(grid, folder.path, OrderBinding(users), label=label)
        else:
            run_federation(grid, folder.path, OrderBinding(folder.load_plan().code.n_users), label=label)


def run_one_round(
    grid: Grid,
    folder: str | os.PathLike[str],
    binding: NodeBinding,
    join_timeout: float = 120.0,
    quorum: int | None = None,
    label: str = "",
    poll: float = 0.2,
) -> OneRound:
    """Ask every user once, check what comes, fit the heads, and leave them in the server's folder.

    Parameters
    ----------
    grid, folder, binding, join_timeout, quorum, label
        As for `run_federation`; the folder holds ``one-round.json``.
    poll : float
        Seconds between looks for replies.

    Examples
    --------
    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> from codeward.codes import Code
    >>> nobody = SimpleNamespace(get_node_ids=lambda: [])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     OneRoundPlan.make(Code([[1]]), "gradients", n_classes=2).save(Path(folder) / ONE_ROUND_FILE)
    ...     run_one_round(nobody, folder, OrderBinding(1), join_timeout=0)
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: no user's node connected within 0 s; nothing was trained
    """
    plan = OneRoundPlan.load(Path(folder) / ONE_ROUND_FILE)
    server = OneRound(plan)
    wanted = plan.code.n_users if quorum is None else quorum
    if not await_nodes(grid, binding, wanted, join_timeout):
        raise InputError(f"no user's node connected within {join_timeout:g} s; nothing was trained")
    nodes = by_user(binding.bind(grid))

    def ask() -> Iterator[tuple[int, Message]]:
        for user, node in nodes.items():
            question = ConfigRecord({"plan": json.dumps(plan.to_json()), "user": user, "label": label})
            content = RecordDict({QUESTION: question})
            yield user, Message(content, dst_node_id=node, message_type=MessageType.QUERY, ttl=plan.timeout)

    def refuse(user: int, reason: str) -> None:
        server.refuse(user, f"{plan.name(user)}: {reason}")

    def take(user: int, content: RecordDict) -> None:
        found: Mapping[str, Array] = content.array_records.get(ANSWER) or {}
        # Sizes are looked at before anything is opened.
        largest = 8 * plan.width * (plan.width + 1) + (1 << 20)
        try:
            if sum(len(array.data) for array in found.values()) > largest:
                raise InputError("its message is too large")
            server.accept(user, {name: open_array(array) for name, array in found.items()})
        except Exception as error:
            refuse(user, str(error))

    exchange(grid, ask(), plan.timeout, poll, take, refuse)
    server.save(folder)
    counts = len(server.counted), len(server.silent), len(server.refusals)
    _LOG.info("one round: %d users counted, %d silent, %d refused", *counts)
    return server
