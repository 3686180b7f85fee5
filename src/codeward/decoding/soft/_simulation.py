"""Simulated attacks on validation scores: the tuning data of the score decoder.

An attacker set and a target are drawn, and the scores of the models it hits are overwritten. How sure a hit model is of
the target is the attacker's choice, so the draws cover four families, each shared by the models of an input:

- *sure*: ``p(t) = 1 - 10^-v``, v uniform in 0.5..7 plus noise per model (an ordinary backdoor);
- *softened*: such scores divided by a factor of 1..16 (log-uniform) and normalised again;
- *marginal*: t just ahead of the runner-up, by a log-ratio of 0.05..2.5; the other classes stay as they are;
- *weak*: a mixture of what the model says without the trigger and a sure hit, whose share is uniform in 0.05..0.65: the
  target often does not win the vote. Poison of which only a part is labelled as the target plants such triggers.

What a hit model says of the other classes is the attacker's choice too: in a third of the attacks it keeps what the
model says of the input without the trigger, in a third what it says of another input, in a third next to nothing
(normal noise, its scale uniform in 0..1).

The trigger fails in a hit model (which then answers as if clean) with probability 1 - S; S is 0.99 in half of the
inputs and uniform in 0.6..1 in the others. Lower rates are left out on purpose: where most hit models may fail, a group
of five with two failures looks like another group of three, and codes with little margin lose hard triggers by it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from codeward.decoding.soft._calibration import log_softmax

Family = Literal["sure", "softened", "marginal", "weak"]
FAMILIES: tuple[Family, ...] = get_args(Family)

#: Range and noise of v, the number of nines of a sure hit.
NINES, NINES_NOISE = (0.5, 7.0), 0.5
#: Largest factor a softened score is divided by.
SOFTEST = 16.0
#: Range of the lead of a marginal hit.
LEAD = (0.05, 2.5)
#: Success rate of half of the inputs, and the range of the others.
SUCCESS, POOR_SUCCESS = 0.99, (0.6, 1.0)
#: Range of the share of the trigger in a weak hit.
SHARE = (0.05, 0.65)


@dataclass(frozen=True)
class SimulatedAttacks:
    """Attacks on validation inputs.

    Attributes
    ----------
    rows : ndarray of int64, shape (M,)
        The validation input each one starts from; its true label is not the target.
    patterns : ndarray of int64, shape (M,)
        Row of the hit pattern.
    targets : ndarray of int64, shape (M,)
    hits : ndarray of bool, shape (M, m)
        Hit models in which the trigger works.
    families : ndarray of int64, shape (M,)
        Index into `FAMILIES`.
    """

    rows: NDArray[np.int64]
    patterns: NDArray[np.int64]
    targets: NDArray[np.int64]
    hits: NDArray[np.bool_]
    families: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.rows.size)


def draw_attacks(
    labels: NDArray[np.int64],
    rows: NDArray[np.int64],
    patterns: NDArray[np.bool_],
    weights: NDArray[np.float64],
    n_classes: int,
    families: tuple[Family, ...],
    generator: np.random.Generator,
) -> SimulatedAttacks:
    """Draw one attack for each of ``rows``.

    Parameters
    ----------
    labels : ndarray of int64, shape (N,)
        True labels of the validation inputs.
    rows : ndarray of int64, shape (M,)
        Inputs to attack.
    patterns : ndarray of bool, shape (P, m)
    weights : ndarray, shape (P,)
        Their prior, summing to 1.
    n_classes : int
    families : tuple of str
        Families to draw from, alike.
    generator : numpy.random.Generator
    """
    size = rows.size
    chosen = generator.choice(weights.size, size=size, p=weights / weights.sum())
    targets = (labels[rows] + generator.integers(1, n_classes, size=size)) % n_classes
    success = np.where(generator.random(size) < 0.5, SUCCESS, generator.uniform(*POOR_SUCCESS, size=size))
    hits = patterns[chosen] & (generator.random((size, patterns.shape[1])) < success[:, None])
    # An attack that fails in every hit model is no attack: it works in one of them at least.
    idle = np.flatnonzero(~hits.any(axis=1))
    hits[idle] = patterns[chosen[idle]]
    allowed = np.array([FAMILIES.index(family) for family in families])
    return SimulatedAttacks(rows, chosen, targets, hits, allowed[generator.integers(0, allowed.size, size=size)])


def overwrite_votes(votes: NDArray[np.int64], attacks: SimulatedAttacks) -> NDArray[np.int64]:
    """Votes of the attacked inputs, shape (M, m): hit models say the target."""
    return np.where(attacks.hits, attacks.targets[:, None], votes[attacks.rows])


def overwrite_scores(
    scores: NDArray[np.float64], attacks: SimulatedAttacks, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Log-probabilities of the attacked inputs, shape (M, m, c); t wins in a hit model unless the trigger is weak."""
    clean = scores[attacks.rows]
    size, n_models, n_classes = clean.shape
    is_target = np.broadcast_to(attacks.targets[:, None, None] == np.arange(n_classes), clean.shape)
    kind = generator.integers(0, 3, size=(size, 1, 1))
    sources = np.where(kind[:, 0, 0] == 1, generator.permutation(attacks.rows), attacks.rows)
    noise = generator.uniform(size=(size, 1, 1)) * generator.normal(size=clean.shape)
    others = log_softmax(np.where(is_target, -np.inf, np.where(kind == 2, noise, scores[sources])))

    # 1. sure: log p(t) = log(1 - 10^-v), log p(j) = -v log 10 + log of j's share of the rest. A v that would not make
    #    t the argmax is raised to the least that does.
    nines = generator.uniform(*NINES, size=(size, 1)) + generator.normal(0, NINES_NOISE, size=(size, n_models))
    largest = np.exp(others.max(axis=2))
    nines = np.maximum(nines, np.log10(1 + largest) + 0.01)
    rest = -nines * np.log(10.0)
    sure = np.where(is_target, np.log1p(-np.exp(rest))[:, :, None], rest[:, :, None] + others)

    # 2. softened: divide and normalise.
    factor = np.exp(generator.uniform(0, np.log(SOFTEST), size=(size, 1, 1)))
    softened = log_softmax(sure / factor)

    # 3. marginal: log p(t) = log p(runner-up) + lead, normalised.
    lead = generator.uniform(*LEAD, size=(size, 1)) * np.exp(generator.normal(0, 0.3, size=(size, n_models)))
    marginal = log_softmax(np.where(is_target, (others.max(axis=2) + lead)[:, :, None], others))

    # 4. weak: p = (1 - w) p(clean) + w p(sure).
    share = generator.uniform(*SHARE, size=(size, 1, 1))
    weak = np.logaddexp(clean + np.log1p(-share), sure + np.log(share))

    family = attacks.families[:, None, None]
    made = np.choose(family, [sure, softened, marginal, weak])
    return np.asarray(np.where(attacks.hits[:, :, None], made, clean))
