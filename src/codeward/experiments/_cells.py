"""One cell of an experiment (a repeat with a number of attackers): ask its models, keep their votes, count.

Asking needs the models and the data; counting needs the vote files only. So a machine with a GPU may train and ask, and
another one, or the same one later, counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from codeward.attacks import AttackGroup, draw_groups, trigger_inputs
from codeward.codes import Code
from codeward.decoding import VoteSet, estimate_confusion
from codeward.experiments._measure import Answers, measure_labels, measure_success, measure_tracking
from codeward.experiments._setting import Draw, Setting, stream
from codeward.runs import Cell, RunFolder, describe_machine, name_triggered
from codeward.training import Ensemble, vote

#: Log-probability that stands for "never" in a vote file; half precision ends at -65,504.
_LOWEST_SCORE = -60_000.0


def count_cell(
    setting: Setting, n_attackers: int, ensemble: Ensemble, place: RunFolder, code: Code, columns: Mapping[int, int]
) -> dict[str, Any]:
    """Ask the models of a cell, write their vote files, and return what they say in a record.

    Parameters as for `ask_cell` and `count_votes`.
    """
    ask_cell(setting, n_attackers, ensemble, place, code, columns)
    return count_votes(Cell(place, setting.repeat, n_attackers))


def ask_cell(
    setting: Setting,
    n_attackers: int,
    ensemble: Ensemble,
    place: RunFolder,
    code: Code,
    columns: Mapping[int, int],
    with_scores: bool = True,
    targets: Sequence[Sequence[int]] | None = None,
) -> None:
    """Ask the models of a cell about clean and triggered inputs, and write their vote files and (last) what they are.

    Parameters
    ----------
    setting : Setting
        Its users are numbered as in the data, its code may be an earlier one.
    n_attackers : int
    ensemble : Ensemble
        The sub-models of ``code``.
    place : RunFolder
        Gets the files.
    code : Code
    columns : mapping of int to int
        The column of each user that ``code`` still has; attackers without one count as gone.
    with_scores : bool
        Keep class scores, which the score decoder needs, and confusion matrices too; without, files are a few kB, and
        confusion matrices are estimated from the validation file when they are wanted.
    targets : sequence of sequences of int, optional
        Where attackers plant another target in every model: one a model, for every group.
    """
    repeat, groups = setting.repeat, draw_attack(setting, n_attackers)
    inputs = {"validation": setting.validation, "clean": setting.evaluation}
    for number, group in enumerate(groups):
        places = [setting.config.seed, repeat, int(Draw.TRIGGER)]
        inputs[name_triggered(number, len(groups))] = trigger_inputs(setting.evaluation, group, seed=places)
    scores = dict(zip(inputs, ensemble.score_all(list(inputs.values())), strict=True))
    votes = {name: vote(given) for name, given in scores.items()}

    # Confusion matrices come from the validation half.
    confusion = estimate_confusion(votes["validation"], inputs["validation"].labels, setting.n_classes)
    kept = {}
    for name, samples in inputs.items():
        extra = (confusion, _round(scores[name])) if with_scores else ()
        kept[name] = VoteSet(votes[name], samples.labels, *extra)
    about = {
        "classes": setting.n_classes,
        "shape": list(ensemble.shape),
        "training": setting.training.to_json(),
        # A group that is all gone still has its trigger tried.
        "groups": [
            {
                "attackers": [columns[user] for user in group.attackers if user in columns],
                "target": group.target,
                **({} if targets is None else {"targets": list(targets[number])}),
            }
            for number, group in enumerate(groups)
        ],
        **describe_machine(str(ensemble.device), name_gpu(str(ensemble.device))),
        "work": {"models": code.n_models, "trained": ensemble.trained, "reused": ensemble.reused},
        "keys": list(ensemble.keys),
    }
    Cell(place, repeat, n_attackers).save_votes(kept, about)


def count_votes(cell: Cell) -> dict[str, Any]:
    """Decode the votes of a cell and return what they say in a record: from vote files alone."""
    about, code, decoder = cell.about, cell.code, cell.decoder()
    figures: dict[str, Any] = {"clean": measure_labels(decoder, _take(cell.clean), None)[0], "groups": []}
    for group, votes in zip(cell.groups, cell.triggered, strict=True):
        triggered = _take(votes)
        targets = np.broadcast_to(group.targets or group.target, code.n_models)
        counts, decoded = measure_labels(decoder, triggered, targets)
        figures["groups"].append(
            {
                "attackers": list(group.attackers),
                "target": group.target,
                **({} if group.targets is None else {"targets": list(group.targets)}),
                "success": measure_success(code, group.attackers, targets, triggered),
                "triggered": counts,
                "tracking": measure_tracking(decoded, group.attackers),
            }
        )
    kept = {key: about[key] for key in ("created", "code_digest", "training", "versions", "hardware", "work")}
    shape = {"models": code.n_models, "users": code.n_users, "row_weight": code.row_weight}
    return {**kept, "code": shape, "figures": figures}


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


def name_gpu(device: str) -> str | None:
    """Return the name of the GPU a device is; None for a CPU."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else None


def _take(votes: VoteSet) -> Answers:
    assert votes.labels is not None  # a cell's votes have labels
    return Answers(votes.votes, votes.labels)


def _round(scores: NDArray[np.float32]) -> ArrayLike:
    # Half precision halves the file; votes are kept beside the scores, so no argmax depends on it. A model that
    # diverged has NaN, which no reader should have to know: `vote` takes it for the lowest score, and so does the file.
    return np.clip(np.nan_to_num(scores, nan=_LOWEST_SCORE), _LOWEST_SCORE, 0).astype(np.float16)
