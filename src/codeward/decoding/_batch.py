"""Many inputs together, inputs known to share one trigger, and the single best explanation of an input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import ALARM, Decoded, distinct_rows, first_best
from codeward.decoding._posterior_kernels import sum_labels, tabulate_joint
from codeward.decoding._suspects import name_suspects
from codeward.decoding._vote_models import check_votes

#: Entries (distinct vote vectors x patterns x classes) a batch may have: 2 GB of floats.
MAX_BATCH = 250_000_000
#: Prior share of hard inputs among the clean ones.
HARD = 0.05
#: Places at which the share of models that take a hard input for another class is tried.
GRID = 8
#: EM stops when the mean log-likelihood of an input gains less.
TOLERANCE = 1e-8


def decode_batch(decoder: BayesDecoder, votes: ArrayLike, max_iterations: int = 200, strength: float = 1.0) -> Decoded:
    r"""Decode unlabelled inputs together: those triggered share few attacker sets and targets.

    What it cannot do to clean traffic: Proposition 29 of docs/theory.md.

    Inputs are drawn from a mixture whose weights, the same for all inputs, start at the decoder's prior and are fitted
    by EM (:math:`\kappa` pseudo-inputs stay behind the prior):

    .. math:: r_u(j) \propto \pi_j Pr(y_u \mid j), \qquad
              \pi_j \leftarrow (\sum_u r_u(j) + \kappa \pi^{prior}_j) / (N + \kappa)

    Its components are

    - *clean*, errors independent: the likelihood of `BayesDecoder`;
    - *hard*: every model takes the input for one other class t with the same unknown probability q, uniform in 0..1.
      The errors of models depend on each other, and a clean-vote model without this takes every hard image for an
      attack. It is what a shared trigger is tested against: the same votes, by models that are *not* a code's pattern;
    - one for every hit pattern s and target t. Left out are labels equal to t, which a trigger does not change, and the
      patterns of no model and of all of them: nothing tells those from clean inputs, and weights fitted to them would
      turn every class of clean traffic into its own attack.

    **Never more alarms than one by one**: the attack probability is the smaller one of this posterior and of
    `BayesDecoder.decode`, so that the alarms at any threshold are a subset, on clean traffic of any size and on any
    other; and the labels of inputs that are no alarm are those of `BayesDecoder.decode`. What is gained are fewer false
    alarms, and better labels, targets and names of attackers where inputs share a trigger; what can be lost are alarms
    on a trigger that few inputs of a large batch carry, or that reaches almost every model. Threat model as for
    `BayesDecoder` (*deterministic*); a probability statement, not a certificate.

    Parameters
    ----------
    decoder : BayesDecoder
        With all attacker sets enumerable.
    votes : array_like of int, shape (N, m)
    max_iterations : int
        Of EM; it stops early where the mean log-likelihood of an input gains less than `TOLERANCE`.
    strength : float
        :math:`\kappa`, above 0: keeps every weight positive.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> decoder = BayesDecoder(code, [[[0.9, 0.1], [0.1, 0.9]]] * 6, attackers_prior=(0.5, 0.5))
    >>> decode_batch(decoder, [[0, 0, 0, 0, 1, 1]] * 20 + [[0] * 6] * 80).suspects[0]
    (2,)
    """
    if not strength > 0:
        raise InputError(f"strength must be above 0, got {strength}")
    model, sets = decoder.vote_model_, decoder.sets_
    n_classes = model.n_classes
    distinct, inverse = distinct_rows(check_votes(votes, model.n_models, n_classes), n_classes)
    alone = decoder.decode(distinct)
    rows = np.flatnonzero((sets.hits > 0) & (sets.hits < model.n_models))
    size = distinct.shape[0] * rows.size * n_classes
    if size > MAX_BATCH:
        raise TooLargeError(f"a batch of {size:,} (vote vectors x patterns x classes) is over {MAX_BATCH:,}; split it")
    if not size or n_classes < 2:
        return alone.take(inverse)
    counts = np.bincount(inverse, minlength=distinct.shape[0]).astype(np.float64)

    # 1. Likelihoods of (vote vector, label), clean and hard, and of (vote vector, pattern, target).
    base = model.log_likelihood(distinct)
    clean = base.sum(axis=1) - np.log(n_classes)
    hard = weigh_hard(distinct, base)
    attacked = np.empty((distinct.shape[0], rows.size, n_classes))
    words, rates = np.ascontiguousarray(sets.words[rows]), (decoder.success_rate, decoder.failure_)
    tabulate_joint(distinct, base, words, *rates, True, attacked)
    attacked = (attacked - np.log(n_classes - 1)).reshape(distinct.shape[0], -1)
    top = np.maximum(attacked.max(axis=1), np.maximum(clean.max(axis=1), hard.max(axis=1)))
    by_clean, by_hard = np.exp(clean - top[:, None]), np.exp(hard - top[:, None])
    likelihood = np.column_stack([by_clean.sum(axis=1), by_hard.sum(axis=1), np.exp(attacked - top[:, None])])

    # 2. EM from the prior.
    weights = sets.weights[rows] / sets.weights[rows].sum()
    quiet = (1 - decoder.attack_rate) * np.array([1 - HARD, HARD])
    prior = np.concatenate([quiet, np.repeat(decoder.attack_rate * weights / n_classes, n_classes)])
    mixture, before = prior, -np.inf
    for _ in range(max_iterations):
        evidence = likelihood @ mixture
        after = float(counts @ (np.log(evidence) + top)) / counts.sum()
        expected = mixture * ((counts / evidence) @ likelihood)
        mixture = (expected + strength * prior) / (counts.sum() + strength)
        if after - before < TOLERANCE:
            break
        before = after
    share = likelihood * mixture
    total = share.sum(axis=1, keepdims=True)
    share /= total

    # 3. Marginals, as for one input.
    together = share[:, 2:].sum(axis=1)
    joint = np.ascontiguousarray(share[:, 2:]).reshape(-1, rows.size, n_classes)
    by_label = (mixture[0] * by_clean + mixture[1] * by_hard) / total
    sum_labels(distinct, base, words, decoder.success_rate, True, joint, by_label)
    by_label /= by_label.sum(axis=1, keepdims=True)
    by_pattern = joint.sum(axis=2) / np.where(together > 0, together, 1.0)[:, None]
    whole = np.zeros((len(by_pattern), sets.weights.size))
    whole[:, rows] = by_pattern
    suspects = name_suspects(sets, whole)
    alarm = np.minimum(alone.attack_probability, together)
    by_label = np.where((alarm > ALARM)[:, None], by_label, alone.label_probability)
    return Decoded(
        first_best(by_label),
        alarm,
        first_best(joint.sum(axis=1)),
        suspects.certain,
        np.minimum(np.asarray(by_pattern @ sets.members[rows]), 1.0),
        by_label,
        np.zeros(distinct.shape[0]),
        suspects.sets,
        suspects.more,
        alone.agreed,
    ).take(inverse)


def weigh_hard(votes: NDArray[np.int64], base: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Log of Pr(votes, label | hard), shape (U, c), for the clean log-likelihoods ``base`` of shape (U, m, c).

    .. math:: \frac{1}{c (c-1)} \sum_{t \ne l} \int_0^1 \prod_i (q [y_i = t] + (1 - q) C^{(i)}_{l y_i}) \, dq,

    the integral by the midpoint rule at `GRID` places.
    """
    n_classes, places = base.shape[2], (np.arange(GRID) + 0.5) / GRID
    likelihood, total = np.exp(base), np.full((base.shape[0], n_classes), -np.inf)
    for target in range(n_classes):
        says = (votes == target)[:, :, None]
        others = np.arange(n_classes) != target
        for q in places:
            product = np.log(q * says + (1 - q) * likelihood[:, :, others]).sum(axis=1)
            total[:, others] = np.logaddexp(total[:, others], product)
    return np.asarray(total - np.log(n_classes * (n_classes - 1) * GRID))


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


def pool_evidence(decoder: BayesDecoder, votes_groups: Sequence[ArrayLike]) -> Pooled:
    r"""Name the attackers behind a trigger from several inputs that carry it: the product of their evidence.

    .. math:: Pr(x, t \mid y_1 .. y_q) \propto \frac{Q(|x|)}{\binom{n}{|x|}} \prod_u \sum_{l} Pr(y_u \mid x, t, l)

    Each input has its own label; the attackers and the target are common. With q = 1 it equals `BayesDecoder.decode`.
    Threat model *deterministic*, votes independent given (x, t, l).

    Parameters
    ----------
    decoder : BayesDecoder
        With all attacker sets enumerable.
    votes_groups : sequence of array_like of int, shape (q, m) each

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> confusion = [[[0.9, 0.1], [0.1, 0.9]]] * 6
    >>> pool_evidence(BayesDecoder(code, confusion, attackers_prior=(0.5, 0.5)), [[[0, 0, 0, 0, 1, 1]] * 2]).suspects
    [(2,)]
    """
    sets, n_classes, rate = decoder.sets_, decoder.n_classes, decoder.attack_rate
    alarms, targets, patterns = [], [], []
    for attacked_each, clean_each in _look_up(decoder, votes_groups):
        joint = attacked_each.sum(axis=0) + np.log(sets.weights / n_classes)[:, None]
        top = joint.max()
        mass = np.exp(joint - top)
        with np.errstate(divide="ignore"):
            attacked = np.log(rate) + top + np.log(mass.sum())
            clean = np.log1p(-rate) + clean_each.sum()
        alarms.append(float(np.exp(attacked - np.logaddexp(attacked, clean))))
        targets.append(mass.sum(axis=0))
        patterns.append(mass.sum(axis=1) / mass.sum())
    by_pattern = np.array(patterns).reshape(-1, sets.weights.size)
    suspects = name_suspects(sets, by_pattern)
    return Pooled(
        np.array(alarms),
        first_best(np.array(targets).reshape(-1, n_classes)),
        suspects.certain,
        np.minimum(np.asarray(by_pattern @ sets.members), 1.0),
        suspects.sets,
        suspects.more,
    )


def _look_up(
    decoder: BayesDecoder, groups: Sequence[ArrayLike]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the likelihoods of every group's inputs, (q, patterns, c) under attack and (q,) clean.

    Groups share most of their vote vectors, so each distinct one is weighed once, as far as memory allows.
    """
    model, width = decoder.vote_model_, decoder.sets_.weights.size * decoder.n_classes
    checked = [check_votes(group, model.n_models, model.n_classes) for group in groups]
    # As many groups at a time as are sure to fit, at least one.
    ends = np.cumsum([len(group) for group in checked])
    start = 0
    while start < len(checked):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + MAX_BATCH // (4 * width), side="right")))
        distinct, inverse = distinct_rows(np.concatenate(checked[start:end]), model.n_classes)
        attacked, clean = decoder.log_likelihood(distinct), decoder.clean_log_likelihood(distinct)
        for group in checked[start:end]:
            rows, inverse = inverse[: len(group)], inverse[len(group) :]
            yield attacked[rows], clean[rows]
        start = end


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
