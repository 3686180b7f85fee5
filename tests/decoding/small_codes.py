"""Codes of a few users and models, and the paper's formula written out for them."""

from itertools import combinations, pairwise, product
from math import comb

import numpy as np

from codeward.codes import Code

TWINS = Code([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1], [1, 1, 0, 1]])  # users 0 and 1 reach the same models
RING = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]])  # any two users reach everything
LINE = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]])


def every_vote(n_models, n_classes):
    return np.array(list(product(range(n_classes), repeat=n_models)))


def draw_confusion(code, n_classes, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(n_classes), (code.n_models, n_classes))


def list_sets(code, prior):
    sizes = [size for size in range(len(prior)) if size <= code.n_users and prior[size] > 0]
    return {x: prior[len(x)] / comb(code.n_users, len(x)) for k in sizes for x in combinations(range(code.n_users), k)}


def hit(x, code):
    return code.matrix[:, list(x)].any(axis=1)


def log(value):
    return np.log(value) if value > 0 else -np.inf


def log_hit(clean, says, rate):
    """Log of S [says] + (1 - S) C, S = 1 as the limit from below."""
    failed = np.log1p(-rate) if rate < 1 else -1e6
    return np.logaddexp(log(rate) if says else -np.inf, failed + clean)


def likelihood(code, base, votes, x, target, success):
    """Log of Pr(y | x, t, l) of every label, shape (c,); ``base`` of shape (m, c)."""
    reached = hit(x, code)
    return sum(
        np.array([log_hit(clean, vote == target, success) for clean in base[i]]) if reached[i] else base[i]
        for i, vote in enumerate(votes)
    )


def total(values, axis=None):
    return np.logaddexp.reduce(np.asarray(values), axis=axis)


def first_of(values):
    """Key of the largest value, the first listed on a tie."""
    best = max(values.values())
    return next(key for key, value in values.items() if value >= best - 1e-9)


def check_nearly_best(found, u, by_set):
    """Compare what is shown of the explanations of an input with all of a twentieth of the best posterior."""
    best = max(by_set.values())
    near = {x: value for x, value in by_set.items() if value >= best - np.log(20) - 1e-9}
    shown = found.suspect_sets[u]
    assert len(shown) == len(set(shown)) == min(len(near), 20)
    assert found.more_sets[u] == len(near) - len(shown)
    assert set(shown) <= set(near)
    values = [near[x] for x in shown]
    assert all(after <= before + 1e-8 for before, after in pairwise(values))
    assert all(near[x] <= values[-1] + 1e-8 for x in set(near) - set(shown))
    assert set(found.suspects[u]) == set.intersection(*map(set, near))
