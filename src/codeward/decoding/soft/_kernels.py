"""The inner loops of the score decoder, compiled by numba.

With c_i(l) the clean evidence of model i, r_i(t) its hit evidence under one family, j the group of pattern x (about
equally many hit models) and S the family's success rate, the log joint is

    L(x, t, f, l) = head(x, f) + sum over i in x of log(S exp(eta_j r_i(t)) + (1 - S) exp(beta_j c_i(l)))
                    + beta_j * sum over i outside x of c_i(l).
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

#: Factors multiplied before their logarithm is taken: far from overflow with evidence capped at 24 (3 x 8) each.
FLUSH = 16

#: Derivatives by one explanation below this are not followed (a sum of thousands of terms of order 1 each).
NEGLIGIBLE = 1e-7

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def log_add(a: float, b: float) -> float:
    """log(e^a + e^b), one of them finite."""
    return float(max(a, b) + np.log1p(np.exp(-abs(a - b))))


@njit(cache=True, nogil=True)
def read_hits(rho: _Floats, knots: _Ints, fractions: _Floats, hit: _Floats) -> None:
    """hit[f, i, t]: the hit evidence of one input, read from the tables."""
    last = rho.shape[1] - 1
    for f in range(rho.shape[0]):
        for i in range(knots.shape[0]):
            for t in range(knots.shape[1]):
                k = knots[i, t]
                share = fractions[i, t]
                hit[f, i, t] = (1.0 - share) * rho[f, k] + share * rho[f, min(k + 1, last)]


@njit(cache=True, nogil=True)
def log_joint(
    pattern: NDArray[np.bool_],
    clean: _Floats,
    clean_odds: _Floats,
    hit_odds: _Floats,
    beta: float,
    success: float,
    head: float,
    product: _Floats,
    out: _Floats,
) -> None:
    """out[l] = L(x, t, f, l) of one (x, t, f), given exp(beta c), shape (m, c), and exp(eta r(t)), shape (m,)."""
    n_models, n_classes = clean.shape
    for label in range(n_classes):
        out[label] = head
        product[label] = 1.0
    held = 0
    for i in range(n_models):
        if pattern[i]:
            base = success * hit_odds[i]
            for label in range(n_classes):
                product[label] *= base + (1.0 - success) * clean_odds[i, label]
            held += 1
            if held == FLUSH:
                for label in range(n_classes):
                    out[label] += np.log(product[label])
                    product[label] = 1.0
                held = 0
        else:
            for label in range(n_classes):
                out[label] += beta * clean[i, label]
    for label in range(n_classes):
        out[label] += np.log(product[label])


@njit(cache=True, nogil=True)
def raise_odds(clean: _Floats, beta: _Floats, odds: _Floats) -> None:
    """odds[j, i, l] = exp(beta_j c_i(l)) of one input; beta[0] belongs to the no-attack hypothesis and is skipped."""
    for j in range(odds.shape[0]):
        for i in range(clean.shape[0]):
            for label in range(clean.shape[1]):
                odds[j, i, label] = np.exp(beta[j + 1] * clean[i, label])


@njit(cache=True, nogil=True)
def raise_hit_odds(hit: _Floats, target: int, eta: float, odds: _Floats) -> None:
    """odds[f, i] = exp(eta r_i(t)) of one input and target."""
    for f in range(hit.shape[0]):
        for i in range(hit.shape[1]):
            odds[f, i] = np.exp(eta * hit[f, i, target])


@njit(cache=True, nogil=True)
def tabulate(
    clean: _Floats,
    votes: _Ints,
    knots: _Ints,
    fractions: _Floats,
    patterns: NDArray[np.bool_],
    groups: _Ints,
    heads: _Floats,
    beta: _Floats,
    eta: _Floats,
    rho: _Floats,
    success: _Floats,
    every_target: bool,
    by_label: _Floats,
    table: _Floats,
) -> None:
    """Sum the joint of every input over all explanations.

    Parameters
    ----------
    clean, votes, knots, fractions : ndarray
        Evidence, (N, m, c), (N, m), (N, m, c), (N, m, c).
    patterns, groups : ndarray, shapes (P, m), (P,)
    heads : ndarray, shape (P, F)
        Log prior of pattern and family, offset included.
    beta, eta, rho, success : ndarray
        As in `Fusion`.
    every_target : bool
        Otherwise targets that no model votes for are left out (log mass -inf).
    by_label : ndarray, shape (N, c)
        Result: log of the sum over (x, t, f).
    table : ndarray, shape (N, P, c)
        Result: log of the sum over (f, l), by pattern and target.
    """
    n_inputs, n_models, n_classes = clean.shape
    n_families = rho.shape[0]
    hit = np.empty((n_families, n_models, n_classes))
    odds = np.empty((eta.size, n_models, n_classes))
    hit_odds = np.empty((eta.size, n_families, n_models))
    product = np.empty(n_classes)
    out = np.empty(n_classes)
    top = np.empty(n_classes)
    mass = np.empty(n_classes)
    for n in range(n_inputs):
        read_hits(rho, knots[n], fractions[n], hit)
        raise_odds(clean[n], beta, odds)
        top[:] = -np.inf
        mass[:] = 0.0
        for t in range(n_classes):
            seen = every_target
            for i in range(n_models):
                seen = seen or votes[n, i] == t
            if seen:
                for j in range(eta.size):
                    raise_hit_odds(hit, t, eta[j], hit_odds[j])
            for x in range(groups.size):
                if not seen:
                    table[n, x, t] = -np.inf
                    continue
                j = groups[x]
                peak = -np.inf
                total = 0.0
                for f in range(n_families):
                    log_joint(
                        patterns[x],
                        clean[n],
                        odds[j],
                        hit_odds[j, f],
                        beta[j + 1],
                        success[f],
                        heads[x, f],
                        product,
                        out,
                    )
                    for label in range(n_classes):
                        value = out[label]
                        if value > peak:
                            total = total * np.exp(peak - value) + 1.0
                            peak = value
                        elif value > peak - 40.0:
                            total += np.exp(value - peak)
                        if value > top[label]:
                            mass[label] = mass[label] * np.exp(top[label] - value) + 1.0
                            top[label] = value
                        elif value > top[label] - 40.0:
                            mass[label] += np.exp(value - top[label])
                table[n, x, t] = peak + np.log(total)
        for label in range(n_classes):
            by_label[n, label] = top[label] + np.log(mass[label])


@njit(cache=True, nogil=True)
def sum_losses(
    clean: _Floats,
    knots: _Ints,
    fractions: _Floats,
    labels: _Ints,
    attacked: NDArray[np.bool_],
    chosen: _Ints,
    chosen_targets: _Ints,
    patterns: NDArray[np.bool_],
    groups: _Ints,
    log_weights: _Floats,
    beta: _Floats,
    eta: _Floats,
    delta: _Floats,
    rho: _Floats,
    success: _Floats,
    log_family: _Floats,
    pattern_weight: float,
    by_clean: _Floats,
    by_beta: _Floats,
    by_eta: _Floats,
    by_delta: _Floats,
    by_rho: _Floats,
    by_success: _Floats,
    by_family: _Floats,
) -> float:
    """Sum the loss over the inputs and add its derivatives to the ``by_`` arrays.

    ``chosen`` and ``chosen_targets``, shape (N, K), list the explanations (pattern, target) summed over, padded with
    -1; for an attacked input the first one is the true one. The loss of an attacked input is

        -log Pr(l) - log Pr(attack) - pattern_weight * log Pr(x, t | attack),

    and of a clean one -log Pr(l) - log Pr(no attack).
    """
    n_inputs, n_models, n_classes = clean.shape
    n_families = rho.shape[0]
    last = rho.shape[1] - 1
    n_chosen = chosen.shape[1]
    hit = np.empty((n_families, n_models, n_classes))
    odds = np.empty((eta.size, n_models, n_classes))
    hit_odds = np.empty((n_chosen, n_families, n_models))
    product = np.empty(n_classes)
    joint = np.empty((n_chosen, n_families, n_classes))
    nothing = np.empty(n_classes)
    loss = 0.0
    for n in range(n_inputs):
        # 1. The joint of every listed explanation, and of no attack.
        read_hits(rho, knots[n], fractions[n], hit)
        raise_odds(clean[n], beta, odds)
        count = 0
        top = -np.inf
        while count < n_chosen and chosen[n, count] >= 0:
            x, t = chosen[n, count], chosen_targets[n, count]
            j = groups[x]
            raise_hit_odds(hit, t, eta[j], hit_odds[count])
            for f in range(n_families):
                head = log_weights[x] + delta[j] + log_family[f]
                log_joint(
                    patterns[x],
                    clean[n],
                    odds[j],
                    hit_odds[count, f],
                    beta[j + 1],
                    success[f],
                    head,
                    product,
                    joint[count, f],
                )
                for label in range(n_classes):
                    top = max(top, joint[count, f, label])
            count += 1
        top_nothing = -np.inf
        for label in range(n_classes):
            nothing[label] = 0.0
            for i in range(n_models):
                nothing[label] += clean[n, i, label]
            nothing[label] *= beta[0]
            top_nothing = max(top_nothing, nothing[label])

        # 2. Log masses: A of all explanations, B of no attack, M = log(e^A + e^B); M(l) with the true label; A(x, t).
        truth = labels[n]
        mass, mass_label, mass_true = 0.0, 0.0, 0.0
        for k in range(count):
            for f in range(n_families):
                for label in range(n_classes):
                    value = np.exp(joint[k, f, label] - top)
                    joint[k, f, label] = value
                    mass += value
                    if label == truth:
                        mass_label += value
                    if k == 0:
                        mass_true += value
        mass_nothing = 0.0
        for label in range(n_classes):
            mass_nothing += np.exp(nothing[label] - top_nothing)
        log_attack = top + np.log(mass)
        log_nothing = top_nothing + np.log(mass_nothing)
        both = log_add(log_attack, log_nothing)
        both_label = log_add(top + np.log(mass_label), nothing[truth])

        # 3. Loss 2 M - M(l) - A + w (A - A(x, t)) under attack, 2 M - M(l) - B on clean inputs.
        loss += 2.0 * both - both_label
        if attacked[n]:
            loss += (pattern_weight - 1.0) * log_attack - pattern_weight * (top + np.log(mass_true))
        else:
            loss -= log_nothing
        for label in range(n_classes):
            slope = 2.0 * np.exp(nothing[label] - both)
            if not attacked[n]:
                slope -= np.exp(nothing[label] - log_nothing)
            if label == truth:
                slope -= np.exp(nothing[label] - both_label)
            for i in range(n_models):
                by_beta[0] += slope * clean[n, i, label]
                by_clean[n, i, label] += slope * beta[0]

        # 4. Back through every explanation that carries weight.
        for k in range(count):
            x, t = chosen[n, k], chosen_targets[n, k]
            j = groups[x]
            for f in range(n_families):
                for label in range(n_classes):
                    value = joint[k, f, label]
                    slope = 2.0 * value * np.exp(top - both)
                    if label == truth:
                        slope -= value * np.exp(top - both_label)
                    if attacked[n]:
                        slope += (pattern_weight - 1.0) * value / mass
                        if k == 0:
                            slope -= pattern_weight * value / mass_true
                    if abs(slope) < NEGLIGIBLE:
                        continue
                    by_delta[j] += slope
                    by_family[f] += slope
                    for i in range(n_models):
                        share = 1.0
                        if patterns[x, i]:
                            lifted = hit_odds[k, f, i]
                            inverse = 1.0 / (success[f] * lifted + (1.0 - success[f]) * odds[j, i, label])
                            share = (1.0 - success[f]) * odds[j, i, label] * inverse
                            by_success[f] += slope * (lifted - odds[j, i, label]) * inverse
                            by_eta[j] += slope * (1.0 - share) * hit[f, i, t]
                            push = slope * (1.0 - share) * eta[j]
                            knot = knots[n, i, t]
                            by_rho[f, knot] += push * (1.0 - fractions[n, i, t])
                            by_rho[f, min(knot + 1, last)] += push * fractions[n, i, t]
                        by_beta[j + 1] += slope * share * clean[n, i, label]
                        by_clean[n, i, label] += slope * share * beta[j + 1]
    return loss
