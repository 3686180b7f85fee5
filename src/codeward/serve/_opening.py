"""From a run folder to everything the endpoint serves."""

import base64
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from codeward.codes import inspect
from codeward.data import Samples, render
from codeward.experiments import ServedRun, load_served
from codeward.serve._cell import RunCell, find_cell
from codeward.serve._evidence import Examiner
from codeward.serve._guard import Guard
from codeward.serve._inputs import write_png
from codeward.training import BatchedEnsemble

#: Images of a kind in the gallery, at most one a class.
GALLERY = 12


@dataclass(frozen=True)
class GuardedRun:
    """A run's guard with what belongs to it.

    Attributes
    ----------
    cell : RunCell
    guard : Guard
    examiner : Examiner
        Weighs the incidents of these models, with the guard's assumptions and threshold.
    gallery : tuple of dict
        Clean and triggered test images: ``kind``, ``label`` (the true one), ``png`` (data URL).
    card : dict
        The code, what it guarantees, and what is served.
    """

    cell: RunCell
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
        A run folder; see `codeward.experiments.RunFolder`.
    repeat : int
    n_attackers : int, optional
        Which cell: the simulated number of attackers; the largest one by default, whose triggers do something.
    threshold : float
        Inputs with a higher attack probability are incidents.
    expect : int, optional
        Largest number of attackers the decoder expects; by default the run's, up to what the code detects
        (`codeward.serve._guard.choose_prior`).
    """
    cell = find_cell(folder, repeat, n_attackers)
    served = load_served(folder, cell.repeat, cell.n_attackers)
    examiner = cell.examiner(expect, threshold=threshold)
    inspection = inspect(cell.code)
    # The examiner's decoder: incidents are compared with validation inputs that it has not seen either.
    guard = Guard(BatchedEnsemble(served.ensemble), examiner.decoder_, inspection, threshold, served.threat)
    guard.judge(np.zeros((1, *guard.models.shape), dtype=np.float32))  # kernels compile now, not at the first request
    return GuardedRun(cell, guard, examiner, _hang_gallery(served), _write_card(cell, guard, served))


def _hang_gallery(served: ServedRun) -> tuple[dict[str, Any], ...]:
    if served.ensemble.shape[0] not in (1, 3):
        return ()  # no picture format for it
    samples = served.setting.evaluation
    pictures = _draw(samples, "clean", {})
    for group in served.groups:
        others = samples.take(np.flatnonzero(samples.labels != group.target))
        names = [served.setting.code.user_name(user) for user in group.attackers]
        pictures += _draw(served.triggered(others, group), "triggered", {"target": group.target, "planted_by": names})
    return tuple(pictures)


def _draw(samples: Samples, kind: str, more: dict[str, Any]) -> list[dict[str, Any]]:
    """Draw the first image of each class: not chosen by what the models make of them."""
    _, first = np.unique(samples.labels, return_index=True)
    chosen = samples.take(first[:GALLERY])
    return [
        {
            "kind": kind,
            "label": int(label),
            "png": "data:image/png;base64," + base64.b64encode(write_png(image)).decode(),
        }
        | {"target": None, "planted_by": []}
        | more
        for image, label in zip(render(chosen), chosen.labels, strict=True)
    ]


def _write_card(cell: RunCell, guard: Guard, served: ServedRun) -> dict[str, Any]:
    code, models = cell.code, guard.models
    channels, height, width = models.shape
    return guard.inspection.to_json() | {
        "matrix": code.matrix.astype(int).tolist(),
        "user_names": [code.user_name(user) for user in range(code.n_users)],
        "model_names": list(code.models or map(str, range(code.n_models))),
        "guarantee": guard.guarantee,
        "classes": models.n_classes,
        "image": {"channels": channels, "height": height, "width": width},
        "dataset": served.setting.config.dataset,
        "run": cell.id,
        "threshold": guard.threshold,
        "expected_attackers": len(guard.decoder.attackers_prior) - 1,
        "simulated_attackers": [
            {"users": [served.setting.code.user_name(user) for user in group.attackers], "target": group.target}
            for group in served.groups
        ],
    }
