"""The collective certificate: how many outputs of a whole test set one attacker set can change."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import block_array, csr_array, eye_array

from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.certificates._breakers import BLOCK_CELLS, PluralityBreaker
from codeward.certificates._certificates import Threat
from codeward.certificates._coverage import SLACK, bound_users, solve_coverage
from codeward.certificates._pointwise import DEFAULT_SETS
from codeward.certificates._runoff_attacks import RunOffBreaker, solve_runoff
from codeward.certificates._subjects import Predictor, Subject, choose_decoder, make_subject
from codeward.codes import Code, count_attacker_sets, enumerate_patterns
from codeward.decoding import RunOffCounts


@dataclass(frozen=True)
class CollectiveCertificate:
    """The most outputs that one set of at most ``n_attackers`` users can change, over a whole test set.

    Each input may be attacked in its own way (its own target under *deterministic*), but by the same users. So it is
    never worse than counting the inputs whose own radius is below ``n_attackers``, each broken by its own users.

    Attributes
    ----------
    n_inputs : int
        All inputs.
    n_counted : int
        Inputs that count: with a verdict and, where labels were given, the right one.
    n_attackers : int
        k.
    changed : int
        No set of at most k users changes more than this many of the counted outputs (sound, also on a timeout).
    attackers : tuple of int
        A set that changes ``changed_by_attackers`` of them.
    changed_by_attackers : int
        Equal to ``changed`` when ``exact``.
    pointwise : int
        Counted inputs that are not certified at k one by one: what the pointwise certificates give as bound.
    exact : bool
    threat : {"deterministic", "arbitrary"}
    decoder : str

    Examples
    --------
    >>> from codeward import Code
    >>> found = certify_collective([[1, 1, 1], [1, 1, 0]], Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), n_attackers=1)
    >>> found.n_counted, found.changed, found.certified
    (2, 1, 1)
    """

    n_inputs: int
    n_counted: int
    n_attackers: int
    changed: int
    attackers: tuple[int, ...]
    changed_by_attackers: int
    pointwise: int
    exact: bool
    threat: Threat
    decoder: str

    @property
    def certified(self) -> int:
        """Counted outputs that survive any attack by k users."""
        return self.n_counted - self.changed


def certify_collective(
    votes: ArrayLike | RunOffCounts,
    code: Code,
    n_attackers: int,
    *,
    labels: ArrayLike | None = None,
    threat: Threat = "arbitrary",
    decoder: str | Predictor = "plurality",
    confusion: ArrayLike | None = None,
    decoder_attackers: int | None = None,
    n_errors: int = 0,
    n_classes: int | None = None,
    method: str = "auto",
    time_limit: float = 60.0,
    progress: Progress | None = None,
) -> CollectiveCertificate:
    """Bound how many outputs any one set of at most ``n_attackers`` users can change at once.

    Proposition 24 of docs/theory.md: exact over the distinct hit patterns where these can be enumerated; for plurality
    with many users by MILP (HiGHS), whose dual bound is returned when ``time_limit`` seconds are not enough; for the
    run-off the same with leads that every attack must close (Proposition 39), a sound bound. Threat models, decoders
    and parameters as in `certify` (``decoder_attackers`` is the consensus decoder's own k).

    Parameters
    ----------
    labels : array_like of int, shape (N,), optional
        True labels: only outputs that are right are counted.
    method : {"auto", "patterns", "milp"}

    Returns
    -------
    CollectiveCertificate

    Examples
    --------
    >>> from codeward import Code
    >>> code = Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> found = certify_collective([[0, 1, 1], [1, 0, 1], [1, 1, 1]], code, n_attackers=1)
    >>> found.pointwise, found.changed, found.attackers  # user 2 alone changes both of the first two
    (2, 2, (2,))
    """
    if not (isinstance(n_attackers, int | np.integer) and n_attackers >= 1):
        raise InputError(f"n_attackers must be at least 1, got {n_attackers}")
    if method not in ("auto", "patterns", "milp"):
        raise InputError(f"unknown method {method!r}; choose auto, patterns or milp")
    chosen = choose_decoder(decoder, code, confusion, decoder_attackers, n_errors, n_classes)
    subject = make_subject(votes, code, threat, chosen, n_classes)
    counts = subject.labels[subject.inverse] >= 0
    if labels is not None:
        true = np.asarray(labels)
        if true.shape != counts.shape:
            raise InputError(f"labels: expected shape {counts.shape}, got {true.shape}")
        counts = counts & (subject.labels[subject.inverse] == true)
    worth = np.bincount(subject.inverse, weights=counts, minlength=subject.labels.size).astype(np.int64)

    limit = min(n_attackers, code.n_users)
    bar = progress or silent()
    counted = isinstance(subject.breaker, (PluralityBreaker, RunOffBreaker))
    if method == "milp" and not counted:
        raise InputError(
            f"method 'milp' is for plurality and run-off; the {subject.name} decoder is certified by patterns"
        )
    fits = count_attacker_sets(code.n_users, limit) <= DEFAULT_SETS
    if isinstance(subject.breaker, RunOffBreaker) and not subject.breaker.has_scores:
        fits = False
        if method == "patterns":
            raise InputError("method 'patterns' needs the scores of a run-off, not counts")
    if counted and (method == "milp" or (method == "auto" and not fits)):
        changed, users, reached, pointwise = _solve_collective(subject, worth, code, limit, time_limit, bar)
    else:
        changed, users, pointwise = _search_collective(subject, worth, code, limit, bar)
        reached = changed
    return CollectiveCertificate(
        n_inputs=counts.size,
        n_counted=int(worth.sum()),
        n_attackers=n_attackers,
        changed=changed,
        attackers=users,
        changed_by_attackers=reached,
        pointwise=pointwise,
        exact=changed == reached,
        threat=threat,
        decoder=subject.name,
    )


def _search_collective(
    subject: Subject, worth: NDArray[np.int64], code: Code, limit: int, bar: Progress
) -> tuple[int, tuple[int, ...], int]:
    """Count what each pattern breaks; the first pattern (fewest users, lowest indices) of the most wins."""
    table = enumerate_patterns(code, limit)
    rows, bits = np.flatnonzero(worth), table.bits
    total = np.zeros(bits.shape[0], dtype=np.int64)
    ever = np.zeros(subject.labels.size, dtype=bool)
    chunks = np.array_split(np.arange(1, bits.shape[0]), max(1, -(-(bits.shape[0] - 1) // 4096)))
    for chunk in chunks:
        step = max(1, BLOCK_CELLS // max(1, chunk.size))
        for start in range(0, rows.size, step):
            here = rows[start : start + step]
            hit = subject.breaker.broken(bits[chunk], here)
            total[chunk] += worth[here] @ hit
            ever[here] |= hit.any(axis=1)
        bar.advance(1 / len(chunks))
    best = int(total.argmax())
    return int(total[best]), table.attacker_set(best), int(worth[ever].sum())


def _solve_collective(
    subject: Subject, worth: NDArray[np.int64], code: Code, limit: int, time_limit: float, bar: Progress
) -> tuple[int, tuple[int, ...], int, int]:
    r"""Maximise the broken worth over one attacker set, with HiGHS.

    .. math:: \max \sum_d \omega_d b_d,\quad b_d \le \sum_t b_{dt},\quad \mathrm{need}_{dt}\, b_{dt} \le \sum_i
              w_{dti} z_i,\quad z_i \le \sum_j H_{ij} x_j,\quad \sum_j x_j \le k

    over binary x and :math:`b_{dt}`, and :math:`z, b_d \in [0, 1]`. Inputs that the pointwise bound already certifies
    at k are left out. The upper bound returned is the solver's dual bound, so a timeout costs sharpness, not soundness.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    breaker = subject.breaker
    begin = time.monotonic()
    if isinstance(breaker, RunOffBreaker):
        radius, _, _ = solve_runoff(breaker, code, limit, time_limit / 2, bar)
    else:
        assert isinstance(breaker, PluralityBreaker)
        radius, _, _ = solve_coverage(breaker, code, limit, time_limit / 2, bar)
    open_rows = np.flatnonzero((radius < limit) & (worth > 0))
    pointwise = int(worth[open_rows].sum())
    if open_rows.size == 0:
        return 0, (), 0, 0
    if isinstance(breaker, RunOffBreaker) and not breaker.has_scores:
        return pointwise, (), 0, pointwise
    # 1. Rival by rival, the demands that k users might meet.
    weights, needs, owners = [], [], []
    for rank in range(breaker.rivals.shape[1]):
        rows = open_rows[breaker.rivals[open_rows, rank] >= 0]
        w, need = breaker.demands(rank, rows)
        near = bound_users(w @ code.matrix.astype(np.float32), need, limit) <= limit
        weights.append(w[near])
        needs.append(need[near])
        owners.append(np.searchsorted(open_rows, rows[near]))
    w, need, owner = np.concatenate(weights).astype(float), np.concatenate(needs).astype(float), np.concatenate(owners)
    n, m, q, d = code.n_users, code.n_models, owner.size, open_rows.size
    # 2. Variables x (n), z (m), b_dt (q), b_d (d).
    member = csr_array((np.ones(q), (owner, np.arange(q))), shape=(d, q))
    grid: Any = [
        [-csr_array(code.matrix.astype(float)), eye_array(m), None, None],
        [None, -csr_array(w), csr_array((need, (np.arange(q), np.arange(q))), shape=(q, q)), None],
        [None, None, -member, eye_array(d)],
        [csr_array(np.ones((1, n))), None, None, None],
    ]
    high = np.concatenate([np.zeros(m + q + d), [float(limit)]])
    answer = milp(
        np.concatenate([np.zeros(n + m + q), -worth[open_rows].astype(float)]),
        integrality=np.concatenate([np.ones(n), np.zeros(m), np.ones(q), np.zeros(d)]),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(csr_array(block_array(grid)), -np.inf, high),
        options={"time_limit": max(0.1, time_limit - (time.monotonic() - begin))},
    )
    # 3. Below: what the set found does break, counted in integers. Above: the dual bound, at most the pointwise sum.
    users: tuple[int, ...] = ()
    reached = 0
    if answer.x is not None:
        users = tuple(int(user) for user in np.flatnonzero(answer.x[:n] > 0.5))
        hit = breaker.broken(code.pattern(users)[None], open_rows)[:, 0]
        reached = int(worth[open_rows[hit]].sum())
    dual = answer.mip_dual_bound
    upper = pointwise if dual is None or not np.isfinite(dual) else int(np.floor(-dual + SLACK))
    return max(reached, min(upper, pointwise)), users, reached, pointwise
