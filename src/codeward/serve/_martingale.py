r"""A betting test that a stream of scores is like the scores it is compared with, valid whenever one looks.

Conformal test martingales (Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", chapter 8): under the
null hypothesis that reference and stream are exchangeable, the smoothed online p-values

.. math:: p_u = \frac{\#\{i < u : s_i > s_u\} + \theta_u \#\{i \le u : s_i = s_u\}}{n + u}

(i running over the n references and the stream so far, theta uniform) are independent and uniform on 0..1. A gambler
who bets on small p-values with factors of mean 1 multiplies a capital of 1 without expected gain, and by Ville's
inequality the chance that it *ever* reaches 1/a is at most a. No model of the scores is involved.
"""

from bisect import bisect_left, bisect_right, insort

import numpy as np
from numpy.typing import NDArray

#: Shares of attacks that gamblers expect in the stream, and shares of the references they expect above them: one
#: gambler a pair.
SHARES, OVERLAPS = (0.5, 0.9), (0.0, 0.15)


def compute_p_values(
    reference: NDArray[np.float64], stream: NDArray[np.float64], theta: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the smoothed online conformal p-values of a stream; small where scores are high.

    Parameters
    ----------
    reference : ndarray, shape (n,)
        Scores under the null hypothesis; ``-inf`` is allowed.
    stream : ndarray, shape (q,)
        Scores in order of arrival.
    theta : ndarray, shape (q,)
        Tie-breaks, uniform on 0..1 and independent of the scores.
    """
    seen = sorted(reference.tolist())
    found = np.empty(stream.size)
    for place, score in enumerate(stream.tolist()):
        insort(seen, score)
        above = len(seen) - bisect_right(seen, score)
        ties = len(seen) - above - bisect_left(seen, score)
        found[place] = (above + theta[place] * ties) / len(seen)
    return found


def bet_on_small(p_values: NDArray[np.float64], n_reference: int) -> NDArray[np.float64]:
    r"""Return the log of the capital after each p-value, shape (q,), starting from log 1.

    A gambler with share :math:`\pi` and overlap :math:`h` takes attacks to rank above all but :math:`h n` references:
    the next attack then has a p-value below :math:`a_u = (h n + 1 + A_u) / (n + u)`, with :math:`A_u` the earlier
    p-values below their own bound. It bets

    .. math:: f_u(p) = (1 - \pi) + \pi [p \le a_u] / a_u, \qquad \int_0^1 f_u = 1

    (:math:`a_u` depends on the past only). The capital is the mean over all gamblers; had a gambler known that every
    attack ranks above every reference, q attacks would multiply it by nearly the number of ways to choose q of n + q.
    """
    factors = np.empty((p_values.size, len(SHARES), len(OVERLAPS)))
    for column, overlap in enumerate(OVERLAPS):
        bounds, hits = [], 0
        for place, p in enumerate(p_values.tolist(), start=1):
            bounds.append(min((overlap * n_reference + 1 + hits) / (n_reference + place), 1.0))
            hits += p <= bounds[-1]
        bound = np.array(bounds)
        gain = (p_values <= bound) / bound - 1
        factors[:, :, column] = 1 + np.multiply.outer(gain, SHARES)
    logs = np.cumsum(np.log(factors.reshape(p_values.size, -1)), axis=0)
    top = logs.max(axis=1, initial=-np.inf, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(logs - top).mean(axis=1)))
