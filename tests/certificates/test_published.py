"""Against the published certificates, each re-derived here from its definition."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from codeward._errors import InputError
from codeward.certificates import (
    certify,
    certify_bagging,
    certify_dpa,
    certify_finite_aggregation,
    certify_run_off_election,
)
from codeward.codes import Code


def draw_votes(rng, n_inputs, n_models, n_classes, accuracy):
    true = rng.integers(0, n_classes, n_inputs)
    said = rng.integers(0, n_classes, (n_inputs, n_models))
    return np.where(rng.random((n_inputs, n_models)) < accuracy, true[:, None], said)


def shifted_hash(n_groups, spread, rng):
    size = n_groups * spread
    shifts = rng.choice(size, spread, replace=False)
    matrix = np.zeros((size, size), dtype=bool)
    for shift in shifts:
        matrix[(np.arange(size) + shift) % size, np.arange(size)] = True
    return Code(matrix)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_groups=st.integers(1, 11),
    extra=st.integers(0, 3),
    n_classes=st.integers(2, 5),
    method=st.sampled_from(["patterns", "milp", "bound"]),
)
def test_a_partition_code_gives_the_radius_of_deep_partition_aggregation(seed, n_groups, extra, n_classes, method):
    rng = np.random.default_rng(seed)
    users = n_groups + extra
    code = Code(np.arange(n_groups)[:, None] == np.arange(users) % n_groups)
    votes = draw_votes(rng, 20, n_groups, n_classes, rng.random())
    result = certify(votes, code, method=method)
    expected = []
    for row in votes:
        v = [int((row == label).sum()) for label in range(n_classes)]
        i1 = max(range(n_classes), key=lambda label: (v[label], -label))
        expected.append(min((v[i1] - v[i2] - (i2 < i1)) // 2 for i2 in range(n_classes) if i2 != i1))
    np.testing.assert_array_equal(result.radius, expected)
    np.testing.assert_array_equal(certify_dpa(votes, n_classes), expected)
    assert result.exact.all()


def finite_aggregation_slowly(row, matrix, n_classes):
    counts = np.bincount(row, minlength=n_classes)
    label = int(counts.argmax())
    for k in range(1, matrix.shape[1] + 1):
        for rival in set(range(n_classes)) - {label}:
            influence = []
            for user in range(matrix.shape[1]):
                models = np.flatnonzero(matrix[:, user])
                # A changed vote takes one from the label if it had it, and gives one to the rival unless it had it.
                influence.append(sum(int(row[i] == label) + int(row[i] != rival) for i in models))
            if counts[label] - counts[rival] - (rival < label) < sum(sorted(influence, reverse=True)[:k]):
                return k - 1
    return matrix.shape[1]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n_groups=st.integers(2, 5), spread=st.integers(1, 3), c=st.integers(2, 4))
def test_a_shifted_hash_code_is_never_below_finite_aggregation(seed, n_groups, spread, c):
    rng = np.random.default_rng(seed)
    code = shifted_hash(n_groups, spread, rng)
    votes = draw_votes(rng, 15, code.n_models, c, rng.random())
    published = certify_finite_aggregation(votes, code, c)
    np.testing.assert_array_equal(published, [finite_aggregation_slowly(row, code.matrix, c) for row in votes])
    assert (certify(votes, code, method="patterns").radius >= published).all()
    np.testing.assert_array_equal(certify(votes, code, method="bound").radius, published)


def test_the_exact_radius_is_sometimes_larger_than_finite_aggregation():
    rng = np.random.default_rng(3)
    code = shifted_hash(25, 4, rng)
    chance = rng.beta(3.4, 0.6, (1000, 1))  # inputs of different difficulty, right 85% of the time
    votes = np.where(rng.random((1000, 100)) < chance, 3, rng.integers(0, 10, (1000, 100)))
    result = certify(votes, code, method="milp")
    gain = result.radius - certify_finite_aggregation(votes, code, 10)
    assert gain.min() == 0
    assert gain.max() == 1


def run_off_election_slowly(scores, matrix):
    """Rezaei et al.: the first k at which two classes may pass the output, or one may get in and win."""
    m, c = scores.shape
    says = [max(range(c), key=lambda a, j=j: (scores[j, a], -a)) for j in range(m)]
    first = [says.count(a) for a in range(c)]
    # Models that like a more than b, of equals the smaller class.
    likes = [[{j for j in range(m) if (scores[j, a], -a) > (scores[j, b], -b)} for b in range(c)] for a in range(c)]
    one, two = sorted(range(c), key=lambda a: (-first[a], a))[:2]
    label = max((one, two), key=lambda a: (len(likes[a][one + two - a]), -a))
    others = [a for a in range(c) if a != label]
    second = min(others, key=lambda a: (-first[a], a))

    def reached(closes, lead, k):
        """Whether the k users who close most of a lead may close it."""
        power = sorted(sum(closes(j) for j in range(m) if matrix[j, user]) for user in range(matrix.shape[1]))
        return sum(power[len(power) - k :]) >= lead

    def passes(a, b, k):
        return reached(lambda j: (says[j] != a) + int(says[j] == b), first[b] - first[a] + (b < a), k)

    for k in range(1, matrix.shape[1] + 1):
        for a, b in combinations(others, 2):
            need = 2 * first[label] - first[a] - first[b] + (label < a) + (label < b)
            both = reached(lambda j, p=(a, b): 3 if says[j] == label else int(says[j] not in p), need, k)
            if both and passes(a, label, k) and passes(b, label, k):
                return k - 1
        for t in others:
            lead = len(likes[label][t]) - len(likes[t][label]) + (label < t)
            wins = reached(lambda j, t=t: 2 * (j in likes[label][t]), lead, k)
            if wins and (t == second or passes(t, second, k)):
                return k - 1
    return matrix.shape[1]


@pytest.mark.parametrize("seed", [*range(40), 91, 95, 155, 239, 639, 727])
def test_run_off_election_is_as_published(seed):
    rng = np.random.default_rng(seed)
    m, n, c, share = int(rng.integers(1, 13)), int(rng.integers(1, 7)), int(rng.integers(2, 6)), rng.random()
    scores = rng.integers(0, 4, (4, m, c)) + 4.0 * ((rng.random((4, m, 1)) < share) & (np.arange(c) == rng.integers(c)))
    if seed % 2:
        # Everybody's first or second choice wins the second round by far: two others must pass it in the first.
        m, n, c = int(rng.integers(9, 19)), int(rng.integers(9, 19)), 3
        scores = rng.random((4, m, c)) + 2 * np.eye(c)[rng.integers(0, c, (4, m))] + (np.arange(c) == rng.integers(c))
    matrix = np.arange(m)[:, None] % n == np.arange(n)
    matrix |= (rng.random((m, n)) < 0.3 * (seed % 4 < 2)) | (np.arange(m)[:, None] == np.arange(n) % m)
    expected = [run_off_election_slowly(one, matrix) for one in scores]
    assert certify_run_off_election(scores, Code(matrix)).tolist() == expected


def clopper_pearson(successes, trials, level, lower):
    """Invert the binomial tail by bisection: the p at which so extreme a count has chance ``level``."""
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        tail = binom.sf(successes - 1, trials, p) if lower else binom.cdf(successes, trials, p)
        if (tail < level) == lower:
            low = p
        else:
            high = p
    return low


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_users=st.integers(2, 200),
    replacement=st.booleans(),
    share=st.floats(0.3, 1.0),
)
def test_bagging_agrees_with_an_independent_derivation(seed, n_users, replacement, share):
    rng = np.random.default_rng(seed)
    bag, m, c, alpha = int(rng.integers(1, n_users + 1)), 300, 3, 0.01
    votes = draw_votes(rng, 3, m, c, share)
    result = certify_bagging(votes, n_users, bag, c, alpha, replacement)
    for row, radius in zip(votes, result, strict=True):
        counts = np.bincount(row, minlength=c)
        label = int(counts.argmax())
        low = clopper_pearson(counts[label], m, alpha / c, lower=True)
        rivals = [clopper_pearson(counts[s], m, alpha / c, lower=False) for s in range(c) if s != label]
        high = min(max(rivals), 1 - low)

        def holds(r, low=low, high=high):
            untouched = ((n_users - r) / n_users) ** bag if replacement else comb(n_users - r, bag) / comb(n_users, bag)
            # Touched bags may all turn from the label to the rival.
            return low - (1 - untouched) > high + (1 - untouched)

        expected = max((r for r in range(n_users + 1) if holds(r)), default=-1)
        assert radius == expected


def test_bagging_without_replacement_counts_untouched_bags_rightly():
    n, bag, r = 7, 3, 2
    bags = list(combinations(range(n), bag))
    clean = sum(not set(drawn) & set(range(r)) for drawn in bags) / len(bags)
    assert clean == pytest.approx(comb(n - r, bag) / comb(n, bag))


def test_bagging_abstains_on_a_tie_and_refuses_nonsense():
    assert certify_bagging(np.array([[0, 1] * 50]), 10, 2, 2).tolist() == [-1]
    for alpha, bag in ((0, 2), (1, 2), (0.1, 0)):
        with pytest.raises(InputError, match="alpha"):
            certify_bagging(np.zeros((1, 5), dtype=int), 10, bag, 2, alpha=alpha)
    # A bag of more users than there are can be drawn with replacement only.
    assert certify_bagging(np.zeros((1, 100), dtype=int), 10, 11, 2, replacement=True).shape == (1,)
    with pytest.raises(InputError, match="bag size 11 does not fit 10 users"):
        certify_bagging(np.zeros((1, 100), dtype=int), 10, 11, 2, replacement=False)
    for votes, n_users, bag, n_classes in (
        ([[0.5, 1.0]], 10, 2, 2),
        ([[np.nan, 1.0]], 10, 2, 2),
        ([[0, 1]], 0, 1, 2),
        ([[0, 1]], 2.5, 1, 2),
        ([[0, 1]], 10, 1.5, 2),
        ([[0, 1]], 10, 2, 2.5),
        (np.zeros((1, 0), dtype=int), 10, 2, 2),
    ):
        with pytest.raises(InputError):
            certify_bagging(votes, n_users, bag, n_classes)
    with pytest.raises(InputError, match="not a whole number"):
        certify_dpa([[np.nan, 1, 1]], 2)


def test_bagging_of_very_many_users_takes_no_factorials():
    votes = np.ones((1, 100), dtype=int)
    few = certify_bagging(votes, 10_000, 300, 2, replacement=False)
    gap = 2 * 0.0005 ** (1 / 100) - 1  # all of 100 votes: a share of at least 0.0005 ** (1 / 100)
    assert few == max(r for r in range(60) if 2 * (1 - comb(10_000 - r, 300) / comb(10_000, 300)) < gap)
    assert certify_bagging(votes, 1_000_000, 30_000, 2, replacement=False) == few
