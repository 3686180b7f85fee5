"""Who holds which samples, and a code for these users: ids as given or a hash of the content, in canonical order."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code, Design, design, partition_code

#: Bytes of a sample's digest: two 64-bit words.
_DIGEST_SIZE = 16


@dataclass(frozen=True)
class Ownership:
    """The users and the owner of every sample.

    Attributes
    ----------
    users : ndarray, shape (n,)
        Distinct user ids, one a column of the code.
    owners : ndarray of int64, shape (N,)
        Index into ``users`` of each sample.
    hashed : bool
        Whether the users are parts of the data by content hash (Deep Partition Aggregation), for want of user ids.
    """

    users: NDArray[Any]
    owners: NDArray[np.int64]
    hashed: bool


def read_groups(groups: ArrayLike, n_samples: int) -> Ownership:
    """Read user ids, one a sample; users come in sorted order of their ids."""
    ids = np.asarray(groups)
    if ids.shape != (n_samples,):
        raise InputError(f"groups: expected one user id a sample, shape ({n_samples},), got {ids.shape}")
    if ids.dtype.kind in "fc" and np.isnan(ids).any():
        raise InputError(f"groups: sample {int(np.flatnonzero(np.isnan(ids))[0])} has no user id (NaN)")
    if ids.dtype.kind == "O" and any(value is None or value != value for value in ids):
        raise InputError("groups: some samples have no user id (None or NaN); give every sample an owner")
    try:
        users, owners = np.unique(ids, return_inverse=True)
    except TypeError as error:
        raise InputError("groups: user ids of different types have no order; use all numbers or all text") from error
    return Ownership(users, owners.astype(np.int64), False)


def hash_owners(digests: NDArray[np.uint64], n_parts: int) -> Ownership:
    """Split samples into ``n_parts`` pseudo-users by the hash of their content, labels left out.

    Deep Partition Aggregation (Levine and Feizi, ICLR 2021): one sample more, less or relabelled touches one part. A
    part may be empty; the number of parts must not depend on the data, or one sample could add a model.
    """
    return Ownership(np.arange(n_parts), (digests[:, 0] % np.uint64(n_parts)).astype(np.int64), True)


def match_columns(code: Code, ownership: Ownership) -> Ownership:
    """Refuse a code that does not fit the users; where it names them, let its names order the columns."""
    users = ownership.users
    if code.n_users != users.size:
        more = "more" if code.n_users > users.size else "fewer"
        raise InputError(
            f"code: {code.n_users} columns, {more} than the {users.size} users in groups; a code has one column a user "
            "(design one for this number of users, or leave code=None)"
        )
    if code.users is None or ownership.hashed:
        return ownership
    names = [str(user) for user in users.tolist()]
    strangers = sorted(set(code.users) - set(names))
    if strangers:
        raise InputError(f"code: its user {strangers[0]!r} is not among the user ids in groups")
    place = {name: column for column, name in enumerate(code.users)}
    columns = np.array([place[name] for name in names], dtype=np.int64)
    return Ownership(users[np.argsort(columns)], columns[ownership.owners], False)


def digest_rows(table: Any) -> NDArray[np.uint64]:
    """Hash the content of every row, shape (N, 2); numbers count as 64-bit floats, whatever type they came in.

    The type of an array is common to all users: hashing its bytes would let one user reorder another's samples.
    """
    if hasattr(table, "tocsr"):
        rows: Any = table.tocsr(copy=True).astype(np.float64)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        edges = rows.indptr.tolist()
        indices = rows.indices.astype(np.int64)
        content = [indices[start:stop].tobytes() + rows.data[start:stop].tobytes() for start, stop in pairwise(edges)]
    else:
        dense = np.asarray(table)
        if dense.dtype.kind in "biuf":
            flat = dense.reshape(dense.shape[0], -1)
            content = [row.astype(np.float64).tobytes() for row in flat]
        else:
            content = [repr(row).encode() for row in dense.tolist()]
    hashed = b"".join(hashlib.blake2b(row, digest_size=_DIGEST_SIZE).digest() for row in content)
    return np.frombuffer(hashed, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def list_rows(
    ownership: Ownership, digests: NDArray[np.uint64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], ...]:
    """Give the samples of each user in an order of their own: by content, then label, never by place in the input.

    So a sub-model sees the same sequence however the samples of all users were mixed, and another user's samples
    cannot move its own.
    """
    order = np.lexsort((labels, digests[:, 1], digests[:, 0], ownership.owners))
    edges = np.searchsorted(ownership.owners[order], np.arange(ownership.users.size + 1))
    return tuple(order[start:stop] for start, stop in pairwise(edges))


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
        reproducible=True,
    )
