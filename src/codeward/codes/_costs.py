"""What the designer's steps cost, in work units: the meter that ends a search instead of the clock.

A unit is about one table look-up of the compiled searches, 25 ns on a quiet core of 2024. The figures are rounded from
measurements; only their proportions matter, since a search is granted less than a third of the units that its seconds
would allow (`WORK_PER_SECOND`), so that a busy or slower machine does the same work within the same limit.
"""

from math import comb

from codeward.codes._margins import MAX_PAIRS
from codeward.codes._patterns import count_attacker_sets
from codeward.codes._request import Request

#: Units a quiet core does in a second.
UNITS_PER_SECOND = 40e6
#: Units granted per second of the time limit.
WORK_PER_SECOND = 12e6
#: Units of one second of CP-SAT's deterministic clock, two seconds of a quiet core.
SOLVER_COST = 2 * UNITS_PER_SECOND
#: Units of the shortest call into numpy or into a compiled search with its preparations, half a millisecond.
CALL = 20_000


def check_cost(n_columns: int, n_models: int, request: Request) -> float:
    """Units of `meets` for a matrix with so many distinct columns."""
    sets = count_attacker_sets(n_columns, request.strength)
    cost = CALL + 35.0 * sets * -(-n_models // 64)
    pairs = sets * (sets + 1) / 2
    if request.margin > 1 and not request.covering_only and pairs <= MAX_PAIRS:
        cost += pairs * (0.2 + 0.002 * n_models)
    return cost


def trim_cost(n_blocks: int, n_points: int, strength: int) -> float:
    """Units of `trim`."""
    return CALL + 120.0 * n_blocks * n_points + 0.5 * comb(n_points, strength) * strength * max(n_blocks, n_points)


def thinning_cost(n_blocks: int, n_points: int, strength: int) -> float:
    """Units of `drop_redundant`."""
    return CALL + 1.0 * comb(n_points, strength) * n_blocks


def start_cost(n_blocks: int, block_size: int, strength: int) -> float:
    """Units of `start_blocks`."""
    return CALL + n_blocks * (1_000 + 7.0 * comb(block_size, strength))


def orbit_cost(n_points: int, order: int, strength: int) -> float:
    """Units of `set_orbits` under a group of this order."""
    return CALL + 3.5 * comb(n_points, strength) * order


def pairing_cost(request: Request) -> float:
    """Units of `start_pairs`."""
    return CALL + 1.0 * count_attacker_sets(request.n_users, request.n_attackers) ** 2


def fitting_cost(n_moves: int, n_blocks: int) -> float:
    """Units of so many moves of `fit_multiplicities`."""
    return CALL / 4 + n_moves * (2 + 0.3 * n_blocks)


def covers_cost(n_points: int, strength: int) -> float:
    """Units of `covers`."""
    return 200.0 * count_attacker_sets(n_points, strength)


def family_cost(n_blocks: int, n_points: int) -> float:
    """Units of building one geometric covering."""
    return 5 * CALL + 3.0 * n_blocks * n_points
