"""From inputs to verdicts: what the models say, what explains it, and what is guaranteed."""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.certificates import Agreement, Certificates, Threat, certify, certify_agreement
from codeward.codes import Code, Inspection, count_attacker_sets
from codeward.decoding import BayesDecoder, Decoded, Decoder, NearestDecoder
from codeward.runs import StatedGuarantee, count_words, round_scores, state_guarantees
from codeward.training import BatchedEnsemble, SubModels, vote

Votes = tuple[int, ...]
Known = TypeVar("Known")

#: Vote vectors whose verdicts are remembered.
REMEMBERED = 4096
#: Decodings (attacker sets times targets) a certificate of one vote vector may cost.
CERTIFICATE_WORK = 5_000


@dataclass(frozen=True)
class Verdict:
    """What is known about one vote vector.

    Attributes
    ----------
    votes : tuple of int, length m
    decoded : Decoded
        Of this one vote vector.
    flagged : bool
        The attack probability is above the threshold.
    text : str
        The verdict as a JSON object, written once.
    heard : tuple of int, length m
        The votes as the decoder reads them, which certificates are about: of class scores the largest each.
    """

    votes: tuple[int, ...]
    decoded: Decoded
    flagged: bool
    text: str
    heard: tuple[int, ...]


class Guard:
    """Classifies inputs: the models vote, the decoder of their cell says what it makes of it.

    Labels, probabilities and suspects are the decoder's, a probability statement under its assumptions and the
    *deterministic* threat model; the guarantee is the code's (`codeward.codes.inspect`) under ``threat``, the
    certificate `codeward.certify`'s. Where the decoder reads votes, distinct vote vectors are decoded once.

    Parameters
    ----------
    models : SubModels
    code : Code
    decoder : Decoder
        Of that code.
    inspection : Inspection
        Of the code.
    threshold : float, optional
        An input is flagged when its attack probability is above this, 0..1; by default the decoder's own.
    threat : {"deterministic", "arbitrary"}
        What users could do to a model they reach: *arbitrary* where they sent updates, and then there are no
        certificates, since the decoder has none under it.
    class_names : sequence of str, optional
        What classes are called in answers; numbers by default.
    certifiable : bool
        False where users had a hand in what the decoder was fitted on: nothing is then certified of it.
    """

    def __init__(
        self,
        models: SubModels,
        code: Code,
        decoder: Decoder,
        inspection: Inspection,
        threshold: float | None = None,
        threat: Threat = "deterministic",
        class_names: Sequence[str] | None = None,
        certifiable: bool = True,
    ) -> None:
        self.threshold = decoder.threshold if threshold is None else threshold
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold: expected a probability of at least 0 and below 1, got {self.threshold}")
        if models.n_models != code.n_models:
            raise InputError(f"guard: {models.n_models} models for a code with {code.n_models} rows")
        self.models, self.code, self.decoder, self.inspection = models, code, decoder, inspection
        self.class_names = tuple(class_names) if class_names else None
        self.certified_attackers = 0
        # A fitted decoder is proved as far as the votes alone determine its answer (Proposition 43 of docs/theory.md).
        nearest: NearestDecoder | None = getattr(decoder, "nearest_", None)
        self._proved: Decoder = decoder if nearest is None else nearest
        if certifiable and threat == "deterministic":
            if isinstance(decoder, BayesDecoder):
                most = min(len(decoder.attackers_prior) - 1, max(1, inspection.detect)) if decoder.is_exact else 0
                self.certified_attackers = _affordable(decoder.code, most, decoder.n_classes)
            elif nearest is not None:
                self.certified_attackers = _affordable(code, nearest.n_attackers, models.n_classes)
        kept = None
        if hasattr(decoder, "nearest_"):
            kept = Agreement.of_votes_alone(nearest)
        elif self.certified_attackers and inspection.correct and models.n_classes > 1:
            most = min(self.certified_attackers, inspection.correct)
            kept = certify_agreement(code, decoder, models.n_classes, max_attackers=most)
        self.guarantee = state_guarantee(inspection, threat, kept)
        self._verdicts: _Memory[Verdict] = _Memory(REMEMBERED)
        self._certificates: _Memory[str] = _Memory(REMEMBERED)

    def name_class(self, label: int) -> int | str:
        """Return what answers call a class: its name, or its number where it has none."""
        return label if self.class_names is None or label < 0 else self.class_names[label]

    def predict(self, inputs: Any) -> list[Verdict]:
        """Return the verdicts on inputs as the models take them, in order. One thread at a time."""
        if self.decoder.needs == "votes":
            return self.decode_votes(self.models.votes(inputs))
        scores = self.models.scores(inputs)
        if scores is None:
            raise InputError("the decoder reads class scores, but these models give labels only")
        kept = round_scores(scores)  # as in the vote files from which the decoder was fitted
        decoded = self.decoder.decode(kept)
        # Networks vote by their scores; other models are asked, as they were for the vote files.
        said = vote(scores) if isinstance(self.models, BatchedEnsemble) else self.models.votes(inputs)
        pairs = zip(said.tolist(), kept.argmax(axis=2).tolist(), strict=True)
        return [
            self._describe(tuple(row), decoded.take(np.array([place])), tuple(heard))
            for place, (row, heard) in enumerate(pairs)
        ]

    def decode_votes(self, votes: NDArray[np.int64]) -> list[Verdict]:
        """Return the verdicts on votes of shape (N, m), in order. One thread at a time."""
        return self._verdicts.look_up([tuple(row) for row in votes.tolist()], self._decode)

    def certify(self, votes: Sequence[Votes]) -> list[str]:
        """Return the certificates of vote vectors as JSON texts, in order. One thread at a time, its own.

        Apart from the verdicts, because a certificate decodes every attack on the votes: it takes a hundred times as
        long, and must not hold up those who did not want it.
        """
        return self._certificates.look_up(list(votes), self._certify)

    def _decode(self, votes: list[Votes]) -> list[Verdict]:
        decoded = self.decoder.decode(np.array(votes, dtype=np.int64))
        return [self._describe(row, decoded.take(np.array([place])), row) for place, row in enumerate(votes)]

    def _describe(self, votes: Votes, decoded: Decoded, heard: Votes) -> Verdict:
        flagged = bool(decoded.alarms(self.threshold)[0])
        users = np.round(decoded.user_probability[0], 6).tolist()
        suspects, sets = (decoded.suspects[0], decoded.suspect_sets[0]) if flagged else ((), ())
        content: dict[str, Any] = {
            "label": self.name_class(int(decoded.labels[0])),
            "attack_probability": min(1.0, float(decoded.attack_probability[0])),
            "flagged": flagged,
            "target": self.name_class(int(decoded.targets[0])) if flagged and decoded.targets[0] >= 0 else None,
            "suspects": [
                {"user": self.code.user_name(user), "column": user, "probability": users[user]} for user in suspects
            ],
            "suspect_sets": [[self.code.user_name(user) for user in found] for found in sets],
            "more_sets": int(decoded.more_sets[0]) if flagged else 0,
            "user_probability": users,
            "votes": [self.name_class(vote) for vote in votes],
            "hit_models": np.flatnonzero(self.code.pattern(sets[0] if sets else ())).tolist(),
            "guarantee": self.guarantee,
        }
        return Verdict(votes, decoded, flagged, json.dumps(content, separators=(",", ":")), heard)

    def _certify(self, votes: list[Votes]) -> list[str]:
        if self.certified_attackers == 0:
            return ["null"] * len(votes)
        certificates = certify(
            np.array(votes, dtype=np.int64),
            self.code,
            threat="deterministic",
            decoder=self._proved,
            max_attackers=self.certified_attackers,
        )
        return [
            json.dumps(
                {
                    "radius": int(certificates.radius[place]),
                    "exact": bool(certificates.exact[place]) and self._proved is self.decoder,
                    "threat": certificates.threat,
                    "decoder": certificates.decoder,
                    "text": self._explain(certificates, place),
                },
                separators=(",", ":"),
            )
            for place in range(len(votes))
        ]

    def _explain(self, certificates: Certificates, place: int) -> str:
        radius, witness = int(certificates.radius[place]), certificates.witness(place)
        if radius:
            fewer = " or fewer" if radius > 1 else ""
            more = "" if certificates.exact[place] else " Larger groups were not searched."
            return (
                f"If nobody tampered with these votes, no attack by {count_words(radius, 'user')}{fewer} would change "
                f"this label.{more}"
            )
        if self._proved is not self.decoder:
            return "Nothing is certified: these votes alone do not determine the label under every attack by one user."
        if witness is None:
            return f"Nothing is certified: {certificates.reason(place)}."
        names = ", ".join(map(self.code.user_name, witness.attackers))
        return (
            f"Nothing is certified: user {names} alone would change this label by making every model that learned "
            f"from {names} say {self.name_class(witness.target)}."
        )


class _Memory(Generic[Known]):
    """What was found out about vote vectors; bounded, as whoever sends inputs chooses the votes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._known: OrderedDict[Votes, Known] = OrderedDict()

    def look_up(self, votes: list[Votes], find: Callable[[list[Votes]], list[Known]]) -> list[Known]:
        """Return what is known about each vote vector, finding out the rest, each distinct one once."""
        unknown = [row for row in dict.fromkeys(votes) if row not in self._known]
        found = dict(zip(unknown, find(unknown), strict=True)) if unknown else {}
        answers = [found[row] if row in found else self._known[row] for row in votes]
        for row, answer in zip(votes, answers, strict=True):
            self._known[row] = answer
            self._known.move_to_end(row)
        while len(self._known) > self.size:
            self._known.popitem(last=False)
        return answers


def state_guarantee(
    inspection: Inspection, threat: Threat = "deterministic", kept: Agreement | None = None
) -> dict[str, Any]:
    """Say what the code guarantees whatever the input: threat model, property, largest k, and the same in words.

    A code promises that the votes determine the label; ``kept`` is how far the served decoder finds it there.
    """
    said: dict[str, StatedGuarantee] = {}
    for one in state_guarantees(inspection):
        if one.threat == threat:
            said.setdefault(one.property, one)  # the first is for the most attackers
    best = next((said[name] for name in ("correct", "detect") if name in said and said[name].n_attackers), None)
    if best is None:
        text = said["correct"].sentence.replace("Nothing", "None", 1)
        return {"threat": threat, "property": "none", "k": 0, "text": text}
    if threat == "arbitrary":
        text = (
            "Users sent what the models are made of, so an attacker may plant something else in each. "
            f"{best.sentence} The consensus decoder finds it. The decoder served here assumes one common target, so "
            "its labels, probabilities and suspects are likely, not guaranteed."
        )
    else:
        text = f"If every sub-model that learned from an attacker says one and the same target: {best.sentence}"
        text += " The true label need not be recoverable." if best.property == "detect" else ""
        text += "" if kept is None else f" {_state_kept(kept, best.n_attackers)}"
    return {"threat": threat, "property": best.property, "k": best.n_attackers, "text": text}


def _state_kept(kept: Agreement, k: int) -> str:
    if not kept.searched:
        return "That the decoder served here finds it is not proved."
    if not kept.n_attackers:
        return "The decoder served here does not always find it, even with one attacker and no other model wrong."
    who = "one user" if kept.n_attackers == 1 else f"up to {kept.n_attackers} users"
    errors = f"at most {count_words(kept.n_errors, 'other model')} err{'s' * (kept.n_errors == 1)}"
    found = f"The decoder served here finds it for every attack by {who} as long as "
    found += errors if kept.n_errors else "no other model errs"
    if kept.n_attackers == kept.searched < k:
        return f"{found}; of more nothing is proved."
    return f"{found}." if kept.n_attackers >= k else f"{found}, and not for all attacks by more."


def _affordable(code: Code, most: int, n_classes: int) -> int:
    fits = [k for k in range(1, most + 1) if count_attacker_sets(code.n_users, k) * n_classes <= CERTIFICATE_WORK]
    return max(fits, default=0)
