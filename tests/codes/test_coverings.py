"""Constructions of coverings: geometries, residues, products, orbits, blown-up points, the exact solver."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from codeward.codes import _stages
from codeward.codes._annealing import cyclic_actions, set_orbits, unfold
from codeward.codes._coverings import (
    fit_multiplicities,
    product_covering,
    product_size,
    quadratic_residues,
    spread_columns,
)
from codeward.codes._geometry import (
    affine_hyperplanes,
    covers,
    flats,
    geometric_coverings,
    make_field,
    projective_hyperplanes,
    split_prime_power,
)
from codeward.codes._guarantees import Request, covering_bound
from codeward.codes._incumbent import drop_redundant, trim


def covers_slowly(blocks: np.ndarray, strength: int, fold: int = 1) -> bool:
    sets = combinations(range(blocks.shape[1]), strength)
    return all(blocks[:, list(chosen)].all(axis=1).sum() >= fold for chosen in sets)


@pytest.mark.parametrize("order", [2, 3, 4, 5, 7, 8, 9, 16, 25, 27])
def test_fields_obey_the_field_axioms(order: int) -> None:
    field = make_field(order)
    plus, times, rng = field.plus, field.times, np.random.default_rng(0)
    assert (plus == plus.T).all()
    assert (times == times.T).all()
    assert (np.sort(plus, axis=1) == np.arange(order)).all()
    assert (np.sort(times[1:], axis=1) == np.arange(order)).all()
    a, b, c = rng.integers(order, size=(3, 200))
    assert (times[a, plus[b, c]] == plus[times[a, b], times[a, c]]).all()
    assert (times[a, times[b, c]] == times[times[a, b], c]).all()


def test_only_prime_powers_split() -> None:
    assert split_prime_power(32) == (2, 5)
    assert split_prime_power(12) is None
    with pytest.raises(ValueError, match="no field"):
        make_field(6)


@pytest.mark.parametrize("strength", [2, 3, 4])
def test_every_geometric_covering_covers(strength: int) -> None:
    seen = 0
    for name, blocks in geometric_coverings(strength, 28, 150):
        assert covers_slowly(blocks, strength), name
        seen += 1
    assert seen >= 3


def test_steiner_systems_from_flats_cover_each_set_exactly_once() -> None:
    quadruples = flats(affine_hyperplanes(4, 2), 3)  # S(3, 4, 16)
    assert quadruples.shape == (140, 16)
    triples = flats(projective_hyperplanes(3, 2), 2)  # S(2, 3, 15)
    assert triples.shape == (35, 15)
    witt = {name: blocks for t in (3, 4) for name, blocks in geometric_coverings(t, 24, 300) if "S(" in name}
    assert {name: blocks.shape for name, blocks in witt.items()} == {
        "Steiner system S(3,6,22)": (77, 22),
        "Steiner system S(3,4,10)": (30, 10),
        "Steiner system S(4,7,23)": (253, 23),
        "Steiner system S(4,5,11)": (66, 11),
    }
    systems = [(blocks, int(name.split("(")[1][0])) for name, blocks in witt.items()]
    for blocks, strength in ((quadruples, 3), (triples, 2), *systems):
        for chosen in combinations(range(blocks.shape[1]), strength):
            assert blocks[:, list(chosen)].all(axis=1).sum() == 1


def test_covers_agrees_with_its_slow_twin() -> None:
    rng = np.random.default_rng(1)
    answers = set()
    for _ in range(200):
        blocks = rng.random((rng.integers(3, 12), 6)) < rng.uniform(0.5, 0.95)
        strength, fold = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        expected = covers_slowly(blocks, strength, fold)
        assert covers(blocks, strength, fold) == expected
        answers.add(expected)
    assert answers == {True, False}


def test_residues_modulo_eleven_cover_all_triples() -> None:
    best = [len(blocks) for _, blocks in quadratic_residues(11) if covers_slowly(blocks, 3) and blocks[0].sum() == 6]
    assert best == [11, 11]


@pytest.mark.parametrize(("v", "b", "t"), [(7, 4, 2), (10, 5, 3), (12, 6, 3), (9, 4, 1), (8, 4, 4), (14, 5, 2)])
def test_product_coverings_cover_and_have_the_promised_size(v: int, b: int, t: int) -> None:
    blocks = product_covering(v, b, t)
    assert len(blocks) == product_size(v, b, t) <= comb(v, t)
    assert int(blocks.sum(axis=1).max()) <= b
    assert covers_slowly(blocks, t)
    assert len(blocks) >= covering_bound(v, b, t)


def test_orbits_partition_the_sets_and_unfolding_is_invariant() -> None:
    rng = np.random.default_rng(2)
    for _name, shifts in cyclic_actions(9):
        orbits = set_orbits(shifts, 3)
        assert len(orbits) == comb(9, 3)
        assert set(orbits.tolist()) == set(range(orbits.max() + 1))
        blocks = unfold(rng.random((2, 9)) < 0.5, shifts)
        rows = {tuple(row) for row in blocks.tolist()}
        assert len(rows) == len(blocks)
        for shift in shifts:
            assert {tuple(row) for row in blocks[:, shift].tolist()} == rows


def test_blown_up_coverings_stay_coverings_within_the_capacity() -> None:
    rng = np.random.default_rng(0)
    planes = projective_hyperplanes(3, 2)
    shares, _moves = fit_multiplicities(planes, 20, 10, rng)
    assert shares is not None
    assert shares.sum() == 20
    blown = spread_columns(planes, shares)
    assert blown.shape == (15, 20)
    assert int(blown.sum(axis=1).max()) <= 10
    assert covers_slowly(blown, 3)
    assert fit_multiplicities(planes, 20, 8, rng)[0] is None


def test_dropping_and_trimming_keep_the_cover() -> None:
    rng = np.random.default_rng(3)
    for fold in (1, 2):
        blocks = np.repeat(product_covering(9, 5, 2), fold + 1, axis=0)
        kept = drop_redundant(blocks, 2, fold)
        assert len(kept) < len(blocks)
        assert covers_slowly(kept, 2, fold)
        thin = trim(blocks, 2, fold, rng)
        assert thin.sum() < blocks.sum()
        assert covers_slowly(thin, 2, fold)


@pytest.mark.parametrize("solver", ["cpsat", "highs"])
@pytest.mark.parametrize(("n", "k", "r", "d", "least"), [(7, 2, 4, 1, 7), (6, 2, 3, 1, 6), (6, 2, 2, 2, 6)])
def test_exact_solver_finds_covering_numbers(
    solver: str, n: int, k: int, r: int, d: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if solver == "cpsat":
        pytest.importorskip("ortools")
    else:

        def absent(*_: object) -> None:
            raise ImportError

        monkeypatch.setattr(_stages, "_solve_cpsat", absent)
    request = Request(n, k, r, "detect", d)
    blocks, bound = _stages.solve_covering(request, 20, 10.0, 0)
    assert blocks is not None
    assert len(blocks) == bound == least
    assert covers_slowly(blocks, k, d)
    nothing, proved = _stages.solve_covering(request, least - 1, 10.0, 0)
    assert nothing is None
    assert proved == least


@pytest.mark.parametrize(
    ("n_users", "block", "n_blocks", "margin"), [(10, 5, 6, 1), (20, 10, 6, 1), (9, 5, 5, 1), (7, 4, 7, 2)]
)
def test_points_of_few_blocks_cover_every_pair(n_users: int, block: int, n_blocks: int, margin: int) -> None:
    request = Request(n_users, 2, n_users - block, "detect", margin)
    assert _stages.fits_points(request, n_blocks)
    blocks = _stages.solve_points(request, n_blocks, 10.0, 0)
    assert blocks is not None
    assert blocks.shape == (n_blocks, n_users)
    assert blocks.sum(axis=1).max() <= block
    assert covers_slowly(blocks, 2, margin)


def test_fewer_points_than_pairs_need_are_not_found() -> None:
    request = Request(10, 2, 5, "detect", 1)
    assert _stages.solve_points(request, 5, 10.0, 0) is None
    assert not _stages.fits_points(Request(10, 3, 5, "detect", 1), 6)
    assert not _stages.fits_points(request, 40)
