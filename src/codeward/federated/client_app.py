"""The Flower ClientApp: ``codeward.federated.client_app:app``.

A client's data are a file on its own machine (see `codeward.federated.save_samples`), named by the node's own
configuration (``data``). In a simulation the run configuration names a folder, and the message which federation of it.
"""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from codeward._errors import InputError
from codeward.data import Samples, render
from codeward.federated._flower_rounds import pack_reply, read_label, unpack_assignment
from codeward.federated._local_training import load_samples, train_update
from codeward.federated._protocol import Update

__all__ = ["answer_message", "app", "pack_reply", "read_label", "unpack_assignment"]

app = ClientApp()

# A simulation sends many messages to one process; the data of a few users stay open.
_open_file = lru_cache(maxsize=16)(load_samples)


def find_samples(context: Context, user: int, label: str = "") -> Samples:
    """Open the data this node trains on."""
    own = context.node_config.get("data")
    if isinstance(own, str):
        return _open_file(Path(own).expanduser())
    folder = context.run_config.get("simulation")
    # Only a simulated node may take data that the server's side names.
    if isinstance(folder, str) and "partition-id" in context.node_config:
        return _open_file(Path(folder) / label / "data" / f"user{user}.npz")
    raise InputError("no data: start the SuperNode with --node-config 'data=\"FILE.npz\"' (arrays images and labels)")


def answer_message(message: Message, context: Context, update: Update = train_update) -> Message:
    """Do what an assignment asks and return the reply; another ``update`` makes another client of it.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> answer_message(SimpleNamespace(content=RecordDict()), None)
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: the server's message is not an assignment of this version: 'assignment'
    """
    assignment = unpack_assignment(message.content)
    reply = update(assignment, find_samples(context, assignment.user, read_label(message.content)))
    if reply is None:
        raise InputError("this client does not answer")
    return Message(pack_reply(reply), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the models of this user's column on its own data."""
    return answer_message(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Send the statistics of this user's own data, once for all its models; by the plan's backbone or not at all."""
    # Heads and backbones bring SciPy, which a client that trains networks does without.
    from codeward.federated import _one_round

    record = message.content.config_records.get(_one_round.QUESTION)
    try:
        told = json.loads(str(record["plan"])) if record else {}
        user, label = int(record["user"]), str(record["label"])  # type: ignore[index, arg-type]
        plan = _one_round.OneRoundPlan.from_json(told)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the server's message is not a plan of one round: {error}") from error
    if plan.backbone == "features":
        raise InputError("one round over Flower starts from images; send features by file (federate one-round send)")
    samples = find_samples(context, user, label)
    inputs = np.rint(render(samples) * 255).astype(np.uint8) if samples.overlays else samples.images
    arrays = _one_round.make_statistics(plan, inputs, samples.labels)
    content = RecordDict({_one_round.ANSWER: ArrayRecord({name: Array(array) for name, array in arrays.items()})})
    return Message(content, reply_to=message)
