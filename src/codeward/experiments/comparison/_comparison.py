"""A grid of attacks and defences: one record a cell, resumed from whatever is there."""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch

from codeward._errors import InputError
from codeward._files import read_json, write_json, write_text_atomic
from codeward._progress import Shown, show_progress
from codeward.data import DatasetPair, Samples, load_dataset
from codeward.experiments.comparison._coded_defences import (
    CodedDefence,
    collect_votes,
    make_fitted,
    train_ahead,
)
from codeward.experiments.comparison._defences import DEFENCES, NAMED_CODES
from codeward.experiments.comparison._scene import (
    ATTACKS,
    UPDATE_ATTACKS,
    AttackPlan,
    Scene,
    join_samples,
    measure_outcome,
)
from codeward.experiments.comparison._simulated_attacks import (
    Battlefield,
    Freedom,
    Goal,
    make_scene,
    search_classes,
    search_plan,
)
from codeward.runs import FRACTION, FRACTIONS, describe_machine, parse_yaml
from codeward.training import ModelStore, TrainingSettings, choose_recipe

#: Changes when a reader of older records would misread newer ones.
FORMAT = "codeward-comparison/2"
#: Validation inputs on which adaptive attackers try their plans.
_SEARCHED = 40
#: The same where they choose by true class.
_SEARCHED_BY_CLASS = 120
#: What adaptive attackers may plant, where it is not a target each.
_FREEDOM: dict[str, Freedom] = {"updates": "per-model", "one-target": "one-target", "one-target-classes": "one-target"}


@dataclass(frozen=True)
class Comparison:
    """What is compared.

    Attributes
    ----------
    dataset : str
    users, attackers : int
    attacks, defences : tuple of str
        Keys of `ATTACKS` and `DEFENCES`.
    seeds : tuple of int
    fraction : float or None
        Share of an attacker's samples that is poisoned; by default that of `codeward run`.
    epochs : int or None
        Instead of the data set's recipe.
    recipe : {"modern", "paper"}
        Of the data set; users of a federation take four passes a round at a rate of 0.01, or one at 0.003.
    inputs : int or None
        At most so many test inputs, and validation inputs; by default half of the test set each.
    effort : float
        Share of the recipe's epochs that models train, where the recipe would take too long.
    fold : int
        0 for the data set's own test set; f for the f-th part of the training images of that size in its place, so that
        a setting can be judged on other inputs than those it was chosen on.
    costs : bool
        Whether seconds are measured where nobody attacks: every defence then trains all of its models there itself.
        Without, models and votes of those cells are shared and kept as elsewhere.

    Examples
    --------
    >>> Comparison(attacks=("patch", "little"), defences=("strip", "fed-krum"), seeds=(0,)).n_cells
    3
    """

    dataset: str = "digits"
    users: int = 12
    attackers: int = 2
    attacks: tuple[str, ...] = tuple(ATTACKS)
    defences: tuple[str, ...] = tuple(DEFENCES)
    seeds: tuple[int, ...] = (0, 1, 2)
    fraction: float | None = None
    epochs: int | None = None
    recipe: str = "modern"
    inputs: int | None = None
    effort: float = 1.0
    fold: int = 0
    costs: bool = True

    def __post_init__(self) -> None:
        for name in ("attacks", "defences", "seeds"):
            if not isinstance(getattr(self, name), list | tuple):
                raise InputError(f"{name}: expected a list, got {getattr(self, name)!r}")
        for name, lowest in (("users", 2), ("attackers", 1), ("inputs", 1), ("epochs", 1), ("fold", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < lowest):
                raise InputError(f"{name}: expected a whole number of at least {lowest}, got {value!r}")
        if not self.seeds or any(type(seed) is not int or seed < 0 for seed in self.seeds):
            raise InputError(f"seeds: expected whole numbers, 0 or more, got {list(self.seeds)}")
        if type(self.costs) is not bool:
            raise InputError(f"costs: expected true or false, got {self.costs!r}")
        if self.recipe not in ("modern", "paper"):
            raise InputError(f"recipe: expected modern or paper, got {self.recipe!r}")
        for name, known in (("attacks", ATTACKS), ("defences", DEFENCES)):
            given = tuple(getattr(self, name))
            strange = [one for one in given if one not in known]
            if strange or not given or len(set(given)) != len(given):
                raise InputError(f"{name}: expected some of {', '.join(known)}, each once; got {list(given)}")
            object.__setattr__(self, name, given)
        object.__setattr__(self, "seeds", tuple(self.seeds))
        named = [name for name in self.defences if name in NAMED_CODES]
        if self.users != 12 and named:
            raise InputError(f"users: the codes of {', '.join(named)} have 12 users; leave them out for other numbers")
        if not 1 <= 2 * self.attackers <= self.users:
            raise InputError(f"attackers: expected 1 to {self.users // 2} (two groups attack), got {self.attackers}")

    def list_cells(self) -> list["ComparedCell"]:
        """Return the cells, by seed and attack: every attack meets the defences that it can meet."""
        return [
            ComparedCell(attack, defence, seed)
            for seed in self.seeds
            for attack in self.attacks
            for defence in self.defences
            if DEFENCES[defence].meets(attack)
        ]

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.list_cells())

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the figures of a cell; which cells there are does not."""
        content = {k: v for k, v in asdict(self).items() if k not in ("attacks", "defences", "seeds")}
        for name, value in (("fold", 0), ("costs", True)):  # records from before there were such settings
            if content[name] == value:
                del content[name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Comparison":
        """Read a YAML file with the attributes as keys."""
        content = parse_yaml(Path(path).read_text(encoding="utf-8"), str(path)) or {}
        known = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or not set(content) <= known:
            raise InputError(f"{path}: expected keys among {', '.join(sorted(known))}")
        try:
            given: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
            return cls(**given)
        except TypeError as error:
            raise InputError(f"{path}: {error}") from error


@dataclass(frozen=True)
class ComparedCell:
    """One attack against one defence under one seed.

    Examples
    --------
    >>> ComparedCell("patch", "strip", 0).name
    'patch-strip-seed0'
    """

    attack: str
    defence: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its record."""
        return f"{self.attack}-{self.defence}-seed{self.seed}"


def run_comparison(
    comparison: Comparison,
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    progress: Shown = None,
    votes_only: bool = False,
) -> Iterator[tuple[ComparedCell, dict[str, Any]]]:
    """Run every cell that has no record, and yield all records.

    Seconds are processor time. Where nobody attacks every defence trains all of its models (`Comparison.costs`), and
    those cells are what costs are compared by; elsewhere models that defences or attacks share are trained once.

    Parameters
    ----------
    comparison : Comparison
    folder : path-like
        Gets ``records``, ``votes`` of coded defences, ``plans`` of adaptive attackers and a ``store`` of models.
    data_dir : path-like, optional
    progress : Progress or bool, optional
        Show on stderr what is done.
    votes_only : bool
        Train the sub-models of coded defences and keep their votes, and what defences around one model start from;
        decode nothing. All models are trained in one go, those of searched attacks, which are planned against votes of
        others, in a second. The same call without it, there or on another machine, goes on from the votes.

    Examples
    --------
    >>> import tempfile
    >>> small = Comparison(attacks=("patch",), defences=("none",), seeds=(0,), epochs=1)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     [(cell, record)] = run_comparison(small, place)
    ...     [(cell, again)] = run_comparison(small, place)
    >>> record == again, record["figures"]["clean"]["of"]
    (True, 270)
    """
    place = Path(folder)
    stage, compiled = Stage(comparison, place, data_dir), False
    if votes_only:
        _vote_ahead(stage, progress)
        return
    with show_progress("compare", comparison.n_cells, progress) as bar:
        for cell in comparison.list_cells():
            file = place / "records" / f"{cell.name}.json"
            record = _find_record(file, comparison)
            if record is None:
                if cell.attack == "none" and comparison.costs and not compiled:
                    # What is compiled once is no defence's cost.
                    DEFENCES["none"].run(stage.scene(cell.attack, cell.seed))
                    compiled = True
                text = json.dumps(_measure(stage, cell), indent=1)
                write_text_atomic(file, text + "\n")
                record = json.loads(text)  # as it will be read the next time
            bar.advance(1, cell.name)
            yield cell, record


def _vote_ahead(stage: "Stage", progress: Shown) -> None:
    """Train and vote for all cells; searched attacks after the others, whose votes they are planned against."""
    given = stage.comparison
    runs = [DEFENCES[name] for name in given.defences]
    split = [one.run for one in runs if isinstance(one.run, CodedDefence)]
    alone = any(not one.federated and not isinstance(one.run, CodedDefence) for one in runs)
    own = progress if isinstance(progress, bool) else None  # a caller's own counts scenes, and nothing else
    # Cells that measure costs train for themselves.
    names = [name for name in given.attacks if name not in UPDATE_ATTACKS and (name != "none" or not given.costs)]
    for searched in (False, True):
        chosen = [(name, seed) for seed in given.seeds for name in names if name.startswith("adaptive") == searched]
        scenes = []
        with show_progress("plan", len(chosen), own and searched) as planning:
            for attack, seed in chosen:
                scenes.append(stage.scene(attack, seed))
                planning.advance(1, f"{attack}-seed{seed}")
        train_ahead(scenes, split, alone, own)
        with show_progress("vote", len(scenes), progress) as bar:
            for scene in scenes:
                collect_votes(scene, split)
                bar.advance(1, f"{scene.name}-seed{scene.seed}")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    write_json(stage.trained_file, describe_machine("cpu" if gpu is None else "cuda", gpu))


class Stage:
    """Makes scenes: data are loaded when the first is asked for, and one scene is kept."""

    def __init__(self, comparison: Comparison, place: Path, data_dir: str | os.PathLike[str] | None) -> None:
        self.comparison, self.place, self.data_dir = comparison, place, data_dir
        self._last: Scene | None = None
        self._honest: dict[int, tuple[Samples, ...]] = {}
        self._fields: dict[int, tuple[Battlefield, Battlefield]] = {}

    @property
    def trained_file(self) -> Path:
        """Says on which machine models were trained ahead, where cells are measured on another."""
        return self.place / "trained.json"

    @cached_property
    def pair(self) -> DatasetPair:
        """The data set, the fold's images changed for those of its test set."""
        pair, fold = load_dataset(self.comparison.dataset, self.data_dir), self.comparison.fold
        n_train, n_test = len(pair.train), len(pair.test)
        if not 0 <= fold <= n_train // n_test:
            raise InputError(f"fold: expected 0 to {n_train // n_test}, got {fold}")
        if not fold:
            return pair
        everything, given = join_samples([pair.train, pair.test]), np.arange(n_train + n_test)
        chosen = slice((fold - 1) * n_test, fold * n_test)
        return replace(pair, train=everything.take(np.delete(given, chosen)), test=everything.take(given[chosen]))

    @cached_property
    def settings(self) -> TrainingSettings:
        """How models are trained."""
        pair, base = self.pair, choose_recipe(self.comparison.dataset, self.comparison.recipe)
        base = replace(base, n_classes=pair.n_classes, mean=tuple(pair.mean), std=tuple(pair.std))
        return base if self.comparison.epochs is None else replace(base, epochs=self.comparison.epochs)

    def scene(self, attack: str, seed: int) -> Scene:
        """Return the scene of an attack; what it spent on inference is counted anew."""
        last = self._last
        if last is None or (last.name, last.seed) != (attack, seed):
            plan = self._find_plan(attack, seed) if attack.startswith("adaptive") else None
            # Where costs are measured, no model and no vote is taken from elsewhere.
            last = self._make(attack, seed, plan, None if attack == "none" and self.comparison.costs else self.place)
        self._last = replace(last, seconds={})
        return self._last

    def _make(self, attack: str, seed: int, plan: AttackPlan | None, kept: Path | None) -> Scene:
        given = self.comparison
        fraction = FRACTIONS.get(given.dataset, FRACTION) if given.fraction is None else given.fraction
        store = None if kept is None else ModelStore(kept / "store")
        scene = make_scene(
            attack, self.pair, self.settings, given.users, given.attackers, fraction, seed, store, kept, plan,
            given.inputs, given.effort, given.recipe,
        )  # fmt: skip
        # All scenes of a seed have the same honest users: one copy of them.
        shared = self._honest.setdefault(seed, scene.honest)
        both = zip(scene.users, scene.honest, shared, strict=True)
        return replace(scene, honest=shared, users=tuple(same if new is own else new for new, own, same in both))

    def _find_plan(self, attack: str, seed: int) -> AttackPlan:
        """Read what adaptive attackers agreed on, or search for it: against codeward without an attack."""
        file = self.place / "plans" / f"{attack}-seed{seed}.json"
        if not file.is_file():
            arena, wide = self._find_fields(seed)
            goal = attack.removeprefix("adaptive-")
            freedom = _FREEDOM.get(goal, "own-targets")
            wanted = cast(Goal, goal if goal in get_args(Goal) else "label")
            n_attackers = self.comparison.attackers + int(goal == "past")
            plan, harm = search_plan(arena, wanted, n_attackers, [seed, 14], freedom)
            if goal.endswith("classes"):
                plan, harm = search_classes(wide, plan, wanted, [seed, 15], freedom == "one-target")
            write_text_atomic(file, json.dumps({**asdict(plan), "harm": harm}) + "\n")
        return AttackPlan.load(file)

    def _find_fields(self, seed: int) -> tuple[Battlefield, Battlefield]:
        """Return what plans are tried on, one by one and by class: codeward without an attack, fitted once a seed."""
        if seed not in self._fields:
            defence = DEFENCES["codeward"].run
            assert isinstance(defence, CodedDefence)
            scene = self._make("none", seed, None, self.place)
            code = defence.code(scene)
            heard = collect_votes(scene, [defence])[code.digest]["validation"]
            decoder = make_fitted(scene, code, heard, defence)
            arena, wide = (
                Battlefield(code, decoder, heard[:number].astype(np.float32), scene.validation.labels[:number])
                for number in (_SEARCHED, _SEARCHED_BY_CLASS)
            )
            self._fields[seed] = arena, wide
        return self._fields[seed]


def _measure(stage: Stage, cell: ComparedCell) -> dict[str, Any]:
    comparison, scene = stage.comparison, stage.scene(cell.attack, cell.seed)
    start, defence = time.process_time(), DEFENCES[cell.defence]
    outcome = defence.run(scene)
    seconds, inference = time.process_time() - start, scene.seconds.get("inference", 0.0)
    return {
        "format": FORMAT,
        "digest": comparison.digest,
        "attack": cell.attack,
        "attack_title": ATTACKS[cell.attack],
        "defence": cell.defence,
        "title": defence.title,
        "citation": defence.citation,
        "made_for": defence.made_for,
        "seed": cell.seed,
        "comparison": asdict(comparison),
        "order": {"attack": list(ATTACKS).index(cell.attack), "defence": list(DEFENCES).index(cell.defence)},
        "attackers": list(scene.attackers),
        "figures": measure_outcome(scene, outcome),
        "seconds": {"training": round(seconds - inference, 3), "inference": round(inference, 4)},
        **describe_machine("cuda" if torch.cuda.is_available() else "cpu"),
        **({"trained": read_json(stage.trained_file)} if stage.trained_file.is_file() else {}),
    }


def _find_record(file: Path, comparison: Comparison) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    record = read_json(file)
    if not isinstance(record, dict) or record.get("digest") != comparison.digest:
        raise InputError(f"{file}: a record of another comparison; give another folder, or remove it")
    return record
