"""What travels between the server and a user in one round, as plain values: no engine is known here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.data import Samples
from codeward.training import TrainingSettings

#: Weights and buffers of one network by name.
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Assignment:
    """What one user is asked to do in one round: train the models of its column, and nothing else.

    Attributes
    ----------
    user : int
        The user's column. It comes from the server's own binding of nodes to users.
    round : int
        Counted from 1.
    nonce : str
        Fresh for each round and user; a reply must carry it, so that an old or copied reply is known as one.
    shape : tuple of int
        Channels, height, width of the images.
    training : TrainingSettings
        ``epochs`` holds the local epochs.
    seeds : mapping of int to int
        Seed of all randomness in the local training of each model: a function of the model, the user and the round.
    models : mapping of int to arrays
        Starting weights of each model of the user's column.
    """

    user: int
    round: int
    nonce: str
    shape: tuple[int, int, int]
    training: TrainingSettings
    seeds: Mapping[int, int]
    models: Mapping[int, Arrays]


@dataclass(frozen=True)
class Parcel:
    """An array as it arrived: what it says about itself, and a way to open it. Opened only after its size is checked.

    Attributes
    ----------
    dtype, shape
        As declared by the sender.
    size : int
        Bytes it takes up now, unopened.
    open : callable
        Decodes it; may raise anything.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int
    open: Callable[[], NDArray[Any]]

    @classmethod
    def wrap(cls, array: NDArray[Any]) -> "Parcel":
        """Return a parcel of an array that is here already."""
        return cls(str(array.dtype), tuple(array.shape), int(array.nbytes), partial(np.asarray, array))


@dataclass(frozen=True)
class Reply:
    """What a user sent back, word for word: nothing in it is believed before `check_reply` has seen it.

    Attributes
    ----------
    envelope : mapping
        An honest one holds ``round``, ``nonce`` and ``samples`` (how many it trained on).
    models : mapping
        Arrays by name for each model, under the model's index as text.
    """

    envelope: Mapping[str, object]
    models: Mapping[str, Mapping[str, Parcel]]


#: What a user does with an assignment and its data; None when it does not answer.
Update = Callable[[Assignment, Samples], Reply | None]


def answer(assignment: Assignment, samples: int, models: Mapping[int, Arrays]) -> Reply:
    """Return the reply of a user who followed the protocol."""
    envelope = {"round": assignment.round, "nonce": assignment.nonce, "samples": samples}
    parcels = {
        str(model): {name: Parcel.wrap(array) for name, array in arrays.items()} for model, arrays in models.items()
    }
    return Reply(envelope, parcels)
