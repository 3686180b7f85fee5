"""Attacks on a run-off election, and the fewest users that they take (Propositions 34 to 37 of docs/theory.md)."""

import time
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack

from codeward._cores import share_rows
from codeward._errors import InputError
from codeward._progress import Progress
from codeward.certificates._breakers import force_another
from codeward.certificates._coverage import find_fewest, is_partition
from codeward.certificates._runoff_bounds import SUMS, attack_pairs, bound_codes
from codeward.certificates._runoff_kernels import (
    choose_models,
    force_labels,
    plan_attacks,
    search_partition,
)
from codeward.codes import Code, pack_words, unpack_words
from codeward.decoding import RunOffCounts, RunOffDecoder, check_scores

_Ints = NDArray[np.int64]


class RunOffBreaker:
    """Attacks on a run-off, ties to the smaller class in both rounds; exact under *arbitrary* (Proposition 34).

    Parameters
    ----------
    observed : array_like of shape (N, m, c), or RunOffCounts
        Scores; or counts, which are enough where every user is in one model.
    code : Code
    decoder : RunOffDecoder
    """

    def __init__(self, observed: Any, code: Code, decoder: RunOffDecoder) -> None:
        self.labels: _Ints = decoder.predict(observed)
        self.joint: _Ints = np.zeros((0, 0, 0, 0), dtype=np.int64)
        self.votes = np.zeros((0, 0), dtype=np.int64)
        self.vote_words = np.zeros((0, 0, 0), dtype=np.uint64)
        self.prefer = np.zeros((0, 0, 0, 0), dtype=np.uint64)
        if isinstance(observed, RunOffCounts):
            if len(observed) and observed.n_models != code.n_models:
                raise InputError(f"counts: of {observed.n_models} models, but the code has {code.n_models} (rows)")
            if not is_partition(code):
                raise InputError(
                    "counts of a run-off are enough for a partition, where every user is in one model; this code needs "
                    "the scores (N x m x c)"
                )
            self.first, self.pairs = observed.first, observed.pairs
            if observed.joint is not None:
                self.joint = observed.joint
            return
        scores = check_scores(observed, code.n_models)
        self.votes = scores.argmax(axis=2).astype(np.int64)
        n_classes = scores.shape[2]
        self.vote_words = _pack(self.votes[:, None, :] == np.arange(n_classes)[:, None])
        n_words = self.vote_words.shape[2]
        self.prefer = np.zeros((scores.shape[0], n_classes, n_classes, n_words), dtype=np.uint64)
        for a in range(n_classes):
            for b in range(a + 1, n_classes):
                above = scores[:, :, a] >= scores[:, :, b]
                self.prefer[:, a, b], self.prefer[:, b, a] = _pack(above), _pack(~above)
        self.first = np.bitwise_count(self.vote_words).sum(axis=2).astype(np.int64)
        self.pairs = np.bitwise_count(self.prefer).sum(axis=3).astype(np.int64)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return int(self.first.shape[1])

    @property
    def has_scores(self) -> bool:
        """Whether it is known which model votes what, so that patterns can be tried."""
        return self.votes.size > 0

    def forced(self, bits: NDArray[np.bool_], rows: _Ints, n_classes: int) -> NDArray[np.bool_]:
        """Tell which labels each pattern can force, shape (R, P, c)."""
        found = np.zeros((rows.size, bits.shape[0], self.n_classes), dtype=bool)
        patterns = pack_words(bits)
        votes, prefer = self.vote_words[rows], self.prefer[rows]
        share_rows(rows.size, lambda part: force_labels(votes[part], prefer[part], patterns, found[part]))
        return found

    def broken(self, bits: NDArray[np.bool_], rows: _Ints) -> NDArray[np.bool_]:
        """See `Breaker`."""
        return force_another(self, bits, rows, self.labels, self.n_classes)

    def targets(self, bits: NDArray[np.bool_], rows: _Ints) -> _Ints:
        """See `Breaker`."""
        return self.plan(bits, rows)[:, 0]

    def plan(self, bits: NDArray[np.bool_], rows: _Ints) -> _Ints:
        """Say how pattern i of ``bits`` (R, m) changes input ``rows[i]``: target, its opponent, votes for that one."""
        plans = np.full((rows.size, 3), -1, dtype=np.int64)
        if rows.size:
            plan_attacks(self.vote_words[rows], self.prefer[rows], pack_words(bits), self.labels[rows], plans)
        return plans

    @cached_property
    def rivals(self) -> _Ints:
        """Classes of `demands`, shape (N, 2c), -1 where there is none: t to win against the output, then a to pass it.

        The output is out of the second round only if two classes pass it: one of them is not the strongest other class.
        """
        classes, own = np.arange(self.n_classes), self.labels[:, None]
        strongest = np.where(classes == own, -1, self.first).argmax(axis=1)[:, None]
        passing = np.where((classes == own) | (classes == strongest), -1, classes)
        return np.concatenate([np.where(classes == own, -1, classes), passing], axis=1)

    def demands(self, rank: int, rows: _Ints) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return weights (R, m) and sums (R,), one of which every attack on an input reaches (Proposition 39).

        Against class t in the second round: the lead of the output over it, or in the first round that of the class
        that it must replace, whichever is larger.
        """
        rival, own = rank % self.n_classes, self.labels[rows]
        index = np.arange(rows.size)
        first, pairs, votes = self.first[rows], self.pairs[rows], self.votes[rows]
        over = own
        prefers = np.zeros(votes.shape, dtype=bool)
        lead = np.zeros(rows.size, dtype=np.int64)
        if rank < self.n_classes:
            bits = unpack_words(self.prefer[rows, own, rival], votes.shape[1])
            lead = pairs[index, own, rival] - pairs[index, rival, own] + (own < rival)
            out = np.where(np.arange(self.n_classes) == own[:, None], -1, first)
            out[:, rival] = -1
            over = out.argmax(axis=1) if self.n_classes > 2 else own
            prefers = bits
        passed = first[index, over] - first[:, rival] + (over < rival)
        passed = np.where(over == rival, 0, passed)
        in_first = np.float32(1) * (votes != rival) + (votes == over[:, None])
        second = (lead >= passed) if rank < self.n_classes else np.zeros(rows.size, dtype=bool)
        weights = np.where(second[:, None], 2 * prefers, in_first)
        need = np.where(second, lead, passed)
        return weights.astype(np.float32), np.where(self.rivals[rows, rank] < 0, np.inf, need).astype(np.float32)


def _pack(bits: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Pack the last axis into words."""
    n_words = -(-bits.shape[-1] // 64)
    return pack_words(bits.reshape(-1, bits.shape[-1])).reshape(*bits.shape[:-1], n_words)


def solve_runoff(
    breaker: RunOffBreaker, code: Code, limit: int, time_limit: float, bar: Progress
) -> tuple[_Ints, NDArray[np.bool_], NDArray[np.int32]]:
    """Return radius, exactness and witness of every output, searching up to ``limit`` users.

    A partition is searched exactly (Proposition 35); from counts without ``joint`` the same search gives a bound. Other
    codes: a bound by sums of leads (Proposition 36), a greedy attack, and HiGHS where they differ, for ``time_limit``
    seconds; with 0 the bound alone.
    """
    n_inputs = breaker.labels.size
    fewest = np.zeros((n_inputs, 1), dtype=np.int64)
    users = np.full((n_inputs, limit), -1, dtype=np.int32)
    if is_partition(code):
        best = np.full((n_inputs, 4), -1, dtype=np.int64)
        search_users(breaker, code, limit, fewest, best)
        known = breaker.has_scores or breaker.joint.size > 0
        exact = np.full(n_inputs, known) & ((fewest[:, 0] <= limit) | (limit >= code.n_users))
        if breaker.has_scores:
            _name_users(breaker, code, best, fewest[:, 0], users)
        return fewest[:, 0] - 1, exact, users
    best = np.full((n_inputs, 2), -1, dtype=np.int64)
    search_users(breaker, code, limit, fewest, best)
    lower, most = fewest[:, 0], np.full(n_inputs, limit + 1, dtype=np.int64)
    if time_limit > 0:
        _attack_pairs(breaker, code, np.arange(n_inputs), best, limit, most, users)
        _solve_gaps(breaker, code, limit, time_limit, lower, most, users, bar)
    exact = (lower == most) & ((most <= limit) | (limit >= code.n_users))
    users[~((most <= limit) & (lower == most))] = -1
    users.sort(axis=1)
    order = np.argsort(users < 0, axis=1, kind="stable")
    return lower - 1, exact, np.take_along_axis(users, order, axis=1)


def _attack_pairs(
    breaker: RunOffBreaker, code: Code, rows: _Ints, best: _Ints, limit: int, sizes: _Ints, users: NDArray[np.int32]
) -> None:
    """Attack each of ``rows`` greedily by its pair (t, b) of ``best``; write how many users that takes, and which."""
    known = (breaker.votes, breaker.vote_words, breaker.prefer, breaker.first, breaker.pairs)
    of_rows = (*(each[rows] for each in known), best, sizes, users)
    _share(attack_pairs, of_rows, *_list_models(code), limit)


def attack_greedily_by_pairs(breaker: RunOffBreaker, code: Code, row: int, limit: int) -> list[int] | None:
    """Return at most ``limit`` users who change an output, the smallest of one greedy attack a pair; None without."""
    label, classes = int(breaker.labels[row]), range(breaker.n_classes)
    pairs = np.array([(t, b) for t in classes for b in classes if t not in (b, label)], dtype=np.int64)
    sizes, users = np.zeros(len(pairs), dtype=np.int64), np.full((len(pairs), limit), -1, dtype=np.int32)
    _attack_pairs(breaker, code, np.full(len(pairs), row), pairs, limit, sizes, users)
    least = int(sizes.argmin())
    return users[least][users[least] >= 0].tolist() if sizes[least] <= limit else None


def search_users(breaker: RunOffBreaker, code: Code, limit: int, fewest: _Ints, best: _Ints) -> None:
    """Write the fewest users: of column t to make t win, or of a single column to change the output.

    Exact for a partition, else from below. ``best`` (R, 4) or (R, 2) gets the plan or pair of a single column.
    """
    labels, first, pairs, prefer = breaker.labels, breaker.first, breaker.pairs, breaker.prefer
    if is_partition(code):
        counted = (first, pairs, breaker.joint, breaker.vote_words, prefer, labels, fewest, best)
        _share(search_partition, counted, limit)
    else:
        voted = (breaker.votes, prefer, first, pairs, labels, fewest, best)
        _share(bound_codes, voted, *_list_models(code), SUMS, limit)


def _share(kernel: Any, of_inputs: tuple[Any, ...], *common: Any) -> None:
    """Run a kernel on all cores, on arrays with a row an input (the last one has all, others may be empty)."""
    share_rows(len(of_inputs[-1]), lambda part: kernel(*(each[part] for each in of_inputs), *common))


def _list_models(code: Code) -> tuple[_Ints, _Ints]:
    """List the models of every user, one after the other, and where each list begins."""
    user, model = np.nonzero(code.matrix.T)
    return np.searchsorted(user, np.arange(code.n_users + 1)), model.astype(np.int64)


def _name_users(breaker: RunOffBreaker, code: Code, best: _Ints, sizes: _Ints, users: NDArray[np.int32]) -> None:
    """Write the first user of every model that the plans hit."""
    chosen = np.zeros((best.shape[0], code.n_models), dtype=bool)
    choose_models(breaker.first, breaker.pairs, breaker.vote_words, breaker.prefer, best, chosen)
    owner = code.matrix.argmax(axis=1)
    for row in np.flatnonzero(best[:, 0] >= 0):
        found = np.sort(owner[chosen[row]])
        assert found.size == sizes[row]
        users[row, : found.size] = found


def _solve_gaps(
    breaker: RunOffBreaker,
    code: Code,
    limit: int,
    time_limit: float,
    lower: _Ints,
    most: _Ints,
    users: NDArray[np.int32],
    bar: Progress,
) -> None:
    """Close gaps between bound and attack with HiGHS, pair by pair, input by input, until the time is spent."""
    deadline = time.monotonic() + time_limit
    gaps = np.flatnonzero(lower < most)
    for row in gaps:
        label, classes = int(breaker.labels[row]), range(breaker.n_classes)
        proved = {}
        for t in classes:
            for b in classes:
                left = deadline - time.monotonic()
                if t in (b, label) or left <= 0:
                    continue
                found, proved[t, b] = solve_pair(
                    breaker, int(row), t, b, code, int(lower[row]), int(min(most[row] - 1, limit)), left
                )
                if found is not None and found.size < most[row]:
                    most[row] = found.size
                    users[row] = -1
                    users[row, : found.size] = found
        if len(proved) == len(classes) * (len(classes) - 1) - (len(classes) - 1):
            lower[row] = max(lower[row], min(min(proved.values()), most[row]))
        bar.advance(1 / gaps.size)
        if time.monotonic() >= deadline:
            return


def solve_pair(
    breaker: RunOffBreaker, row: int, t: int, b: int, code: Code, least: int, most: int, seconds: float
) -> tuple[NDArray[np.int32] | None, int]:
    r"""Find the fewest users, between ``least`` and ``most``, who make t win against b (Proposition 37).

    Minimise :math:`\sum_j x_j` over binary x and :math:`p, q \in [0,1]^m` (models made to vote t, b) with
    :math:`p_i + q_i \le \sum_j H_{ij} x_j`, :math:`p_i + q_i \le 1`, and the leads of both rounds closed; answers as
    `find_fewest` does.
    """
    from scipy.optimize import LinearConstraint

    if least > most:
        return None, most + 1
    n, m = code.n_users, code.n_models
    votes, first, pairs = breaker.votes[row], breaker.first[row], breaker.pairs[row]
    likes_t = np.zeros(m, dtype=bool)
    words = breaker.prefer[row, t, b]
    likes_t[:] = (words[np.arange(m) // 64] >> (np.arange(m) % 64).astype(np.uint64)) & np.uint64(1)
    gains, needs = [np.concatenate([2.0 * ~likes_t, -2.0 * likes_t])], [pairs[b, t] - pairs[t, b] + (b < t)]
    for e in set(range(first.size)) - {t, b}:
        says = (votes == e).astype(float)
        gains.append(np.concatenate([(votes != t) + says, says - (votes == t)]))
        gains.append(np.concatenate([says - (votes == b), (votes != b) + says]))
        needs += [first[e] - first[t] + (e < t), first[e] - first[b] + (e < b)]
    eye = csr_array(np.eye(m))
    matrix = vstack(
        [
            hstack([csr_array(-code.matrix.astype(float)), eye, eye]),
            hstack([csr_array((m, n)), eye, eye]),
            hstack([csr_array((len(gains), n)), csr_array(np.array(gains))]),
            csr_array(np.concatenate([np.ones(n), np.zeros(2 * m)])[None]),
        ]
    )
    low = np.concatenate([np.full(2 * m, -np.inf), np.array(needs, dtype=float), [float(least)]])
    high = np.concatenate([np.zeros(m), np.ones(m), np.full(len(gains), np.inf), [float(most)]])

    def wins(hit: NDArray[np.bool_]) -> bool:
        return bool(breaker.forced(hit[None], np.array([row]), breaker.n_classes)[0, 0, t])

    # Whole votes: a model that half votes t and half b is no model.
    program = LinearConstraint(csr_array(matrix), low, high)
    return find_fewest(program, np.ones(n + 2 * m, dtype=bool), code, least, most, seconds, wins)
