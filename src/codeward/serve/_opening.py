"""From a run folder to everything the endpoint serves; no data set is read and nobody's attack is simulated."""

import base64
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward.codes import inspect
from codeward.data import Schema
from codeward.decoding import Assumptions, Decoder, uniform_prior
from codeward.estimators import load_sub_models
from codeward.runs import Card, Cell, SimulatedAttack, find_cell, name_triggered
from codeward.serve._convictions import Examiner
from codeward.serve._guard import Guard
from codeward.serve._input_kinds import ImageKind, InputKind, RecordKind
from codeward.serve._inputs import write_png
from codeward.training import BatchedEnsemble, Ensemble, SubModels


@dataclass(frozen=True)
class GuardedRun:
    """A run's guard with what belongs to it.

    Attributes
    ----------
    cell : Cell
    guard : Guard
    kind : InputKind
        What the models take.
    examiner : Examiner
        Weighs the incidents of these models, with the guard's assumptions and threshold.
    gallery : tuple of dict
        Clean and triggered test images: ``kind``, ``label`` (the true one), ``png`` (data URL).
    card : dict
        The code, what it guarantees, and what is served.
    certificate : Card or None
        The certificate card of the folder, where it has one.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.estimators import plan_training, train_guarded
    >>> from codeward.runs import TrainConfig
    >>> rows = {"x": [0.0, 1.0] * 20, "y": ["no", "yes"] * 20, "user": [f"u{place // 8}" for place in range(40)]}
    >>> config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train={"model": "logistic"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train_guarded(plan_training(config, rows), folder)
    ...     run = open_run(folder)
    >>> run.card["class_names"], run.kind.kind, run.guard.predict(run.kind.stack([run.kind.blank()]))[0].flagged
    (['no', 'yes'], 'table', False)
    """

    cell: Cell
    guard: Guard
    kind: InputKind
    examiner: Examiner
    gallery: tuple[dict[str, Any], ...]
    card: dict[str, Any]
    certificate: Card | None = None


def open_run(
    folder: str | os.PathLike[str],
    repeat: int = 0,
    n_attackers: int | None = None,
    threshold: float | None = None,
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
    threshold : float, optional
        Inputs with a higher attack probability are incidents; by default the decoder's own.
    expect : int, optional
        Largest number of attackers the decoder expects; by default the run's.

    Examples
    --------
    >>> open_run("nowhere")
    Traceback (most recent call last):
    codeward._errors.InputError: nowhere: ...
    """
    cell = find_cell(folder, repeat, n_attackers)
    file = cell.folder.card_file
    certificate = Card.load(file) if file.is_file() else None
    inspection, models = inspect(cell.code), _load(cell)
    schema = cell.about.get("schema")
    told = None if schema is None else Schema.from_json(schema, f"{folder}: {cell.name}")
    kind: InputKind
    if told is None or told.kind == "image":
        kind = ImageKind(cell.shape, pixels=not isinstance(models, Ensemble))
    else:
        kind = RecordKind(told)
    decoder = open_decoder(cell, expect)
    names = name_classes(cell)
    served: SubModels = BatchedEnsemble(models) if isinstance(models, Ensemble) else models
    guard = Guard(served, cell.code, decoder, inspection, threshold, cell.threat, names, _is_certifiable(certificate))
    examiner = make_examiner(cell, expect, decoder, threshold=guard.threshold)
    # Kernels compile now, not at the first request.
    guard.predict(kind.stack([kind.blank()]))
    card = _write_card(cell, guard, kind) | {"certificate_card": certificate is not None}
    return GuardedRun(cell, guard, kind, examiner, _hang_gallery(cell, guard), card, certificate)


def _load(cell: Cell) -> SubModels:
    """Load the models; what is damaged is said once, by the error, not by a warning a model."""
    log = logging.getLogger("codeward.training")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return load_sub_models(cell)
    finally:
        log.setLevel(level)


def name_classes(cell: Cell) -> tuple[str, ...] | None:
    """Return the names of a cell's classes; None where they have none but their numbers.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> name_classes(SimpleNamespace(class_names=("cat", "dog"), n_classes=2))
    ('cat', 'dog')
    """
    names = cell.class_names
    if names is None or len(names) != cell.n_classes or names == tuple(map(str, range(cell.n_classes))):
        return None
    return names


def open_decoder(cell: Cell, expect: int | None = None) -> Decoder:
    """Return the decoder of a cell, the one whose verdicts its record counts; expecting more or fewer attackers."""
    decoder = cell.decoder(None, _assume(cell, expect))
    if expect is not None and decoder.needs == "scores":
        raise InputError("--expect: the decoder of this folder is fitted on class scores; it expects what it was told")
    return decoder


def _assume(cell: Cell, expect: int | None) -> Assumptions:
    if expect is None:
        return cell.assumptions
    if not 1 <= expect <= cell.code.n_users:
        raise InputError(f"expect: expected 1..{cell.code.n_users} attackers, got {expect}")
    return replace(cell.assumptions, attackers_prior=uniform_prior(expect))


def make_examiner(cell: Cell, expect: int | None = None, decoder: Decoder | None = None, **limits: Any) -> Examiner:
    """Return the examiner of an endpoint's incidents.

    Parameters
    ----------
    cell : Cell
    expect : int, optional
        As given to the endpoint.
    decoder : Decoder, optional
        The endpoint's, where it is made already.
    **limits
        Threshold, alpha, certainty, false_alarms and spare of the `Examiner`.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.decoding import VoteSet
    >>> from codeward.runs import RunConfig, RunFolder, describe_machine
    >>> folder = RunFolder(tempfile.mkdtemp())
    >>> code = folder.open(RunConfig(users=12, code={"name": "d"}, decoder={"name": "bayes"}))
    >>> says = VoteSet(np.tile([[0], [1], [1]], code.n_models), labels=np.array([0, 1, 1]))
    >>> about = {"classes": 2, "training": {}, "groups": [], **describe_machine("cpu")}
    >>> cell = Cell(folder, 0, 0).save_votes({"validation": says, "clean": says}, about)
    >>> make_examiner(cell, threshold=0.9).threshold
    0.9
    """
    assumed = _assume(cell, expect)
    # The clean test inputs made no confusion matrix: incidents are compared with the alarms on them.
    return Examiner(
        cell.code,
        cell.validation,
        cell.n_classes,
        reference=cell.clean,
        served=decoder or open_decoder(cell, expect),
        **limits,
        attack_rate=assumed.attack_rate,
        success_rate=assumed.success_rate,
        attackers_prior=assumed.attackers_prior,
    )


def _is_certifiable(card: Card | None) -> bool:
    """Whether something may be certified of the decoder: not where the card of the folder leaves it out."""
    if card is None or any(said.property == "undo" for said in card.guarantees):
        return True
    return any(curve.threat == "deterministic" for curve in card.certified)


def _hang_gallery(cell: Cell, guard: Guard) -> tuple[dict[str, Any], ...]:
    try:
        pictures = cell.gallery
    except InputError as error:
        raise InputError(f"{error}; delete that file: its pictures are for the page only") from error
    found = _describe(pictures.get("clean"), None, guard)
    for number, group in enumerate(cell.groups):
        found += _describe(pictures.get(name_triggered(number, len(cell.groups))), group, guard)
    return tuple(found)


def _describe(pictures: Sequence[Any] | None, group: SimulatedAttack | None, guard: Guard) -> list[dict[str, Any]]:
    if pictures is None or pictures[0].shape[1] not in (1, 3):  # no picture format for other numbers of channels
        return []
    return [
        {
            "kind": "clean" if group is None else "triggered",
            "label": guard.name_class(int(label)),
            "png": "data:image/png;base64," + base64.b64encode(write_png(image / np.float32(255))).decode(),
            "target": None if group is None else guard.name_class(group.target),
            "planted_by": [] if group is None else list(group.names),
        }
        for image, label in zip(*pictures, strict=True)
    ]


def _write_card(cell: Cell, guard: Guard, kind: InputKind) -> dict[str, Any]:
    code = cell.code
    return guard.inspection.to_json() | {
        "matrix": code.matrix.astype(int).tolist(),
        "user_names": [code.user_name(user) for user in range(code.n_users)],
        "model_names": list(code.models or map(str, range(code.n_models))),
        "guarantee": guard.guarantee,
        "classes": guard.models.n_classes,
        "class_names": [guard.name_class(label) for label in range(guard.models.n_classes)],
        "input": kind.describe(),
        "dataset": cell.record["config"]["dataset"],
        "run": cell.id,
        "decoder": cell.decoding.name,
        "threshold": guard.threshold,
        "expected_attackers": len(getattr(guard.decoder, "attackers_prior", ((),))) - 1,
        "simulated_attackers": [
            {"users": list(group.names), "target": guard.name_class(group.target)} for group in cell.groups
        ],
    }
