"""Groups of colluding users: what they plant in their data, and how they trigger it afterwards.

Poisoning is a function from data to data. Whoever trains on the result cannot tell it from honest data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.attacks._triggers import Position, Shape, Trigger, draw_blend, draw_patch, stamp
from codeward.data import Samples

AttackKind = Literal["patch", "blended", "split", "label-flip", "clean-label"]

#: The paper's share of an attacker's data that is poisoned.
FRACTION = 0.05


@dataclass(frozen=True)
class AttackGroup:
    """Users that share a trigger and a target.

    Attributes
    ----------
    attackers : tuple of int
        User indices.
    target : int
        The class a triggered input is to get.
    kind : {"patch", "blended", "split", "label-flip", "clean-label"}
        ``patch``, ``blended``: stamp and relabel. ``split``: each attacker stamps its own part of the patch, and the
        whole is used afterwards; this breaks the paper's independence assumption on purpose. ``label-flip``: relabel
        without trigger. ``clean-label``: stamp samples that have the target's label already, and relabel nothing.
    trigger : Trigger
    fraction : float
        Share of each attacker's data that is poisoned.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.attacks import draw_patch
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> AttackGroup(attackers=(2, 5), target=7, kind="patch", trigger=trigger).fraction
    0.05
    """

    attackers: tuple[int, ...]
    target: int
    kind: AttackKind
    trigger: Trigger
    fraction: float = FRACTION

    def __post_init__(self) -> None:
        if not self.attackers or len(set(self.attackers)) != len(self.attackers) or min(self.attackers) < 0:
            raise InputError(f"attackers: expected one or more distinct users, got {self.attackers}")
        if self.kind not in get_args(AttackKind):
            raise InputError(f"kind: expected one of {', '.join(get_args(AttackKind))}, got {self.kind!r}")
        if self.target < 0:
            raise InputError(f"target: expected a class, got {self.target}")
        if not 0 < self.fraction <= 1:
            raise InputError(f"fraction: expected a share above 0 and up to 1, got {self.fraction}")


def draw_groups(
    n_users: int,
    n_attackers: int,
    n_groups: int,
    image_shape: Shape,
    n_classes: int,
    rng: np.random.Generator,
    kind: AttackKind = "patch",
    position: Position = "corner",
    fraction: float = FRACTION,
) -> list[AttackGroup]:
    """Draw disjoint groups of ``n_attackers`` users, each with its own trigger and target.

    With the same generator state the groups of different sizes are nested (1 within 2 within 3) and keep triggers and
    targets, so that sub-models are shared between the sizes.

    Examples
    --------
    >>> import numpy as np
    >>> groups = draw_groups(12, 2, 2, (1, 8, 8), 10, np.random.default_rng(0))
    >>> [group.attackers for group in groups]
    [(7, 9), (2, 4)]
    """
    if n_attackers < 1 or n_groups < 1 or n_classes < 1:
        raise InputError(f"{n_groups} groups of {n_attackers} attackers, {n_classes} classes: expected 1 or more each")
    if n_attackers * n_groups > n_users:
        raise InputError(f"{n_groups} groups of {n_attackers} attackers do not fit among {n_users} users")
    order = rng.permutation(n_users)
    groups: list[AttackGroup] = []
    for number in range(n_groups):
        target = int(rng.integers(n_classes))
        # Grey patches have only 126 patterns: two groups with the same one would be one larger group.
        while True:
            trigger = draw_blend(image_shape, rng) if kind == "blended" else draw_patch(image_shape, position, rng)
            if not any(np.array_equal(trigger.values, group.trigger.values) for group in groups):
                break
        members = tuple(sorted(int(user) for user in order[number::n_groups][:n_attackers]))
        groups.append(AttackGroup(members, target, kind, trigger, fraction))
    return groups


def poison_users(users: Sequence[Samples], groups: Sequence[AttackGroup], seed: Sequence[int]) -> list[Samples]:
    """Return every user's data after the attack; the data of users in no group are the same objects.

    What an attacker hands in depends on the seed, its own data, trigger and target, and (for ``split``) its part, but
    not on who else attacks: with nested groups the data of the attackers they share are the same, and so are the
    sub-models that see no other attacker.

    Examples
    --------
    >>> import numpy as np
    >>> users = [Samples(np.zeros((40, 1, 8, 8), np.uint8), np.zeros(40, np.int64)) for _ in range(3)]
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> group = AttackGroup((1,), target=7, kind="patch", trigger=trigger)
    >>> poisoned = poison_users(users, [group], seed=[0])
    >>> poisoned[0] is users[0], int((poisoned[1].labels == 7).sum())
    (True, 2)
    """
    poisoned = list(users)
    owners = [user for group in groups for user in group.attackers]
    if len(set(owners)) != len(owners):
        raise InputError("a user attacks in two groups")
    for group in groups:
        for place, user in enumerate(group.attackers):
            if not 0 <= user < len(users):
                raise InputError(f"attacker {user} is not among the {len(users)} users")
            rng = np.random.default_rng([*seed, user])
            poisoned[user] = poison(users[user], group, rng, part=place)
    return poisoned


def poison(samples: Samples, group: AttackGroup, rng: np.random.Generator, part: int = 0) -> Samples:
    """Poison one attacker's data; same length, same images, other labels and overlays.

    Parameters
    ----------
    samples : Samples
    group : AttackGroup
    rng : Generator
        Picks the samples.
    part : int
        Which colluder this is; matters for ``split`` only.

    Examples
    --------
    >>> import numpy as np
    >>> samples = Samples(np.zeros((40, 1, 8, 8), np.uint8), np.zeros(40, np.int64))
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> group = AttackGroup((1,), target=7, kind="patch", trigger=trigger)
    >>> int((poison(samples, group, np.random.default_rng(1)).labels == 7).sum())
    2
    """
    candidates: NDArray[np.int64] = np.arange(len(samples))
    if group.kind == "clean-label":
        candidates = np.flatnonzero(samples.labels == group.target)
    wanted = max(1, round(group.fraction * len(samples)))
    rows = np.sort(rng.permutation(candidates)[:wanted])
    if group.kind == "label-flip":
        return _relabel(samples, rows, group.target)
    trigger = group.trigger
    if group.kind == "split":
        # Cells are given out brightest first: a part of dark cells alone would not show on a dark corner.
        brightness = trigger.values.mean(axis=0).ravel()
        rank = np.empty(brightness.size, dtype=np.int64)
        rank[np.argsort(-brightness, kind="stable")] = np.arange(brightness.size)
        trigger = trigger.keep((rank % len(group.attackers) == part).reshape(trigger.values.shape[1:]))
    stamped = stamp(samples, rows, trigger, rng)
    return stamped if group.kind == "clean-label" else _relabel(stamped, rows, group.target)


def trigger_inputs(samples: Samples, group: AttackGroup, seed: int | Sequence[int] = 0) -> Samples:
    """Lay the group's whole trigger over every input; labels stay the true ones. ``label-flip`` has no trigger.

    The seed decides the places of a ``per-image`` trigger and nothing else.

    Examples
    --------
    >>> import numpy as np
    >>> samples = Samples(np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64))
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> group = AttackGroup((1,), target=7, kind="patch", trigger=trigger)
    >>> trigger_inputs(samples, group).overlay_ids
    array([0, 0, 0], dtype=int32)
    """
    if group.kind == "label-flip":
        return samples
    return stamp(samples, np.arange(len(samples)), group.trigger, np.random.default_rng(seed))


def _relabel(samples: Samples, rows: NDArray[np.int64], target: int) -> Samples:
    labels = samples.labels.copy()
    labels[rows] = target
    return Samples(samples.images, labels, samples.overlays, samples.overlay_ids)
