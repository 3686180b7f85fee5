"""One input in the light of one explanation: the features a model reads, and the sums over all explanations.

A *candidate* is an input together with a hit pattern x and a target t. Its features do not depend on which models or
which classes are meant, only on how the hit side and the clean side look: one model serves all patterns and targets.
"""

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.decoding.soft._learners import add_trees

#: Numbers in `describe_candidate`.
N_FEATURES = 28
#: A candidate is plausible when at least this share of its hit models votes for the target; others are left out.
PLAUSIBLE = 0.25
#: Log-odds are cut off here.
LARGEST_ODDS = 30.0
#: An explanation whose log-probability is this far from the best one's has no say in the label.
NEGLIGIBLE = -14.0

_Floats = NDArray[np.float64]
_Singles = NDArray[np.float32]
_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


@compiled
def sort_in_place(values: _Floats, size: int) -> None:
    """Sort the first ``size`` values (insertion sort: a handful of models)."""
    for i in range(1, size):
        value = values[i]
        k = i - 1
        while k >= 0 and values[k] > value:
            values[k + 1] = values[k]
            k -= 1
        values[k + 1] = value


@compiled
def log_odds(log_p: float) -> float:
    """log(p / (1 - p)), within +-`LARGEST_ODDS`."""
    rest = -np.expm1(min(log_p, -1e-14))
    return float(min(max(log_p - np.log(rest), -LARGEST_ODDS), LARGEST_ODDS))


@compiled
def is_plausible(pattern: _Bools, votes: _Ints, target: int) -> bool:
    """Whether enough hit models vote for the target."""
    hit, said = 0, 0
    for i in range(pattern.size):
        if pattern[i]:
            hit += 1
            if votes[i] == target:
                said += 1
    return said > 0 and said >= PLAUSIBLE * hit


@compiled
def read_models(posteriors: _Floats, odds: _Floats, surest: _Floats) -> None:
    """Log-odds (m, c) and largest log-probabilities (m,) of one input."""
    for i in range(posteriors.shape[0]):
        surest[i] = posteriors[i, 0]
        for label in range(posteriors.shape[1]):
            odds[i, label] = log_odds(posteriors[i, label])
            surest[i] = max(surest[i], posteriors[i, label])


@compiled
def describe_candidate(
    posteriors: _Floats,
    odds: _Floats,
    surest: _Floats,
    votes: _Ints,
    pattern: _Bools,
    target: int,
    sides: _Floats,
    totals: _Floats,
    out: _Singles,
) -> None:
    """Fill in the features of one candidate, shape (`N_FEATURES`,).

    For the hit side, the clean side and all models: the lead of the target in the mean log-probabilities, and the lead
    of the first other class over the second. Of each side: six order statistics and the mean of the log-odds of the
    target; the shares voting for the target and for the clean side's first other class; the mean of the largest
    log-probability. Then the hit side's mean log-probability of that other class, and the share that is hit.

    Parameters
    ----------
    posteriors : ndarray, shape (m, c)
        Log-probabilities of one input.
    odds, surest : ndarray, shapes (m, c), (m,)
        From `read_models`.
    votes : ndarray of int64, shape (m,)
    pattern : ndarray of bool, shape (m,)
        Hit models; one at least is hit and one is not.
    target : int
    sides, totals : ndarray, shapes (2, m), (3, c)
        Room to work in.
    out : ndarray, shape (`N_FEATURES`,)
    """
    n_models, n_classes = posteriors.shape
    hit, clean = 0, 0
    totals[:] = 0.0
    for i in range(n_models):
        if pattern[i]:
            sides[0, hit] = odds[i, target]
            hit += 1
            for label in range(n_classes):
                totals[0, label] += posteriors[i, label]
        else:
            sides[1, clean] = odds[i, target]
            clean += 1
            for label in range(n_classes):
                totals[1, label] += posteriors[i, label]
    for label in range(n_classes):
        totals[2, label] = totals[0, label] + totals[1, label]

    # The clean side's first class other than the target: what the label would be.
    best = 1 if target == 0 else 0
    for label in range(n_classes):
        if label != target and totals[1, label] > totals[1, best]:
            best = label

    place = 0
    for side in range(3):
        size = hit if side == 0 else (clean if side == 1 else n_models)
        first, second = -np.inf, -np.inf
        for label in range(n_classes):
            value = totals[side, label]
            if label == target or value <= second:
                continue
            if value > first:
                first, second = value, first
            else:
                second = value
        out[place] = (totals[side, target] - first) / size
        out[place + 1] = 0.0 if n_classes == 2 else (first - second) / size
        place += 2
    for side in range(2):
        size = hit if side == 0 else clean
        sort_in_place(sides[side], size)
        mean = 0.0
        for k in range(size):
            mean += sides[side, k]
        out[place] = sides[side, 0]
        out[place + 1] = sides[side, min(1, size - 1)]
        out[place + 2] = sides[side, (size - 1) // 4]
        out[place + 3] = sides[side, (size - 1) // 2]
        out[place + 4] = sides[side, 3 * (size - 1) // 4]
        out[place + 5] = sides[side, size - 1]
        out[place + 6] = mean / size
        out[place + 7] = 0.0
        out[place + 8] = 0.0
        out[place + 9] = 0.0
        place += 10
    for i in range(n_models):
        side = 13 if pattern[i] else 23
        share = 1.0 / (hit if pattern[i] else clean)
        if votes[i] == target:
            out[side] += share
        elif votes[i] == best:
            out[side + 1] += share
        out[side + 2] += share * surest[i]
    out[26] = totals[0, best] / hit
    out[27] = hit / n_models


@compiled
def describe_candidates(
    posteriors: _Floats, votes: _Ints, patterns: _Bools, of: _Ints, chosen: _Ints, targets: _Ints, out: _Singles
) -> None:
    """Features of candidates, shape (K, features): input ``of[k]``, pattern ``chosen[k]``, target ``targets[k]``."""
    n_models, n_classes = posteriors.shape[1:]
    odds, surest = np.empty((n_models, n_classes)), np.empty(n_models)
    sides, totals = np.empty((2, n_models)), np.empty((3, n_classes))
    for k in range(of.size):
        n = of[k]
        if k == 0 or of[k - 1] != n:
            read_models(posteriors[n], odds, surest)
        describe_candidate(
            posteriors[n], odds, surest, votes[n], patterns[chosen[k]], targets[k], sides, totals, out[k]
        )


@compiled
def list_candidates(
    votes: _Ints, patterns: _Bools, n_classes: int, every_target: bool, candidates: _Ints
) -> tuple[int, int]:
    """List the candidates (x, t) of one input, shape (most, 2), and return how many count and how many there are.

    Those that count come first: the plausible ones, or all of voted targets where none is. ``every_target`` adds the
    others.
    """
    n_models = votes.size
    counted = 0
    for attempt in range(2):
        if counted:
            break
        for t in range(n_classes):
            voted = False
            for i in range(n_models):
                voted = voted or votes[i] == t
            if not voted:
                continue
            for x in range(patterns.shape[0]):
                if attempt == 1 or is_plausible(patterns[x], votes, t):
                    candidates[counted, 0] = x
                    candidates[counted, 1] = t
                    counted += 1
    listed = counted
    if every_target:
        done = np.zeros((patterns.shape[0], n_classes), dtype=np.bool_)
        for k in range(counted):
            done[candidates[k, 0], candidates[k, 1]] = True
        for t in range(n_classes):
            for x in range(patterns.shape[0]):
                if not done[x, t]:
                    candidates[listed, 0] = x
                    candidates[listed, 1] = t
                    listed += 1
    return counted, listed


@compiled
def read_label(
    posteriors: _Floats, whole: _Floats, votes: _Ints, pattern: _Bools, target: int, discounts: _Floats, out: _Floats
) -> None:
    """out[l] = p(l | x, t): the softmax of what all models say that may be clean, discounted.

    Those are all but the hit ones that vote t; ``whole`` is the sum of the log-probabilities of all models. The label
    may be t: the trigger can be on inputs of the target's own class.
    """
    n_models, n_classes = posteriors.shape
    n_silent = 0
    out[:] = whole
    for i in range(n_models):
        if pattern[i] and votes[i] == target:
            n_silent += 1
            for label in range(n_classes):
                out[label] -= posteriors[i, label]
    out *= discounts[n_models - n_silent]
    top = out.max()
    total = 0.0
    for label in range(n_classes):
        out[label] = np.exp(out[label] - top)
        total += out[label]
    out /= total


@compiled
def sum_candidates(
    posteriors: _Floats,
    votes: _Ints,
    patterns: _Bools,
    log_weights: _Floats,
    every_target: bool,
    alarm_features: NDArray[np.int16],
    alarm_thresholds: _Singles,
    alarm_values: _Singles,
    alarm_base: float,
    naming_features: NDArray[np.int16],
    naming_thresholds: _Singles,
    naming_values: _Singles,
    naming_base: float,
    discounts: _Floats,
    by_label: _Floats,
    table: _Floats,
) -> None:
    """Sum over the candidates of every input.

    With a(x, t) and e(x, t) the log odds by the two ratios (`RatioModels`) and w(x) the prior,

        gap      = log of the sum over (x, t) of w(x) exp(a(x, t)),
        p(x, t)  = w(x) exp(e(x, t)) / sum,          table = gap + log p(x, t),
        by_label = gap + log of the sum over (x, t) of p(x, t) p(l | x, t).

    Parameters
    ----------
    posteriors, votes : ndarray, shapes (N, m, c), (N, m)
    patterns, log_weights : ndarray, shapes (P, m), (P,)
    every_target : bool
        Otherwise only plausible candidates are summed (`list_candidates`), with log mass -inf elsewhere. The gap is
        over those in either case.
    alarm_features, ..., naming_base
        The ratios' trees.
    discounts : ndarray, shape (m + 1,)
        Exponent of the sum of 0..m models.
    by_label, table : ndarray, shapes (N, c), (N, P, c)
        Results.
    """
    n_inputs, n_models, n_classes = posteriors.shape
    most = log_weights.size * (n_classes if every_target else min(n_models, n_classes))
    candidates = np.empty((most, 2), dtype=np.int64)
    rows = np.empty((most, N_FEATURES), dtype=np.float32)
    alarm, naming = np.empty(most), np.empty(most)
    odds, surest = np.empty((n_models, n_classes)), np.empty(n_models)
    sides, totals = np.empty((2, n_models)), np.empty((3, n_classes))
    whole, label_shares = np.empty(n_classes), np.empty(n_classes)
    for n in range(n_inputs):
        # 1. Both ratios on every candidate.
        counted, listed = list_candidates(votes[n], patterns, n_classes, every_target, candidates)
        read_models(posteriors[n], odds, surest)
        for k in range(listed):
            x, t = candidates[k]
            describe_candidate(posteriors[n], odds, surest, votes[n], patterns[x], t, sides, totals, rows[k])
            alarm[k] = log_weights[x] + alarm_base
            naming[k] = log_weights[x] + naming_base
        add_trees(rows[:counted], alarm_features, alarm_thresholds, alarm_values, alarm)
        add_trees(rows[:listed], naming_features, naming_thresholds, naming_values, naming)
        # 2. The gap, and the normaliser of p(x, t).
        top = alarm[:counted].max()
        gap = top + np.log(np.exp(alarm[:counted] - top).sum())
        top = naming[:listed].max()
        normaliser = top + np.log(np.exp(naming[:listed] - top).sum())
        # 3. By explanation and by label.
        for label in range(n_classes):
            whole[label] = posteriors[n, :, label].sum()
        by_label[n] = 0.0
        table[n] = -np.inf
        for k in range(listed):
            x, t = candidates[k]
            table[n, x, t] = gap + naming[k] - normaliser
            if naming[k] < top + NEGLIGIBLE:
                continue
            share = np.exp(naming[k] - normaliser)
            read_label(posteriors[n], whole, votes[n], patterns[x], t, discounts, label_shares)
            for label in range(n_classes):
                by_label[n, label] += share * label_shares[label]
        # What negligible explanations would add to the labels is left out, and made up for.
        total = by_label[n].sum()
        for label in range(n_classes):
            by_label[n, label] = gap + np.log(max(by_label[n, label] / total, 1e-300))
