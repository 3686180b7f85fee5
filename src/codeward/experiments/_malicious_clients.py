"""Attackers in a federation: users that follow the protocol and lie in what they send."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from codeward._files import write_text_atomic
from codeward.attacks import AttackGroup, poison
from codeward.codes import Code
from codeward.data import Samples
from codeward.federated import Arrays, Assignment, Reply, answer, load_samples, save_samples, train_model
from codeward.runs import FederatedSection

#: Simulated attackers live in a ClientApp of their own, not in the honest one.
ATTACKER_APP = "codeward.experiments.attacker_client_app:app"


@dataclass(frozen=True)
class MaliciousUpdate:
    """What an attacker does with an assignment (an `codeward.federated.Update`).

    Attributes
    ----------
    samples : mapping of int to Samples
        What each model of the column is trained on, in place of the user's own data.
    boosts : mapping of int to float
        By how much the update of each model is scaled: sent = start + boost (trained - start). A boost of the number of
        users in the row replaces the model when the others barely move it (Bagdasaryan et al., 2020).
    claim : int, optional
        Samples the attacker says it has; by default the truth.
    device : str
        Where it trains.

    Examples
    --------
    >>> MaliciousUpdate(boosts={0: 4.0}, claim=10).boosts[0]
    4.0
    """

    samples: Mapping[int, Samples] = field(default_factory=dict)
    boosts: Mapping[int, float] = field(default_factory=dict)
    claim: int | None = None
    device: str = "cpu"

    def __call__(self, assignment: Assignment, samples: Samples) -> Reply:
        """Return a reply of the right form and poisoned content."""
        sent: dict[int, Arrays] = {}
        for model, start in assignment.models.items():
            trained = train_model(assignment, model, self.samples.get(model, samples), self.device)
            sent[model] = _scale(start, trained, self.boosts.get(model, 1.0))
        return answer(assignment, len(samples) if self.claim is None else self.claim, sent)


def _scale(start: Arrays, trained: Arrays, boost: float) -> Arrays:
    if boost == 1.0:
        return trained
    limit = float(np.finfo(np.float32).max)
    sent: Arrays = {}
    for name, value in trained.items():
        sent[name] = value
        if value.dtype.kind == "f":
            moved = start[name].astype(np.float64) + boost * (value.astype(np.float64) - start[name])
            # An attacker wants its update counted, so it stays finite.
            sent[name] = np.clip(moved, -limit, limit).astype(value.dtype)
    return sent


def choose_targets(group: AttackGroup, n_models: int, n_classes: int) -> tuple[int, ...]:
    """Return another target for every model, agreed among colluders: the group's own, counted on by model index.

    This breaks the deterministic threat model (every hit model says the one target), which the Bayes decoder assumes.

    Examples
    --------
    >>> from codeward.attacks import draw_groups
    >>> drawn = {"n_users": 4, "n_attackers": 1, "n_groups": 1, "image_shape": (1, 8, 8), "n_classes": 10}
    >>> [group] = draw_groups(**drawn, rng=np.random.default_rng(0))
    >>> targets = choose_targets(group, n_models=3, n_classes=10)
    >>> targets[0] == group.target, len(set(targets))
    (True, 3)
    """
    return tuple((group.target + model) % n_classes for model in range(n_models))


def make_attackers(
    section: FederatedSection,
    groups: Sequence[AttackGroup],
    code: Code,
    users: Sequence[Samples],
    n_classes: int,
    seed: Sequence[int],
    device: str = "cpu",
) -> dict[int, MaliciousUpdate]:
    """Return what each attacker sends; none for ``poison``, whose attackers are honest clients with poisoned data.

    Parameters
    ----------
    users : sequence of Samples
        Clean data, one a user.
    seed : sequence of int
        As for `codeward.attacks.poison_users`: an attacker poisons the same samples in every behaviour.

    Examples
    --------
    >>> make_attackers(FederatedSection(behaviour="poison"), (), Code([[1, 1]]), (), n_classes=2, seed=[0])
    {}
    """
    if section.behaviour == "poison":
        return {}
    updates = {}
    for group in groups:
        for place, user in enumerate(group.attackers):
            column = [int(model) for model in np.flatnonzero(code.column(user))]
            targets = choose_targets(group, code.n_models, n_classes)
            if section.behaviour == "replacement":
                targets = (group.target,) * code.n_models
            poisoned = {
                target: poison(
                    users[user], replace(group, target=target), np.random.default_rng([*seed, user]), part=place
                )
                for target in {targets[model] for model in column}
            }
            rows = code.matrix.sum(axis=1)
            updates[user] = MaliciousUpdate(
                samples={model: poisoned[targets[model]] for model in column},
                boosts={model: float(section.boost or rows[model]) for model in column},
                device=device,
            )
    return updates


def save_attackers(folder: Path, updates: Mapping[int, MaliciousUpdate]) -> None:
    """Write what simulated attackers need: a file of samples and a scale for each of their models.

    Examples
    --------
    >>> import tempfile
    >>> samples = Samples(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 1]))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     save_attackers(Path(place), {3: MaliciousUpdate({0: samples}, {0: 4.0})})
    ...     load_attacker(Path(place), 3).boosts, load_attacker(Path(place), 1)
    ({0: 4.0}, None)
    """
    listed: dict[str, object] = {}
    for user, update in updates.items():
        for model, samples in update.samples.items():
            save_samples(folder / f"attacker{user}-model{model}.npz", samples)
        listed[str(user)] = {
            "models": sorted(update.samples),
            "boosts": {str(model): boost for model, boost in update.boosts.items()},
            "claim": update.claim,
        }
    write_text_atomic(folder / "attackers.json", json.dumps(listed))


def load_attacker(folder: Path, user: int) -> MaliciousUpdate | None:
    """Read what `save_attackers` wrote for one user; None for an honest one.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     save_attackers(Path(place), {})
    ...     load_attacker(Path(place), 0) is None
    True
    """
    entry = json.loads((folder / "attackers.json").read_text(encoding="utf-8")).get(str(user))
    if entry is None:
        return None
    return MaliciousUpdate(
        samples={model: load_samples(folder / f"attacker{user}-model{model}.npz") for model in entry["models"]},
        boosts={int(model): float(boost) for model, boost in entry["boosts"].items()},
        claim=entry["claim"],
    )
