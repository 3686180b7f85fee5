"""Decode votes and count: the figures of one record."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.codes import Code, inspect
from codeward.decoding import BayesDecoder, ConsensusDecoder, Decoded, PluralityDecoder, VoteSet, tracking_score
from codeward.runs import ALARM, Cell, share


@dataclass(frozen=True)
class Answers:
    """What the m sub-models say.

    Attributes
    ----------
    votes : ndarray of int64, shape (N, m)
    labels : ndarray of int64, shape (N,)
        True labels.
    """

    votes: NDArray[np.int64]
    labels: NDArray[np.int64]


def measure_success(
    code: Code, attackers: tuple[int, ...], targets: NDArray[np.int64], triggered: Answers
) -> dict[str, Any]:
    """Count votes for each model's own target on triggered inputs of other labels, in hit and in clean models."""
    hit = code.pattern(attackers)
    other = triggered.labels[:, None] != targets
    says = (triggered.votes == targets) & other
    return {
        "hit_models": share(int(says[:, hit].sum()), int(other[:, hit].sum())),
        "clean_models": share(int(says[:, ~hit].sum()), int(other[:, ~hit].sum())),
    }


def measure_labels(
    decoder: BayesDecoder, answers: Answers, targets: NDArray[np.int64] | None
) -> tuple[dict[str, Any], Decoded]:
    """Count right labels of the plurality vote and the decoder, and alarms.

    With the targets of the models, the same counts on inputs that a target would mislabel stand beside those on all:
    inputs whose true label is not the target; all of them where models have different ones.
    """
    plain = PluralityDecoder(n_classes=decoder.n_classes).predict(answers.votes)
    decoded = decoder.decode(answers.votes)
    alarms = decoded.attack_probability > ALARM
    kept = {"all": np.ones(len(plain), dtype=bool)}
    if targets is not None:
        kept["other_labels"] = (answers.labels[:, None] != targets).any(axis=1)
    figures: dict[str, Any] = {}
    for name, rows in kept.items():
        total = int(rows.sum())
        figures[name] = {
            "single_model": share(
                int((answers.votes == answers.labels[:, None])[rows].sum()), answers.votes[rows].size
            ),
            "plurality": share(int((plain == answers.labels)[rows].sum()), total),
            "bayes": share(int((decoded.labels == answers.labels)[rows].sum()), total),
            "alarms": share(int(alarms[rows].sum()), total),
        }
    return figures, decoded


def measure_tracking(decoded: Decoded, attackers: tuple[int, ...]) -> dict[str, Any]:
    """Mean true and false positives of the named suspects per triggered input, as in the paper's Table 1."""
    true_positives, false_positives = tracking_score(decoded.suspects, attackers)
    return {
        "true_positives": float(np.mean(true_positives)),
        "false_positives": float(np.mean(false_positives)),
        "of_attackers": len(attackers),
        "inputs": len(decoded),
    }


def measure_consensus(cell: Cell, max_attackers: int) -> dict[str, Any] | None:
    """Count what the consensus decoder says of a cell: the decoder for users who may send anything.

    Its k is the largest, up to ``max_attackers``, for which the code has the guarantee (BDC(2k)), its e the number of
    wrong models that the code's margin allows for. Where no set of at most k users explains the votes there is no
    verdict; ``right`` counts the plurality label in its place, ``verdicts`` and ``verdicts_right`` leave it out.

    Returns
    -------
    dict or None
        None where the code guarantees nothing under this threat model.
    """
    code = cell.code
    margins = inspect(code, max(1, max_attackers)).margin_arbitrary
    guaranteed = [k for k, margin in enumerate(margins[:max_attackers], 1) if margin]
    if not guaranteed:
        return None
    k = guaranteed[-1]
    n_errors = ((margins[k - 1] or 1) - 1) // 2
    decoder = ConsensusDecoder(code, k, n_errors, cell.n_classes)

    def measure(answers: VoteSet, attackers: tuple[int, ...] | None) -> dict[str, Any]:
        decoded, plain = decoder.decode(answers.votes), PluralityDecoder(code, cell.n_classes).predict(answers.votes)
        total, given = len(decoded), decoded.labels >= 0
        right = decoded.labels == answers.labels
        figures: dict[str, Any] = {
            "right": share(int(np.where(given, right, plain == answers.labels).sum()), total),
            "verdicts": share(int(given.sum()), total),
            "verdicts_right": share(int(right.sum()), int(given.sum())),
            "alarms": share(int((decoded.attack_probability > ALARM).sum()), total),
        }
        if attackers is not None:
            figures["tracking"] = measure_tracking(decoded, attackers)
        return figures

    groups = [measure(votes, group.attackers) for group, votes in zip(cell.groups, cell.triggered, strict=True)]
    return {"n_attackers": k, "n_errors": n_errors, "clean": measure(cell.clean, None), "groups": groups}
