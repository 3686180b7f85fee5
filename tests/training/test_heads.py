"""Ridge heads from exact statistics: sums, solves, isolation, revocation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from codeward import InputError
from codeward.codes import Code
from codeward.training import ModelStore, SubModels
from codeward.training.heads import (
    GridFeatures,
    HeadSet,
    StatisticsSet,
    fit_heads,
    gather_statistics,
    round_to_grid,
    sum_row_grams,
)
from codeward.training.heads._feature_grid import MOST_SAMPLES
from codeward.training.heads._user_statistics import pack_gram

D, C, USERS = 24, 3, 9


def draw(seed=0, size=400, width=D, n_users=USERS):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, C, size)
    features = rng.normal(size=(size, width)) + np.eye(width)[labels] * 2
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    users = np.concatenate([np.arange(n_users), rng.integers(0, n_users, size - n_users)])
    return features, labels, users


def draw_code(seed=0, m=7, n=USERS):
    rng = np.random.default_rng(seed)
    matrix = rng.random((m, n)) < 0.4
    matrix[np.arange(m), np.arange(m) % n] = True
    matrix[np.arange(n) % m, np.arange(n)] = True
    return Code(matrix)


# -- the grid


@given(st.integers(0, 10_000), st.floats(1e-3, 1e6))
@settings(max_examples=50, deadline=None)
def test_rounding_keeps_norms_within_one_and_rows_apart(seed, scale):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(5, 40)) * scale
    grid = round_to_grid(features)
    floats = grid.to_floats().astype(np.float64)
    assert (floats * 4096 == np.rint(floats * 4096)).all()
    assert (np.square(grid.steps.astype(np.int64)).sum(axis=1) <= 4096**2).all()
    norms = np.linalg.norm(features, axis=1)
    assert grid.n_clipped == (norms > 1).sum()
    expected = features / np.maximum(1, norms)[:, None]
    assert np.abs(floats - expected).max() <= 2.0**-12 + 1e-12
    alone = np.concatenate([round_to_grid(features[i : i + 1]).steps for i in range(5)])
    assert (alone == grid.steps).all()


@pytest.mark.parametrize(
    ("features", "says"),
    [
        ([[np.nan, 0.0]], "row 0 holds NaN"),
        ([[0.0, 0.0], [np.inf, 0.0]], "row 1 holds NaN, infinity"),
        ([[1e200, 0.0]], "too large to square"),
        ([0.0, 1.0], "shape"),
        ([["a", "b"]], "expected numbers"),
        (np.zeros((2, 0)), "no columns"),
    ],
)
def test_bad_features_are_refused(features, says):
    with np.errstate(over="ignore"), pytest.raises(InputError, match=says):
        round_to_grid(np.array(features))


def test_another_width_is_refused():
    with pytest.raises(InputError, match="3 columns, expected 4"):
        round_to_grid(np.zeros((1, 3)), 4)


# -- exact sums (Proposition 30)


def test_sums_are_exact_in_any_order():
    rng = np.random.default_rng(5)
    steps = round_to_grid(rng.normal(size=(300, 20))).steps
    exact = steps.astype(object).T @ steps.astype(object)  # whole numbers without end
    triangle = np.array([int(exact[i, j]) for j in range(20) for i in range(j + 1)], dtype=object)
    assert (pack_gram(steps).astype(object) == triangle).all()
    assert (pack_gram(steps[rng.permutation(300)]) == pack_gram(steps)).all()
    chunks = [pack_gram(steps[a : a + 37]) for a in range(0, 300, 37)]
    for _ in range(5):
        rng.shuffle(chunks)
        assert (np.add.reduce(chunks) == pack_gram(steps)).all()
    assert (pack_gram(steps) - pack_gram(steps[100:]) == pack_gram(steps[:100])).all()


def test_the_largest_sum_still_counts_single_steps_and_one_more_bit_would_not():
    # MOST_SAMPLES of the longest features, less one step: the last bit of a float64.
    largest = float(MOST_SAMPLES) * 4096.0**2
    assert largest == 2.0**53
    assert largest - 1 != largest
    assert largest + 1 == largest
    user = gather_statistics([[1.0]], [0], [0], 1).users[0]
    big = type(user)(user.sums, np.array([MOST_SAMPLES + 1]), gram=np.array([4096.0**2]))
    with pytest.raises(InputError, match="exact for 536,870,912 at most"):
        StatisticsSet((big,))


def test_products_of_rows_are_exact_in_float32():
    rng = np.random.default_rng(6)
    steps = round_to_grid(rng.normal(size=(60, 500))).steps
    one = np.zeros((1, 500), np.int16)
    one[0, 0] = 4096
    steps = np.concatenate([steps, one, -one])
    single = steps.astype(np.float32) @ steps.astype(np.float32).T
    assert (single.astype(np.int64) == steps.astype(np.int64) @ steps.astype(np.int64).T).all()


@pytest.mark.parametrize("memory", [1, 5_000, 1 << 30])
@pytest.mark.parametrize("grams", [False, True])
def test_row_sums_do_not_depend_on_the_order_of_work(memory, grams, monkeypatch):
    monkeypatch.setattr("codeward.training.heads._ridge._TILE_MEMORY", 4_000)
    features, labels, users = draw()
    statistics = gather_statistics(features, labels, users, C)
    steps = round_to_grid(features).steps
    if grams:
        mixed = [user.to_gram() if number % 2 else user for number, user in enumerate(statistics.users)]
        statistics = StatisticsSet(tuple(mixed))
    for code in (draw_code(), Code(np.eye(USERS, dtype=bool)), Code(np.ones((3, USERS), bool))):
        rows = [np.flatnonzero(row).tolist() for row in code.matrix]
        seen = dict(sum_row_grams(statistics, rows, memory))
        assert sorted(seen) == list(range(len(rows)))
        for row, gram in seen.items():
            assert (gram == pack_gram(steps[np.isin(users, rows[row])])).all()


# -- heads


def reference(features, labels, chosen, ridge, weight=None):
    """scikit-learn's ridge on the same rounded features."""
    grid = round_to_grid(features[chosen]).to_floats().astype(np.float64)
    model = Ridge(alpha=ridge, fit_intercept=False, solver="cholesky")
    sample_weight = None if weight is None else np.array(weight)[labels[chosen]]
    model.fit(grid, np.eye(C)[labels[chosen]], sample_weight=sample_weight)
    return model.coef_.T


@pytest.mark.parametrize("weight", [None, (1, 3, 2)])
@pytest.mark.parametrize("form", ["auto", "primal"])
@pytest.mark.parametrize("width", [8, 24, 200])
def test_heads_equal_ridge_regression_of_scikit_learn(width, form, weight):
    features, labels, users = draw(width=width)
    code = draw_code()
    heads = fit_heads(features, labels, users, code, C, ridge=0.3, form=form, class_weight=weight)
    assert isinstance(heads, SubModels)
    for model, row in enumerate(code.matrix):
        chosen = np.isin(users, np.flatnonzero(row))
        expected = reference(features, labels, chosen, 0.3, weight)
        np.testing.assert_allclose(heads.weights[model], expected, atol=2e-6)
    seen = round_to_grid(features[:50]).to_floats()
    outputs = np.einsum("nd,mdc->nmc", seen, heads.weights)
    assert (heads.votes(features[:50]) == outputs.argmax(axis=2)).mean() > 0.999
    assert (heads.scores(features[:50]).argmax(axis=2) == heads.votes(features[:50])).all()
    np.testing.assert_allclose(np.exp(heads.scores(features[:50])).sum(axis=2), 1, rtol=1e-5)


@pytest.mark.parametrize("form", ["auto", "primal"])
@pytest.mark.parametrize("width", [24, 300])
def test_a_head_is_a_function_of_its_own_users(width, form):
    features, labels, users = draw(width=width)
    code = draw_code()
    clean = fit_heads(features, labels, users, code, C, form=form)
    attacked = np.where(users[:, None] == 4, np.random.default_rng(1).normal(size=features.shape), features)
    dirty = fit_heads(attacked, np.where(users == 4, 0, labels), users, code, C, form=form)
    for model in range(code.n_models):
        same = clean.weights[model].tobytes() == dirty.weights[model].tobytes()
        assert same == (not code.matrix[model, 4])
        assert (clean.keys[model] == dirty.keys[model]) == same


@pytest.mark.parametrize("keep_sums", [0, 1 << 20])
@pytest.mark.parametrize("form", ["auto", "primal"])
@pytest.mark.parametrize("width", [24, 300])
@pytest.mark.parametrize("which", ["random", "partition", "alone"])
def test_revoking_is_never_having_had_the_user(which, width, form, keep_sums):
    features, labels, users = draw(width=width)
    matrix = draw_code().matrix
    if which == "partition":
        matrix = np.arange(USERS)[None] % 3 == np.arange(3)[:, None]
    elif which == "alone":
        matrix = np.concatenate([matrix, np.arange(USERS)[None] == 4])
    heads = fit_heads(features, labels, users, Code(matrix), C, form=form, keep_sums=keep_sums)
    for gone in ((4,), (4, 0)):
        left = heads
        for user in gone:
            left = left.revoke(user)
        columns = [user for user in range(USERS) if user not in gone]
        code = Code(matrix[:, columns][matrix[:, columns].any(axis=1)])
        kept = np.isin(users, columns)
        fresh = fit_heads(features[kept], labels[kept], np.searchsorted(columns, users[kept]), code, C, form=form)
        assert left.weights.tobytes() == fresh.weights.tobytes()
        assert left.keys == fresh.keys
        assert left.statistics.users[4].n_samples == 0
    with pytest.raises(InputError, match="no user 4"):
        left.revoke(4)


@pytest.mark.parametrize("width", [24, 300])
def test_replacing_what_users_handed_in_is_fitting_from_scratch(width):
    features, labels, users = draw(width=width)
    other = np.where(np.isin(users, [2, 5])[:, None], np.random.default_rng(1).normal(size=features.shape), features)
    changed = np.where(np.isin(users, [2, 5]), 0, labels)
    heads = fit_heads(features, labels, users, draw_code(), C)
    fresh = fit_heads(other, changed, users, draw_code(), C)
    left = heads.replace_users({user: fresh.statistics.users[user] for user in (2, 5)})
    assert left.weights.tobytes() == fresh.weights.tobytes()
    assert left.keys == fresh.keys
    with pytest.raises(InputError, match="unknown users"):
        heads.replace_users({99: fresh.statistics.users[0]})


def test_the_slow_twin_a_user_that_was_never_there_and_one_that_was_differ():
    features, labels, users = draw()
    heads = fit_heads(features, labels, users, draw_code(), C)
    left = heads.revoke(4)
    touched = draw_code().matrix[:, 4]
    assert touched.any()
    assert all((heads.weights[i].tobytes() != left.weights[i].tobytes()) == touched[i] for i in range(len(touched)))


def test_heads_live_in_a_store_under_their_keys(tmp_path):
    features, labels, users = draw()
    code = draw_code()
    heads = fit_heads(features, labels, users, code, C)
    store = ModelStore(tmp_path)
    heads.save(store)
    loaded = HeadSet.load(store, heads.keys, code, C, heads.ridge)
    assert loaded.weights.tobytes() == heads.weights.tobytes()
    assert (loaded.votes(features) == heads.votes(features)).all()
    with pytest.raises(InputError, match="loaded without"):
        loaded.revoke(0)
    with pytest.raises(InputError, match="expected"):
        HeadSet.load(store, heads.keys, code, C + 1, heads.ridge)
    with pytest.raises(InputError, match="gone or damaged"):
        HeadSet.load(store, ["0" * 64, *heads.keys[1:]], code, C, heads.ridge)


def test_a_class_nobody_has_is_never_said():
    features, labels, users = draw()
    heads = fit_heads(features, labels, users, draw_code(), C + 1)
    assert heads.votes(features).max() < C
    assert np.isfinite(heads.scores(features)).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": np.full(400, 7)}, "label 7, not 0..2"),
        ({"users": np.zeros(400, int)}, "user 1 has no samples"),
        ({"users": np.full(400, 99)}, "user 99, not 0..8"),
        ({"labels": np.zeros(3, int)}, "expected 400 whole numbers"),
        ({"users": np.zeros(400)}, "whole numbers"),
        ({"ridge": 0.0}, "above 0"),
        ({"ridge": np.nan}, "above 0"),
        ({"form": "other"}, "auto or primal"),
        ({"class_weight": (1, 2)}, "expected 3 whole numbers"),
        ({"features": np.full((400, D), np.nan)}, "NaN"),
    ],
)
def test_bad_input_says_what_is_wrong_in_one_line(change, says):
    features, labels, users = draw()
    told = {"features": features, "labels": labels, "users": users, "code": draw_code(), "n_classes": C} | change
    with pytest.raises(InputError, match=says) as caught:
        fit_heads(**told)
    assert "\n" not in str(caught.value)


def test_features_of_another_width_are_refused_by_fitted_heads():
    features, labels, users = draw()
    heads = fit_heads(features, labels, users, draw_code(), C)
    with pytest.raises(InputError, match="23 columns, expected 24"):
        heads.votes(features[:, :-1])
    assert heads.votes(features[:0]).shape == (0, 7)
    assert heads.scores(GridFeatures(np.zeros((0, D), np.int16))).shape == (0, 7, C)
