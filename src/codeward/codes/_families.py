"""Constructions offered to an incumbent: the paper's code, geometries, residues, products, blown-up smaller codes."""

from math import comb

import numpy as np

from codeward.codes._constructions import duplicated_code
from codeward.codes._coverings import (
    MAX_PRODUCT_POINTS,
    drop_redundant,
    fit_multiplicities,
    product_covering,
    product_size,
    quadratic_residues,
    spread_columns,
)
from codeward.codes._geometry import covers, geometric_coverings, split_prime_power
from codeward.codes._guarantees import Request, bound_models, covering_bound
from codeward.codes._incumbent import Incumbent, covers_cost, family_cost, fitting_cost, thinning_cost
from codeward.codes._search import OrbitRounds, anneal_coverings, anneal_directly, anneal_orbits

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
