"""What each model says about the label, the explanations of an input, and the log masses summed over them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, count_attacker_sets
from codeward.decoding._assumptions import check_prior
from codeward.decoding._attacker_sets import AttackerSets, gather_attacker_sets
from codeward.decoding._bayes import EXACT_SETS

#: Most groups of patterns that are compared for themselves: more would leave too few simulated attacks in each.
MOST_GROUPS = 6


@dataclass(frozen=True)
class Explanations:
    """Hit patterns that leave at least one clean model, with their prior given an attack.

    Attributes
    ----------
    sets : AttackerSets
        Patterns of 1..k attackers; nothing can be recovered where every model is hit, so those are left out.
    patterns : ndarray of bool, shape (P, m)
    log_weights : ndarray of float64, shape (P,)
        Log prior of each, that of ``sets``.
    groups : ndarray of int64, shape (P,)
        Patterns with about equally many hit models share a group, 0..J-1 by that number; see `group_patterns`.
    """

    sets: AttackerSets
    patterns: NDArray[np.bool_]
    log_weights: NDArray[np.float64]
    groups: NDArray[np.int64]

    @property
    def n_groups(self) -> int:
        """Number of groups J."""
        return int(self.groups.max()) + 1


@dataclass(frozen=True)
class Sums:
    """Log masses of N inputs.

    Attributes
    ----------
    attacked, clean : ndarray, shape (N, c)
        By label, under an attack and under none; the latter sums to 1.
    table : ndarray, shape (N, P, c)
        By pattern and target, under an attack.
    """

    attacked: NDArray[np.float64]
    clean: NDArray[np.float64]
    table: NDArray[np.float64]

    def join(self, shift: float) -> NDArray[np.float64]:
        """Log posterior of the label up to a constant, the attack's log odds lowered by ``shift``, shape (N, c)."""
        return np.logaddexp(self.attacked - shift, self.clean)

    def take(self, rows: NDArray[np.int64]) -> "Sums":
        """Masses of some inputs, without the table."""
        return Sums(self.attacked[rows], self.clean[rows], np.empty((0, 0, 0)))

    @property
    def gap(self) -> NDArray[np.float64]:
        """Log odds of an attack before the threshold, shape (N,)."""
        return log_sum(self.attacked) - log_sum(self.clean)


def list_explanations(code: Code, attackers_prior: NDArray[np.float64]) -> Explanations:
    """Gather the hit patterns of 1..k attackers that leave a clean model.

    Parameters
    ----------
    code : Code
    attackers_prior : ndarray, shape (k + 1,)
        Q(0..k) as in `BayesDecoder`; Q(0) is dropped: nobody attacking is the other hypothesis.
    """
    prior = check_prior(attackers_prior).copy()
    prior[0] = 0.0
    if prior.sum() <= 0:
        raise InputError("attackers_prior: at least one positive number of attackers needs a positive probability")
    n_sets = count_attacker_sets(code.n_users, prior.size - 1)
    if n_sets > EXACT_SETS:
        raise TooLargeError(
            f"{n_sets:,} attacker sets are over the score decoder's limit of {EXACT_SETS:,}; "
            "shorten attackers_prior or use BayesDecoder"
        )
    sets = gather_attacker_sets(code, prior / prior.sum())
    rows = np.flatnonzero(sets.hits < code.n_models)
    if rows.size == 0:
        raise InputError("every attacker of this code hits all models: there is no clean model to recover a label from")
    kept = sets.take(rows)
    return Explanations(kept, kept.bits, np.log(kept.weights), group_patterns(kept.hits, kept.weights))


def group_patterns(hits: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Group patterns by their number of hit models, in at most `MOST_GROUPS` groups of neighbouring numbers.

    While there are too many, the two neighbours with the least prior together become one (the first such pair on a
    tie).

    Parameters
    ----------
    hits : ndarray of int64, shape (P,)
        Hit models of each pattern.
    weights : ndarray, shape (P,)
        Prior of each pattern.

    Returns
    -------
    ndarray of int64, shape (P,)
        Group of each pattern, 0..J-1, not decreasing in the number of hit models.
    """
    _, groups = np.unique(hits, return_inverse=True)
    masses = np.bincount(groups, weights=weights)
    while masses.size > MOST_GROUPS:
        lightest = int((masses[:-1] + masses[1:]).argmin())
        groups = groups - (groups > lightest)
        masses = np.bincount(groups, weights=weights)
    return groups.astype(np.int64)


def log_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of the sum of exponentials over the last axis; -inf where all values are."""
    top = values.max(axis=-1)
    known = np.isfinite(top)
    shifted = values - np.where(known, top, 0.0)[..., None]
    return np.asarray(np.where(known, top + np.log(np.maximum(np.exp(shifted).sum(axis=-1), 1e-300)), -np.inf))


@dataclass(frozen=True)
class ModelEvidence:
    """ModelEvidence of N inputs.

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

    def take(self, rows: NDArray[np.int64]) -> "ModelEvidence":
        """ModelEvidence of the given rows."""
        return ModelEvidence(self.log_posteriors[rows], self.votes[rows])


def weigh_votes(log_likelihoods: NDArray[np.float64], votes: NDArray[np.int64]) -> ModelEvidence:
    """ModelEvidence of hard votes: the label posterior by Bayes' rule with uniform labels.

    Parameters
    ----------
    log_likelihoods : ndarray, shape (N, m, c)
        ``log Pr(y_i | clean, label = l)``, as a `VoteModel` gives it.
    votes : ndarray of int64, shape (N, m)
    """
    top = log_likelihoods.max(axis=2, keepdims=True)
    return ModelEvidence(
        log_likelihoods - top - np.log(np.exp(log_likelihoods - top).sum(axis=2, keepdims=True)),
        votes,
    )
