"""The server's side of a federation, round after round; which engine carries the messages, it does not know."""

import hashlib
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward._npy import hash_arrays
from codeward.codes import Code
from codeward.federated._protocol import Arrays, Assignment, FederatedSettings, Reply
from codeward.federated._replies import Refusal, RowCombiner, check_reply, quote
from codeward.training import TrainingSettings, build_network, fingerprint, plan_models

_LOG = logging.getLogger("codeward.federated")

#: Part of every key; raised when the same replies would give other weights.
FORMAT = 2
#: Refusals that the error of a federation that trained nothing shows.
_EXPLAINED = 3


@dataclass(frozen=True)
class FederationPlan:
    """Everything the server fixes before the first round.

    Attributes
    ----------
    code : Code
        One row a model, one column a user; enforced on the server.
    training : TrainingSettings
        Recipe of the local training; its ``epochs`` are not used, the settings' ``local_epochs`` are.
    settings : FederatedSettings
    shape : tuple of int
        Channels, height, width of the images.
    seed : int

    Examples
    --------
    >>> from codeward.federated import FederatedSettings
    >>> code = Code([[1, 1]], users=["ann", "bob"])
    >>> plan = FederationPlan(code, TrainingSettings(), FederatedSettings(), (1, 28, 28), seed=0)
    >>> plan.names
    ('ann', 'bob')
    """

    code: Code
    training: TrainingSettings
    settings: FederatedSettings
    shape: tuple[int, int, int]
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the users."""
        return tuple(self.code.user_name(user) for user in range(self.code.n_users))


@dataclass(frozen=True)
class RoundReport:
    """What one round brought.

    Attributes
    ----------
    round : int
    counted : dict
        Models that counted, by user.
    samples : dict
        Weight of each user who counted: its claimed sample count, capped.
    silent : tuple of int
        Users without a reply in time.
    refusals : tuple of Refusal
    untrained : tuple of int
        Sub-models for which nobody's reply counted; they keep their weights.
    sampled : tuple of int, optional
        Users drawn for this round, where the settings have a ``sample``; None: all.

    Examples
    --------
    >>> report = RoundReport(1, counted={0: (0, 2)}, samples={0: 30}, silent=(1,), refusals=())
    >>> RoundReport.from_json(report.to_json()) == report
    True
    """

    round: int
    counted: Mapping[int, tuple[int, ...]]
    samples: Mapping[int, int]
    silent: tuple[int, ...]
    refusals: tuple[Refusal, ...]
    untrained: tuple[int, ...] = ()
    sampled: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for a record."""
        sampled = {} if self.sampled is None else {"sampled": list(self.sampled)}
        return sampled | {
            "round": self.round,
            "counted": {str(user): list(models) for user, models in self.counted.items()},
            "samples": {str(user): count for user, count in self.samples.items()},
            "silent": list(self.silent),
            "refusals": [refusal.to_json() for refusal in self.refusals],
            "untrained": list(self.untrained),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "RoundReport":
        """Read what `to_json` wrote; other keys are not looked at."""
        return cls(
            round=entry["round"],
            counted={int(user): tuple(models) for user, models in entry["counted"].items()},
            samples={int(user): count for user, count in entry["samples"].items()},
            silent=tuple(entry["silent"]),
            refusals=tuple(Refusal(**refusal) for refusal in entry["refusals"]),
            untrained=tuple(entry.get("untrained", ())),
            sampled=tuple(entry["sampled"]) if "sampled" in entry else None,
        )


@dataclass(frozen=True)
class FederatedResult:
    """The sub-models after the last round.

    Attributes
    ----------
    models : tuple of arrays
        In the order of the code's rows.
    keys : tuple of str
        Content address of each model: a hash of its seed, recipe and of every update that counted, round by round. Two
        models with one key had the same history, and nothing a user outside its row sent is part of it.
    rounds : tuple of RoundReport

    Examples
    --------
    >>> FederatedResult(models=(), keys=(), rounds=()).refusals
    ()
    """

    models: tuple[Arrays, ...]
    keys: tuple[str, ...]
    rounds: tuple[RoundReport, ...]

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """All refusals, in order."""
        return tuple(refusal for report in self.rounds for refusal in report.refusals)


class Federation:
    """m models and the rounds that train them: assign, accept replies in any order, close.

    Guarantee (arbitrary threat model): the bytes of a model are a function of the plan and of what the users of its row
    sent for it in replies that passed `check_reply`, whatever the order in which they came. A user outside the row
    cannot change them, whatever it sends, to whomever it claims to belong, early, late or twice.

    Parameters
    ----------
    plan : FederationPlan

    Examples
    --------
    >>> from codeward.federated import FederatedSettings, answer
    >>> settings = FederatedSettings(rounds=1)
    >>> training = TrainingSettings(architecture="mlp")
    >>> federation = Federation(FederationPlan(Code([[1, 1], [0, 1]]), training, settings, (1, 8, 8), seed=0))
    >>> assignments = federation.assign()
    >>> {user: list(assignment.models) for user, assignment in assignments.items()}
    {0: [0], 1: [0, 1]}
    >>> for user in (1, 0):
    ...     federation.accept(user, answer(assignments[user], 10, assignments[user].models))
    >>> federation.close().counted
    {0: (0,), 1: (0, 1)}
    >>> len(federation.result().models)
    2
    """

    def __init__(self, plan: FederationPlan) -> None:
        self.plan = plan
        self.round = 0
        self.reports: list[RoundReport] = []
        self._names = plan.names
        self._plans = plan_models(plan.code, plan.seed)
        networks = [
            build_network(plan.training.architecture, plan.shape, plan.training.n_classes, model.seed)
            for model in self._plans
        ]
        self.models: list[Arrays] = [
            _freeze({name: value.detach().numpy().copy() for name, value in network.state_dict().items()})
            for network in networks
        ]
        recipe = {
            "format": FORMAT,
            "training": replace(plan.training, epochs=plan.settings.local_epochs).to_json(),
            "federated": json.loads(plan.settings.identity),
            "architecture": fingerprint(networks[0]),
        }
        self._histories = [
            _chain(
                "codeward-federated", json.dumps(recipe | {"seed": model.seed, "users": model.users}, sort_keys=True)
            )
            for model in self._plans
        ]
        #: Says whether rounds that another process finished belong to this plan.
        self.identity = _chain("codeward-federation", "\n".join(self._histories))
        self._open: dict[int, Assignment] = {}
        self._begin()

    def _begin(self) -> None:
        self._rows = [RowCombiner(model, self.plan.settings) for model in self.models]
        self._received: list[dict[int, str]] = [{} for _ in self.models]
        self._counted: dict[int, tuple[int, ...]] = {}
        self._weights: dict[int, int] = {}
        self._refusals: list[Refusal] = []
        self._answered: set[int] = set()

    def resume(self, models: Sequence[Arrays], histories: Sequence[str], reports: Sequence[RoundReport]) -> None:
        """Go on after the rounds of a process that ended; what it would have done next is done, byte for byte."""
        if self._open or self.reports:
            raise InputError("a federation resumes before its first round")
        self.models, self._histories = [_freeze(dict(model)) for model in models], list(histories)
        self.reports, self.round = list(reports), len(reports)

    def draw_users(self, number: int) -> tuple[int, ...]:
        """Return the users who are asked in a round: all, or ``settings.sample`` of those who share a column."""
        code, size = self.plan.code, self.plan.settings.sample
        if size is None:
            return tuple(range(code.n_users))
        columns: dict[bytes, list[int]] = {}
        for user in range(code.n_users):
            columns.setdefault(code.column(user).tobytes(), []).append(user)
        rng = np.random.default_rng([self.plan.seed, number])
        drawn = [rng.choice(users, min(size, len(users)), replace=False) for users in columns.values()]
        return tuple(sorted(int(user) for users in drawn for user in users))

    def assign(self) -> dict[int, Assignment]:
        """Open the next round: return what each user is to be sent."""
        if self._open:
            raise InputError(f"round {self.round} is still open; close it first")
        if self.round == self.plan.settings.rounds:
            raise InputError(f"all {self.round} rounds are done")
        self.round += 1
        self._begin()
        training = replace(self.plan.training, epochs=self.plan.settings.local_epochs)
        for user in self.draw_users(self.round):
            column = [int(model) for model in np.flatnonzero(self.plan.code.column(user))]
            self._open[user] = Assignment(
                user=user,
                round=self.round,
                nonce=secrets.token_hex(16),
                shape=self.plan.shape,
                training=training,
                seeds={model: derive_seed(self._plans[model].seed, user, self.round) for model in column},
                models={model: self.models[model] for model in column},
            )
        return dict(self._open)

    def accept(self, user: int, reply: Reply) -> None:
        """Take a reply that came from the node bound to ``user``; what is wrong with it is logged and left out."""
        if user not in self._open:
            raise InputError(f"user {user} was asked nothing: no round is open, or the code has no such column")
        if user in self._answered:
            self._refuse([Refusal(self.round, user, None, "a second reply in one round: a replay; the first counts")])
            return
        self._answered.add(user)
        checked = check_reply(reply, self._open[user], self.plan.settings.sample_limit, self._names)
        self._refuse(checked.refusals)
        if checked.models:
            weight = min(checked.samples, self.plan.settings.sample_cap)
            self._counted[user], self._weights[user] = tuple(checked.models), weight
            for model, arrays in checked.models.items():
                self._rows[model].add(user, arrays, weight)
                self._received[model][user] = f"{user} {weight} {hash_arrays(arrays, sorted(arrays))}"

    def fail(self, user: int, reason: str) -> None:
        """Note that a user's client reported an error instead of a reply."""
        self._answered.add(user)
        self._refuse([Refusal(self.round, user, None, f"its client failed: {quote(reason)}")])

    def close(self) -> RoundReport:
        """End the round: combine, per model, what counted; a model without any keeps its weights.

        Raises
        ------
        InputError
            When nobody's reply counted: such a round trains nothing, and those after it would not either.
        """
        if not self._counted:
            raise InputError(f"round {self.round}: no reply of any user counted{self._explain(self._refusals)}")
        for model, received in enumerate(self._received):
            parts = [received[user] for user in sorted(received)]
            self._histories[model] = _chain(self._histories[model], json.dumps(parts))
            self.models[model] = _freeze(self._rows[model].finish())
        report = RoundReport(
            round=self.round,
            counted=dict(sorted(self._counted.items())),
            samples=dict(sorted(self._weights.items())),
            silent=tuple(user for user in self._open if user not in self._answered),
            refusals=tuple(sorted(self._refusals, key=lambda refusal: refusal.user)),
            untrained=tuple(model for model, received in enumerate(self._received) if not received),
            sampled=None if self.plan.settings.sample is None else tuple(self._open),
        )
        if report.untrained:
            _LOG.warning("round %d: no reply counted for sub-model %s", self.round, _list(report.untrained))
        if report.silent:
            names = ", ".join(self._names[user] for user in report.silent)
            _LOG.warning("round %d: no reply in time from user %s", self.round, names)
        self.reports.append(report)
        self._open = {}
        self._begin()
        return report

    @property
    def keys(self) -> tuple[str, ...]:
        """Content address of each model as it is now (see `FederatedResult.keys`)."""
        return tuple(self._histories)

    def result(self) -> FederatedResult:
        """Return the models as they are now.

        Raises
        ------
        InputError
            When all rounds are over and some sub-model was trained in none of them.
        """
        if self.reports and self.round == self.plan.settings.rounds:
            never = set.intersection(*(set(report.untrained) for report in self.reports))
            if never:
                refusals = [refusal for report in self.reports for refusal in report.refusals]
                raise InputError(
                    f"sub-model {_list(sorted(never))} was trained by nobody in any of {self.round} rounds"
                    f"{self._explain(refusals)}"
                )
        return FederatedResult(tuple(self.models), self.keys, tuple(self.reports))

    def _explain(self, refusals: Sequence[Refusal]) -> str:
        """Return the end of an error: the first refusals, or that nobody answered."""
        if not refusals:
            return f"; nobody answered within {self.plan.settings.timeout:g} s (federated.timeout)"
        listed = "; ".join(f"user {self._names[refusal.user]}: {refusal.reason}" for refusal in refusals[:_EXPLAINED])
        return f"; {len(refusals)} refusals, the first: {listed}"

    def _refuse(self, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            where = "" if refusal.model is None else f" for model {refusal.model}"
            _LOG.warning(
                "round %d: refused from user %s%s: %s",
                refusal.round, self._names[refusal.user], where, refusal.reason,
            )  # fmt: skip
        self._refusals += refusals


def derive_seed(model_seed: int, user: int, number: int) -> int:
    """Return the seed of one user's local training of one model in one round.

    Examples
    --------
    >>> derive_seed(0, user=1, number=2) == derive_seed(0, user=1, number=2)
    True
    >>> derive_seed(0, user=1, number=2) == derive_seed(0, user=2, number=1)
    False
    """
    text = f"codeward-federated model={model_seed} user={user} round={number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def _freeze(arrays: Arrays) -> Arrays:
    """Make arrays read-only: users' code in the same process gets them too."""
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def _list(models: Sequence[int]) -> str:
    return ", ".join(str(model) for model in models)


def _chain(history: str, step: str) -> str:
    return hashlib.sha256(f"{history}\n{step}".encode()).hexdigest()
