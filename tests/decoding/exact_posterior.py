"""The slow twin of the Bayes decoder: the paper's formula as printed, in plain loops."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward.codes import Code
from codeward.decoding._assumptions import DEFAULTS
from codeward.decoding._attacker_sets import NEARLY, TIE_TOLERANCE


@dataclass(frozen=True)
class ExactPosterior:
    """Posterior of one input.

    Attributes
    ----------
    attack_probability : float
    label_probability : ndarray, shape (c,)
    target_probability : ndarray, shape (c,)
        Given an attack.
    attackers_probability : dict from attacker set (tuple of users) to probability
        Given an attack.
    """

    attack_probability: float
    label_probability: NDArray[np.float64]
    target_probability: NDArray[np.float64]
    attackers_probability: dict[tuple[int, ...], float]

    @property
    def best_set(self) -> tuple[int, ...]:
        """Most probable set; ties to the fewest users, then the lowest indices."""
        best = max(self.attackers_probability.values())
        tied = [x for x, p in self.attackers_probability.items() if p >= best * (1 - TIE_TOLERANCE)]
        return min(tied, key=lambda x: (len(x), x))

    @property
    def nearly_best(self) -> set[tuple[int, ...]]:
        """All sets of at least a twentieth of the best posterior."""
        least = max(self.attackers_probability.values()) * NEARLY * (1 - TIE_TOLERANCE)
        return {x for x, p in self.attackers_probability.items() if p >= least}

    def user_probability(self, n_users: int) -> NDArray[np.float64]:
        """Posterior that each user is an attacker, given an attack, shape (n,)."""
        total = np.zeros(n_users)
        for attackers, probability in self.attackers_probability.items():
            total[list(attackers)] += probability
        return total


def decode_exact(
    code: Code,
    confusion: ArrayLike,
    votes: Sequence[int],
    attack_rate: float = DEFAULTS.attack_rate,
    success_rate: float = DEFAULTS.success_rate,
    attackers_prior: Sequence[float] = DEFAULTS.attackers_prior,
) -> ExactPosterior:
    r"""Evaluate the formula of the paper (section "Decoding", appendix "Probabilistic Decoding") by enumeration.

    .. math::

        p(x, y, t, l) = \frac{Q(|x|)}{\binom{n}{|x|}} \prod_i \begin{cases}
            S \delta_{t y_i} + (1 - S) C^{(i)}_{l y_i} & \sum_j H_{ij} x_j > 0 \\ C^{(i)}_{l y_i} & \text{otherwise}
        \end{cases}

    Parameters
    ----------
    code : Code
    confusion : array_like, shape (m, c, c)
        Used as given.
    votes : sequence of int, length m
    attack_rate, success_rate, attackers_prior
        A, S and Q(0..k).
    """
    matrices = np.asarray(confusion, dtype=np.float64)
    n_classes, n_users = matrices.shape[1], code.n_users
    p: dict[tuple[tuple[int, ...], int, int], float] = {}
    for size, prior in enumerate(attackers_prior):
        if size > n_users:
            break
        for attackers in combinations(range(n_users), size):
            hit = code.pattern(attackers)
            for target in range(n_classes):
                for label in range(n_classes):
                    product = prior / comb(n_users, size)
                    for i, vote in enumerate(votes):
                        clean = float(matrices[i, label, vote])
                        if hit[i]:
                            product *= success_rate * (target == vote) + (1 - success_rate) * clean
                        else:
                            product *= clean
                    p[attackers, target, label] = product
    clean_product = np.ones(n_classes)
    for label in range(n_classes):
        for i, vote in enumerate(votes):
            clean_product[label] *= matrices[i, label, vote]

    label_mass = (1 - attack_rate) * n_classes * clean_product
    target_mass = np.zeros(n_classes)
    attackers_mass: dict[tuple[int, ...], float] = {}
    for (attackers, target, label), mass in p.items():
        label_mass[label] += attack_rate * mass
        target_mass[target] += mass
        attackers_mass[attackers] = attackers_mass.get(attackers, 0.0) + mass
    attacked = sum(p.values())
    clean = (1 - attack_rate) * n_classes * float(clean_product.sum())
    return ExactPosterior(
        attack_rate * attacked / (attack_rate * attacked + clean),
        label_mass / label_mass.sum(),
        target_mass / attacked,
        {attackers: mass / attacked for attackers, mass in attackers_mass.items()},
    )
