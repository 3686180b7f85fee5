"""A code for the users there are: what can be promised, with a margin that the decoder keeps, and why this one."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError, UnmetError
from codeward._figures import show_percent
from codeward.certificates import certify_agreement, is_agreement_affordable
from codeward.codes import Code, Design, count_attacker_sets, design, inspect, partition_code
from codeward.decoding import BayesDecoder, uniform_prior

#: How often a sub-model is taken to err where no trusted samples say it.
ASSUMED_ERROR = 0.1
#: Classes of the imagined task on which a margin is tried; the users' own number is theirs to change.
_CLASSES = 4
#: Margins that are tried, and sub-models up to which a stronger guarantee is chosen unasked.
MARGINS, MOST_MODELS = (3, 5, 7), 40
#: Sets of attackers up to which a margin is tried out (two of 50 users): some seconds.
_MOST_SETS = 1_300
#: Share of the users that a sub-model learns from at least, unless told otherwise.
UTILIZATION = 1 / 3


@dataclass(frozen=True)
class CodeChoice:
    """A code, and why it was chosen.

    Attributes
    ----------
    code : Code
        Columns bear the users' names.
    n_attackers : int
        k that it is designed for.
    guarantee : str
    margin : int
    reasons : tuple of str
        Sentences.
    design : Design or None
        What the designer says of it; None for a code that was given, or a partition.

    Examples
    --------
    >>> choice = choose_code(("a", "b", "c", "d", "e", "f"), n_attackers=1, time_limit=0.5)
    >>> choice.guarantee, choice.code.user_name(1)
    ('track', 'b')
    """

    code: Code
    n_attackers: int
    guarantee: str
    margin: int
    reasons: tuple[str, ...]
    design: Design | None = None


def choose_code(
    users: tuple[str, ...],
    n_attackers: int | None = None,
    guarantee: str | None = None,
    margin: int | None = None,
    utilization: float | None = None,
    error_rate: float | None = None,
    weights: NDArray[np.float64] | None = None,
    time_limit: float = 2.0,
) -> CodeChoice:
    """Design a code for named users; nothing in it depends on what they hand in.

    Without a word it is one that names two attackers, where `MOST_MODELS` sub-models are enough for that; otherwise the
    next best of: recovers the label from two, names one, recovers from one. The margin is the least of `MARGINS` with
    which the Bayes decoder undoes k attackers when sub-models err as often as ``error_rate`` says (Proposition 23 of
    docs/theory.md), so that what the code promises is what the decoder keeps.

    Parameters
    ----------
    users : tuple of str
    n_attackers, guarantee, margin, utilization : optional
        What is asked for; what is not is chosen.
    error_rate : float, optional
        How often a sub-model errs, from trusted samples; `ASSUMED_ERROR` without.
    weights : ndarray, optional
        Declared size of each user, for the order of columns.
    time_limit : float
        Seconds of one search.

    Raises
    ------
    UnmetError
        Says what is possible with so few users.

    Examples
    --------
    >>> chosen = choose_code(("ann", "bob", "cem", "dora", "eve", "finn", "gita"), n_attackers=1)
    >>> chosen.guarantee, chosen.margin, chosen.code.users[:2]
    ('track', 3, ('ann', 'bob'))
    """
    n_users = len(users)
    if n_users < 2:
        raise InputError(f"{n_users} user; at least two are needed, or no sub-model can do without an attacker")
    # Unasked for, attackers are a minority of the users.
    most = max(1, min(2, (n_users - 1) // 2))
    wished = n_attackers if n_attackers is not None else most
    if wished < 1 or wished >= n_users:
        raise InputError(f"attackers: expected 1 to {n_users - 1} of {n_users} users, got {wished}")
    shared = UTILIZATION if utilization is None else utilization
    if not 0 < shared < 1:
        raise InputError(f"utilization must be above 0 and below 1, got {shared}")
    if margin is not None and margin < 1:
        raise InputError(f"margin must be a whole number of at least 1, got {margin}")
    sizes = None if weights is None else tuple(float(weight) for weight in weights)
    if guarantee is not None:
        options = [(guarantee, wished)]
    elif n_attackers is not None:
        options = [("track", wished), ("correct", wished), ("detect", wished)]
    else:
        options = [(kind, k) for k in range(most, 0, -1) for kind in ("track", "correct")] + [("detect", 1)]
    assumed = ASSUMED_ERROR if error_rate is None else min(max(error_rate, 0.01), 0.5)
    passed: list[str] = []
    for kind, k in options:
        if k >= n_users:
            continue
        found = _fit_margin(n_users, k, kind, margin, shared, assumed, sizes, time_limit)
        last = (kind, k) == options[-1]
        if found is None or (found[0].code.n_models > MOST_MODELS and not last and guarantee is None):
            passed.append(f"{_say(kind)} {k}")
            continue
        made, chosen, kept = found
        code = Code(made.code.matrix, users=list(users), construction=made.code.construction)
        return CodeChoice(code, k, kind, chosen, _explain(code, kind, k, chosen, kept, error_rate, passed), made)
    raise UnmetError(_say_possible(n_users, options))


def hash_code(n_parts: int, names: tuple[str, ...], n_attackers: int) -> CodeChoice:
    """Return the code of samples without users: a sub-model a part, which is Deep Partition Aggregation."""
    code = Code(partition_code(n_parts, n_parts).matrix, users=list(names), construction="a sub-model a part")
    why = (f"samples have no users: each of {n_parts} parts, assigned by a hash of the content, has its own sub-model "
           "(Deep Partition Aggregation)")  # fmt: skip
    return CodeChoice(code, n_attackers, "partition", 1, (why,))


def adopt_code(code: Code, users: tuple[str, ...], n_attackers: int, hashed: bool = False) -> CodeChoice:
    """Take a code that is there for the users there are: by name where it names them, else in their order."""
    if code.n_users != len(users):
        more = "more" if code.n_users > len(users) else "fewer"
        raise InputError(
            f"code: {code.n_users} columns, {more} than the {len(users)} users in groups; a code has one column a user "
            "(design one for this number of users, or leave code=None)"
        )
    if code.users is None or hashed:
        code = Code(code.matrix, users=list(users), models=code.models, construction=code.construction)
    strangers = sorted(set(code.users or ()) - set(users))
    if strangers:
        raise InputError(f"code: its user {strangers[0]!r} is not among the users of the data")
    return CodeChoice(code, n_attackers, "given", 1, (f"{code.n_models} sub-models of the code that was given",))


def _fit_margin(
    n_users: int,
    k: int,
    guarantee: str,
    margin: int | None,
    utilization: float,
    error: float,
    sizes: tuple[float, ...] | None,
    time_limit: float,
) -> tuple[Design, int, int | None] | None:
    """Return the first design whose promise the decoder keeps, its margin, and the k that is kept (None: not tried)."""
    best = None
    for tried in (margin,) if margin is not None else MARGINS:
        try:
            found = _design(n_users, k, guarantee, tried, utilization, sizes, time_limit)
        except InputError:  # so many cannot be avoided by any sub-model, or nothing was found in time
            break
        kept = _keeps(found.code, k, error) if guarantee in ("track", "correct") else None
        if best is not None and found.code.n_models > MOST_MODELS:
            break
        best = found, tried, kept
        if kept is None or kept >= k:
            break
    return best


def _keeps(code: Code, k: int, error: float) -> int | None:
    """Return how many attackers the Bayes decoder undoes when every sub-model errs so often; None: too much work."""
    # Every attack is decoded, and every decoding weighs every set of attackers again.
    if count_attacker_sets(code.n_users, k) > _MOST_SETS or not is_agreement_affordable(code, _CLASSES, k):
        return None
    confusion = np.full((code.n_models, _CLASSES, _CLASSES), error / (_CLASSES - 1))
    confusion[:, range(_CLASSES), range(_CLASSES)] = 1 - error
    decoder = BayesDecoder(code, confusion, attackers_prior=uniform_prior(k))
    return certify_agreement(code, decoder, _CLASSES, max_attackers=k).n_attackers


@lru_cache(maxsize=64)
def _design(
    n_users: int,
    k: int,
    guarantee: str,
    margin: int,
    utilization: float,
    sizes: tuple[float, ...] | None,
    time_limit: float,
) -> Design:
    # A sub-model that avoids k users (2k, for arbitrary attacks) learns from n - k at most: ask for no more.
    avoided = k * (2 if guarantee == "correct-arbitrary" else 1)
    most = max(n_users - avoided, 1)
    weight = min(max(1, ceil(utilization * n_users - 1e-9)), most)
    return design(
        n_users,
        k,
        row_weight=weight,
        guarantee=guarantee,
        margin=margin,
        weights=sizes,
        time_limit=time_limit,
        groups=True,
        reproducible=True,
    )


def _explain(
    code: Code, guarantee: str, k: int, margin: int, kept: int | None, error: float | None, passed: list[str]
) -> tuple[str, ...]:
    reasons = [f"{code.n_models} sub-models that {_say(guarantee)} {k} of {code.n_users} users"]
    if passed:
        reasons[0] += f" ({'; '.join(passed)}: not with {MOST_MODELS} sub-models or fewer)"
    rate = (
        f"{show_percent(ASSUMED_ERROR)}, assumed"
        if error is None
        else f"{show_percent(error)}, measured on trusted samples"
    )
    spare = (margin - 1) // 2
    reasons.append(f"margin {margin}: absorbs {spare} wrong vote{'s' * (spare != 1)}; sub-models err on {rate}")
    if kept is not None and kept < k:
        reasons.append(f"at that rate the decoder itself undoes {kept} of {k} attackers only")
    largest = max(range(code.n_users), key=lambda user: int(code.matrix[:, user].sum()))
    if code.matrix[:, largest].all():
        reasons.append(f"user {code.user_name(largest)} is in every sub-model")
    return tuple(reasons)


def _say(guarantee: str) -> str:
    return {
        "track": "name",
        "correct": "recover the label under attack by",
        "correct-arbitrary": "recover the label under any attack by",
        "detect": "show an attack by",
    }[guarantee]


def _say_possible(n_users: int, options: list[tuple[str, int]]) -> str:
    wanted = " or ".join(f"{_say(kind)} {k}" for kind, k in options[:1])
    simple = Code(np.eye(n_users, dtype=int))
    found = inspect(simple)
    return (
        f"no code was found for {n_users} users that can {wanted}; a sub-model of each user alone detects "
        f"{found.detect}, corrects {found.correct}, tracks {found.track}: ask for less with --attackers or --guarantee"
    )
