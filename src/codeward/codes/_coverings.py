"""Coverings by construction and what a smaller code gives for many users, offered to an incumbent.

Products (dynamic programming) after Gordon, Kuperberg and Patashnik ("New constructions for covering designs", 1995):
split the points in two, and for every way a t-set can fall on the parts take a product of coverings. Multiplicities
give several users one column of a smaller code (the paper's column duplication, freed).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.codes._annealing import anneal_coverings, anneal_orbits
from codeward.codes._constructions import duplicated_code
from codeward.codes._geometry import covers, geometric_coverings, split_prime_power
from codeward.codes._guarantees import Request, bound_models, covering_bound
from codeward.codes._incumbent import (
    Incumbent,
    covers_cost,
    drop_redundant,
    family_cost,
    fitting_cost,
    thinning_cost,
)
from codeward.codes._orbits import OrbitRounds
from codeward.codes._property_search import anneal_directly

#: The recursion visits every smaller size; past this many points it takes longer than a search is worth.
MAX_PRODUCT_POINTS = 28


@lru_cache(maxsize=200_000)
def _plan(v: int, b: int, t: int) -> tuple[int, int, tuple[int, ...]]:
    """Fewest blocks by products: (blocks, points of the first part, its block size for s = 0..t); part 0 is a leaf."""
    if t == 0 or b >= v:
        return 1, 0, ()
    if t == 1:
        return -(-v // b), 0, ()
    best: tuple[int, int, tuple[int, ...]] = (comb(v, t), 0, ())  # every t-set a block of its own
    for first in range(1, v // 2 + 1):
        second, total = v - first, 0
        sizes: list[int] = []
        for s in range(t + 1):
            if s > first or t - s > second:
                sizes.append(-1)  # no t-set falls that way
                continue
            low, high = max(s, 0), min(first, b - (t - s))
            cost, size = min(
                (_plan(first, size, s)[0] * _plan(second, b - size, t - s)[0], size) for size in range(low, high + 1)
            )
            total += cost
            sizes.append(size)
            if total >= best[0]:
                break
        else:
            best = (total, first, tuple(sizes))
    return best


def product_size(n_points: int, block_size: int, strength: int) -> int:
    """Blocks of `product_covering`, without building it."""
    return _plan(n_points, block_size, strength)[0]


def product_covering(n_points: int, block_size: int, strength: int) -> NDArray[np.bool_]:
    """Build the covering in which every ``strength``-set of points lies in a block of at most ``block_size`` points."""
    blocks, first, sizes = _plan(n_points, block_size, strength)
    if strength == 0 or block_size >= n_points:
        return np.arange(n_points)[None, :] < block_size
    if strength == 1:
        return np.asarray(np.arange(n_points)[None, :] // block_size == np.arange(blocks)[:, None])
    if first == 0:
        rows = np.zeros((blocks, n_points), dtype=bool)
        for i, chosen in enumerate(combinations(range(n_points), strength)):
            rows[i, list(chosen)] = True
        return rows
    parts = []
    for s, size in enumerate(sizes):
        if size < 0:
            continue
        left = product_covering(first, size, s)
        right = product_covering(n_points - first, block_size - size, strength - s)
        parts.append(np.hstack([np.repeat(left, len(right), axis=0), np.tile(right, (len(left), 1))]))
    return np.vstack(parts)


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


#: Annealing runs from different starts, for all but large families.
STARTS = 5


def fit_multiplicities(
    blocks: NDArray[np.bool_], n_users: int, capacity: int, rng: np.random.Generator, n_moves: int = 50_000
) -> tuple[NDArray[np.int64] | None, int]:
    r"""Find how many users each point stands for so that no block stands for more than ``capacity`` users.

    Blowing points up keeps a covering a covering (k users fall on at most k points), so this turns a covering of v
    points into a BDC(k, n - capacity, n). A multiplicity of 0 leaves a point out (the induced covering).

    Parameters
    ----------
    blocks : ndarray of bool, shape (m, v)
    n_users : int
        What the multiplicities add up to.
    capacity : int
        n - r, the most zeros of a row.

    Returns
    -------
    shares : ndarray of int64, shape (v,), or None
        None when annealing finds none.
    moves : int
        Moves tried.
    """
    n_blocks, n_points = blocks.shape
    degrees = blocks.sum(axis=0)
    # sum_i load_i = sum_p w_p deg_p >= n min deg, so some block carries at least the mean of that.
    if n_users * int(degrees.min()) > capacity * n_blocks:
        return None, 0
    members = np.ascontiguousarray(blocks, dtype=np.int64)
    tried = 0
    for _ in range(STARTS if blocks.size <= 20_000 else 1):
        shares = np.full(n_points, n_users // n_points, dtype=np.int64)
        shares[rng.permutation(n_points)[: n_users % n_points]] += 1
        excess, moves = _shift(members, shares, members @ shares, capacity, n_moves, rng)
        tried += moves
        if excess == 0:
            return shares, tried
    return None, tried


def spread_columns(columns: NDArray[np.bool_], shares: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Repeat column p ``shares[p]`` times, in turns (0, 1, ..., 0, 1, ...) so that equal columns are not neighbours."""
    turns = np.concatenate([np.arange(share) for share in shares]) if len(shares) else np.zeros(0)
    order = np.lexsort((np.repeat(np.arange(len(shares)), shares), turns))
    chosen: NDArray[np.bool_] = columns[:, np.repeat(np.arange(len(shares)), shares)[order]]
    return chosen


@compiled
def _shift(blocks, shares, loads, capacity, n_moves, rng):  # type: ignore[no-untyped-def]
    """Anneal sum_i max(0, load_i - capacity) by moving one user from point to point."""
    n_blocks, n_points = blocks.shape
    excess = 0
    for i in range(n_blocks):
        excess += max(0, loads[i] - capacity)
    for move in range(n_moves):
        if excess == 0:
            return 0, move
        heat = 1.0 - move / n_moves + 1e-3
        source = int(rng.random() * n_points)
        target = int(rng.random() * n_points)
        if shares[source] == 0 or source == target:
            continue
        change = 0
        for i in range(n_blocks):
            step = blocks[i, target] - blocks[i, source]
            if step != 0:
                change += max(0, loads[i] + step - capacity) - max(0, loads[i] - capacity)
        if change > -heat * np.log(1.0 - rng.random()):
            continue
        excess += change
        shares[source] -= 1
        shares[target] += 1
        for i in range(n_blocks):
            loads[i] += blocks[i, target] - blocks[i, source]
    return excess, n_moves


#: Codes with more models than this are not built.
MAX_MODELS = 20_000
#: Points of the smaller codes that are searched for and then blown up.
MAX_BASE_POINTS = 26
#: Families with more points than this are left out: their blocks outnumber any budget of models.
MAX_FAMILY_POINTS = 1_500
#: Sets of residues whose cover is checked one by one.
MAX_CHECKED_SETS = 20_000
#: Work on a smaller code from which prescribed groups are tried: each takes a few million units.
LARGE_SHARE = 20e6


def offer_paper(best: Incumbent, max_models: int) -> None:
    """Offer the paper's code (column duplication, repaired): the first code of every search, so none is worse.

    It is left out when it has more than ``max_models`` models.
    """
    request = best.request
    n, k, r = request.n_users, request.strength, request.row_weight
    copies = [p for p in range(1, n // (k + 1) + 1) if p * (k - (-r // p)) <= n]
    if min(comb(k - (-r // p), k) for p in copies) * request.margin > max_models:
        return
    correct = request.guarantee in ("correct", "track")
    code = duplicated_code(request.n_users, request.strength, request.row_weight, correct)
    # Repeating every row d times multiplies each margin by d.
    rows = np.repeat(code.matrix, request.margin, axis=0)
    named = code.construction + (f", rows repeated {request.margin} times" if request.margin > 1 else "")
    best.offer_code(rows, named)
    best.offer_covering(~rows[~rows.all(axis=1)], named)


def offer_families(best: Incumbent) -> None:
    """Offer every geometric and residue covering, its points blown up or left out to fit n users and n - r zeros."""
    request = best.request
    if request.margin > 1 and request.guarantee == "track":
        return
    limit = min(best.size, best.cover_size + 1) // request.margin
    n, b, k = request.n_users, request.block_size, request.strength
    for name, blocks in geometric_coverings(k, min(MAX_FAMILY_POINTS, 10 * n), limit):
        best.work -= family_cost(*blocks.shape)
        if best.finished:
            return
        _offer_blown(best, name, blocks)
    for prime in range(5, min(limit, MAX_FAMILY_POINTS)):
        split = split_prime_power(prime)
        if split is None or split[1] > 1 or comb(prime, k) > MAX_CHECKED_SETS:
            continue
        for name, blocks in quadratic_residues(prime):
            size = int(blocks[0].sum())
            # As many users in a block as fit on average, and as many k-sets as there are to cover.
            if size * n > prime * b or prime * comb(size, k) < comb(prime, k) or best.finished:
                continue
            best.work -= covers_cost(prime, k)
            if covers(blocks, k):
                _offer_blown(best, name, blocks)
    if n <= MAX_PRODUCT_POINTS and product_size(n, b, k) * request.margin < best.size:
        rows = np.repeat(product_covering(n, b, k), request.margin, axis=0)
        best.work -= family_cost(len(rows), n) + thinning_cost(len(rows), n, k)
        best.offer_covering(drop_redundant(rows, k, request.margin), "product covering (dynamic programming)")


def _offer_blown(best: Incumbent, name: str, blocks: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> None:
    request = best.request
    if best.finished or len(blocks) * request.margin >= min(best.size, best.cover_size + 1):
        return
    shares, moves = fit_multiplicities(blocks, request.n_users, request.block_size, best.rng)
    best.work -= fitting_cost(moves, len(blocks))
    if shares is None:
        return
    rows = np.repeat(spread_columns(blocks, shares), request.margin, axis=0)
    plain = blocks.shape[1] == request.n_users and int(shares.max()) == 1
    best.work -= thinning_cost(len(rows), request.n_users, request.strength)
    fitted = "" if plain else f", fitted to {request.n_users} users"
    best.offer_covering(drop_redundant(rows, request.strength, request.margin), name + fitted)


def offer_blown_codes(best: Incumbent, work: float, max_points: int = MAX_BASE_POINTS) -> None:
    """Search codes on fewer points and let several users share a point; the way to codes for many users.

    A code on v points whose rows have at most floor((n - r) v / n) zeros is blown up to n users; it keeps its guarantee
    (tracking apart) since k users fall on at most k points.
    """
    request = best.request
    if request.guarantee == "track":
        return
    n, b, t = request.n_users, request.block_size, request.strength
    sizes = []
    for v in range(t + 1, min(max_points, n - 1) + 1):
        zeros = min(b * v // n, v - 1)
        if zeros >= t:
            sizes.append((covering_bound(v, zeros, t, request.margin), v, zeros))
    sizes.sort()
    stop = best.work - work
    for turn in range(3):
        share = work / 6 / max(len(sizes), 1) * 2**turn
        for bound, v, zeros in sizes:
            if best.finished or best.work <= stop:
                return
            if bound < best.size:
                _blow_up(best, Request(v, request.n_attackers, v - zeros, request.guarantee, request.margin), share)


def _blow_up(best: Incumbent, small: Request, share: float) -> None:
    part = Incumbent(small, bound_models(small), best.deadline, best.rng, work=share)
    offer_paper(part, min(best.size, MAX_MODELS))
    if share >= LARGE_SHARE:
        OrbitRounds(part).run(share * 0.4)
    anneal_coverings(part, share * 0.6)
    anneal_orbits(part, share * 0.2)
    anneal_directly(part, share * 0.2)
    best.absorb(part, share)
    if part.matrix is None or part.size >= best.size:
        return
    shares, moves = fit_multiplicities(~part.matrix, best.request.n_users, best.request.block_size, best.rng)
    best.work -= fitting_cost(moves, part.size)
    if shares is not None:
        named = f"{part.construction} on {small.n_users} points, {best.request.n_users} users on them"
        best.offer_code(spread_columns(part.matrix, shares), named)
