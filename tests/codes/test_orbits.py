"""Coverings under prescribed groups: the groups, the matrix of orbits against a slow twin, the choice of orbits."""

from itertools import combinations

import numpy as np
import pytest

from codeward.codes._geometry import covers, point_groups
from codeward.codes._guarantees import covering_bound
from codeward.codes._orbits import OrbitSearch, fits_orbits, orbit_matrix


@pytest.mark.parametrize("n", [3, 5, 8, 9, 12, 13, 26])
def test_generators_are_permutations_and_the_trivial_group_comes_last(n: int) -> None:
    groups = list(point_groups(n))
    for name, generators in groups:
        assert name
        assert generators.shape[1] == n
        assert (np.sort(generators, axis=1) == np.arange(n)).all(), name
    assert groups[-1][0] == "no group"


@pytest.mark.parametrize(
    ("n", "name", "order"),
    [
        (6, "PSL(2,5)", 60),
        (6, "PGL(2,5)", 120),
        (9, "PSL(2,8)", None),
        (7, "x -> ax + b over GF(7), 3 values of a", 21),
    ],
)
def test_groups_have_their_order(n: int, name: str, order: int | None) -> None:
    found = dict(point_groups(n))
    if order is None:  # over a field of even order the two are one
        assert name not in found
        return
    seen = {tuple(range(n))}
    queue = list(seen)
    while queue:
        element = queue.pop()
        for move in found[name]:
            image = tuple(int(move[x]) for x in element)
            if image not in seen:
                seen.add(image)
                queue.append(image)
    assert len(seen) == order


def orbit_slowly(start: frozenset[int], generators: np.ndarray) -> frozenset[frozenset[int]]:
    seen, queue = {start}, [start]
    while queue:
        members = queue.pop()
        for move in generators:
            image = frozenset(int(move[x]) for x in members)
            if image not in seen:
                seen.add(image)
                queue.append(image)
    return frozenset(seen)


@pytest.mark.parametrize(("n", "b", "t"), [(7, 3, 2), (8, 4, 3), (9, 4, 2)])
def test_the_matrix_is_what_orbits_cover(n: int, b: int, t: int) -> None:
    for name, generators in list(point_groups(n))[::5]:
        matrix = orbit_matrix(generators, b, t, 10**9)
        assert matrix is not None
        orbits = {orbit_slowly(frozenset(block), generators) for block in combinations(range(n), b)}
        assert sorted(len(orbit) for orbit in orbits) == sorted(matrix.lengths.tolist()), name
        rows = {orbit_slowly(frozenset(chosen), generators) for chosen in combinations(range(n), t)}
        assert len(rows) == len(matrix.column_of) - 1
        for c, block in enumerate(matrix.blocks.tolist()):
            covered = {orbit_slowly(frozenset(chosen), generators) for chosen in combinations(block, t)}
            mine = matrix.rows[matrix.row_of[c] : matrix.row_of[c + 1]].tolist()
            assert len(mine) == len(set(mine)) == len(covered)
            for r in mine:
                assert c in matrix.columns[matrix.column_of[r] : matrix.column_of[r + 1]]


@pytest.mark.parametrize(
    ("n", "b", "t", "group", "blocks"),
    [
        (25, 4, 2, "x -> ax + b over GF(25), 3 values of a", 50),
        (28, 4, 3, "PGL(2,27)", 819),
        (26, 4, 3, "x -> ax + b over GF(13), 12 values of a, 2 copies that rotate", 650),
        (12, 6, 5, "PSL(2,11)", 132),
        (8, 4, 3, "no group", 14),
    ],
)
def test_steiner_systems_are_found(n: int, b: int, t: int, group: str, blocks: int) -> None:
    matrix = orbit_matrix(dict(point_groups(n))[group], b, t, 10**9)
    assert matrix is not None
    search = OrbitSearch(group, matrix)
    found, spent = search.advance(10**9, 2e6, np.random.default_rng(0))
    assert found
    assert spent > 0
    assert search.best_cost == blocks == covering_bound(n, b, t)
    rows = search.unfold()
    assert rows.shape == (blocks, n)
    assert (rows.sum(axis=1) == b).all()
    assert covers(rows, t)
    assert search.advance(10**9, 1e5, np.random.default_rng(1))[0] is False  # nothing is smaller


def test_a_search_goes_on_where_it_was_and_counts_only_what_is_asked_for() -> None:
    matrix = orbit_matrix(np.arange(9)[None, :], 4, 2, 10**9)
    assert matrix is not None
    search, rng = OrbitSearch("", matrix), np.random.default_rng(0)
    costs = []
    for _ in range(20):
        search.advance(10**9, 3e4, rng)
        costs.append(search.best_cost)
        assert covers(search.unfold(), 2)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 8
    assert search.advance(5, 1e5, rng)[0] is False
    assert search.best_cost == 5


def test_groups_that_cannot_help_are_told() -> None:
    rotate = (np.arange(7)[None, :] + 1) % 7
    assert orbit_matrix(rotate, 3, 2, 7) is None  # every orbit has seven blocks
    assert orbit_matrix(rotate, 3, 2, 8) is not None
    assert fits_orbits(28, 7, 3)
    assert not fits_orbits(28, 10, 2)
