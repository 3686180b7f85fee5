"""One attack on one set of users: what every defence is given, and what it gives back."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._files import read_json
from codeward._progress import Shown
from codeward.attacks import AttackGroup
from codeward.codes import Code
from codeward.data import Overlay, Samples
from codeward.decoding import alarm_threshold
from codeward.runs import share
from codeward.training import Ensemble, ModelStore, TrainingSettings, plan_models, train_ensembles

#: The attacks by name. Those of `UPDATE_ATTACKS` need users who train for themselves; the others hand in data.
ATTACKS: dict[str, str] = {
    "none": "nobody attacks",
    "patch": "a patch in the corner, relabelled (Gu et al., 2017)",
    "blended": "a faint pattern over the whole image, relabelled (Chen et al., 2017)",
    "clean-label": "the patch on images of the target class, no label changed (Turner et al., 2019)",
    "split": "each attacker plants a part of the patch (Xie et al., 2020)",
    "label-flip": "labels changed, no trigger",
    "two-groups": "two groups with a trigger and a target of their own",
    "half-labelled": "the patch, half of the stamped images relabelled: the trigger works half of the time",
    "softened": "the patch, shown at half of the opacity at which it was planted: hit models are unsure",
    "dynamic": "one of eight patches at a place of its own on every image (Salem et al., 2022)",
    "cover": "against detectors: half of the patch while training, a third of it truly labelled (Qi et al., 2023)",
    "own-targets": "adaptive: one patch, every attacker plants a target of its own, so that hit models disagree",
    "validation": "the patch, and a tenth of the server's validation data is stamped and relabelled too",
    "adaptive-label": "searched against codeward: who attacks and what each plants, to lose the label",
    "adaptive-one-target": "searched against codeward: who attacks with which one target, to lose the label",
    "adaptive-blame": "searched against codeward: the same, so that others are named",
    "adaptive-silent": "searched against codeward: the same, to lose the label without an alarm",
    "adaptive-past": "searched against codeward: to lose the label, with one attacker more than it is made for",
    "adaptive-classes": "searched against codeward: what each plants in every true class, to lose the label",
    "adaptive-one-target-classes": "searched against codeward: one target for every true class, to lose the label",
    "replacement": "updates scaled by the number of users (Bagdasaryan et al., 2020)",
    "little": "updates within the spread of the others' (A Little Is Enough, Baruch et al., 2019)",
    "directed": "the backdoor's direction alone, pushed as far as the rule of the server lets it pass",
    "bypass": "attackers train features of stamped images to be like clean ones (Tan and Shokri, 2020)",
    "framing": "replacement only where others have no part, so that those seem to attack with the true label",
    "adaptive-updates": "searched against codeward: another target in every model, to lose the label",
}
#: Attacks of users who send updates.
UPDATE_ATTACKS = ("replacement", "little", "directed", "bypass", "framing", "adaptive-updates")
#: False alarms at which detection is compared.
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class AttackPlan:
    """What attackers who know the defence agreed on.

    Attributes
    ----------
    attackers : tuple of int
    targets : tuple of int
        What each of them plants; -1 for one that does nothing yet counts.
    models : tuple of int or None
        The target planted in each model, -1 for none, where attackers send an update for every model.
    classes : tuple of tuple of int, or None
        Instead of ``targets``, what each of them plants in samples of each true class, as `AttackGroup.by_class`.

    Examples
    --------
    >>> AttackPlan((3, 5), (1, -1)).targets
    (1, -1)
    """

    attackers: tuple[int, ...]
    targets: tuple[int, ...]
    models: tuple[int, ...] | None = None
    classes: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "AttackPlan":
        """Read a plan; older ones have no classes."""
        told = read_json(path)
        models, classes = told["models"], told.get("classes")
        return cls(
            tuple(told["attackers"]), tuple(told["targets"]), models and tuple(models),
            classes and tuple(map(tuple, classes)),
        )  # fmt: skip

    def groups(self, drawn: AttackGroup) -> tuple[AttackGroup, ...]:
        """Return a group for every attacker that plants something, with the trigger of the drawn one."""
        rows = self.classes or [None] * len(self.attackers)
        planted = zip(self.attackers, self.targets, rows, strict=True)
        return tuple(
            replace(drawn, attackers=(user,), target=max(target, 0), by_class=row)
            for user, target, row in planted
            if max(row or [target]) >= 0
        )


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
    honest : tuple of Samples
        What they hold before anybody attacks.
    validation, clean, triggered : Samples
        Trusted clean inputs, test inputs, and the same test inputs with the trigger.
    settings : TrainingSettings
    n_classes : int
    seed : int
    store : ModelStore or None
        Models of several defences are trained once.
    folder : Path or None
        Where votes of coded defences are kept, so that a machine with a GPU trains and another one decodes.
    plan : tuple of int or None
        Of ``adaptive-updates``: the target planted in each model, -1 for none.
    effort : float
        Share of the recipe's epochs that models train.
    recipe : {"modern", "paper"}
        How users of a federation train.
    seconds : dict of str to float
        Processor seconds spent on inference; the rest of a defence is training and fitting.

    Examples
    --------
    >>> from codeward.data import load_dataset
    >>> from codeward.experiments.comparison import make_scene
    >>> from codeward.training import PRESETS
    >>> scene = make_scene("two-groups", load_dataset("digits"), PRESETS["digits"])
    >>> len(scene.attackers), len(scene.pooled) == sum(map(len, scene.users))
    (4, True)
    """

    name: str
    users: tuple[Samples, ...]
    groups: tuple[AttackGroup, ...]
    honest: tuple[Samples, ...]
    validation: Samples
    clean: Samples
    triggered: Samples
    settings: TrainingSettings
    n_classes: int
    seed: int
    store: ModelStore | None = None
    folder: Path | None = None
    plan: tuple[int, ...] | None = None
    effort: float = 1.0
    recipe: str = "modern"
    seconds: dict[str, float] = field(default_factory=dict, compare=False, repr=False)

    @contextmanager
    def inferring(self) -> Iterator[None]:
        """Count what runs inside as inference."""
        begin = time.process_time()
        yield
        self.seconds["inference"] = self.seconds.get("inference", 0.0) + time.process_time() - begin

    def score(self, ensemble: Ensemble, sets: Sequence[Samples]) -> list[NDArray[np.float32]]:
        """Return the models' scores of several sets of inputs."""
        with self.inferring():
            return ensemble.score_all(sets)

    @property
    def attackers(self) -> tuple[int, ...]:
        """Everybody who attacks."""
        return tuple(sorted({user for group in self.groups for user in group.attackers}))

    @cached_property
    def pooled(self) -> Samples:
        """All users' data as one set."""
        return join_samples(self.users)

    def settings_of(self, code: Code) -> TrainingSettings:
        """Return how the models of a code are trained: the recipe for their size, shortened by the effort."""
        if self.effort == 1:
            return self.settings
        samples = sum(map(len, self.users)) / code.n_users * float(code.matrix.sum(axis=1).mean())
        epochs = self.settings.for_samples(round(samples)).epochs
        return replace(self.settings, epochs=max(1, round(self.effort * epochs)))

    def train_one(self) -> Ensemble:
        """Train one model on everybody's data, as one would without a defence."""
        return train_scenes([(self, self.everybody, self.users)])[0]

    @property
    def everybody(self) -> Code:
        """The code of one model that learns from all users."""
        return Code(np.ones((1, len(self.users)), dtype=bool))

    def train_each(self, sets: Sequence[Samples], **changes: Any) -> list[Ensemble]:
        """Train a model on each of several data sets in one go, with other settings where given."""
        alone = Code(np.ones((1, 1), dtype=bool))
        settings = replace(self.settings_of(alone), **changes)
        tasks = [((samples,), alone) for samples in sets]
        return train_ensembles(tasks, settings, self.seed, store=self.store, device="auto")


def train_scenes(wanted: Sequence[tuple[Scene, Code, Sequence[Samples]]], progress: Shown = None) -> list[Ensemble]:
    """Train the sub-models of codes on users' data, of any number of scenes that share a store, in one go.

    A GPU has then something to do all the time: a scene alone has few models to train, and starting takes seconds.
    """
    recipes = [scene.settings_of(code) for scene, code, _ in wanted]
    found: dict[int, Ensemble] = {}
    for settings in dict.fromkeys(recipes):
        places = [place for place, own in enumerate(recipes) if own == settings]
        tasks = [(users, plan_models(code, scene.seed)) for scene, code, users in (wanted[place] for place in places)]
        store = wanted[places[0]][0].store
        trained = train_ensembles(tasks, settings, 0, store=store, device="auto", progress=progress)  # plans have seeds
        found |= dict(zip(places, trained, strict=True))
    return [found[place] for place in range(len(wanted))]


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
    certified, broken : ndarray of bool, shape (N,), or None
        Triggered inputs on which the certificate of the models without the attack covers this attack, and those of them
        whose label the attack changed all the same.
    n_models, n_passes : int
        Models trained, and forward passes an input takes.

    Examples
    --------
    >>> Outcome(np.array([1, 2]), np.array([1, 1])).guarantee
    'none'
    """

    clean: NDArray[np.int64]
    triggered: NDArray[np.int64]
    clean_alarm: NDArray[np.float64] | None = None
    triggered_alarm: NDArray[np.float64] | None = None
    named: tuple[tuple[int, ...], ...] | None = None
    guaranteed: int = 0
    guarantee: str = "none"
    certified: NDArray[np.bool_] | None = None
    broken: NDArray[np.bool_] | None = None
    n_models: int = 1
    n_passes: int = 1


def measure_outcome(scene: Scene, outcome: Outcome) -> dict[str, Any]:
    """Count what a defence got right, with denominators.

    Triggered inputs whose true label is the target are left out: there the attack changes nothing. Where targets differ
    by class, those of classes whose label no attacker changes are. ``detected`` is the share of triggered inputs above
    the alarm that 5% of the clean inputs pass, ``named`` users a triggered input.

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
    planted = np.array([group.targets_of(truth) for group in scene.groups]).reshape(-1, len(truth))
    if any(group.by_class for group in scene.groups):
        counted = ((planted >= 0) & (planted != truth)).any(axis=0)
    else:
        counted = ~(planted == truth).any(axis=0)
    reached = (planted == outcome.triggered).any(axis=0) & (outcome.triggered != truth)
    figures: dict[str, Any] = {
        "clean": share(int((outcome.clean == truth).sum()), len(truth)),
        "triggered": share(int((outcome.triggered == truth)[counted].sum()), int(counted.sum())),
        "attack_succeeds": share(int(reached[counted].sum()), int(counted.sum())),
        "detected": None,
        "named_rightly": None,
        "named_wrongly": None,
        "certified": None if outcome.certified is None else share(int(outcome.certified.sum()), len(truth)),
        "broken": None if outcome.broken is None else share(int(outcome.broken.sum()), len(truth)),
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
