"""From a run folder to everything the endpoint serves; no data set is read and nobody's attack is simulated."""

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward.codes import Inspection, inspect
from codeward.decoding import uniform_prior
from codeward.runs import Cell, SimulatedAttack, find_cell, name_triggered
from codeward.serve._convictions import Examiner
from codeward.serve._guard import Guard, choose_prior
from codeward.serve._inputs import write_png
from codeward.training import BatchedEnsemble, Ensemble, ModelStore, TrainingSettings


@dataclass(frozen=True)
class GuardedRun:
    """A run's guard with what belongs to it.

    Attributes
    ----------
    cell : Cell
    guard : Guard
    examiner : Examiner
        Weighs the incidents of these models, with the guard's assumptions and threshold.
    gallery : tuple of dict
        Clean and triggered test images: ``kind``, ``label`` (the true one), ``png`` (data URL).
    card : dict
        The code, what it guarantees, and what is served.
    """

    cell: Cell
    guard: Guard
    examiner: Examiner
    gallery: tuple[dict[str, Any], ...]
    card: dict[str, Any]


def open_run(
    folder: str | os.PathLike[str],
    repeat: int = 0,
    n_attackers: int | None = None,
    threshold: float = 0.5,
    expect: int | None = None,
) -> GuardedRun:
    """Load one cell of a run folder for serving.

    Parameters
    ----------
    folder : path-like
        A run folder; see `codeward.runs.RunFolder`.
    repeat : int
    n_attackers : int, optional
        Which cell: the simulated number of attackers; the largest one by default, whose triggers do something.
    threshold : float
        Inputs with a higher attack probability are incidents.
    expect : int, optional
        Largest number of attackers the decoder expects; by default the run's, up to what the code detects
        (`codeward.serve._guard.choose_prior`).

    Examples
    --------
    >>> open_run("nowhere")
    Traceback (most recent call last):
    codeward._errors.InputError: nowhere: ...
    """
    cell = find_cell(folder, repeat, n_attackers)
    models, inspection = BatchedEnsemble(load_models(cell)), inspect(cell.code)
    examiner = make_examiner(cell, expect, inspection, threshold=threshold)
    # The examiner's decoder: incidents are compared with validation inputs that it has not seen either.
    guard = Guard(models, examiner.decoder_, inspection, threshold, cell.threat)
    guard.predict(np.zeros((1, *guard.models.shape), dtype=np.float32))  # kernels compile now, not at the first request
    return GuardedRun(cell, guard, examiner, _hang_gallery(cell), _write_card(cell, guard))


def load_models(cell: Cell) -> Ensemble:
    """Find the models of a cell in its store, by the keys it keeps; what was trained on a GPU is served without one.

    Raises
    ------
    InputError
        When one is missing or damaged: what is served is what the records describe, or nothing.
    """
    keys, shape, store = cell.keys, cell.shape, ModelStore(cell.store)
    try:
        settings = TrainingSettings(**cell.training)
    except (TypeError, ValueError) as error:
        raise InputError(f"{cell.folder.path}: {cell.name}: not readable as a recipe of training ({error})") from error
    try:
        return Ensemble.load(store, keys, settings, shape)
    except InputError as error:
        raise InputError(f"{error}; {cell.advice} trains what is missing") from error


def make_examiner(
    cell: Cell, expect: int | None = None, inspection: Inspection | None = None, **limits: float
) -> Examiner:
    """Return the examiner of an endpoint's incidents.

    Parameters
    ----------
    cell : Cell
    expect : int, optional
        As given to the endpoint: the assumptions are those of the run, up to the k the code detects or up to this.
    inspection : Inspection, optional
        Of the cell's code, where it is known.
    **limits
        Threshold, alpha, certainty and false_alarms of the `Examiner`.
    """
    assumed = cell.assumptions
    if expect is None:
        prior = choose_prior(assumed.attackers_prior, inspection or inspect(cell.code))
    elif 1 <= expect <= cell.code.n_users:
        prior = uniform_prior(expect)
    else:
        raise InputError(f"expect: expected 1..{cell.code.n_users} attackers, got {expect}")
    # The clean test inputs made no confusion matrix: incidents are compared with the alarms on them.
    return Examiner(
        cell.code,
        cell.validation,
        cell.n_classes,
        reference=cell.clean,
        **limits,
        attack_rate=assumed.attack_rate,
        success_rate=assumed.success_rate,
        attackers_prior=prior,
    )


def _hang_gallery(cell: Cell) -> tuple[dict[str, Any], ...]:
    pictures = cell.gallery
    found = _describe(pictures.get("clean"), None)
    for number, group in enumerate(cell.groups):
        found += _describe(pictures.get(name_triggered(number, len(cell.groups))), group)
    return tuple(found)


def _describe(pictures: Sequence[Any] | None, group: SimulatedAttack | None) -> list[dict[str, Any]]:
    if pictures is None or pictures[0].shape[1] not in (1, 3):  # no picture format for other numbers of channels
        return []
    return [
        {
            "kind": "clean" if group is None else "triggered",
            "label": int(label),
            "png": "data:image/png;base64," + base64.b64encode(write_png(image / np.float32(255))).decode(),
            "target": None if group is None else group.target,
            "planted_by": [] if group is None else list(group.names),
        }
        for image, label in zip(*pictures, strict=True)
    ]


def _write_card(cell: Cell, guard: Guard) -> dict[str, Any]:
    code, models = cell.code, guard.models
    channels, height, width = models.shape
    return guard.inspection.to_json() | {
        "matrix": code.matrix.astype(int).tolist(),
        "user_names": [code.user_name(user) for user in range(code.n_users)],
        "model_names": list(code.models or map(str, range(code.n_models))),
        "guarantee": guard.guarantee,
        "classes": models.n_classes,
        "image": {"channels": channels, "height": height, "width": width},
        "dataset": cell.record["config"]["dataset"],
        "run": cell.id,
        "threshold": guard.threshold,
        "expected_attackers": len(guard.decoder.attackers_prior) - 1,
        "simulated_attackers": [{"users": list(group.names), "target": group.target} for group in cell.groups],
    }
