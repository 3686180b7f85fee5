"""Groups of colluding users: what they lay over an image, what they plant in their data, and how they trigger it.

Poisoning is a function from data to data. Whoever trains on the result cannot tell it from honest data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data import Overlay, Samples, render

__all__ = [
    "FRACTION",
    "AttackGroup",
    "AttackKind",
    "Position",
    "Trigger",
    "draw_blend",
    "draw_groups",
    "draw_patch",
    "poison",
    "poison_users",
    "stamp",
    "trigger_inputs",
]

Position = Literal["corner", "fixed-random", "per-image", "early-corner"]
Shape = tuple[int, int, int]
AttackKind = Literal["patch", "blended", "split", "label-flip", "clean-label"]

#: The paper's share of an attacker's data that is poisoned.
FRACTION = 0.05
#: Side of the paper's triggers, in pixels.
SIDE = 3
#: Opacity of a blended trigger (Chen et al., 2017, use 0.1 to 0.2).
BLEND = 0.15


@dataclass(frozen=True)
class Trigger:
    """A patch, how opaque it is, and where it goes.

    Attributes
    ----------
    values : ndarray of float32, shape (C, h, w)
        Pixel values, 0..1.
    alpha : ndarray of float32, shape (C, h, w)
        Opacity, 0..1.
    position : {"corner", "fixed-random", "per-image", "early-corner"}
        ``per-image`` draws a new place for every image. ``early-corner`` becomes part of the picture before it is
        augmented, as an attacker's files would be: a crop may cut it away, and the attack mostly fails. Everywhere else
        the trigger goes on last.
    place : tuple of int
        Row and column of the upper left pixel; unused when ``per-image``.

    Examples
    --------
    >>> import numpy as np
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> trigger.place, trigger.overlay((1, 8, 8), trigger.place).alpha.sum().item()
    ((5, 5), 9.0)
    """

    values: NDArray[np.float32]
    alpha: NDArray[np.float32]
    position: Position
    place: tuple[int, int]

    def __post_init__(self) -> None:
        if self.position not in get_args(Position):
            raise InputError(f"position: expected one of {', '.join(get_args(Position))}, got {self.position!r}")

    def overlay(self, shape: Shape, place: tuple[int, int]) -> Overlay:
        """Lay the patch at ``place`` over an otherwise clear image of the given shape."""
        channels, height, width = self.values.shape
        inside = 0 <= place[0] <= shape[1] - height and 0 <= place[1] <= shape[2] - width
        if channels != shape[0] or not inside:
            raise InputError(f"trigger: {self.values.shape} at {place} does not fit into an image of {shape}")
        values, alpha = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        rows, columns = slice(place[0], place[0] + height), slice(place[1], place[1] + width)
        values[:, rows, columns] = self.values
        alpha[:, rows, columns] = self.alpha
        return Overlay(values, alpha)

    def keep(self, cells: NDArray[np.bool_]) -> "Trigger":
        """Return the part of the trigger in ``cells`` (h, w); the rest becomes clear."""
        return replace(self, alpha=np.where(cells, self.alpha, np.float32(0)).astype(np.float32))


def draw_patch(shape: Shape, position: Position, rng: np.random.Generator) -> Trigger:
    """Draw a 3 x 3 trigger as the paper does.

    Grey images: a random permutation of five ones and four zeros. Colour images: 27 Gaussian values clipped to 0..1
    (the paper gives no mean or deviation; we take 0.5 and 0.5). The corner is the lower right one: over a digit's body
    a trigger often fails.

    Examples
    --------
    >>> import numpy as np
    >>> int(draw_patch((1, 8, 8), "corner", np.random.default_rng(0)).values.sum())  # five ones, four zeros
    5
    """
    channels, height, width = shape
    if min(height, width) < SIDE:
        raise InputError(f"images of {height} x {width} pixels are too small for a {SIDE} x {SIDE} trigger")
    if channels == 1:
        values = rng.permutation(np.repeat([1.0, 0.0], [5, 4])).reshape(1, SIDE, SIDE)
    else:
        values = np.clip(rng.normal(0.5, 0.5, (channels, SIDE, SIDE)), 0, 1)
    place = (height - SIDE, width - SIDE)
    if position == "fixed-random":
        place = (int(rng.integers(height - SIDE + 1)), int(rng.integers(width - SIDE + 1)))
    opaque = np.ones((channels, SIDE, SIDE), np.float32)
    return Trigger(values.astype(np.float32), opaque, position, place)


def draw_blend(shape: Shape, rng: np.random.Generator) -> Trigger:
    """Draw a random pattern over the whole image, blended in at `BLEND` (Chen et al., 2017).

    Examples
    --------
    >>> import numpy as np
    >>> draw_blend((3, 8, 8), np.random.default_rng(0)).values.shape
    (3, 8, 8)
    """
    values = rng.random(shape, dtype=np.float32)
    return Trigger(values, np.full(shape, BLEND, np.float32), "corner", (0, 0))


def stamp(samples: Samples, rows: NDArray[np.int64], trigger: Trigger, rng: np.random.Generator) -> Samples:
    """Let the samples at ``rows`` carry the trigger (in place of an overlay they had); labels stay.

    Images stay too, but for ``early-corner``, which is painted on them.

    Examples
    --------
    >>> import numpy as np
    >>> samples = Samples(np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64))
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> stamp(samples, np.array([1]), trigger, np.random.default_rng(1)).overlay_ids
    array([-1,  0, -1], dtype=int32)
    """
    if rows.size == 0:
        return samples
    channels, height, width = samples.images.shape[1:]
    shape = (channels, height, width)
    if trigger.position == "per-image":
        across = height - trigger.values.shape[1] + 1, width - trigger.values.shape[2] + 1
        cells = rng.integers(across[0] * across[1], size=rows.size)
        distinct, which = np.unique(cells, return_inverse=True)
        overlays = [trigger.overlay(shape, (int(cell) // across[1], int(cell) % across[1])) for cell in distinct]
    else:
        overlays, which = [trigger.overlay(shape, trigger.place)], np.zeros(rows.size, dtype=np.int64)
    ids = samples.overlay_ids.copy()
    ids[rows] = len(samples.overlays) + which
    stamped = Samples(samples.images, samples.labels, samples.overlays + tuple(overlays), ids)
    if trigger.position != "early-corner":
        return stamped
    images = samples.images.copy()
    images[rows] = np.rint(255 * render(stamped.take(rows))).astype(np.uint8)
    return Samples(images, samples.labels, samples.overlays, np.where(ids < len(samples.overlays), ids, -1))


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
    by_class : tuple of int or None
        Instead of ``target``, the target of each true class (a source-specific backdoor): the class itself where
        samples are stamped and keep their label, -1 where none are stamped.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.attacks import draw_patch
    >>> trigger = draw_patch((1, 8, 8), "corner", np.random.default_rng(0))
    >>> group = AttackGroup(attackers=(2, 5), target=7, kind="patch", trigger=trigger)
    >>> group.fraction, group.targets_of(np.array([0, 1]))
    (0.05, array([7, 7]))
    """

    attackers: tuple[int, ...]
    target: int
    kind: AttackKind
    trigger: Trigger
    fraction: float = FRACTION
    by_class: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.attackers or len(set(self.attackers)) != len(self.attackers) or min(self.attackers) < 0:
            raise InputError(f"attackers: expected one or more distinct users, got {self.attackers}")
        if self.kind not in get_args(AttackKind):
            raise InputError(f"kind: expected one of {', '.join(get_args(AttackKind))}, got {self.kind!r}")
        if self.target < 0:
            raise InputError(f"target: expected a class, got {self.target}")
        if not 0 < self.fraction <= 1:
            raise InputError(f"fraction: expected a share above 0 and up to 1, got {self.fraction}")
        if self.by_class is not None and self.kind not in ("patch", "blended"):
            raise InputError(f"by_class: only of patch and blended, got {self.kind}")
        if self.by_class is not None and not (min(self.by_class, default=-2) >= -1 and max(self.by_class) >= 0):
            raise InputError(f"by_class: expected targets, -1 for none, and not all of them; got {self.by_class}")

    def targets_of(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what samples of these true classes are to get, -1 for nothing."""
        return np.full_like(labels, self.target) if self.by_class is None else np.array(self.by_class)[labels]


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
    targets = group.targets_of(samples.labels)
    candidates = np.flatnonzero(targets >= 0)
    if group.kind == "clean-label":
        candidates = np.flatnonzero(samples.labels == group.target)
    wanted = max(1, round(group.fraction * len(samples)))
    rows = np.sort(rng.permutation(candidates)[:wanted])
    if group.kind == "label-flip":
        return _relabel(samples, rows, targets)
    trigger = group.trigger
    if group.kind == "split":
        # Cells are given out brightest first: a part of dark cells alone would not show on a dark corner.
        brightness = trigger.values.mean(axis=0).ravel()
        rank = np.empty(brightness.size, dtype=np.int64)
        rank[np.argsort(-brightness, kind="stable")] = np.arange(brightness.size)
        trigger = trigger.keep((rank % len(group.attackers) == part).reshape(trigger.values.shape[1:]))
    stamped = stamp(samples, rows, trigger, rng)
    return stamped if group.kind == "clean-label" else _relabel(stamped, rows, targets)


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


def _relabel(samples: Samples, rows: NDArray[np.int64], targets: NDArray[np.int64]) -> Samples:
    labels = samples.labels.copy()
    labels[rows] = targets[rows]
    return Samples(samples.images, labels, samples.overlays, samples.overlay_ids)
