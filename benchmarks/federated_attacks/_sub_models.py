"""The sub-models of a code: trained under an attack, asked, and decoded in three ways.

Plurality, the paper's Bayes decoder (deterministic threat model) and the consensus decoder (arbitrary threat model,
with k and the e = (margin - 1) / 2 that its theorem allows) read the same votes. How the models are averaged and
decoded is the package's; this module adds only the attacks that are aimed at a code, and the counting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.federated_attacks._trial import MARGINS, Trial, count, draw_group, gather, lay_trigger, make_updates
from codeward.attacks import AttackGroup
from codeward.codes import Code
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder, estimate_confusion
from codeward.experiments import MaliciousUpdate, Setting, choose_targets, plan_cell
from codeward.federated import Arrays, train_federated

#: What attackers of a code's sub-models do.
CODE_BEHAVIOURS = ("poison", "replacement", "split-targets", "framing")
#: Wrong models among those not hit that the consensus decoder tolerates, by number of attackers.
ERRORS = {k: (margin - 1) // 2 for k, margin in MARGINS.items()}


@dataclass(frozen=True)
class CodeAttack:
    """An attack on the models of a code.

    Attributes
    ----------
    updates : mapping of int to MaliciousUpdate
        What each attacker sends.
    planted : array of int, shape (n_models,)
        The target planted in each model; -1 where there is none.
    framed : tuple of int, optional
        The users that the attackers point at, where they do.
    """

    updates: Mapping[int, MaliciousUpdate]
    planted: NDArray[np.int64]
    framed: tuple[int, ...] | None = None


def choose_framed(code: Code, attackers: Sequence[int]) -> tuple[int, ...]:
    """Choose whom to frame: the k users whose data would explain, under one target, why so many models dissent.

    The attackers plant their target only where the framed users have no part and behave well elsewhere. A decoder that
    believes in one target a trigger then sees: the framed ones attack, and the target is the true label. Attackers know
    the code and the decoder, so they try every k users on votes of models that make no mistakes of their own.
    """
    k, hit = len(attackers), code.pattern(attackers)
    sets = [users for users in combinations(range(code.n_users), k) if users != tuple(attackers)]
    votes = np.array([np.where(hit & ~code.pattern(users), 1, 0) for users in sets])
    matrix = np.full((10, 10), 0.03 / 9) + np.eye(10) * (0.97 - 0.03 / 9)
    decoder = make_bayes(code, np.repeat(matrix[None], code.n_models, axis=0), k)
    # Ties go to the first set.
    return sets[int(np.argmax(decoder.decode(votes).label_probability[:, 1]))]


def make_bayes(code: Code, confusion: NDArray[np.float64], k: int) -> BayesDecoder:
    """Return the paper's decoder with the assumptions of a run's configuration and the true k as the most attackers."""
    return BayesDecoder(code, confusion, attack_rate=0.5, success_rate=0.99, attackers_prior=(1 / (k + 1),) * (k + 1))


def attack_code(setting: Setting, group: AttackGroup, behaviour: str) -> CodeAttack:
    """Return what the attackers send for the models of the code, and where they plant what."""
    code = setting.code
    hit, targets, framed = code.pattern(group.attackers), np.full(code.n_models, group.target), None
    kind = "split-targets" if behaviour == "split-targets" else "replacement"
    updates = make_updates(setting, group, kind, boost=1.0 if behaviour == "poison" else None)
    if behaviour == "split-targets":
        targets = np.array(choose_targets(group, code.n_models, setting.n_classes))
    if behaviour == "framing":
        framed = choose_framed(code, group.attackers)
        hit = hit & ~code.pattern(framed)
        kept = {int(model): int(model) for model in np.flatnonzero(hit)}
        updates = {user: _restrict(update, kept) for user, update in updates.items()}
    return CodeAttack(updates, np.where(hit, targets, -1), framed)


def _restrict(update: MaliciousUpdate, models: Mapping[int, int]) -> MaliciousUpdate:
    """Keep the lies about some models only, under new numbers."""
    return replace(
        update,
        samples={models[old]: samples for old, samples in update.samples.items() if old in models},
        boosts={models[old]: boost for old, boost in update.boosts.items() if old in models},
    )


def train_honest(setting: Setting) -> Sequence[Arrays]:
    """Train the models of the code without attackers."""
    return train_federated(setting.users, plan_cell(setting)).models


def train_hit(
    setting: Setting, honest: Sequence[Arrays], updates: Mapping[int, MaliciousUpdate], attackers: Sequence[int]
) -> list[Arrays]:
    """Train the models the attackers may touch; the others are bit for bit those of the run without attackers."""
    rows = np.flatnonzero(setting.code.pattern(attackers))
    numbers = {int(old): new for new, old in enumerate(rows)}
    plan = replace(plan_cell(setting), code=Code(setting.code.matrix[rows]))
    restricted = {user: _restrict(update, numbers) for user, update in updates.items()}
    found = train_federated(setting.users, plan, restricted).models
    models = list(honest)
    for old, new in numbers.items():
        models[old] = found[new]
    return models


def count_labels(labels: NDArray[np.int64], truth: NDArray[np.int64], planted: NDArray[np.int64]) -> dict[str, Any]:
    """Count right labels, wrong ones that some hit model was made to say, other wrong ones, and no verdicts."""
    right, none = labels == truth, labels < 0
    fooled = ~right & np.isin(labels, planted[planted >= 0])
    found = {"right": right, "fooled": fooled, "otherwise_wrong": ~right & ~none & ~fooled, "no_verdict": none}
    return {name: count(flags) for name, flags in found.items()}


def measure_code(
    setting: Setting, models: Sequence[Arrays], group: AttackGroup, planted: NDArray[np.int64]
) -> dict[str, Any]:
    """Ask the models, decode three ways, and count; triggered inputs are those whose label the group is not after."""
    code, k = setting.code, len(group.attackers)
    ensemble, validation = gather(setting, models), setting.validation
    confusion = estimate_confusion(ensemble.votes(validation), validation.labels, setting.n_classes)
    consensus = ConsensusDecoder(code, k, ERRORS[k], setting.n_classes)
    decoders: dict[str, PluralityDecoder | BayesDecoder | ConsensusDecoder] = {
        "plurality": PluralityDecoder(code, setting.n_classes),
        "bayes": make_bayes(code, confusion, k),
        "consensus": consensus,
    }
    hit, lies = code.pattern(group.attackers), planted >= 0
    figures: dict[str, Any] = {}
    for name, samples in (("clean", setting.evaluation), ("triggered", lay_trigger(setting, group))):
        votes, labels = ensemble.votes(samples), samples.labels
        if name == "triggered" and len(set(planted[lies])) == 1:
            votes, labels = votes[labels != group.target], labels[labels != group.target]
        figures[name] = {
            rule: count_labels(decoder.predict(votes), labels, planted) for rule, decoder in decoders.items()
        }
        unhit = votes[:, ~hit] == labels[:, None]
        figures[name]["clean_models_right"] = count(unhit)
        # The theorem speaks of these inputs, and of all of them.
        covered = (~unhit).sum(axis=1) <= ERRORS[k]
        assert (consensus.predict(votes[covered]) == labels[covered]).all()
        figures[name]["theorem_applies"] = count(covered)
        if name == "triggered" and lies.any():
            figures["success_in_planted_models"] = count((votes == planted)[:, lies][labels[:, None] != planted[lies]])
    figures["models"] = {"all": code.n_models, "hit": int(hit.sum()), "planted": int(lies.sum())}
    return figures


def run_code(
    trial: Trial, setting: Setting, n_attackers: int, behaviour: str, honest: Callable[[], Sequence[Arrays]]
) -> dict[str, Any]:
    """Train and measure the sub-models under one attack; ``honest`` gives those of the run without attackers."""
    group = draw_group(trial, setting, n_attackers)
    attack = attack_code(setting, group, behaviour)
    models = train_hit(setting, honest(), attack.updates, group.attackers)
    return {
        "target": group.target,
        "attackers": list(group.attackers),
        "framed": None if attack.framed is None else list(attack.framed),
        "planted": attack.planted.tolist(),
        "code": {"matrix": setting.code.matrix.astype(int).tolist(), "margin_arbitrary": MARGINS[n_attackers]},
        "consensus": {"n_attackers": n_attackers, "n_errors": ERRORS[n_attackers]},
        "figures": measure_code(setting, models, group, attack.planted),
    }
