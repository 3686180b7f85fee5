"""What is certified: votes checked and made distinct, the decoder found, the threat model checked against it."""

from dataclasses import dataclass
from typing import Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.certificates._breakers import Breaker, OverwriteBreaker, PluralityBreaker, Predict, list_rivals
from codeward.certificates._certificates import Threat
from codeward.codes import Code
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder
from codeward.decoding._decoded import distinct_rows
from codeward.decoding._models import check_votes


class Predictor(Protocol):
    """The part of a decoder that a certificate needs: one label an input, -1 for no verdict."""

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Return the verdicts on votes of shape (N, m), shape (N,)."""


@dataclass(frozen=True, eq=False)
class Subject:
    """Distinct vote vectors under one decoder.

    Attributes
    ----------
    votes : ndarray of int64, shape (D, m)
        Distinct rows.
    inverse : ndarray of int64, shape (N,)
        Row of ``votes`` of each input.
    labels : ndarray of int64, shape (D,)
        The decoder's output on each.
    breaker : Breaker
        Tells which patterns change which outputs.
    name : str
        Name of the decoder.
    """

    votes: NDArray[np.int64]
    inverse: NDArray[np.int64]
    labels: NDArray[np.int64]
    breaker: Breaker
    name: str


def make_decoder(
    decoder: str | Predictor,
    code: Code,
    confusion: ArrayLike | None = None,
    n_attackers: int | None = None,
    n_errors: int = 0,
) -> Predictor:
    """Return the decoder a name stands for; a decoder object is returned as it is."""
    if not isinstance(decoder, str):
        return decoder
    if decoder == "plurality":
        return PluralityDecoder()
    if decoder == "bayes":
        if confusion is None:
            raise InputError("the bayes decoder needs confusion matrices (m x c x c): give confusion, or a decoder")
        return BayesDecoder(code, np.asarray(confusion))
    if decoder == "consensus":
        if n_attackers is None:
            raise InputError("the consensus decoder needs the number of attackers it is to tolerate (n_attackers)")
        return ConsensusDecoder(code, n_attackers, n_errors)
    raise InputError(f"unknown decoder {decoder!r}; choose plurality, bayes or consensus, or give a decoder")


def make_subject(
    votes: ArrayLike, code: Code, threat: Threat, decoder: Predictor, n_classes: int | None = None
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
    name = {PluralityDecoder: "plurality", ConsensusDecoder: "consensus", BayesDecoder: "bayes"}.get(
        type(decoder), type(decoder).__name__
    )
    if getattr(decoder, "needs", "votes") != "votes":
        raise InputError(f"no certificate for the {name} decoder: it reads scores, and a certificate is about votes")
    n_targets = _count_classes(decoder, name, n_classes)
    checked = check_votes(votes, code.n_models, n_targets)
    if checked.shape[0] == 0:
        raise InputError("votes: there are no inputs to certify")
    distinct, inverse = distinct_rows(checked, int(checked.max()) + 1)
    predict = _predictor(decoder, name)
    labels = predict(distinct)
    breaker: Breaker
    if name == "plurality":
        breaker = PluralityBreaker(distinct, labels)
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
    else:
        # Every class is a target, the present output included: a decoder may well be misled by more agreement.
        candidates = np.tile(np.arange(n_targets), (distinct.shape[0], 1))
        breaker = OverwriteBreaker(distinct, labels, candidates, predict)
    return Subject(distinct, inverse, labels, breaker, name)


def _predictor(decoder: Predictor, name: str) -> Predict:
    """Return ``decoder.predict`` with its answers checked: one whole number an input."""

    def predict(votes: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = np.asarray(decoder.predict(votes))
        if labels.shape != votes.shape[:1] or labels.dtype.kind not in "iu":
            raise InputError(
                f"the {name} decoder must answer one whole number an input, shape {votes.shape[:1]}; "
                f"got {labels.dtype} of shape {labels.shape}"
            )
        return labels.astype(np.int64)

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
