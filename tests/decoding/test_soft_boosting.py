import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward.decoding.soft._learners import (
    DEPTH,
    LEAF_MASS,
    LEAF_PENALTY,
    N_BINS,
    RATE,
    STRIDE,
    Trees,
    average_trees,
    grow_trees,
)


def draw_rows(seed, size=400, width=3):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(size, width)).astype(np.float32)
    rows[:, -1] = generator.integers(0, 3, size)
    answers = generator.random(size) < 1 / (1 + np.exp(-3 * rows[:, 0] * rows[:, 1]))
    answers[:2] = (True, False)
    return rows, answers, generator.uniform(0.5, 2.0, size)


def walk(trees, tree, row):
    k = 0
    for _ in range(DEPTH):
        k = 2 * k + (2 if row[trees.features[tree, k]] > trees.thresholds[tree, k] else 1)
    return k - (2**DEPTH - 1)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_log_odds_are_the_leaves_each_row_falls_into(seed):
    rows, answers, weights = draw_rows(seed)
    trees = grow_trees(rows, answers, weights)
    found = trees.log_odds(rows[:20])
    for n in range(20):
        leaves = [float(trees.values[tree, walk(trees, tree, rows[n])]) for tree in range(len(trees.values))]
        assert abs(found[n] - trees.base - sum(leaves)) < 1e-9


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_trees_have_the_best_split_at_every_node_and_newton_steps_in_their_leaves(seed):
    rows, answers, weights = draw_rows(seed)
    trees = grow_trees(rows, answers, weights)
    share = weights[answers].sum() / weights.sum()
    score = np.full(len(rows), np.log(share / (1 - share)))
    # Every cut between two bins, at every node.
    shares = np.arange(1, N_BINS) / N_BINS
    edges = [np.quantile(rows[:, feature], shares, method="inverted_cdf") for feature in range(rows.shape[1])]
    for tree in range(2):
        used = np.arange(tree % STRIDE, len(rows), STRIDE)
        chance = 1 / (1 + np.exp(-score[used]))
        slope, bend = weights[used] * (answers[used] - chance), weights[used] * chance * (1 - chance)

        def gain(here, feature, cut, used=used, slope=slope, bend=bend):
            left = here & (rows[used, feature] <= cut)
            right = here & ~left
            if min(bend[left].sum(), bend[right].sum()) < LEAF_MASS:
                return -np.inf
            parts = [slope[part].sum() ** 2 / (bend[part].sum() + LEAF_PENALTY) for part in (left, right, here)]
            return parts[0] + parts[1] - parts[2]

        nodes = {0: np.ones(used.size, dtype=bool)}
        for k in range(2**DEPTH - 1):
            here, feature, cut = nodes[k], trees.features[tree, k], trees.thresholds[tree, k]
            best = max(gain(here, other, edge) for other, some in enumerate(edges) for edge in some)
            assert max(gain(here, feature, cut), 0) == pytest.approx(max(best, 0), abs=1e-5)
            nodes[2 * k + 1] = here & (rows[used, feature] <= cut)
            nodes[2 * k + 2] = here & ~nodes[2 * k + 1]
        leaves = np.array([walk(trees, tree, row) for row in rows])
        for leaf in range(2**DEPTH):
            here = leaves[used] == leaf
            wanted = RATE * slope[here].sum() / (bend[here].sum() + LEAF_PENALTY)
            assert abs(trees.values[tree, leaf] - wanted) < 1e-5
        score += trees.values[tree, leaves]


def test_it_learns_an_interaction_that_no_sum_of_single_features_has():
    rows, answers, weights = draw_rows(0, 8000)
    odds = grow_trees(rows[:6000], answers[:6000], weights[:6000]).log_odds(rows[6000:])
    true = 3 * rows[6000:, 0] * rows[6000:, 1]

    def loss(values):
        return float(np.logaddexp(0, np.where(answers[6000:], -values, values)).mean())

    assert loss(odds) < loss(true) + 0.05
    assert loss(odds) < loss(np.zeros(2000)) - 0.15


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_features_that_say_nothing_leave_the_share_of_the_class(share):
    answers = np.arange(200) < 200 * share
    trees = grow_trees(np.ones((200, 2), dtype=np.float32), answers, np.ones(200))
    # Every tree sees other rows; alternate ones hold the same share.
    np.testing.assert_allclose(
        trees.log_odds(np.zeros((3, 2), dtype=np.float32)), np.log(share / (1 - share)), atol=0.05
    )


def test_one_answer_alone_has_finite_odds():
    for answer in (True, False):
        trees = grow_trees(np.ones((20, 1), dtype=np.float32), np.full(20, answer), np.ones(20))
        assert trees.base == pytest.approx((1 if answer else -1) * np.log((1 - 1e-6) / 1e-6))


def test_the_same_rows_give_the_same_trees():
    first, second = (grow_trees(*draw_rows(4)) for _ in range(2))
    assert isinstance(first, Trees)
    np.testing.assert_array_equal(first.thresholds, second.thresholds)
    np.testing.assert_array_equal(first.values, second.values)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4))
def test_averaged_trees_give_the_mean_of_their_log_odds(seed, count):
    each = [grow_trees(*draw_rows(seed + number)) for number in range(count)]
    rows = draw_rows(seed + count)[0]
    mean = np.mean([trees.log_odds(rows) for trees in each], axis=0)
    np.testing.assert_allclose(average_trees(each).log_odds(rows), mean, rtol=0, atol=1e-5)
