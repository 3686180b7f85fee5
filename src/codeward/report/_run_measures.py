"""What vote files say beyond the records: how well attacks are told from clean inputs, and what is certified."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward._progress import Progress
from codeward.certificates import (
    Agreement,
    CertifiedCurve,
    certified_accuracy,
    certify,
    certify_agreement,
    is_agreement_affordable,
)
from codeward.codes import Inspection, count_attacker_sets
from codeward.decoding import ConsensusDecoder, RocCurve, roc_curve
from codeward.runs import Cell

#: Attacker sets times inputs up to which the consensus decoder is certified: some seconds.
AFFORDABLE = 30_000_000
#: Seconds for the solver of the plurality certificate, where there are too many users to enumerate attackers.
SOLVER_SECONDS = 20.0


@dataclass(frozen=True, eq=False)
class Detection:
    """Attack probabilities of one group of attackers, as ROC curves.

    Attributes
    ----------
    n_attackers : int
    every, others : RocCurve
        Against all triggered inputs, and against those whose label is not the target. Clean inputs of the same models.
    n_clean, n_every, n_others : int
        The denominators.
    """

    n_attackers: int
    every: RocCurve
    others: RocCurve
    n_clean: int
    n_every: int
    n_others: int

    @staticmethod
    def hits_at(curve: RocCurve, false_alarm_rate: float) -> float:
        """Return the largest share detected with at most this share of false alarms on the same clean inputs."""
        return float(curve.tpr[np.flatnonzero(curve.fpr <= false_alarm_rate)[-1]])


def measure_detection(cells: Sequence[Cell], progress: Progress) -> list[Detection]:
    """Decode the clean and triggered votes of every cell with attackers; cells without vote files are left out."""
    found: list[Detection] = []
    for known in cells:
        if known.n_attackers and known.has_votes:
            cell = Cell(known.folder, known.repeat, known.n_attackers)  # its votes go when it is done
            decoder = cell.decoder()
            clean = decoder.decode(cell.clean.votes).attack_probability
            for group, triggered in zip(cell.groups, cell.triggered, strict=True):
                alarmed: NDArray[np.float64] = decoder.decode(triggered.votes).attack_probability
                other = np.asarray(triggered.labels != group.target)
                if other.any():
                    curves = roc_curve(clean, alarmed), roc_curve(clean, alarmed[other])
                    found.append(Detection(cell.n_attackers, *curves, clean.size, alarmed.size, int(other.sum())))
        progress.advance()
    return sorted(found, key=lambda detection: detection.n_attackers)


def certify_clean(
    cells: Sequence[Cell], inspection: Inspection, progress: Progress
) -> tuple[dict[str, CertifiedCurve], list[str]]:
    """Certify the clean votes of models that nobody attacked, all repeats together; threat model *arbitrary*.

    Returns
    -------
    curves : dict of str to CertifiedCurve
        By name; empty where there are no such votes.
    notes : list of str
        What was left out, and why.
    """
    given = [cell.load_votes("clean") for cell in cells if cell.n_attackers == 0 and cell.has_votes]
    if not given:
        progress.advance(2)
        return {}, ["The folder has no votes of models trained without attackers, which certificates are about."]
    code = cells[0].code
    votes = np.concatenate([part.votes for part in given])
    labels = np.concatenate([part.labels for part in given if part.labels is not None])
    notes: list[str] = []
    plain = certify(votes, code, threat="arbitrary", time_limit=SOLVER_SECONDS)
    if not plain.exact.all():
        notes.append(f"For {int((~plain.exact).sum()):,} inputs the plurality radius is a sound lower bound.")
    curves = {"plurality vote": certified_accuracy(plain, labels)}
    progress.advance()

    k = inspection.correct_arbitrary
    cost = count_attacker_sets(code.n_users, min(k + 1, code.n_users)) * len(votes)
    if k == 0:
        notes.append("The consensus decoder is left out: this code corrects nobody under the arbitrary threat model.")
    elif cost > AFFORDABLE:
        notes.append("The consensus decoder is left out: too many attacker sets for a report; see `codeward certify`.")
    else:
        # One past k: there the curve still says exactly what is certified, and it is where it should fall.
        held = certify(votes, code, threat="arbitrary", decoder=ConsensusDecoder(code, k), max_attackers=k + 1)
        curves[f"consensus decoder for k = {k}"] = certified_accuracy(held, labels)
    progress.advance()
    return curves, notes


def certify_promise(cells: Sequence[Cell]) -> Agreement | None:
    """Find what the run's decoder keeps of the code's promise, with the confusion matrices of its first cell.

    See Proposition 23 of docs/theory.md. None where the folder does not say them, where it takes too long, and for
    federated runs: they need the arbitrary threat model, under which this decoder has no certificate.
    """
    cell = min(cells, key=lambda cell: (cell.n_attackers, cell.repeat))
    if not cell.has_votes or cell.threat == "arbitrary":
        return None
    most = min(cell.assumptions.max_attackers, cell.code.n_users)
    if most < 1 or not is_agreement_affordable(cell.code, cell.n_classes, most):
        return None
    return certify_agreement(cell.code, cell.decoder(), cell.n_classes, max_attackers=most)
