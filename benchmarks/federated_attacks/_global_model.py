"""One global model, combined by Flower's own strategies: trained under an attack, then asked.

Local training, seeds and honest users are those of `codeward.federated.train_federated`; only the combination of the
replies is Flower's (``aggregate_train``, called without its runtime). No code, decoder or guarantee appears here.
"""

import importlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.federated_attacks._trial import (
    USERS,
    Trial,
    count,
    draw_group,
    gather,
    lay_trigger,
    make_updates,
    prepare,
    seed_draw,
)
from codeward.attacks import AttackGroup, poison_users
from codeward.codes import Code
from codeward.data import DatasetPair, Samples
from codeward.experiments import Draw, Setting, plan_cell
from codeward.federated import (
    Arrays,
    Assignment,
    Federation,
    FederationPlan,
    Reply,
    Update,
    answer,
    derive_seed,
    train_model,
    train_update,
)
from codeward.training import plan_models

#: What attackers of a global model do.
GLOBAL_BEHAVIOURS = ("directed", "replacement", "poison")

#: Drift, push and claim against each rule. A mean is moved by scale. Krum takes the reply nearest to the others, and
#: one that drifts less is nearer. MultiKrum besides weighs whom it selects by the samples they claim. A median or
#: trimmed mean sees on which side a value lies and hardly how far, so the backdoor's direction is pushed to the end.
DIRECTED: dict[str, tuple[float, float, int | None]] = {
    "FedAvg": (1.0, 4.0, None),
    "Krum": (0.7, 0.3, None),
    "MultiKrum": (0.7, 0.3, 1_000_000),
    "FedMedian": (1.0, 100.0, None),
    "FedTrimmedAvg": (1.0, 100.0, None),
}
RULES = tuple(DIRECTED)


@dataclass(frozen=True)
class DirectedUpdate:
    """What an attacker sends that knows the server's rule: its honest update, and the backdoor alone on top.

    sent = start + drift (honest - start) + push (poisoned - honest), both trained from the same start with the same
    seed, so that their difference is the backdoor and little else.

    Attributes
    ----------
    poisoned : Samples
        The attacker's data after poisoning.
    drift, push : float
    claim : int, optional
        Samples it says it has; by default the truth.
    """

    poisoned: Samples
    drift: float
    push: float
    claim: int | None = None

    def __call__(self, assignment: Assignment, samples: Samples) -> Reply:
        """Answer for the one global model."""
        start, sent = assignment.models[0], {}
        honest, bad = train_model(assignment, 0, samples), train_model(assignment, 0, self.poisoned)
        for name, value in honest.items():
            moved = start[name] + self.drift * (value - start[name]) + self.push * (bad[name] - value)
            sent[name] = moved.astype(value.dtype)
        return answer(assignment, self.claim or len(samples), {0: sent})


def silence_flower() -> None:
    """Let Flower speak of errors only."""
    importlib.import_module("flwr.serverapp.strategy")  # sets its own level of logging
    logging.getLogger("flwr").setLevel(logging.ERROR)


def make_strategy(rule: str, n_attackers: int) -> Any:
    """Return Flower's strategy, told the true number of attackers where it asks for one; the rest are its defaults."""
    from flwr.serverapp import strategy

    more: dict[str, Any] = {}
    if "Krum" in rule:
        more["num_malicious_nodes"] = n_attackers
    if rule == "MultiKrum":
        more["num_nodes_to_select"] = USERS - n_attackers
    return getattr(strategy, rule)(**more)


def aggregate(strategy: Any, number: int, replies: Sequence[tuple[int, Arrays]]) -> Arrays:
    """Let a Flower strategy combine replies (claimed samples, weights)."""
    from flwr.app import Array, ArrayRecord, Metadata, MetricRecord, RecordDict
    from flwr.app.message.message import make_message

    messages = []
    for user, (samples, arrays) in enumerate(replies):
        record = ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})
        content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": samples})})
        metadata = Metadata(1, f"{number}-{user}", user, 0, "", "", time.time(), 600.0, "train")
        messages.append(make_message(metadata=metadata, content=content))
    combined, _ = strategy.aggregate_train(number, messages)
    # Flower's means and medians come in double precision.
    return {name: combined[name].numpy().astype(value.dtype) for name, value in replies[0][1].items()}


def train_global(
    users: Sequence[Samples], plan: FederationPlan, strategy: Any, updates: Mapping[int, Update]
) -> Arrays:
    """Train one network on all users; seeds, local training and attackers are those of `train_federated`."""
    federation = Federation(plan)
    assignments, model = federation.assign(), federation.models[0]
    seed = plan_models(plan.code, plan.seed)[0].seed
    for number in range(1, plan.settings.rounds + 1):
        replies = []
        for user, first in assignments.items():
            asked = replace(first, round=number, seeds={0: derive_seed(seed, user, number)}, models={0: model})
            reply = updates.get(user, train_update)(asked, users[user])
            assert reply is not None
            arrays = {name: parcel.open() for name, parcel in reply.models["0"].items()}
            replies.append((int(str(reply.envelope["samples"])), arrays))
        model = aggregate(strategy, number, replies)
    return model


def attack_global(
    setting: Setting, group: AttackGroup, behaviour: str, rule: str
) -> tuple[Sequence[Samples], Mapping[int, Update]]:
    """Return everybody's data and what attackers do instead of training honestly."""
    users = poison_users(setting.users, [group], seed_draw(setting, Draw.POISON))
    if behaviour == "directed":
        return setting.users, {user: DirectedUpdate(users[user], *DIRECTED[rule]) for user in group.attackers}
    return users, make_updates(setting, group, behaviour)


def run_global(
    trial: Trial, pair: DatasetPair, seed: int, n_attackers: int, behaviour: str, rule: str
) -> dict[str, Any]:
    """Train and measure one global model."""
    setting = prepare(trial, pair, seed, Code(np.ones((1, USERS), dtype=bool)))
    group = draw_group(trial, setting, n_attackers)
    users, updates = attack_global(setting, group, behaviour, rule)
    ensemble = gather(setting, [train_global(users, plan_cell(setting), make_strategy(rule, n_attackers), updates)])
    labels = setting.evaluation.labels
    others = labels != group.target
    clean = ensemble.votes(setting.evaluation)[:, 0]
    triggered = ensemble.votes(lay_trigger(setting, group))[:, 0]
    return {
        "target": group.target,
        "attackers": list(group.attackers),
        "directed": DIRECTED[rule] if behaviour == "directed" else None,
        "figures": {
            "clean_right": count(clean == labels),
            "triggered_right": count((triggered == labels)[others]),
            "success": count((triggered == group.target)[others]),
        },
    }
