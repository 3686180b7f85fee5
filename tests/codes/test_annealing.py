"""Compiled searches: their running costs against a recount from nothing, and what they find."""

from itertools import combinations

import numpy as np
import pytest

from codeward.codes._annealing import anneal_blocks, cyclic_actions, set_orbits, start_blocks, unfold
from codeward.codes._guarantees import Request, make_request, meets
from codeward.codes._property_search import anneal_pairs, start_pairs


def missing_cover(blocks: np.ndarray, strength: int, fold: int) -> int:
    sets = combinations(range(blocks.shape[1]), strength)
    return sum(max(0, fold - int(blocks[:, list(chosen)].all(axis=1).sum())) for chosen in sets)


@pytest.mark.parametrize(
    ("n", "b", "k", "m", "fold"), [(9, 4, 2, 6, 1), (8, 5, 3, 5, 2), (7, 3, 1, 3, 1), (9, 6, 4, 9, 1)]
)
def test_running_cost_equals_a_recount(n: int, b: int, k: int, m: int, fold: int) -> None:
    rng = np.random.default_rng(5)
    state = start_blocks(n, b, k, m, fold, rng)
    assert state.cost == missing_cover(state.blocks, k, fold)
    for _ in range(20):
        anneal_blocks(state, 2.0, 1.0, 50, rng)
        assert (state.blocks.sum(axis=1) == b).all()
        assert state.cost == missing_cover(state.blocks, k, fold)


def test_annealing_finds_the_fano_plane() -> None:
    rng = np.random.default_rng(0)
    found = False
    for _ in range(20):
        state = start_blocks(7, 3, 2, 7, 1, rng)
        found, _moves = anneal_blocks(state, 0.7, 0.15, 20_000, rng)
        if found:
            break
    assert found
    assert missing_cover(state.blocks, 2, 1) == 0


def test_orbits_under_a_group_cover_when_their_cost_is_zero() -> None:
    rng = np.random.default_rng(0)
    solved = 0
    for _name, shifts in cyclic_actions(13):
        if len(shifts) < 4:
            continue
        count = -(-26 // len(shifts))
        state = start_blocks(13, 5, 2, count, 1, rng, None, set_orbits(shifts, 2))
        covered, _moves = anneal_blocks(state, 0.8, 0.15, 20_000, rng)
        assert covered == (missing_cover(unfold(state.blocks, shifts), 2, 1) == 0)
        solved += covered
    assert solved >= 2


def test_given_blocks_are_kept_and_filled_up() -> None:
    rng = np.random.default_rng(1)
    given = np.zeros((2, 8), dtype=bool)
    given[0, [1, 2]] = given[1, [5, 6, 7]] = True
    state = start_blocks(8, 4, 2, 4, 1, rng, given)
    assert state.blocks[:2][given].all()
    assert (state.blocks.sum(axis=1) == 4).all()


@pytest.mark.parametrize(("guarantee", "margin"), [("correct", 1), ("correct", 2), ("track", 1), ("track", 3)])
def test_distances_and_cost_of_the_direct_search_equal_a_recount(guarantee: str, margin: int) -> None:
    rng = np.random.default_rng(7)
    request = Request(7, 2, 3, guarantee, margin)
    rows = rng.permuted(np.tile(np.arange(7) < 3, (6, 1)), axis=1)
    state = start_pairs(rows, request)
    for _ in range(30):
        anneal_pairs(state, 5.0, 3.0, 20, rng)
        fresh = start_pairs(state.matrix.astype(bool), request)
        assert state.cost == fresh.cost
        assert (state.distances == fresh.distances).all()
        assert (state.matrix.sum(axis=1) >= 3).all()


def test_direct_search_reaches_cost_zero_only_with_the_property() -> None:
    rng = np.random.default_rng(3)
    request = make_request(8, 2, 2, "track", 1)
    rows = rng.permuted(np.tile(np.arange(8) < 2, (9, 1)), axis=1)
    state = start_pairs(rows, request)
    reached, _work = anneal_pairs(state, 1.5, 0.2, 50_000, rng)
    assert reached
    assert meets(state.matrix.astype(bool), request)


def test_a_seed_fixes_every_move() -> None:
    runs = []
    for _ in range(2):
        rng = np.random.default_rng(11)
        state = start_blocks(12, 5, 2, 9, 1, rng)
        anneal_blocks(state, 1.0, 0.2, 5_000, rng)
        runs.append(state.points.copy())
    assert (runs[0] == runs[1]).all()
