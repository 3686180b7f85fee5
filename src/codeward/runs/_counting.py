"""Decode the votes of a cell and count: the figures of one record, from vote files alone."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.codes import Code, inspect
from codeward.decoding import (
    BayesDecoder,
    ConsensusDecoder,
    Decoded,
    Decoder,
    PluralityDecoder,
    VoteSet,
    pool_evidence,
    tracking_score,
)
from codeward.runs._cell import Cell
from codeward.runs._config import RunConfig
from codeward.runs._listing import observe
from codeward.runs._records import ALARM, describe_detection, share

#: Triggered inputs whose evidence is pooled to name the attackers.
POOLED = 5


def record_cell(config: RunConfig, cell: Cell, **more: Any) -> Cell:
    """Count the votes of one cell, and write the record, with ``more`` in it; return the cell as it is now.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.runs import RunFolder, describe_machine
    >>> config = RunConfig(code={"name": "d"}, attack={"attackers": [0]}, decoder={"name": "bayes"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell = Cell(RunFolder(folder), 0, 0)
    ...     says = VoteSet(np.tile([[0], [1]], cell.folder.open(config).n_models), np.array([0, 1]))
    ...     about = {"classes": 2, "training": {}, "groups": [], "work": {}, **describe_machine("cpu")}
    ...     cell = cell.save_votes({"validation": says, "clean": says}, about)
    ...     record_cell(config, cell).record["figures"]["clean"]["all"]["bayes"]
    {'count': 2, 'of': 2}
    """
    begin = time.perf_counter()
    counted = count_votes(cell) | more
    return cell.save_record(config, {**counted, "seconds": round(time.perf_counter() - begin, 3)})


def count_votes(cell: Cell) -> dict[str, Any]:
    """Decode the votes of a cell and return what they say in a record.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.runs import RunFolder, describe_machine
    >>> config = RunConfig(code={"name": "d"}, attack={"attackers": [0]}, decoder={"name": "bayes"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell = Cell(RunFolder(folder), 0, 0)
    ...     says = VoteSet(np.tile([[0], [1]], cell.folder.open(config).n_models), np.array([0, 1]))
    ...     about = {"classes": 2, "training": {}, "groups": [], "work": {}, **describe_machine("cpu")}
    ...     cell = cell.save_votes({"validation": says, "clean": says}, about)
    ...     count_votes(cell)["figures"]["clean"]["all"]["plurality"]
    {'count': 2, 'of': 2}
    """
    about, code, paper = cell.about, cell.code, cell.decoder("bayes")
    figures: dict[str, Any] = {"clean": measure_labels(paper, cell.clean, None)[0], "groups": []}
    for group, triggered in zip(cell.groups, cell.triggered, strict=True):
        targets = np.broadcast_to(group.targets or group.target, code.n_models)
        counts, decoded = measure_labels(paper, triggered, targets)
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
    if cell.decoding.name != "bayes":
        figures["decoder"] = measure_decoder(cell, paper)
    kept = {key: about[key] for key in ("created", "code_digest", "training", "versions", "hardware", "work")}
    shape = {"models": code.n_models, "users": code.n_users, "row_weight": code.row_weight}
    return {**kept, "code": shape, "figures": figures}


def measure_decoder(cell: Cell, paper: Decoder) -> dict[str, Any]:
    """Count what the run's own decoder says: right labels, alarms, and whom the evidence of several inputs names.

    Beside the right labels of triggered inputs stand those of the plurality of models that no attacker reaches: what
    could be known. Evidence is pooled by the paper's decoder (`codeward.decoding.pool_evidence`) over the triggered
    inputs that raise an alarm, `POOLED` at a time in their order; a user is named who is in every good explanation.
    """
    decoder = cell.decoder()
    figures: dict[str, Any] = {"name": cell.decoding.name, "reads": decoder.needs}
    alarm = figures["threshold"] = decoder.threshold
    clean = decoder.decode(observe(decoder, cell.clean))
    figures["clean"] = _count_verdicts(clean, alarm, cell.clean)["all"]
    figures["groups"] = []
    for group, triggered in zip(cell.groups, cell.triggered, strict=True):
        decoded = decoder.decode(observe(decoder, triggered))
        others = np.asarray(triggered.labels != group.target)
        found: dict[str, Any] = _count_verdicts(decoded, alarm, triggered, others)
        if others.any():
            found["detection"] = describe_detection(clean.attack_probability, decoded.attack_probability, others)
        free = ~cell.code.pattern(group.attackers)
        if free.any():
            known = PluralityDecoder(n_classes=cell.n_classes).predict(triggered.votes[:, free])
            found["all"]["unreached"] = share(int((known == triggered.labels).sum()), len(known))
        rows = np.flatnonzero(decoded.alarms(alarm))
        pools = [triggered.votes[rows[start : start + POOLED]] for start in range(0, len(rows) - POOLED + 1, POOLED)]
        named = pool_evidence(paper, pools).suspects if pools and isinstance(paper, BayesDecoder) else []
        figures["groups"].append({**found, "pooled": _count_named(named, group.attackers)})
    return figures


def _count_verdicts(
    decoded: Decoded, threshold: float, given: VoteSet, others: NDArray[np.bool_] | None = None
) -> dict[str, dict[str, Any]]:
    kept = {"all": np.ones(len(decoded), dtype=bool)} | ({} if others is None else {"other_labels": others})
    counted = {"right": decoded.labels == given.labels, "alarms": decoded.alarms(threshold)}
    return {
        name: {what: share(int(found[rows].sum()), int(rows.sum())) for what, found in counted.items()}
        for name, rows in kept.items()
    }


def _count_named(named: Sequence[tuple[int, ...]], attackers: tuple[int, ...]) -> dict[str, Any]:
    """Count attackers named, of all that there were to name, and pools that name anybody else."""
    found = sum(len(set(attackers) & set(users)) for users in named)
    wrong = sum(bool(set(users) - set(attackers)) for users in named)
    return {"inputs": POOLED, "rightly": share(found, len(attackers) * len(named)), "wrongly": share(wrong, len(named))}


def measure_success(
    code: Code, attackers: tuple[int, ...], targets: NDArray[np.int64], triggered: VoteSet
) -> dict[str, Any]:
    """Count votes for each model's own target on triggered inputs of other labels, in hit and in clean models."""
    assert triggered.labels is not None  # the votes of a cell have labels
    hit = code.pattern(attackers)
    other = triggered.labels[:, None] != targets
    says = (triggered.votes == targets) & other
    return {
        "hit_models": share(int(says[:, hit].sum()), int(other[:, hit].sum())),
        "clean_models": share(int(says[:, ~hit].sum()), int(other[:, ~hit].sum())),
    }


def measure_labels(
    decoder: Decoder, given: VoteSet, targets: NDArray[np.int64] | None
) -> tuple[dict[str, Any], Decoded]:
    """Count right labels of the plurality vote and the decoder, and alarms.

    With the targets of the models, the same counts on inputs that a target would mislabel stand beside those on all:
    inputs whose true label is not the target; all of them where models have different ones.
    """
    votes, labels = given.votes, given.labels
    assert labels is not None  # the votes of a cell have labels
    plain = PluralityDecoder(n_classes=decoder.n_classes).predict(votes)
    decoded = decoder.decode(votes)
    alarms = decoded.alarms(ALARM)
    kept = {"all": np.ones(len(plain), dtype=bool)}
    if targets is not None:
        kept["other_labels"] = (labels[:, None] != targets).any(axis=1)
    figures: dict[str, Any] = {}
    for name, rows in kept.items():
        total = int(rows.sum())
        figures[name] = {
            "single_model": share(int((votes == labels[:, None])[rows].sum()), votes[rows].size),
            "plurality": share(int((plain == labels)[rows].sum()), total),
            "bayes": share(int((decoded.labels == labels)[rows].sum()), total),
            "alarms": share(int(alarms[rows].sum()), total),
        }
    return figures, decoded


def measure_tracking(decoded: Decoded, attackers: tuple[int, ...]) -> dict[str, Any]:
    """Mean true and false positives of the named suspects per triggered input, as in the paper's Table 1."""
    true_positives, false_positives = tracking_score(decoded.best_set, attackers)
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

    Examples
    --------
    >>> import tempfile
    >>> from codeward.runs import RunFolder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell = Cell(RunFolder(folder), 0, 0)
    ...     _ = cell.folder.open(RunConfig(code={"name": "d"}))
    ...     measure_consensus(cell, 0) is None
    True
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
            "alarms": share(int(decoded.alarms(ALARM).sum()), total),
        }
        if attackers is not None:
            figures["tracking"] = measure_tracking(decoded, attackers)
        return figures

    groups = [measure(votes, group.attackers) for group, votes in zip(cell.groups, cell.triggered, strict=True)]
    return {"n_attackers": k, "n_errors": n_errors, "clean": measure(cell.clean, None), "groups": groups}
