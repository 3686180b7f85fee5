"""What vote files say beyond the records: how well attacks are told from clean inputs, and what is certified."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward._figures import check_plot_path, save_figure
from codeward._progress import Progress
from codeward.certificates import (
    Agreement,
    CertifiedCurve,
    certified_accuracy,
    certify,
    certify_agreement,
    is_agreement_affordable,
)
from codeward.codes import count_attacker_sets
from codeward.decoding import ConsensusDecoder, RocCurve, roc_curve
from codeward.report._run import ReportedRun

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


def measure_detection(run: ReportedRun, progress: Progress) -> list[Detection]:
    """Decode the clean and triggered votes of every cell with attackers; cells without vote files are left out."""
    found: list[Detection] = []
    for record in run.records:
        groups = record["figures"]["groups"]
        clean = run.votes(record, "clean") if groups else None
        if clean is None or clean.confusion is None:
            progress.advance()
            continue
        decoder = run.decoder(clean.confusion)
        calm = decoder.decode(clean.votes).attack_probability
        for number, group in enumerate(groups):
            triggered = run.votes(record, "triggered" if len(groups) == 1 else f"triggered{number}")
            if triggered is None or triggered.labels is None:
                continue
            alarmed: NDArray[np.float64] = decoder.decode(triggered.votes).attack_probability
            other = triggered.labels != group["target"]
            if not other.any():
                continue
            curves = roc_curve(calm, alarmed), roc_curve(calm, alarmed[other])
            found.append(Detection(record["n_attackers"], *curves, calm.size, alarmed.size, int(other.sum())))
        progress.advance()
    return sorted(found, key=lambda detection: detection.n_attackers)


def certify_clean(run: ReportedRun, progress: Progress) -> tuple[dict[str, CertifiedCurve], list[str]]:
    """Certify the clean votes of models that nobody attacked, all repeats together; threat model *arbitrary*.

    Returns
    -------
    curves : dict of str to CertifiedCurve
        By name; empty where there are no such votes.
    notes : list of str
        What was left out, and why.
    """
    given = [run.votes(record, "clean") for record in run.cells.get(0, [])]
    sets = [votes for votes in given if votes is not None and votes.labels is not None]
    if not sets:
        progress.advance(2)
        return {}, ["The folder has no votes of models trained without attackers, which certificates are about."]
    votes = np.concatenate([part.votes for part in sets])
    labels = np.concatenate([part.labels for part in sets if part.labels is not None])
    notes: list[str] = []
    plain = certify(votes, run.code, threat="arbitrary", time_limit=SOLVER_SECONDS)
    if not plain.exact.all():
        notes.append(f"For {int((~plain.exact).sum()):,} inputs the plurality radius is a sound lower bound.")
    curves = {"plurality vote": certified_accuracy(plain, labels)}
    progress.advance()

    k = run.inspection.correct_arbitrary
    cost = count_attacker_sets(run.code.n_users, min(k + 1, run.code.n_users)) * len(votes)
    if k == 0:
        notes.append("The consensus decoder is left out: this code corrects nobody under the arbitrary threat model.")
    elif cost > AFFORDABLE:
        notes.append("The consensus decoder is left out: too many attacker sets for a report; see `codeward certify`.")
    else:
        decoder = ConsensusDecoder(run.code, k)
        # One past k: there the curve still says exactly what is certified, and it is where it should fall.
        held = certify(votes, run.code, threat="arbitrary", decoder=decoder, max_attackers=k + 1)
        curves[f"consensus decoder for k = {k}"] = certified_accuracy(held, labels)
    progress.advance()
    return curves, notes


def certify_promise(run: ReportedRun) -> Agreement | None:
    """Find what the run's decoder keeps of the code's promise, with the confusion matrices of its first record.

    None where the folder does not say them, where it takes too long, and for federated runs: they need the arbitrary
    threat model, under which this decoder has no certificate.
    """
    record = run.cells[min(run.cells)][0]
    votes = run.votes(record, "clean")
    if votes is None or votes.confusion is None or record.get("federated"):
        return None
    n_classes = int(votes.confusion.shape[1])
    most = min(run.config["decoder"]["max_attackers"], run.code.n_users)
    if most < 1 or not is_agreement_affordable(run.code, n_classes, most):
        return None
    return certify_agreement(run.code, run.decoder(votes.confusion), n_classes, max_attackers=most)


def plot_roc(detections: Sequence[Detection], path: str | os.PathLike[str]) -> None:
    """Draw the ROC curves on all triggered inputs, a colour a number of attackers, a line a repeat or group."""
    check_plot_path(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    sizes = sorted({detection.n_attackers for detection in detections})
    for detection in detections:
        place = sizes.index(detection.n_attackers)
        style = ("-", "--", "-.", ":")[place % 4]
        first = detection is next(d for d in detections if d.n_attackers == detection.n_attackers)
        name = f"{detection.n_attackers} attacker{'s' * (detection.n_attackers > 1)}" if first else None
        axes.plot(detection.every.fpr, detection.every.tpr, style, color=f"C{place}", label=name, linewidth=1.5)
    axes.plot([0, 1], [0, 1], ":", color="0.45", linewidth=1, label="guessing")
    axes.set_xlabel("false alarms, share of clean inputs")
    axes.set_ylabel("alarms, share of triggered inputs")
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    save_figure(figure, path)
