"""Attacks simulated on clean validation inputs, which the decoders are fitted on.

An attacker set and a target are drawn, and the scores of the models it hits are overwritten. How sure a hit model is of
the target is the attacker's choice, so the draws cover five families, each shared by the models of an input:

- *imitated*, four fifths of the draws: what the models say of a clean input of class t on which all of them say t (or
  as many as ever do), with a share of up to 0.15 of what they say without the trigger;
- *sure*: ``p(t) = 1 - 10^-v``, v uniform in 0.5..7 plus noise per model: surer of t than of any clean input;
- *softened*: such scores divided by a factor of 1..16 (log-uniform) and normalised again;
- *marginal*: t just ahead of the runner-up, by a log-ratio of 0.05..2.5; the other classes stay as they are;
- *weak*: a mixture of what the model says without the trigger and a sure hit, whose share is uniform in 0.05..0.65: the
  target often does not win the vote. Poison of which only a part is labelled as the target plants such triggers.

What a hit model says of the other classes is the attacker's choice too: in a third of the last four it keeps what the
model says of the input without the trigger, in a third what it says of another input, in a third next to nothing
(normal noise, its scale uniform in 0..1).

The trigger fails in a hit model (which then answers as if clean) with probability 1 - S. The models of an input share
S: 0.99 in most inputs (votes alone: in half), uniform in 0.6..1 in the others. Poison with correctly labelled copies
plants triggers that work in one model and hardly in another, so in a share of the attacks on *scores* each model has an
S of its own, uniform in 0..1. Votes alone do without; codes with little margin (no `NearestDecoder`) without imitated
ones, too: a group of five with two failures looks like another of three there, an honest model like the last of many.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from codeward.decoding.soft._learners import log_softmax

Family = Literal["imitated", "sure", "softened", "marginal", "weak"]
FAMILIES: tuple[Family, ...] = get_args(Family)

#: Share of imitated triggers where there are other families; and range of what such a hit keeps of the clean scores.
#: Models trained with smoothed labels say of real triggers what they say of clean inputs of the target (CIFAR-10: 0.79
#: in the median where clean inputs of it have 0.76); docs/development/soft-decoder.md has what the family gives.
IMITATED, KEPT_SHARE = 0.8, (0.001, 0.15)
#: Range and noise of v, the number of nines of a sure hit.
NINES, NINES_NOISE = (0.5, 7.0), 0.5
#: Largest factor a softened score is divided by.
SOFTEST = 16.0
#: Range of the lead of a marginal hit.
LEAD = (0.05, 2.5)
#: Success rate of triggers that work, and the range of those that fail here and there.
GOOD_SUCCESS, POOR_SUCCESS = 0.99, (0.6, 1.0)
#: Range of the share of the trigger in a weak hit.
SHARE = (0.05, 0.65)


@dataclass(frozen=True)
class Success:
    """How often simulated triggers work in the models they reach.

    Attributes
    ----------
    good : float
        Share of the attacks with the success rate `GOOD_SUCCESS`; others have one in `POOR_SUCCESS`.
    uneven : float
        Share of all attacks that work in each model at a rate of its own, whatever is said above.
    """

    good: float
    uneven: float = 0.0


#: Of attacks on votes, where nothing but the number of failures tells two explanations apart.
ON_VOTES = Success(0.5)
#: Of attacks on scores. Where a user whose trigger fails in one model and three users whose trigger works explain the
#: same votes, these shares say which is likelier. Held-out validation inputs of CIFAR-10, codes btc2412, e and h16: 0.9
#: good ones instead of 0.75 give three users' real triggers 5 to 22 points and cost those that fail 2 at most; 0.15
#: uneven ones instead of 0.25 change the first by -2 to 14 and cost one user's uneven ones 1 to 5
#: (docs/development/soft-decoder.md).
ON_SCORES = Success(0.9, 0.15)


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
    success: Success,
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
        Families to draw from, alike but for the share of `IMITATED`.
    success : Success
    generator : numpy.random.Generator
    """
    size, n_models = rows.size, patterns.shape[1]
    chosen = generator.choice(weights.size, size=size, p=weights / weights.sum())
    targets = (labels[rows] + generator.integers(1, n_classes, size=size)) % n_classes
    rate = np.where(generator.random(size) < success.good, GOOD_SUCCESS, generator.uniform(*POOR_SUCCESS, size=size))
    of_model = np.broadcast_to(rate[:, None], (size, n_models))
    if success.uneven > 0:
        own = generator.uniform(size=(size, n_models))
        of_model = np.where(generator.random((size, 1)) < success.uneven, own, of_model)
    hits = patterns[chosen] & (generator.random((size, n_models)) < of_model)
    # An attack that fails in every hit model is no attack: it works in one of them at least.
    idle = np.flatnonzero(~hits.any(axis=1))
    hits[idle] = patterns[chosen[idle]]
    wanted = np.array([FAMILIES.index(family) for family in families])
    apart = wanted[wanted != FAMILIES.index("imitated")]
    drawn = (apart if apart.size else wanted)[generator.integers(0, max(apart.size, 1), size=size)]
    if apart.size < wanted.size:
        drawn = np.where(generator.random(size) < IMITATED, FAMILIES.index("imitated"), drawn)
    return SimulatedAttacks(rows, chosen, targets, hits, drawn)


def draw_donors(
    votes: NDArray[np.int64],
    labels: NDArray[np.int64],
    folds: NDArray[np.int64],
    attacks: SimulatedAttacks,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw for each attack a clean input of its target's class for the hit models to imitate, shape (M,); -1 for none.

    Of the attacked input's own fold, so that nothing fitted without the fold has seen it; of those the ones on which
    most models say the class.
    """
    agreed = (votes == labels[:, None]).sum(axis=1)
    donors = np.full(len(attacks), -1, dtype=np.int64)
    for fold in np.unique(folds):
        for target in np.unique(labels):
            mine = np.flatnonzero((folds[attacks.rows] == fold) & (attacks.targets == target))
            known = np.flatnonzero((folds == fold) & (labels == target))
            if mine.size and known.size:
                donors[mine] = generator.choice(known[agreed[known] == agreed[known].max()], size=mine.size)
    return donors


def overwrite_votes(votes: NDArray[np.int64], attacks: SimulatedAttacks) -> NDArray[np.int64]:
    """Votes of the attacked inputs, shape (M, m): hit models say the target."""
    return np.where(attacks.hits, attacks.targets[:, None], votes[attacks.rows])


def overwrite_scores(
    scores: NDArray[np.float64],
    labels: NDArray[np.int64],
    folds: NDArray[np.int64],
    attacks: SimulatedAttacks,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Log-probabilities of the attacked inputs, shape (M, m, c); t wins in a hit model unless the trigger is weak.

    ``labels`` and ``folds`` (N,) of the clean inputs say which of them a trigger may imitate (`draw_donors`).
    """
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

    # 5. imitated: p = (1 - w) p(donor) + w p(clean). A model that would not say t is sure of it.
    imitated = sure
    if (attacks.families == FAMILIES.index("imitated")).any():
        donors = draw_donors(scores.argmax(axis=2), labels, folds, attacks, generator)
        kept = generator.uniform(*KEPT_SHARE, size=(size, 1, 1))
        made = np.logaddexp(scores[donors] + np.log1p(-kept), clean + np.log(kept))
        obeys = (donors >= 0)[:, None] & (made.argmax(axis=2) == attacks.targets[:, None])
        imitated = np.where(obeys[:, :, None], made, sure)

    family = attacks.families[:, None, None]
    made = np.choose(family, [imitated, sure, softened, marginal, weak])
    return np.asarray(np.where(attacks.hits[:, :, None], made, clean))
