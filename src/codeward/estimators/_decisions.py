"""From votes to a class: the decoder that a fitted classifier implies, and what it says where there is no verdict."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.certificates import Threat
from codeward.codes import Code, count_attacker_sets, enumerate_patterns, find_margins
from codeward.decoding import Assumptions, ConsensusDecoder, Decoded, Decoder, PluralityDecoder, VoteSet, make_decoder

#: Builds a decoder from the code and the confusion matrices, such as ``partial(BayesDecoder, success_rate=0.9)``.
DecoderFactory = Callable[[Code, NDArray[np.float64]], Decoder]

#: Decoders by name; others are handed in as functions.
NAMES = ("calibrated", "bayes", "plurality", "consensus", "groups")

#: Attacker sets up to which the errors a code tolerates are worked out; past it none are allowed for.
_MAX_SETS = 5_000


def build_decoder(
    decoder: str | DecoderFactory,
    code: Code,
    confusion: NDArray[np.float64],
    n_attackers: int,
    validation: VoteSet | None = None,
    false_alarm_rate: float = 0.05,
) -> Decoder:
    """Return the decoder that a name or a factory stands for.

    *calibrated* is what ``codeward train`` serves with: fitted to the votes (and class scores) on validation samples,
    with a threshold for the share of false alarms; the others need confusion matrices alone.
    *bayes* and *groups* take 0..n_attackers attackers as equally likely; *consensus* tolerates as many wrong clean
    votes as the code allows (`tolerated_errors`).
    """
    if callable(decoder):
        return decoder(code, confusion)
    if decoder not in NAMES:
        raise InputError(f"decoder: expected {', '.join(NAMES)} or a function of (code, confusion), got {decoder!r}")
    errors = tolerated_errors(code, n_attackers) if decoder == "consensus" else 0
    assumptions = Assumptions.uniform(min(n_attackers, code.n_users), n_attackers=n_attackers, n_errors=errors)
    if decoder == "calibrated":
        assumptions = replace(assumptions, false_alarm_rate=false_alarm_rate)
        return make_decoder(decoder, code, validation, assumptions, confusion.shape[1])
    return make_decoder(decoder, code, confusion, assumptions)


def tolerated_errors(code: Code, n_attackers: int) -> int:
    """Return floor((d - 1) / 2) for the code's arbitrary margin d at k attackers; 0 where d is too large to find.

    Every 2k-sum then has 2e + 1 zeros (Proposition 14 of docs/theory.md).
    """
    if count_attacker_sets(code.n_users, n_attackers) > _MAX_SETS:
        return 0
    arbitrary = find_margins(enumerate_patterns(code, n_attackers)).arbitrary
    return max(0, (arbitrary[min(n_attackers, len(arbitrary)) - 1] - 1) // 2)


def default_threat(decoder: Decoder) -> Threat:
    """Return the strongest threat model under which a decoder has certificates."""
    return "arbitrary" if type(decoder) in (PluralityDecoder, ConsensusDecoder) else "deterministic"


def share_labels(decoded: Decoded, votes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return label probabilities (N, c) that also rank the labels of inputs without verdict.

    There, the labels still explained share by their votes: a classifier has to say something, and the most votes among
    the labels that an attack leaves possible is the least arbitrary. Its certified radius is 0.
    """
    shares = decoded.label_probability.copy()
    for row in np.flatnonzero(decoded.labels < 0):
        counted = shares[row] * np.bincount(votes[row], minlength=shares.shape[1])
        shares[row] = counted / counted.sum() if counted.sum() > 0 else shares[row]
    return shares
