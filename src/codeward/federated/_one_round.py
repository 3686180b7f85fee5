"""A federation in one round: a user sends its statistics once, for all its models; the server checks and adds them."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_json, read_npz, write_atomic, write_json, write_text_atomic
from codeward.codes import Code
from codeward.data import UserData, load_user_data
from codeward.training import ModelStore
from codeward.training.backbones import BACKBONES, Backbone, make_backbone, tell_clipped
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
#: Folder of the checked statistics: revoking a user subtracts its own, so they are kept as long as the heads.
STATISTICS = "statistics"
RESULT_FILE, _STORE = "one-round-result.json", "store"
_FORMAT = "codeward-one-round/1"
#: Names of the records of the server's message and of the reply.
QUESTION, ANSWER = "one-round", "statistics"
#: Backbones of tables and own functions are not named to users: a server must not choose what code they run.
_OFFERED = tuple(name for name in BACKBONES if name not in ("hashed-table", "features"))


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
    class_names : tuple of str, optional
        In the order of the labels; without them classes are 0, 1, ...

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
    class_names: tuple[str, ...] | None = None

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
        for user in self.code.users or ():
            if user in (".", "..") or not user.isprintable() or set(user) & set("/\\"):
                raise InputError(f"one round: user {user!r:.60} cannot name a file; rename the column of the code")
        if self.class_names is not None:
            names = self.class_names
            if not all(isinstance(name, str) and name for name in names) or len(set(names)) != self.n_classes:
                raise InputError(f"one round: expected {self.n_classes} different names of classes, got {names!r:.80}")
            object.__setattr__(self, "class_names", tuple(names))

    @classmethod
    def make(
        cls,
        code: Code,
        backbone: str,
        n_classes: int,
        ridge: float = 0.1,
        width: int | None = None,
        class_names: Sequence[str] | None = None,
    ) -> "OneRoundPlan":
        """Make a plan; ``width`` is needed for users' own ``features`` only."""
        names = None if class_names is None else tuple(class_names)
        if backbone == "features":
            if width is None:
                raise InputError("one round on users' own features needs their width")
            digest = make_backbone(backbone, sample=np.zeros((0, width))).digest
            return cls(code, backbone, digest, width, n_classes, ridge, class_names=names)
        if backbone not in _OFFERED:
            raise InputError(f"backbone {backbone!r}: one round offers features, {', '.join(_OFFERED)}")
        made = make_backbone(backbone)
        return cls(code, backbone, made.digest, made.width, n_classes, ridge, class_names=names)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes: 0, 1, ... without names."""
        return self.class_names or tuple(map(str, range(self.n_classes)))

    def open_backbone(self) -> Backbone:
        """Return the backbone; one that has another hash here than was agreed on is refused."""
        made = make_backbone(self.backbone, sample=np.zeros((0, self.width)) if self.backbone == "features" else None)
        if made.digest != self.digest:
            raise InputError(f"backbone {self.backbone}: hash {made.digest[:16]} here, {self.digest[:16]} agreed")
        return made

    def read_samples(
        self,
        source: Any,
        label: str | None = None,
        text: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
    ) -> UserData:
        """Read samples (`codeward.data.load_user_data`) labelled by the plan's classes; of a data set its test part."""
        given = load_user_data(source, label, "none", text=text, data_dir=data_dir, classes=self.classes)
        given = given if given.test is None else given.test
        strange = [name for name in given.class_names if name not in self.classes]
        if strange:  # of a data set by name, which has its own
            raise InputError(f"{source}: class {strange[0]!r} is none of the plan's ({', '.join(self.classes)[:80]})")
        places = np.array([self.classes.index(name) for name in given.class_names], dtype=np.int64)
        schema = replace(given.schema, classes=self.classes, origin="declared")
        return replace(given, labels=places[given.labels], class_names=self.classes, schema=schema, firm=None)

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
            return cls.from_json(told)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: not a plan of one round: {' '.join(str(error).split())[:120]}") from error

    @classmethod
    def from_json(cls, told: Any) -> "OneRoundPlan":
        """Read what `to_json` wrote; anything else is a `ValueError` (an `InputError` among them) or one of its kin."""
        told = dict(told)
        if told.pop("format") != _FORMAT:
            raise ValueError(f"not a {_FORMAT} file")
        code = Code(told.pop("matrix"), users=told.pop("users"))
        names = told.pop("class_names")
        return cls(code, **told, class_names=None if names is None else tuple(names))


_FIELDS = ("backbone", "digest", "width", "n_classes", "ridge", "class_names")


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
    features = plan.open_backbone().transform(np.asarray(inputs) if plan.backbone == "features" else inputs)
    tell_clipped(features)
    user = gather_statistics(features, labels, np.zeros(len(features), np.int64), plan.n_classes).users[0]
    told = np.frombuffer(bytes.fromhex(plan.identity), np.uint8)
    return {"plan": told, **pack_statistics(user, rows)}


def save_statistics(path: str | os.PathLike[str], message: Mapping[str, NDArray[Any]], packed: bool = True) -> None:
    """Write a message to a file, for the server; packed takes half the space and ten times as long.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_statistics(f"{folder}/ann.npz", {"counts": np.array([3, 4])})
    ...     np.load(f"{folder}/ann.npz")["counts"]
    array([3, 4])
    """
    write = np.savez_compressed if packed else np.savez
    write_atomic(path, lambda out: write(out, **message))  # type: ignore[arg-type]


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

    def read(self, folder: str | os.PathLike[str], names: Collection[str] | None = None) -> None:
        """Take in the files of a folder, NAME.npz for each user; a file of nobody is refused before anything counts."""
        column = {self.plan.name(user): user for user in range(self.plan.code.n_users)}
        files = [file for file in sorted(Path(folder).glob("*.npz")) if names is None or file.stem in names]
        for file in files:
            if file.stem not in column:
                raise InputError(f"{file}: no column of the code is {file.stem!r}")
        size, rows = 8 * self.plan.width * (self.plan.width + 1), 4 * self.plan.width * self.plan.width
        for file in files:
            try:
                self.accept(column[file.stem], read_npz(file, limit=size + rows + (1 << 20), kinds="uif"))
            except (InputError, OSError) as error:
                self.refuse(column[file.stem], str(error))

    @property
    def statistics(self) -> StatisticsSet:
        """What counts, by column; users who sent nothing sound are as if they had no samples."""
        blank = UserStatistics.of(round_to_grid(np.zeros((0, self.plan.width))), [], self.plan.n_classes)
        return StatisticsSet(tuple(self._taken.get(user, blank) for user in range(self.plan.code.n_users)))

    def fit(self) -> HeadSet:
        """Return the heads, one a row of the code."""
        plan, counted = self.plan, set(self.counted)
        for row in plan.code.matrix:
            users = np.flatnonzero(row).tolist()
            if not counted & set(users):
                names = ", ".join(map(plan.name, users))
                why = "".join(f"; {self.refusals[user]}" for user in users if user in self.refusals)
                raise InputError(f"a model would learn from no samples, that of {names}; leave its row out{why}")
        return fit_heads(
            self.statistics, None, None, plan.code, plan.n_classes, plan.ridge, form="primal",
            backbone=plan.open_backbone(),
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return who counted with how many samples, who was silent, and who was refused why, by name."""
        name = self.plan.name
        return {
            "plan": self.plan.identity,
            "counted": {name(user): self._taken[user].n_samples for user in self.counted},
            "silent": [name(user) for user in self.silent],
            "refusals": {name(user): reason for user, reason in sorted(self.refusals.items())},
        }

    def save(self, folder: str | os.PathLike[str]) -> HeadSet:
        """Fit, and write heads, statistics and who counted into a folder; `load_one_round` reads them."""
        heads = self.fit()
        heads.save(ModelStore(Path(folder) / _STORE))
        identity = np.frombuffer(bytes.fromhex(self.plan.identity), np.uint8)
        for user, mine in self._taken.items():
            message = {"plan": identity, **pack_statistics(mine, rows=mine.steps is not None)}
            save_statistics(Path(folder) / STATISTICS / f"{self.plan.name(user)}.npz", message, packed=False)
        self.plan.save(Path(folder) / ONE_ROUND_FILE)
        told = self.describe() | {"keys": list(heads.keys)}
        write_json(Path(folder) / RESULT_FILE, told)
        return heads

    @classmethod
    def load(cls, folder: str | os.PathLike[str], users: Collection[int]) -> "OneRound":
        """Return the server of a round that is over, with the kept statistics of some users, checked again."""
        server = cls(OneRoundPlan.load(Path(folder) / ONE_ROUND_FILE))
        server.read(Path(folder) / STATISTICS, {server.plan.name(user) for user in users})
        if server.refusals:
            raise InputError(f"{folder}: {next(iter(server.refusals.values()))}")
        return server


def load_one_round(folder: str | os.PathLike[str]) -> tuple[OneRoundPlan, HeadSet, dict[str, Any]]:
    """Return the plan and the heads of a round that is over, and who counted (`OneRound.describe`).

    Examples
    --------
    >>> load_one_round("nowhere")
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: nowhere/one-round.json: no such file
    """
    plan = OneRoundPlan.load(Path(folder) / ONE_ROUND_FILE)
    told = read_json(Path(folder) / RESULT_FILE)
    known = {"keys": list, "counted": dict}
    if (
        not isinstance(told, dict)
        or told.get("plan") != plan.identity
        or not all(isinstance(told.get(key), kind) for key, kind in known.items())
    ):
        raise InputError(f"{folder}: {RESULT_FILE} is not of the plan beside it")
    backbone, store = plan.open_backbone(), ModelStore(Path(folder) / _STORE)
    heads = HeadSet.load(store, told.pop("keys"), plan.code, plan.n_classes, plan.ridge, "primal", backbone)
    return plan, heads, told
