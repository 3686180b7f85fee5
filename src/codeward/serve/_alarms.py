"""Alarms: which inputs look attacked, at what target, and how strongly."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward.decoding import BayesDecoder

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
    """Return the alarms among inputs with these votes, shape (N, m): attack probability above the threshold."""
    decoded = decoder.decode(votes)
    rows = np.flatnonzero(decoded.attack_probability > threshold)
    targets = decoded.targets[rows]
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
