"""The certificate card: on one page what models reached, what is guaranteed and what that rests on."""

import hashlib
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward._figures import show_count, show_percent
from codeward._files import read_json, write_json
from codeward.certificates import CertifiedCurve
from codeward.codes import inspect
from codeward.runs._cell import Cell
from codeward.runs._clean_certificates import LEFT_OUT, certify_clean, certify_kept
from codeward.runs._listing import observe
from codeward.runs._records import check_keys, describe_machine, share
from codeward.runs._revocation import load_revocation
from codeward.runs._stated_guarantees import StatedGuarantee, state_guarantees

#: Changes when a reader of older cards would misread newer ones.
FORMAT = "codeward-card/1"
#: What every card says it rests on, in this order; others may follow.
ASSUMED = ("validation", "classes", "encoders", "backbone")

_KEYS: dict[str, type] = {"title": str, "facts": dict, "accuracy": dict, "guarantees": list, "certified": list}
_KEYS |= {"assumed": dict, "digests": dict, "versions": dict}


@dataclass(frozen=True)
class CardCurve:
    """Certified accuracy: of how many clean inputs no k users can change the right label.

    Attributes
    ----------
    decoder : str
    threat : {"deterministic", "arbitrary"}
    shares : tuple of dict
        Entry k is the `share` for k attackers; at 0 the accuracy. Where it ends above 0, no larger k was searched.

    Examples
    --------
    >>> CardCurve("plurality", "arbitrary", ({"count": 9, "of": 10}, {"count": 7, "of": 10})).at(1)
    0.7
    """

    decoder: str
    threat: str
    shares: tuple[Mapping[str, int], ...]

    @classmethod
    def of(cls, curve: CertifiedCurve) -> "CardCurve":
        """Return a curve as counts."""
        counts = np.rint(curve.accuracy * curve.n_inputs).astype(int)
        return cls(curve.decoder, curve.threat, tuple(share(count, curve.n_inputs) for count in counts))

    def at(self, n_attackers: int) -> float:
        """Return the share certified against k users; 0 past what was searched."""
        if n_attackers >= len(self.shares):
            return 0.0
        found = self.shares[n_attackers]
        return found["count"] / found["of"] if found["of"] else 0.0


@dataclass(frozen=True)
class Card:
    """What a set of sub-models reaches and what is guaranteed of it.

    Attributes
    ----------
    title : str
    facts : mapping of str to str
        What it is about: data, users, sub-models, decoder.
    accuracy : dict
        `share` of clean test inputs that the decoder labels rightly.
    false_alarms : dict or None
        `share` of the same inputs on which it raises an alarm; None where the decoder has no alarms.
    guarantees : tuple of StatedGuarantee
        Per threat model, with k.
    certified : tuple of CardCurve
        Empty where nothing is certified input by input.
    assumed : mapping of str to str
        A sentence each for ``validation`` (trusted, or the users' own), ``classes``, ``encoders``, ``backbone`` (with
        hash and whose word it is), and whatever else the guarantees rest on.
    digests : mapping of str to str
        ``code``, ``data``, ``models``: SHA-256.
    versions : mapping of str to str
    warnings : tuple of str
        What takes a guarantee away: shown first.

    Examples
    --------
    >>> card = Card("clinics", {"users": "9"}, {"count": 9, "of": 10}, {"count": 0, "of": 10})
    >>> card.to_text().splitlines()[0]
    'Certificate card: clinics'
    >>> Card.from_json(card.to_json()) == card
    True
    """

    title: str
    facts: Mapping[str, str]
    accuracy: Mapping[str, int]
    false_alarms: Mapping[str, int] | None = None
    guarantees: tuple[StatedGuarantee, ...] = ()
    certified: tuple[CardCurve, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def certified_at(self, n_attackers: int) -> float:
        """Return the largest share of inputs that one of the curves certifies against all attacks by k users."""
        whole = (curve for curve in self.certified if not curve.decoder.endswith(LEFT_OUT))
        return max((curve.at(n_attackers) for curve in whole), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the card as a JSON object; see `from_json`."""
        curves = [
            {"decoder": c.decoder, "threat": c.threat, "attackers": {str(k): dict(s) for k, s in enumerate(c.shares)}}
            for c in self.certified
        ]
        parts = {key: list(part) if isinstance(part, tuple) else part for key, part in asdict(self).items()}
        return {"format": FORMAT, **parts, "certified": curves}

    @classmethod
    def from_json(cls, content: Any, what: str = "the card") -> "Card":
        """Read a card back; what is none is an `InputError` that names it by ``what``."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{what}: not a {FORMAT} file")
        check_keys(content, _KEYS, {"false_alarms": dict, "warnings": list}, what)
        try:
            return cls(
                content["title"],
                _read_texts(content["facts"]),
                _read_share(content["accuracy"]),
                None if content.get("false_alarms") is None else _read_share(content["false_alarms"]),
                tuple(_read_guarantee(said) for said in content["guarantees"]),
                tuple(_read_curve(curve) for curve in content["certified"]),
                _read_texts(content["assumed"]),
                _read_texts(content["digests"]),
                _read_texts(content["versions"]),
                tuple(map(str, content.get("warnings") or ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{what}: not readable as a card ({str(error)[:80]})") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Card":
        """Read ``card.json``."""
        return cls.from_json(read_json(path), str(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``card.json``, atomically."""
        write_json(path, self.to_json())

    def to_text(self, width: int = 80) -> str:
        """Return the card as plain lines of at most ``width`` characters."""
        lines = [f"Certificate card: {self.title}", ""]
        lines += _wrap_facts(self.facts, width)
        lines += [line for text in self.warnings for line in _wrap(f"warning: {text}", width)]
        measured = {"accuracy, clean test inputs": show_count(self.accuracy)}
        measured["false alarms, the same"] = "no alarms" if self.false_alarms is None else show_count(self.false_alarms)
        lines += ["", "Measured", *_wrap_facts(measured, width)]
        for threat in dict.fromkeys(said.threat for said in self.guarantees):
            lines += ["", f"Guaranteed, threat model {threat}"]
            lines += [line for said in self.guarantees if said.threat == threat for line in _wrap(said.sentence, width)]
        for curve in self.certified:
            lines += ["", f"Certified accuracy, {curve.decoder}, threat model {curve.threat}"]
            lines += _wrap_facts({f"k = {k}": show_count(found) for k, found in enumerate(curve.shares)}, width)
        if not self.certified:
            lines += ["", "Certified accuracy: none"]
        for title, part in (("Assumed", self.assumed), ("SHA-256", self.digests)):
            if part:
                lines += ["", title, *_wrap_facts(part, width)]
        if self.versions:
            lines += [
                "",
                *textwrap.wrap(", ".join(f"{name} {number}" for name, number in self.versions.items()), width),
            ]
        return "\n".join(lines) + "\n"


def make_card(
    cell: Cell,
    assumed: Mapping[str, str],
    digests: Mapping[str, str] | None = None,
    title: str | None = None,
    warnings: Sequence[str] = (),
    certifiable: bool = True,
) -> Card:
    """Make the card of a cell from its code and its vote files, with the decoder that the cell is served with.

    Guarantees are of the code (Propositions 1 to 3, 12 to 14 of docs/theory.md); what the decoder keeps of them is
    Propositions 23 and 43, certified accuracy Propositions 20 and 21, of models trained on the users' data as they are.

    Parameters
    ----------
    cell : Cell
        Of models that nobody attacks on purpose (``repeat0-attackers0``); with vote files.
    assumed : mapping of str to str
        What the guarantees rest on; see `Card`.
    digests : mapping of str to str, optional
        Beside those of the code and of the models: of the data.
    title : str, optional
    warnings : sequence of str
        What takes a guarantee away.
    certifiable : bool
        False where something that an attacker could move reaches all rows: nothing is certified then.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.decoding import VoteSet
    >>> from codeward.runs import RunConfig, RunFolder
    >>> config = RunConfig(code={"name": "d"}, attack={"attackers": [0]}, decoder={"name": "bayes"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = RunFolder(folder)
    ...     says = VoteSet(np.tile([[0], [1]], place.open(config).n_models), np.array([0, 1]))
    ...     about = {"classes": 2, "training": {}, "groups": [], **describe_machine("cpu")}
    ...     cell = Cell(place, 0, 0).save_votes({"validation": says, "clean": says}, about)
    ...     card = make_card(cell, {"validation": "trusted: 2 inputs of the operator"})
    >>> card.accuracy, [(k, card.certified_at(k)) for k in range(4)]
    ({'count': 2, 'of': 2}, [(0, 1.0), (1, 1.0), (2, 0.0), (3, 0.0)])
    """
    code, decoder, clean = cell.code, cell.decoder(), cell.clean
    inspection = inspect(code)
    assert clean.labels is not None  # the votes of a cell have labels
    decoded = decoder.decode(observe(decoder, clean))
    total = len(decoded)
    kept, gone = certify_kept(cell, decoder), load_revocation(cell.folder.path)
    # A committee has its first network's key: how many there are makes it another model.
    several = [f"committee {cell.committee}"] if cell.committee > 1 else []
    models = hashlib.sha256("\n".join([*cell.keys, *several]).encode()).hexdigest() if cell.has_keys else None
    known = {"code": code.digest} | ({"models": models} if models else {}) | dict(digests or {})
    return Card(
        title or cell.folder.path.resolve().name,
        {
            "users": str(code.n_users),
            "sub-models": f"{code.n_models} of {code.row_weight} users or more ({show_percent(code.utilization)})"
            + (f", {cell.committee} networks each" if several else ""),
            "classes": str(cell.n_classes),
        }
        | ({"revoked": ", ".join(gone.names(gone.revoked))} if gone.steps else {}),
        share(int((decoded.labels == clean.labels).sum()), total),
        share(int(decoded.alarms(decoder.threshold).sum()), total),
        state_guarantees(inspection, kept),
        tuple(map(CardCurve.of, certify_clean([cell], inspection)[0].values())) if certifiable else (),
        {key: assumed[key] for key in dict.fromkeys((*ASSUMED, *assumed)) if key in assumed},
        known,
        describe_machine("cpu")["versions"],
        tuple(warnings),
    )


def _read_texts(content: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in content.items()}


def _read_share(content: Any) -> dict[str, int]:
    count, total = int(content["count"]), int(content["of"])
    if not 0 <= count <= total:
        raise ValueError(f"{count} of {total} is no share")
    return {"count": count, "of": total}


def _read_guarantee(content: Any) -> StatedGuarantee:
    said = StatedGuarantee(**content)
    if not isinstance(said.n_attackers, int) or not all(isinstance(t, str) for t in (said.threat, said.sentence)):
        raise ValueError("a guarantee has a threat model, a number of attackers and a sentence")
    return said


def _read_curve(content: Any) -> CardCurve:
    shares = content["attackers"]
    return CardCurve(
        str(content["decoder"]), str(content["threat"]), tuple(_read_share(shares[str(k)]) for k in range(len(shares)))
    )


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=True)


def _wrap_facts(facts: Mapping[str, str], width: int) -> list[str]:
    """Lay out names and texts in two columns."""
    room = min(30, max((len(name) for name in facts), default=0))
    lines = []
    for name, text in facts.items():
        lines += textwrap.wrap(
            text, width, initial_indent=f"  {name:<{room}}  ", subsequent_indent=" " * (room + 4), break_long_words=True
        ) or [f"  {name}"]
    return lines
