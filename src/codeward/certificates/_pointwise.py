"""`certify`: the largest k for each input, alone."""

from dataclasses import dataclass
from typing import Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.certificates._breakers import (
    BLOCK_CELLS,
    Breaker,
    OverwriteBreaker,
    PluralityBreaker,
    Predict,
    list_rivals,
)
from codeward.certificates._certificates import Certificates, Threat
from codeward.certificates._coverage import solve_coverage
from codeward.codes import Code, PatternTable, count_attacker_sets, enumerate_patterns
from codeward.decoding import (
    Assumptions,
    BayesDecoder,
    ConsensusDecoder,
    PluralityDecoder,
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
}


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
    name = NAMES.get(type(decoder), type(decoder).__name__)
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


#: Attacker sets that are enumerated without being asked to; every set of 16 users is within it.
DEFAULT_SETS = 2**16


def certify(
    votes: ArrayLike,
    code: Code,
    *,
    threat: Threat = "arbitrary",
    decoder: str | Predictor = "plurality",
    max_attackers: int | None = None,
    confusion: ArrayLike | None = None,
    n_attackers: int | None = None,
    n_errors: int = 0,
    n_classes: int | None = None,
    method: str = "auto",
    time_limit: float = 60.0,
    progress: Progress | None = None,
) -> Certificates:
    r"""Certify every input: the largest k such that no attack by at most k users changes the decoder's output.

    The votes are taken as those of clean models. A radius is never above the truth (docs/theory.md):

    * *plurality*: exact for both threat models (they coincide: Propositions 18 and 19), over the distinct hit patterns
      where these can be enumerated, else by coverage bounds and an open MILP solver (Proposition 20).
    * *consensus*: exact for both threat models (they coincide too); turning a verdict into "no verdict" is a change
      (Proposition 21).
    * *bayes*, or any other decoder object: exact under *deterministic*, over every pattern and every target; refused
      under *arbitrary* (Proposition 22).

    Parameters
    ----------
    votes : array_like of int, shape (N, m)
        Votes of the m models, labels 0..c-1.
    code : Code
        Which model learns from which user.
    threat : {"arbitrary", "deterministic"}
        What an attacker can make the hit models say.
    decoder : {"plurality", "bayes", "groups", "consensus"} or decoder object
        Whose output is certified; an object needs ``predict(votes)``, which maps every vote vector by itself, and
        ``n_classes`` (or give it here).
    max_attackers : int, optional
        Search no further; an input not broken by then has this radius and ``exact`` False. By default as far as 65,536
        attacker sets reach (plurality without limit; bayes at most its largest expected number of attackers).
    confusion : array_like, shape (m, c, c), optional
        For ``decoder="bayes"`` and ``"groups"``, with the default `Assumptions`.
    n_attackers, n_errors : int
        For ``decoder="consensus"``: how many attackers and wrong clean votes it tolerates.
    n_classes : int, optional
        Number of classes c, each a possible target even if no model says it. Required for a decoder object that has no
        ``n_classes`` of its own; the radii of plurality and consensus do not depend on it.
    method : {"auto", "patterns", "milp", "bound"}
        For plurality: enumerate patterns; bounds, then MILP where they leave a gap; bounds alone. ``auto`` takes
        patterns up to 65,536 attacker sets.
    time_limit : float
        Seconds for all MILP solving together; after it, the sound bound with ``exact`` False.
    progress : Progress, optional
        Advanced by 1 in total.

    Returns
    -------
    Certificates

    Examples
    --------
    >>> from codeward import Code
    >>> code = Code([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    >>> certify([[2, 2, 2, 2, 2], [2, 2, 2, 0, 0]], code).radius
    array([2, 0])
    >>> confusion = [[[0.9, 0.1], [0.1, 0.9]]] * 5
    >>> certify([[1, 1, 1, 1, 1]], code, threat="deterministic", decoder="bayes", confusion=confusion).radius
    array([2])
    """
    chosen = choose_decoder(decoder, code, confusion, n_attackers, n_errors, n_classes)
    subject = make_subject(votes, code, threat, chosen, n_classes)
    if method not in ("auto", "patterns", "milp", "bound"):
        raise InputError(f"unknown method {method!r}; choose auto, patterns, milp or bound")
    if max_attackers is not None and max_attackers < 1:
        raise InputError(f"max_attackers must be at least 1, got {max_attackers}")
    bar = progress or silent()
    is_plurality = isinstance(subject.breaker, PluralityBreaker)
    if not is_plurality and method not in ("auto", "patterns"):
        raise InputError(f"method {method!r} is for plurality; the {subject.name} decoder is certified by patterns")

    limit = code.n_users if max_attackers is None else min(max_attackers, code.n_users)
    fits = count_attacker_sets(code.n_users, limit) <= DEFAULT_SETS
    if is_plurality and (method in ("milp", "bound") or (method == "auto" and not fits)):
        assert isinstance(subject.breaker, PluralityBreaker)
        seconds = time_limit if method != "bound" else 0.0
        radius, exact, users = solve_coverage(subject.breaker, code, limit, seconds, bar)
    else:
        if max_attackers is None:
            limit = default_attackers(code, chosen)
        radius, exact, users = _search_patterns(subject, enumerate_patterns(code, limit), code, bar)
    return _finish(subject, code, radius, exact, users, threat, limit)


def default_attackers(code: Code, decoder: Predictor | None = None) -> int:
    """Return the largest k whose attacker sets number at most 65,536, at least 1; for bayes, at most its prior's."""
    limit = 1
    while limit < code.n_users and count_attacker_sets(code.n_users, limit + 1) <= DEFAULT_SETS:
        limit += 1
    if isinstance(decoder, BayesDecoder):
        limit = min(limit, max(1, len(decoder.attackers_prior) - 1))
    return limit


def _search_patterns(
    subject: Subject, table: PatternTable, code: Code, bar: Progress
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int32]]:
    """Find the first pattern that breaks each output: fewest users, then lowest indices."""
    limit = table.max_attackers
    radius = np.where(subject.labels < 0, 0, limit).astype(np.int64)
    exact = (subject.labels < 0) | (limit >= code.n_users)
    users = np.full((subject.labels.size, max(limit, 1)), -1, dtype=np.int32)
    alive = np.flatnonzero(subject.labels >= 0)
    bits, sizes = table.bits, table.sizes
    for size in range(1, limit + 1):
        here = np.flatnonzero(sizes == size)
        # A size without a new pattern has no chunk: more users who reach the same models change nothing more.
        for chunk in np.array_split(here, -(-here.size // 4096)) if here.size else ():
            step = max(1, BLOCK_CELLS // chunk.size)
            left = []
            for start in range(0, alive.size, step):
                rows = alive[start : start + step]
                hit = subject.breaker.broken(bits[chunk], rows)
                some = hit.any(axis=1)
                radius[rows[some]] = size - 1
                exact[rows[some]] = True
                # Patterns stand in the order of their first attacker set, so the first hit is the first such set.
                users[rows[some]] = table.attackers[chunk[np.argmax(hit[some], axis=1)]]
                left.append(rows[~some])
            alive = np.concatenate(left) if left else alive
            bar.advance(chunk.size / max(1, sizes.size - 1))
    return radius, exact, users


def _finish(
    subject: Subject,
    code: Code,
    radius: NDArray[np.int64],
    exact: NDArray[np.bool_],
    users: NDArray[np.int32],
    threat: Threat,
    limit: int,
) -> Certificates:
    """Attach targets, cut the padding, and go back from distinct votes to inputs."""
    targets = np.full(radius.size, -1, dtype=np.int64)
    rows = np.flatnonzero((users >= 0).any(axis=1))
    member = np.zeros((rows.size, code.n_users + 1), dtype=bool)
    member[np.arange(rows.size)[:, None], users[rows]] = True  # the padding -1 falls into the last, extra column
    hit = member[:, :-1].astype(np.float32) @ code.matrix.T.astype(np.float32) > 0
    targets[rows] = subject.breaker.targets(hit, rows)
    width = max(1, int((users >= 0).sum(axis=1).max(initial=0)))
    back = subject.inverse
    return Certificates(
        labels=subject.labels[back],
        radius=radius[back],
        exact=exact[back],
        attackers=users[:, :width][back],
        targets=targets[back],
        threat=threat,
        decoder=subject.name,
        searched=limit,
    )
