"""Evidence of several inputs together: known to share a trigger, or alarmed with the same target in one batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError
from codeward.codes import pack_words
from codeward.decoding._assumptions import check_rate, check_votes
from codeward.decoding._attacker_sets import (
    TIE_TOLERANCE,
    AttackerSets,
    gather_attacker_sets,
    list_subsets,
    name_suspects,
)
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import Decoded, distinct_rows, first_best

#: Floats of a table of evidence (inputs x patterns x classes).
TABLE = 30_000_000
#: Share of the alarmed inputs of a batch that are taken for false alarms: any of them may be one.
FALSE_SHARE = 0.5
#: Attacker sets of a size on which is tried how many models can be spared.
TRIED_SETS = 200


class EvidenceDecoder(Protocol):
    """A decoder whose evidence adds up over inputs: `BayesDecoder`, and the two that are fitted.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> decoder: EvidenceDecoder = BayesDecoder(Code([[1, 0], [0, 1]]), [[[0.9, 0.1], [0.1, 0.9]]] * 2)
    >>> decoder.log_likelihood([[0, 1]]).shape  # inputs, patterns of sets_, targets
    (1, 4, 2)
    """

    @property
    def needs(self) -> Literal["votes", "scores"]:
        """What it decodes."""

    @property
    def n_classes(self) -> int:
        """Number of classes c."""

    @property
    def threshold(self) -> float:
        """Attack probability above which an input is an alarm."""

    @property
    def attack_rate(self) -> float:
        """A, prior probability of an attack."""

    @property
    def sets_(self) -> AttackerSets:
        """Hit patterns with their prior."""

    def decode(self, observed: ArrayLike, /) -> Decoded:
        """Verdicts on N inputs."""

    def log_likelihood(self, observed: ArrayLike, /) -> NDArray[np.float64]:
        """Log evidence of every pattern and target, shape (N, P, c)."""

    def clean_log_likelihood(self, observed: ArrayLike, /) -> NDArray[np.float64]:
        """Log evidence of no attack on the same scale, shape (N,)."""


def decode_batch(decoder: EvidenceDecoder, observed: ArrayLike, threshold: float | None = None) -> Decoded:
    """Decode inputs one by one, then name suspects from all alarms with the same target together.

    Labels, attack probabilities, targets and alarms are exactly those of ``decoder.decode`` (Proposition 29 of
    docs/theory.md), so a batch raises neither more nor fewer alarms. What changes are suspects, their sets and the
    users' probabilities of alarmed inputs: those with one target are pooled, each of them perhaps a false alarm
    (`pool_evidence` with ``false_share`` 1/2), and what the pool says replaces what is said of an input alone where the
    pool's best set is among that input's own nearly best explanations. Assumed is that one group is behind each target.
    Threat model as for the decoder; a probability statement, not a certificate.

    Parameters
    ----------
    decoder : BayesDecoder, DiscountedDecoder or SoftDecoder
        With all attacker sets enumerable.
    observed : array_like, shape (N, m) or (N, m, c)
        Votes or class scores, whichever it needs.
    threshold : float, optional
        An input is an alarm above it; the decoder's own by default.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> decoder = BayesDecoder(code, [[[0.9, 0.1], [0.1, 0.9]]] * 6, attackers_prior=(0.5, 0.5))
    >>> votes = [[0, 0, 0, 0, 1, 1]] * 3 + [[0] * 6] * 2
    >>> decoder.decode(votes).suspects, decode_batch(decoder, votes).suspects
    ([(), (), (), (), ()], [(2,), (2,), (2,), (), ()])
    """
    alone = decoder.decode(observed)
    inputs = np.asarray(observed)
    alarmed = alone.alarms(decoder.threshold if threshold is None else threshold)
    members = [np.flatnonzero(alarmed & (alone.targets == target)) for target in np.unique(alone.targets[alarmed])]
    pooled = pool_evidence(decoder, [inputs[rows] for rows in members], FALSE_SHARE)
    suspects, sets = list(alone.suspects), list(alone.suspect_sets)
    more, users = alone.more_sets.copy(), alone.user_probability.copy()
    for place, (rows, best) in enumerate(zip(members, pooled.best_set, strict=True)):
        for row in rows.tolist():
            if best in sets[row]:
                suspects[row], sets[row] = pooled.suspects[place], pooled.suspect_sets[place]
                more[row], users[row] = pooled.more_sets[place], pooled.user_probability[place]
    return replace(alone, suspects=suspects, suspect_sets=sets, more_sets=more, user_probability=users)


@dataclass(frozen=True)
class Pooled:
    """Verdicts on G groups of inputs, each group triggered alike or not at all.

    Attributes
    ----------
    attack_probability : ndarray, shape (G,)
        Posterior that the group carries a trigger.
    targets : ndarray of int64, shape (G,)
        Most probable common target given an attack; ties to the smaller class.
    suspects : sequence of tuple of int, length G
        Users in every nearly best explanation, given an attack.
    user_probability : ndarray, shape (G, n)
    suspect_sets, more_sets
        The nearly best explanations and how many more there are, as in `Decoded`.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> confusion = [[[0.9, 0.1], [0.1, 0.9]]] * 6
    >>> pool_evidence(BayesDecoder(code, confusion, attackers_prior=(0.5, 0.5)), [[[0, 0, 0, 0, 1, 1]] * 2]).targets
    array([1])
    """

    attack_probability: NDArray[np.float64]
    targets: NDArray[np.int64]
    suspects: Sequence[tuple[int, ...]]
    user_probability: NDArray[np.float64]
    suspect_sets: Sequence[tuple[tuple[int, ...], ...]]
    more_sets: NDArray[np.int64]

    @property
    def best_set(self) -> list[tuple[int, ...]]:
        """The single most probable attacker set of each group, or nobody."""
        return [found[0] if found else () for found in self.suspect_sets]


def pool_evidence(decoder: EvidenceDecoder, groups: Sequence[ArrayLike], false_share: float = 0.0) -> Pooled:
    r"""Name the attackers behind a trigger from several inputs that carry it: the product of their evidence.

    .. math:: Pr(x, t \mid y_1 .. y_q) \propto \frac{Q(|x|)}{\binom{n}{|x|}} \prod_u
              \left((1 - \epsilon) \sum_l Pr(y_u \mid x, t, l) + \epsilon \sum_l Pr(y_u \mid l)\right)

    Each input has its own label; the attackers and the target are common. With q = 1 and no false alarms it equals
    `BayesDecoder.decode`. Threat model *deterministic*, votes independent given (x, t, l).

    Parameters
    ----------
    decoder : BayesDecoder, DiscountedDecoder or SoftDecoder
        With all attacker sets enumerable.
    groups : sequence of array_like, shape (q, m) or (q, m, c) each
        Votes or class scores, whichever the decoder needs.
    false_share : float
        :math:`\epsilon`, chance of each input to carry no trigger, in 0..1; without it a single clean input outweighs
        several triggered ones.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> confusion = [[[0.9, 0.1], [0.1, 0.9]]] * 6
    >>> pool_evidence(BayesDecoder(code, confusion, attackers_prior=(0.5, 0.5)), [[[0, 0, 0, 0, 1, 1]] * 2]).suspects
    [(2,)]
    """
    check_rate("false_share", false_share)
    sets, rate = decoder.sets_, decoder.attack_rate
    alarms, targets, patterns = [], [], []
    for joint, clean in _add_up(decoder, groups, false_share):
        joint = joint + np.log(sets.weights / joint.shape[1])[:, None]
        top = joint.max()
        mass = np.exp(joint - top)
        with np.errstate(divide="ignore"):
            attacked = np.log(rate) + top + np.log(mass.sum())
            quiet = np.log1p(-rate) + clean
        alarms.append(float(np.exp(attacked - np.logaddexp(attacked, quiet))))
        targets.append(int(first_best(mass.sum(axis=0)[None])[0]))
        patterns.append(mass.sum(axis=1) / mass.sum())
    by_pattern = np.array(patterns).reshape(-1, sets.weights.size)
    suspects = name_suspects(sets, by_pattern)
    return Pooled(
        np.array(alarms),
        np.array(targets, dtype=np.int64),
        suspects.certain,
        np.minimum(np.asarray(by_pattern @ sets.members), 1.0),
        suspects.sets,
        suspects.more,
    )


def _add_up(
    decoder: EvidenceDecoder, groups: Sequence[ArrayLike], false_share: float
) -> Iterator[tuple[NDArray[np.float64], float]]:
    """Yield the evidence of every group, (patterns, c) under attack and clean, its inputs added up.

    Groups share most of their vote vectors, so each distinct one is weighed once, as far as memory allows.
    """
    inputs = [np.asarray(group) for group in groups]
    step = max(1, TABLE // (decoder.sets_.weights.size * decoder.n_classes))
    ends = np.cumsum([0, *map(len, inputs)])
    start = 0
    while start < len(inputs):
        # As many groups at a time as are sure to fit, at least one; that one in parts.
        end = max(start + 1, int(np.searchsorted(ends, ends[start] + step, side="right")) - 1)
        together = np.concatenate(inputs[start:end])
        places = [slice(low, high) for low, high in pairwise((ends[start : end + 1] - ends[start]).tolist())]
        sums = [(np.zeros(()), 0.0)] * len(places)
        for low in range(0, len(together), step):
            attacked, clean, inverse = _weigh(decoder, together[low : low + step], false_share)
            for k, place in enumerate(places):
                rows = inverse[place]  # of the only group, where there are several parts
                sums[k] = (sums[k][0] + attacked[rows].sum(axis=0), sums[k][1] + float(clean[rows].sum()))
        yield from sums
        start = end


def _weigh(
    decoder: EvidenceDecoder, observed: NDArray[Any], false_share: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Evidence of every pattern and target (U, P, c) and of no attack (U,), and where each input's is (N,)."""
    inverse = np.arange(len(observed))
    if decoder.needs == "votes":
        observed, inverse = distinct_rows(check_votes(observed, None, decoder.n_classes), decoder.n_classes)
    attacked, clean = decoder.log_likelihood(observed), decoder.clean_log_likelihood(observed)
    if false_share > 0:
        with np.errstate(divide="ignore"):
            quiet = np.log(false_share) + clean[:, None, None]
            attacked = np.logaddexp(np.log1p(-false_share) + attacked, quiet)
    return attacked, clean, inverse


def count_apart(sets: AttackerSets, obeying: NDArray[np.bool_]) -> NDArray[np.int64]:
    r"""In how many more models a trigger would have to fail for each user to be innocent.

    .. math:: a_j = \min_{x \not\ni j, O} |s(x) \setminus O| - \min_{x, O} |s(x) \setminus O|

    over the attacker sets x whose pattern s(x) contains O, the models that say the target; where it is not sure what
    the target is, over all that it may be. No other set can be behind it: what no attacker reaches answers as it would
    without. So if the attackers' trigger fails in at most f more models than in the best explanation, every user with
    :math:`a_j > f` is one of them (Proposition 46 of docs/theory.md).

    Parameters
    ----------
    sets : AttackerSets
        Such as ``BayesDecoder.sets_``.
    obeying : ndarray of bool, shape (m,) or (t, m)
        The models O, a row for each of t possible targets.

    Returns
    -------
    ndarray of int64, shape (n,)
        0 for all where no set explains these models; where none does without the user, as many as there are models.

    Examples
    --------
    User 0 reaches models 0 and 1, user 1 the first one only:

    >>> from codeward.codes import Code
    >>> decoder = BayesDecoder(Code([[1, 1], [1, 0]]), [[[0.9, 0.1], [0.1, 0.9]]] * 2, attackers_prior=(0.5, 0.5))
    >>> count_apart(decoder.sets_, np.array([True, True])), count_apart(decoder.sets_, np.array([True, False]))
    (array([2, 0]), array([0, 1]))
    """
    targets = np.atleast_2d(obeying)
    words = pack_words(targets)[:, None]
    explained = ((sets.words & words) == words).all(axis=2) & (sets.hits > 0)
    fewest = np.where(explained, sets.hits - targets.sum(axis=1)[:, None], sets.n_models + 1).min(axis=0)
    rows = np.flatnonzero(fewest <= sets.n_models)
    if not rows.size:
        return np.zeros(sets.members.shape[1], dtype=np.int64)
    fails = fewest[rows] - fewest[rows].min()
    innocent = sets.members[rows].toarray() < 1 - TIE_TOLERANCE  # some set of the pattern is without the user
    return np.asarray(np.where(innocent, fails[:, None], sets.n_models).min(axis=0), dtype=np.int64)


def count_spare(decoder: BayesDecoder, most: int = 2) -> int:
    """In how many models a trigger may fail, at no cost, before `count_apart` no longer protects honest users.

    That is the largest f, up to ``most``, at which a trigger that works everywhere has :math:`a_j > f` for all
    attackers for whom it is positive, for every number of attackers up to which the code names all (of that many and
    fewer). Of each number `TRIED_SETS` sets are tried.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> count_spare(BayesDecoder(named_code("btc2412"), [[[0.9, 0.1], [0.1, 0.9]]] * 15, attackers_prior=(1 / 3,) * 3))
    2
    >>> count_spare(BayesDecoder(named_code("g"), [[[0.9, 0.1], [0.1, 0.9]]] * 6, attackers_prior=(1 / 2,) * 2))
    0
    """
    found: list[int] = []
    for size in np.flatnonzero(decoder.prior_[1:] > 0) + 1:
        fewer = gather_attacker_sets(decoder.code, decoder.prior_[: size + 1])
        users = list_subsets(decoder.code.n_users, int(size))
        tried = users[np.linspace(0, len(users) - 1, min(len(users), TRIED_SETS)).astype(np.int64)]
        hit = [decoder.code.pattern(attackers) for attackers in tried.tolist()]
        if any(count_apart(fewer, bits)[attackers].min() == 0 for attackers, bits in zip(tried, hit, strict=True)):
            break
        for attackers, bits in zip(tried, hit, strict=True):
            apart = count_apart(decoder.sets_, bits)[attackers]
            found += apart[apart > 0].tolist()
    return min(most, min(found, default=1) - 1)


#: Floats a chunk of work may hold.
_CHUNK = 8_000_000


def name_attackers(decoder: BayesDecoder, votes: ArrayLike) -> list[tuple[int, ...]]:
    r"""Name somebody for every input: the attackers of its most probable explanation by an attack.

    .. math::

        \hat x = \arg\max_{x \ne \emptyset} \; \max_{t, l} \; p(x, y, t, l)

    with p of the paper's appendix ("Probabilistic Decoding"). `BayesDecoder.decode` differs in two ways: it sums over
    target and label, and it may answer that nobody attacks, since the paper's Q covers 0 attackers. The paper does not
    say how it names attackers. In its Table 1 true and false positives of code g add up to exactly 1.00 in all six
    cells, with two and three attackers too, which neither "nobody" nor the sum allows: where all models say one class,
    the sum over labels speaks for two attackers who reach every model, while the best single explanation (the class is
    the label, and any one user attacks) names one. Threat model: deterministic; a guess, not a certificate.

    Parameters
    ----------
    decoder : BayesDecoder
        Gives the code, the vote model, S and Q; A does not matter.
    votes : array_like of int, shape (N, m)

    Returns
    -------
    list of tuple of int, length N
        Ties (within one part in 1e9): the fewest users, then the lowest indices.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> confusion = [[[0.9, 0.1], [0.1, 0.9]]] * 6
    >>> name_attackers(BayesDecoder(code, confusion, attackers_prior=(0.5, 0.5)), [[0, 0, 0, 0, 1, 1]])
    [(2,)]
    """
    if not decoder.is_exact:
        raise TooLargeError("the best explanation was asked for, but there are too many attacker sets to enumerate")
    model, sets = decoder.vote_model_, decoder.sets_
    rows = [row for row, found in enumerate(sets.best_sets) if found]
    if not rows:
        raise InputError("attackers_prior: only 0 attackers have a positive probability, so nobody can be named")
    success = log(decoder.success_rate) if decoder.success_rate > 0 else -inf
    hit = sets.bits[rows].astype(np.float64)
    prior = np.log(sets.best_weights[rows])
    distinct, inverse = distinct_rows(check_votes(votes, model.n_models, model.n_classes), model.n_classes)
    step = max(1, _CHUNK // (len(rows) * model.n_classes))
    named: list[int] = []
    for start in range(0, len(distinct), step):
        part = distinct[start : start + step]
        base = model.log_likelihood(part)
        # A hit changes the log-likelihood of a vote by log(S / C + 1 - S) if it says the target, else by log(1 - S).
        gains = np.logaddexp(success - base, decoder.failure_)
        best = np.full((len(part), len(rows)), -np.inf)
        for target in range(model.n_classes):
            best = np.maximum(best, _explain(part, base, gains, decoder.failure_, hit, target))
        # Up to a factor that all explanations of an input share.
        best += prior
        named += [rows[row] for row in first_best(np.exp(best - best.max(axis=1, keepdims=True))).tolist()]
    return [sets.best_sets[named[row]] for row in inverse.tolist()]


def _explain(
    votes: NDArray[np.int64],
    base: NDArray[np.float64],
    gains: NDArray[np.float64],
    failure: float,
    hit: NDArray[np.float64],
    target: int,
) -> NDArray[np.float64]:
    """Return the best log-likelihood over labels of each pattern with one target, shape (U, P)."""
    change = np.where((votes == target)[:, :, None], gains, failure)
    whole = base.sum(axis=1)[:, :, None] + change.transpose(0, 2, 1) @ hit.T
    return np.asarray(whole.max(axis=1))
