"""What the votes of a cell say beyond its record: other decoders, pooled suspects, detection, assumptions, proofs.

One JSON file a cell, ``studies/<cell>.json`` in its run folder, made from vote files alone and filled part by part.
"""

import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward.certificates import certify, certify_agreement
from codeward.codes import Code, inspect
from codeward.decoding import (
    ConsensusDecoder,
    Decoded,
    Decoder,
    PluralityDecoder,
    TwoGroupDecoder,
    name_attackers,
    pool_evidence,
    roc_curve,
    tracking_score,
)
from codeward.reproduction._cell_votes import CellVotes, read_cell
from codeward.reproduction._studies import DESIGNED
from codeward.runs import ALARM, RunFolder, share

#: Changes when a reader of older files would misread newer ones.
FORMAT = "codeward-study/1"

#: Triggered inputs whose evidence is multiplied, and random pools of each size.
POOLS, DRAWS = (2, 5, 20), 200

#: What the decoder may wrongly take for the attack rate A and the success rate S.
RATES, SUCCESSES = (0.1, 0.5, 0.9), (0.7, 0.9, 0.99, 0.999)

#: Attack rates A from the paper's down, at the paper's success rate: a dial between clean inputs and triggered ones.
DIAL = (0.5, 0.1, 0.01, 0.001)

#: Shares of false alarms at which a ROC curve is kept.
FALSE_ALARMS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

#: Clean inputs whose Bayes decoding is certified: about 100 ms a distinct vote vector.
CERTIFIED = 500

#: Largest k of a certificate.
TOP = 4


def study_cell(place: RunFolder, repeat: int, n_attackers: int, code: Code, parts: Iterable[str]) -> dict[str, Any]:
    """Add what is missing of ``parts`` (see `PARTS`) to the study of a cell, write it, and return it."""
    file = place.path / "studies" / f"repeat{repeat}-attackers{n_attackers}.json"
    known = load_study(file) if file.exists() else {}
    missing = [part for part in parts if part not in known.get("parts", [])]
    if not missing:
        return known
    cell = read_cell(place, repeat, n_attackers, code)
    if cell.scores is None:
        # Not done either: vote files that hold them may come later.
        missing = [part for part in missing if part != "scores"]
    if missing:
        known = {"format": FORMAT, "repeat": repeat, "n_attackers": n_attackers, "code_digest": code.digest, **known}
        for part in missing:
            for key, value in PARTS[part](cell).items():
                known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
        known["parts"] = sorted({*known.get("parts", []), *missing})
        write_text_atomic(file, json.dumps(known, indent=1) + "\n")
    return known


def load_study(file: Path) -> dict[str, Any]:
    """Read a study; a file of another kind is refused by name."""
    try:
        study = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not a readable study ({error})") from error
    return check_study(study, file)


def check_study(study: Any, file: str | Path) -> dict[str, Any]:
    """Return what was read of a study; something else is refused by the name of its file."""
    if not isinstance(study, dict) or study.get("format") != FORMAT:
        raise InputError(f"{file}: not a {FORMAT} file")
    missing = [key for key in ("repeat", "n_attackers", "code_digest") if key not in study]
    if missing:
        raise InputError(f"{file}: a study lacks {', '.join(missing)}")
    return study


def _study_paper(cell: CellVotes) -> dict[str, Any]:
    """Plurality and the paper's decoder: labels, alarms, detection, suspects alone and pooled."""
    decoder = cell.decoder()
    plain = PluralityDecoder(n_classes=cell.n_classes)
    found = compare(cell, "plurality", plain.decode)
    found |= {"decoders": found["decoders"] | compare(cell, "bayes", decoder.decode)["decoders"]}
    if cell.triggered is None:
        return found
    votes = cell.triggered[0][cell.others]
    calm, alarmed = decoder.decode(cell.clean[0]).attack_probability, decoder.decode(votes)
    tracking = {"bayes": score_suspects(cell, alarmed.suspects)}
    rng = np.random.default_rng([len(votes), len(cell.attackers)])
    for size in POOLS:
        pools = [votes[rng.choice(len(votes), size, replace=False)] for _ in range(DRAWS)]
        tracking[f"pooled-{size}"] = score_suspects(cell, pool_evidence(decoder, pools).suspects)
    return found | {"tracking": tracking, "detection": {"bayes": detect(calm, alarmed.attack_probability)}}


def _study_explanations(cell: CellVotes) -> dict[str, Any]:
    """Count the suspects of the most probable attack, as the paper's table seems to do; see `name_attackers`."""
    if cell.triggered is None:
        return {}
    named = name_attackers(cell.decoder(), cell.triggered[0][cell.others])
    return {"tracking": {"bayes-joint": score_suspects(cell, named)}}


def _study_discounted(cell: CellVotes) -> dict[str, Any]:
    """Our decoder on hard votes."""
    from codeward.decoding.soft import DiscountedDecoder

    decoder = DiscountedDecoder(cell.code, cell.n_classes).fit(*cell.validation)
    found = compare(cell, "discounted", decoder.decode)
    if cell.triggered is not None:
        alarmed = decoder.decode(cell.triggered[0][cell.others])
        calm = decoder.decode(cell.clean[0]).attack_probability
        found["tracking"] = {"discounted": score_suspects(cell, alarmed.suspects)}
        found["detection"] = {"discounted": detect(calm, alarmed.attack_probability)}
    return found


def _study_scores(cell: CellVotes) -> dict[str, Any]:
    """Our decoder on class scores."""
    from codeward.decoding.soft import SoftDecoder

    assert cell.scores is not None
    decoder = SoftDecoder(cell.code).fit(cell.scores[0].astype(np.float64), cell.validation[1])
    sets = [decoder.decode(scores.astype(np.float64)) for scores in cell.scores[1:]]
    labels = [cell.clean[1]] if cell.triggered is None else [cell.clean[1], cell.triggered[1]]
    every = [np.ones(len(part), dtype=bool) for part in labels]
    found: dict[str, Any] = {"clean": count_right(sets[0], labels[0], every[0])}
    if cell.triggered is None:
        return {"decoders": {"soft": found}}
    rows = cell.others
    found["triggered"] = {
        "all": count_right(sets[1], labels[1], every[1]),
        "other_labels": count_right(sets[1], labels[1], rows),
    }
    suspects = [who for who, kept in zip(sets[1].suspects, rows, strict=True) if kept]
    return {
        "decoders": {"soft": found},
        "tracking": {"soft": score_suspects(cell, suspects)},
        "detection": {"soft": detect(sets[0].attack_probability, sets[1].attack_probability[rows])},
    }


def _study_assumptions(cell: CellVotes) -> dict[str, Any]:
    """Let the paper's decoder assume wrong rates of attack and success."""
    return {"assumed": [_assume(cell, rate, success) for rate, success in product(RATES, SUCCESSES)]}


def _study_dial(cell: CellVotes) -> dict[str, Any]:
    """Let the paper's decoder expect fewer and fewer attacks: fewer false alarms, and fewer true ones.

    ``kept``, of models that nobody attacked: the most attackers whose every attack is undone as long as no model errs.
    """
    rows = [_assume(cell, rate, 0.99) for rate in DIAL]
    if not cell.attackers:
        for row in rows:
            decoder = cell.decoder(attack_rate=row["attack_rate"])
            row["kept"] = certify_agreement(cell.code, decoder, cell.n_classes, max_attackers=3).n_attackers
    return {"dial": rows}


def _assume(cell: CellVotes, rate: float, success: float) -> dict[str, Any]:
    decode = cell.decoder(attack_rate=rate, success_rate=success).decode
    counted = compare(cell, "it", decode)["decoders"]["it"]
    row = {"attack_rate": rate, "success_rate": success}
    row |= {"clean_right": counted["clean"]["right"], "clean_alarms": counted["clean"]["alarms"]}
    if "triggered" in counted:
        row |= {key: counted["triggered"]["all"][key] for key in ("right", "alarms")}
    return row


def _study_groups(cell: CellVotes) -> dict[str, Any]:
    """One decoder that knows one attacking group and one that knows two, on the trigger of every group there is."""
    decoders: dict[str, Decoder] = {
        "plurality": PluralityDecoder(n_classes=cell.n_classes),
        "bayes": cell.decoder(),
        "two-groups": TwoGroupDecoder(cell.code, cell.confusion),
    }
    counted = [
        {
            name: count_right(decoder.decode(votes), labels, np.ones(len(labels), dtype=bool))
            for name, decoder in decoders.items()
        }
        for votes, labels in (cell.clean, *cell.groups)
    ]
    return {"groups": {"clean": counted[0], "triggered": counted[1:]}}


def _study_unreached(cell: CellVotes) -> dict[str, Any]:
    """Ask the models that no attacker fed alone, to tell what the trigger itself costs from what the decoder loses.

    A trigger over the whole image makes inputs harder for honest models too, which no decoder can undo. ``single``: one
    such model. ``known``: the label with the highest likelihood of their votes, that is, the paper's decoder told who
    attacks and trusting nothing that they reach. A yardstick, since nobody has those names.
    """
    honest = ~cell.reached
    if not cell.groups or not honest.any():
        return {"unreached": {"models": int(honest.sum())}}
    logs, models = np.log(cell.confusion[honest]), np.arange(int(honest.sum()))
    single, known = [], []
    for votes, labels in (cell.clean, *cell.groups):
        said = votes[:, honest]
        single.append(share(int((said == labels[:, None]).sum()), said.size))
        # argmax over l of sum over honest i of log C[i, l, y_i]; ties go to the lowest label.
        likely = logs[models, :, said].sum(axis=1).argmax(axis=1)
        known.append(share(int((likely == labels).sum()), len(labels)))
    figures = {
        name: {"clean": found[0], "triggered": found[1:]} for name, found in (("single", single), ("known", known))
    }
    return {"unreached": {"models": len(models), **figures}}


def _study_certificates(cell: CellVotes) -> dict[str, Any]:
    """Certified accuracy on clean votes of models that nobody attacked; nothing for others."""
    if cell.attackers:
        return {}
    votes, labels = cell.clean
    held = {"plurality": certify(votes, cell.code, threat="arbitrary", max_attackers=TOP)}
    k = inspect(cell.code).correct_arbitrary
    if k:
        decoder = ConsensusDecoder(cell.code, k)
        name = f"consensus for k = {k}"
        held[name] = certify(votes, cell.code, threat="arbitrary", decoder=decoder, max_attackers=TOP)
    few = certify(
        votes[:CERTIFIED], cell.code, threat="deterministic", decoder="bayes", confusion=cell.confusion, max_attackers=3
    )
    certified = {}
    for name, found in {**held, "bayes": few}.items():
        right = found.labels == labels[: len(found.labels)]
        counts = [int((right & (found.radius >= radius)).sum()) for radius in range(found.searched + 1)]
        certified[name] = {"threat": found.threat, "inputs": len(right), "right": counts}
    return {"certified": certified}


#: Parts of a study, by name.
PARTS: dict[str, Callable[[CellVotes], dict[str, Any]]] = {
    "paper": _study_paper,
    "explanations": _study_explanations,
    "discounted": _study_discounted,
    "scores": _study_scores,
    "groups": _study_groups,
    "unreached": _study_unreached,
    "assumptions": _study_assumptions,
    "dial": _study_dial,
    "certificates": _study_certificates,
}


def choose_parts(path: str, repeat: int, n_attackers: int, smoke: bool = False, n_groups: int = 1) -> tuple[str, ...]:
    """Return the parts that a cell of a grid gets: the costly ones where they are compared.

    Parameters
    ----------
    path : str
        Folder of the run in the grid, ``<data set>-<setting>/<code>``.
    repeat, n_attackers : int
    smoke : bool
        Leave out what takes over a second a cell.
    n_groups : int
        Attacking groups of the run; most parts are for one.
    """
    if n_groups > 1:
        return ("groups", "unreached")
    setting, _, code = path.rpartition("/")
    # With skewed data the records say enough; who is named, and what is detected, is compared where data are IID.
    parts = ["paper", "explanations", "unreached"] if "-iid" in setting or smoke else []
    if repeat == 0 and n_attackers == 0 and not smoke:
        parts.append("certificates")
    if repeat == 0 and code in ("c", "d"):
        parts.append("assumptions")
    # Partitions and random codes are there for contrast; ten seconds a cell are for the others.
    if repeat == 0 and "-iid" in setting and code not in ("a", "b", "e", "f") and not smoke:
        parts += ["discounted", "scores"]
    if setting.endswith("-iid") and code in ("c", "d", *DESIGNED):
        parts.append("dial")
    # What the decoder for two groups costs where there is one.
    if repeat == 0 and setting.endswith("-iid") and code in ("c", "d") and not smoke:
        parts.append("groups")
    return tuple(parts)


def compare(cell: CellVotes, name: str, decode: Callable[[NDArray[np.int64]], Decoded]) -> dict[str, Any]:
    """Count right labels and alarms of a decoder on clean and triggered inputs."""
    votes, labels = cell.clean
    found: dict[str, Any] = {"clean": count_right(decode(votes), labels, np.ones(len(labels), dtype=bool))}
    if cell.triggered is not None:
        votes, labels = cell.triggered
        decoded, every = decode(votes), np.ones(len(labels), dtype=bool)
        counts = {"all": count_right(decoded, labels, every), "other_labels": count_right(decoded, labels, cell.others)}
        found["triggered"] = counts
    return {"decoders": {name: found}}


def count_right(decoded: Decoded, labels: NDArray[np.int64], rows: NDArray[np.bool_]) -> dict[str, Any]:
    """Count right labels and alarms among some rows."""
    right, alarms = decoded.labels == labels, decoded.attack_probability > ALARM
    total = int(rows.sum())
    return {"right": share(int(right[rows].sum()), total), "alarms": share(int(alarms[rows].sum()), total)}


def score_suspects(cell: CellVotes, suspects: Any) -> dict[str, Any]:
    """Mean true and false positives."""
    right, wrong = tracking_score(suspects, cell.attackers)
    return {
        "true_positives": round(float(right.mean()), 4),
        "false_positives": round(float(wrong.mean()), 4),
        "of_attackers": len(cell.attackers),
        "inputs": len(right),
    }


def detect(calm: NDArray[np.float64], alarmed: NDArray[np.float64]) -> dict[str, Any]:
    """ROC curve at `FALSE_ALARMS`, its AUC, and how many triggered inputs are found at 5% false alarms.

    Thresholds are set on the same clean inputs.
    """
    curve = roc_curve(calm, alarmed)
    hits = [int((alarmed > curve.threshold_for(rate)).sum()) for rate in FALSE_ALARMS]
    found = share(hits[FALSE_ALARMS.index(0.05)], len(alarmed))
    points = [round(count / len(alarmed), 5) for count in hits]
    return {"auc": round(curve.auc, 5), "hits_at_5": found, "roc": {"false_alarms": FALSE_ALARMS, "detected": points}}
