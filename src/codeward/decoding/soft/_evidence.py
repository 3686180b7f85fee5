"""What each model says about the label and about a target, in the form the fusion needs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Knots of the hit evidence over the calibrated log-odds of the target, for a model that votes for it ...
VOTED_KNOTS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, 3.5, 5.0, 8.0])
#: ... and for one that does not.
UNVOTED_KNOTS = np.array([-8.0, -5.0, -3.0, -1.5, 0.0])


@dataclass(frozen=True)
class Evidence:
    """Evidence of N inputs.

    Attributes
    ----------
    log_posteriors : ndarray of float64, shape (N, m, c)
        Calibrated log-probabilities of the label by each model, were it clean.
    votes : ndarray of int64, shape (N, m)
        Hard votes.
    knots : ndarray of int64, shape (N, m, c)
        Where the hit evidence for target t is read: between ``rho[knots]`` and ``rho[knots + 1]``,
    fractions : ndarray of float64, shape (N, m, c)
        this far from the first to the second.
    """

    log_posteriors: NDArray[np.float64]
    votes: NDArray[np.int64]
    knots: NDArray[np.int64]
    fractions: NDArray[np.float64]

    def __len__(self) -> int:
        return int(self.votes.shape[0])

    def take(self, rows: NDArray[np.int64]) -> "Evidence":
        """Evidence of the given rows."""
        return Evidence(self.log_posteriors[rows], self.votes[rows], self.knots[rows], self.fractions[rows])


@dataclass(frozen=True)
class KnotLayout:
    """Two tables of the hit evidence side by side: first for voted targets, then for unvoted ones.

    A decoder on votes alone has one knot in each: the evidence knows only whether the model says t.
    """

    n_voted: int
    n_unvoted: int

    @property
    def size(self) -> int:
        """Number of knots of both tables."""
        return self.n_voted + self.n_unvoted


SCORE_LAYOUT = KnotLayout(VOTED_KNOTS.size, UNVOTED_KNOTS.size)
VOTE_LAYOUT = KnotLayout(1, 1)


def weigh_scores(log_posteriors: NDArray[np.float64], votes: NDArray[np.int64]) -> Evidence:
    """Place calibrated scores on the knots of `SCORE_LAYOUT`; log-odds past the last knot are clipped."""
    odds = log_posteriors - np.log(-np.expm1(np.minimum(log_posteriors, -1e-12)))
    voted = votes[:, :, None] == np.arange(log_posteriors.shape[2])
    knots = np.empty(odds.shape, dtype=np.int64)
    fractions = np.empty(odds.shape)
    for table, offset, here in ((VOTED_KNOTS, 0, voted), (UNVOTED_KNOTS, VOTED_KNOTS.size, ~voted)):
        value = np.clip(odds[here], table[0], table[-1])
        below = np.clip(np.searchsorted(table, value, side="right") - 1, 0, table.size - 2)
        knots[here] = offset + below
        fractions[here] = (value - table[below]) / (table[below + 1] - table[below])
    return Evidence(log_posteriors, votes, knots, fractions)


def weigh_votes(log_likelihoods: NDArray[np.float64], votes: NDArray[np.int64]) -> Evidence:
    """Evidence of hard votes: the label posterior by Bayes' rule with uniform labels, one knot a table.

    Parameters
    ----------
    log_likelihoods : ndarray, shape (N, m, c)
        ``log Pr(y_i | clean, label = l)``, as a `VoteModel` gives it.
    votes : ndarray of int64, shape (N, m)
    """
    top = log_likelihoods.max(axis=2, keepdims=True)
    log_posteriors = log_likelihoods - top - np.log(np.exp(log_likelihoods - top).sum(axis=2, keepdims=True))
    unvoted = votes[:, :, None] != np.arange(log_likelihoods.shape[2])
    return Evidence(log_posteriors, votes, unvoted.astype(np.int64), np.zeros(unvoted.shape))
