"""A federation in one round: a user sends its statistics once, for all its models; the server checks and adds them."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_json, read_npz, write_atomic, write_text_atomic
from codeward.codes import Code
from codeward.training import ModelStore
from codeward.training.backbones import BACKBONES, make_backbone
from codeward.training.heads import (
    HeadSet,
    StatisticsSet,
    UserStatistics,
    fit_heads,
    gather_statistics,
    pack_statistics,
    round_to_grid,
    unpack_statistics,
)

#: Name of the plan in a server's folder; a federation that has it is trained in one round.
ONE_ROUND_FILE = "one-round.json"
_RESULT_FILE, _STORE = "one-round-result.json", "store"
_FORMAT = "codeward-one-round/1"
#: Backbones of tables and own functions are not named to users: a server must not choose what code they run.
_OFFERED = tuple(name for name in BACKBONES if name != "hashed-table")


@dataclass(frozen=True)
class OneRoundPlan:
    """What all parties agree on before anybody sends anything.

    Attributes
    ----------
    code : Code
        Its columns are named by the users.
    backbone : str
        A name of `codeward.training.backbones.BACKBONES`, or ``features``: users bring features of their own making.
    digest : str
        Of the backbone; a user whose backbone has another does not answer.
    width, n_classes : int
    ridge : float
    sample_limit : int
        More samples nobody may claim.
    timeout : float
        Seconds the round waits for messages.

    Examples
    --------
    >>> plan = OneRoundPlan.make(Code([[1, 1, 0], [0, 1, 1]], users=["ann", "bob", "eve"]), "gradients", n_classes=10)
    >>> plan.width, plan.name(2)
    (2048, 'eve')
    """

    code: Code
    backbone: str
    digest: str
    width: int
    n_classes: int
    ridge: float = 0.1
    sample_limit: int = 1_000_000
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.backbone not in (*_OFFERED, "features"):
            raise InputError(f"backbone {self.backbone!r}: one round offers features, {', '.join(_OFFERED)}")
        for name in ("width", "n_classes", "sample_limit"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 29:
                raise InputError(f"one round: {name} is {value!r}; expected a positive whole number")
        for name in ("ridge", "timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InputError(f"one round: {name} is {value!r}; expected a number above 0")

    @classmethod
    def make(
        cls, code: Code, backbone: str, n_classes: int, ridge: float = 0.1, width: int | None = None
    ) -> "OneRoundPlan":
        """Make a plan; ``width`` is needed for users' own ``features`` only."""
        if backbone == "features":
            if width is None:
                raise InputError("one round on users' own features needs their width")
            return cls(code, backbone, "", width, n_classes, ridge)
        if backbone not in _OFFERED:
            raise InputError(f"backbone {backbone!r}: one round offers features, {', '.join(_OFFERED)}")
        made = make_backbone(backbone)
        return cls(code, backbone, made.digest, made.width, n_classes, ridge)

    def name(self, user: int) -> str:
        """Return who a column is: its name, user0, user1, ... without names."""
        return self.code.users[user] if self.code.users else f"user{user}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `load` reads it."""
        told = {name: getattr(self, name) for name in (*_FIELDS, "sample_limit", "timeout")}
        users = list(self.code.users) if self.code.users else None
        return {"format": _FORMAT, **told, "matrix": self.code.matrix.astype(int).tolist(), "users": users}

    @cached_property
    def identity(self) -> str:
        """Hash of what decides a head, and of the code; every message carries it."""
        told = {name: getattr(self, name) for name in _FIELDS} | {"code": self.code.digest}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan, for the server and for all users."""
        write_text_atomic(path, json.dumps(self.to_json()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "OneRoundPlan":
        """Read a plan; something else is refused."""
        told = read_json(path)
        try:
            if told.pop("format") != _FORMAT:
                raise ValueError(f"not a {_FORMAT} file")
            code = Code(told.pop("matrix"), users=told.pop("users"))
            return cls(code, **told)
        except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
            raise InputError(f"{path}: not a plan of one round: {' '.join(str(error).split())[:120]}") from error


_FIELDS = ("backbone", "digest", "width", "n_classes", "ridge")


def make_statistics(plan: OneRoundPlan, inputs: Any, labels: Any, rows: bool = False) -> dict[str, NDArray[Any]]:
    """Return what a user sends: the statistics of its own samples, and nothing of anybody else's.

    Parameters
    ----------
    plan : OneRoundPlan
    inputs : array-like
        What the backbone takes; of ``features`` an array (N, d).
    labels : array-like of int
    rows : bool
        Send feature rows instead of a Gram matrix, where that is smaller (see docs/heads.md for what the server sees).

    Examples
    --------
    >>> plan = OneRoundPlan.make(Code([[1, 1]]), "features", n_classes=2, width=2)
    >>> sorted(make_statistics(plan, [[1.0, 0.0], [0.6, 0.8]], [0, 1]))
    ['counts', 'gram', 'plan', 'sums']
    """
    if plan.backbone == "features":
        features = round_to_grid(inputs, plan.width)
    else:
        backbone = make_backbone(plan.backbone)
        if backbone.digest != plan.digest:
            raise InputError(f"backbone {plan.backbone}: hash {backbone.digest[:16]} here, {plan.digest[:16]} agreed")
        features = backbone.transform(inputs)
    user = gather_statistics(features, labels, np.zeros(len(features), np.int64), plan.n_classes).users[0]
    told = np.frombuffer(bytes.fromhex(plan.identity), np.uint8)
    return {"plan": told, **pack_statistics(user, rows)}


def save_statistics(path: str | os.PathLike[str], message: Mapping[str, NDArray[Any]]) -> None:
    """Write a message to a file, for the server.

    Examples
    --------
    >>> save_statistics("ann.npz", {})  # doctest: +SKIP
    """
    write_atomic(path, lambda out: np.savez_compressed(out, **message))  # type: ignore[arg-type]


@dataclass
class OneRound:
    """The server's side: takes in one message a user, believes none before it is checked, and fits the heads.

    The run equals the pooled one byte for byte (Proposition 30 of docs/theory.md). A user commits once for all its
    models; what that does and does not buy says Proposition 31: read guarantees for the *arbitrary* threat model.

    Examples
    --------
    >>> plan = OneRoundPlan.make(Code([[1, 1, 0], [0, 1, 1]]), "features", n_classes=2, width=2)
    >>> server = OneRound(plan)
    >>> for user in (0, 1):
    ...     server.accept(user, make_statistics(plan, [[1.0, 0.0], [0.0, 1.0]], [0, 1]))
    >>> server.accept(2, {"gram": np.zeros(3)})
    >>> server.refusals
    {2: 'user2: its statistics are of another plan'}
    >>> server.fit().votes([[0.1, 0.9]])
    array([[1, 1]])
    """

    plan: OneRoundPlan
    refusals: dict[int, str] = field(default_factory=dict)
    _taken: dict[int, UserStatistics] = field(default_factory=dict, repr=False)

    @property
    def counted(self) -> list[int]:
        """Users whose statistics are in."""
        return sorted(self._taken)

    @property
    def silent(self) -> list[int]:
        """Users of whom nothing came."""
        return [user for user in range(self.plan.code.n_users) if user not in self._taken and user not in self.refusals]

    def accept(self, user: int, message: Mapping[str, Any]) -> None:
        """Take in what a user sent, or write down why not; a second message of the same user changes nothing."""
        if user in self._taken or user in self.refusals:
            return
        told, name = message.get("plan"), self.plan.name(user)
        try:
            if not isinstance(told, np.ndarray) or told.dtype != np.uint8 or told.tobytes().hex() != self.plan.identity:
                raise InputError(f"{name}: its statistics are of another plan")
            given = {key: array for key, array in message.items() if key != "plan"}
            self._taken[user] = unpack_statistics(
                given, self.plan.width, self.plan.n_classes, self.plan.sample_limit, sender=name
            )
        except InputError as error:
            self.refuse(user, str(error))

    def refuse(self, user: int, reason: str) -> None:
        """Leave a user out, and say why."""
        self.refusals.setdefault(user, " ".join(reason.split())[:200])

    def read(self, folder: str | os.PathLike[str]) -> None:
        """Take in the files of a folder, NAME.npz for each user; a file of nobody is refused before anything counts."""
        column = {self.plan.name(user): user for user in range(self.plan.code.n_users)}
        files = sorted(Path(folder).glob("*.npz"))
        for file in files:
            if file.stem not in column:
                raise InputError(f"{file}: no column of the code is {file.stem!r}")
        size, rows = 8 * self.plan.width * (self.plan.width + 1), 4 * self.plan.width * self.plan.width
        for file in files:
            try:
                self.accept(column[file.stem], read_npz(file, limit=size + rows + (1 << 20), kinds="uif"))
            except (InputError, OSError) as error:
                self.refuse(column[file.stem], str(error))

    def fit(self) -> HeadSet:
        """Return the heads; users who sent nothing sound are as if they had no samples."""
        blank = UserStatistics.of(round_to_grid(np.zeros((0, self.plan.width))), [], self.plan.n_classes)
        users = tuple(self._taken.get(user, blank) for user in range(self.plan.code.n_users))
        backbone = None if self.plan.backbone == "features" else make_backbone(self.plan.backbone)
        return fit_heads(
            StatisticsSet(users), None, None, self.plan.code, self.plan.n_classes, self.plan.ridge, form="primal",
            backbone=backbone,
        )  # fmt: skip

    def save(self, folder: str | os.PathLike[str]) -> HeadSet:
        """Fit, and write heads and who counted into a folder; `load_one_round` reads them."""
        heads = self.fit()
        heads.save(ModelStore(Path(folder) / _STORE))
        names = {key: [self.plan.name(user) for user in getattr(self, key)] for key in ("counted", "silent")}
        told = {"plan": self.plan.identity, "keys": list(heads.keys), **names}
        refused = {self.plan.name(user): reason for user, reason in sorted(self.refusals.items())}
        self.plan.save(Path(folder) / ONE_ROUND_FILE)
        write_text_atomic(Path(folder) / _RESULT_FILE, json.dumps(told | {"refusals": refused}, indent=1) + "\n")
        return heads


def load_one_round(folder: str | os.PathLike[str]) -> tuple[OneRoundPlan, HeadSet]:
    """Return the plan and the heads of a round that is over.

    Examples
    --------
    >>> load_one_round("nowhere")
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: nowhere/one-round.json: no such file
    """
    plan = OneRoundPlan.load(Path(folder) / ONE_ROUND_FILE)
    told = read_json(Path(folder) / _RESULT_FILE)
    if not isinstance(told, dict) or told.get("plan") != plan.identity or not isinstance(told.get("keys"), list):
        raise InputError(f"{folder}: {_RESULT_FILE} is not of the plan beside it")
    backbone = None if plan.backbone == "features" else make_backbone(plan.backbone)
    store = ModelStore(Path(folder) / _STORE)
    heads = HeadSet.load(store, told["keys"], plan.code, plan.n_classes, plan.ridge, "primal", backbone)
    return plan, replace(heads, backbone=backbone)
