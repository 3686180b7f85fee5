"""Tracking by lookup against all pairs of attacker sets, plainly; codes for many users; sets walked in parts."""

from itertools import combinations

import numpy as np
import pytest

from codeward._errors import TooLargeError
from codeward.codes import Code, _conflicts, design, enumerate_patterns, find_margins, inspect
from codeward.codes._conflicts import Conflict, find_conflicts, look_up_margin
from codeward.codes._guarantees import make_request, meets


def conflicts_slowly(matrix: np.ndarray, k: int, margin: int) -> set[tuple[frozenset, int]]:
    """Compare all pairs of attacker sets of at most k users."""
    m, n = matrix.shape
    sets = [chosen for j in range(k + 1) for chosen in combinations(range(n), j)]
    patterns = {chosen: matrix[:, list(chosen)].any(axis=1) for chosen in sets}
    found = set()
    for a, b in combinations(sets, 2):
        differ = int((patterns[a] ^ patterns[b]).sum())
        if differ < margin or m - differ < margin:
            found.add((frozenset([a, b]), differ))
    return found


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("margin", [1, 2, 3, 5])
def test_lookup_finds_what_comparing_all_pairs_finds(k: int, margin: int) -> None:
    rng = np.random.default_rng(10 * k + margin)
    clean = 0
    for n_models in (6, 12, 24, 40, 70, 130):
        for share in (0.3, 0.5):
            matrix = rng.random((n_models, 7)) < share
            found = find_conflicts(matrix, k, margin, most=10**9)
            assert {(frozenset([c.first, c.second]), c.differ) for c in found} == conflicts_slowly(matrix, k, margin)
            assert len(found) == len({(c.first, c.second) for c in found})
            clean += not found
    assert 0 < clean < 12


def test_sets_walked_in_parts_give_the_same_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(3).random((18, 14)) < 0.35
    for margin in (1, 3):
        whole = find_conflicts(matrix, 3, margin, most=10**9)
        assert whole
        with monkeypatch.context() as patch:
            # Nothing past single users is kept, and the keys come in a dozen parts.
            patch.setattr(_conflicts, "MAX_KEPT", 15)
            patch.setattr(_conflicts, "MAX_KEYS", 100)
            with pytest.raises(TooLargeError, match="share a block"):
                find_conflicts(np.ones((3, 14), dtype=bool), 3, 1)
            patch.setattr(_conflicts, "MAX_KEYS", 400)
            assert find_conflicts(matrix, 3, margin, most=10**9) == whole


def test_too_many_candidates_are_refused_and_not_called_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_conflicts, "MAX_CANDIDATES", 13)
    # Numbers 0 to 29 by their bits: the first five bits of i and 31 - i are complements.
    matrix = np.array([[i >> j & 1 for i in range(1, 30)] for j in range(6)], dtype=bool)
    with pytest.raises(TooLargeError, match=r"^14 pairs of attacker sets agree on a block"):
        find_conflicts(matrix, 1, 2, most=10**9)
    monkeypatch.setattr(_conflicts, "MAX_CANDIDATES", 14)
    assert find_conflicts(matrix, 1, 2)


def test_a_conflict_in_the_second_word_is_found_and_one_is_enough() -> None:
    matrix = np.random.default_rng(0).random((126, 4)) < 0.5
    matrix[:, 1] = ~matrix[:, 0]
    matrix[5, 1] = matrix[5, 0]  # they agree in one model, of the first block
    found = find_conflicts(matrix, 1, 2, most=10**9)
    assert found == [Conflict((0,), (1,), 125)]
    matrix[:, 3] = matrix[:, 2]
    matrix[100, 3] = ~matrix[100, 2]  # and these differ in one of the second
    assert find_conflicts(matrix, 1, 2) == [Conflict((2,), (3,), 1)]
    assert len(find_conflicts(matrix, 1, 2, most=2)) == 2


@pytest.mark.parametrize(
    ("n_models", "margin", "bits", "tables", "width"),
    [
        (100, 3, 10, 3, 33),
        (40, 3, 10, 6, 20),
        (20, 3, 10, 15, 13),
        (4, 3, 10, 6, 2),
        (6, 1, 10, 1, 6),
        (45, 3, 10, 3, 15),
    ],
)
def test_keys_are_half_as_long_again_as_numbers_of_the_sets(n_models, margin, bits, tables, width) -> None:
    """The least q up to 4 with m q / (d - 1 + q) >= 1.5 log2(sets), by hand."""
    masks = _conflicts._choose_blocks(n_models, margin, bits)
    assert len(masks) == len({mask.tobytes() for mask in masks}) == tables
    assert _conflicts.count_tables(n_models, margin, 2**bits) == tables
    assert abs(np.array([mask.sum() for mask in masks]) - width).max() <= 1


def test_fewer_models_than_the_margin_are_a_conflict() -> None:
    assert find_conflicts(np.eye(2, dtype=bool), 1, 3) == [Conflict((), (0,), 1)]


def test_margins_are_looked_up_as_they_are() -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for n_models in (5, 9, 14, 20, 30, 40):
        matrix = rng.random((n_models, 8)) < 0.35
        used = matrix | ~matrix.any(axis=1)[:, None] | ~matrix.any(axis=0)
        margins = find_margins(enumerate_patterns(Code(used), 2))
        for k in (1, 2):
            expected = min(margins.label[k - 1], margins.tracking[k - 1], 5)
            assert look_up_margin(used, k) == expected
            seen.add(expected)
    assert len(seen) > 3


def test_an_inspection_of_539_users_says_what_it_looked_up() -> None:
    code = design(539, 2, utilization=0.333, guarantee="track", time_limit=5, reproducible=True).code
    found = inspect(code)
    assert found.track == found.max_attackers == 2
    assert found.margin[1] is not None
    assert found.margin[1] >= 3
    assert found.margin_arbitrary[1] is None
    assert any("looked up" in note for note in found.notes)


def test_a_planted_collision_among_many_users_is_found() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((60, 120)) < 0.3
    assert not find_conflicts(matrix, 2, 1)
    matrix[:, 100] = matrix[:, 7] | matrix[:, 33]
    found = find_conflicts(matrix, 2, 1, most=10**6)
    assert Conflict((100,), (7, 33), 0) in found
    assert not meets(matrix, make_request(120, 2, 5, "track", 1))
    # One bit away: fine for margin 1, not for 2.
    matrix[np.flatnonzero(~matrix[:, 100])[0], 100] = True
    assert Conflict((100,), (7, 33), 0) not in find_conflicts(matrix, 2, 1, most=10**6)
    assert Conflict((100,), (7, 33), 1) in find_conflicts(matrix, 2, 2, most=10**6)


@pytest.mark.parametrize(("margin", "most"), [(1, 40), (3, 55)])
def test_two_of_539_users_are_tracked_at_a_third_of_the_users(margin: int, most: int) -> None:
    found = design(539, 2, utilization=0.333, guarantee="track", margin=margin, time_limit=5, reproducible=True)
    assert found.code.n_models <= most
    assert found.code.row_weight >= 180
    assert not found.grouped
    assert not find_conflicts(found.code.matrix, 2, margin)
    # A sample of pairs, plainly: nearest patterns are those that share a user.
    rng, matrix = np.random.default_rng(0), found.code.matrix
    for _ in range(300):
        a, b, c, d = (int(user) for user in rng.choice(539, 4, replace=False))
        for first, second in (([a, b], [a, c]), ([a], [a, b]), ([a, b], [c, d]), ([], [a, b])):
            differ = int((matrix[:, first].any(axis=1) ^ matrix[:, second].any(axis=1)).sum())
            assert margin <= differ <= len(matrix) - margin


@pytest.mark.slow
def test_three_of_539_users_are_tracked_with_at_most_120_models() -> None:
    found = design(539, 3, utilization=0.333, guarantee="track", margin=1, time_limit=30)
    assert found.code.n_models <= 120
    assert not find_conflicts(found.code.matrix, 3, 1)
