"""Many inputs together: a batch of unlabelled queries, and inputs known to share one trigger."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import Decoded, distinct_rows, first_best
from codeward.decoding._kernels import sum_labels
from codeward.decoding._models import check_votes

#: Entries (distinct vote vectors x patterns x classes) a batch may have: 2 GB of floats.
MAX_BATCH = 250_000_000


def decode_batch(
    decoder: BayesDecoder, votes: ArrayLike, max_iterations: int = 200, strength: float = 1.0, tolerance: float = 1e-8
) -> Decoded:
    r"""Decode unlabelled inputs together: those triggered share few attacker sets and targets.

    A mixture model: an input is clean with weight :math:`\pi_0`, else attacked with pattern s and target t with weight
    :math:`\pi_{s,t}`, the same for all inputs. The weights start at the decoder's prior and are fitted by EM:

    .. math:: r_u(s,t) \propto \pi_{s,t} Pr(y_u \mid s,t), \qquad
              \pi_{s,t} \leftarrow (\sum_u r_u(s,t) + \kappa \pi^{prior}_{s,t}) / (N + \kappa)

    Same threat model as `BayesDecoder` (*deterministic*), same likelihoods; only the prior is learnt from the batch. On
    a batch of one input with a large :math:`\kappa` it is the per-input posterior.

    Parameters
    ----------
    decoder : BayesDecoder
        With all attacker sets enumerable.
    votes : array_like of int, shape (N, m)
    max_iterations : int
    strength : float
        Pseudo-inputs :math:`\kappa` behind the prior, above 0: keeps every weight positive.
    tolerance : float
        Stop when the mean log-likelihood of an input gains less.
    """
    if not strength > 0:
        raise InputError(f"strength must be above 0, got {strength}")
    model, sets = decoder.vote_model_, decoder.sets_
    checked = check_votes(votes, model.n_models, model.n_classes)
    distinct, inverse = distinct_rows(checked, model.n_classes)
    size = distinct.shape[0] * sets.weights.size * model.n_classes
    if size > MAX_BATCH:
        raise TooLargeError(f"a batch of {size:,} (vote vectors x patterns x classes) is over {MAX_BATCH:,}; split it")
    counts = np.bincount(inverse, minlength=distinct.shape[0]).astype(np.float64)

    # 1. Likelihoods relative to the largest of each vote vector; column 0 is "clean".
    attacked = decoder.log_likelihood(distinct).reshape(distinct.shape[0], -1)
    clean = decoder.clean_log_likelihood(distinct)
    top = np.maximum(attacked.max(axis=1, initial=-np.inf), clean)
    likelihood = np.column_stack([np.exp(clean - top), np.exp(attacked - top[:, None])])
    by_target = np.repeat(sets.weights / model.n_classes, model.n_classes) / sets.weights.sum()
    prior = np.concatenate([[1 - decoder.attack_rate], decoder.attack_rate * by_target])

    # 2. EM; a batch without inputs keeps the prior.
    weights, before = prior, -np.inf
    for _ in range(max_iterations if distinct.size else 0):
        evidence = likelihood @ weights
        after = float(counts @ (np.log(evidence) + top)) / counts.sum()
        expected = weights * ((counts / evidence) @ likelihood)
        weights = (expected + strength * prior) / (counts.sum() + strength)
        if after - before < tolerance:
            break
        before = after
    share = likelihood * weights
    share /= share.sum(axis=1, keepdims=True)

    # 3. Marginals, as for one input.
    alarm = 1 - share[:, 0]
    joint = np.ascontiguousarray(share[:, 1:]).reshape(-1, sets.weights.size, model.n_classes)
    base = model.log_likelihood(distinct)
    total = base.sum(axis=1)
    by_label = np.exp(total - total.max(axis=1, keepdims=True))
    by_label *= share[:, :1] / by_label.sum(axis=1, keepdims=True)
    sum_labels(distinct, base, sets.words, decoder.success_rate, joint, by_label)
    by_label /= by_label.sum(axis=1, keepdims=True)
    given = np.where(alarm > 0, alarm, 1.0)
    by_pattern = joint.sum(axis=2) / given[:, None]
    best = first_best(by_pattern * (sets.best_weights / sets.weights))
    return Decoded(
        first_best(by_label),
        alarm,
        first_best(joint.sum(axis=1)),
        [sets.best_sets[row] for row in best.tolist()],
        np.minimum(np.asarray(by_pattern @ sets.members), 1.0),
        by_label,
        np.zeros(distinct.shape[0]),
    ).take(inverse)


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
        Most probable attacker set given an attack; ties to the fewest users, then the lowest indices.
    user_probability : ndarray, shape (G, n)
    """

    attack_probability: NDArray[np.float64]
    targets: NDArray[np.int64]
    suspects: Sequence[tuple[int, ...]]
    user_probability: NDArray[np.float64]


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
    best = first_best(by_pattern * (sets.best_weights / sets.weights))
    return Pooled(
        np.array(alarms),
        first_best(np.array(targets).reshape(-1, n_classes)),
        [sets.best_sets[row] for row in best.tolist()],
        np.minimum(np.asarray(by_pattern @ sets.members), 1.0),
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
