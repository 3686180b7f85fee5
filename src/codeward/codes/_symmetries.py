"""Groups of permutations of the users under which codes are searched for: affine, projective, cyclic."""

from collections.abc import Iterator
from math import gcd

import numpy as np
from numpy.typing import NDArray

from codeward.codes._geometry import make_field, split_prime_power

Permutations = NDArray[np.int64]


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
