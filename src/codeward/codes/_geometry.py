"""Finite fields, coverings from finite geometries as blocks (rows) over points (columns), and groups on the points."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import comb, gcd

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Field:
    """The field of q elements, named 0 .. q-1; 0 and 1 are the neutral elements.

    Attributes
    ----------
    order : int
        q, a prime power.
    plus, times : ndarray of int64, shape (q, q)
        Addition and multiplication tables.
    """

    order: int
    plus: NDArray[np.int64]
    times: NDArray[np.int64]


def split_prime_power(number: int) -> tuple[int, int] | None:
    """Return (p, e) with ``number == p**e``, p prime, or None."""
    for p in range(2, number + 1):
        if number % p == 0:
            rest, e = number, 0
            while rest % p == 0:
                rest, e = rest // p, e + 1
            return (p, e) if rest == 1 else None
    return None


@lru_cache(maxsize=64)
def make_field(order: int) -> Field:
    """Build the field of ``order`` elements: polynomials over the prime field, modulo an irreducible one.

    Element number :math:`\\sum a_i p^i` is the polynomial with coefficients :math:`a_i`.
    """
    split = split_prime_power(order)
    if split is None:
        raise ValueError(f"there is no field of {order} elements")
    p, e = split
    digits = np.array([[x // p**i % p for i in range(e)] for x in range(order)], dtype=np.int64)
    scale = p ** np.arange(e)
    plus = ((digits[:, None, :] + digits[None, :, :]) % p) @ scale
    # The first monic polynomial of degree e whose quotient ring has no zero divisors.
    for tail in product(range(p), repeat=e):
        times = _multiply(digits, np.array(tail, dtype=np.int64), p) @ scale
        if (times[1:, 1:] != 0).all():
            return Field(order, plus, times)
    raise AssertionError("an irreducible polynomial of every degree exists")


def _multiply(digits: NDArray[np.int64], tail: NDArray[np.int64], p: int) -> NDArray[np.int64]:
    """Products of all pairs modulo x^e + tail, as digits, shape (q, q, e)."""
    q, e = digits.shape
    result = np.zeros((q, q, e), dtype=np.int64)
    shifted = digits.copy()  # a * x^i mod the polynomial
    for i in range(e):
        result += digits[None, :, i, None] * shifted[:, None, :]
        top = shifted[:, -1:].copy()
        shifted = np.concatenate([np.zeros((q, 1), dtype=np.int64), shifted[:, :-1]], axis=1)
        shifted = (shifted - top * tail[None, :]) % p
    return result % p


Blocks = NDArray[np.bool_]
Permutations = NDArray[np.int64]
#: Flats are found by walking over the k-sets of points; larger spaces are left to other constructions.
MAX_WALKED_SETS = 6_000


def projective_hyperplanes(dimension: int, order: int) -> Blocks:
    """Hyperplanes of PG(d, q): any d points lie in one. For d = 2 the lines of the projective plane (Singer's family).

    Returns shape ((q^(d+1) - 1) / (q - 1), same).
    """
    points = _projective_points(dimension, order)
    blocks: Blocks = _dot(points, points, order) == 0
    return blocks


def affine_hyperplanes(dimension: int, order: int) -> Blocks:
    """Hyperplanes of AG(d, q): any d points lie in one. Shape (q (q^d - 1) / (q - 1), q^d)."""
    points = np.array(list(product(range(order), repeat=dimension)), dtype=np.int64)
    normals = _projective_points(dimension - 1, order)
    values = _dot(normals, points, order)
    blocks: Blocks = (values[:, None, :] == np.arange(order)[None, :, None]).reshape(-1, len(points))
    return blocks


def flats(hyperplanes: Blocks, strength: int) -> Blocks:
    """Flats spanned by ``strength`` points of a geometry given by its hyperplanes: each such set lies in exactly one.

    They form Steiner systems: S(2, q+1, N) from projective lines, S(2, q, q^d) from affine ones, S(3, 4, 2^d) from the
    planes of AG(d, 2).
    """
    n_points = hyperplanes.shape[1]
    found = np.zeros((0, n_points), dtype=bool)
    for chosen in combinations(range(n_points), strength):
        if found[:, chosen].all(axis=1).any():
            continue
        through = hyperplanes[:, chosen].all(axis=1)
        found = np.vstack([found, hyperplanes[through].all(axis=0)])
    # Sets in special position span less; a flat of full dimension holds them.
    sizes = found.sum(axis=1)
    full: Blocks = found[sizes == sizes.max()]
    return full


def line_orbit(order: int, base: frozenset[int], whole: bool, limit: int) -> Blocks | None:
    """Images of a set of points of the projective line over GF(q) under x -> ax + b and x -> -1/x.

    Point q stands for infinity. The group is PGL(2, q) when ``whole``, else PSL(2, q) (a is a square). Sublines give
    inversive planes S(3, s+1, s^2+1); the squares give, for q = 11, Witt's S(5, 6, 12). None when the orbit has over
    ``limit`` blocks.
    """
    field = make_field(order)
    minus = [int(np.flatnonzero(field.plus[x] == 0)[0]) for x in range(order)]
    inverse = [0, *(int(np.flatnonzero(field.times[x] == 1)[0]) for x in range(1, order))]
    factors = range(1, order) if whole else sorted({int(field.times[x, x]) for x in range(1, order)})
    moves = [[int(field.plus[x, b]) for x in range(order)] + [order] for b in range(1, order)]
    moves += [[int(field.times[x, a]) for x in range(order)] + [order] for a in factors]
    moves.append([order, *(minus[inverse[x]] for x in range(1, order)), 0])
    seen = {base}
    queue = [base]
    while queue:
        block = queue.pop()
        for move in moves:
            image = frozenset(move[x] for x in block)
            if image not in seen:
                seen.add(image)
                queue.append(image)
        if len(seen) > limit:
            return None
    rows = np.zeros((len(seen), order + 1), dtype=bool)
    for i, members in enumerate(sorted(sorted(block) for block in seen)):
        rows[i, members] = True
    return rows


def geometric_coverings(strength: int, max_points: int, max_blocks: int) -> Iterator[tuple[str, Blocks]]:
    """Yield (name, blocks) of every known geometric covering of this strength within the limits, smallest q first."""
    orders = [q for q in range(2, max_points) if split_prime_power(q)]
    for q in orders:
        size = (q ** (strength + 1) - 1) // (q - 1)
        if strength >= 2 and size <= min(max_points, max_blocks):
            yield f"hyperplanes of PG({strength},{q})", projective_hyperplanes(strength, q)
        if q**strength <= max_points and q * (q**strength - 1) // (q - 1) <= max_blocks:
            yield f"hyperplanes of AG({strength},{q})", affine_hyperplanes(strength, q)
    if strength < 2:
        return
    for q in orders:
        for dimension in range(strength + 1, 8):
            size = (q ** (dimension + 1) - 1) // (q - 1)
            flat = (q**strength - 1) // (q - 1)
            if size <= max_points and _walkable(size, flat, strength, max_blocks):
                blocks = flats(projective_hyperplanes(dimension, q), strength)
                if len(blocks) <= max_blocks:
                    yield f"{strength - 1}-flats of PG({dimension},{q})", blocks
            # Over two elements an affine line has two points: only planes and more say anything.
            flat = q ** (strength - 1)
            if q + strength > 4 and q**dimension <= max_points and _walkable(q**dimension, flat, strength, max_blocks):
                blocks = flats(affine_hyperplanes(dimension, q), strength)
                if len(blocks) <= max_blocks:
                    yield f"{strength - 1}-flats of AG({dimension},{q})", blocks
    # No orbit of PSL(2, q) is known to cover more than five points evenly.
    if not 3 <= strength <= 5:
        return
    for q in orders:
        if q + 1 <= max_points and comb(q + 1, strength) <= MAX_WALKED_SETS:
            yield from _line_designs(q, strength, max_blocks)
    yield from _derived_designs(strength, max_points, max_blocks)


def _walkable(n_points: int, flat: int, strength: int, max_blocks: int) -> bool:
    sets = comb(n_points, strength)
    return sets <= MAX_WALKED_SETS and sets <= max_blocks * comb(flat, strength)


def _line_designs(q: int, strength: int, max_blocks: int) -> Iterator[tuple[str, Blocks]]:
    field = make_field(q)
    split = split_prime_power(q)
    assert split is not None
    bases = []
    if split[1] % 2 == 0:
        root = split[0] ** (split[1] // 2)
        subfield = [x for x in range(q) if _power(field.times, x, root) == x]
        bases.append((f"circles of the inversive plane of order {root}", frozenset([*subfield, q]), True))
    squares = frozenset(int(field.times[x, x]) for x in range(1, q))
    if strength > 3 and q % 2 and q > 5:
        bases.append((f"squares of GF({q}) and infinity, moved by PSL(2,{q})", squares | {q}, False))
        bases.append((f"squares of GF({q}) and 0, moved by PSL(2,{q})", squares | {0}, False))
    for name, base, whole in bases:
        blocks = line_orbit(q, base, whole, max_blocks)
        if blocks is not None and covers(blocks, strength):
            yield name, blocks


def octads() -> Blocks:
    """Build Witt's S(5, 8, 24): the words of weight 8 of the extended quadratic-residue (Golay) code, modulo 23."""
    squares = {x * x % 23 for x in range(1, 23)}
    # Translates of the squares, with a parity point at infinity (23), generate the code; sums of three reach weight 8.
    words = [frozenset({(x + shift) % 23 for x in squares} | {23}) for shift in range(23)]
    base = next(word for trio in combinations(words, 3) if len(word := trio[0] ^ trio[1] ^ trio[2]) == 8)
    blocks = line_orbit(23, base, False, 759)
    assert blocks is not None
    return blocks


def _derived_designs(strength: int, max_points: int, max_blocks: int) -> Iterator[tuple[str, Blocks]]:
    """Yield what the blocks of Witt's S(5, 8, 24) and S(5, 6, 12) through 5 - t points leave, and the first itself."""
    fixed = 5 - strength
    for points, size, n_blocks in ((24, 8, {3: 77, 4: 253, 5: 759}), (12, 6, {3: 30, 4: 66})):
        if points - fixed > max_points or n_blocks.get(strength, max_blocks + 1) > max_blocks:
            continue
        blocks = octads() if size == 8 else next(_line_designs(11, 5, 132))[1]
        through: Blocks = blocks[blocks[:, :fixed].all(axis=1)][:, fixed:]
        yield f"Steiner system S({strength},{size - fixed},{points - fixed})", through


def covers(blocks: Blocks, strength: int, fold: int = 1) -> bool:
    """Whether every set of ``strength`` points lies in at least ``fold`` blocks."""
    strength = min(strength, blocks.shape[1])
    # Extend sets point by point, keeping the blocks that hold all of them.
    sets = [(np.ones(len(blocks), dtype=bool), -1)]
    for size in range(1, strength + 1):
        nxt = []
        for held, last in sets:
            for point in range(last + 1, blocks.shape[1] - (strength - size)):
                both = held & blocks[:, point]
                if int(both.sum()) < fold:
                    return False
                nxt.append((both, point))
        sets = nxt
    return True


def _power(times: NDArray[np.int64], x: int, exponent: int) -> int:
    result = 1
    for _ in range(exponent):
        result = int(times[result, x])
    return result


def _projective_points(dimension: int, order: int) -> NDArray[np.int64]:
    """Vectors whose first nonzero entry is 1, shape (N, d + 1)."""
    vectors = np.array(list(product(range(order), repeat=dimension + 1)), dtype=np.int64)[1:]
    lead = vectors[np.arange(len(vectors)), (vectors != 0).argmax(axis=1)]
    points: NDArray[np.int64] = vectors[lead == 1]
    return points


def _dot(left: NDArray[np.int64], right: NDArray[np.int64], order: int) -> NDArray[np.int64]:
    """Inner products over GF(q), shape (len(left), len(right))."""
    field = make_field(order)
    total = np.zeros((len(left), len(right)), dtype=np.int64)
    for i in range(left.shape[1]):
        total = field.plus[total, field.times[left[:, i][:, None], right[:, i][None, :]]]
    return total


def point_groups(n_points: int) -> Iterator[tuple[str, Permutations]]:
    """Yield (name, generators) of groups on n points: affine, projective, cyclic with multipliers, with fixed points.

    A generator is a permutation, shape (n,). Groups over a field come first, largest first.
    """
    for fixed in range(min(3, n_points - 2)):
        rest = n_points - fixed
        ends = f", {fixed} fixed" if fixed else ""
        for copies in (1, 2, 3, 4):
            for extra in (1, 0) if copies == 1 else (0,):
                order = (rest - extra) // copies
                if order * copies + extra == rest and order > 2 and split_prime_power(order):
                    for name, moves in _field_groups(order, copies, bool(extra)):
                        yield name + ends, _with_fixed(moves, n_points)
        if split_prime_power(rest + 1) and rest > 3:
            for name, moves in _multiplicative_groups(rest + 1):
                yield name + ends, _with_fixed(moves, n_points)
        for order in range(rest, 1, -1):
            if rest % order == 0:
                for name, moves in _cyclic_groups(order, rest // order):
                    yield name + ends, _with_fixed(moves, n_points)
    yield "no group", np.arange(n_points)[None, :]


def _with_fixed(moves: list[NDArray[np.int64]], n_points: int) -> Permutations:
    return np.array([np.append(move, np.arange(len(move), n_points)) for move in moves], dtype=np.int64)


def _field_groups(q: int, copies: int, infinity: bool) -> Iterator[tuple[str, list[NDArray[np.int64]]]]:
    """Yield the maps x -> ax + b of GF(q), a in a subgroup, on copies that may rotate; with infinity also PSL, PGL."""
    field = make_field(q)
    split = split_prime_power(q)
    assert split is not None
    prime, degree = split
    points = np.arange(q)
    root = _primitive_root(q)

    def spread(move: NDArray[np.int64]) -> NDArray[np.int64]:
        whole = (np.arange(copies)[:, None] * q + move[None, :]).ravel()
        return np.append(whole, q) if infinity else whole

    shifts = [spread(field.plus[points, prime**i]) for i in range(degree)]
    powers = [1]
    for _ in range(q - 2):
        powers.append(int(field.times[powers[-1], root]))
    rotation = np.roll(np.arange(copies)[:, None] * q + points[None, :], 1, axis=0).ravel()
    if infinity:
        inverse = np.zeros(q, dtype=np.int64)
        for i, x in enumerate(powers):
            inverse[x] = powers[-i % (q - 1)]
        minus = np.array([int(np.flatnonzero(field.plus[x] == 0)[0]) for x in points])
        flip = np.concatenate([[q], minus[inverse[1:]], [0]])
        for step, name in ((1, "PGL"), (2, "PSL")):
            if step == 1 or q % 2:
                scale = spread(field.times[points, powers[step % (q - 1)]])
                yield f"{name}(2,{q})", [*shifts, scale, flip]
    for step in [d for d in range(1, q) if (q - 1) % d == 0]:
        count = (q - 1) // step
        moves = [*shifts] if count == 1 else [*shifts, spread(field.times[points, powers[step]])]
        name = f"x -> ax + b over GF({q}), {count} values of a" + (" and infinity" if infinity else "")
        if copies > 1:
            yield f"{name}, {copies} copies that rotate", [*moves, rotation]
            name += f", {copies} copies"
        if copies > 1 or degree > 1 or count > 1 or infinity:
            yield name, moves


def _multiplicative_groups(q: int) -> Iterator[tuple[str, list[NDArray[np.int64]]]]:
    """Yield the maps x -> ax, 1/x and x^p of the nonzero elements of GF(q), named by their logarithms."""
    split = split_prime_power(q)
    assert split is not None
    size, logs = q - 1, np.arange(q - 1)
    for step in [d for d in range(1, size) if size % d == 0 and size // d > 1]:
        for turned in (True, False):
            for powered in (True, False) if split[1] > 1 else (False,):
                moves = [(logs + step) % size]
                moves += [-logs % size] if turned else []
                moves += [logs * split[0] % size] if powered else []
                also = " and 1/x" * turned + f" and x^{split[0]}" * powered
                yield f"x -> ax{also} on the nonzero of GF({q}), {size // step} values of a", moves


def _cyclic_groups(order: int, copies: int) -> Iterator[tuple[str, list[NDArray[np.int64]]]]:
    """Yield the group Z_g on copies of itself, alone, with one multiplier, and with the copies rotating."""
    base, points = np.arange(copies)[:, None] * order, np.arange(order)[None, :]
    shift = (base + (points + 1) % order).ravel()
    rotation = np.roll(base + points, 1, axis=0).ravel()
    name = f"Z{order}" + (f" on {copies} copies" if copies > 1 else "")
    seen = set()
    for unit in range(order - 1, 1, -1):
        if gcd(unit, order) > 1:
            continue
        powers = frozenset(pow(unit, i, order) for i in range(order))
        if powers not in seen:
            seen.add(powers)
            yield f"{name}, times {unit}", [shift, (base + points * unit % order).ravel()]
    if copies > 1:
        yield f"{name} that rotate", [shift, rotation]
    yield name, [shift]


def _primitive_root(q: int) -> int:
    times = make_field(q).times
    for x in range(2, q):
        power, order = x, 1
        while power != 1:
            power, order = int(times[power, x]), order + 1
        if order == q - 1:
            return x
    return 1
