"""A referee for certificates: claimed radii, anybody's, against what is proved and what attacks do."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward._progress import Progress
from codeward.certificates._breakers import PluralityBreaker
from codeward.certificates._certificates import Certificates, Threat, Witness
from codeward.certificates._coverage import attack_greedily
from codeward.certificates._pointwise import DEFAULT_SETS, certify, default_attackers
from codeward.certificates._runoff_attacks import RunOffBreaker, attack_greedily_by_pairs
from codeward.certificates._subjects import Predictor, Subject, choose_decoder, make_subject
from codeward.codes import Code, count_attacker_sets
from codeward.decoding import RunOffCounts


@dataclass(frozen=True, eq=False)
class Ruling:
    """What is to be said of N claimed radii.

    Attributes
    ----------
    claimed : ndarray of int64, shape (N,)
    sound : ndarray of bool, shape (N,)
        The claim is proved: no attack by so many users changes the output. A claim below 1 promises nothing.
    unsound : ndarray of bool, shape (N,)
        The claim is wrong: an attack by no more users is given, or the claim is about a label that the decoder does not
        give.
    proved : Certificates
        What was recomputed; a claim that is neither sound nor unsound lies above ``proved.radius``, where that is not
        exact, and no attack was found.
    witnesses : dict of int to Witness
        An attack against every unsound claim, by input; none where only the label is wrong.

    Examples
    --------
    >>> from codeward import Code
    >>> ruling = referee([[1, 1, 1]], Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), claimed=[0])
    >>> ruling.sound, ruling.open, ruling.loose
    (array([ True]), array([False]), 1.0)
    """

    claimed: NDArray[np.int64]
    sound: NDArray[np.bool_]
    unsound: NDArray[np.bool_]
    proved: Certificates
    witnesses: dict[int, Witness]

    @property
    def open(self) -> NDArray[np.bool_]:
        """Claims that were neither proved nor broken, shape (N,)."""
        return ~(self.sound | self.unsound)

    @property
    def loose(self) -> float:
        """How many users the sound claims about exactly known radii give away, on average; NaN where there are none."""
        known = self.sound & self.proved.exact & (self.claimed >= 0)
        return float((self.proved.radius - self.claimed)[known].mean()) if known.any() else float("nan")

    def reason(self, index: int) -> str:
        """Say in words what is wrong with a claim, or why it stands or stays open."""
        claim, label = int(self.claimed[index]), int(self.proved.labels[index])
        witness = self.witnesses.get(index)
        if witness is not None:
            names = ", ".join(map(str, witness.attackers))
            how = f"every model they reach says {witness.target}"
            if witness.opponent is not None and witness.n_opponent:
                how = f"{witness.n_opponent} of the models they reach vote {witness.opponent}, others {witness.target}"
            return f"claims {claim}, but users {names} change {label}: {how}"
        if self.unsound[index] and claim > self.proved.radius[index] and label >= 0:
            return f"claims {claim}, but {int(self.proved.radius[index])} is exact"
        if self.unsound[index]:
            return f"claims {claim} for a label that the decoder does not give: it says {label}"
        if self.sound[index]:
            return f"claims {claim}, proved {int(self.proved.radius[index])}"
        return f"claims {claim}, proved {int(self.proved.radius[index])}; neither proof nor attack beyond"


def referee(
    votes: ArrayLike | RunOffCounts,
    code: Code,
    claimed: ArrayLike,
    *,
    claimed_labels: ArrayLike | None = None,
    threat: Threat = "arbitrary",
    decoder: str | Predictor = "plurality",
    confusion: ArrayLike | None = None,
    n_attackers: int | None = None,
    n_errors: int = 0,
    n_classes: int | None = None,
    time_limit: float = 60.0,
    progress: Progress | None = None,
) -> Ruling:
    """Judge claimed radii: recompute them exactly where possible, attack them where not.

    The claim ``claimed[i] = k`` says that no attack by k or fewer users, under ``threat``, changes the decoder's output
    on input i. Sound and unsound are both proved: a sound claim by `certify`, an unsound one by an attack that was
    replayed. Where the radius is known only from below, greedy attacks on every rival look for one; what they miss
    stays open.

    Parameters
    ----------
    votes, code, threat, decoder, confusion, n_attackers, n_errors, n_classes, time_limit, progress
        As for `certify`.
    claimed : array_like of int, shape (N,)
        Radii; 0 and below claim nothing.
    claimed_labels : array_like of int, shape (N,), optional
        The outputs the claims are about.

    Examples
    --------
    >>> from codeward import Code
    >>> code = Code([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    >>> ruling = referee([[2, 2, 2, 2, 2], [2, 2, 2, 2, 0]], code, claimed=[2, 2])
    >>> ruling.sound, ruling.unsound
    (array([ True, False]), array([False,  True]))
    >>> ruling.reason(1)
    'claims 2, but users 0, 1 change 2: every model they reach says 0'
    """
    claims = np.asarray(claimed)
    if claims.ndim != 1 or claims.dtype.kind not in "iuf" or (claims != np.rint(claims)).any():
        raise InputError("claimed: expected one whole number an input")
    claims = np.clip(claims, -1, code.n_users).astype(np.int64)
    chosen = choose_decoder(decoder, code, confusion, n_attackers, n_errors, n_classes)
    subject = make_subject(votes, code, threat, chosen, n_classes)
    if claims.size != subject.inverse.size:
        raise InputError(f"claimed: {claims.size} radii for {subject.inverse.size} inputs")
    # Counted votes are searched as far as it goes; patterns of other decoders as far as is usual, or as claims ask.
    counted = isinstance(subject.breaker, (PluralityBreaker, RunOffBreaker))
    limit: int | None = None
    if not counted:
        wanted = min(code.n_users, max(1, int(claims.max(initial=0)) + 1))
        limit = default_attackers(code, chosen)
        if count_attacker_sets(code.n_users, wanted) <= DEFAULT_SETS:
            limit = max(limit, wanted)
    proved = certify(
        votes,
        code,
        threat=threat,
        decoder=chosen,
        max_attackers=limit,
        n_classes=n_classes,
        time_limit=time_limit,
        progress=progress,
    )
    unsound = np.zeros(claims.size, dtype=bool)
    if claimed_labels is not None:
        labels = np.asarray(claimed_labels)
        if labels.shape != claims.shape:
            raise InputError(f"claimed labels: expected shape {claims.shape}, got {labels.shape}")
        unsound |= labels != proved.labels
    witnesses: dict[int, Witness] = {}
    for row in np.flatnonzero((claims > proved.radius) & (claims > 0)):
        witness = proved.witness(int(row))
        if witness is None and not proved.exact[row] and counted:
            witness = _attack(subject, code, int(subject.inverse[row]), int(claims[row]))
        if witness is not None:
            witnesses[int(row)] = witness
        # Without a verdict there is nothing to certify; and counts may prove an attack that they cannot name.
        unsound[row] |= witness is not None or bool(proved.exact[row])
    sound = ~unsound & ((claims <= proved.radius) | (claims <= 0))
    return Ruling(claims, sound, unsound, proved, witnesses)


def _attack(subject: Subject, code: Code, row: int, limit: int) -> Witness | None:
    """Look for an attack by at most ``limit`` users on one output of a vote that is counted."""
    breaker, rows = subject.breaker, np.array([row])
    found: list[int] | None = None
    if isinstance(breaker, RunOffBreaker):
        if not breaker.has_scores:
            return None
        found = attack_greedily_by_pairs(breaker, code, row, limit)
    elif isinstance(breaker, PluralityBreaker):
        matrix = code.matrix.astype(np.float32)
        for rank in range(breaker.rivals.shape[1]):
            weights, need = breaker.demands(rank, rows)
            size, users = attack_greedily(weights, need, matrix, limit)
            if size[0] <= limit:
                found = users[0][users[0] >= 0].tolist()
                break
    if found is None:
        return None
    # Replayed: only what the decoder itself confirms counts.
    bits = code.pattern(found)[None]
    if not breaker.broken(bits, rows)[0, 0]:
        return None
    names = tuple(sorted(int(user) for user in found))
    if isinstance(breaker, RunOffBreaker):
        target, opponent, lent = breaker.plan(bits, rows)[0].tolist()
        return Witness(names, target, opponent, lent)
    return Witness(names, int(breaker.targets(bits, rows)[0]))
