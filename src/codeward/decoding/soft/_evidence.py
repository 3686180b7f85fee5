"""What each model says about the label, from scores or from votes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Evidence:
    """Evidence of N inputs.

    Attributes
    ----------
    log_posteriors : ndarray of float64, shape (N, m, c)
        Calibrated log-probabilities of the label by each model, were it clean.
    votes : ndarray of int64, shape (N, m)
        Hard votes.
    """

    log_posteriors: NDArray[np.float64]
    votes: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.votes.shape[0])

    def take(self, rows: NDArray[np.int64]) -> "Evidence":
        """Evidence of the given rows."""
        return Evidence(self.log_posteriors[rows], self.votes[rows])


def weigh_votes(log_likelihoods: NDArray[np.float64], votes: NDArray[np.int64]) -> Evidence:
    """Evidence of hard votes: the label posterior by Bayes' rule with uniform labels.

    Parameters
    ----------
    log_likelihoods : ndarray, shape (N, m, c)
        ``log Pr(y_i | clean, label = l)``, as a `VoteModel` gives it.
    votes : ndarray of int64, shape (N, m)
    """
    top = log_likelihoods.max(axis=2, keepdims=True)
    return Evidence(
        log_likelihoods - top - np.log(np.exp(log_likelihoods - top).sum(axis=2, keepdims=True)),
        votes,
    )
