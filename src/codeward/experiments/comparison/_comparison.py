"""All defences by name, and a grid of attacks against them: one record a cell, resumed from whatever is there."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._files import read_json, write_text_atomic
from codeward._progress import Progress, silent
from codeward.data import load_dataset
from codeward.experiments.comparison import _coded_defences as coded
from codeward.experiments.comparison import _single_model as single
from codeward.experiments.comparison._scene import ATTACKS, Outcome, Scene, make_scene, measure_outcome
from codeward.runs import FRACTION, FRACTIONS, describe_machine, parse_yaml
from codeward.training import PRESETS, ModelStore, TrainingSettings

#: Changes when a reader of older records would misread newer ones.
FORMAT = "codeward-comparison/1"


@dataclass(frozen=True)
class Defence:
    """One defence.

    Attributes
    ----------
    run : callable
        From a `Scene` to an `Outcome`.
    title : str
    citation : str
    made_for : str
        The threat that its authors had in mind.

    Examples
    --------
    >>> DEFENCES["strip"].citation
    'Gao et al., 2019'
    """

    run: Callable[[Scene], Outcome]
    title: str
    citation: str
    made_for: str


_POISON = "a minority of each class poisoned, one party trains"
_INPUT = "a trigger that holds the answer whatever else is on the image"

DEFENCES: dict[str, Defence] = {
    "none": Defence(single.run_undefended, "no defence", "", "none"),
    "spectral": Defence(single.run_spectral, "spectral signatures", "Tran et al., 2018", _POISON),
    "clustering": Defence(single.run_activation_clustering, "activation clustering", "Chen et al., 2018", _POISON),
    "strip": Defence(single.run_strip, "STRIP", "Gao et al., 2019", _INPUT),
    "cleanse": Defence(single.run_neural_cleanse, "Neural Cleanse", "Wang et al., 2019", "a small trigger, one target"),
    "noise": Defence(coded.run_noise, "RAB", "Weber et al., 2023", "changes of small norm to the training data"),
    "output-code": Defence(
        coded.run_output_code, "output code", "Dietterich and Bakiri, 1995", "errors of models, not poison"
    ),
    "partition": Defence(coded.run_partition, "DPA", "Levine and Feizi, 2021", "any k samples or users (arbitrary)"),
    "partition-runoff": Defence(
        partial(coded.run_partition, decoder="runoff"), "DPA, run-off", "Rezaei et al., 2023", "the same"
    ),
    "shifted-hash": Defence(coded.run_shifted_hash, "Finite Aggregation", "Wang et al., 2022", "the same"),
    "bagging": Defence(coded.run_bagging, "bagging", "Jia et al., 2021", "the same, on average over draws"),
    "paper": Defence(
        partial(coded.run_codeward, code="c", decoder="bayes", n_attackers=3),
        "code and decoder of the paper",
        "Qiao et al., 2021",
        "k colluding users, one trigger (deterministic)",
    ),
    "codeward": Defence(coded.run_default, "codeward", "this software", "k colluding users, both threat models"),
}


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

    Examples
    --------
    >>> Comparison(seeds=(0,)).n_cells == len(ATTACKS) * len(DEFENCES)
    True
    """

    dataset: str = "digits"
    users: int = 12
    attackers: int = 2
    attacks: tuple[str, ...] = tuple(ATTACKS)
    defences: tuple[str, ...] = tuple(DEFENCES)
    seeds: tuple[int, ...] = (0, 1, 2)
    fraction: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("attacks", ATTACKS), ("defences", DEFENCES)):
            given = tuple(getattr(self, name))
            strange = [one for one in given if one not in known]
            if strange or not given or len(set(given)) != len(given):
                raise InputError(f"{name}: expected some of {', '.join(known)}, each once; got {list(given)}")
            object.__setattr__(self, name, given)
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if self.users != 12 and "paper" in self.defences:
            raise InputError("users: the paper's code has 12 users; leave out the defence paper for other numbers")
        if not 1 <= 2 * self.attackers <= self.users:
            raise InputError(f"attackers: expected 1 to {self.users // 2} (two groups attack), got {self.attackers}")

    @property
    def n_cells(self) -> int:
        """Number of cells: attacks times defences times seeds."""
        return len(self.attacks) * len(self.defences) * len(self.seeds)

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the figures of a cell; which cells there are does not."""
        content = {k: v for k, v in asdict(self).items() if k not in ("attacks", "defences", "seeds")}
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
    progress: Progress | None = None,
) -> Iterator[tuple[ComparedCell, dict[str, Any]]]:
    """Run every cell that has no record, and yield all records.

    Times are of one process, one cell after the other; a model that two defences share is trained for the first of
    them, so ``seconds`` is what the defence added to what was there, and ``models`` what it costs alone.

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
    place, bar = Path(folder), progress or silent()
    scenes: dict[tuple[str, int], Scene] = {}
    pair, settings = None, None
    for seed in comparison.seeds:
        for attack in comparison.attacks:
            for defence in comparison.defences:
                cell = ComparedCell(attack, defence, seed)
                file = place / "records" / f"{cell.name}.json"
                record = _find_record(file, comparison)
                if record is None:
                    if pair is None or settings is None:
                        pair = load_dataset(comparison.dataset, data_dir)
                        settings = _choose_settings(comparison, pair)
                    if (attack, seed) not in scenes:
                        scenes = {(attack, seed): _set_up(comparison, attack, seed, pair, settings, place)}
                    text = json.dumps(_measure(comparison, cell, scenes[attack, seed]), indent=1)
                    write_text_atomic(file, text + "\n")
                    record = json.loads(text)  # as it will be read the next time
                bar.advance(1, cell.name)
                yield cell, record


def _choose_settings(comparison: Comparison, pair: Any) -> TrainingSettings:
    base = PRESETS.get(comparison.dataset, TrainingSettings())
    base = replace(base, n_classes=pair.n_classes, mean=tuple(pair.mean), std=tuple(pair.std))
    return base if comparison.epochs is None else replace(base, epochs=comparison.epochs)


def _set_up(
    comparison: Comparison, attack: str, seed: int, pair: Any, settings: TrainingSettings, place: Path
) -> Scene:
    fraction = comparison.fraction
    if fraction is None:
        fraction = FRACTIONS.get(comparison.dataset, FRACTION)
    store = ModelStore(place / "store")
    return make_scene(attack, pair, settings, comparison.users, comparison.attackers, fraction, seed, store)


def _measure(comparison: Comparison, cell: ComparedCell, scene: Scene) -> dict[str, Any]:
    start, defence = time.perf_counter(), DEFENCES[cell.defence]
    outcome = defence.run(scene)
    seconds = time.perf_counter() - start
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
        "attackers": list(scene.attackers),
        "figures": measure_outcome(scene, outcome),
        "seconds": round(seconds, 3),
        **describe_machine("cpu"),
    }


def _find_record(file: Path, comparison: Comparison) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    record = read_json(file)
    if not isinstance(record, dict) or record.get("digest") != comparison.digest:
        raise InputError(f"{file}: a record of another comparison; give another folder, or remove it")
    return record
