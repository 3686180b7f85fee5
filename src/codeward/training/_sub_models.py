"""The sub-models of a code: who feeds each, which batches it sees, and what every family of them can do."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.training._training_settings import CROP_PADDING, SHIFT_PADDING, TrainingSettings


def count_shifts(augmentation: str) -> int:
    """Return the positions of a random crop along one axis; 1 where images are not shifted."""
    padding = {"none": CROP_PADDING, "crop-flip": CROP_PADDING, "shift": SHIFT_PADDING, "shift-flip": SHIFT_PADDING}
    return 2 * padding.get(augmentation, 0) + 1


@dataclass(frozen=True)
class ModelPlan:
    """One sub-model: whose data it learns from and the seed of all its randomness.

    Attributes
    ----------
    users : tuple of int
        Ascending user indices.
    replica : int
        How many earlier rows of the code are identical: equal rows give different models.
    seed : int
        Derived from the run's seed, ``users`` and ``replica`` only; a model therefore keeps its seed in any code that
        has a row for the same users.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> plan_models(Code([[1, 1, 0], [0, 1, 1]]), seed=0)[1].users
    (1, 2)
    """

    users: tuple[int, ...]
    replica: int
    seed: int


@dataclass(frozen=True)
class BatchStream:
    """Every batch of a model's training, known before it starts.

    Attributes
    ----------
    index : ndarray of int64, shape (steps, width)
        Positions in the concatenation of all users' samples.
    counts : ndarray of int64, shape (steps,)
        The first ``counts[s]`` places of batch s count in the loss; the rest only fill it up.
    full : int
        Samples of a full batch of this model: a sample weighs ``1 / full`` in the loss of its batch.
    shifts : ndarray of uint8, shape (steps, width)
        Augmentation of each place, ``(flip * n + row shift) * n + column shift`` with n from `count_shifts`; all
        ``n * n // 2`` (the image as it is) without.
    steps_per_epoch : int
    shares : ndarray of float32, shape (steps,)
        Mixup: the share of a place's own image, the rest is that of the place before it; all 1 without.

    Examples
    --------
    >>> from codeward.training import TrainingSettings
    >>> settings = TrainingSettings(epochs=2, batch_size=4)
    >>> stream = plan_batches(ModelPlan(users=(0, 1), replica=0, seed=1), [6, 3], settings, width=4)
    >>> len(stream), stream.steps_per_epoch, stream.counts.tolist()
    (6, 3, [3, 3, 3, 3, 3, 3])
    """

    index: NDArray[np.int64]
    counts: NDArray[np.int64]
    full: int
    shifts: NDArray[np.uint8]
    steps_per_epoch: int
    shares: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.index)


def plan_models(code: Code, seed: int) -> tuple[ModelPlan, ...]:
    """Return one plan a row of the code, in row order.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> [(plan.users, plan.replica) for plan in plan_models(Code([[1, 1, 0], [0, 1, 1], [1, 1, 0]]), seed=0)]
    [((0, 1), 0), ((1, 2), 0), ((0, 1), 1)]
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InputError(f"seed: expected a whole number, got {seed!r}")
    seen: Counter[tuple[int, ...]] = Counter()
    plans = []
    for row in code.matrix:
        users = tuple(int(user) for user in np.flatnonzero(row))
        plans.append(ModelPlan(users, seen[users], _derive_seed(int(seed), users, seen[users])))
        seen[users] += 1
    return tuple(plans)


def plan_networks(plan: ModelPlan, committee: int) -> tuple[ModelPlan, ...]:
    """Return a plan for each network of a sub-model; the first is the sub-model's own, the others have other seeds.

    Examples
    --------
    >>> first, second = plan_networks(ModelPlan(users=(0, 2), replica=0, seed=5), committee=2)
    >>> first.seed, second.users, second.seed == first.seed
    (5, (0, 2), False)
    """
    others = (_hash_seed(f"codeward-network seed={plan.seed} network={number}") for number in range(1, committee))
    return (plan, *(replace(plan, seed=seed) for seed in others))


def drop_users(plans: Sequence[ModelPlan], users: Sequence[int], seed: int) -> tuple[ModelPlan, ...]:
    """Return the plans without some users, who keep their numbers: what is left to train after a revocation.

    A plan without any of them stays as it is, so that its model keeps its key. The others lose them and get a new seed;
    those that lose all are gone. Where plans become equal, the untouched ones keep their replica numbers and the others
    count on: up to the order of equal rows these are the plans of the smaller code, made from scratch.

    Parameters
    ----------
    plans : sequence of ModelPlan
        Of one code, in row order; replicas of equal plans are 0, 1, 2, ... in any order.
    users : sequence of int
        Whom to drop.
    seed : int
        Seed of the run, as for `plan_models`.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> plans = plan_models(Code([[1, 1, 0], [0, 1, 1], [1, 0, 0]]), seed=0)
    >>> [plan.users for plan in drop_users(plans, [0], seed=0)]
    [(1,), (1, 2)]
    """
    gone = set(users)
    seen = Counter(plan.users for plan in plans if not gone.intersection(plan.users))
    left = []
    for plan in plans:
        kept = tuple(user for user in plan.users if user not in gone)
        if kept == plan.users:
            left.append(plan)
        elif kept:
            left.append(ModelPlan(kept, seen[kept], _derive_seed(int(seed), kept, seen[kept])))
            seen[kept] += 1
    return tuple(left)


def batch_width(sizes: Sequence[int], batch_size: int) -> int:
    """Places of a batch of a model whose users hold ``sizes`` samples: its largest batch, up to a multiple of 16.

    Never above ``batch_size``. A function of the model's own users only: the amount of data somebody else holds must
    not change its arithmetic.
    """
    full = max(1, min(batch_size, max(sizes)))
    largest = max(int(np.diff(_cut(size, full)).max()) for size in set(sizes) if size) if any(sizes) else 1
    return min(batch_size, -(-largest // 16) * 16)


def plan_batches(plan: ModelPlan, sizes: Sequence[int], settings: TrainingSettings, width: int) -> BatchStream:
    """Draw the batches of a model from its own generator.

    With batches of one user, each epoch every user's samples are shuffled and cut into as few batches as possible, of
    one user each and alike in size (5,000 samples: 40 batches of 125), and the users take turns, in ascending order,
    until each has used all of its samples ("we iterate over the selected users with the granularity of a batch",
    paper, Training). Batches are filled up to ``width`` by going round the user's shuffled samples; the filling has
    weight 0 in the loss, the others ``1 / full``, where ``full`` is the batch size or the model's largest user if that
    is less. So every sample counts exactly once an epoch and as much as any other, batches have one size (what compiled
    layers and CUDA graphs need), and batch norm sees real samples of the same user only.

    Cutting off full batches first would leave a remainder of a few samples for every user, all of them at the end of
    the epoch: on MNIST (12 users of 5,000: 12 last steps of 8 samples each) that costs one point of accuracy.

    With mixed batches, each epoch the samples of all users of the model are shuffled together and cut into full
    batches; a remainder waits for another epoch, and fewer samples than a batch go round. The samples, their order and
    their number are those of the model's own users either way, and so is the stream.

    Parameters
    ----------
    sizes : sequence of int
        Samples of every user of the run; only those of ``plan.users`` shape the stream, the others move offsets.
    settings : TrainingSettings
        As they are for the model's own number of samples.
    width : int
        Places of a batch, at most ``settings.batch_size``.

    Examples
    --------
    >>> from codeward.training import TrainingSettings
    >>> plan = ModelPlan(users=(0, 1), replica=0, seed=1)
    >>> plan_batches(plan, [4, 4], TrainingSettings(epochs=1, batch_size=4), width=4).index.shape  # (steps, width)
    (2, 4)
    """
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    generator = np.random.default_rng(plan.seed)
    own = [user for user in plan.users if sizes[user]]
    if not own:
        raise InputError(f"the users {list(plan.users)} of a model hold no samples; give them data or drop the row")
    settings = settings.for_samples(sum(sizes[user] for user in own))
    if settings.batches == "mixed":
        return _plan_mixed(np.concatenate([np.arange(offsets[u], offsets[u + 1]) for u in own]), generator, settings)
    full = _full_batch(own, sizes, settings)
    cuts = [_cut(sizes[user], full) for user in own]
    turns = max(map(len, cuts)) - 1
    order = [(place, turn) for turn in range(turns) for place in range(len(own)) if turn + 1 < len(cuts[place])]
    taken = [np.arange(cuts[place][turn], cuts[place][turn] + width) % sizes[own[place]] for place, turn in order]
    counts = [cuts[place][turn + 1] - cuts[place][turn] for place, turn in order] * settings.epochs
    index = []
    for _ in range(settings.epochs):
        shuffled = [generator.permutation(sizes[user]) + offsets[user] for user in own]
        index += [shuffled[place][which] for (place, _), which in zip(order, taken, strict=True)]
    steps = len(index)
    flips = generator.random((steps, width)) < 0.5 if settings.augmentation == "shift-flip" else None
    shifts = _draw_shifts(generator, settings, (steps, width), flips)
    shares = _draw_shares(generator, settings, steps)
    return BatchStream(np.stack(index), np.array(counts, dtype=np.int64), full, shifts, len(order), shares)


def _plan_mixed(own: NDArray[np.int64], generator: np.random.Generator, settings: TrainingSettings) -> BatchStream:
    width = settings.batch_size
    per_epoch = max(1, len(own) // width)
    order = np.stack([np.resize(generator.permutation(len(own)), per_epoch * width) for _ in range(settings.epochs)])
    flips = None
    if settings.augmentation == "shift-flip":  # each sample flips every other epoch: both sides are seen alike often
        flips = (generator.random(len(own)) < 0.5)[order] ^ (np.arange(settings.epochs) % 2 == 1)[:, None]
        flips = flips.reshape(-1, width)
    steps = per_epoch * settings.epochs
    shifts = _draw_shifts(generator, settings, (steps, width), flips)
    shares = _draw_shares(generator, settings, steps)
    return BatchStream(own[order].reshape(-1, width), np.full(steps, width), width, shifts, per_epoch, shares)


def _draw_shifts(
    generator: np.random.Generator,
    settings: TrainingSettings,
    shape: tuple[int, int],
    flips: NDArray[np.bool_] | None,
) -> NDArray[np.uint8]:
    """Draw the shifts of a stream; ``crop-flip`` draws its flips with them, as it always did."""
    crops = count_shifts(settings.augmentation) ** 2
    if settings.augmentation == "crop-flip":
        return generator.integers(0, 2 * crops, size=shape, dtype=np.uint8)
    if settings.augmentation in ("shift", "shift-flip"):
        drawn = generator.integers(0, crops, size=shape, dtype=np.uint8)
        return drawn if flips is None else drawn + (flips * crops).astype(np.uint8)
    return np.full(shape, crops // 2, dtype=np.uint8)


def _draw_shares(generator: np.random.Generator, settings: TrainingSettings, steps: int) -> NDArray[np.float32]:
    if not settings.mixup:
        return np.ones(steps, dtype=np.float32)
    return generator.beta(settings.mixup, settings.mixup, steps).astype(np.float32)


def count_steps(plan: ModelPlan, sizes: Sequence[int], settings: TrainingSettings) -> int:
    """Return the length of the stream that `plan_batches` gives for the settings of this model's size."""
    settings = settings.for_samples(sum(sizes[user] for user in plan.users))
    if settings.batches == "mixed":
        return settings.epochs * max(1, sum(sizes[user] for user in plan.users) // settings.batch_size)
    full = _full_batch(plan.users, sizes, settings)
    return settings.epochs * sum(-(-sizes[user] // full) for user in plan.users)


def _cut(size: int, full: int) -> NDArray[np.int64]:
    """Cut ``size`` samples into as few batches of at most ``full`` as possible, alike in size; return the borders."""
    return np.linspace(0, size, -(-size // full) + 1).astype(np.int64)


def _full_batch(users: Sequence[int], sizes: Sequence[int], settings: TrainingSettings) -> int:
    return max(1, min(settings.batch_size, max(sizes[user] for user in users)))


def _derive_seed(seed: int, users: tuple[int, ...], replica: int) -> int:
    return _hash_seed(f"codeward-model seed={seed} users={','.join(map(str, users))} replica={replica}")


def _hash_seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@runtime_checkable
class SubModels(Protocol):
    """The m fitted sub-models of a code, in the order of its rows; all that serving and certifying ask of them.

    Isolation (Proposition 15 of docs/theory.md) is the promise of whoever fits them: model i is a function of the data
    of its own users, stated settings and a seed.

    Attributes
    ----------
    n_models, n_classes : int
        m and c.

    Examples
    --------
    >>> class Constant:
    ...     n_models, n_classes = 3, 2
    ...     def votes(self, inputs): return np.ones((len(inputs), 3), np.int64)
    ...     def scores(self, inputs): return None
    >>> isinstance(Constant(), SubModels)
    True
    """

    @property
    def n_models(self) -> int:
        """Number of sub-models m."""

    @property
    def n_classes(self) -> int:
        """Number of classes c."""

    def votes(self, inputs: Any) -> NDArray[np.int64]:
        """Return each model's label for each input, shape (N, m); ties to the smaller label."""

    def scores(self, inputs: Any) -> NDArray[np.float32] | None:
        """Return log-probabilities of the classes, shape (N, m, c), or None where the models give labels only."""
