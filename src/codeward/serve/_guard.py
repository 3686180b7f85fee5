"""From images to verdicts: what the models say, what explains it, and what is guaranteed."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.certify import Certificates, certify
from codeward.codes import Code, Inspection, count_attacker_sets
from codeward.decoding import BayesDecoder, Decoded
from codeward.serve._inference import StackedModels
from codeward.training import vote

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
    """

    votes: tuple[int, ...]
    decoded: Decoded
    flagged: bool
    text: str


class Guard:
    """Judges images. Everything after the votes is a function of the vote vector, so distinct ones are judged once.

    Threat model: *deterministic*. Labels, probabilities and suspects are `BayesDecoder`'s, a probability statement
    under its priors; the guarantee is the code's (`codeward.codes.inspect`), the certificate `codeward.certify`'s.

    Parameters
    ----------
    models : StackedModels
    decoder : BayesDecoder
    inspection : Inspection
        Of the decoder's code.
    threshold : float
        An input is flagged when its attack probability is above this, 0..1.

    Notes
    -----
    One thread at a time, as the models.
    """

    def __init__(self, models: StackedModels, decoder: BayesDecoder, inspection: Inspection, threshold: float) -> None:
        if not 0 <= threshold < 1:
            raise InputError(f"threshold: expected a probability of at least 0 and below 1, got {threshold}")
        if models.n_models != decoder.code.n_models:
            raise InputError(f"guard: {models.n_models} models for a code with {decoder.code.n_models} rows")
        self.models = models
        self.decoder = decoder
        self.inspection = inspection
        self.threshold = threshold
        self.guarantee = state_guarantee(inspection)
        self.certified_attackers = _affordable_attackers(decoder, inspection)
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()

    @property
    def code(self) -> Code:
        """The code of the models."""
        return self.decoder.code

    def judge(self, images: NDArray[np.float32]) -> list[Verdict]:
        """Return the verdicts on images of shape (N, C, H, W), 0..1, in order."""
        return self.read_votes(vote(self.models.scores(images)))

    def read_votes(self, votes: NDArray[np.int64]) -> list[Verdict]:
        """Return the verdicts on votes of shape (N, m), in order."""
        keys = [row.tobytes() for row in votes]
        unknown = {key: place for place, key in enumerate(keys) if key not in self._known}
        fresh: dict[bytes, Verdict] = {}
        if unknown:
            rows = votes[list(unknown.values())]
            decoded = self.decoder.decode(rows)
            certificates = self._certify(rows)
            for place, key in enumerate(unknown):
                fresh[key] = self._describe(rows[place], decoded.take(np.array([place])), certificates, place)
        verdicts = [fresh[key] if key in fresh else self._known[key] for key in keys]
        # Least recently used last out; bounded, because whoever sends inputs chooses the votes.
        for key, verdict in zip(keys, verdicts, strict=True):
            self._known[key] = verdict
            self._known.move_to_end(key)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return verdicts

    def _certify(self, votes: NDArray[np.int64]) -> Certificates | None:
        if self.certified_attackers == 0:
            return None
        return certify(
            votes, self.code, threat="deterministic", decoder=self.decoder, max_attackers=self.certified_attackers
        )

    def _describe(
        self, votes: NDArray[np.int64], decoded: Decoded, certificates: Certificates | None, place: int
    ) -> Verdict:
        flagged = bool(decoded.attack_probability[0] > self.threshold)
        users = np.round(decoded.user_probability[0], 6).tolist()
        suspects = decoded.suspects[0] if flagged else ()
        content: dict[str, Any] = {
            "label": int(decoded.labels[0]),
            "attack_probability": min(1.0, float(decoded.attack_probability[0])),
            "flagged": flagged,
            "target": int(decoded.targets[0]) if flagged and decoded.targets[0] >= 0 else None,
            "suspects": [
                {"user": self.code.user_name(user), "column": user, "probability": users[user]} for user in suspects
            ],
            "user_probability": users,
            "votes": votes.tolist(),
            "hit_models": np.flatnonzero(self.code.pattern(suspects)).tolist(),
            "guarantee": self.guarantee,
            "certificate": self._state_certificate(certificates, place, flagged),
        }
        return Verdict(tuple(content["votes"]), decoded, flagged, json.dumps(content, separators=(",", ":")))

    def _state_certificate(self, certificates: Certificates | None, place: int, flagged: bool) -> dict[str, Any] | None:
        if certificates is None:
            return None
        radius, exact = int(certificates.radius[place]), bool(certificates.exact[place])
        witness = certificates.witness(place)
        if flagged:
            text = "A certificate speaks of untampered votes. This input is flagged: rely on the code's guarantee."
        elif radius:
            fewer = " or fewer" if radius > 1 else ""
            more = "" if exact else " Larger groups were not searched."
            text = (
                f"If nobody tampered with these votes, no attack by {_count(radius, 'user')}{fewer} would change this "
                f"label.{more}"
            )
        elif witness is not None:
            names = ", ".join(map(self.code.user_name, witness.attackers))
            text = (
                f"Nothing is certified: user {names} alone would change this label by making every model that learned "
                f"from {names} say {witness.target}."
            )
        else:
            text = f"Nothing is certified: {certificates.reason(place)}."
        return {
            "radius": radius,
            "exact": exact,
            "applies": not flagged,
            "threat": certificates.threat,
            "decoder": certificates.decoder,
            "text": text,
        }


def state_guarantee(inspection: Inspection) -> dict[str, Any]:
    """Say what the code guarantees whatever the input: threat model, property, largest k, and the same in words."""
    if inspection.correct:
        k = inspection.correct
        margin = inspection.margin[k - 1]
        spare = 0 if margin is None else max(0, (margin - 1) // 2)
        wrong = f"at most {_count(spare, 'other model')} err" if spare else "the other models vote rightly"
        text = f"If {_attackers(k)} says the target, and {wrong}, then the votes determine the true label."
        return {"threat": "deterministic", "property": "correct", "k": k, "text": text}
    if inspection.detect:
        k = inspection.detect
        text = (
            f"If {_attackers(k)} says the target, some model has learned from no attacker; if it votes rightly, a "
            "triggered input shows as disagreement. The true label need not be recoverable."
        )
        return {"threat": "deterministic", "property": "detect", "k": k, "text": text}
    text = "None: a single user may reach every model of this code."
    return {"threat": "deterministic", "property": "none", "k": 0, "text": text}


def choose_prior(assumed: Sequence[float], inspection: Inspection) -> tuple[float, ...]:
    """Return the prior of the number of attackers for serving: the run's, up to the k that the code detects.

    More attackers than that can reach every model. Unanimous votes, which nearly all clean inputs get, are then best
    explained by an attack, and no decoder could tell: such attacks are outside the guarantee, and expecting them only
    raises false alarms (docs/serving.md has figures).
    """
    k = max(1, min(inspection.detect, len(assumed) - 1))
    kept = assumed[: k + 1]
    return tuple(float(share / sum(kept)) for share in kept)


def _affordable_attackers(decoder: BayesDecoder, inspection: Inspection) -> int:
    """Return the largest k worth certifying: up to the k the decoder expects, within `CERTIFICATE_WORK`; 0 for none."""
    most = min(len(decoder.attackers_prior) - 1, max(1, inspection.detect))
    fits = [
        k
        for k in range(1, most + 1)
        if count_attacker_sets(decoder.code.n_users, k) * decoder.n_classes <= CERTIFICATE_WORK
    ]
    return max(fits, default=0) if decoder.is_exact else 0


def _attackers(k: int) -> str:
    who = "at most one user attacks" if k == 1 else f"at most {k} users attack together"
    return f"{who}, every model that learned from {'that user' if k == 1 else 'one of them'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
