"""`certify`: the largest k for each input, alone; and what a decoder keeps of a code's promise where no model errs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.certificates._breakers import BLOCK_CELLS, NearestBreaker, PluralityBreaker
from codeward.certificates._certificates import Certificates, Threat, Witness
from codeward.certificates._coverage import bound_targets, is_partition, solve_coverage
from codeward.certificates._runoff_attacks import RunOffBreaker, search_users, solve_runoff
from codeward.certificates._subjects import Predictor, Subject, choose_decoder, make_subject
from codeward.codes import Code, PatternTable, count_attacker_sets, enumerate_patterns
from codeward.decoding import BayesDecoder, NearestDecoder, RunOffCounts

#: Attacker sets that are enumerated without being asked to; every set of 16 users is within it.
DEFAULT_SETS = 2**16


def certify(
    votes: ArrayLike | RunOffCounts,
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
    targets: bool = False,
    progress: Progress | None = None,
) -> Certificates:
    r"""Certify every input: the largest k such that no attack by at most k users changes the decoder's output.

    The votes are taken as those of clean models. A radius is never above the truth (docs/theory.md):

    * *plurality*: exact for both threat models (they coincide: Propositions 18 and 19), over the distinct hit patterns
      where these can be enumerated, else by coverage bounds and an open MILP solver (Proposition 20).
    * *consensus*: exact for both threat models (they coincide too); turning a verdict into "no verdict" is a change
      (Proposition 21).
    * *runoff*: exact under *arbitrary*, over the distinct hit patterns where these can be enumerated and for partitions
      of any size; else by sums of leads and MILP (Propositions 34 to 37).
    * `codeward.decoding.NearestDecoder`: exact under *deterministic*; with `ClassShares` never above the truth,
      whatever samples attackers hand in, and ``exact`` where an attack works with those that were (Proposition 43).
    * *bayes*, or any other decoder object: exact under *deterministic*, over every pattern and every target; refused
      under *arbitrary* (Proposition 22).

    Parameters
    ----------
    votes : array_like of int, shape (N, m)
        Votes of the m models, labels 0..c-1. For *runoff* class scores of shape (N, m, c), or, where every user is in
        one model, `codeward.decoding.RunOffCounts`.
    code : Code
        Which model learns from which user.
    threat : {"arbitrary", "deterministic"}
        What an attacker can make the hit models say.
    decoder : {"plurality", "bayes", "groups", "consensus", "runoff"} or decoder object
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
        For plurality and run-off: enumerate patterns; bounds, then MILP where they leave a gap; bounds alone. ``auto``
        takes patterns up to 65,536 attacker sets; a run-off on a partition never needs them.
    time_limit : float
        Seconds for all MILP solving together; after it, the sound bound with ``exact`` False.
    targets : bool
        Also find, for every label, the users it takes to force that label (`Certificates.radius_to`, Proposition 38).
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
    if max_attackers is not None and not (isinstance(max_attackers, int | np.integer) and max_attackers >= 1):
        raise InputError(f"max_attackers must be at least 1, got {max_attackers}")
    bar = progress or silent()
    breaker = subject.breaker
    counted = isinstance(breaker, (PluralityBreaker, RunOffBreaker))
    if not counted and method not in ("auto", "patterns"):
        raise InputError(
            f"method {method!r} is for plurality and run-off; the {subject.name} decoder is certified by patterns"
        )

    limit = code.n_users if max_attackers is None else min(max_attackers, code.n_users)
    fits = count_attacker_sets(code.n_users, limit) <= DEFAULT_SETS
    if isinstance(breaker, RunOffBreaker):
        if method == "patterns" and not breaker.has_scores:
            raise InputError("method 'patterns' needs the scores of a run-off, not counts")
        fits = fits and not is_partition(code)
    to: NDArray[np.int64] | None = None
    if counted and (method in ("milp", "bound") or (method == "auto" and not fits)):
        seconds = time_limit if method != "bound" else 0.0
        if isinstance(breaker, RunOffBreaker):
            radius, exact, users = solve_runoff(breaker, code, limit, seconds, bar)
            if targets:
                to = np.zeros((radius.size, subject.n_classes), dtype=np.int64)
                search_users(breaker, code, limit, to, np.zeros((radius.size, 4), dtype=np.int64))
                to -= 1
        else:
            assert isinstance(breaker, PluralityBreaker)
            radius, exact, users = solve_coverage(breaker, code, limit, seconds, bar)
            to = bound_targets(breaker, code, limit, subject.n_classes) if targets else None
    else:
        if max_attackers is None:
            limit = default_attackers(code, chosen)
        table = enumerate_patterns(code, limit)
        radius, exact, users = _search_patterns(subject, table, code, bar)
        to = _search_targets(subject, table) if targets else None
    return _finish(subject, code, radius, exact, users, to, threat, limit)


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


def _search_targets(subject: Subject, table: PatternTable) -> NDArray[np.int64]:
    """Find the smallest pattern that forces each label, shape (D, c)."""
    limit, n_classes = table.max_attackers, subject.n_classes
    found = np.full((subject.labels.size, n_classes), limit, dtype=np.int64)
    open_to = np.arange(n_classes) != subject.labels[:, None]
    bits, sizes = table.bits, table.sizes
    for size in range(1, limit + 1):
        here = np.flatnonzero(sizes == size)
        for chunk in np.array_split(here, -(-here.size // 1024)) if here.size else ():
            rows = np.flatnonzero(open_to.any(axis=1))
            step = max(1, BLOCK_CELLS // (chunk.size * n_classes))
            for start in range(0, rows.size, step):
                part = rows[start : start + step]
                hit = open_to[part] & subject.breaker.forced(bits[chunk], part, n_classes).any(axis=1)
                found[part] = np.where(hit, size - 1, found[part])
                open_to[part] &= ~hit
    return found


def _finish(
    subject: Subject,
    code: Code,
    radius: NDArray[np.int64],
    exact: NDArray[np.bool_],
    users: NDArray[np.int32],
    to: NDArray[np.int64] | None,
    threat: Threat,
    limit: int,
) -> Certificates:
    """Attach targets, cut the padding, and go back from distinct votes to inputs."""
    targets = np.full(radius.size, -1, dtype=np.int64)
    rows = np.flatnonzero((users >= 0).any(axis=1))
    member = np.zeros((rows.size, code.n_users + 1), dtype=bool)
    member[np.arange(rows.size)[:, None], users[rows]] = True  # the padding -1 falls into the last, extra column
    hit = member[:, :-1].astype(np.float32) @ code.matrix.T.astype(np.float32) > 0
    opponents = None
    if isinstance(subject.breaker, RunOffBreaker):
        plan = subject.breaker.plan(hit, rows)
        targets[rows] = plan[:, 0]
        opponents = np.tile(np.array([-1, 0]), (radius.size, 1))
        opponents[rows] = plan[:, 1:]
    else:
        targets[rows] = subject.breaker.targets(hit, rows)
        if isinstance(subject.breaker, NearestBreaker):
            # An attack that would need other samples than were handed in is no witness: the radius is a bound there.
            doubtful = rows[~subject.breaker.works_as_is(hit, rows, targets[rows])]
            exact[doubtful], users[doubtful], targets[doubtful] = False, -1, -1
    if to is not None:
        # Who cannot change the output cannot force another label; nobody is needed for the one it has.
        own = np.arange(subject.n_classes) == subject.labels[:, None]
        to = np.where(own, -1, np.maximum(to, radius[:, None]))
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
        opponents=None if opponents is None else opponents[back],
        radius_to=None if to is None else to[back],
        users=code.users,
    )


#: Attacks up to which `is_agreement_affordable` says yes: some seconds of Bayes decoding.
AFFORDABLE = 100_000


@dataclass(frozen=True)
class Agreement:
    """How many attackers a decoder undoes as long as no model errs, or few do.

    Attributes
    ----------
    n_attackers : int
        Most users whose every attack leaves the right label, whatever label and target.
    searched : int
        Most users looked at; ``n_attackers`` equal to it is a lower bound.
    label : int or None
        The true label of an attack by one user more that is not undone; None where none was found.
    witness : Witness or None
        That attack. None beside a label: the decoder is wrong there without any attack.
    n_errors : int
        Wrong votes of models that no attacker reaches with which it still holds.

    Examples
    --------
    >>> from codeward import Code, PluralityDecoder
    >>> kept = certify_agreement(Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), PluralityDecoder(), n_classes=2)
    >>> kept.n_attackers, kept.witness.attackers
    (1, (0, 1))
    """

    n_attackers: int
    searched: int
    label: int | None
    witness: Witness | None
    n_errors: int = 0

    @classmethod
    def of_votes_alone(cls, nearest: NearestDecoder | None) -> "Agreement":
        """Return what a fitted decoder keeps: where the votes alone determine the label (Proposition 43), if at all.

        Examples
        --------
        >>> from codeward.codes import named_code
        >>> kept = Agreement.of_votes_alone(NearestDecoder(named_code("btc2412"), 2, 1, n_classes=10))
        >>> kept.n_attackers, kept.n_errors
        (2, 1)
        """
        if nearest is None:
            return cls(0, 0, None, None)
        return cls(nearest.n_covered, nearest.n_attackers, None, None, nearest.n_tolerated)


def is_agreement_affordable(code: Code, n_classes: int, max_attackers: int) -> bool:
    """Say whether the attacks (attacker sets, labels, targets) that `certify_agreement` decodes are few.

    Examples
    --------
    >>> from codeward import Code
    >>> is_agreement_affordable(Code([[1, 0], [0, 1]]), n_classes=10, max_attackers=2)
    True
    """
    return count_attacker_sets(code.n_users, max_attackers) * n_classes * (n_classes - 1) <= AFFORDABLE


def certify_agreement(
    code: Code,
    decoder: Predictor,
    n_classes: int,
    *,
    threat: Threat = "deterministic",
    max_attackers: int | None = None,
    progress: Progress | None = None,
) -> Agreement:
    r"""Find the most attackers that a decoder undoes on inputs whose clean models all say the true label.

    A code *corrects* k attackers when some decoder can tell the label from such votes (`codeward.codes.inspect`). That
    does not mean that a given one does: `BayesDecoder` weighs an attack against errors of models by its prior and its
    confusion matrices, and where k attackers leave few models alone it may take the honest ones for wrong. This is the
    least certified radius of the c inputs on which all m models agree (Proposition 23 of docs/theory.md),

    .. math:: \min_l \mathrm{radius}(l, l, \ldots, l),

    exact under *deterministic*. Nothing is said of inputs on which a model errs; `certify` is for those.

    Parameters
    ----------
    code : Code
    decoder : decoder object
        With ``predict(votes)``.
    n_classes : int
        c, at least 2, the decoder's own where it has one: every class is a label and a target.
    threat : {"deterministic", "arbitrary"}
        As for `certify`.
    max_attackers : int, optional
        Search no further; by default as `certify` does.
    progress : Progress, optional
        Advanced by 1 in total.

    Examples
    --------
    >>> from codeward import Code, PluralityDecoder
    >>> kept = certify_agreement(Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), PluralityDecoder(), n_classes=2)
    >>> kept.n_attackers, kept.searched, kept.label, kept.witness.target
    (1, 3, 0, 1)
    """
    if n_classes < 2:
        raise InputError(f"n_classes must be at least 2, got {n_classes}")
    truth = np.arange(n_classes)
    votes = np.repeat(truth[:, None], code.n_models, axis=1)
    found = certify(
        votes,
        code,
        threat=threat,
        decoder=decoder,
        max_attackers=max_attackers,
        n_classes=n_classes,
        progress=progress,
    )
    # Where all models agree and the decoder says otherwise, it needs no attacker to be wrong.
    kept = np.where(found.labels == truth, found.radius, -1)
    worst = int(kept.argmin())
    if kept[worst] < 0:
        return Agreement(0, found.searched, worst, None)
    witness = found.witness(worst)
    return Agreement(int(kept[worst]), found.searched, None if witness is None else worst, witness)
