"""The designer: the verified code with fewest models that it finds, and how far from the least possible it is."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, UnmetError
from codeward._notebook import Displayed, Sheet
from codeward._progress import Progress, silent
from codeward.codes._code import Code
from codeward.codes._guarantees import (
    Request,
    assign_columns,
    bound_models,
    check_request,
    check_weights,
    make_request,
    meets,
    sample_utilization,
    tracks_groups,
)
from codeward.codes._incumbent import Incumbent
from codeward.codes._patterns import count_attacker_sets, distinct_columns

#: Finds a code for a request in so many seconds, or until it has so few models.
Search = Callable[..., Incumbent]
#: Row weights tried at most for a utilization that counts samples.
WEIGHT_TRIES = 4
#: Margin of a design that asks for none: one wrong vote is absorbed. Runs and the estimator use it too.
MARGIN = 3
#: Share of the users that a model learns from where neither it nor a row weight nor a number of models is asked for.
UTILIZATION = 1 / 3
#: Attacker sets up to which the finished code is verified a second time.
MAX_RECHECKED = 300_000


@dataclass(frozen=True)
class Design(Displayed):
    """A code and what is known about it.

    Attributes
    ----------
    code : Code
        Verified: it has the guarantee against ``n_attackers`` colluding users with the margin asked for.
    construction : str
        How it was made.
    models_lower_bound : int
        No code for the request has fewer models.
    gap : int
        Models above that bound; 0 means optimal.
    seconds : float
        Time taken.
    guarantee, n_attackers, row_weight, margin
        The request; ``row_weight`` is the least number of users a model was asked to learn from.
    utilization : float
        Share of users (of samples, with weights) that the poorest model learns from.
    timed_out : bool
        Whether the clock ended the search. When False, the same arguments give the same code on any machine with the
        same library versions; when True, more time or a faster machine may find fewer models.
    grouped : bool
        For *track* with too many users to tell apart one by one: the distinct columns are a tracking code, so the
        *groups* of users with equal columns that hold the attackers are named, not the users; everything else holds for
        single users, and `inspect` gives ``track`` = 0.
    note : str
        What to keep in mind: which users share a column, when several do.

    Examples
    --------
    >>> from codeward.codes import design
    >>> found = design(8, 1, 4, margin=1)
    >>> found.code.n_models, found.models_lower_bound, found.gap
    (3, 3, 0)
    """

    code: Code
    construction: str
    models_lower_bound: int
    gap: int
    seconds: float
    guarantee: str
    n_attackers: int
    row_weight: int
    margin: int
    utilization: float
    timed_out: bool
    grouped: bool
    note: str

    def _sheet(self) -> Sheet:
        found = self.code._sheet()
        bound = (
            "that is optimal" if not self.gap else f"no code for the request has fewer than {self.models_lower_bound}"
        )
        asked = f"{self.guarantee} {self.n_attackers} of {self.code.n_users} users, margin {self.margin}"
        return replace(found, title=f"{found.title} ({bound}); asked for: {asked}. {self.construction}")


def design(
    n_users: int,
    n_attackers: int,
    row_weight: int | None = None,
    utilization: float | None = None,
    guarantee: str = "correct",
    margin: int = MARGIN,
    max_models: int | None = None,
    time_limit: float = 20.0,
    seed: int = 0,
    weights: ArrayLike | None = None,
    progress: Progress | None = None,
    groups: bool = False,
    reproducible: bool = False,
) -> Design:
    """Design a code: the fewest models for a row weight, or the largest row weight for a number of models.

    Codes are covering designs: Proposition 5 of docs/theory.md.

    Parameters
    ----------
    n_users, n_attackers : int
        n users of whom at most k collude.
    row_weight : int, optional
        Users that every model learns from at least.
    utilization : float, optional
        The same as a share of the users (of the samples, with ``weights``), in (0, 1). Without it, row weight and
        ``max_models``: a third, or as much as n and k allow.
    guarantee : {"detect", "correct", "correct-arbitrary", "track"}
        What must hold; *detect*, *correct* and *track* under the deterministic threat model, *correct-arbitrary* under
        the arbitrary one (Propositions 1, 2, 3 and 14 of docs/theory.md).
    margin : int
        By how many models the property must hold (Propositions 12 to 14); for *track* both the label and the tracking
        margin. The default of 3 absorbs one wrong vote beside the attack; 1 is the bare property, for models that never
        err. The code returned has at least this margin.
    max_models : int, optional
        Most models. Without row weight and utilization, the code of largest row weight found within it is returned.
    time_limit : float
        Seconds. The search goes on until they are over or the code is optimal.
    seed : int
    weights : array_like, shape (n_users,), optional
        Samples of each user. Columns are assigned so that the poorest model has as many samples as possible.
    progress : Progress, optional
        Advanced by seconds, ``time_limit`` in all.
    groups : bool
        For *track*: where single users are too many to be verified in the time, let users share columns and track the
        groups of users with equal columns (see `Design.grouped`). Without it such a request fails.
    reproducible : bool
        End the search by the work it has done, granted in proportion to the limit, and not by the clock: the same
        arguments give the same code on a busy machine and a quiet one (see `Design.timed_out`). It takes about a third
        of the limit.

    Raises
    ------
    InputError
        When the request is impossible; the message says why.
    UnmetError
        When no code that meets the whole request was found (guarantee, margin, row weight, ``max_models``, for single
        users unless ``groups``); the message says what is possible. It is an `InputError` too.

    Examples
    --------
    >>> found = design(n_users=13, n_attackers=2, row_weight=9, margin=1)
    >>> found.code.n_models, found.gap  # the paper's construction needs 55 models
    (13, 0)
    >>> found.construction
    'hyperplanes of PG(2,3)'
    """
    start = time.monotonic()
    check_request(n_users, n_attackers, guarantee, margin)
    sizes = check_weights(weights, n_users)
    if row_weight is None and utilization is None and max_models is None:
        strength = make_request(n_users, n_attackers, 1, guarantee, margin).strength
        utilization = min(UTILIZATION, (n_users - strength) / n_users)
    _check_limits(row_weight, utilization, max_models, time_limit, seed)
    report = _Reporter(progress or silent(), start, time_limit)

    def search(request: Request, seconds: float, enough: int = 0) -> Incumbent:
        # The compiled searches import numba, which takes a second; only a design pays for it.
        from codeward.codes._stages import solve

        return solve(request, seconds, seed, enough, report, groups, reproducible)

    if row_weight is None and utilization is None:
        assert max_models is not None
        first = make_request(n_users, n_attackers, 1, guarantee, margin)
        found = _largest_weight(first, max_models, time_limit, groups, search)
    else:
        least = row_weight if row_weight is not None else max(1, ceil((utilization or 0.0) * n_users - 1e-9))
        request = make_request(n_users, n_attackers, least, guarantee, margin)
        if sizes is not None and utilization is not None:
            found = _weighted(request, utilization, sizes, time_limit, search)
        else:
            found = search(request, time_limit)
    report.finish()
    return _conclude(found, max_models, sizes, start)


def _conclude(found: Incumbent, max_models: int | None, sizes: NDArray[np.float64] | None, start: float) -> Design:
    """Order rows and columns, verify once more, and describe the code."""
    request, bound = found.request, max(found.bound, 1)
    if found.matrix is None:
        raise UnmetError(
            f"design: no code was found in the time limit (at least {bound} models are needed); allow more time, or "
            "ask for a smaller margin or fewer attackers"
        )
    if max_models is not None and found.size > max_models:
        raise UnmetError(
            f"design: the best code found has {found.size} models, over the limit of {max_models}; no code has fewer "
            f"than {bound}; ask for a smaller row weight or more models{_or_less_margin(request)}"
        )
    matrix = found.matrix[np.lexsort(found.matrix.T[::-1])[::-1]]
    if sizes is not None:
        matrix = assign_columns(matrix, sizes)
    # Reordering changes no property; the check is made again where it costs nothing.
    if found.groups is not None:
        passed = tracks_groups(matrix, request, found.groups)
    else:
        passed = count_attacker_sets(request.n_users, request.strength) > MAX_RECHECKED or meets(matrix, request)
    if not passed:
        raise AssertionError("a code that passed its check must pass it again")
    code = Code(matrix, construction=found.construction)
    return Design(
        code=code,
        construction=found.construction,
        models_lower_bound=bound,
        gap=code.n_models - bound,
        seconds=time.monotonic() - start,
        guarantee=request.guarantee,
        n_attackers=request.n_attackers,
        row_weight=request.row_weight,
        margin=request.margin,
        utilization=code.utilization if sizes is None else sample_utilization(matrix, sizes),
        timed_out=found.timed_out,
        grouped=found.groups is not None,
        note=_describe_groups(matrix, found),
    )


def _or_less_margin(request: Request) -> str:
    """Say what the bare property needs, where a margin is asked for."""
    if request.margin == 1:
        return ""
    return (
        f"; margin {request.margin} was asked for, margin 1 needs at least {bound_models(replace(request, margin=1))}"
    )


def _largest_weight(first: Request, max_models: int, seconds: float, groups: bool, search: Search) -> Incumbent:
    """Find the largest row weight with a code of at most ``max_models`` models: bisect quickly, then push upwards."""
    from codeward.codes._separation import bound_search, needs_groups, refuse_tracking

    # A search may be granted no more than this; what it could not verify is not tried.
    granted = 0.25 * seconds if groups else 0.4 * seconds / (first.n_users.bit_length() + 1)
    possible = []
    for weight in range(1, first.n_users - first.strength + 1):
        request = replace(first, row_weight=weight)
        bound = bound_search(request, granted, groups)
        if bound is not None and bound <= max_models:
            possible.append(request)
    if not possible:
        if not groups and needs_groups(first, granted):
            raise refuse_tracking(first, granted)
        least = bound_search(first, granted, groups)
        raise UnmetError(
            f"design: no code within {max_models} models: even row weight 1 needs at least {least}"
            f"{_or_less_margin(first)}"
        )
    best: Incumbent | None = None
    cut = False
    low, high = 0, len(possible)  # possible[low - 1] was reached, possible[high] was not
    share = 0.4 * seconds / (len(possible).bit_length() + 1)
    while low < high:
        middle = (low + high) // 2
        found = search(possible[middle], share, max_models)
        cut |= found.timed_out
        if found.size <= max_models:
            best, low = found, middle + 1
        else:
            high = middle
    for request in possible[low : low + 2]:
        found = search(request, 0.25 * seconds, max_models)
        cut |= found.timed_out
        if found.size > max_models:
            break
        best = found
    if best is None:
        raise UnmetError(
            f"design: no code within {max_models} models was found; ask for more models or more time"
            f"{_or_less_margin(first)}"
        )
    best.timed_out = cut
    return best


def _weighted(
    request: Request, utilization: float, sizes: NDArray[np.float64], seconds: float, search: Search
) -> Incumbent:
    """Raise the row weight until the poorest row, columns assigned, has its share of the samples."""
    reached, most = 0.0, request.n_users - request.strength
    for turn in range(WEIGHT_TRIES):
        found = search(request, seconds / WEIGHT_TRIES)
        if found.matrix is None:
            return found
        reached = max(reached, sample_utilization(assign_columns(found.matrix, sizes), sizes))
        if reached >= utilization - 1e-9:
            return found
        least = request.row_weight
        step = max(least + 1, ceil(least * utilization / reached - 1e-9))
        request = replace(request, row_weight=most if turn == WEIGHT_TRIES - 2 else min(step, most))
    raise UnmetError(
        f"design: with these weights the poorest model reaches {reached:.3f} of the samples, not {utilization}; "
        "a few users hold too much: ask for a smaller utilization or split their data into several accounts"
    )


def _describe_groups(matrix: NDArray[np.bool_], found: Incumbent) -> str:
    n_users, k = matrix.shape[1], found.request.n_attackers
    sizes = distinct_columns(matrix)[1]
    distinct = sizes.size
    if distinct == n_users:
        return ""
    if found.groups is not None:
        return (
            f"tracking names groups, not users: {n_users} users are too many to tell apart "
            f"({count_attacker_sets(n_users, k):,} sets of at most {k}), so they share {distinct} columns; the groups "
            f"of up to {k} attackers are named, each of {sizes.min()} to {sizes.max()} users"
        )
    return (
        f"{n_users} users share {distinct} distinct columns: tracking can name a group of users with equal columns, "
        "not one user of it"
    )


def _check_limits(
    row_weight: int | None, utilization: float | None, max_models: int | None, time_limit: float, seed: int
) -> None:
    if row_weight is not None and utilization is not None:
        raise InputError("design: give a row weight or a utilization, not both")
    if utilization is not None and not 0 < utilization < 1:
        raise InputError(f"design: utilization must be above 0 and below 1, got {utilization}")
    if max_models is not None and (int(max_models) != max_models or max_models < 1):
        raise InputError(f"design: the most models must be a whole number of at least 1, got {max_models}")
    if not 0 < time_limit < float("inf"):
        raise InputError(f"design: the time limit must be positive, got {time_limit}")
    if int(seed) != seed or seed < 0:
        raise InputError(f"design: the seed must be a whole number of at least 0, got {seed}")


class _Reporter:
    """Turn notes of a search into progress by elapsed seconds."""

    def __init__(self, progress: Progress, start: float, limit: float) -> None:
        self.progress, self.start, self.limit, self.shown = progress, start, limit, 0.0

    def __call__(self, note: str) -> None:
        elapsed = min(time.monotonic() - self.start, self.limit)
        if not note and elapsed - self.shown < 0.2:
            return
        self.progress.advance(elapsed - self.shown, note)
        self.shown = elapsed

    def finish(self) -> None:
        self.progress.advance(self.limit - self.shown)
        self.shown = self.limit
