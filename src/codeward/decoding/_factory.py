"""The only place where a decoder is made from its name."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code, count_attacker_sets
from codeward.decoding._assumptions import (
    DEFAULTS,
    Assumptions,
    VoteModel,
    VoteSet,
    count_confusion,
    estimate_confusion,
    pool_counts,
    smooth_confusion,
)
from codeward.decoding._bayes import EXACT_SETS, BayesDecoder
from codeward.decoding._decoded import Decoder
from codeward.decoding._runoff import RunOffDecoder
from codeward.decoding._two_groups import TwoGroupDecoder
from codeward.decoding._vote_counting import ConsensusDecoder, PluralityDecoder

#: The names that `make_decoder` knows.
DECODERS = ("plurality", "consensus", "bayes", "groups", "discounted", "soft", "runoff", "calibrated")

#: Clean inputs below which the fitted decoders are not: from 112 of near-perfect models they took an attack that every
#: reached model obeyed for none (attack probability 0.34), where the Bayes decoder gave 0.9999.
FEW_INPUTS = 200

#: Folds in which the Bayes decoder scores its clean inputs.
N_FOLDS = 10


def make_decoder(
    name: str,
    code: Code,
    noise: ArrayLike | VoteModel | VoteSet | None = None,
    assumptions: Assumptions = DEFAULTS,
    n_classes: int | None = None,
) -> Decoder:
    """Make a decoder, ready to decode.

    Parameters
    ----------
    name : {"plurality", "consensus", "bayes", "groups", "discounted", "soft", "runoff", "calibrated"}
        `PluralityDecoder`, `ConsensusDecoder`, `BayesDecoder`, `TwoGroupDecoder`, and the two that are fitted:
        `codeward.decoding.soft.DiscountedDecoder` on votes, `codeward.decoding.soft.SoftDecoder` on class scores;
        `RunOffDecoder` on class scores. "calibrated" is the best that the clean inputs allow, its alarm set on
        them for ``assumptions.false_alarm_rate`` (``decoder.threshold``): soft where they have class scores, else
        discounted; with too many attacker sets for these, or fewer than `FEW_INPUTS` clean inputs, `BayesDecoder`
        with a `conformal_threshold` over scores that are cross-fitted in `N_FOLDS`; where the inputs are too few to
        promise the rate (`promise_rate`), an alarm also asks for votes 1 / rate times likelier under an attack.
    code : Code
    noise : array_like of shape (m, c, c), VoteModel, or VoteSet, optional
        How models err that nobody attacks: confusion matrices, another vote model, or labelled clean inputs to estimate
        or fit it on. Plurality, consensus and run-off need none; calibrated, discounted and soft need
        inputs (soft: with scores).
    assumptions : Assumptions
    n_classes : int, optional
        Number of classes c where ``noise`` does not say it.

    Examples
    --------
    >>> from codeward.codes import Code, count_attacker_sets
    >>> code = Code([[1, 0], [0, 1], [1, 1]])
    >>> make_decoder("plurality", code, n_classes=2).predict([[0, 1, 1]])
    array([1])
    >>> confusion = [[[0.9, 0.1], [0.1, 0.9]]] * 3
    >>> decoder = make_decoder("bayes", code, confusion, Assumptions.uniform(1))
    >>> decoder.needs, decoder.n_classes
    ('votes', 2)
    """
    if name not in DECODERS:
        raise InputError(f"unknown decoder {name!r}; choose {', '.join(DECODERS[:-1])} or {DECODERS[-1]}")
    classes = _count_classes(noise, n_classes)
    if name == "plurality":
        return PluralityDecoder(code, classes)
    if name == "runoff":
        return RunOffDecoder(code, classes)
    if name == "consensus":
        if assumptions.n_attackers is None:
            raise InputError("the consensus decoder needs the number of attackers it is to tolerate (n_attackers)")
        return ConsensusDecoder(code, assumptions.n_attackers, assumptions.n_errors, classes)
    if name == "calibrated":
        return _calibrate(code, noise, assumptions, classes)
    if name in ("discounted", "soft"):
        return _fit(name, code, noise, assumptions, classes)
    if isinstance(noise, VoteSet):
        noise = estimate_confusion(noise.votes, _labels_of(noise, name), classes or 1)
    if noise is None:
        raise InputError(f"the {name} decoder needs confusion matrices (m x c x c): give confusion, or a decoder")
    known = (code, noise, assumptions.attack_rate, assumptions.success_rate, assumptions.attackers_prior)
    if name == "bayes":
        return BayesDecoder(*known)
    return TwoGroupDecoder(*known, assumptions.second_rate, assumptions.second_success_rate)


def choose_fitted(name: str, code: Code, inputs: VoteSet, assumptions: Assumptions) -> str | None:
    """Say which fitted decoder `make_decoder` makes of a name and clean inputs, soft or discounted; None where none.

    Examples
    --------
    >>> inputs = VoteSet(np.zeros((900, 3), int), np.zeros(900, int))
    >>> code = Code([[1, 0], [0, 1], [1, 1]])
    >>> choose_fitted("calibrated", code, inputs, DEFAULTS), choose_fitted("bayes", code, inputs, DEFAULTS)
    ('discounted', None)
    """
    if name != "calibrated":
        return name if name in ("discounted", "soft") else None
    few = len(inputs.votes) < FEW_INPUTS
    if few or count_attacker_sets(code.n_users, assumptions.max_attackers) > EXACT_SETS:
        return None
    return "discounted" if inputs.scores is None else "soft"


def _calibrate(code: Code, noise: Any, assumptions: Assumptions, n_classes: int | None) -> Decoder:
    if not isinstance(noise, VoteSet):
        return _fit("discounted", code, noise, assumptions, n_classes)
    if fitted := choose_fitted("calibrated", code, noise, assumptions):
        return _fit(fitted, code, noise, assumptions, n_classes)
    labels, rate = _labels_of(noise, "calibrated"), assumptions.false_alarm_rate
    rates = (assumptions.attack_rate, assumptions.success_rate, assumptions.attackers_prior)

    def fit(rows: NDArray[np.bool_]) -> BayesDecoder:
        counts = pool_counts(count_confusion(noise.votes[rows], labels[rows], n_classes or 1))
        return BayesDecoder(code, smooth_confusion(counts), *rates)

    # What was fitted on an input flatters it: each is scored by the confusion of the other folds.
    folds, scores = np.arange(len(labels)) % N_FOLDS, np.zeros(len(labels))
    for fold in range(min(N_FOLDS, len(labels)) if len(labels) > 1 else 0):
        seen = fit(folds != fold).decode(noise.votes[folds == fold])
        scores[folds == fold] = np.where(seen.agreed, 0.0, seen.attack_probability)
    threshold = conformal_threshold(scores if len(labels) > 1 else [], rate)
    if promise_rate(len(labels), rate) > rate:
        # Votes that are 1 / rate times likelier under an attack: by Markov, clean models that err as the confusion
        # matrices say show such with at most that rate.
        attack = assumptions.attack_rate
        threshold = max(threshold, attack / (attack + (1 - attack) * rate))
    return BayesDecoder(code, fit(folds >= 0).confusion, *rates, threshold=threshold)


def conformal_threshold(scores: ArrayLike, false_alarm_rate: float) -> float:
    """Threshold that a fresh score passes with at most this probability, if it is drawn as the given ones, shape (N,).

    The ceil((N + 1) (1 - rate))-th smallest (split conformal prediction): whatever the distribution, a fresh
    exchangeable score has each of the N + 1 ranks with equal probability, ties aside, which only make it safer. Where N
    is too small for that rank, the largest, which is passed with probability 1 / (N + 1) at most; without any scores 1.

    Examples
    --------
    >>> conformal_threshold([0.1, 0.4, 0.2, 0.3], 0.4), conformal_threshold([0.1, 0.4, 0.2, 0.3], 0.05)
    (0.3, 0.4)
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    if not ordered.size:
        return 1.0
    above = math.floor((ordered.size + 1) * false_alarm_rate + 1e-9)
    return float(ordered[min(ordered.size - above, ordered.size - 1)]) if above <= ordered.size else -math.inf


def promise_rate(n_inputs: int, false_alarm_rate: float) -> float:
    """Rate of false alarms that the calibrated decoder can promise, on average, from N clean validation inputs.

    The rate that is asked for, or 1 / (N + 1) where N is too small for it.

    Examples
    --------
    >>> promise_rate(19, 0.05), promise_rate(9, 0.05)
    (0.05, 0.1)
    """
    return max(false_alarm_rate, 1 / (n_inputs + 1))


def _fit(name: str, code: Code, noise: Any, assumptions: Assumptions, n_classes: int | None) -> Decoder:
    from codeward.decoding.soft import DiscountedDecoder, SoftDecoder

    if not isinstance(noise, VoteSet):
        raise InputError(f"the {name} decoder is fitted on clean inputs: give votes (soft: scores) and labels of some")
    labels = _labels_of(noise, name)
    read = ("attackers_prior", "false_alarm_rate", "class_counts")
    known: dict[str, Any] = {part: getattr(assumptions, part) for part in read}
    if name == "discounted":
        return DiscountedDecoder(code, n_classes or 1, **known).fit(noise.votes, labels)
    if noise.scores is None:
        raise InputError("the soft decoder is fitted on class scores, but there are none; discounted reads votes alone")
    return SoftDecoder(code, **known).fit(noise.scores, labels)


def _labels_of(noise: VoteSet, name: str) -> Any:
    if noise.labels is None:
        raise InputError(f"the {name} decoder needs the true label of every clean input")
    return noise.labels


def _count_classes(noise: Any, n_classes: int | None) -> int | None:
    """Return c as given, or as the noise has it."""
    if n_classes is not None or noise is None:
        return n_classes
    if isinstance(noise, VoteSet):
        known = [part for part in (noise.votes, noise.labels) if part is not None and part.size]
        return noise.scores.shape[2] if noise.scores is not None else max(int(part.max()) for part in known) + 1
    if isinstance(noise, VoteModel):
        return noise.n_classes
    shape = np.shape(noise)
    return shape[1] if len(shape) == 3 else None
