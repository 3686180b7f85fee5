"""What the votes of a cell say beyond its record: other decoders, pooled suspects, detection, assumptions, proofs.

One JSON file a cell, ``studies/<cell>.json`` in its run folder, made from vote files alone and filled part by part.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_json, write_json
from codeward.certificates import certify, certify_agreement
from codeward.codes import Code, inspect
from codeward.decoding import (
    Assumptions,
    BayesDecoder,
    ConsensusDecoder,
    Decoded,
    Decoder,
    VoteSet,
    estimate_confusion,
    make_decoder,
    name_attackers,
    pool_evidence,
    roc_curve,
    tracking_score,
)
from codeward.runs import Cell, SimulatedAttack, share


@dataclass(frozen=True)
class CellStudy:
    """The votes of a cell under study: each decoder is made once, and decodes each set of inputs once.

    Attributes
    ----------
    code : Code
    n_classes : int
    validation, clean : VoteSet
    triggered : tuple of VoteSet
        Inputs with the trigger of each attacking group.
    groups : tuple of SimulatedAttack
        Who attacks, group by group.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> code = named_code("d")
    >>> votes = VoteSet(np.tile([[0], [1], [1]], code.n_models), labels=np.array([0, 1, 1]))
    >>> study = CellStudy(code, 2, votes, votes)
    >>> study.decode("bayes", "clean").labels.tolist()
    [0, 1, 1]
    """

    code: Code
    n_classes: int
    validation: VoteSet
    clean: VoteSet
    triggered: tuple[VoteSet, ...] = ()
    groups: tuple[SimulatedAttack, ...] = ()
    _bayes: dict[tuple[float, float], BayesDecoder] = field(default_factory=dict, init=False, repr=False)
    _others: dict[str, Decoder] = field(default_factory=dict, init=False, repr=False)
    _decoded: dict[tuple[Any, str], Decoded] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, cell: Cell) -> "CellStudy":
        """Read the votes of a cell."""
        return cls(cell.code, cell.n_classes, cell.validation, cell.clean, cell.triggered, cell.groups)

    @cached_property
    def confusion(self) -> NDArray[np.float64]:
        """Confusion matrices of the validation half, shape (m, c, c)."""
        return estimate_confusion(self.validation.votes, truth(self.validation), self.n_classes)

    @cached_property
    def attackers(self) -> tuple[int, ...]:
        """Who attacks, of the one group; nobody without."""
        self.check_groups()
        return self.groups[0].attackers if self.groups else ()

    @cached_property
    def others(self) -> NDArray[np.bool_]:
        """Triggered inputs whose true label is not the target: those an attack can change."""
        return np.asarray(truth(self.triggered[0]) != self.groups[0].target)

    @property
    def has_scores(self) -> bool:
        """Whether the vote files hold class scores."""
        return all(part.scores is not None for part in (self.validation, self.clean, *self.triggered))

    def check_groups(self) -> None:
        """Refuse several attacking groups."""
        if len(self.groups) > 1:
            raise InputError("this part of a study is for one attacking group")

    def votes(self, inputs: str) -> VoteSet:
        """Return the votes on ``clean`` inputs, or on those with the trigger of group ``0``, ``1``, ..."""
        return self.clean if inputs == "clean" else self.triggered[int(inputs)]

    def decoder(self, attack_rate: float = 0.5, success_rate: float = 0.99) -> BayesDecoder:
        """Return the paper's decoder, with its assumptions unless told otherwise; attacker sets are gathered once."""
        key = attack_rate, success_rate
        if key not in self._bayes:
            made = make_decoder(
                "bayes", self.code, self.confusion, Assumptions.uniform(3, attack_rate=key[0], success_rate=key[1])
            )
            assert isinstance(made, BayesDecoder)
            known = next(iter(self._bayes.values()), None)
            if known is not None and made.is_exact:
                made.sets_ = known.sets_  # of code and prior alone
            self._bayes[key] = made
        return self._bayes[key]

    def decode(self, decoder: str | tuple[float, float], inputs: str) -> Decoded:
        """Decode by a decoder's name (see `codeward.decoding.make_decoder`), or by the paper's at rates A and S."""
        key = (0.5, 0.99) if decoder == "bayes" else decoder
        if (key, inputs) not in self._decoded:
            given = self.votes(inputs)
            made = self._make(key) if isinstance(key, str) else self.decoder(*key)
            seen = given.votes if made.needs == "votes" or given.scores is None else given.scores.astype(np.float64)
            self._decoded[key, inputs] = made.decode(seen)
        return self._decoded[key, inputs]

    def _make(self, name: str) -> Decoder:
        if name not in self._others:
            given = self.validation
            if name == "soft" and given.scores is not None:  # fitted at full precision, as it decodes
                given = replace(given, scores=given.scores.astype(np.float64))
            noise = self.confusion if name == "groups" else given
            self._others[name] = make_decoder(name, self.code, noise, n_classes=self.n_classes)
        return self._others[name]


def truth(given: VoteSet) -> NDArray[np.int64]:
    """Return the labels of votes that have some: those of a run do."""
    if given.labels is None:
        raise InputError("the votes of a run need labels to be studied")
    return given.labels


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
TOP = 5


def study_cell(cell: Cell, parts: Iterable[str]) -> dict[str, Any]:
    """Add what is missing of ``parts`` (see `PARTS`) to the study of a cell, write it, and return it."""
    file = cell.folder.study(cell.repeat, cell.n_attackers)
    known = check_study(read_json(file), file) if file.exists() else {}
    missing = [part for part in parts if part not in known.get("parts", [])]
    if not missing:
        return known
    study = CellStudy.of(cell)
    if not study.has_scores:
        # Not done either: vote files that hold them may come later.
        missing = [part for part in missing if part != "scores"]
    if missing:
        head = {"format": FORMAT, "repeat": cell.repeat, "n_attackers": cell.n_attackers}
        known = {**head, "code_digest": cell.code.digest, **known}
        for part in missing:
            for key, value in PARTS[part](study).items():
                known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
        known["parts"] = sorted({*known.get("parts", []), *missing})
        write_json(file, known)
    return known


def check_study(study: Any, file: str | Path) -> dict[str, Any]:
    """Return what was read of a study; something else is refused by the name of its file."""
    if not isinstance(study, dict) or study.get("format") != FORMAT:
        raise InputError(f"{file}: not a {FORMAT} file")
    missing = [key for key in ("repeat", "n_attackers", "code_digest") if key not in study]
    if missing:
        raise InputError(f"{file}: a study lacks {', '.join(missing)}")
    return study


def _study_paper(study: CellStudy) -> dict[str, Any]:
    """Plurality and the paper's decoder: labels, alarms, detection, suspects alone and pooled."""
    found: dict[str, Any] = {"decoders": {name: compare(study, name) for name in ("plurality", "bayes")}}
    if not study.groups:
        return found
    votes = study.triggered[0].votes[study.others]
    named = study.decode("bayes", "0").take(study.others)
    tracking = {"bayes": score_suspects(study, named.best_set)}
    rng = np.random.default_rng([len(votes), len(study.attackers)])
    for size in POOLS:
        pools = [votes[rng.choice(len(votes), size, replace=False)] for _ in range(DRAWS)]
        tracking[f"pooled-{size}"] = score_suspects(study, pool_evidence(study.decoder(), pools).best_set)
    return found | {"tracking": tracking, "detection": {"bayes": detect(study, "bayes")}}


def _study_explanations(study: CellStudy) -> dict[str, Any]:
    """Count the suspects of the most probable attack, as the paper's table seems to do; see `name_attackers`."""
    study.check_groups()
    if not study.groups:
        return {}
    named = name_attackers(study.decoder(), study.triggered[0].votes[study.others])
    return {"tracking": {"bayes-joint": score_suspects(study, named)}}


def _study_decoder(study: CellStudy, name: str) -> dict[str, Any]:
    """Our decoder, on hard votes (``discounted``) or on class scores (``soft``)."""
    found: dict[str, Any] = {"decoders": {name: compare(study, name)}}
    if study.groups:
        named = study.decode(name, "0").take(study.others)
        found["tracking"] = {name: score_suspects(study, named.best_set)}
        found["detection"] = {name: detect(study, name)}
    return found


def _study_assumptions(study: CellStudy) -> dict[str, Any]:
    """Let the paper's decoder assume wrong rates of attack and success."""
    return {"assumed": [_assume(study, rate, success) for rate, success in product(RATES, SUCCESSES)]}


def _study_dial(study: CellStudy) -> dict[str, Any]:
    """Let the paper's decoder expect fewer and fewer attacks: fewer false alarms, and fewer true ones.

    ``kept``, of models that nobody attacked: the most attackers whose every attack is undone as long as no model errs.
    """
    rows = [_assume(study, rate, 0.99) for rate in DIAL]
    if not study.attackers:
        for row in rows:
            decoder = study.decoder(row["attack_rate"])
            row["kept"] = certify_agreement(study.code, decoder, study.n_classes, max_attackers=3).n_attackers
    return {"dial": rows}


def _assume(study: CellStudy, rate: float, success: float) -> dict[str, Any]:
    counted = compare(study, (rate, success))
    row = {"attack_rate": rate, "success_rate": success}
    row |= {"clean_right": counted["clean"]["right"], "clean_alarms": counted["clean"]["alarms"]}
    if "triggered" in counted:
        row |= {key: counted["triggered"]["all"][key] for key in ("right", "alarms")}
    return row


def _study_groups(study: CellStudy) -> dict[str, Any]:
    """One decoder that knows one attacking group and one that knows two, on the trigger of every group there is."""
    names = {"plurality": "plurality", "bayes": "bayes", "two-groups": "groups"}
    counted = [
        {name: count_right(study.decode(known, inputs), truth(study.votes(inputs))) for name, known in names.items()}
        for inputs in ("clean", *map(str, range(len(study.groups))))
    ]
    return {"groups": {"clean": counted[0], "triggered": counted[1:]}}


def _study_unreached(study: CellStudy) -> dict[str, Any]:
    """Take the votes of the models that no attacker fed alone: what the trigger itself costs, the decoder apart.

    A trigger over the whole image makes inputs harder for honest models too, which no decoder can undo. ``single``: one
    such model. ``known``: the label with the highest likelihood of their votes, that is, the paper's decoder told who
    attacks and trusting nothing that they reach. A yardstick, since nobody has those names.
    """
    honest = ~study.code.pattern(user for group in study.groups for user in group.attackers)
    if not study.groups or not honest.any():
        return {"unreached": {"models": int(honest.sum())}}
    logs, models = np.log(study.confusion[honest]), np.arange(int(honest.sum()))
    single, known = [], []
    for given in (study.clean, *study.triggered):
        said, labels = given.votes[:, honest], truth(given)
        single.append(share(int((said == labels[:, None]).sum()), said.size))
        # argmax over l of sum over honest i of log C[i, l, y_i]; ties go to the lowest label.
        likely = logs[models, :, said].sum(axis=1).argmax(axis=1)
        known.append(share(int((likely == labels).sum()), len(labels)))
    figures = {
        name: {"clean": found[0], "triggered": found[1:]} for name, found in (("single", single), ("known", known))
    }
    return {"unreached": {"models": len(models), **figures}}


def _study_certificates(study: CellStudy) -> dict[str, Any]:
    """Certified accuracy on clean votes of models that nobody attacked; nothing for others."""
    if study.groups:
        return {}
    votes, labels, code = study.clean.votes, truth(study.clean), study.code
    held = {"plurality": certify(votes, code, threat="arbitrary", max_attackers=TOP)}
    k = inspect(code).correct_arbitrary
    if k:
        decoder = ConsensusDecoder(code, k)
        held[f"consensus for k = {k}"] = certify(votes, code, threat="arbitrary", decoder=decoder, max_attackers=TOP)
    if study.clean.scores is not None:
        scores = study.clean.scores.astype(np.float32)
        held["runoff"] = certify(scores, code, threat="arbitrary", decoder="runoff", max_attackers=TOP)
    held["bayes"] = certify(
        votes[:CERTIFIED], code, threat="deterministic", decoder="bayes", confusion=study.confusion, max_attackers=3
    )
    certified = {}
    for name, found in held.items():
        right = found.labels == labels[: len(found.labels)]
        counts = [int((right & (found.radius >= radius)).sum()) for radius in range(found.searched + 1)]
        certified[name] = {"threat": found.threat, "inputs": len(right), "right": counts}
    return {"certified": certified}


#: Parts of a study, by name.
PARTS: dict[str, Callable[[CellStudy], dict[str, Any]]] = {
    "paper": _study_paper,
    "explanations": _study_explanations,
    "discounted": partial(_study_decoder, name="discounted"),
    "scores": partial(_study_decoder, name="soft"),
    "groups": _study_groups,
    "unreached": _study_unreached,
    "assumptions": _study_assumptions,
    "dial": _study_dial,
    "certificates": _study_certificates,
}


def compare(study: CellStudy, decoder: str | tuple[float, float]) -> dict[str, Any]:
    """Count right labels and alarms of a decoder on clean and triggered inputs."""
    study.check_groups()
    found: dict[str, Any] = {"clean": count_right(study.decode(decoder, "clean"), truth(study.clean))}
    if study.groups:
        decoded, labels = study.decode(decoder, "0"), truth(study.triggered[0])
        rows = study.others
        found["triggered"] = {
            "all": count_right(decoded, labels),
            "other_labels": count_right(decoded.take(rows), labels[rows]),
        }
    return found


def count_right(decoded: Decoded, labels: NDArray[np.int64]) -> dict[str, Any]:
    """Count right labels and alarms."""
    right, alarms = int((decoded.labels == labels).sum()), int(decoded.alarms().sum())
    return {"right": share(right, len(labels)), "alarms": share(alarms, len(labels))}


def score_suspects(study: CellStudy, suspects: Any) -> dict[str, Any]:
    """Mean true and false positives."""
    right, wrong = tracking_score(suspects, study.attackers)
    return {
        "true_positives": round(float(right.mean()), 4),
        "false_positives": round(float(wrong.mean()), 4),
        "of_attackers": len(study.attackers),
        "inputs": len(right),
    }


def detect(study: CellStudy, decoder: str) -> dict[str, Any]:
    """ROC curve at `FALSE_ALARMS`, its AUC, and how many triggered inputs are found at 5% false alarms.

    Thresholds are set on the same clean inputs; triggered ones of the target's own class are left out.
    """
    alarmed = study.decode(decoder, "0").attack_probability[study.others]
    curve = roc_curve(study.decode(decoder, "clean").attack_probability, alarmed)
    hits = [int((alarmed >= curve.threshold_for(rate)).sum()) for rate in FALSE_ALARMS]
    found = share(hits[FALSE_ALARMS.index(0.05)], len(alarmed))
    points = [round(count / len(alarmed), 5) for count in hits]
    return {"auc": round(curve.auc, 5), "hits_at_5": found, "roc": {"false_alarms": FALSE_ALARMS, "detected": points}}
