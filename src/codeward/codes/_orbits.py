"""Coverings that a prescribed group leaves in place: the choice of orbits of blocks that covers.

Kramer and Mesner ("t-designs on hypergraphs", 1976): under a group there are few orbits of blocks and of k-sets, and a
covering is a choice of columns that covers all rows of the matrix between them. Large groups make small matrices, in
which Steiner systems and their like are found at once; the trivial group leaves the covering problem itself. The
choice is made by local search with weights on the rows (Gao, Weise and Li, "An efficient local search heuristic with
row weighting for the unicost set covering problem", 2015), here for orbits of unlike length.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from codeward._compiled import compiled
from codeward.codes._annealing import binomials, rank_sets
from codeward.codes._geometry import Permutations, point_groups
from codeward.codes._incumbent import CHUNK, Incumbent, drop_redundant, thinning_cost

#: Blocks that are listed one by one, k-sets too, and entries of the matrix between their orbits.
MAX_LISTED = 1_300_000
MAX_MATRIX = 4_000_000
#: Neighbours looked at for one unit of work (they lie side by side, which makes them cheap).
LOOKS_PER_UNIT = 2.5


@dataclass(frozen=True)
class OrbitMatrix:
    """Orbits of blocks (columns) against orbits of k-sets (rows), as two lists of neighbours.

    Attributes
    ----------
    blocks : ndarray of int64, shape (columns, b)
        One block of each orbit.
    lengths : ndarray of int64, shape (columns,)
        Blocks in each orbit: the cost of a column.
    row_of, rows : ndarray of int64
        Column c covers ``rows[row_of[c]:row_of[c + 1]]``.
    column_of, columns : ndarray of int64
        Row r is covered by ``columns[column_of[r]:column_of[r + 1]]``.
    """

    generators: Permutations
    blocks: NDArray[np.int64]
    lengths: NDArray[np.int64]
    row_of: NDArray[np.int64]
    rows: NDArray[np.int64]
    column_of: NDArray[np.int64]
    columns: NDArray[np.int64]


@lru_cache(maxsize=4)
def _list_sets(n_points: int, size: int) -> NDArray[np.int16]:
    """List all sets of this size in colexicographic order, so that a set's place is its rank."""
    sets = np.fromiter(
        combinations(range(n_points - 1, -1, -1), size), np.dtype((np.int16, size)), comb(n_points, size)
    )
    return np.ascontiguousarray(sets[::-1, ::-1])


def _find_orbits(sets: NDArray[np.int16], generators: Permutations) -> NDArray[np.int64]:
    """Return the number of the orbit of every set (all of one size, in colexicographic order)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    choose = binomials(generators.shape[1], sets.shape[1])
    own = np.arange(len(sets))
    images = np.concatenate([rank_sets(np.sort(move.astype(np.int16)[sets], axis=1), choose) for move in generators])
    graph = coo_array((np.ones(images.size, dtype=np.int8), (np.tile(own, len(generators)), images)), (len(sets),) * 2)
    labels: NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
    return labels


def fits_orbits(n_points: int, block_size: int, strength: int) -> bool:
    """Whether all blocks and all k-sets can be listed."""
    return comb(n_points, block_size) <= MAX_LISTED and comb(n_points, strength) <= MAX_LISTED


def orbit_matrix_cost(n_generators: int, n_points: int, block_size: int, strength: int) -> float:
    """Work units of `orbit_matrix`."""
    listed = comb(n_points, block_size) + comb(n_points, strength)
    return 100_000 + listed * (20.0 * n_generators + 2.0 * block_size)


def orbit_matrix(generators: Permutations, block_size: int, strength: int, most: int) -> OrbitMatrix | None:
    """Build the matrix of a group; None when no choice of orbits of fewer than ``most`` blocks can cover everything."""
    n_points = generators.shape[1]
    sets, blocks = _list_sets(n_points, strength), _list_sets(n_points, block_size)
    set_orbit, block_orbit = _find_orbits(sets, generators), _find_orbits(blocks, generators)
    lengths = np.bincount(block_orbit)
    n_rows = int(set_orbit.max()) + 1
    _, first = np.unique(block_orbit, return_index=True)
    kept = lengths < most
    first, lengths = first[kept], lengths[kept]
    picks = np.array(list(combinations(range(block_size), strength)), dtype=np.int64)
    if not first.size or first.size * len(picks) > MAX_MATRIX:
        return None
    choose = binomials(n_points, strength)
    inside = set_orbit[rank_sets(blocks[first][:, picks].reshape(-1, strength), choose)].reshape(first.size, -1)
    inside.sort(axis=1)
    new = np.ones(inside.shape, dtype=bool)
    new[:, 1:] = inside[:, 1:] != inside[:, :-1]
    rows, owner = inside[new], np.repeat(np.arange(first.size), new.sum(axis=1))
    if np.unique(rows).size < n_rows:
        return None
    row_of = np.concatenate([[0], np.cumsum(new.sum(axis=1))]).astype(np.int64)
    column_of = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))]).astype(np.int64)
    columns = owner[np.argsort(rows, kind="stable")].astype(np.int64)
    return OrbitMatrix(
        generators, blocks[first].astype(np.int64), lengths.astype(np.int64), row_of, rows, column_of, columns
    )


class OrbitSearch:
    """A search for the choice of orbits with fewest blocks, that can be taken up again."""

    def __init__(self, name: str, matrix: OrbitMatrix) -> None:
        n_columns, n_rows = len(matrix.lengths), len(matrix.column_of) - 1
        self.name, self.matrix = name, matrix
        self.best = np.ones(n_columns, dtype=np.bool_)
        self.best_cost = int(matrix.lengths.sum())
        self.inside = np.zeros(n_columns, dtype=np.bool_)
        self.counts = np.zeros(n_rows, dtype=np.int64)
        self.weights = np.ones(n_rows, dtype=np.int64)
        self.stamps = np.zeros(n_columns, dtype=np.int64)

    def advance(self, most: int, work: float, rng: np.random.Generator) -> tuple[bool, float]:
        """Search for fewer than ``most`` blocks with this much work; return whether they were found and the cost."""
        m = self.matrix
        before = self.best_cost = min(self.best_cost, most)
        cost, spent = _choose_columns(
            m.row_of,
            m.rows,
            m.column_of,
            m.columns,
            m.lengths,
            self.inside,
            self.counts,
            self.weights,
            self.stamps,
            self.best,
            self.best_cost,
            work * LOOKS_PER_UNIT,
            rng,
        )
        self.best_cost = int(cost)
        return self.best_cost < before, float(spent) / LOOKS_PER_UNIT

    def unfold(self) -> NDArray[np.bool_]:
        """All blocks of the chosen orbits, as rows over the points."""
        moves = self.matrix.generators
        seen = {tuple(block) for block in self.matrix.blocks[self.best].tolist()}
        queue = sorted(seen)
        while queue:
            images = np.sort(moves[:, np.array(queue, dtype=np.int64)].reshape(-1, len(queue[0])), axis=1)
            queue = sorted({tuple(image) for image in images.tolist()} - seen)
            seen.update(queue)
        rows = np.zeros((len(seen), moves.shape[1]), dtype=bool)
        np.put_along_axis(rows, np.array(sorted(seen), dtype=np.int64), True, axis=1)
        return rows


@compiled
def _choose_columns(row_of, rows, column_of, columns, costs, inside, counts, weights, stamps, best, limit, work, rng):  # type: ignore[no-untyped-def]
    """Local search for columns of total cost below ``limit`` that cover all rows; the state goes on between calls."""
    n_rows, n_columns = counts.size, costs.size
    # score: weight of the rows that only this column covers (inside), or that it would newly cover (outside).
    score = np.zeros(n_columns, dtype=np.int64)
    open_rows = np.empty(n_rows, dtype=np.int64)
    place = np.full(n_rows, -1, dtype=np.int64)
    members = np.empty(n_columns, dtype=np.int64)
    where = np.full(n_columns, -1, dtype=np.int64)
    n_open = n_members = 0
    total = 0
    for c in range(n_columns):
        if inside[c]:
            members[n_members] = c
            where[c] = n_members
            n_members += 1
            total += costs[c]
    for r in range(n_rows):
        if counts[r] == 0:
            open_rows[n_open] = r
            place[r] = n_open
            n_open += 1
        if counts[r] <= 1:
            for i in range(column_of[r], column_of[r + 1]):
                c = columns[i]
                if inside[c] == (counts[r] == 1):
                    score[c] += weights[r]
    spent = 4.0 * n_columns + 2.0 * rows.size
    added = -1
    step = np.int64(stamps.max())
    while spent < work:
        step += 1
        # 1. Everything is covered: keep it, then ask for less.
        if n_open == 0 and total < limit:
            limit = total
            best[:] = inside
        # 2. Take out columns that lose least for their cost: one, and more while everything is covered or too dear.
        removed = -1
        first = True
        while n_members and (first or n_open == 0 or total >= limit):
            chosen = -1
            for i in range(n_members):
                c = members[i]
                if c == added and n_members > 1:
                    continue
                if chosen >= 0:
                    ahead = score[c] * costs[chosen] - score[chosen] * costs[c]
                    if ahead > 0 or (ahead == 0 and stamps[c] >= stamps[chosen]):
                        continue
                chosen = c
            spent += n_members
            c = chosen
            inside[c] = False
            total -= costs[c]
            last = members[n_members - 1]
            members[where[c]] = last
            where[last] = where[c]
            where[c] = -1
            n_members -= 1
            stamps[c] = step
            for j in range(row_of[c], row_of[c + 1]):
                r = rows[j]
                counts[r] -= 1
                if counts[r] == 0:
                    open_rows[n_open] = r
                    place[r] = n_open
                    n_open += 1
                    for i in range(column_of[r], column_of[r + 1]):
                        if columns[i] != c:
                            score[columns[i]] += weights[r]
                    spent += column_of[r + 1] - column_of[r]
                elif counts[r] == 1:
                    for i in range(column_of[r], column_of[r + 1]):
                        if inside[columns[i]]:
                            score[columns[i]] += weights[r]
                            break
                    spent += 0.5 * (column_of[r + 1] - column_of[r])
            removed = c
            first = False
        # 3. Put in the best column for an open row, while one is affordable.
        added = -1
        while n_open:
            r = open_rows[int(rng.random() * n_open)]
            chosen = -1
            for i in range(column_of[r], column_of[r + 1]):
                c = columns[i]
                if c == removed or total + costs[c] >= limit:
                    continue
                if chosen >= 0:
                    ahead = score[c] * costs[chosen] - score[chosen] * costs[c]
                    if ahead < 0 or (ahead == 0 and stamps[c] >= stamps[chosen]):
                        continue
                chosen = c
            spent += column_of[r + 1] - column_of[r]
            if chosen < 0:
                break
            c = chosen
            inside[c] = True
            total += costs[c]
            members[n_members] = c
            where[c] = n_members
            n_members += 1
            stamps[c] = step
            for j in range(row_of[c], row_of[c + 1]):
                r = rows[j]
                counts[r] += 1
                if counts[r] == 1:
                    last = open_rows[n_open - 1]
                    open_rows[place[r]] = last
                    place[last] = place[r]
                    place[r] = -1
                    n_open -= 1
                    for i in range(column_of[r], column_of[r + 1]):
                        if columns[i] != c:
                            score[columns[i]] -= weights[r]
                    spent += column_of[r + 1] - column_of[r]
                elif counts[r] == 2:
                    for i in range(column_of[r], column_of[r + 1]):
                        if inside[columns[i]] and columns[i] != c:
                            score[columns[i]] -= weights[r]
                            break
                    spent += 0.5 * (column_of[r + 1] - column_of[r])
            added = c
        # 4. What stays open weighs more.
        for i in range(n_open):
            r = open_rows[i]
            weights[r] += 1
            for j in range(column_of[r], column_of[r + 1]):
                score[columns[j]] += 1
            spent += column_of[r + 1] - column_of[r]
    return limit, spent


#: Groups that can be tried, at least, before any is.
GROUPS_WORTH = 8


class OrbitRounds:
    """Searches under every group in turn (see the module), each a little at first and longer in every round.

    For coverings with margin 1; `run` can be called again and goes on where it was.
    """

    #: Work of the first look at a group, at most, and for each entry of its matrix.
    FIRST = 3e6
    LOOK = 100.0
    #: Searches that are gone on with, at most.
    KEPT = 60

    def __init__(self, best: Incumbent) -> None:
        self.best = best
        self.searches: list[OrbitSearch] = []
        self.turn = 0
        request = best.request
        n, b, k = request.n_users, request.block_size, request.strength
        fits = request.margin == 1 and k > 1 and request.guarantee != "track" and fits_orbits(n, b, k)
        self.groups = iter(point_groups(n)) if fits else iter(())

    def run(self, work: float) -> None:
        """Spend this much work on groups not yet tried, then on those that are kept."""
        best, stop = self.best, self.best.work - work
        n, b, k = best.request.n_users, best.request.block_size, best.request.strength
        # With work for a few groups only, other searches find more.
        if best.finished or GROUPS_WORTH * orbit_matrix_cost(3, n, b, k) > work:
            return
        for name, generators in self.groups:
            best.work -= orbit_matrix_cost(len(generators), n, b, k)
            matrix = orbit_matrix(generators, b, k, self._most)
            if matrix is not None:
                self.searches.append(OrbitSearch(name, matrix))
                self._advance(self.searches[-1], min(self.FIRST, self.LOOK * len(matrix.rows)))
            if best.work <= stop or best.finished:
                return
        # Small matrices are soon exhausted: go on with those that have most columns.
        self.searches = sorted(self.searches, key=lambda search: -len(search.matrix.lengths))[: self.KEPT]
        while self.searches and best.work > stop and not best.finished:
            share = self.FIRST * 2 ** (self.turn // len(self.searches))
            self._advance(self.searches[self.turn % len(self.searches)], share)
            self.turn += 1

    @property
    def _most(self) -> int:
        return min(self.best.size, self.best.cover_size + 1)

    def _advance(self, search: OrbitSearch, work: float) -> None:
        best = self.best
        n, k = best.request.n_users, best.request.strength
        while work > 0 and not best.finished:
            found, spent = search.advance(self._most, min(work, CHUNK), best.rng)
            best.work -= spent
            work -= spent
            if found:
                blocks = search.unfold()
                best.work -= thinning_cost(len(blocks), n, k)
                best.offer_covering(drop_redundant(blocks, k, 1), f"orbits of blocks, chosen by search ({search.name})")
