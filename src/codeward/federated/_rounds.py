"""The rounds of a federation over Flower: one message a user and round, and never a wait beyond the timeout."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from codeward._errors import InputError
from codeward.federated._binding import NodeBinding
from codeward.federated._federation import Federation, RoundReport
from codeward.federated._protocol import Assignment
from codeward.federated._wire import pack_assignment, unpack_reply

_LOG = logging.getLogger("codeward.federated")


@dataclass
class Traffic:
    """Bytes of weights that a round moved, as Flower serialises them."""

    sent: int = 0
    received: int = 0


def run_rounds(
    grid: Grid,
    federation: Federation,
    binding: NodeBinding,
    watch: Callable[[RoundReport, Traffic], None] = lambda report, traffic: None,
    join_timeout: float = 120.0,
    quorum: int | None = None,
    poll: float = 0.2,
    label: str = "",
) -> None:
    """Run all rounds of a federation.

    A round ends when every user that was sent an assignment has answered, or after the settings' ``timeout``: late and
    missing users cost the round their part, nothing else. A reply counts for the user its node is bound to.

    Parameters
    ----------
    grid : Grid
    federation : Federation
        Gets the replies; holds the models afterwards.
    binding : NodeBinding
    watch : callable
        Told about each round as it ends.
    join_timeout : float
        Seconds to wait, before the first round, for ``quorum`` users.
    quorum : int, optional
        By default all users. With fewer after the wait, training starts with those who are there, if any.
    poll : float
        Seconds between looks for replies.
    label : str
        Of a simulation that runs several federations: which one, for the simulated clients.
    """
    everybody = federation.plan.code.n_users
    present = _await_nodes(grid, binding, everybody if quorum is None else quorum, join_timeout)
    if not present:
        raise InputError(f"no user's node connected within {join_timeout:g} s; nothing was trained")
    while federation.round < federation.plan.settings.rounds:
        assignments = federation.assign()
        traffic = _exchange(grid, federation, assignments, _by_user(binding.bind(grid)), poll, label)
        watch(federation.close(), traffic)


def _await_nodes(grid: Grid, binding: NodeBinding, wanted: int, patience: float) -> int:
    deadline = time.monotonic() + patience
    while (present := len(set(binding.bind(grid).values()))) < wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    return present


def _by_user(bound: Mapping[int, int]) -> dict[int, int]:
    """Return the node of each user; where a binding names two nodes for one user, neither is trusted."""
    nodes: dict[int, list[int]] = {}
    for node, user in bound.items():
        nodes.setdefault(user, []).append(node)
    for user, found in nodes.items():
        if len(found) > 1:
            _LOG.warning("user %d has %d nodes; none of them is used", user, len(found))
    return {user: found[0] for user, found in nodes.items() if len(found) == 1}


def _exchange(
    grid: Grid,
    federation: Federation,
    assignments: Mapping[int, Assignment],
    nodes: Mapping[int, int],
    poll: float,
    label: str,
) -> Traffic:
    """Send one round's assignments and take in the replies until all are there or time is up."""
    timeout = federation.plan.settings.timeout
    waiting: dict[str, int] = {}
    traffic = Traffic()
    # One call a message: Flower leaves out the ids of messages it could not store, so a list could not be told apart.
    for user, assignment in assignments.items():
        if user in nodes:
            content = pack_assignment(assignment, label)
            traffic.sent += _weigh(content)
            message = Message(
                content,
                dst_node_id=nodes[user],
                message_type=MessageType.TRAIN,
                ttl=timeout,
                group_id=str(assignment.round),
            )
            for sent in grid.push_messages([message]):
                if sent:
                    waiting[sent] = user
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        for sent, user in list(waiting.items()):
            if _receive(grid, federation, sent, user, nodes[user], traffic):
                del waiting[sent]
        if late or not waiting:
            return traffic
        time.sleep(poll)


def _weigh(content: RecordDict) -> int:
    return sum(record.count_bytes() for record in content.array_records.values())


def _receive(grid: Grid, federation: Federation, sent: str, user: int, node: int, traffic: Traffic) -> bool:
    """Take in the reply to one message if it is there. Replies are pulled one by one: a broken one breaks no other."""
    try:
        messages = list(grid.pull_messages([sent]))
    except Exception as error:
        # Flower rebuilds the message here from what the client uploaded, so anything may be raised. A lost SuperLink
        # ends up here too, after Flower's own retries; the next round's push then fails loudly.
        federation.fail(user, f"its reply cannot be read: {type(error).__name__}")
        return True
    for message in messages:
        if message.has_error() and message.error.code == ErrorCode.NODE_UNAVAILABLE:
            continue  # gone, not guilty: the round's report lists it among the silent
        if message.has_error():
            federation.fail(user, message.error.reason or "no reason given")
        elif message.metadata.src_node_id != node:
            federation.fail(user, "its reply comes from another node")
        else:
            traffic.received += _weigh(message.content)
            federation.accept(user, unpack_reply(message.content))
    return bool(messages)
