r"""Alarms with their scores, and a betting test that a stream of them is like the false ones it is compared with.

The test is valid whenever one looks. It is a conformal test martingale (Vovk, Gammerman, Shafer, "Algorithmic Learning
in a Random World", chapter 8): under the null hypothesis that reference and stream are exchangeable, the smoothed
online p-values

.. math:: p_u = \frac{\#\{i \le u : s_i > s_u\} + \theta_u \#\{i \le u : s_i = s_u\}}{n + u}

(i running over the n references and the stream so far, theta uniform) are independent and uniform on 0..1. A gambler
who bets on small p-values with factors of mean 1 multiplies a capital of 1 without expected gain, and by Ville's
inequality the chance that it *ever* reaches 1/a is at most a. No model of the scores is involved, and n may be any
number: each p-value ranks among the earlier *stream* too, so that sharing one small reference does no harm.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward.decoding import BayesDecoder, Decoded

#: Likelihoods held at a time: 32 MB.
BLOCK = 4_000_000


@dataclass(frozen=True)
class Alarms:
    """Inputs whose attack probability passes the threshold.

    Attributes
    ----------
    rows : ndarray of int64, shape (q,)
        Their places among the inputs given.
    targets : ndarray of int64, shape (q,)
        Most probable target given an attack.
    scores : ndarray of float64, shape (q,)
        Log of Pr(votes | attack on that target) / Pr(votes | clean), attackers summed over their prior.
    """

    rows: NDArray[np.int64]
    targets: NDArray[np.int64]
    scores: NDArray[np.float64]


def find_alarms(decoder: BayesDecoder, votes: NDArray[np.int64], threshold: float) -> Alarms:
    """Return the alarms among inputs with these votes, shape (N, m): attack probability above the threshold.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> decoder = BayesDecoder(named_code("g"), np.full((6, 10, 10), 0.002) + 0.98 * np.eye(10))
    >>> votes = np.stack([np.full(6, 4), np.where(decoder.code.column(13), 7, 4)])
    >>> find_alarms(decoder, votes, 0.5).targets
    array([7])
    """
    return score_alarms(decoder, votes, decoder.decode(votes), threshold)


def score_alarms(decoder: BayesDecoder, votes: NDArray[np.int64], decoded: Decoded, threshold: float) -> Alarms:
    """Return the alarms that any decoder raised on inputs with these votes, scored by the paper's likelihoods."""
    rows = np.flatnonzero(decoded.alarms(threshold) & (decoded.targets >= 0))
    return score_rows(decoder, votes, rows, decoded.targets[rows])


def score_rows(
    decoder: BayesDecoder, votes: NDArray[np.int64], rows: NDArray[np.int64], targets: NDArray[np.int64]
) -> Alarms:
    # Equal votes have equal scores: one of each.
    _, first, inverse = np.unique(votes[rows], axis=0, return_index=True, return_inverse=True)
    scores = np.empty(first.size)
    for block in cut_blocks(decoder, first.size):
        scores[block] = _score(decoder, votes[rows[first[block]]], targets[first[block]])
    return Alarms(rows, targets, scores[inverse.reshape(-1)])


def _score(decoder: BayesDecoder, votes: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return log sum_x prior(x) Pr(y | x, t) - log Pr(y | clean), the empty set left out: it is no attack."""
    hit = np.array([decoder.code.pattern(users) for users in decoder.sets_.best_sets if users], dtype=float)
    weights = np.array([w for w, users in zip(decoder.sets_.weights, decoder.sets_.best_sets, strict=True) if users])
    base = decoder.vote_model_.log_likelihood(votes)
    success = np.log(decoder.success_rate) if decoder.success_rate else -np.inf
    said = np.where(votes == targets[:, None], success, -np.inf)[:, :, None]
    change = np.logaddexp(said, decoder.failure_ + base) - base
    # Inputs x labels x patterns: the sum over models is one product.
    joint = base.sum(axis=1)[:, :, None] + change.transpose(0, 2, 1) @ hit.T
    top = joint.max(axis=(1, 2))
    attacked = top + np.log((np.exp(joint - top[:, None, None]).mean(axis=1) * (weights / weights.sum())).sum(axis=1))
    return np.asarray(attacked - decoder.clean_log_likelihood(votes))


def cut_blocks(decoder: BayesDecoder, count: int) -> Iterator[slice]:
    """Cut ``count`` vote vectors into blocks whose likelihoods fit in memory."""
    step = max(1, BLOCK // (decoder.sets_.weights.size * decoder.n_classes))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


#: Shares of attacks that gamblers expect in the stream, and shares of the references they expect above them: one
#: gambler a pair.
SHARES, OVERLAPS = (0.1, 0.5, 0.9), (0.0, 0.15)


def compute_p_values(
    reference: NDArray[np.float64], stream: NDArray[np.float64], theta: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the smoothed online conformal p-values of a stream; small where scores are high.

    Parameters
    ----------
    reference : ndarray, shape (n,)
        Scores under the null hypothesis; ``-inf`` is allowed.
    stream : ndarray, shape (q,)
        Scores in order of arrival.
    theta : ndarray, shape (q,)
        Tie-breaks, uniform on 0..1 and independent of the scores.

    Examples
    --------
    >>> compute_p_values(np.array([1.0, 2.0, 3.0]), np.array([4.0, 0.0]), np.array([1.0, 1.0]))
    array([0.25, 1.  ])
    """
    counted = np.isfinite(stream)
    seen = sorted(reference[np.isfinite(reference)].tolist())
    # The lowest of all tie with each other and have everything else above them.
    above = (len(seen) + np.cumsum(counted)).astype(float)
    total = reference.size + np.arange(1, stream.size + 1)
    ties = total - above
    for place in np.flatnonzero(counted).tolist():
        score = float(stream[place])
        insort(seen, score)
        right = bisect_right(seen, score)
        above[place], ties[place] = len(seen) - right, right - bisect_left(seen, score)
    return np.asarray((above + theta * ties) / total)


def bet_on_small(p_values: NDArray[np.float64], n_reference: NDArray[np.int64] | int) -> NDArray[np.float64]:
    r"""Return the log of the capital after each p-value, shape (..., q), starting from log 1.

    A gambler with share :math:`\pi` and overlap :math:`h` takes attacks to rank above all but :math:`h n` references:
    the next attack then has a p-value below :math:`a_u = (h n + 1 + A_u) / (n + u)`, with :math:`A_u` the earlier
    p-values below their own bound. It bets

    .. math:: f_u(p) = (1 - \pi) + \pi [p \le a_u] / a_u, \qquad \int_0^1 f_u = 1

    (:math:`a_u` depends on the past only). The capital is the mean over all gamblers; had a gambler known that every
    attack ranks above every reference, q attacks would multiply it by nearly the number of ways to choose q of n + q.

    Parameters
    ----------
    p_values : ndarray, shape (..., q)
        One or more streams, each along the last axis.
    n_reference : int or ndarray, shape (...)
        Size of the reference of each stream.

    Examples
    --------
    Five attacks above all of 99 references, and five inputs like any other:

    >>> capital = np.exp(bet_on_small(np.array([[0.01] * 5, [0.5] * 5]), 99))[:, -1]
    >>> bool(capital[0] > 1e6 and capital[1] < 1)
    True
    """
    *streams, length = p_values.shape
    size = np.broadcast_to(np.asarray(n_reference, dtype=float), streams)[..., None]
    first = np.multiply.outer(np.asarray(n_reference, dtype=float), OVERLAPS) + 1
    hits = np.zeros((*streams, len(OVERLAPS)))
    gains = np.empty((length, *streams, len(OVERLAPS)))
    for place in range(length):
        bound = np.minimum((first + hits) / (size + place + 1), 1.0)
        hit = p_values[..., place, None] <= bound
        gains[place] = hit / bound - 1
        hits += hit
    capital = np.zeros((length, *streams))
    totals = [np.cumsum(np.log1p(share * gains), axis=0) for share in SHARES]
    top = np.max([total.max(axis=-1, initial=-np.inf) for total in totals], axis=0)
    for total in totals:
        capital += np.exp(total - top[..., None]).sum(axis=-1)
    return np.moveaxis(top + np.log(capital / (len(SHARES) * len(OVERLAPS))), 0, -1)
