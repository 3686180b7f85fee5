"""How the label is read from the summed explanations, and the choice of the reading on validation data."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from codeward.decoding.soft._calibration import log_softmax
from codeward.decoding.soft._explanations import Sums

#: Discounts of an attack's log odds tried for the label.
SHIFTS = np.arange(-6.0, 6.01, 1.0)
#: Weights of the paper's decoder tried for the label; with the last one it decides alone.
VOTE_WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1000.0)
#: Smallest label probability of the paper's decoder that counts.
VOTE_FLOOR = 1e-12
#: Standard errors (of the paired difference) by which accuracy is to exceed the reference's, under attack and on clean
#: inputs.
ALLOWANCE, CLEAN_ALLOWANCE = 1.0, 2.0
#: How many times as much as a gain a shortfall counts, under attack and on clean inputs.
AVERSION, CLEAN_AVERSION = 4.0, 16.0


def blend(sums: Sums, by_votes: NDArray[np.float64], shift: float, vote_weight: float) -> NDArray[np.float64]:
    r"""Posterior of the label, shape (N, c).

    .. math:: p(l) \propto (e^{att(l) - \sigma} + e^{no(l)})\, p_{paper}(l)^\omega

    Parameters
    ----------
    sums : Sums
        Of N inputs.
    by_votes : ndarray, shape (N, c)
        Posterior of the label by the paper's decoder, p_paper.
    shift, vote_weight : float
        sigma and omega.
    """
    return softmax(log_softmax(sums.join(shift)) + vote_weight * np.log(np.maximum(by_votes, VOTE_FLOOR)))


def choose_blend(
    clean: Sums,
    attacked: Sums,
    by_votes: tuple[NDArray[np.float64], NDArray[np.float64]],
    labels: tuple[NDArray[np.int64], NDArray[np.int64]],
    reference: tuple[NDArray[np.int64], NDArray[np.int64]],
    strata: Sequence[NDArray[np.bool_]],
) -> tuple[float, float, NDArray[np.float64]]:
    """Choose the shift and the weight of the paper's decoder with the best accuracy that falls below no reference.

    A pair is worth its gain over the reference on clean inputs plus the mean of those on the kinds of simulated
    attacks, less `AVERSION` times the mean of the shortfalls on the kinds, less `CLEAN_AVERSION` times the one on clean
    inputs. A shortfall is what a gain lacks to `ALLOWANCE` (`CLEAN_ALLOWANCE`) standard errors of it. On a tie the
    smaller shift, then the smaller weight. Returned with the gains, the clean one first.

    Parameters
    ----------
    clean, attacked : Sums
        Of N clean validation inputs and M simulated attacks on them, by judges that saw neither.
    by_votes, labels, reference : pair of ndarray
        For the clean and for the attacked inputs: label posteriors of the paper's decoder, (N, c) and (M, c); true
        labels; labels by the decoder not to fall below.
    strata : sequence of ndarray of bool, shape (M,)
        Kinds of attacks, each compared for itself.
    """
    known = [reference[part] == labels[part] for part in (0, 1)]
    opinions = [np.log(np.maximum(by_votes[part], VOTE_FLOOR)) for part in (0, 1)]
    best, shift, weight, room = -np.inf, 0.0, 0.0, np.zeros(1 + len(strata))
    for sigma, omega in product(SHIFTS.tolist(), VOTE_WEIGHTS):
        # As `blend`, not normalised: the argmax is the same.
        gains = [
            ((joined + omega * opinions[part]).argmax(axis=1) == labels[part]).astype(np.float64) - known[part]
            for part, joined in enumerate((clean.join(sigma), attacked.join(sigma)))
        ]
        parts = [gains[0], *(gains[1][stratum] for stratum in strata)]
        gained = np.array([part.mean() for part in parts])
        errors = np.array([part.std() / np.sqrt(part.size) for part in parts])
        errors *= np.where(np.arange(errors.size) == 0, CLEAN_ALLOWANCE, ALLOWANCE)
        lacking = np.maximum(errors - gained, 0.0)
        worth = gained[0] - CLEAN_AVERSION * lacking[0]
        if strata:
            worth += (gained[1:] - AVERSION * lacking[1:]).mean()
        if worth > best:
            best, shift, weight, room = float(worth), sigma, omega, gained
    return shift, weight, room


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities from log masses, over the last axis."""
    return np.asarray(np.exp(log_softmax(values)))
