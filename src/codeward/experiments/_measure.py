"""Decode votes and count: the figures of one record."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.codes import Code
from codeward.decoding import BayesDecoder, Decoded, PluralityDecoder, tracking_score
from codeward.runs import ALARM, share


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


def measure_success(code: Code, attackers: tuple[int, ...], target: int, triggered: Answers) -> dict[str, Any]:
    """Count target votes on triggered inputs whose label is another, in hit and in clean models: look at it first."""
    hit = code.pattern(attackers)
    says = (triggered.votes == target)[triggered.labels != target]
    return {
        "hit_models": share(int(says[:, hit].sum()), says[:, hit].size),
        "clean_models": share(int(says[:, ~hit].sum()), says[:, ~hit].size),
    }


def measure_labels(decoder: BayesDecoder, answers: Answers, target: int | None) -> tuple[dict[str, Any], Decoded]:
    """Count right labels of the plurality vote and the decoder, and alarms.

    With a target, the same counts on the inputs whose true label is not the target stand beside those on all inputs.
    """
    plain = PluralityDecoder(n_classes=decoder.n_classes).predict(answers.votes)
    decoded = decoder.decode(answers.votes)
    alarms = decoded.attack_probability > ALARM
    kept = {"all": np.ones(len(plain), dtype=bool)}
    if target is not None:
        kept["other_labels"] = answers.labels != target
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
