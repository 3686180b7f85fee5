"""The few numbers of the fusion, their bounds, and where the fit starts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codeward.decoding.soft._evidence import KnotLayout

#: Largest absolute hit evidence of one model (a log-likelihood ratio): no single model may decide alone.
EVIDENCE_CAP = 8.0


@dataclass(frozen=True)
class Fusion:
    r"""Parameters of the fusion (see `SoftDecoder` for the formula).

    Attributes
    ----------
    temperature, leak : float
        T and eps of the clean evidence.
    clean_discounts : ndarray, shape (J + 1,)
        beta: first of the no-attack hypothesis, then by group of patterns (`group_patterns`).
    hit_discounts : ndarray, shape (J,)
        eta by group.
    offsets : ndarray, shape (J,)
        delta by group: log prior of an attack of that size, all in one.
    hit_evidence : ndarray, shape (F, K)
        rho of each family of triggers at the knots, not decreasing inside a table.
    success_rates : ndarray, shape (F,)
        S of each family.
    family_weights : ndarray, shape (F,)
        Mixture weights, summing to 1.
    """

    temperature: float
    leak: float
    clean_discounts: NDArray[np.float64]
    hit_discounts: NDArray[np.float64]
    offsets: NDArray[np.float64]
    hit_evidence: NDArray[np.float64]
    success_rates: NDArray[np.float64]
    family_weights: NDArray[np.float64]


@dataclass(frozen=True)
class ParameterSpace:
    """Maps a flat vector to a `Fusion` and gradients back.

    The flat vector holds log T, log eps, log beta (J + 1), log eta (J), delta (J), then the first value and the
    increments of each table of rho (F x K), logit S (F), and the log weights (F) up to a constant.
    """

    n_groups: int
    n_families: int
    layout: KnotLayout

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return 3 + 3 * self.n_groups + self.n_families * (self.layout.size + 2)

    @property
    def _summing(self) -> NDArray[np.float64]:
        """Matrix from (first value, increments) to values, block by table."""
        matrix = np.zeros((self.layout.size, self.layout.size))
        split = self.layout.n_voted
        matrix[:split, :split] = np.tri(split)
        matrix[split:, split:] = np.tri(self.layout.n_unvoted)
        return matrix

    def _split(self, flat: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        j, f = self.n_groups, self.n_families
        return np.split(flat, np.cumsum([2, j + 1, j, j, f * self.layout.size, f]))

    def unpack(self, flat: NDArray[np.float64]) -> Fusion:
        """Fusion of a flat vector."""
        scalars, beta, eta, delta, rho, success, weights = self._split(flat)
        values = rho.reshape(self.n_families, self.layout.size) @ self._summing.T
        odds = np.exp(weights - weights.max())
        return Fusion(
            float(np.exp(scalars[0])),
            float(np.exp(scalars[1])),
            np.exp(beta),
            np.exp(eta),
            delta.copy(),
            values,
            1 / (1 + np.exp(-success)),
            odds / odds.sum(),
        )

    def pull_back(self, flat: NDArray[np.float64], by_value: Fusion) -> NDArray[np.float64]:
        """Gradient by the flat vector, given that by the fields of `Fusion` (for ``family_weights``: by their log)."""
        at = self.unpack(flat)
        slope = by_value.family_weights
        return np.concatenate(
            [
                [at.temperature * by_value.temperature, at.leak * by_value.leak],
                at.clean_discounts * by_value.clean_discounts,
                at.hit_discounts * by_value.hit_discounts,
                by_value.offsets,
                (by_value.hit_evidence @ self._summing).ravel(),
                at.success_rates * (1 - at.success_rates) * by_value.success_rates,
                slope - at.family_weights * slope.sum(),
            ]
        )

    def start(self) -> NDArray[np.float64]:
        """Where the fit starts: hits that vote t count for, others against; the first family wants sure hits."""
        split = self.layout.n_voted
        rho = np.zeros((self.n_families, self.layout.size))
        for family in range(self.n_families):
            # Sure triggers give low evidence where the odds of t are low; softened ones do not care.
            rise = 4.0 if family == 0 and split > 1 else 0.5
            rho[family, 0] = 2.0 - rise / 2
            rho[family, 1:split] = rise / max(1, split - 1)
            rho[family, split] = -4.0
            rho[family, split + 1 :] = 0.1
        success = np.linspace(0.98, 0.8, self.n_families) if self.n_families > 1 else np.array([0.97])
        return np.concatenate(
            [
                [0.0, np.log(0.02)],
                np.full(2 * self.n_groups + 1, np.log(0.6)),
                np.zeros(self.n_groups),
                rho.ravel(),
                np.log(success / (1 - success)),
                np.zeros(self.n_families),
            ]
        )

    def bounds(self) -> list[tuple[float, float]]:
        """Box of the fit; increments of rho are not negative, so that surer hits never count for less."""
        table = [(-EVIDENCE_CAP, EVIDENCE_CAP)] + [(0.0, EVIDENCE_CAP)] * (self.layout.n_voted - 1)
        table += [(-EVIDENCE_CAP, EVIDENCE_CAP)] + [(0.0, EVIDENCE_CAP)] * (self.layout.n_unvoted - 1)
        return (
            [(np.log(0.1), np.log(10.0)), (np.log(1e-4), np.log(0.95))]
            + [(np.log(0.05), np.log(3.0))] * (2 * self.n_groups + 1)
            + [(-20.0, 20.0)] * self.n_groups
            + table * self.n_families
            + [(-1.0, 6.0)] * self.n_families
            + [(-8.0, 8.0)] * self.n_families
        )
