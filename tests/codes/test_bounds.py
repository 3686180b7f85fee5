"""Lower bounds: true against exact values, sharp where they are known to be."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from codeward._errors import InputError
from codeward.codes._guarantees import GUARANTEES, covering_bound, models_lower_bound


def exact_covering_number(v: int, b: int, t: int, fold: int) -> int:
    blocks = [set(block) for block in combinations(range(v), b)]
    sets = [set(chosen) for chosen in combinations(range(v), t)]
    inside = np.array([[chosen <= block for block in blocks] for chosen in sets], dtype=float)
    solved = milp(
        np.ones(len(blocks)),
        constraints=LinearConstraint(inside, lb=fold),
        integrality=np.ones(len(blocks)),
        bounds=Bounds(0, fold),
    )
    assert solved.status == 0
    return round(solved.fun)


SMALL = [
    (v, b, t, fold)
    for v in range(3, 8)
    for t in (1, 2, 3)
    for b in range(t, v)
    for fold in (1, 2, 3)
    if fold * comb(v, t) <= 60
]


@pytest.mark.parametrize(("v", "b", "t", "fold"), SMALL)
def test_covering_bound_never_exceeds_the_exact_covering_number(v: int, b: int, t: int, fold: int) -> None:
    assert covering_bound(v, b, t, fold) <= exact_covering_number(v, b, t, fold)


@pytest.mark.parametrize(
    ("v", "b", "t", "least"),
    [(7, 3, 2, 7), (13, 4, 2, 13), (8, 4, 3, 14), (11, 6, 3, 11), (10, 3, 2, 17), (5, 5, 2, 1)],
)
def test_covering_bound_meets_known_optimal_coverings(v: int, b: int, t: int, least: int) -> None:
    assert covering_bound(v, b, t) == least


def test_hanani_improves_schonheim_where_one_point_would_be_covered_once_too_often() -> None:
    # v = 13, b = 5: Schönheim alone gives ceil(13/5 * 3) = 8; 13 * 3 = 39 = -1 mod 5.
    assert covering_bound(13, 5, 2) == 9


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_minimal_codes_meet_the_bound_for_correction(n: int) -> None:
    for k in (1, 2, 3):
        assert models_lower_bound(n + k, k, n, "correct") == (comb(n + k, k) if n > 1 else k + 2)


def test_tracking_sixteen_users_needs_six_models() -> None:
    assert models_lower_bound(16, 1, 11, "track") == 6


def test_bounds_grow_with_what_is_asked() -> None:
    for n, k, r in [(10, 2, 4), (12, 3, 5), (9, 1, 6)]:
        detect, correct, track = (models_lower_bound(n, k, r, g) for g in ("detect", "correct", "track"))
        assert detect <= correct <= track
        for guarantee in ("detect", "correct", "track"):
            values = [models_lower_bound(n, k, r, guarantee, d) for d in (1, 2, 3, 4)]
            assert values == sorted(values)


def test_every_two_user_code_obeys_the_bound_by_exhaustion() -> None:
    """All matrices of m rows on 4 users with k = 1: whatever has a property has at least the bound of models."""
    from codeward.codes._guarantees import make_request, meets

    rows = [np.array([x >> j & 1 for j in range(4)], dtype=bool) for x in range(1, 16)]
    for guarantee in GUARANTEES:
        request = make_request(4, 1, 2, guarantee, 1)
        least = models_lower_bound(4, 1, 2, guarantee)
        allowed = [row for row in rows if row.sum() >= 2]
        found = next(
            m for m in range(1, 9) if any(meets(np.array(chosen), request) for chosen in combinations(allowed, m))
        )
        assert least <= found


@pytest.mark.parametrize(
    ("n", "k", "r", "guarantee", "why"),
    [(5, 2, 4, "detect", "impossible"), (8, 2, 5, "correct-arbitrary", "2k"), (8, 2, 0, "correct", "row weight")],
)
def test_impossible_requests_are_refused_with_the_reason(n: int, k: int, r: int, guarantee: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        models_lower_bound(n, k, r, guarantee)
