"""One attack on one set of users: what every defence is given, and what it gives back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.attacks import AttackGroup, AttackKind, draw_groups, poison_users, trigger_inputs
from codeward.codes import Code
from codeward.data import DatasetPair, Overlay, Samples, halve_test, split_iid
from codeward.decoding import alarm_threshold
from codeward.runs import share
from codeward.training import Ensemble, ModelStore, TrainingSettings, train_ensemble

#: The attacks by name: what they are in the words of `codeward.attacks`, or one of those below.
ATTACKS: dict[str, str] = {
    "none": "nobody attacks",
    "patch": "a patch in the corner, relabelled (Gu et al., 2017)",
    "blended": "a faint pattern over the whole image, relabelled (Chen et al., 2017)",
    "clean-label": "the patch on images of the target class, no label changed (Turner et al., 2019)",
    "split": "each attacker plants a part of the patch (Xie et al., 2020)",
    "label-flip": "labels changed, no trigger",
    "two-groups": "two groups with a trigger and a target of their own",
    "half-labelled": "the patch, half of the stamped images relabelled: the trigger works half of the time",
    "own-targets": "adaptive: one patch, every attacker plants a target of its own, so that hit models disagree",
}
#: False alarms at which detection is compared.
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Scene:
    """The users' data under one attack, and the inputs on which figures are taken.

    Attributes
    ----------
    name : str
        Name of the attack.
    users : tuple of Samples
        What the users hand in, poison included.
    groups : tuple of AttackGroup
        Who attacks; the first group's trigger is on the triggered inputs.
    validation, clean, triggered : Samples
        Trusted clean inputs, test inputs, and the same test inputs with the trigger.
    settings : TrainingSettings
    n_classes : int
    seed : int
    store : ModelStore or None
        Models of several defences are trained once.
    """

    name: str
    users: tuple[Samples, ...]
    groups: tuple[AttackGroup, ...]
    validation: Samples
    clean: Samples
    triggered: Samples
    settings: TrainingSettings
    n_classes: int
    seed: int
    store: ModelStore | None = None

    @property
    def attackers(self) -> tuple[int, ...]:
        """Everybody who attacks."""
        return tuple(sorted({user for group in self.groups for user in group.attackers}))

    @cached_property
    def pooled(self) -> Samples:
        """All users' data as one set."""
        return join_samples(self.users)

    def train(self, code: Code, users: Sequence[Samples] | None = None, **changes: Any) -> Ensemble:
        """Train the sub-models of a code, on other data or with other settings where given."""
        settings = replace(self.settings, **changes) if changes else self.settings
        given = self.users if users is None else users
        return train_ensemble(given, code, settings, self.seed, store=self.store, device="auto")

    def train_one(self, samples: Samples | None = None) -> Ensemble:
        """Train one model on everybody's data, as one would without a defence, or on other data."""
        users = self.users if samples is None else (samples,)
        return self.train(Code(np.ones((1, len(users)), dtype=bool)), users)


def make_scene(
    attack: str,
    pair: DatasetPair,
    settings: TrainingSettings,
    n_users: int = 12,
    n_attackers: int = 2,
    fraction: float = 0.5,
    seed: int = 0,
    store: ModelStore | None = None,
) -> Scene:
    """Split the data among users and let some of them attack; all of it follows from the seed.

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
    parts = split_iid(pair.train.labels, n_users, np.random.default_rng([seed, 0]))
    users = [pair.train.take(part) for part in parts]
    first, second = halve_test(pair.test.labels, np.random.default_rng([seed, 1]))
    clean = pair.test.take(second)
    own = attack in ("blended", "clean-label", "split", "label-flip")
    kind = cast(AttackKind, attack if own else "patch")
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
    triggered = trigger_inputs(clean, groups[0], seed=[seed, 3])
    if attack == "own-targets":
        # One trigger, but every attacker is a group of its own with another target.
        one = groups[0]
        groups = tuple(
            replace(one, attackers=(user,), target=(one.target + number) % pair.n_classes)
            for number, user in enumerate(one.attackers)
        )
    handed_in = poison_users(users, list(groups), [seed, 4])
    if attack == "half-labelled":
        handed_in = _relabel_half(users, handed_in, groups[0], np.random.default_rng([seed, 5]))
    if attack == "none":
        handed_in, groups = users, ()
    return Scene(
        name=attack,
        users=tuple(handed_in),
        groups=groups,
        validation=pair.test.take(first),
        clean=clean,
        triggered=triggered,
        settings=settings,
        n_classes=pair.n_classes,
        seed=seed,
        store=store,
    )


def join_samples(parts: Sequence[Samples]) -> Samples:
    """Join samples, overlays included.

    Examples
    --------
    >>> one = Samples(np.zeros((2, 1, 2, 2), np.uint8), np.array([0, 1]))
    >>> len(join_samples([one, one]))
    4
    """
    overlays: list[Overlay] = []
    ids = []
    for part in parts:
        ids.append(np.where(part.overlay_ids < 0, -1, part.overlay_ids + len(overlays)).astype(np.int32))
        overlays += part.overlays
    return Samples(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
        tuple(overlays),
        np.concatenate(ids),
    )


@dataclass(frozen=True)
class Outcome:
    """The answers of a defence.

    Attributes
    ----------
    clean, triggered : ndarray of int64, shape (N,)
        Labels of the clean and of the triggered test inputs.
    clean_alarm, triggered_alarm : ndarray of float64, shape (N,), or None
        How suspicious each input looks, larger is more; None where the defence judges no inputs.
    named : tuple of tuple of int, or None
        Users named on each triggered input; None where the defence names nobody.
    guaranteed : int
        Users that cannot change a label that the guarantee covers; 0 where there is none.
    guarantee : str
        In words, with its threat model.
    n_models, n_passes : int
        Models trained, and forward passes an input takes.
    """

    clean: NDArray[np.int64]
    triggered: NDArray[np.int64]
    clean_alarm: NDArray[np.float64] | None = None
    triggered_alarm: NDArray[np.float64] | None = None
    named: tuple[tuple[int, ...], ...] | None = None
    guaranteed: int = 0
    guarantee: str = "none"
    n_models: int = 1
    n_passes: int = 1


def measure_outcome(scene: Scene, outcome: Outcome) -> dict[str, Any]:
    """Count what a defence got right, with denominators.

    Triggered inputs whose true label is the target are left out: there the attack changes nothing. ``detected`` is the
    share of triggered inputs above the alarm that 5% of the clean inputs pass, ``named`` users a triggered input.

    Examples
    --------
    >>> from codeward.data import load_dataset
    >>> from codeward.experiments.comparison import make_scene
    >>> from codeward.training import PRESETS
    >>> scene = make_scene("patch", load_dataset("digits"), PRESETS["digits"])
    >>> truth = scene.clean.labels
    >>> figures = measure_outcome(scene, Outcome(truth, np.zeros_like(truth), named=((),) * len(truth)))
    >>> figures["clean"]["count"] == figures["clean"]["of"], figures["detected"]
    (True, None)
    """
    truth = scene.clean.labels
    targets = {group.target for group in scene.groups}
    counted = ~np.isin(truth, list(targets))
    figures: dict[str, Any] = {
        "clean": share(int((outcome.clean == truth).sum()), len(truth)),
        "triggered": share(int((outcome.triggered == truth)[counted].sum()), int(counted.sum())),
        "attack_succeeds": share(int(np.isin(outcome.triggered, list(targets))[counted].sum()), int(counted.sum())),
        "detected": None,
        "named_rightly": None,
        "named_wrongly": None,
        "guaranteed": outcome.guaranteed,
        "guarantee": outcome.guarantee,
        "models": outcome.n_models,
        "passes": outcome.n_passes,
    }
    if outcome.clean_alarm is not None and outcome.triggered_alarm is not None:
        above = outcome.triggered_alarm[counted] > alarm_threshold(outcome.clean_alarm, FALSE_ALARMS)
        figures["detected"] = share(int(above.sum()), int(counted.sum()))
    if outcome.named is not None:
        attackers = set(scene.attackers)
        named = [set(names) for names, counts in zip(outcome.named, counted, strict=True) if counts]
        for figure, parts in (
            ("named_rightly", [found & attackers for found in named]),
            ("named_wrongly", [found - attackers for found in named]),
        ):
            figures[figure] = {"mean": float(np.mean([len(part) for part in parts])), "of": len(named)}
    return figures


def _relabel_half(
    before: Sequence[Samples], after: Sequence[Samples], group: AttackGroup, rng: np.random.Generator
) -> list[Samples]:
    """Give half of an attacker's stamped images their true label back."""
    users = list(after)
    for user in group.attackers:
        stamped = np.flatnonzero(after[user].overlay_ids >= 0)
        back: NDArray[np.int64] = rng.permutation(stamped)[: len(stamped) // 2]
        labels = after[user].labels.copy()
        labels[back] = before[user].labels[back]
        users[user] = replace(after[user], labels=labels)
    return users
