"""What the server decides, and what travels between it and a user in a round: plain values, no engine is known here."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
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

    Examples
    --------
    >>> weights = {"w": np.zeros(2, np.float32)}
    >>> task = Assignment(0, 1, "nonce", (1, 8, 8), TrainingSettings(), seeds={4: 7}, models={4: weights})
    >>> list(task.models)
    [4]
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

    Examples
    --------
    >>> parcel = Parcel.wrap(np.zeros((2, 3), np.float32))
    >>> parcel.dtype, parcel.shape, parcel.size
    ('float32', (2, 3), 24)
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

    Examples
    --------
    >>> Reply({"round": 1}, {"0": {"w": Parcel.wrap(np.zeros(2))}}).models["0"]["w"].shape
    (2,)
    """

    envelope: Mapping[str, object]
    models: Mapping[str, Mapping[str, Parcel]]


#: What a user does with an assignment and its data; None when it does not answer.
Update = Callable[[Assignment, Samples], Reply | None]


def answer(assignment: Assignment, samples: int, models: Mapping[int, Arrays]) -> Reply:
    """Return the reply of a user who followed the protocol.

    Examples
    --------
    >>> weights = {"w": np.zeros(2, np.float32)}
    >>> task = Assignment(0, 1, "nonce", (1, 8, 8), TrainingSettings(), seeds={4: 7}, models={4: weights})
    >>> answer(task, samples=30, models={4: weights}).envelope
    {'round': 1, 'nonce': 'nonce', 'samples': 30}
    """
    envelope = {"round": assignment.round, "nonce": assignment.nonce, "samples": samples}
    parcels = {
        str(model): {name: Parcel.wrap(array) for name, array in arrays.items()} for model, arrays in models.items()
    }
    return Reply(envelope, parcels)


RULES = ("mean", "trimmed-mean", "median")


@dataclass(frozen=True)
class FederatedSettings:
    """What the server decides before the first round; the same for every sub-model.

    Attributes
    ----------
    rounds : int
    local_epochs : int
        Epochs over its own data that a user trains each of its models for in a round.
    rule : {"mean", "trimmed-mean", "median"}
        How the replies for one model are combined. ``mean`` weighs users by their capped sample counts; the robust
        rules go coordinate by coordinate and count every user once, since a sample count is a client's own claim.
    trim : int
        ``trimmed-mean``: how many of the largest and of the smallest values of a coordinate are left out.
    clip_norm : float, optional
        Largest Euclidean length of an update (reply minus the round's starting weights) for one model; a longer one is
        scaled down to it before the rule.
    sample_cap : int
        A user weighs at most this many samples.
    sample_limit : int
        A reply that claims more samples is refused: nobody in this federation holds so many.
    sample : int, optional
        Users of each column who are asked in a round, drawn anew every round from the plan's seed; by default all.
        Users share a column where they are grouped (see docs/federated.md).
    timeout : float
        Seconds a round waits for replies; what is late or missing does not count.

    Examples
    --------
    >>> FederatedSettings(rounds=3, sample=100).identity
    '{"clip_norm": null, "local_epochs": 1, "rule": "mean", "trim": 1}'
    """

    rounds: int = 10
    local_epochs: int = 1
    rule: str = "mean"
    trim: int = 1
    clip_norm: float | None = None
    sample_cap: int = 10_000
    sample_limit: int = 10_000_000
    sample: int | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for name in ("rounds", "local_epochs", "trim", "sample_cap", "sample_limit", "sample"):
            value = getattr(self, name)
            if name == "sample" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"federated.{name}: expected a positive whole number, got {value!r}")
        if self.rule not in RULES:
            raise InputError(f"federated.rule: expected one of {', '.join(RULES)}, got {self.rule!r}")
        if self.clip_norm is not None and not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise InputError(f"federated.clip_norm: expected a positive number, got {self.clip_norm!r}")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise InputError(f"federated.timeout: expected a positive number of seconds, got {self.timeout!r}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON that the constructor takes back."""
        return asdict(self)

    @property
    def identity(self) -> str:
        """Canonical text of what decides the bytes of a model, beside the replies and their weights."""
        names = ("local_epochs", "rule", "trim", "clip_norm")
        return json.dumps({name: getattr(self, name) for name in names}, sort_keys=True)
