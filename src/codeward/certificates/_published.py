"""Certificates of others: published ones from their papers' formulas, and a referee of anybody's claimed radii."""

from dataclasses import dataclass
from itertools import combinations

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
from codeward.decoding import RunOffCounts, RunOffDecoder, check_scores, check_votes


def certify_dpa(votes: ArrayLike, n_classes: int) -> NDArray[np.int64]:
    r"""Radius of Deep Partition Aggregation (Levine and Feizi, ICLR 2021), shape (N,).

    :math:`\min_{t \ne l} \lfloor (N_l - N_t - [t < l]) / 2 \rfloor` for a partition of users, plurality with ties to
    the smaller label, hit models saying anything (Proposition 25 of docs/theory.md).

    Examples
    --------
    >>> certify_dpa([[1, 1, 1, 1, 0]], n_classes=2)
    array([1])
    """
    counts, labels = _rank_labels(votes, n_classes)
    gap = _vote_gaps(counts, labels)
    return np.asarray(gap.min(axis=1) // 2, dtype=np.int64)


def certify_finite_aggregation(votes: ArrayLike, code: Code, n_classes: int) -> NDArray[np.int64]:
    r"""Radius of Finite Aggregation (Wang, Levine and Feizi, ICML 2022, Theorem 2), shape (N,).

    Largest k such that for every rival t, :math:`N_l - N_t - [t < l]` is at least the sum of the k largest of
    :math:`\sum_{i : H_{ij} = 1} (1 + [y_i = l] - [y_i = t])` over users j. Overlaps of users count twice, so it is
    sound for any code but can be below the truth (Proposition 26 of docs/theory.md). Hit models may say anything.

    Examples
    --------
    >>> from codeward import Code
    >>> certify_finite_aggregation([[1, 1, 1, 1]], Code([[1, 0], [1, 0], [0, 1], [0, 1]]), n_classes=2)
    array([0])
    """
    checked = check_votes(votes, code.n_models, n_classes)
    counts, labels = _rank_labels(checked, n_classes)
    gaps = _vote_gaps(counts, labels)
    radius = np.full(labels.size, code.n_users, dtype=np.int64)
    for t in range(n_classes):
        power = (1 + (checked == labels[:, None]).astype(np.int64) - (checked == t)) @ code.matrix.astype(np.int64)
        spent = np.cumsum(np.sort(power, axis=1)[:, ::-1], axis=1)
        against = (spent <= gaps[:, t, None]).sum(axis=1)
        radius = np.where(labels == t, radius, np.minimum(radius, against))
    return radius


def certify_run_off_election(scores: ArrayLike, code: Code) -> NDArray[np.int64]:
    r"""Radius of Run-Off Election (Rezaei et al., ICML 2023), shape (N,): DPA+ROE on partitions, FA+ROE on other codes.

    The output l loses only if two classes pass it in the first round, or if a class t that passes the other finalist
    there beats it in the second. Each needs as many users as it takes for the sum of their influences on a lead to
    reach it; two leads over l need, besides, the sum of both. Hit models may say anything. `certify` is never below it
    (Proposition 40 of docs/theory.md).

    Examples
    --------
    >>> from codeward import Code
    >>> certify_run_off_election([[[3, 1, 2]] * 5], Code(np.eye(5, dtype=int)))
    array([2])
    """
    checked = check_scores(scores, code.n_models)
    votes, n_classes = checked.argmax(axis=2), checked.shape[2]
    counts = RunOffCounts.count(checked)
    labels = RunOffDecoder(code).predict(counts)
    radius = np.zeros(labels.size, dtype=np.int64)
    matrix, classes = code.matrix.astype(np.int64), range(n_classes)

    def users(weights: NDArray[np.int64], lead: int) -> int:
        """Fewest users whose influences sum to the lead; one more than there are where all do not."""
        if lead <= 0:
            return 0
        reached = np.cumsum(np.sort(weights @ matrix)[::-1]) >= lead
        return int(reached.argmax()) + 1 if reached.any() else code.n_users + 1

    for i, label in enumerate(labels.tolist()):
        first, pairs, said = counts.first[i], counts.pairs[i], votes[i]
        others = [a for a in classes if a != label]
        # 1. Two classes pass the output in the first round: 2 a model that says l, 1 any other, 3 and 1 for the sum.
        leads = {a: int(first[label] - first[a] + (label < a)) for a in others}
        alone = {a: users((said != a).astype(np.int64) + (said == label), leads[a]) for a in others}
        fewest = code.n_users + 1
        for a, b in combinations(others, 2):
            both = np.where(said == label, 3, ((said != a) & (said != b)).astype(np.int64))
            fewest = min(fewest, max(alone[a], alone[b], users(both, leads[a] + leads[b])))
        # 2. A class gets into the second round and wins it.
        second = max(others, key=lambda a: (first[a], -a))
        for t in others:
            likes = checked[i, :, label] >= checked[i, :, t] if label < t else checked[i, :, label] > checked[i, :, t]
            wins = users(2 * likes.astype(np.int64), int(pairs[label, t] - pairs[t, label] + (label < t)))
            lead = int(first[second] - first[t] + (second < t)) if t != second else 0
            enters = users((said != t).astype(np.int64) + (said == second), lead)
            fewest = min(fewest, max(wins, enters))
        radius[i] = fewest - 1
    return radius


def certify_bagging(
    votes: ArrayLike,
    n_users: int,
    bag_size: int,
    n_classes: int,
    alpha: float = 0.001,
    replacement: bool = True,
) -> NDArray[np.int64]:
    r"""Radius of bagging (Jia, Cao and Gong, AAAI 2021, Theorem 1), shape (N,); -1 where it abstains.

    It speaks of the ideal ensemble over all random bags, of which the m models are a sample: with probability
    :math:`1 - \alpha` for each input by the published argument, which takes the label as fixed in advance, and
    :math:`1 - (1 + 2/c) \alpha` counting that the votes choose it (Proposition 27 of docs/theory.md), replacing the
    data of up to ``radius`` users does not change its label. Vote shares are bounded by Clopper-Pearson at level
    :math:`\alpha / c` each (simultaneous by Bonferroni). With
    q the chance that a bag has no replaced user, :math:`q = (1 - r/n)^b` (bags with replacement) or
    :math:`\binom{n-r}{b} / \binom{n}{b}` (without), the radius is the largest r with
    :math:`2 (1 - q) < \underline{p}_l - \overline{p}_s`: theirs for as many users after the attack as before, less
    their rounding of shares to multiples of the number of bags, which only matters at equality.

    Parameters
    ----------
    votes : array_like of int, shape (N, m)
        Votes of models trained on independent random bags of users.
    n_users, bag_size : int
        Users n, and users drawn for a bag, b.
    n_classes : int
    alpha : float
        Chance of a wrong certificate, per input.
    replacement : bool
        Whether a bag may draw a user twice.

    Examples
    --------
    >>> certify_bagging([[1] * 100], n_users=100, bag_size=3, n_classes=2)
    array([16])
    """
    from scipy.stats import beta  # as long to import as all else here

    counts, labels = _rank_labels(votes, n_classes)
    whole = all(isinstance(value, int | np.integer) and value >= 1 for value in (n_users, bag_size))
    if not whole or not 0 < alpha < 1 or (not replacement and bag_size > n_users):
        raise InputError(f"bagging: alpha {alpha} is not in (0, 1) or bag size {bag_size} does not fit {n_users} users")
    total, rows = counts.sum(axis=1), np.arange(labels.size)
    # 1. p_l from below: Beta(alpha/c; N_l, m - N_l + 1); p_s from above: Beta(1 - alpha/c; N_s + 1, m - N_s), and the
    #    shares add up to one.
    own = counts[rows, labels]
    low = beta.ppf(alpha / n_classes, own, total - own + 1)
    rival = np.where(np.arange(n_classes) == labels[:, None], -1, counts).max(axis=1)
    high = np.where(rival >= total, 1.0, beta.ppf(1 - alpha / n_classes, rival + 1, np.maximum(total - rival, 1)))
    high = np.minimum(high, 1 - low)
    # 2. The chance of a touched bag grows with r, so the radius counts the r >= 1 that hold; -1 when r = 0 does not.
    left = np.arange(n_users, -1, -1.0)
    if replacement:
        clean = (left / n_users) ** bag_size
    else:
        # C(n - r, b) / C(n, b), factor by factor; rounding may not make it larger.
        shares = np.maximum(left[:-1] - bag_size, 0) / left[:-1]
        clean = np.append(1.0, np.cumprod(shares) * (1 - 4 * n_users * np.finfo(float).eps))
    held: NDArray[np.bool_] = 2 * (1 - clean) < (low - high)[:, None]
    return np.asarray(held.sum(axis=1) - 1, dtype=np.int64)


def _rank_labels(votes: ArrayLike, n_classes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the votes of each label (N, c), and the plurality label, ties to the smaller (argmax takes the first)."""
    if not isinstance(n_classes, int | np.integer) or n_classes < 2:
        raise InputError(f"n_classes must be a whole number of at least 2, got {n_classes}")
    counts = (check_votes(votes, None, n_classes)[:, :, None] == np.arange(n_classes)).sum(axis=1)
    if not counts.any(axis=1).all():
        raise InputError("votes: there are no models")
    return counts, counts.argmax(axis=1)


def _vote_gaps(counts: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lead N_l - N_t - [t < l] over each rival, shape (N, c); out of reach at t = l."""
    rival = np.arange(counts.shape[1])
    top = np.take_along_axis(counts, labels[:, None], axis=1)
    gap = top - counts - (rival < labels[:, None])
    return np.where(rival == labels[:, None], np.iinfo(np.int64).max, gap)


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
