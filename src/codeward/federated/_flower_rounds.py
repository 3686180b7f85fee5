"""Rounds over Flower: assignments and replies as records, who speaks for whom, plan in and models out."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.federated._federation import FederatedResult, Federation, RoundReport
from codeward.federated._federation_folder import FederationFolder
from codeward.federated._protocol import Arrays, Assignment, Parcel, Reply
from codeward.training import TrainingSettings

_ASSIGNMENT, _SIMULATION, _REPLY, _MODEL = "assignment", "simulation", "reply", "model-"


def pack_assignment(assignment: Assignment, label: str = "") -> RecordDict:
    """Turn an assignment into the content of a message; a simulation of several federations labels it with one.

    Examples
    --------
    >>> task = Assignment(0, 1, "nonce", (1, 8, 8), TrainingSettings(), {4: 7}, {4: {"w": np.zeros(2)}})
    >>> sorted(pack_assignment(task, label="first"))
    ['assignment', 'model-4', 'simulation']
    """
    content = RecordDict()
    content[_ASSIGNMENT] = ConfigRecord(
        {
            "user": assignment.user,
            "round": assignment.round,
            "nonce": assignment.nonce,
            "shape": list(assignment.shape),
            "training": json.dumps(assignment.training.to_json()),
            # As text: seeds use all 63 bits.
            "seeds": json.dumps({str(model): seed for model, seed in assignment.seeds.items()}),
        }
    )
    if label:
        content[_SIMULATION] = ConfigRecord({"label": label})
    for model, arrays in assignment.models.items():
        content[f"{_MODEL}{model}"] = _pack_arrays(arrays)
    return content


def read_label(content: RecordDict) -> str:
    """Return which of a simulation's federations an assignment belongs to; empty outside simulations.

    Examples
    --------
    >>> read_label(RecordDict())
    ''
    """
    record = content.config_records.get(_SIMULATION)
    return "" if record is None else str(record["label"])


def unpack_assignment(content: RecordDict) -> Assignment:
    """Read an assignment on the client's side; raises `InputError` when the server speaks another protocol.

    Examples
    --------
    >>> task = Assignment(0, 1, "nonce", (1, 8, 8), TrainingSettings(), {4: 7}, {4: {"w": np.zeros(2)}})
    >>> unpack_assignment(pack_assignment(task)).seeds
    {4: 7}
    """
    try:
        record = content.config_records[_ASSIGNMENT]
        channels, height, width = (int(size) for size in record["shape"])  # type: ignore[union-attr]
        settings = json.loads(str(record["training"]))
        seeds = {int(model): int(seed) for model, seed in json.loads(str(record["seeds"])).items()}
        models = {
            int(name.removeprefix(_MODEL)): {key: array.numpy() for key, array in arrays.items()}
            for name, arrays in content.array_records.items()
        }
        number, user = record["round"], record["user"]
        if set(models) != set(seeds) or not isinstance(number, int) or not isinstance(user, int):
            raise ValueError("models and seeds differ")
        return Assignment(
            user=user,
            round=number,
            nonce=str(record["nonce"]),
            shape=(channels, height, width),
            training=TrainingSettings(**settings),
            seeds=seeds,
            models=models,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"the server's message is not an assignment of this version: {error}") from error


def pack_reply(reply: Reply) -> RecordDict:
    """Turn a reply into the content of a message; also a dishonest one, as far as records can hold it.

    Examples
    --------
    >>> reply = Reply({"round": 1, "nonce": "n", "samples": 3}, {"0": {"w": Parcel.wrap(np.zeros(2))}})
    >>> sorted(pack_reply(reply))
    ['model-0', 'reply']
    """
    content = RecordDict()
    content[_REPLY] = ConfigRecord(dict(reply.envelope))  # type: ignore[arg-type]
    for key, parcels in reply.models.items():
        content[f"{_MODEL}{key}"] = _pack_arrays({name: parcel.open() for name, parcel in parcels.items()})
    return content


def unpack_reply(content: RecordDict) -> Reply:
    """Wrap what a client sent, unopened; whatever has no place in a reply comes out as something to be refused.

    Examples
    --------
    >>> reply = Reply({"round": 1, "nonce": "n", "samples": 3}, {"0": {"w": Parcel.wrap(np.zeros(2))}})
    >>> unpack_reply(pack_reply(reply)).models["0"]["w"].shape
    (2,)
    """
    envelope: dict[str, object] = dict(content.config_records.get(_REPLY, {}))
    models: dict[str, dict[str, Parcel]] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            key = name.removeprefix(_MODEL) if name.startswith(_MODEL) else name
            models[key] = {
                part: Parcel(str(array.dtype), tuple(array.shape), len(array.data), partial(open_array, array))
                for part, array in record.items()
            }
        elif name != _REPLY:
            models[name] = {}
    return Reply(envelope, models)


def _pack_arrays(arrays: Arrays) -> ArrayRecord:
    # Not ascontiguousarray: it makes 1-d arrays of 0-d ones, such as batch norm's counter.
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def open_array(array: Array) -> NDArray[Any]:
    """Decode an array after its header: one that asks for more memory than it declared is never allocated."""
    stream = BytesIO(array.data)
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, turned, dtype = read(stream)
    if shape != tuple(array.shape) or str(dtype) != array.dtype or dtype.hasobject:
        raise ValueError("the header differs from the declaration")
    # Raises unless the rest is exactly what the header announces; nothing is ever unpickled.
    decoded: NDArray[Any] = np.frombuffer(array.data, dtype, offset=stream.tell())
    return decoded.reshape(shape, order="F" if turned else "C")


class NodeBinding(Protocol):
    """The server's mapping of connected nodes to columns of the code.

    Examples
    --------
    >>> class Fixed:
    ...     def bind(self, grid):
    ...         return {7: 0}
    >>> binding: NodeBinding = Fixed()  # node 7 is user 0, whoever else is connected
    """

    def bind(self, grid: Grid) -> dict[int, int]:
        """Return the user index of each node that is connected now, by node id.

        Called at the start of every round. A node that is bound to nobody is left out and gets no messages; two nodes
        never get the same user. The mapping must rest on what the server knows of a node (its registered key), not on
        anything a node sends.
        """


class OrderBinding:
    """Binding of a simulation, where all nodes are the server's own: nodes in order of their ids.

    Which simulated node plays which user does not matter, because nodes hold no data: the assignment names the user and
    the simulated client opens that user's file. Nodes are bound once, when all have arrived, and stay bound.

    Parameters
    ----------
    n_users : int

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> OrderBinding(2).bind(SimpleNamespace(get_node_ids=lambda: [30, 20]))
    {20: 0, 30: 1}
    """

    def __init__(self, n_users: int) -> None:
        self.n_users = n_users
        self.users_: dict[int, int] = {}

    def bind(self, grid: Grid) -> dict[int, int]:
        """Return the user of each node; nobody before all nodes are there."""
        nodes = sorted(grid.get_node_ids())
        if not self.users_ and len(nodes) >= self.n_users:
            self.users_ = {node: user for user, node in enumerate(nodes[: self.n_users])}
        present = set(nodes)
        return {node: user for node, user in self.users_.items() if node in present}


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
    """Run all rounds of a federation; ``watch`` is told about each as it ends, ``poll`` is seconds between looks.

    A round ends when every user that was sent an assignment has answered, or after the settings' ``timeout``: late and
    missing users cost the round their part, nothing else. A reply counts for the user its node is bound to.
    """
    everybody = federation.plan.code.n_users
    present = await_nodes(grid, binding, everybody if quorum is None else quorum, join_timeout)
    if not present:
        raise InputError(f"no user's node connected within {join_timeout:g} s; nothing was trained")
    while federation.round < federation.plan.settings.rounds:
        traffic = _run_round(grid, federation, by_user(binding.bind(grid)), poll, label)
        watch(federation.close(), traffic)


def _run_round(grid: Grid, federation: Federation, nodes: Mapping[int, int], poll: float, label: str) -> Traffic:
    """Send one round's assignments to the users' nodes and take in the replies."""
    assignments, timeout, traffic = federation.assign(), federation.plan.settings.timeout, Traffic()

    def ask() -> Iterator[tuple[int, Message]]:
        for user, assignment in assignments.items():
            if user in nodes:
                content = pack_assignment(assignment, label)
                traffic.sent += _weigh(content)
                number = str(assignment.round)
                yield user, Message(content, nodes[user], MessageType.TRAIN, ttl=timeout, group_id=number)

    def take(user: int, content: RecordDict) -> None:
        traffic.received += _weigh(content)
        federation.accept(user, unpack_reply(content))

    exchange(grid, ask(), timeout, poll, take, federation.fail)
    return traffic


def await_nodes(grid: Grid, binding: NodeBinding, wanted: int, patience: float) -> int:
    """Wait until so many users' nodes are there, or patience ends; return how many are."""
    deadline = time.monotonic() + patience
    while (present := len(set(binding.bind(grid).values()))) < wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    return present


def by_user(bound: Mapping[int, int]) -> dict[int, int]:
    """Return the node of each user; where a binding names two nodes for one user, neither is trusted."""
    nodes: dict[int, list[int]] = {}
    for node, user in bound.items():
        nodes.setdefault(user, []).append(node)
    for user, found in nodes.items():
        if len(found) > 1:
            _LOG.warning("user %d has %d nodes; none of them is used", user, len(found))
    return {user: found[0] for user, found in nodes.items() if len(found) == 1}


def exchange(
    grid: Grid,
    questions: Iterable[tuple[int, Message]],
    timeout: float,
    poll: float,
    take: Callable[[int, RecordDict], None],
    refuse: Callable[[int, str], None],
) -> None:
    """Send each user its question, and take in the replies until all are there or time is up.

    Replies are pulled one by one: a broken one breaks no other. What ``take`` raises is not caught.
    """
    waiting: dict[str, tuple[int, int]] = {}
    # One call a message: Flower leaves out the ids of messages it could not store, so a list could not be told apart.
    for user, message in questions:
        waiting |= {sent: (user, message.metadata.dst_node_id) for sent in grid.push_messages([message]) if sent}
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        for sent, (user, node) in list(waiting.items()):
            try:
                messages = list(grid.pull_messages([sent]))
            except Exception as error:
                # Flower rebuilds the message here from what the client uploaded, so anything may be raised. A lost
                # SuperLink ends up here too, after Flower's own retries; the next round's push then fails loudly.
                refuse(user, f"its reply cannot be read: {type(error).__name__}")
                del waiting[sent]
                continue
            for message in messages:
                if message.has_error() and message.error.code == ErrorCode.NODE_UNAVAILABLE:
                    continue  # gone, not guilty: it is among the silent
                if message.has_error():
                    refuse(user, message.error.reason or "no reason given")
                elif message.metadata.src_node_id != node:
                    refuse(user, "its reply comes from another node")
                else:
                    take(user, message.content)
            if messages:
                del waiting[sent]
        if late or not waiting:
            return
        time.sleep(poll)


def _weigh(content: RecordDict) -> int:
    return sum(record.count_bytes() for record in content.array_records.values())


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
    join_timeout : float
        Seconds to wait, before the first round, for ``quorum`` users.
    quorum : int, optional
        By default all users. With fewer after the wait, training starts with those who are there, if any.
    label : str
        Of a simulation that runs several federations: which one, for the simulated clients.

    Examples
    --------
    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> from codeward.codes import Code
    >>> from codeward.federated import FederatedSettings, FederationPlan
    >>> plan = FederationPlan(Code([[1]]), TrainingSettings(), FederatedSettings(), (1, 28, 28), seed=0)
    >>> nobody = SimpleNamespace(get_node_ids=lambda: [])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     FederationFolder(Path(folder)).save_plan(plan)
    ...     run_federation(nobody, folder, OrderBinding(1), join_timeout=0)
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: no user's node connected within 0 s; nothing was trained
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
