"""Tracking codes of many users: rows that share the users out, and repairs of what they do not tell apart."""

from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from codeward._errors import TooLargeError
from codeward.codes._conflicts import Conflict, find_conflicts
from codeward.codes._guarantees import Request
from codeward.codes._incumbent import Incumbent


class UserSeparation:
    """Tracking codes of many users with fewer and fewer rows: rows in blocks, then repairs.

    A block of q rows shares the users out, so that every user has one of q symbols in it. Then two users with unlike
    symbols are told apart in the company of any third, where independent rows often fail to. What is not told apart is
    found by lookup (`find_conflicts`) and repaired by exchanging symbols, which keeps the row weights. ``base`` gives
    rows to stand above the blocks. `run` can be called again and goes on where it was.
    """

    #: Rounds without fewer conflicts before a number of rows is given up; they double when nothing else is left.
    PATIENCE = 6
    #: Blocks tell users apart with fewer rows than independent ones, by about this factor.
    START = 0.8
    #: Work of repairing one conflict: a few dozen short numpy calls.
    REPAIR = 20_000

    def __init__(self, best: Incumbent, base: NDArray[np.bool_] | None = None) -> None:
        request = best.request
        self.best = best
        self.base = np.zeros((0, request.n_users), dtype=bool) if base is None else base
        self.likely = likely_rows(request)
        self.target = len(self.base) + max(ceil(self.START * self.likely), best.bound - len(self.base), 1)
        self.low, self.patience, self.failures = best.bound - 1, self.PATIENCE, 0
        self.matrix: NDArray[np.bool_] | None = None
        self.conflicts: list[Conflict] | None = None

    def run(self, work: float) -> None:
        """Spend this much work on fewer rows."""
        best, stop = self.best, self.best.work - work
        while best.work > stop and not best.finished:
            if self.matrix is None and not self._begin():
                return
            assert self.matrix is not None
            left = self._round()
            if left is None:
                return
            if left == 0:
                name = f"users shared out in {len(self.matrix) - len(self.base)} rows, told apart by repair"
                best.keep(self.matrix, name if not len(self.base) else f"correcting code over {name}")
                self.matrix = None
            elif left < 0 or self.failures > self.patience:
                self.low = max(self.low, len(self.matrix)) if best.matrix is not None else self.low
                self.matrix = None

    def _begin(self) -> bool:
        """Draw rows: more of them until there is a code, then fewer by halves, then one less with more patience."""
        size, fixed = self.best.size, len(self.base)
        if self.best.matrix is not None:
            self.low = min(self.low, size - 1)
            self.patience *= 2 if self.low == size - 1 else 1
            # Nearer to what is known to work: a failure costs more than a success.
            self.target = min(size - 1, self.low + max(1, 3 * (size - self.low) // 4))
        elif self.conflicts is not None:
            self.target += -(-self.target // 4)
        if self.target <= fixed or self.target > fixed + 10 * self.likely:
            return False
        rows = _share_out(self.best.request, self.target - fixed, self.best.rng)
        self.matrix, self.conflicts, self.failures = np.vstack([self.base, rows]), None, 0
        return True

    def _round(self) -> int | None:
        """Repair some conflicts and look again: how many are left, -1 for too many, None when no check is possible."""
        best, request = self.best, self.best.request
        assert self.matrix is not None
        tried, known = self.matrix.copy(), self.conflicts
        if known is not None:
            # All at once at first; fewer when that made new ones.
            chosen = best.rng.permutation(len(known))[: max(1, len(known) // (1 + self.failures))]
            best.work -= len(chosen) * self.REPAIR
            for i in chosen:
                _exchange(tried, known[i], request, len(self.base), best.rng)
        if not best.pay_check(tried, request):
            return None
        most = 4 * request.n_users if known is None else len(known) + 1
        self.conflicts = known or []
        try:
            found = find_conflicts(tried, request.n_attackers, request.margin, most)
        except TooLargeError:
            return -1
        if known is None and len(found) >= most:
            return -1
        self.failures = 0 if known is None or len(found) < len(known) else self.failures + 1
        if known is None or len(found) <= len(known):
            self.matrix, self.conflicts = tried, found
            best.report(f"{len(tried)} models: {len(found)} pairs of attacker sets not told apart" if found else "")
        return len(self.conflicts)


def _share_out(request: Request, n_rows: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw rows in blocks that share the users out: each one symbol of q, or (rows of over half the users) all but one.

    Where n / q users are fewer than a row must have, some users get two symbols.
    """
    n, size = request.n_users, _block_rows(request)
    rows = np.zeros((n_rows, n), dtype=bool)
    dense = 2 * request.row_weight > n
    for start in range(0, n_rows, size):
        order = rng.permutation(n)
        for i, row in enumerate(rows[start : start + size]):
            edge, end = i * n // size, (i + 1) * n // size
            wanted = end - edge if dense else max(request.row_weight, end - edge)
            row[np.take(order, np.arange(edge, edge + wanted), mode="wrap")] = True
            row ^= dense
    return rows


def _block_rows(request: Request) -> int:
    """Rows of a block: symbols at which rows have the weight asked for, or the one that tells most apart."""
    n = request.n_users
    if 2 * request.row_weight > n:
        return max(2, ceil(n / request.block_size))
    return max(2, round(n / _best_weight(request)))


def _exchange(
    matrix: NDArray[np.bool_], conflict: Conflict, request: Request, fixed: int, rng: np.random.Generator
) -> None:
    """Exchange symbols of a user of one of the two sets with others until the two are told apart."""
    n_models, n_users = matrix.shape
    first, second = list(conflict.first), list(conflict.second)
    users = sorted(set(first) ^ set(second))
    size = _block_rows(request)

    def miss() -> int:
        differ = int(np.count_nonzero(matrix[:, first].any(axis=1) != matrix[:, second].any(axis=1)))
        return int(max(0, request.margin - differ, differ - n_models + request.margin))

    left = miss()
    for _ in range(200):
        if left == 0:
            return
        pair = [users[rng.integers(len(users))], int(rng.integers(n_users))]
        start = fixed + int(rng.integers(-(-(n_models - fixed) // size))) * size
        block = matrix[start : start + size]
        if pair[1] in first or pair[1] in second or (block[:, pair[0]] == block[:, pair[1]]).all():
            continue
        block[:, pair] = block[:, pair[::-1]]
        now = miss()
        if now < left:
            left = now
        else:
            block[:, pair] = block[:, pair[::-1]]


def likely_rows(request: Request) -> int:
    """Random rows that likely tell all attacker sets apart."""
    n, k = request.n_users, request.n_attackers
    # A row tells k - 1 users from the same and one more with probability p (1 - p)^(k-1); about n^k such pairs must all
    # be told apart.
    share = _best_weight(request) / n
    return ceil(k * log(n) / (share * (1 - share) ** (k - 1))) + request.margin


def _best_weight(request: Request) -> int:
    n, k = request.n_users, request.n_attackers
    clean: float = 0.5 ** (1 / k)  # share of zeros at which k columns miss a row half the time
    return min(n - 1, max(request.row_weight, round(n * (1 - clean))))
