"""What the designer's steps cost, in work units: the meter that ends a search instead of the clock.

A unit is about one table look-up of the compiled searches, 25 ns on a quiet core of 2024. The figures are rounded from
measurements; only their proportions matter, since a search is granted less than a third of the units that its seconds
would allow (`WORK_PER_SECOND`), so that a busy or slower machine does the same work within the same limit.

The best code so far, and how a covering becomes a code with the wanted guarantee.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward.codes._conflicts import count_tables
from codeward.codes._geometry import covers
from codeward.codes._guarantees import Request, meets
from codeward.codes._patterns import count_attacker_sets, distinct_columns
from codeward.codes._properties import MAX_PAIRS

#: Units a quiet core does in a second.
UNITS_PER_SECOND = 40e6
#: Units granted per second of the time limit.
WORK_PER_SECOND = 12e6
#: Units of one second of CP-SAT's deterministic clock, two seconds of a quiet core.
SOLVER_COST = 2 * UNITS_PER_SECOND
#: Units of the shortest call into numpy or into a compiled search with its preparations, half a millisecond.
CALL = 20_000
#: Work between two looks at the clock: well under a second.
CHUNK = 5_000_000


def check_cost(n_columns: int, n_models: int, request: Request) -> float:
    """Units of `meets` for a matrix with so many distinct columns."""
    sets = count_attacker_sets(n_columns, request.strength)
    if request.guarantee == "track":
        return 20 * CALL + 8.0 * sets * count_tables(n_models, min(request.margin, n_models), sets)
    cost = CALL + 35.0 * sets * -(-n_models // 64)
    pairs = sets * (sets + 1) / 2
    if request.margin > 1 and not request.covering_only and pairs <= MAX_PAIRS:
        cost += pairs * (0.2 + 0.002 * n_models)
    return cost


def is_unverifiable(n_columns: int, cost: float, request: Request) -> bool:
    """Whether there are too many attacker sets, or a check of this cost takes too long, whatever the time limit."""
    tracking = request.guarantee == "track"
    sets = count_attacker_sets(n_columns, request.strength)
    return sets > (MAX_LOOKED_UP if tracking else MAX_VERIFIED) or cost > (MAX_LOOKUP if tracking else MAX_CHECK)


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


#: Random ways to trim a covering that are tried before a row of ones is added.
TRIMS = 8
#: Attacker sets up to which a candidate is verified, and the most work that one check may take: a few seconds.
MAX_VERIFIED = 8_000_000
MAX_CHECK = 300e6
#: The same for tracking, which is verified by lookup: two minutes.
MAX_LOOKED_UP = 200_000_000
MAX_LOOKUP = 5e9
#: Work of a check that is always made: what a search found with its last move must not be lost.
SMALL_CHECK = 1e6
#: Size of the tables (k-sets by blocks or points) past which trimming costs more than it gives.
MAX_TRIMMED = 4_000_000


@dataclass
class Incumbent:
    """What a search has found for one request; every accepted matrix has passed `meets`.

    Attributes
    ----------
    request : Request
    bound : int
        No code with fewer models exists.
    enough : int
        A search may stop at this many models, or at the bound.
    deadline : float
        `time.monotonic` value after which a search must stop.
    matrix : ndarray of bool or None
        The best verified code.
    covering : ndarray of bool or None
        The smallest covering seen (zero sets as rows), whether or not it has the guarantee.
    work : float
        Work units left; moves, checks and preparations all spend them, so that what is found depends on the seed alone
        and not on the clock, as long as the deadline is not reached.
    timed_out : bool
        Whether the deadline cut the search short.
    groups : Request or None
        What the distinct columns meet, where tracking is of groups of users and not of single ones.
    """

    request: Request
    bound: int
    deadline: float
    rng: np.random.Generator
    report: Callable[[str], None] = lambda note: None
    matrix: NDArray[np.bool_] | None = None
    construction: str = ""
    covering: NDArray[np.bool_] | None = None
    work: float = 0.0
    enough: int = 0
    timed_out: bool = False
    groups: Request | None = None

    @property
    def size(self) -> int:
        """Models of the best code; a very large number before there is one."""
        return 10**9 if self.matrix is None else len(self.matrix)

    @property
    def cover_size(self) -> int:
        """Blocks of the smallest covering."""
        return 10**9 if self.covering is None else len(self.covering)

    @property
    def finished(self) -> bool:
        """Whether nothing better exists, or the work or the time is spent."""
        if self.size <= max(self.bound, self.enough) or self.work <= 0:
            return True
        if time.monotonic() >= self.deadline:
            self.timed_out = True
        self.report("")
        return self.timed_out

    def absorb(self, part: "Incumbent", granted: float) -> None:
        """Account for a search that was granted some of the work for a part of the problem."""
        self.work -= granted - part.work
        self.timed_out |= part.timed_out

    def offer_covering(self, blocks: NDArray[np.bool_], construction: str) -> bool:
        """Make a code from zero sets that cover every k-set ``margin`` times; keep it when it is the best.

        For *correct*, a covering that is not BCC is trimmed at random (zeros that no k-set needs become ones, which
        leaves a covering and can separate complements), and failing that gets rows of ones: with d of them any two
        nonempty k-sums agree d times (Lemma 4 of the paper, for a margin).
        """
        request = self.request
        blocks = blocks[blocks.any(axis=1)]
        if len(blocks) < self.cover_size and self._is_covering(blocks):
            self.covering = blocks
        if len(blocks) >= self.size:
            return False
        if request.covering_only:
            return self.offer_code(~self._use_everyone(blocks), construction)
        if request.guarantee == "track":
            return self.offer_code(~blocks, construction)
        if self.offer_code(~blocks, construction):
            return True
        for _ in range(TRIMS):
            if self.finished:
                break
            trimmed = trim(blocks, request.strength, request.margin, self.rng)
            if trimmed is blocks:
                break
            self.work -= trim_cost(len(blocks), request.n_users, request.strength)
            if self.offer_code(~trimmed, construction + ", trimmed"):
                return True
        n_users = blocks.shape[1]
        for extra in range(1, request.margin + 1):
            ones = np.ones((extra, n_users), dtype=bool)
            if self.offer_code(np.vstack([~blocks, ones]), f"{construction} + {extra} row{'s' * (extra > 1)} of ones"):
                return True
        return False

    def _is_covering(self, blocks: NDArray[np.bool_]) -> bool:
        request = self.request
        bare = Request(request.n_users, request.strength, request.row_weight, "detect", request.margin)
        return self.pay_check(blocks, bare) and meets(~self._use_everyone(blocks), bare)

    def offer_code(self, matrix: NDArray[np.bool_], construction: str) -> bool:
        """Keep a matrix when it has fewer models than the best and meets the request.

        What has too many attacker sets to be verified is left out.
        """
        request = self.request
        if len(matrix) >= self.size or (
            request.guarantee == "track" and distinct_columns(matrix)[0].size < request.n_users
        ):
            return False
        if not self.pay_check(matrix, request) or not meets(matrix, request):
            return False
        self.keep(matrix, construction)
        return True

    def keep(self, matrix: NDArray[np.bool_], construction: str) -> None:
        """Keep a matrix that was verified and has fewer models than the best."""
        self.matrix, self.construction = matrix, construction
        self.report(f"{len(matrix)} models, bound {self.bound}: {construction}")

    def pay_check(self, matrix: NDArray[np.bool_], request: Request) -> bool:
        """Spend what a check costs; False when it is too much, or more than is left once there is a code."""
        distinct = request.n_users if request.guarantee == "track" else distinct_columns(matrix)[0].size
        cost = check_cost(distinct, len(matrix), request)
        if is_unverifiable(distinct, cost, request):
            return False
        if self.matrix is not None and cost > max(self.work, SMALL_CHECK):
            return False
        if self.matrix is not None and time.monotonic() + cost / UNITS_PER_SECOND > self.deadline:
            self.timed_out = True
            return False
        self.work -= cost
        return True

    def _use_everyone(self, blocks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Take users that every block holds (a zero column of the code) out of the first block that can spare them."""
        for user in np.flatnonzero(blocks.all(axis=0)):
            for i in range(len(blocks)):
                changed = blocks.copy()
                changed[i, user] = False
                distinct = changed[:, distinct_columns(changed)[0]]
                self.work -= covers_cost(distinct.shape[1], self.request.strength)
                if covers(distinct, self.request.strength, self.request.margin):
                    blocks = changed
                    break
        return blocks


def trim(blocks: NDArray[np.bool_], strength: int, fold: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Take points out of blocks in random order while every ``strength``-set stays in ``fold`` blocks."""
    n_blocks, n_points = blocks.shape
    if comb(n_points, strength) * strength * max(n_blocks, n_points) > MAX_TRIMMED:
        return blocks
    sets = np.array(list(combinations(range(n_points), strength)), dtype=np.int64)
    inside: NDArray[np.bool_] = np.asarray(blocks[:, sets].all(axis=2))
    counts = inside.sum(axis=0)
    holding = [np.flatnonzero((sets == point).any(axis=1)) for point in range(n_points)]
    trimmed = blocks.copy()
    for place in rng.permutation(blocks.size):
        i, point = divmod(int(place), n_points)
        if not trimmed[i, point]:
            continue
        lost = holding[point][inside[i, holding[point]]]
        if (counts[lost] > fold).all():
            counts[lost] -= 1
            inside[i, lost] = False
            trimmed[i, point] = False
    return trimmed


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
