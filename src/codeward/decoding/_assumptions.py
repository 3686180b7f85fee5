"""What a decoder takes for granted about attacks: the only place of the defaults."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError


def uniform_prior(max_attackers: int) -> tuple[float, ...]:
    """Return Q(0), ..., Q(k) for k = ``max_attackers``, all equal.

    Examples
    --------
    >>> uniform_prior(3)
    (0.25, 0.25, 0.25, 0.25)
    """
    if int(max_attackers) != max_attackers or max_attackers < 0:
        raise InputError(f"max_attackers must be a whole number, 0 or more, got {max_attackers}")
    return (1 / (int(max_attackers) + 1),) * (int(max_attackers) + 1)


def check_prior(attackers_prior: ArrayLike) -> NDArray[np.float64]:
    """Validate Q(0..k): not negative, sums to 1."""
    prior = np.asarray(attackers_prior, dtype=np.float64)
    if prior.ndim != 1 or prior.size == 0 or not np.isfinite(prior).all() or (prior < 0).any():
        raise InputError("attackers_prior: expected the probabilities of 0, 1, 2, ... attackers, none negative or NaN")
    if abs(prior.sum() - 1) > 1e-6:
        raise InputError(f"attackers_prior: the probabilities sum to {prior.sum():.6g}, not 1")
    return prior


@dataclass(frozen=True)
class Assumptions:
    """What a decoder assumes about attacks; each decoder reads the parts it knows.

    Parameters
    ----------
    attack_rate : float
        A, prior probability that an input carries a trigger, in 0..1 (bayes, groups).
    success_rate : float
        S, probability that a hit model says the target, in 0..1 (bayes, groups).
    attackers_prior : sequence of float
        Q(0), ..., Q(k), prior of the number of attackers (bayes, groups, soft, discounted).
    second_rate : float
        B, prior probability that an attack has a second group, in 0..1 (groups).
    second_success_rate : float
        S', how often a model of the second group answers to the first one's trigger, in 0..1 (groups).
    n_attackers : int, optional
        k, the most users that may attack (consensus, which needs it).
    n_errors : int
        e, wrong votes of models that nobody attacks to tolerate (consensus).
    false_alarm_rate : float
        Share of clean inputs that may be flagged, in 0..1 (soft, discounted).

    Examples
    --------
    >>> Assumptions().attackers_prior
    (0.25, 0.25, 0.25, 0.25)
    >>> Assumptions.uniform(1, attack_rate=0.1).attackers_prior
    (0.5, 0.5)
    """

    attack_rate: float = 0.5
    success_rate: float = 0.99
    attackers_prior: Sequence[float] = uniform_prior(3)
    second_rate: float = 0.01
    second_success_rate: float = 0.9
    n_attackers: int | None = None
    n_errors: int = 0
    false_alarm_rate: float = 0.05

    def __post_init__(self) -> None:
        for name in ("attack_rate", "success_rate", "second_rate", "second_success_rate", "false_alarm_rate"):
            check_rate(name, getattr(self, name))
        object.__setattr__(self, "attackers_prior", tuple(check_prior(self.attackers_prior).tolist()))

    @classmethod
    def uniform(cls, max_attackers: int, **others: Any) -> "Assumptions":
        """Return assumptions with 0 to ``max_attackers`` attackers equally likely."""
        return cls(attackers_prior=uniform_prior(max_attackers), **others)

    @property
    def max_attackers(self) -> int:
        """The largest number of attackers that the prior speaks of."""
        return len(self.attackers_prior) - 1


def check_rate(name: str, rate: float) -> None:
    """Raise unless a rate is in 0..1."""
    if not 0 <= rate <= 1:
        raise InputError(f"{name} must be in 0..1, got {rate}")


#: The defaults of every decoder.
DEFAULTS = Assumptions()
