"""What is certified: the outputs of one decoder on given votes or scores, and what tells that one is broken."""

from dataclasses import dataclass
from typing import Any, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.certificates._breakers import (
    AppealBreaker,
    Breaker,
    NearestBreaker,
    OverwriteBreaker,
    PluralityBreaker,
    Predict,
    list_rivals,
)
from codeward.certificates._certificates import Threat
from codeward.certificates._runoff_attacks import RunOffBreaker
from codeward.codes import Code
from codeward.decoding import (
    AppealDecoder,
    Assumptions,
    BayesDecoder,
    ConsensusDecoder,
    NearestDecoder,
    PluralityDecoder,
    RunOffCounts,
    RunOffDecoder,
    TwoGroupDecoder,
    check_votes,
    distinct_rows,
    make_decoder,
)

#: Decoders of the package by the names they are made with; what is proved of plurality and consensus is of these
#: classes.
NAMES: dict[type, str] = {
    PluralityDecoder: "plurality",
    ConsensusDecoder: "consensus",
    BayesDecoder: "bayes",
    TwoGroupDecoder: "groups",
    RunOffDecoder: "runoff",
    AppealDecoder: "appeal",
}


class Predictor(Protocol):
    """The part of a decoder that a certificate needs: one label an input, -1 for no verdict."""

    def predict(self, votes: ArrayLike, /) -> NDArray[np.int64]:
        """Return the verdicts on votes of shape (N, m), shape (N,)."""


@dataclass(frozen=True, eq=False)
class Subject:
    """Distinct vote vectors, or of a run-off all inputs, under one decoder.

    Attributes
    ----------
    inverse : ndarray of int64, shape (N,)
        Row of ``labels`` of each input.
    labels : ndarray of int64, shape (D,)
        The decoder's output on each.
    breaker : Breaker
        Tells which patterns change which outputs.
    name : str
        Name of the decoder.
    n_classes : int
        c, or where nobody says it one more than the largest vote, at least 2.
    """

    inverse: NDArray[np.int64]
    labels: NDArray[np.int64]
    breaker: Breaker
    name: str
    n_classes: int


def choose_decoder(
    decoder: str | Predictor,
    code: Code,
    confusion: ArrayLike | None,
    n_attackers: int | None,
    n_errors: int,
    n_classes: int | None,
) -> Predictor:
    """Return the decoder a name stands for; a decoder object is returned as it is."""
    if not isinstance(decoder, str):
        return decoder
    assumptions = Assumptions(n_attackers=n_attackers, n_errors=n_errors)
    return make_decoder(decoder, code, confusion, assumptions, n_classes if confusion is None else None)


def make_subject(
    votes: ArrayLike | RunOffCounts, code: Code, threat: Threat, decoder: Predictor, n_classes: int | None = None
) -> Subject:
    """Check the request and find what tells a broken output.

    Raises
    ------
    InputError
        For votes that do not fit the code, for a threat model under which the decoder has no certificate, and for a
        decoder other than plurality and consensus (whose radii do not depend on it, see `list_rivals`) where nobody
        says how many classes there are.
    """
    if threat not in get_args(Threat):
        raise InputError(f"unknown threat model {threat!r}; choose deterministic or arbitrary")
    # The class itself: a subclass may decide differently, and what is proved of plurality and consensus is not of it.
    name = NAMES.get(type(decoder), type(decoder).__name__)
    if isinstance(decoder, RunOffDecoder) and name == "runoff":
        return _make_election(votes, code, threat, decoder, n_classes)
    if getattr(decoder, "needs", "votes") != "votes":
        raise InputError(f"no certificate for the {name} decoder: it reads scores, and a certificate is about votes")
    n_targets = _count_classes(decoder, name, n_classes)
    checked = check_votes(np.asarray(votes), code.n_models, n_targets)
    if checked.shape[0] == 0:
        raise InputError("votes: there are no inputs to certify")
    n_labels = max(2, int(checked.max()) + 1) if n_targets is None else n_targets
    distinct, inverse = distinct_rows(checked, int(checked.max()) + 1)
    predict = _predictor(decoder, name, n_targets)
    labels = predict(distinct)
    breaker: Breaker
    if name == "plurality":
        breaker = PluralityBreaker(distinct, labels)
    elif isinstance(decoder, AppealDecoder) and name == "appeal" and threat == "arbitrary":
        breaker = AppealBreaker(distinct, decoder)
    elif name == "consensus":
        breaker = OverwriteBreaker(distinct, labels, list_rivals(distinct, labels), predict)
    elif threat == "arbitrary":
        raise InputError(
            f"no certificate for the {name} decoder under arbitrary: its guarantee assumes that all hit models say "
            "the same target (deterministic); certify plurality or consensus, or choose deterministic"
        )
    elif n_targets is None:
        raise InputError(
            f"the {name} decoder does not say how many classes there are, and a class that got no vote is a target "
            "too: give n_classes"
        )
    elif type(decoder) is NearestDecoder:
        breaker = NearestBreaker(distinct, labels, decoder)
    else:
        # Every class is a target, the present output included: a decoder may well be misled by more agreement.
        candidates = np.tile(np.arange(n_targets), (distinct.shape[0], 1))
        breaker = OverwriteBreaker(distinct, labels, candidates, predict)
    return Subject(inverse, labels, breaker, name, n_labels)


def _make_election(observed: Any, code: Code, threat: Threat, decoder: RunOffDecoder, n_classes: int | None) -> Subject:
    """Check scores or counts of a run-off."""
    if threat != "arbitrary":
        raise InputError(
            "the run-off is certified under arbitrary, and that holds under deterministic too: choose arbitrary"
        )
    _count_classes(decoder, "runoff", n_classes)
    if np.ndim(observed) == 2:
        raise InputError("the run-off reads class scores (N x m x c) or RunOffCounts, not votes")
    breaker = RunOffBreaker(observed, code, decoder)
    if n_classes not in (None, breaker.n_classes):
        raise InputError(f"n_classes is {n_classes}, but the scores are of {breaker.n_classes}")
    if not breaker.labels.size:
        raise InputError("scores: there are no inputs to certify")
    return Subject(np.arange(breaker.labels.size), breaker.labels, breaker, "runoff", breaker.n_classes)


def _predictor(decoder: Predictor, name: str, n_classes: int | None) -> Predict:
    """Return ``decoder.predict`` with its answers checked: one class an input, or -1."""

    def predict(votes: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = np.asarray(decoder.predict(votes))
        if labels.shape != votes.shape[:1] or labels.dtype.kind not in "iu":
            raise InputError(
                f"the {name} decoder must answer one whole number an input, shape {votes.shape[:1]}; "
                f"got {labels.dtype} of shape {labels.shape}"
            )
        found = labels.astype(np.int64)
        if (found < -1).any() or (n_classes is not None and (found >= n_classes).any()):
            strange = found[(found < -1) | (found >= (n_classes or 0))][0]
            raise InputError(f"the {name} decoder answers {strange}; expected a class in 0..c-1, or -1 for no verdict")
        return found

    return predict


def _count_classes(decoder: Predictor, name: str, n_classes: int | None) -> int | None:
    """Return c as the decoder or the caller says it, None where neither does."""
    own = getattr(decoder, "n_classes", None)
    if own is not None and n_classes is not None and own != n_classes:
        raise InputError(f"n_classes is {n_classes}, but the {name} decoder has {own} classes")
    found = n_classes if own is None else own
    if found is None:
        return None
    if found != int(found) or found < 2:
        raise InputError(f"n_classes must be a whole number of at least 2, got {found}")
    return int(found)
