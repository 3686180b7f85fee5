"""Assignments and replies as Flower records, and back. Decoding trusts nothing a client wrote."""

import json
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.federated._protocol import Arrays, Assignment, Parcel, Reply
from codeward.training import TrainingSettings

_ASSIGNMENT, _SIMULATION, _REPLY, _MODEL = "assignment", "simulation", "reply", "model-"


def pack_assignment(assignment: Assignment, label: str = "") -> RecordDict:
    """Turn an assignment into the content of a message; a simulation of several federations labels it with one."""
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
    """Return which of a simulation's federations an assignment belongs to; empty outside simulations."""
    record = content.config_records.get(_SIMULATION)
    return "" if record is None else str(record["label"])


def unpack_assignment(content: RecordDict) -> Assignment:
    """Read an assignment on the client's side; raises `InputError` when the server speaks another protocol."""
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
    """Turn a reply into the content of a message; also a dishonest one, as far as records can hold it."""
    content = RecordDict()
    content[_REPLY] = ConfigRecord(dict(reply.envelope))  # type: ignore[arg-type]
    for key, parcels in reply.models.items():
        content[f"{_MODEL}{key}"] = _pack_arrays({name: parcel.open() for name, parcel in parcels.items()})
    return content


def unpack_reply(content: RecordDict) -> Reply:
    """Wrap what a client sent, unopened; whatever has no place in a reply comes out as something to be refused."""
    envelope: dict[str, object] = dict(content.config_records.get(_REPLY, {}))
    models: dict[str, dict[str, Parcel]] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            key = name.removeprefix(_MODEL) if name.startswith(_MODEL) else name
            models[key] = {part: _wrap(array) for part, array in record.items()}
        elif name != _REPLY:
            models[name] = {}
    return Reply(envelope, models)


def _pack_arrays(arrays: Arrays) -> ArrayRecord:
    # Not ascontiguousarray: it makes 1-d arrays of 0-d ones, such as batch norm's counter.
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def _wrap(array: Array) -> Parcel:
    return Parcel(str(array.dtype), tuple(array.shape), len(array.data), partial(_open, array))


def _open(array: Array) -> NDArray[Any]:
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
