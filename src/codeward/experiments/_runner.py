"""The main job: for every repeat and every number of attackers train, ask, decode, and write a record."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward.attacks import AttackGroup, draw_groups, poison_users, trigger_inputs
from codeward.codes import Code
from codeward.data import Samples
from codeward.decoding import BayesDecoder, estimate_confusion, save_votes
from codeward.experiments._config import RunConfig, load_config
from codeward.experiments._measure import (
    Answers,
    measure_labels,
    measure_success,
    measure_tracking,
)
from codeward.experiments._records import describe_machine, load_record, save_record
from codeward.experiments._setting import Draw, Setting, deal_data, find_code, load_pair, prepare_setting, stream
from codeward.training import Ensemble, ModelStore, train_ensembles, vote

#: Log-probability that stands for "never" in a vote file; half precision ends at -65,504.
_LOWEST_SCORE = -60_000.0


@dataclass(frozen=True)
class RunFolder:
    """What a run keeps: ``config.yaml``, ``code.json``, and folders ``records``, ``votes``, ``plots`` and ``store``."""

    path: Path

    def record(self, repeat: int, n_attackers: int) -> Path:
        """Return the file of one record."""
        return self.path / "records" / f"repeat{repeat}-attackers{n_attackers}.json"

    def votes(self, repeat: int, n_attackers: int, inputs: str) -> Path:
        """Return the vote file of one record, for ``validation``, ``clean`` or ``triggered`` inputs."""
        return self.path / "votes" / f"repeat{repeat}-attackers{n_attackers}-{inputs}.npz"

    def open(self, config: RunConfig) -> Code:
        """Make the folder, or check that it holds this very run; return its code.

        The code is found once and kept, so that a resumed run goes on with the same one.
        """
        kept = self.path / "config.yaml"
        if kept.exists() and load_config(kept).digest != config.digest:
            raise InputError(f"{self.path}: holds another run (its config.yaml differs); choose another folder with -o")
        if not kept.exists() and (self.path / "code.json").exists():
            raise InputError(f"{self.path}: holds a code but no config.yaml, so it is no run; choose another folder")
        if (self.path / "code.json").exists():
            return Code.load(self.path / "code.json")
        # Nothing is written before the code is found, so that a mistake leaves no folder; the code comes last, so that
        # a folder with a code always says whose it is.
        code = find_code(config)
        write_text_atomic(kept, config.to_yaml())
        code.save(self.path / "code.json")
        return code


def run_experiment(
    config: RunConfig, folder: str | os.PathLike[str], progress: bool = False
) -> Iterator[dict[str, Any]]:
    """Run every cell of a configuration, yielding its record; cells whose record is there are read, not run.

    Interrupted at any moment, the same call goes on where it was: finished records stay, finished sub-models are in the
    store.

    Parameters
    ----------
    config : RunConfig
    folder : path-like
        The run folder; see `RunFolder`.
    progress : bool
        Show training progress on stderr.
    """
    place = RunFolder(Path(folder))
    pair = load_pair(config)
    deal_data(config, 0, pair)  # an impossible split is refused before a code is designed and a folder made
    code = place.open(config)
    store = ModelStore(config.store or place.path / "store")
    for repeat in range(config.repeats):
        setting = prepare_setting(config, repeat, pair, code)
        missing = [size for size in config.attack.attackers if not place.record(repeat, size).exists()]
        ensembles = dict(zip(missing, train_cells(setting, missing, store, progress), strict=True))
        for n_attackers in config.attack.attackers:
            if n_attackers in ensembles:
                _run_cell(setting, n_attackers, ensembles[n_attackers], place)
            yield load_record(place.record(repeat, n_attackers))


def train_cells(setting: Setting, sizes: Sequence[int], store: ModelStore, progress: bool) -> list[Ensemble]:
    """Train the sub-models of one repeat under each number of attackers, all in one go.

    Poisoning is a function from data to data; training gets the result and nothing else.
    """
    config = setting.config
    seed = [config.seed, setting.repeat, int(Draw.POISON)]
    return train_ensembles(
        [(poison_users(setting.users, draw_attack(setting, size), seed), setting.code) for size in sizes],
        setting.training,
        seed=_model_seed(setting),
        store=store,
        device=config.training.device,
        engine=config.training.engine,
        progress=progress,
    )


def _run_cell(setting: Setting, n_attackers: int, ensemble: Ensemble, place: RunFolder) -> None:
    """Ask, decode and count for one number of attackers of one repeat; write its vote files and (last) its record."""
    config, begin = setting.config, time.perf_counter()
    columns = {user: user for user in range(config.users)}
    counted = count_cell(setting, n_attackers, ensemble, place, setting.code, columns)
    save_record(
        {
            "repeat": setting.repeat,
            "n_attackers": n_attackers,
            "seed": config.seed,
            "config": config.model_dump(mode="json"),
            "config_digest": config.digest,
            "training": json.loads(setting.training.to_json()),
            **counted,
            "seconds": round(time.perf_counter() - begin, 3),
        },
        place.record(setting.repeat, n_attackers),
    )


def count_cell(
    setting: Setting, n_attackers: int, ensemble: Ensemble, place: RunFolder, code: Code, columns: Mapping[int, int]
) -> dict[str, Any]:
    """Ask the models of a cell, write their vote files, and return what they say in a record.

    Parameters
    ----------
    setting : Setting
        Its users are numbered as in the data, its code may be an earlier one.
    n_attackers : int
    ensemble : Ensemble
        The sub-models of ``code``.
    place : RunFolder
        Gets the vote files.
    code : Code
    columns : mapping of int to int
        The column of each user that ``code`` still has; attackers without one count as gone.
    """
    config, repeat = setting.config, setting.repeat

    # 1. Ask every model about clean inputs.
    validation = _ask(ensemble, setting.validation)
    clean = _ask(ensemble, setting.evaluation)

    # 2. Decode, with confusion matrices from the validation half.
    confusion = estimate_confusion(validation.votes, validation.labels, setting.n_classes)
    size = config.decoder.max_attackers + 1
    decoder = BayesDecoder(
        code,
        confusion,
        attack_rate=config.decoder.attack_rate,
        success_rate=config.decoder.success_rate,
        attackers_prior=(1 / size,) * size,
    )
    figures: dict[str, Any] = {"clean": measure_labels(decoder, clean, None)[0], "groups": []}
    for name, answers in (("validation", validation), ("clean", clean)):
        _save(place.votes(repeat, n_attackers, name), answers, confusion)

    # 3. The same on triggered inputs, for each group of attackers; one that is all gone still has its trigger tried.
    groups = draw_attack(setting, n_attackers)
    for number, group in enumerate(groups):
        places = [config.seed, repeat, int(Draw.TRIGGER)]
        triggered = _ask(ensemble, trigger_inputs(setting.evaluation, group, seed=places))
        counts, decoded = measure_labels(decoder, triggered, group.target)
        left = tuple(columns[user] for user in group.attackers if user in columns)
        figures["groups"].append(
            {
                "attackers": list(left),
                "target": group.target,
                "success": measure_success(code, left, group.target, triggered),
                "triggered": counts,
                "tracking": measure_tracking(decoded, left),
            }
        )
        name = "triggered" if len(groups) == 1 else f"triggered{number}"
        _save(place.votes(repeat, n_attackers, name), triggered, confusion)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "code_digest": code.digest,
        "code": {"models": code.n_models, "users": code.n_users, "row_weight": code.row_weight},
        **describe_machine(str(ensemble.device)),
        "work": {"models": code.n_models, "trained": ensemble.trained, "reused": ensemble.reused},
        "figures": figures,
    }


def draw_attack(setting: Setting, n_attackers: int) -> list[AttackGroup]:
    """Draw the attacking groups of a cell; the same users, triggers and targets for every size, nested."""
    if n_attackers == 0:
        return []
    attack = setting.config.attack
    assert attack.fraction is not None  # the configuration fills it in
    return draw_groups(
        n_users=setting.config.users,
        n_attackers=n_attackers,
        n_groups=attack.groups,
        image_shape=setting.evaluation.images.shape[1:],
        n_classes=setting.n_classes,
        kind=attack.kind,
        position=attack.position,
        fraction=attack.fraction,
        rng=stream(setting.config, setting.repeat, Draw.ATTACKERS),
    )


def _model_seed(setting: Setting) -> int:
    return setting.config.seed * 1_000_003 + setting.repeat


def _ask(ensemble: Ensemble, samples: Samples) -> Answers:
    scores = ensemble.scores(samples)
    return Answers(scores, vote(scores), samples.labels)


def _save(path: Path, answers: Answers, confusion: ArrayLike) -> None:
    # Half precision halves the file; votes are kept beside the scores, so no argmax depends on it. A model that
    # diverged has NaN, which no reader should have to know: `vote` takes it for the lowest score, and so does the file.
    scores = np.clip(np.nan_to_num(answers.scores, nan=_LOWEST_SCORE), _LOWEST_SCORE, 0)
    save_votes(path, answers.votes, answers.labels, confusion, scores.astype(np.float16))
