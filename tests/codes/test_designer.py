"""The designer: targets, guarantees and margins verified from scratch, refusals, determinism, many users, weights."""

import subprocess
import sys
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError, UnmetError
from codeward.codes import Design, _stages, inspect
from codeward.codes._constructions import duplicated_code
from codeward.codes._designer import MARGIN
from codeward.codes._designer import design as design_code
from codeward.codes._guarantees import (
    GUARANTEES,
    assign_columns,
    make_request,
    meets,
    models_lower_bound,
    sample_utilization,
    tracks_groups,
)


def design(*numbers: Any, **asked: Any) -> Design:
    """Ask for the bare property where a test says nothing of a margin."""
    return design_code(*numbers, **{"margin": 1, **asked})


def test_a_margin_of_three_and_a_third_of_the_users_are_what_one_gets() -> None:
    found = design_code(9, 1, time_limit=1)
    assert (found.margin, found.row_weight) == (MARGIN, 3) == (3, 3)
    assert margins_slowly(found.code.matrix, 1)["correct"] >= 3
    # As many users as are left where the attackers take most of them.
    assert design_code(4, 3, time_limit=1).row_weight == 1


def test_what_the_margin_costs_is_said_where_too_few_models_are_allowed() -> None:
    for share in ({"row_weight": 4}, {}):
        with pytest.raises(UnmetError, match="margin 1 needs at least"):
            design_code(10, 2, max_models=5, time_limit=1, **share)


def margins_slowly(matrix: np.ndarray, k: int) -> dict[str, int]:
    """All margins as docs/theory.md defines them, over all pairs of attacker sets, plainly."""
    m, n = matrix.shape
    sets = [chosen for j in range(k + 1) for chosen in combinations(range(n), j)]
    patterns = [matrix[:, list(chosen)].any(axis=1) for chosen in sets]
    detect = min(m - int(s.sum()) for s in patterns)
    label = min(m - int((s ^ t).sum()) for s, t in combinations(patterns, 2))
    track = min(int((s ^ t).sum()) for s, t in combinations(patterns, 2))
    arbitrary = min(m - int((s | t).sum()) for s in patterns for t in patterns)
    return {"detect": detect, "correct": min(label, detect), "track": min(label, track), "correct-arbitrary": arbitrary}


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, int, int, str, int]:
    guarantee = draw(st.sampled_from(GUARANTEES))
    k = draw(st.integers(1, 2))
    strength = 2 * k if guarantee == "correct-arbitrary" else k
    n = draw(st.integers(strength + 1, 8))
    r = draw(st.integers(1, n - strength))
    return n, k, r, guarantee, draw(st.integers(1, 3))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(requests())
def test_every_design_has_its_guarantee_margin_and_row_weight(asked: tuple[int, int, int, str, int]) -> None:
    n, k, r, guarantee, margin = asked
    found = design(n, k, r, guarantee=guarantee, margin=margin, time_limit=0.3)
    matrix = found.code.matrix
    assert margins_slowly(matrix, k)[guarantee] >= margin
    assert matrix.sum(axis=1).min() >= r
    assert models_lower_bound(n, k, r, guarantee, margin) <= found.models_lower_bound <= found.code.n_models
    assert found.gap == found.code.n_models - found.models_lower_bound


def test_the_check_agrees_with_the_definitions() -> None:
    rng = np.random.default_rng(0)
    answers: dict[str, set[bool]] = {guarantee: set() for guarantee in GUARANTEES}
    for _ in range(150):
        matrix = rng.random((rng.integers(4, 9), 5)) < rng.uniform(0.2, 0.6)
        if not (matrix.any(axis=0).all() and matrix.any(axis=1).all()):
            continue
        for guarantee in GUARANTEES:
            for margin in (1, 2):
                expected = margins_slowly(matrix, 1)[guarantee] >= margin
                assert meets(matrix, make_request(5, 1, 1, guarantee, margin)) == expected
                answers[guarantee].add(expected)
    assert all(seen == {True, False} for seen in answers.values())


@pytest.mark.parametrize(
    ("k", "r", "n", "models"),
    [(2, 7, 10, 17), (2, 8, 13, 10), (3, 6, 12, 15), (3, 5, 11, 11), (2, 9, 13, 13), (2, 24, 32, 21)],
)
@pytest.mark.parametrize("guarantee", ["detect", "correct"])
def test_designs_reach_known_covering_numbers(k: int, r: int, n: int, models: int, guarantee: str) -> None:
    found = design(n, k, r, guarantee=guarantee, max_models=models, time_limit=1.5)
    assert found.code.n_models <= models


@pytest.mark.parametrize(
    ("n", "block", "k", "models"), [(25, 4, 2, 50), (32, 4, 2, 88), (26, 5, 3, 260), (26, 4, 3, 650), (28, 4, 3, 819)]
)
def test_large_sizes_reach_the_best_known_coverings(n: int, block: int, k: int, models: int) -> None:
    found = design(n, k, n - block, guarantee="detect", time_limit=30)
    assert (found.code.n_models, found.gap) == (models, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "block", "k", "models"), [(24, 4, 2, 48), (28, 10, 2, 11), (56, 20, 2, 11), (12, 6, 4, 41)]
)
def test_the_time_is_used_to_reach_the_best_known_coverings(n: int, block: int, k: int, models: int) -> None:
    assert design(n, k, n - block, guarantee="detect", time_limit=60).code.n_models <= models


def test_the_search_goes_on_until_the_limit_and_shows_it() -> None:
    seen: list[float] = []

    class Shown:
        def advance(self, amount: float = 1, note: str = "") -> None:
            seen.append(amount)

    found = design(12, 3, 4, margin=3, time_limit=3, progress=Shown())
    assert found.gap > 0
    assert found.timed_out
    assert 2.5 < found.seconds < 6
    assert len(seen) > 6
    assert sum(seen) == pytest.approx(3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "r", "n", "models"),
    [
        (2, 7, 10, 17),
        (2, 8, 13, 10),
        (3, 6, 12, 15),
        (3, 5, 11, 11),
        (2, 9, 13, 13),
        (3, 4, 10, 10),
        (2, 10, 16, 10),
        (2, 11, 16, 15),
        (3, 10, 20, 15),
        (3, 6, 16, 8),
        (2, 24, 32, 21),
        (2, 15, 20, 21),
        (4, 4, 12, 14),
        (4, 12, 24, 31),
        (3, 12, 16, 140),
    ],
)
@pytest.mark.parametrize("guarantee", ["detect", "correct"])
def test_designs_reach_hard_targets(k: int, r: int, n: int, models: int, guarantee: str) -> None:
    assert design(n, k, r, guarantee=guarantee, time_limit=20).code.n_models <= models + (guarantee == "correct")


@pytest.mark.parametrize(("n", "k", "r", "models"), [(16, 1, 11, 6), (8, 2, 2, 8), (16, 2, 4, 11)])
def test_tracking_codes_are_searched_for_directly(n: int, k: int, r: int, models: int) -> None:
    found = design(n, k, r, guarantee="track", time_limit=2)
    assert found.code.n_models <= models
    assert margins_slowly(found.code.matrix, k)["track"] >= 1


def test_designs_are_never_worse_than_the_paper() -> None:
    for k, r, n in [(1, 4, 9), (2, 3, 7), (2, 4, 16), (3, 8, 12)]:
        assert design(n, k, r, time_limit=0.2).code.n_models <= duplicated_code(n, k, r).n_models


#: Work, not the clock, ends each of these: their bound is never met.
REPEATED = [
    {"n_users": 12, "n_attackers": 3, "row_weight": 4, "margin": 3},
    {"n_users": 8, "n_attackers": 2, "row_weight": 2, "guarantee": "track", "margin": 3},
    {"n_users": 20, "n_attackers": 1, "row_weight": 10, "margin": 3},
    {"n_users": 16, "n_attackers": 2, "row_weight": 4, "guarantee": "track"},
    {"n_users": 12, "n_attackers": 2, "row_weight": 6, "margin": 2},
    {"n_users": 9, "n_attackers": 2, "row_weight": 5, "guarantee": "detect", "seed": 1},
]


@pytest.mark.parametrize("asked", REPEATED)
def test_a_seed_gives_one_code_whatever_else_the_machine_does(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less work for the same time, so that a slow machine finishes it before the clock does.
    monkeypatch.setattr(_stages, "WORK_PER_SECOND", _stages.WORK_PER_SECOND / 10)
    quiet = design(**asked, time_limit=8.0, reproducible=True)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        busy = design(**asked, time_limit=8.0, reproducible=True)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert not quiet.timed_out
    assert not busy.timed_out
    assert quiet.code.digest == busy.code.digest


@pytest.mark.parametrize(("n", "k", "limit"), [(200, 3, 8.0), (1000, 2, 8.0)])
def test_many_users_are_grouped_within_the_time_limit(n: int, k: int, limit: float) -> None:
    found = design(n, k, utilization=0.5, time_limit=limit)
    assert found.code.n_users == n
    assert found.code.row_weight >= n // 2
    assert found.gap <= 1
    assert "group" in found.note
    distinct = np.unique(found.code.matrix, axis=1)
    assert margins_slowly(distinct, k)["correct"] >= 1


def test_tracking_many_users_falls_back_to_random_rows() -> None:
    found = design(90, 2, 25, guarantee="track", time_limit=3)
    assert meets(found.code.matrix, make_request(90, 2, 25, "track", 1))


@pytest.mark.parametrize(
    ("n", "k", "r", "margin"),
    [
        (1000, 3, 300, 1),  # 167 million attacker sets
        (300, 3, 75, 2),  # few enough sets, but more tables of them for a margin than the time allows
        (300, 3, 297 - 60, 1),  # little room: more groups than usual
    ],
)
def test_groups_are_tracked_where_single_users_cannot_be_verified(n: int, k: int, r: int, margin: int) -> None:
    found = design(n, k, r, guarantee="track", margin=margin, time_limit=2, groups=True)
    assert found.grouped
    assert "names groups" in found.note
    columns = np.unique(found.code.matrix, axis=1)
    small = make_request(columns.shape[1], k, int(columns.sum(axis=1).min()), "track", margin)
    assert k < columns.shape[1] < n
    assert tracks_groups(found.code.matrix, make_request(n, k, r, "track", margin), small)
    assert found.models_lower_bound <= found.code.n_models


def test_tracking_is_refused_with_the_reason_where_groups_do_not_help() -> None:
    with pytest.raises(InputError, match="166,667,501 attacker sets"):
        design(1000, 3, 996, guarantee="track", time_limit=1, groups=True)


@pytest.mark.parametrize(
    ("asked", "possible"),
    [
        ({"n_users": 539, "n_attackers": 3, "margin": 3, "utilization": 0.3}, ["2 attackers", "18 groups of up to 30"]),
        ({"n_users": 1000, "n_attackers": 3, "row_weight": 996}, ["correct for 3"]),
        (
            {"n_users": 300, "n_attackers": 3, "row_weight": 75, "margin": 2, "time_limit": 4},
            ["margin 1", "2 attackers"],
        ),
        ({"n_users": 3000, "n_attackers": 2, "utilization": 0.4, "time_limit": 0.5}, ["a time limit of", "s;"]),
        ({"n_users": 539, "n_attackers": 3, "max_models": 40}, ["2 attackers"]),
    ],
)
def test_a_missed_guarantee_is_a_failure_that_says_what_is_possible(asked: dict, possible: list[str]) -> None:
    with pytest.raises(UnmetError) as caught:
        design(**asked, guarantee="track")
    for words in ["out of reach", "possible", *possible]:
        assert words in str(caught.value)


@pytest.mark.parametrize("share", ["utilization", "max_models"])
def test_users_are_tracked_one_by_one_unless_groups_are_asked_for(share: str) -> None:
    # Few enough users: the permission changes nothing.
    asked = {"utilization": 0.25} if share == "utilization" else {"max_models": 12}
    for groups in (False, True):
        found = design(12, 1, **asked, guarantee="track", time_limit=1, groups=groups)
        assert not found.grouped
        assert inspect(found.code).track >= 1


def test_most_models_alone_gives_the_largest_row_weight() -> None:
    found = design(12, 2, max_models=10, time_limit=3)
    assert found.code.n_models <= 10
    assert found.code.row_weight >= 7
    # The next row weight is out of reach by proof.
    assert models_lower_bound(12, 2, 8) > 10


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"n_users": 6, "n_attackers": 2, "row_weight": 5}, "impossible"),
        ({"n_users": 8, "n_attackers": 2, "row_weight": 5, "guarantee": "correct-arbitrary"}, "2k"),
        ({"n_users": 10, "n_attackers": 2, "row_weight": 7, "max_models": 16, "time_limit": 1}, "17"),
        ({"n_users": 10, "n_attackers": 2, "max_models": 3, "time_limit": 1}, "row weight 1"),
        ({"n_users": 10, "n_attackers": 2, "row_weight": 3, "utilization": 0.3}, "not both"),
        ({"n_users": 10, "n_attackers": 2, "utilization": 1.5}, "utilization"),
        ({"n_users": 10, "n_attackers": 0, "row_weight": 3}, "attackers"),
        ({"n_users": 10, "n_attackers": 2, "row_weight": 3, "margin": 0}, "margin"),
        ({"n_users": 10, "n_attackers": 2, "row_weight": 3, "guarantee": "protect"}, "guarantee"),
        ({"n_users": 10, "n_attackers": 2, "row_weight": 3, "time_limit": 0}, "time limit"),
        ({"n_users": 3, "n_attackers": 1, "row_weight": 1, "weights": [1, 2]}, "2 weights"),
        ({"n_users": 3, "n_attackers": 1, "row_weight": 1, "weights": [1, 2, -1]}, "user 2"),
        ({"n_users": 3, "n_attackers": 1, "row_weight": 1, "weights": [1, float("nan"), 1]}, "user 1"),
        ({"n_users": 4, "n_attackers": 1, "utilization": 0.6, "weights": [97, 1, 1, 1], "time_limit": 1}, "samples"),
        ({"n_users": 2000, "n_attackers": 3, "row_weight": 1990}, "models"),
        ({"n_users": 50, "n_attackers": 25, "row_weight": 10, "time_limit": 1}, "6225 models"),
        ({"n_users": 1_000_000, "n_attackers": 3, "utilization": 0.5}, "100,000 are the most"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(asked: dict, why: str) -> None:
    with pytest.raises(InputError, match=why):
        design(**asked)


def test_weights_make_utilization_count_samples() -> None:
    weights = np.array([5, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1.0])
    found = design(12, 2, utilization=0.5, weights=weights, time_limit=2)
    assert found.utilization == sample_utilization(found.code.matrix, weights) >= 0.5
    assert margins_slowly(found.code.matrix, 2)["correct"] >= 1


def test_columns_are_assigned_to_the_best_of_all_orders_on_a_small_code() -> None:
    from itertools import permutations

    rng = np.random.default_rng(4)
    matrix = duplicated_code(6, 2, 2).matrix
    for _ in range(5):
        weights = rng.integers(1, 20, size=6).astype(float)
        best = max(sample_utilization(matrix[:, list(order)], weights) for order in permutations(range(6)))
        ours = sample_utilization(assign_columns(matrix, weights), weights)
        assert ours <= best
        assert ours >= 0.85 * best
        assert ours >= sample_utilization(matrix, weights)


def test_the_designer_works_without_the_optional_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise ImportError

    monkeypatch.setattr(_stages, "_solve_cpsat", absent)
    found = design(9, 2, 5, guarantee="detect", time_limit=1.5)
    assert found.code.n_models == 8
