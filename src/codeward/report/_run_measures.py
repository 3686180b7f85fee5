"""What vote files say beyond the records: how well attacks are told from clean inputs, and what is certified."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._figures import show_percent
from codeward._progress import Progress
from codeward.certificates import Agreement, CertifiedCurve
from codeward.codes import Inspection
from codeward.runs import Card, Cell, certify_clean, certify_kept, decoder_figures, describe_detection


@dataclass(frozen=True)
class Detection:
    """How well the alarms of one group of attackers tell triggered from clean inputs.

    Attributes
    ----------
    n_attackers : int
    auc, auc_others : float
        Areas under the ROC curves: all triggered inputs, and those whose label is not the target, against clean inputs
        of the same models.
    detected : dict of float to float
        Share of triggered inputs that raise an alarm by the share of clean ones that may.
    n_clean, n_every, n_others : int
        The denominators.
    """

    n_attackers: int
    auc: float
    auc_others: float
    detected: dict[float, float]
    n_clean: int
    n_every: int
    n_others: int

    @classmethod
    def read(cls, n_attackers: int, found: dict[str, Any]) -> "Detection":
        """Take what `codeward.runs.describe_detection` says."""
        detected = {float(share): value for share, value in found["detected"].items()}
        return cls(n_attackers, found["auc"], found["auc_others"], detected, *found["inputs"].values())


def measure_detection(cells: Sequence[Cell], progress: Progress) -> list[Detection]:
    """Return detection as the records say it; records of the paper's decoder do not, so its votes are decoded here.

    Cells without vote files are then left out.
    """
    found: list[Detection] = []
    for known in cells:
        told = [group.get("detection") for group in decoder_figures(known.record)["groups"]]
        if not any(told) and known.n_attackers and known.has_votes:
            cell = Cell(known.folder, known.repeat, known.n_attackers)  # its votes go when it is done
            decoder = cell.decoder("bayes")
            clean = decoder.decode(cell.clean.votes).attack_probability
            for group, triggered in zip(cell.groups, cell.triggered, strict=True):
                alarmed: NDArray[np.float64] = decoder.decode(triggered.votes).attack_probability
                others = np.asarray(triggered.labels != group.target)
                told.append(describe_detection(clean, alarmed, others) if others.any() else None)
        found += [Detection.read(known.n_attackers, one) for one in told if one]
        progress.advance()
    return sorted(found, key=lambda detection: detection.n_attackers)


def certify_cells(
    cells: Sequence[Cell], inspection: Inspection, progress: Progress
) -> tuple[dict[str, CertifiedCurve], list[str]]:
    """Certify the clean votes of models that nobody attacked, all repeats together (`codeward.runs.certify_clean`).

    No curves where there are no such votes, and where the folder's card says that nothing is certified.
    """
    chosen = [cell for cell in cells if cell.n_attackers == 0 and cell.has_votes]
    file = cells[0].folder.card_file
    card = Card.load(file) if file.is_file() else None
    if chosen and (card is None or card.certified):
        return certify_clean(chosen, inspection, progress)
    progress.advance(2)
    if chosen and card is not None:
        return {}, [f"Nothing is certified: {warning}" for warning in card.warnings]
    return {}, ["The folder has no votes of models trained without attackers, which certificates are about."]


def certify_promise(cells: Sequence[Cell]) -> Agreement | None:
    """Find what the run's decoder keeps of the code's promise, with the confusion matrices of its first cell.

    See `codeward.runs.certify_kept`; None where the folder has no votes, and for decoders that take long to fit.
    """
    cell = min(cells, key=lambda cell: (cell.n_attackers, cell.repeat))
    if not cell.has_votes or cell.decoding.name not in ("bayes", "groups"):
        return None
    return certify_kept(cell, cell.decoder())


def describe_training(record: dict[str, Any]) -> str:
    """Return the recipe: a network and its epochs, or the model that `codeward train` was given."""
    trained, given = record["training"], record["config"].get("train") or {}
    if "architecture" in trained:
        return f"{trained['architecture']}, {trained['epochs']} epochs"
    return str(
        (given.get("backbone") and f"heads on {given['backbone']}") or given.get("model") or "chosen by the data"
    )


def describe_decoder(section: dict[str, Any]) -> str:
    """Return the decoder of a configuration with what it assumes."""
    name, many = section.get("name", "bayes"), f"up to {section['max_attackers']} attackers expected"
    if name in ("bayes", "groups"):
        return f"{name}, {many}, attack rate {section['attack_rate']:g}, success rate {section['success_rate']:g}"
    return f"{name}, {many}, {show_percent(section['false_alarm_rate'])} false alarms"
