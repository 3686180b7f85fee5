"""The table of hit patterns against a plain listing of all attacker sets, field by field."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from codeward.codes import (
    Code,
    enumerate_patterns,
    find_margins,
    find_smallest_cover,
    find_tracking_break,
    find_twin_break,
)
from codeward.codes._patterns import full_words, pack_words, sort_rows, unpack_words
from codeward.codes._properties import count_pairs


def draw(seed, m, n):
    """Draw a code whose first and last user cannot be told apart."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((m, n - 1)) < 0.3
    matrix[np.arange(m), np.arange(m) % (n - 1)] = True
    matrix[np.arange(n - 1) % m, np.arange(n - 1)] = True
    return Code(np.hstack([matrix, matrix[:, :1]]))


@pytest.mark.parametrize(("m", "n", "k"), [(5, 4, 1), (6, 5, 2), (70, 5, 3), (130, 4, 4), (4, 3, 5)])
def test_every_field_of_the_table_is_that_of_a_plain_listing(m, n, k):
    code = draw(m + k, m, n)
    listed = {}
    for size in range(min(k, n) + 1):
        for users in combinations(range(n), size):
            listed.setdefault(tuple(code.pattern(users).tolist()), []).append(users)
    table = enumerate_patterns(code, k)
    assert table.max_attackers == k
    assert table.words.shape == (len(listed), -(-m // 64))
    assert table.attackers.shape == table.twins.shape == (len(listed), k)
    np.testing.assert_array_equal(table.bits, list(listed))
    np.testing.assert_array_equal(table.weights, [sum(pattern) for pattern in listed])
    np.testing.assert_array_equal(table.sizes, [len(sets[0]) for sets in listed.values()])
    for row, sets in enumerate(listed.values()):
        assert table.attacker_set(row) == sets[0]
        assert table.attackers[row].tolist() == [*sets[0], *[-1] * (k - len(sets[0]))]
        second = sets[1] if len(sets) > 1 else ()
        assert table.twin_set(row) == second
        assert table.twins[row].tolist() == [*second, *[-1] * (k - len(second))]
        assert table.counts[row].tolist() == [sum(len(users) == size for users in sets) for size in range(k + 1)]
    margins = find_margins(table)
    assert len(margins.label) == len(margins.tracking) == len(margins.arbitrary) == k
    assert count_pairs(table, k) == len(listed) * (len(listed) + 1) // 2
    few = sum(len(sets[0]) <= 1 for sets in listed.values())
    assert count_pairs(table, 1) == few * (few + 1) // 2
    # The smallest pair that cannot be told apart, the first in order.
    found = find_twin_break(table)
    pairs = [(len(sets[1]), row, sets[:2]) for row, sets in enumerate(listed.values()) if len(sets) > 1]
    assert (found.size, list(found.attackers)) == (min(pairs)[0], min(pairs)[2])
    assert find_tracking_break(table).size <= found.size


@pytest.mark.parametrize("width", [1, 2, 3])
def test_rows_of_words_are_sorted_by_the_first_word_first_and_stably(width):
    rows = np.random.default_rng(width).integers(0, 3, (200, width)).astype(np.uint64)
    expected = sorted(range(200), key=lambda row: (*rows[row].tolist(), row))
    assert sort_rows(rows).tolist() == expected


@pytest.mark.parametrize("n_bits", [1, 63, 64, 65, 128, 129])
def test_words_keep_their_bits_and_are_zero_past_them(n_bits):
    bits = np.random.default_rng(n_bits).random((20, n_bits)) < 0.5
    words = pack_words(bits)
    assert words.shape == (20, -(-n_bits // 64))
    for row, packed in zip(bits, words, strict=True):
        whole = sum(int(word) << (64 * place) for place, word in enumerate(packed.tolist()))
        assert whole == sum(1 << place for place in np.flatnonzero(row).tolist())
    np.testing.assert_array_equal(unpack_words(words, n_bits), bits)
    assert int(np.bitwise_count(full_words(n_bits)).sum()) == n_bits


@pytest.mark.parametrize(
    ("dual", "lower"), [(None, 1), (np.nan, 1), (-3.0, 1), (1.0, 1), (1.2, 2), (2.0000001, 2), (2.01, 3), (9.0, 4)]
)
def test_a_solver_that_found_no_cover_still_proves_its_bound_rounded_up(monkeypatch, dual, lower):
    answer = SimpleNamespace(x=None, mip_dual_bound=dual)
    monkeypatch.setattr("scipy.optimize.milp", lambda *arguments, **options: answer)
    code = Code(np.eye(4, dtype=int))
    assert find_smallest_cover(code) == (lower, (0, 1, 2, 3))


def test_a_cover_of_the_solver_counts_only_if_it_covers_and_is_smaller(monkeypatch):
    # Greedy takes user 0 first and then needs both others; users 1 and 2 are enough.
    code = Code([[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1]])
    assert find_smallest_cover(code) == (2, (1, 2))
    for found, cover in (([0, 0.4, 1], (0, 1, 2)), ([0.1, 0.9, 1], (1, 2)), ([1, 1, 1], (0, 1, 2))):
        answer = SimpleNamespace(x=np.array(found), mip_dual_bound=2.0)
        monkeypatch.setattr("scipy.optimize.milp", lambda *arguments, answer=answer, **options: answer)
        assert find_smallest_cover(code) == (2, cover)


def test_twins_that_share_their_first_user_count_all_their_users():
    # {0, 1} and {0, 2} hit the same models, single users do not.
    margins = find_margins(enumerate_patterns(Code([[1, 0, 1], [1, 1, 0], [0, 1, 1]]), 2))
    assert margins.tracking == (2, 0)
