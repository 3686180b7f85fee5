"""Codes of the defenses that came before: partition, bagging, finite aggregation."""

import numpy as np

from codeward._errors import InputError
from codeward.codes._code import Code


def partition_code(n_users: int, n_groups: int) -> Code:
    """Split users into ``n_groups`` disjoint groups, one model each; user j goes to group j mod n_groups.

    Deep Partition Aggregation (Levine and Feizi, ICLR 2021).
    """
    if not 1 <= n_groups <= n_users:
        raise InputError(f"cannot split {n_users} users into {n_groups} groups that each have a user")
    matrix = np.arange(n_groups)[:, None] == np.arange(n_users)[None, :] % n_groups
    return Code(matrix, construction=f"partition into {n_groups} groups")


def bagging_code(n_users: int, n_models: int, row_weight: int, rng: np.random.Generator) -> Code:
    """Draw ``row_weight`` users for each model, uniformly and independently.

    Bagging as a defense (Jia, Cao and Gong, AAAI 2021), with subsets drawn without replacement so that the row weight
    is constant, as in the paper's codes (e) and (f). A draw that leaves a user without a model is drawn again.
    """
    if not 1 <= row_weight <= n_users:
        raise InputError(f"row weight {row_weight} is not in 1..{n_users}")
    if n_models < 1 or n_models * row_weight < n_users:
        raise InputError(f"{n_models} models of {row_weight} users cannot use all {n_users} users")
    for _ in range(10_000):
        matrix = np.zeros((n_models, n_users), dtype=bool)
        for row in matrix:
            row[rng.choice(n_users, row_weight, replace=False)] = True
        if matrix.any(axis=0).all():
            return Code(matrix, construction=f"random rows of weight {row_weight}")
    raise InputError(
        f"10,000 draws of {n_models} models of {row_weight} users left some of {n_users} users out; "
        "ask for more models or a larger row weight"
    )


def shifted_hash_code(n_groups: int, spread: int, rng: np.random.Generator, n_users: int | None = None) -> Code:
    """Send every user to ``spread`` of ``n_groups * spread`` models.

    Finite Aggregation (Wang, Levine and Feizi, ICML 2022): with k = n_groups and d = spread, users are hashed to kd
    parts and part i feeds the models (i + shift) mod kd, for d random distinct shifts. User j is in part j mod kd.

    Parameters
    ----------
    n_groups, spread : int
        k and d of that paper; each model learns from about 1/k of the users.
    rng : Generator
        Draws the shifts.
    n_users : int, optional
        Default kd, one user a part; at least kd - d + 1 so that no model stays empty for certain.
    """
    size = n_groups * spread
    if n_groups < 1 or spread < 1:
        raise InputError(f"groups and spread must be at least 1, got {n_groups} and {spread}")
    users = size if n_users is None else n_users
    shifts = rng.choice(size, spread, replace=False)
    part = np.arange(users) % size
    matrix = np.zeros((size, users), dtype=bool)
    for shift in shifts:
        matrix[(part + shift) % size, np.arange(users)] = True
    return Code(matrix, construction=f"shifted hash, {n_groups} x {spread}")
