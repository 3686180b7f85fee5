"""How well the suspects match the attackers: the paper's tracking table."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError


def tracking_score(
    suspects: Sequence[Iterable[int]], true_attackers: Iterable[int] | Sequence[Iterable[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count true and false positives among the suspects of each input (paper, table "attacker tracking").

    Parameters
    ----------
    suspects : sequence of N sets of users
    true_attackers : set of users, or sequence of N sets
        The attackers behind all inputs, or behind each.

    Returns
    -------
    true_positives, false_positives : ndarray of int64, shape (N,)
        Suspects who attacked, and suspects who did not; the paper reports their means.
    """
    truth: list[Any] = list(true_attackers)
    each: list[set[int]] = (
        [set(truth)] * len(suspects)
        if all(isinstance(t, (int, np.integer)) for t in truth)
        else [set(t) for t in truth]
    )
    if len(each) != len(suspects):
        raise InputError(f"{len(each)} attacker sets for {len(suspects)} inputs")
    found = [set(s) for s in suspects]
    hits = np.array([len(s & t) for s, t in zip(found, each, strict=True)], dtype=np.int64)
    return hits, np.array([len(s) for s in found], dtype=np.int64) - hits
