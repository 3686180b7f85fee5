"""MNIST's 539 writers as users, codes over them, and their models: heads on features nobody trained, or networks."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codeward._progress import Progress
from codeward.attacks import AttackGroup, poison
from codeward.codes import Code, partition_code, shifted_hash_code
from codeward.data import Samples, load_dataset, render
from codeward.runs import read_record_folder

if TYPE_CHECKING:
    from codeward.training import Ensemble, ModelStore, TrainingSettings
    from codeward.training.backbones import StrokeFeatures
    from codeward.training.heads import GridFeatures, HeadSet, UserStatistics

AnyPath = str | os.PathLike[str]

#: Stated before anybody hands in anything; chosen on 100 held-out training writers.
RIDGE, TURNS = 0.03, (0.0, 10.0, -10.0)
#: Two consortia: who wrote MNIST, and how many of each wrote training images.
CONSORTIA = {"staff": 289, "student": 250}
#: Numbers of groups of a partition, of each consortium's own, and Finite Aggregation's.
PARTITIONS, CONSORTIUM_GROUPS, SHIFTED = (12, 50, 100, 269, 539), 50, (50, 2)
N_CLASSES = 10


def make_writer_codes(n_users: int, folder: Path) -> dict[str, Code]:
    """Return the codes of the study by name: partitions, Finite Aggregation's, and designed codes where some are kept.

    Finite Aggregation's code has a part a user, so there must be at least as many users as it has parts.

    Examples
    --------
    >>> from pathlib import Path
    >>> list(make_writer_codes(60, Path("nowhere")))
    ['partition-12', 'partition-50', 'partition-60']
    """
    sizes = [size for size in PARTITIONS if size < n_users] + [n_users]
    codes = {f"partition-{size}": partition_code(n_users, size) for size in sizes}
    groups, spread = SHIFTED
    if n_users >= groups * spread:
        made = shifted_hash_code(groups, spread, np.random.default_rng(0), n_users)
        codes[f"shifted-hash-{groups}x{spread}"] = made
    if n_users == sum(CONSORTIA.values()):
        codes |= {
            f"{kind}-partition-{CONSORTIUM_GROUPS}": partition_code(size, CONSORTIUM_GROUPS)
            for kind, size in CONSORTIA.items()
        }
    kept = {name: Code(made["matrix"]) for name, made in read_record_folder(folder).items() if name.startswith("code-")}
    kept |= {file.name: Code.load(file) for file in sorted(folder.glob("code-*.csv"))}
    return codes | {
        Path(name).stem.removeprefix("code-"): code for name, code in kept.items() if code.n_users == n_users
    }


class WriterModels(Protocol):
    """The trained models of a code over writers."""

    def votes(self, samples: Samples) -> NDArray[np.int64]:
        """Return every model's label for every image, shape (N, m)."""

    def attack(self, group: AttackGroup) -> "WriterModels":
        """Return the models where a group hands in its own images with a trigger, labelled with its target."""


@dataclass(frozen=True)
class WriterData:
    """The writers' images, writers in an order drawn once so that codes mix staff and students.

    Attributes
    ----------
    images, test : Samples
    names : tuple of str
        Writers, in the order of the codes' columns; a name begins with ``staff-`` or ``student-``.
    users : ndarray of int64, shape (N,)
        The writer of each chosen image.
    test_names : ndarray of str
        The writer of each test image.
    cache : Path or None
        Where features are kept.
    chosen : ndarray of int64 or None
        The training images that take part; None: all.
    settings : TrainingSettings or None
        How networks are trained; None: heads on features of ``strokes``.
    seed : int
        Of networks, and of which writers attack with what.
    store : ModelStore or None
        Where networks are kept.

    Examples
    --------
    >>> data = WriterData.assign_digits(6)
    >>> data.keep("student-partition-1").names
    ('student-1', 'student-3', 'student-5')
    """

    images: Samples
    test: Samples
    names: tuple[str, ...]
    users: NDArray[np.int64]
    test_names: NDArray[Any]
    cache: Path | None = None
    chosen: NDArray[np.int64] | None = None
    settings: "TrainingSettings | None" = None
    seed: int = 0
    store: "ModelStore | None" = None

    @classmethod
    def load(cls, data_dir: AnyPath | None, cache: Path | None) -> "WriterData":
        """Load MNIST with its writers."""
        pair = load_dataset("mnist-writers", data_dir)
        assert pair.groups is not None
        assert pair.test_groups is not None
        names, ids = np.unique(pair.groups, return_inverse=True)
        order = np.random.default_rng(0).permutation(len(names))
        return cls(pair.train, pair.test, tuple(names[order]), np.argsort(order)[ids], pair.test_groups, cache)

    @classmethod
    def assign_digits(cls, n_users: int) -> "WriterData":
        """Assign the embedded digits to writers who are made up, for a trial without MNIST."""
        pair = load_dataset("digits")
        users = np.arange(len(pair.train)) % n_users
        names = [f"{('staff', 'student')[i % 2]}-{i}" for i in range(n_users + 20)]
        test = pair.test.take(np.arange(0, len(pair.test), 5))
        return cls(pair.train, test, tuple(names[:n_users]), users, np.resize(names[n_users:], len(test)))

    def keep(self, code_name: str) -> "WriterData":
        """Return the writers whom a code of the study is over: all, or those of one consortium."""
        kind = code_name.split("-")[0]
        if kind not in CONSORTIA:
            return self
        names = tuple(name for name in self.names if name.startswith(kind))
        place = np.array([names.index(name) if name in names else -1 for name in self.names])
        kept = np.flatnonzero(place[self.users] >= 0)
        return replace(self, names=names, users=place[self.users[kept]], chosen=kept)

    def title(self, code_name: str) -> str:
        """Return the name of a code's records: networks and their seed are in it."""
        if self.settings is None:
            return code_name
        return f"{code_name}-networks" + (f"-seed{self.seed}" if self.seed else "")

    def describe(self) -> dict[str, Any]:
        """Return how models are made, for a record."""
        if self.settings is not None:
            return {"training": self.settings.to_json(), "seed": self.seed}
        backbone = self.backbone
        named = {"name": backbone.name, "digest": backbone.digest, "trust": backbone.trust}
        return {"backbone": named, "ridge": RIDGE, "turned_copies": list(TURNS)}

    @property
    def backbone(self) -> "StrokeFeatures":
        """The features of heads: nobody to trust."""
        from codeward.training.backbones import StrokeFeatures

        return StrokeFeatures()

    def transform(self, images: NDArray[np.uint8], turn: float = 0.0) -> "GridFeatures":
        """Return features of images, kept by content."""
        from codeward.training.backbones import transform_cached

        return transform_cached(replace(self.backbone, rotate=turn), images, self.cache)[0]

    def fit(self, code: Code, progress: Progress | None = None, keep_sums: int = 0) -> WriterModels:
        """Fit the models of a code: heads on every writer's images and two turned copies of each, or networks."""
        if self.settings is not None:
            own = [self.take(user) for user in range(len(self.names))]
            return _Networks(self, code, own, self._train(own, code))
        from codeward.training.heads import GridFeatures, fit_heads

        steps = np.concatenate([self.transform(self.images.images, turn).steps[self.rows] for turn in TURNS])
        labels, users = np.tile(self.images.labels[self.rows], len(TURNS)), np.tile(self.users, len(TURNS))
        heads = fit_heads(
            GridFeatures(steps), labels, users, code, N_CLASSES, RIDGE, backbone=self.backbone, keep_sums=keep_sums,
            progress=progress,
        )  # fmt: skip
        return _Heads(self, heads)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Numbers of the training images that take part."""
        return np.arange(len(self.images)) if self.chosen is None else self.chosen

    def take(self, user: int) -> Samples:
        """Return the images of a writer."""
        return self.images.take(self.rows[self.users == user])

    def poison(self, group: AttackGroup) -> dict[int, Samples]:
        """Return what attackers hand in: their own images with the trigger, labelled with the target."""
        return {user: poison(self.take(user), group, np.random.default_rng([0, user])) for user in group.attackers}

    def _train(self, users: list[Samples], code: Code) -> "Ensemble":
        from codeward.training import train_ensemble

        assert self.settings is not None
        return train_ensemble(users, code, self.settings, self.seed, self.store)


@dataclass(frozen=True)
class _Heads:
    data: WriterData
    heads: "HeadSet"

    def votes(self, samples: Samples) -> NDArray[np.int64]:
        return self.heads.votes(self.data.transform(_show(samples)))

    def attack(self, group: AttackGroup) -> WriterModels:
        found = {user: self._count(bad) for user, bad in self.data.poison(group).items()}
        return replace(self, heads=self.heads.replace_users(found))

    def _count(self, bad: Samples) -> "UserStatistics":
        from codeward.training.heads import GridFeatures, UserStatistics

        steps = [replace(self.data.backbone, rotate=turn).transform(_show(bad)).steps for turn in TURNS]
        return UserStatistics.of(GridFeatures(np.concatenate(steps)), np.tile(bad.labels, len(TURNS)), N_CLASSES)


@dataclass(frozen=True)
class _Networks:
    data: WriterData
    code: Code
    users: list[Samples]
    ensemble: "Ensemble"

    def votes(self, samples: Samples) -> NDArray[np.int64]:
        return self.ensemble.votes(samples)

    def attack(self, group: AttackGroup) -> WriterModels:
        bad = self.data.poison(group)
        users = [bad.get(user, samples) for user, samples in enumerate(self.users)]
        return replace(self, users=users, ensemble=self.data._train(users, self.code))


def _show(samples: Samples) -> NDArray[np.uint8]:
    """Return images with their overlays, as bytes."""
    return np.rint(render(samples) * 255).astype(np.uint8)
