"""Coverings with a prescribed group: cyclic orbits of base blocks, on one or several copies and with fixed points.

A cyclic group Z_g moves n = g c + f points as c copies of itself and f fixed points. Whole orbits of blocks cover whole
orbits of k-sets, so the search has g times fewer blocks to place. Difference sets (quadratic residues, Singer's) are
the case of one base block and c = 1.
"""

from collections.abc import Iterator
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward.codes._annealing import binomials, rank_sets


def cyclic_actions(n_points: int, max_fixed: int = 2) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield (name, shifts): the elements of Z_g as permutations, shape (g, n), largest group first."""
    for order in range(n_points, 1, -1):
        fixed = n_points % order
        copies = n_points // order
        if fixed > max_fixed:
            continue
        name = f"Z{order}" + (f" on {copies} copies" if copies > 1 else "") + (f" + {fixed} fixed" if fixed else "")
        points = np.arange(n_points)
        moving = points < copies * order
        steps = np.arange(order)[:, None]
        shifted = points // order * order + (points % order + steps) % order
        yield name, np.where(moving, shifted, points)


def quadratic_residues(prime: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the translates of the nonzero squares modulo a prime, of the non-squares, and of both with 0.

    For p = 3 mod 4 they are difference sets (Paley): p blocks in which every pair lies equally often.
    """
    squares = np.zeros(prime, dtype=bool)
    squares[[x * x % prime for x in range(1, prime)]] = True
    zero = np.arange(prime) == 0
    shifts = (np.arange(prime)[None, :] - np.arange(prime)[:, None]) % prime
    for name, base in (("squares", squares), ("non-squares", ~squares & ~zero)):
        yield f"{name} mod {prime}, translated", base[shifts]
        yield f"{name} and 0 mod {prime}, translated", (base | zero)[shifts]


def set_orbits(shifts: NDArray[np.int64], strength: int) -> NDArray[np.int32]:
    """Find the orbit of every k-set under a cyclic group, as a number at the set's colexicographic rank."""
    n_points = shifts.shape[1]
    choose = binomials(n_points, strength)
    sets = np.array(list(combinations(range(n_points), strength)), dtype=np.int64)
    least = np.full(len(sets), len(sets), dtype=np.int64)
    own = rank_sets(sets, choose)
    for shift in shifts:
        # The orbit is named by its least rank.
        np.minimum(least, rank_sets(np.sort(shift[sets], axis=1), choose), out=least)
    names = np.empty(len(sets), dtype=np.int32)
    names[own] = np.unique(least, return_inverse=True)[1].astype(np.int32)
    return names


def unfold(base_blocks: NDArray[np.bool_], shifts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """All distinct images of the base blocks, in order of first appearance."""
    images = base_blocks[:, shifts].reshape(-1, base_blocks.shape[1])
    _, first = np.unique(images, axis=0, return_index=True)
    return images[np.sort(first)]


def drop_redundant(blocks: NDArray[np.bool_], strength: int, fold: int, limit: int = 2_000_000) -> NDArray[np.bool_]:
    """Leave out blocks whose k-sets all lie in enough others, smallest first."""
    n_points = blocks.shape[1]
    if comb(n_points, strength) * len(blocks) > limit:
        return blocks
    sets = np.array(list(combinations(range(n_points), strength)), dtype=np.int64)
    inside: NDArray[np.bool_] = np.asarray(blocks[:, sets].all(axis=2))
    counts = inside.sum(axis=0)
    kept = np.ones(len(blocks), dtype=bool)
    for i in np.argsort(blocks.sum(axis=1), kind="stable"):
        if (counts[inside[i]] > fold).all():
            counts -= inside[i]
            kept[i] = False
    return blocks[kept]
