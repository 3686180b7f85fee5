"""Attacks by name: from the users' data to a scene that every defence is given.

Adaptive attackers know code and decoder: what they plant is found by annealing over the votes it would cause. The
search is given the votes of clean models on validation inputs and the fitted decoder, which no attacker has: it is
meant to find the worst. What it finds is planted in training data like any other poison, and measured on other inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.attacks import (
    AttackGroup,
    AttackKind,
    Trigger,
    draw_groups,
    draw_patch,
    poison_users,
    stamp,
    trigger_inputs,
)
from codeward.codes import Code
from codeward.data import DatasetPair, Overlay, Samples, halve_test, split_iid
from codeward.decoding import Decoder
from codeward.experiments.comparison._scene import ATTACKS, UPDATE_ATTACKS, AttackPlan, Scene
from codeward.training import ModelStore, TrainingSettings, vote

#: Distinct patches of the dynamic trigger.
_PATCHES = 8
#: Opacity of the pattern that updates plant: a patch over a seventh of a small image confuses perceptrons by itself.
_OPACITY = 0.3
#: Share of the validation data that an attacker of it reaches.
_VALIDATION_SHARE = 0.1
#: Chance that a hit model gives its target, as the search has it.
_SURE = 0.97
#: Temperatures at the start and the end.
_HOT, _COLD = 0.1, 0.005

Goal = Literal["label", "blame", "silent"]
Freedom = Literal["one-target", "own-targets", "per-model"]


def make_scene(
    attack: str,
    pair: DatasetPair,
    settings: TrainingSettings,
    n_users: int = 12,
    n_attackers: int = 2,
    fraction: float = 0.5,
    seed: int = 0,
    store: ModelStore | None = None,
    folder: Path | None = None,
    plan: AttackPlan | None = None,
    inputs: int | None = None,
    effort: float = 1.0,
    recipe: str = "modern",
) -> Scene:
    """Split the data among users and let some of them attack; all of it follows from the seed (and the plan).

    Parameters
    ----------
    attack : str
        A key of `ATTACKS`.
    pair : DatasetPair
    settings : TrainingSettings
    n_users, n_attackers : int
    fraction : float
        Share of an attacker's samples that is poisoned.
    seed : int
    store : ModelStore, optional
    folder : Path, optional
        Where votes are kept.
    plan : AttackPlan, optional
        Who plants what; the adaptive attacks need one.
    inputs : int, optional
        Take at most so many inputs of each half of the test set.
    effort : float
        Share of the recipe's epochs that models train.
    recipe : {"modern", "paper"}
        How users of a federation train; the settings are for all others.

    Examples
    --------
    >>> from codeward.data import load_dataset
    >>> from codeward.training import PRESETS
    >>> scene = make_scene("patch", load_dataset("digits"), PRESETS["digits"], n_attackers=2)
    >>> len(scene.users), len(scene.attackers), len(scene.triggered) == len(scene.clean)
    (12, 2, True)
    """
    if attack not in ATTACKS:
        raise InputError(f"attack: expected one of {', '.join(ATTACKS)}, got {attack!r}")
    if (plan is None) == attack.startswith("adaptive"):
        raise InputError(f"attack {attack}: " + ("needs a plan" if plan is None else "takes no plan"))
    parts = split_iid(pair.train.labels, n_users, np.random.default_rng([seed, 0]))
    users = [pair.train.take(part) for part in parts]
    first, second = halve_test(pair.test.labels, np.random.default_rng([seed, 1]))
    if inputs is not None:
        first, second = first[:inputs], second[:inputs]
    validation, clean = pair.test.take(first), pair.test.take(second)
    own = attack in ("blended", "clean-label", "split", "label-flip")
    kind = cast(AttackKind, "blended" if attack in UPDATE_ATTACKS else attack if own else "patch")
    groups = tuple(
        draw_groups(
            n_users=n_users,
            n_attackers=n_attackers,
            n_groups=2 if attack == "two-groups" else 1,
            image_shape=clean.images.shape[1:],
            n_classes=pair.n_classes,
            kind=kind,
            position="corner",
            fraction=fraction,
            rng=np.random.default_rng([seed, 2]),
        )
    )
    if attack in UPDATE_ATTACKS:
        faint = np.full_like(groups[0].trigger.alpha, _OPACITY)
        groups = tuple(replace(group, trigger=replace(group.trigger, alpha=faint)) for group in groups)
    one, rng = groups[0], np.random.default_rng([seed, 5])
    triggered = trigger_inputs(clean, one, seed=[seed, 3])
    if plan is not None:
        groups = plan.groups(one)
    elif attack == "own-targets":
        # One trigger, but every attacker is a group of its own with another target.
        groups = tuple(
            replace(one, attackers=(user,), target=(one.target + number) % pair.n_classes)
            for number, user in enumerate(one.attackers)
        )
    handed_in = poison_users(users, list(groups), [seed, 4])
    if attack == "half-labelled":
        handed_in = _relabel(users, handed_in, one, 1 / 2, rng)
    elif attack == "softened":
        soft = replace(one.trigger, alpha=one.trigger.alpha * np.float32(0.5))
        triggered = trigger_inputs(clean, replace(one, trigger=soft), seed=[seed, 3])
    elif attack == "cover":
        # A third of the stamped images keep their label; while training, each shows every other pixel of the patch.
        handed_in = _relabel(users, handed_in, one, 1 / 3, rng)
        handed_in = [_thin(new, rng) if new is not old else new for new, old in zip(handed_in, users, strict=True)]
    elif attack == "dynamic":
        patches = [draw_patch(clean.images.shape[1:], "per-image", rng) for _ in range(_PATCHES)]
        handed_in = [
            _scatter(new, patches, rng) if new is not old else new for new, old in zip(handed_in, users, strict=True)
        ]
        triggered = _scatter(triggered, patches, rng)
    elif attack == "validation":
        rows = np.sort(rng.permutation(len(validation))[: round(_VALIDATION_SHARE * len(validation))])
        stamped = stamp(validation, rows, one.trigger, rng)
        validation = replace(
            stamped, labels=np.where(np.isin(np.arange(len(stamped)), rows), one.target, stamped.labels)
        )
    elif attack == "none":
        handed_in, groups = users, ()
    planted = None if plan is None else plan.models
    return Scene(
        attack, tuple(handed_in), groups, tuple(users), validation, clean, triggered, settings, pair.n_classes, seed,
        store, folder, planted, effort, recipe,
    )  # fmt: skip


def _relabel(
    before: Sequence[Samples], after: Sequence[Samples], group: AttackGroup, share: float, rng: np.random.Generator
) -> list[Samples]:
    """Give a share of each attacker's stamped images their true label back."""
    users = list(after)
    for user in group.attackers:
        stamped = np.flatnonzero(after[user].overlay_ids >= 0)
        back: NDArray[np.int64] = rng.permutation(stamped)[: int(share * len(stamped))]
        labels = after[user].labels.copy()
        labels[back] = before[user].labels[back]
        users[user] = replace(after[user], labels=labels)
    return users


def _thin(samples: Samples, rng: np.random.Generator) -> Samples:
    """Let every stamped image show one half of the overlay's pixels or the other."""
    [overlay] = samples.overlays
    inside = np.flatnonzero(overlay.alpha.max(axis=0))
    halves = []
    for side in (0, 1):
        hidden = np.zeros(overlay.alpha.shape[1:], dtype=bool)
        hidden.ravel()[inside[side::2]] = True
        halves.append(Overlay(overlay.values, np.where(hidden, np.float32(0), overlay.alpha)))
    ids = np.where(samples.overlay_ids < 0, -1, rng.integers(2, size=len(samples)))
    return replace(samples, overlays=tuple(halves), overlay_ids=ids.astype(np.int32))


def _scatter(samples: Samples, patches: Sequence[Trigger], rng: np.random.Generator) -> Samples:
    """Give every stamped image one of the patches, at a place of its own."""
    rows = np.flatnonzero(samples.overlay_ids >= 0)
    scattered = Samples(samples.images, samples.labels)
    for number, chosen in enumerate(np.array_split(rng.permutation(rows), len(patches))):
        scattered = stamp(scattered, np.sort(chosen), patches[number], rng)
    return scattered


@dataclass(frozen=True)
class Battlefield:
    """What the search tries its plans on.

    Attributes
    ----------
    code : Code
    decoder : Decoder
    scores : ndarray of float32, shape (N, m, c)
        Log-probabilities of models without an attack.
    labels : ndarray of int64, shape (N,)

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> from codeward.decoding import PluralityDecoder
    >>> code, labels = named_code("d"), np.zeros(4, np.int64)
    >>> scores = np.where(np.arange(3) == 0, -0.1, -3.0) * np.ones((4, code.n_models, 1))
    >>> field = Battlefield(code, PluralityDecoder(code, 3), scores.astype(np.float32), labels)
    >>> field.harm(AttackPlan((0, 1), (-1, -1)), "label")
    0.0
    """

    code: Code
    decoder: Decoder
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]

    def simulate(self, plan: AttackPlan) -> NDArray[np.float32]:
        """Return the scores as a plan would have them: hit models say their target, or those of several in turn."""
        scores, planted, n_classes = self.scores.copy(), self._planted(plan), self.scores.shape[2]
        row, model = np.nonzero(planted >= 0)
        scores[row, model] = np.float32(np.log((1 - _SURE) / (n_classes - 1)))
        scores[row, model, planted[row, model]] = np.float32(np.log(_SURE))
        return scores

    def _planted(self, plan: AttackPlan) -> NDArray[np.int64]:
        """Return the target of each model on each input, -1 for none, shape (N, m)."""
        if plan.models is not None:
            return np.tile(plan.models, (len(self.labels), 1))
        rows = np.array(plan.classes or [[target] * self.scores.shape[2] for target in plan.targets])
        wanted = rows[:, self.labels].T[:, None]
        here = (wanted >= 0) & self.code.matrix[:, list(plan.attackers)]
        turn = np.arange(len(here))[:, None] % np.maximum(here.sum(axis=2), 1)
        chosen = here & (here.cumsum(axis=2) - 1 == turn[:, :, None])
        return np.asarray(np.where(chosen, wanted, -1).max(axis=2), dtype=np.int64)

    def reached(self, plan: AttackPlan, goal: Goal) -> NDArray[np.bool_]:
        """Tell on which inputs a plan reaches the goal."""
        scores = self.simulate(plan)
        decoded = self.decoder.decode(scores if self.decoder.needs == "scores" else vote(scores))
        if goal == "blame":
            return np.array([bool(set(named) - set(plan.attackers)) for named in decoded.suspects])
        wrong = np.asarray(decoded.labels != self.labels)
        return wrong & ~decoded.alarms(self.decoder.threshold) if goal == "silent" else wrong

    def harm(self, plan: AttackPlan, goal: Goal) -> float:
        """Return the share of inputs on which a plan reaches the goal."""
        return float(self.reached(plan, goal).mean())


def search_plan(
    field: Battlefield,
    goal: Goal,
    n_attackers: int,
    seed: Sequence[int],
    freedom: Freedom = "own-targets",
    steps: int = 150,
) -> tuple[AttackPlan, float]:
    """Anneal over who attacks and what is planted: one target, one by each attacker, or one in each hit model.

    Returns
    -------
    AttackPlan
        The worst found.
    float
        Share of the search's inputs on which it reaches the goal.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> from codeward.decoding import PluralityDecoder
    >>> code, labels = named_code("d"), np.zeros(4, np.int64)
    >>> scores = np.where(np.arange(3) == 0, -0.1, -3.0) * np.ones((4, code.n_models, 1))
    >>> field = Battlefield(code, PluralityDecoder(code, 3), scores.astype(np.float32), labels)
    >>> search_plan(field, "label", 2, seed=[0], steps=30)[1]  # two of twelve reach five of six models
    1.0
    """
    rng = np.random.default_rng(seed)
    code, n_classes = field.code, field.scores.shape[2]
    attackers = tuple(sorted(int(user) for user in rng.permutation(code.n_users)[:n_attackers]))
    plan = AttackPlan(attackers, (int(rng.integers(n_classes)),) * n_attackers)
    if freedom == "per-model":
        plan = replace(plan, models=_spread(code, plan, plan.targets[0]))
    harm = field.harm(plan, goal)
    best, most = plan, harm
    for step in range(steps):
        heat = _HOT * (_COLD / _HOT) ** (step / steps)
        other = _change(code, plan, n_classes, rng, freedom)
        found = field.harm(other, goal)
        if found >= harm or rng.random() < np.exp((found - harm) / heat):
            plan, harm = other, found
        if harm > most:
            best, most = plan, harm
    return best, most


def search_classes(
    field: Battlefield, start: AttackPlan, goal: Goal, seed: Sequence[int], one_target: bool = False, steps: int = 200
) -> tuple[AttackPlan, float]:
    """Anneal on from a plan, by the same attackers, over what each of them plants in samples of each true class.

    An input's answer hangs on the targets of its own class alone, so all classes are annealed side by side and each
    keeps its worst: the plan is never weaker than its start.

    Parameters
    ----------
    field : Battlefield
    start : AttackPlan
    goal : {"label", "blame", "silent"}
    seed : sequence of int
    one_target : bool
        Whether all attackers plant the same in a class (deterministic), or what each likes (arbitrary).
    steps : int

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> from codeward.decoding import PluralityDecoder
    >>> code, labels = named_code("d"), np.array([0, 0, 1, 1])
    >>> scores = np.where(np.arange(3) == labels[:, None, None], -0.1, -3.0) * np.ones((4, code.n_models, 1))
    >>> field = Battlefield(code, PluralityDecoder(code, 3), scores.astype(np.float32), labels)
    >>> start = AttackPlan((0, 1), (1, 1))
    >>> field.harm(start, "label"), search_classes(field, start, "label", seed=[0])[1]  # 1 to 1 is no attack
    (0.5, 1.0)
    """
    rng, n_classes = np.random.default_rng(seed), field.scores.shape[2]
    of = np.bincount(field.labels, minlength=n_classes)

    def count(rows: NDArray[np.int64]) -> tuple[AttackPlan, NDArray[np.float64]]:
        plan = replace(start, classes=tuple(tuple(map(int, row)) for row in rows))
        return plan, np.bincount(field.labels, field.reached(plan, goal), n_classes) / np.maximum(of, 1)

    best = rows = np.repeat(np.array(start.targets)[:, None], n_classes, axis=1)
    most = harm = count(rows)[1]
    for step in range(steps):
        heat = _HOT * (_COLD / _HOT) ** (step / steps)
        place = rng.integers(len(rows), size=n_classes) == np.arange(len(rows))[:, None]
        other = np.where(one_target | place, rng.integers(-1, n_classes, n_classes), rows)
        found = count(other)[1]
        best, most = np.where(found > most, other, best), np.maximum(found, most)
        taken = (found >= harm) | (rng.random(n_classes) < np.exp(np.minimum(found - harm, 0) / heat))
        rows, harm = np.where(taken, other, rows), np.where(taken, found, harm)
    return count(best)[0], float((most * of).sum() / of.sum())


def _spread(code: Code, plan: AttackPlan, target: int) -> tuple[int, ...]:
    return tuple(int(target) if hit else -1 for hit in code.pattern(plan.attackers))


def _change(code: Code, plan: AttackPlan, n_classes: int, rng: np.random.Generator, freedom: Freedom) -> AttackPlan:
    """Replace an attacker, or change a target."""
    place = int(rng.integers(len(plan.attackers)))
    if rng.random() < 0.3:
        outside = [user for user in range(code.n_users) if user not in plan.attackers]
        users = list(plan.attackers)
        users[place] = int(rng.choice(outside))
        order = np.argsort(users)
        other = AttackPlan(tuple(users[i] for i in order), tuple(plan.targets[i] for i in order))
        if plan.models is None:
            return other
        hit = code.pattern(other.attackers)
        old = [target for target in plan.models if target >= 0] or [0]
        models = [t if t >= 0 else old[i % len(old)] for i, t in enumerate(plan.models)]
        return replace(other, models=tuple(t if hit[i] else -1 for i, t in enumerate(models)))
    if freedom == "one-target":
        return replace(plan, targets=(int(rng.integers(n_classes)),) * len(plan.targets))
    if plan.models is None:
        targets = list(plan.targets)
        targets[place] = int(rng.integers(-1, n_classes))
        return replace(plan, targets=tuple(targets)) if max(targets) >= 0 else plan
    models = list(plan.models)
    hit_models = np.flatnonzero(code.pattern(plan.attackers))
    models[int(rng.choice(hit_models))] = int(rng.integers(-1, n_classes))
    return replace(plan, models=tuple(models)) if max(models) >= 0 else plan
