"""The single most probable explanation of a vote vector: what the paper's tracking table seems to count."""

from math import inf, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import distinct_rows, first_best
from codeward.decoding._models import check_votes

#: Floats a chunk of work may hold.
_CHUNK = 8_000_000


def name_attackers(decoder: BayesDecoder, votes: ArrayLike) -> list[tuple[int, ...]]:
    r"""Name somebody for every input: the attackers of its most probable explanation by an attack.

    .. math::

        \hat x = \arg\max_{x \ne \emptyset} \; \max_{t, l} \; p(x, y, t, l)

    with p of the paper's appendix ("Probabilistic Decoding"). `BayesDecoder.decode` differs in two ways: it sums over
    target and label, and it may answer that nobody attacks, since the paper's Q covers 0 attackers. The paper does not
    say how it names attackers. In its Table 1 true and false positives of code g add up to exactly 1.00 in all six
    cells, with two and three attackers too, which neither "nobody" nor the sum allows: where all models say one class,
    the sum over labels speaks for two attackers who reach every model, while the best single explanation (the class is
    the label, and any one user attacks) names one. Threat model: deterministic; a guess, not a certificate.

    Parameters
    ----------
    decoder : BayesDecoder
        Gives the code, the vote model, S and Q; A does not matter.
    votes : array_like of int, shape (N, m)

    Returns
    -------
    list of tuple of int, length N
        Ties (within one part in 1e9): the fewest users, then the lowest indices.
    """
    if not decoder.is_exact:
        raise TooLargeError("the best explanation was asked for, but there are too many attacker sets to enumerate")
    model, sets = decoder.vote_model_, decoder.sets_
    rows = [row for row, found in enumerate(sets.best_sets) if found]
    if not rows:
        raise InputError("attackers_prior: only 0 attackers have a positive probability, so nobody can be named")
    success = log(decoder.success_rate) if decoder.success_rate > 0 else -inf
    hit = sets.bits[rows].astype(np.float64)
    prior = np.log(sets.best_weights[rows])
    distinct, inverse = distinct_rows(check_votes(votes, model.n_models, model.n_classes), model.n_classes)
    step = max(1, _CHUNK // (len(rows) * model.n_classes))
    named: list[int] = []
    for start in range(0, len(distinct), step):
        part = distinct[start : start + step]
        base = model.log_likelihood(part)
        # A hit changes the log-likelihood of a vote by log(S / C + 1 - S) if it says the target, else by log(1 - S).
        gains = np.logaddexp(success - base, decoder.failure_)
        best = np.full((len(part), len(rows)), -np.inf)
        for target in range(model.n_classes):
            best = np.maximum(best, _explain(part, base, gains, decoder.failure_, hit, target))
        # Up to a factor that all explanations of an input share.
        best += prior
        named += [rows[row] for row in first_best(np.exp(best - best.max(axis=1, keepdims=True))).tolist()]
    return [sets.best_sets[named[row]] for row in inverse.tolist()]


def _explain(
    votes: NDArray[np.int64],
    base: NDArray[np.float64],
    gains: NDArray[np.float64],
    failure: float,
    hit: NDArray[np.float64],
    target: int,
) -> NDArray[np.float64]:
    """Return the best log-likelihood over labels of each pattern with one target, shape (U, P)."""
    change = np.where((votes == target)[:, :, None], gains, failure)
    whole = base.sum(axis=1)[:, :, None] + change.transpose(0, 2, 1) @ hit.T
    return np.asarray(whole.max(axis=1))
