"""Sums of the joint probability of one chunk of vote vectors, and the posteriors they give."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Masses(NamedTuple):
    """Unnormalised sums of p(x, y, t, l) for U vote vectors.

    Attributes
    ----------
    labels, targets : ndarray, shape (U, c)
        Sums over (x, t) and over (x, l), times ``exp(-scales[:, 0])``.
    clean : ndarray, shape (U, c)
        Product of the clean-vote likelihoods of each label, times ``exp(-scales[:, 1])``.
    patterns : ndarray, shape (U, P)
        Sums over (t, l), scaled like ``labels``; empty when not wanted.
    scales : ndarray, shape (U, 2)
    """

    labels: NDArray[np.float64]
    targets: NDArray[np.float64]
    clean: NDArray[np.float64]
    patterns: NDArray[np.float64]
    scales: NDArray[np.float64]

    def hypotheses(self, attack_rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Factors, shape (U,) each, that put ``labels`` and ``clean`` on one scale with the prior of an attack.

        ``A * labels * exp(scales[0]) : (1 - A) * c * clean * exp(scales[1])``, the larger scale taken out.
        """
        with np.errstate(divide="ignore"):
            attacked = np.log(attack_rate) + self.scales[:, 0]
            clean = np.log1p(-attack_rate) + np.log(self.clean.shape[1]) + self.scales[:, 1]
        top = np.maximum(attacked, clean)
        return np.exp(attacked - top), np.exp(clean - top)

    def attack_probability(self, attack_rate: float) -> NDArray[np.float64]:
        """Pr(attack | y), shape (U,)."""
        attacked, clean = self.hypotheses(attack_rate)
        attacked = attacked * self.labels.sum(axis=1)
        return np.asarray(attacked / (attacked + clean * self.clean.sum(axis=1)))

    def label_probability(self, attack_rate: float) -> NDArray[np.float64]:
        """Pr(label | y), shape (U, c)."""
        attacked, clean = self.hypotheses(attack_rate)
        total = attacked[:, None] * self.labels + clean[:, None] * self.clean
        return np.asarray(total / total.sum(axis=1, keepdims=True))
