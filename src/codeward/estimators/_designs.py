"""A code for the users at hand, when none is given."""

from functools import lru_cache
from math import ceil

from codeward._errors import InputError
from codeward.codes import Code, Design, design, partition_code
from codeward.estimators._owners import Ownership


def find_code(
    ownership: Ownership, n_attackers: int, guarantee: str, utilization: float, margin: int, time_limit: float
) -> tuple[Design | None, Code]:
    """Design a code for named users; give each hashed part its own model, which is Deep Partition Aggregation.

    The number of samples of each user is left out of it: a code that follows them is a code that attackers can choose.
    """
    n_users = int(ownership.users.size)
    if ownership.hashed:
        return None, partition_code(n_users, n_users)
    if n_users < 2:
        raise InputError(f"groups: {n_users} user; at least two are needed, or no model can avoid an attacker")
    # A model that avoids k users (2k, for arbitrary attacks) learns from n - k at most: ask for no more.
    avoided = n_attackers * (2 if guarantee == "correct-arbitrary" else 1)
    weight = min(ceil(utilization * n_users - 1e-9), max(n_users - avoided, 1))
    found = _design_once(n_users, n_attackers, weight, guarantee, margin, time_limit)
    names = [str(user) for user in ownership.users.tolist()]
    return found, Code(found.code.matrix, users=names, construction=found.construction)


@lru_cache(maxsize=64)
def _design_once(
    n_users: int, n_attackers: int, row_weight: int, guarantee: str, margin: int, time_limit: float
) -> Design:
    """Design a code once a process: the folds and candidates of a search then share it and do not wait for it.

    A code is public, so nothing is gained by a new one per ``random_state``.
    """
    return design(
        n_users,
        n_attackers,
        row_weight=row_weight,
        guarantee=guarantee,
        margin=margin,
        time_limit=time_limit,
        groups=True,
    )
