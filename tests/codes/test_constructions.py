"""Baselines, separable matrices, the paper's codes by name, and pictures."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward import Code, InputError, inspect
from codeward.codes import (
    bagging_code,
    bit_code,
    duplicated_code,
    enumerate_patterns,
    find_twin_break,
    kautz_singleton_code,
    list_named_codes,
    named_code,
    partition_code,
    shifted_hash_code,
    sketch_code,
    stack_codes,
)


@given(st.integers(1, 30), st.integers(1, 30))
def test_a_partition_puts_every_user_into_one_model(n_users, n_groups):
    if n_groups > n_users:
        with pytest.raises(InputError, match="cannot split"):
            partition_code(n_users, n_groups)
        return
    code = partition_code(n_users, n_groups)
    assert (code.matrix.sum(axis=0) == 1).all()
    sizes = code.matrix.sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


def test_bagging_rows_have_constant_weight_and_use_everybody():
    code = bagging_code(12, 15, 4, np.random.default_rng(3))
    assert (code.matrix.sum(axis=1) == 4).all()
    assert code == bagging_code(12, 15, 4, np.random.default_rng(3))
    assert code != bagging_code(12, 15, 4, np.random.default_rng(4))
    with pytest.raises(InputError, match="cannot use all 12 users"):
        bagging_code(12, 2, 4, np.random.default_rng(0))
    with pytest.raises(InputError, match=r"not in 1\.\.12"):
        bagging_code(12, 2, 13, np.random.default_rng(0))


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 100))
def test_finite_aggregation_sends_every_user_to_d_of_kd_models(n_groups, spread, seed):
    code = shifted_hash_code(n_groups, spread, np.random.default_rng(seed))
    assert code.n_models == code.n_users == n_groups * spread
    assert (code.matrix.sum(axis=0) == spread).all()
    assert (code.matrix.sum(axis=1) == spread).all()


def test_finite_aggregation_shares_parts_among_more_users():
    code = shifted_hash_code(4, 2, np.random.default_rng(0), n_users=20)
    assert code.n_users == 20
    assert (code.column(0) == code.column(8)).all()


@given(st.integers(1, 70))
def test_bit_codes_tell_single_users_apart_with_the_fewest_rows(n_users):
    code = bit_code(n_users)
    assert 2 ** (code.n_models - 1) <= n_users < 2**code.n_models
    assert find_twin_break(enumerate_patterns(code, 1)) is None


@pytest.mark.parametrize(
    ("n_users", "k"), [(9, 2), (16, 2), (25, 2), (27, 1), (30, 3), (4, 3), (16, 3), (64, 2), (8, 2)]
)
def test_kautz_singleton_matrices_are_disjunct(n_users, k):
    code = kautz_singleton_code(n_users, k)
    assert find_twin_break(enumerate_patterns(code, k)) is None
    # Disjunct: no k-sum contains another user's column.
    table = enumerate_patterns(code, k)
    for row, pattern in enumerate(table.bits):
        inside = (code.matrix <= pattern[:, None]).all(axis=0)
        assert np.flatnonzero(inside).tolist() == list(table.attacker_set(row))


def test_sums_differ_where_no_column_is_covered_by_at_most_k_others():
    rng, seen = np.random.default_rng(0), 0
    for _ in range(400):
        n, k = int(rng.integers(1, 5)), int(rng.integers(1, 6))
        matrix = rng.random((5, n)) < 0.5
        if not (matrix.any(axis=1).all() and matrix.any(axis=0).all()):
            continue
        code, others = Code(matrix), [set(range(n)) - {user} for user in range(n)]
        free = all(
            not (matrix[:, user] <= matrix[:, list(chosen)].any(axis=1)).all()
            for user in range(n)
            for size in range(min(k, n - 1) + 1)
            for chosen in combinations(others[user], size)
        )
        if free:
            seen += 1
            assert find_twin_break(enumerate_patterns(code, k)) is None
    assert seen > 20
    # With k users or fewer besides it, "k others" would say nothing: two equal columns.
    assert find_twin_break(enumerate_patterns(Code([[1, 1]]), 2)) is not None


def test_a_bcc_over_a_separable_matrix_tracks():
    code = stack_codes(duplicated_code(16, 2, 3), kautz_singleton_code(16, 2))
    found = inspect(code, 2)
    assert found.track == 2
    assert code.row_weight >= 3
    with pytest.raises(InputError, match="cannot stack"):
        stack_codes(bit_code(5), bit_code(6))


# name, models, users, row weight, detect, correct, track
NAMED = [
    ("a", 12, 12, 1, 11, 5, 5),
    ("b", 6, 12, 2, 5, 2, 0),
    ("c", 15, 12, 4, 4, 4, 0),
    ("d", 6, 12, 6, 2, 2, 0),
    ("e", 15, 12, 4, 2, 2, 1),
    ("f", 6, 12, 6, 1, 0, 0),
    ("g", 6, 16, 11, 1, 1, 1),
    ("h16", 16, 16, 4, 3, 3, 2),
    ("btc3416", 16, 16, 4, 4, 3, 3),
    ("btc2412", 15, 12, 4, 3, 3, 2),
    ("fa", 12, 12, 4, 3, 1, 1),
    ("bcc248", 6, 8, 4, 2, 2, 0),
    ("toy-a", 3, 6, 2, 2, 1, 0),
    ("toy-b", 4, 6, 3, 1, 1, 0),
    ("toy-c", 3, 6, 4, 1, 1, 0),
    ("toy-d", 4, 6, 3, 1, 1, 1),
]


@pytest.mark.parametrize(("name", "models", "users", "weight", "detect", "correct", "track"), NAMED)
def test_the_papers_codes_are_what_the_paper_says(name, models, users, weight, detect, correct, track):
    found = inspect(named_code(name))
    assert (found.code.n_models, found.code.n_users, found.code.row_weight) == (models, users, weight)
    assert (found.detect, found.correct, found.track) == (detect, correct, track)


def test_the_default_code_has_room_for_a_wrong_vote():
    found = inspect(named_code("btc2412"), 3)
    assert found.margin == (6, 3, 2)
    assert found.margin_track[:2] == (5, 3)


def test_code_h_and_the_tracking_example_track_two_attackers():
    for name, users, weight, most in (("h", 16, 4, 10), ("btc228", 8, 2, 7)):
        found = inspect(named_code(name), 2)
        assert found.track == 2
        assert found.code.n_users == users
        assert found.code.row_weight >= weight
        assert found.code.n_models <= most


def test_every_name_is_tested_and_an_unknown_one_is_refused():
    assert set(list_named_codes()) == {row[0] for row in NAMED} | {"h", "btc228"}
    with pytest.raises(InputError, match="choose one of a, b"):
        named_code("z")


def test_the_sketch_shows_every_cell():
    text = sketch_code(Code([[1, 0, 1], [0, 1, 1]]))
    assert text.splitlines() == ["  0 1 2", "0 ██· ██", "1 · ████"]
    assert "showing 40 of 50 models and 10 of 50 users" in sketch_code(Code(np.eye(50)), width=10)


def test_a_large_code_is_drawn_by_its_ones_alone():
    picture = Code(np.eye(300)).plot()
    assert picture.count("h6v6") == 300
    assert "<text" not in picture
