"""Fast property checks against a brute-force twin that reads like the definitions."""

from itertools import chain, combinations
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codeward import Code, inspect
from codeward._errors import TooLargeError
from codeward.codes import (
    count_attacker_sets,
    duplicated_code,
    enumerate_patterns,
    find_correction_break,
    find_detection_break,
    find_margins,
    find_smallest_cover,
    find_tracking_break,
    pack_words,
    sort_rows,
    unpack_words,
)
from codeward.codes._patterns import distinct_columns
from codeward.codes._properties import count_pairs


def subsets(n, k):
    return list(chain.from_iterable(combinations(range(n), j) for j in range(k + 1)))


def ksum(matrix, users):
    return matrix[:, list(users)].any(axis=1)


def brute_detect(matrix, k):
    return not any(ksum(matrix, x).all() for x in subsets(matrix.shape[1], k))


def brute_correct(matrix, k):
    sums = [ksum(matrix, x) for x in subsets(matrix.shape[1], k)]
    return not any((s ^ t).all() for s in sums for t in sums)


def brute_track(matrix, k):
    sums = [ksum(matrix, x).tobytes() for x in subsets(matrix.shape[1], k)]
    return brute_correct(matrix, k) and len(set(sums)) == len(sums)


def brute_margins(matrix, k):
    sets = subsets(matrix.shape[1], k)
    sums = [ksum(matrix, x) for x in sets]
    label = min(int((~(s ^ t)).sum()) for s in sums for t in sums)
    track = min(int((s ^ t).sum()) for i, s in enumerate(sums) for t in sums[:i])
    arbitrary = min(int((~(s | t)).sum()) for s in sums for t in sums)
    return label, track, arbitrary


@st.composite
def codes(draw, max_models=7, max_users=6):
    shape = draw(st.tuples(st.integers(1, max_models), st.integers(1, max_users)))
    matrix = draw(arrays(bool, shape))
    assume(matrix.any(axis=0).all() and matrix.any(axis=1).all())
    return matrix


@given(codes(), st.integers(1, 4))
def test_properties_agree_with_the_definitions(matrix, k):
    table = enumerate_patterns(Code(matrix), k)
    for find, brute in (
        (find_detection_break, brute_detect),
        (find_correction_break, brute_correct),
        (find_tracking_break, brute_track),
    ):
        found = find(table)
        for size in range(1, k + 1):
            assert brute(matrix, size) == (found is None or found.size > size), (find.__name__, size)


@given(codes(), st.integers(1, 3))
def test_witnesses_really_break(matrix, k):
    table = enumerate_patterns(Code(matrix), k)
    if found := find_detection_break(table):
        assert ksum(matrix, found.attackers[0]).all()
        assert len(found.attackers[0]) == found.size
    if found := find_correction_break(table):
        one, two = found.attackers
        assert (ksum(matrix, one) ^ ksum(matrix, two)).all()
        assert max(len(one), len(two)) == found.size
    if found := find_tracking_break(table):
        one, two = found.attackers
        different = ksum(matrix, one) ^ ksum(matrix, two)
        assert one != two
        assert different.all() or not different.any()


@given(codes(), st.integers(1, 3))
def test_margins_agree_with_the_definitions(matrix, k):
    margins = find_margins(enumerate_patterns(Code(matrix), k))
    for size in range(1, k + 1):
        got = (margins.label[size - 1], margins.tracking[size - 1], margins.arbitrary[size - 1])
        assert got == brute_margins(matrix, size)


@given(codes(), st.randoms(use_true_random=False))
def test_permuting_users_and_models_changes_nothing(matrix, random):
    rows, columns = list(range(matrix.shape[0])), list(range(matrix.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    one = inspect(Code(matrix), 3).to_json()
    two = inspect(Code(matrix[rows][:, columns]), 3).to_json()
    for key in ("attackers", "margin", "margin_track", "margin_arbitrary", "row_weight", "models_lower_bound"):
        assert one[key] == two[key], key


@given(codes())
def test_inspection_without_a_limit_agrees_with_the_definitions(matrix):
    found = inspect(Code(matrix))
    n = matrix.shape[1]
    largest = {
        name: max((k for k in range(1, n + 1) if holds(matrix, k)), default=0)
        for name, holds in (("detect", brute_detect), ("correct", brute_correct), ("track", brute_track))
    }
    got = {"detect": found.detect, "correct": found.correct, "track": found.track}
    assert got == largest
    assert found.correct_arbitrary == max((k for k in range(1, n) if brute_detect(matrix, 2 * k)), default=0)


@given(codes(max_models=9, max_users=8))
@settings(max_examples=50)
def test_smallest_cover_is_smallest(matrix):
    lower, cover = find_smallest_cover(Code(matrix))
    best = next(len(x) for x in subsets(matrix.shape[1], matrix.shape[1]) if ksum(matrix, x).all())
    assert lower == len(cover) == best
    assert ksum(matrix, cover).all()


@given(codes(), st.integers(0, 4))
def test_pattern_table_counts_every_attacker_set(matrix, k):
    table = enumerate_patterns(Code(matrix), k)
    seen = {}
    for x in subsets(matrix.shape[1], k):
        seen.setdefault(ksum(matrix, x).tobytes(), []).append(x)
    assert [row.tobytes() for row in table.bits] == list(seen)
    for row, sets in enumerate(seen.values()):
        assert table.attacker_set(row) == sets[0]
        assert table.twin_set(row) == (sets[1] if len(sets) > 1 else ())
        assert table.counts[row].tolist() == [sum(len(x) == j for x in sets) for j in range(k + 1)]


@pytest.mark.parametrize("n_models", [63, 64, 65, 130])
def test_patterns_past_one_word_keep_their_bits(n_models):
    rng = np.random.default_rng(n_models)
    matrix = rng.random((n_models, 9)) < 0.4
    matrix[:, 0] |= ~matrix.any(axis=1)
    table = enumerate_patterns(Code(matrix), 2)
    for row in range(len(table.words)):
        assert (table.bits[row] == ksum(matrix, table.attacker_set(row))).all()
    assert (table.weights == table.bits.sum(axis=1)).all()


def test_a_check_that_does_not_fit_says_so_with_its_size():
    code = Code(np.eye(200, dtype=bool))
    with pytest.raises(TooLargeError, match="2,601,668,491"):
        inspect(code, 5)


def test_a_large_code_is_inspected_as_far_as_it_pays():
    rng = np.random.default_rng(1)
    matrix = rng.random((60, 300)) < 0.3
    found = inspect(Code(matrix))
    assert found.max_attackers >= 2
    assert found.detect == found.max_attackers
    assert any("examined up to" in note for note in found.notes)


def test_users_with_equal_columns_are_examined_once():
    # 300 users on 12 columns: all coalitions of 4 are over three hundred million, of distinct columns 794.
    base = inspect(duplicated_code(12, 4, 4))
    found = inspect(duplicated_code(300, 4, 100))
    assert (found.detect, found.correct, found.track) == (base.detect, base.correct, 0) == (4, 4, 0)
    assert found.margin == base.margin
    one, two = found.witness["track"].attackers
    assert (found.code.column(one[0]) == found.code.column(two[0])).all()


def test_the_identity_code_detects_all_but_one():
    found = inspect(Code(np.eye(12, dtype=bool)))
    assert (found.detect, found.correct, found.correct_arbitrary, found.track) == (11, 5, 5, 5)
    assert found.witness["correct"].size == 6


def test_a_code_that_is_bdc_but_not_bcc_is_told_apart():
    found = inspect(Code([[1, 0], [0, 1]]))
    assert (found.detect, found.correct) == (1, 0)
    assert sorted(found.witness["correct"].attackers) == [(0,), (1,)]


def test_attacker_sets_are_counted_as_binomials():
    for n in range(6):
        for k in range(8):
            assert count_attacker_sets(n, k) == sum(comb(n, j) for j in range(min(k, n) + 1))
    assert count_attacker_sets(1000, 3) == 1 + 1000 + 499_500 + 166_167_000


@given(arrays(bool, st.tuples(st.integers(1, 4), st.integers(1, 9))))
def test_distinct_columns_are_the_first_of_their_like(matrix):
    first, shared = distinct_columns(matrix)
    columns = [tuple(column) for column in matrix.T.tolist()]
    assert first.tolist() == [j for j, column in enumerate(columns) if columns.index(column) == j]
    assert shared.tolist() == [columns.count(columns[j]) for j in first]


@pytest.mark.parametrize("n_bits", [1, 7, 8, 63, 64, 65, 128, 129])
def test_words_hold_bit_i_at_place_i(n_bits):
    bits = np.eye(n_bits, dtype=bool)
    words = pack_words(bits)
    assert words.shape == (n_bits, (n_bits + 63) // 64)
    assert [sum(int(word) << 64 * i for i, word in enumerate(row)) for row in words] == [1 << i for i in range(n_bits)]
    assert (unpack_words(words, n_bits) == bits).all()


def test_rows_are_sorted_by_their_first_word_first_and_equal_ones_stay_in_order():
    rows = np.array([[1, 2], [0, 9], [1, 1], [1, 2]], dtype=np.uint64)
    assert sort_rows(rows).tolist() == [1, 2, 0, 3]
    assert sort_rows(rows[:, :1]).tolist() == [1, 0, 2, 3]


def test_the_limit_on_attacker_sets_counts_those_of_the_limit_itself():
    code = Code(np.eye(4, dtype=bool))
    assert len(enumerate_patterns(code, 2, max_sets=11).words) == 11
    with pytest.raises(TooLargeError, match="11 attacker sets of at most 2 of 4 users"):
        enumerate_patterns(code, 2, max_sets=10)
    # 11 sets, 2 members and 4 words each: 66 numbers; wide codes count for more.
    wide = Code(np.ones((64 * 3, 4), dtype=bool))
    assert len(enumerate_patterns(wide, 2, max_sets=13).words) == 2
    with pytest.raises(TooLargeError):
        enumerate_patterns(wide, 2, max_sets=12)


def test_sizes_weights_and_twins_of_a_small_table():
    table = enumerate_patterns(Code([[1, 1, 0], [0, 0, 1]]), 2)
    assert table.max_attackers == 2
    assert table.sizes.tolist() == [0, 1, 1, 2]
    assert table.weights.tolist() == [0, 1, 1, 2]
    assert [table.twin_set(row) for row in range(4)] == [(), (1,), (), (1, 2)]
    assert [count_pairs(table, k) for k in range(3)] == [1, 6, 10]


def test_witnesses_are_the_first_of_the_smallest():
    # Users 0 and 3 hit everything, so do 1 and 2; one pair of complements needs a single user a side.
    code = Code([[1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]])
    table = enumerate_patterns(code, 3)
    assert find_detection_break(table).attackers == ((0, 3),)
    assert find_correction_break(table).attackers == ((0,), (3,))
    assert find_correction_break(table).size == 1
    assert find_tracking_break(table).attackers == ((0,), (3,))
    margins = find_margins(table)
    assert (margins.label, margins.tracking, margins.arbitrary) == ((0, 0, 0), (2, 0, 0), (0, 0, 0))
    assert find_margins(table, 1).tracking == (2,)
    assert find_margins(table, 9).tracking == (2, 0, 0)


def test_a_cover_of_a_code_too_large_for_the_program_is_greedy_and_proves_nothing():
    matrix = np.zeros((1100, 1000), dtype=bool)
    matrix[np.arange(1100), np.arange(1100) % 1000] = True
    matrix[:550, 7] = True
    lower, cover = find_smallest_cover(Code(matrix))
    assert lower == 1
    assert ksum(matrix, cover).all()
    assert 7 in cover
    assert len(cover) == 550
