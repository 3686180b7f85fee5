"""What the models of a cell say about clean and triggered inputs, written into its vote files.

Voting needs the models and the data; counting (`record_cell`) needs the vote files only. So a machine with a GPU may
train and vote, and another one, or the same one later, counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from codeward.data import Samples, render
from codeward.decoding import VoteSet, estimate_confusion
from codeward.experiments._setting import Setting
from codeward.runs import Cell, describe_machine, name_triggered
from codeward.training import Ensemble, vote

#: Log-probability that stands for "never" in a vote file; half precision ends at -65,504.
_LOWEST_SCORE = -60_000.0
#: Images of each sort in a cell's gallery, at most one a class.
_GALLERY = 12


def vote_cell(
    setting: Setting,
    cell: Cell,
    ensemble: Ensemble,
    columns: Mapping[int, int] | None = None,
    with_scores: bool = True,
    targets: Sequence[Sequence[int]] | None = None,
) -> Cell:
    """Let the models of a cell vote on clean and triggered inputs; write vote files and (last) what they are.

    Parameters
    ----------
    setting : Setting
        Its users are numbered as in the data, its code may be an earlier one than the cell's.
    cell : Cell
        Gets the files.
    ensemble : Ensemble
        The sub-models of the cell's code.
    columns : mapping of int to int, optional
        The column of each user that the cell's code still has; attackers without one count as gone. By default nobody
        was revoked.
    with_scores : bool
        Keep class scores, which the score decoder needs, confusion matrices, and a gallery of example inputs; without,
        files are a few kB, and confusion matrices are estimated from the validation file when they are wanted.
    targets : sequence of sequences of int, optional
        Where attackers plant another target in every model: one a model, for every group.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.experiments import load_pair, prepare_setting
    >>> from codeward.runs import RunConfig, RunFolder
    >>> from codeward.training import train_ensemble
    >>> config = RunConfig(users=6, code={"name": "toy-d"}, training={"epochs": 1})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell = Cell(RunFolder(folder), 0, 1)
    ...     setting = prepare_setting(config, 0, load_pair(config), cell.folder.open(config))
    ...     ensemble = train_ensemble(setting.poisoned(1), setting.code, setting.training, setting.model_seed)
    ...     vote_cell(setting, cell, ensemble).triggered[0].votes.shape == (270, setting.code.n_models)
    True
    """
    groups = setting.attack(cell.n_attackers)
    columns = {user: user for user in range(setting.config.users)} if columns is None else columns
    inputs = {"validation": setting.validation, "clean": setting.evaluation}
    for number, group in enumerate(groups):
        inputs[name_triggered(number, len(groups))] = setting.triggered(group)
    scores = dict(zip(inputs, ensemble.score_all(list(inputs.values())), strict=True))
    votes = {name: VoteSet(vote(scores[name]), samples.labels) for name, samples in inputs.items()}
    if with_scores:
        confusion = estimate_confusion(votes["validation"].votes, setting.validation.labels, setting.n_classes)
        votes = {name: VoteSet(v.votes, v.labels, confusion, _round(scores[name])) for name, v in votes.items()}
        meant = {name_triggered(number, len(groups)): group.target for number, group in enumerate(groups)}
        cell.save_gallery({n: _pick(samples, meant.get(n)) for n, samples in inputs.items() if n != "validation"})
    device = str(ensemble.device)
    about = {
        "classes": setting.n_classes,
        "shape": list(ensemble.shape),
        "training": setting.training.to_json(),
        # A group that is all gone still has its trigger tried.
        "groups": [
            {
                "attackers": [columns[user] for user in group.attackers if user in columns],
                "target": group.target,
                "names": [setting.code.user_name(user) for user in group.attackers],
                **({} if targets is None else {"targets": list(targets[number])}),
            }
            for number, group in enumerate(groups)
        ],
        **describe_machine(device, torch.cuda.get_device_name() if device.startswith("cuda") else None),
        "work": {"models": ensemble.n_models, "trained": ensemble.trained, "reused": ensemble.reused},
        "keys": list(ensemble.keys),
    }
    return cell.save_votes(votes, about, None if ensemble.store is None else ensemble.store.root)


def _pick(samples: Samples, target: int | None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Take the first image of each class that is not the target: not chosen by what the models make of them."""
    labels, first = np.unique(samples.labels, return_index=True)
    chosen = samples.take(first[labels != target][:_GALLERY])
    return np.rint(render(chosen) * 255).astype(np.uint8), chosen.labels


def _round(scores: NDArray[np.float32]) -> NDArray[Any]:
    # Half precision halves the file; votes are kept beside the scores, so no argmax depends on it. A model that
    # diverged has NaN, which no reader should have to know: `vote` takes it for the lowest score, and so does the file.
    rounded: ArrayLike = np.clip(np.nan_to_num(scores, nan=_LOWEST_SCORE), _LOWEST_SCORE, 0)
    return np.asarray(rounded).astype(np.float16)
