"""One round over Flower: the plan as a question, statistics as the answer, checked as files are."""

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Samples, render
from codeward.federated._flower_rounds import NodeBinding, await_nodes, by_user, open_array
from codeward.federated._one_round import ONE_ROUND_FILE, OneRound, OneRoundPlan, make_statistics

_QUESTION, _ANSWER = "one-round", "statistics"
_LOG = logging.getLogger("codeward.federated")


class OpenSamples(Protocol):
    """Opens the data of the node that is asked."""

    def __call__(self, user: int, label: str = "") -> Samples:
        """Return them; only a simulated node looks at ``user`` and ``label``."""


def answer_statistics(message: Message, open_samples: OpenSamples) -> Message:
    """Return what a user sends: statistics of its own samples, by the backbone of the plan if it has that one."""
    record = message.content.config_records.get(_QUESTION)
    try:
        told = json.loads(str(record["plan"])) if record else {}
        user, label = int(record["user"]), str(record["label"])  # type: ignore[index, arg-type]
        # The user's own column is enough: the code does not enter statistics, only their key.
        plan = OneRoundPlan(Code(told.pop("matrix")), **{key: told[key] for key in _NEEDED})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the server's message is not a plan of one round: {error}") from error
    if plan.backbone == "features":
        raise InputError("one round over Flower starts from images; send features by file (federate one-round send)")
    samples = open_samples(user=user, label=label)
    inputs = np.rint(render(samples) * 255).astype(np.uint8) if samples.overlays else samples.images
    arrays = make_statistics(plan, inputs, samples.labels)
    content = RecordDict({_ANSWER: ArrayRecord({name: Array(array) for name, array in arrays.items()})})
    return Message(content, reply_to=message)


_NEEDED = ("backbone", "digest", "width", "n_classes", "ridge", "sample_limit", "timeout", "class_names")


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
    """
    plan = OneRoundPlan.load(Path(folder) / ONE_ROUND_FILE)
    server = OneRound(plan)
    wanted = plan.code.n_users if quorum is None else quorum
    if not await_nodes(grid, binding, wanted, join_timeout):
        raise InputError(f"no user's node connected within {join_timeout:g} s; nothing was trained")
    nodes = by_user(binding.bind(grid))
    waiting: dict[str, int] = {}
    for user, node in nodes.items():
        question = ConfigRecord({"plan": json.dumps(plan.to_json()), "user": user, "label": label})
        content = RecordDict({_QUESTION: question})
        message = Message(content, dst_node_id=node, message_type=MessageType.QUERY, ttl=plan.timeout)
        waiting |= {sent: user for sent in grid.push_messages([message]) if sent}
    deadline = time.monotonic() + plan.timeout
    while waiting:
        late = time.monotonic() >= deadline
        for sent in [sent for sent, user in waiting.items() if _receive(grid, server, sent, user, nodes[user])]:
            del waiting[sent]
        if late:
            break
        time.sleep(poll if waiting else 0)
    server.save(folder)
    counts = len(server.counted), len(server.silent), len(server.refusals)
    _LOG.info("one round: %d users counted, %d silent, %d refused", *counts)
    return server


def _receive(grid: Grid, server: OneRound, sent: str, user: int, node: int) -> bool:
    """Take in the reply to one message if it is there; whatever is wrong with it is this user's refusal."""
    try:
        messages = list(grid.pull_messages([sent]))
    except Exception as error:  # Flower rebuilds what a client uploaded, so anything may be raised
        server.refuse(user, f"{server.plan.name(user)}: its reply cannot be read: {type(error).__name__}")
        return True
    for message in messages:
        if message.has_error() or message.metadata.src_node_id != node:
            reason = message.error.reason if message.has_error() else "its reply comes from another node"
            server.refuse(user, f"{server.plan.name(user)}: {reason or 'no reason given'}")
            continue
        found: Mapping[str, Array] = message.content.array_records.get(_ANSWER) or {}
        # Sizes are looked at before anything is opened.
        largest = 8 * server.plan.width * (server.plan.width + 1) + (1 << 20)
        try:
            if sum(len(array.data) for array in found.values()) > largest:
                raise InputError("its message is too large")
            server.accept(user, {name: open_array(array) for name, array in found.items()})
        except Exception as error:
            server.refuse(user, f"{server.plan.name(user)}: {error}")
    return bool(messages)
