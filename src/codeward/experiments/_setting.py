"""One repeat of an experiment: data, users, code, halves of the test set, and who attacks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.attacks import AttackGroup, draw_groups, poison_users, trigger_inputs
from codeward.codes import Code
from codeward.data import DatasetPair, Samples, halve_test, load_dataset, split_dirichlet, split_groups, split_iid
from codeward.runs import RunConfig, RunFolder, load_record
from codeward.training import TrainingSettings, choose_recipe

Parts = Sequence[NDArray[np.int64]]


class Draw(IntEnum):
    """What a random stream is for: streams of one repeat never share draws, so one choice does not move another.

    Examples
    --------
    >>> int(Draw.POISON)
    4
    """

    SPLIT = 0
    HALVES = 1
    ATTACKERS = 2
    TRIGGER = 3
    POISON = 4


@dataclass(frozen=True)
class Setting:
    """What the attackers of one repeat find, and what they do.

    Attributes
    ----------
    config : RunConfig
    repeat : int
    code : Code
    users : tuple of Samples
        Clean training data, one a user.
    validation, evaluation : Samples
        The halves of the test set: confusion matrices are estimated on the first, figures are taken on the second.
    n_classes : int
    training : TrainingSettings

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> config = RunConfig(code={"name": "d"})
    >>> setting = prepare_setting(config, 0, load_pair(config), named_code("d"))
    >>> [group] = setting.attack(2)
    >>> poisoned = [new is not old for new, old in zip(setting.poisoned(2), setting.users, strict=True)]
    >>> [user for user, changed in enumerate(poisoned) if changed] == list(group.attackers)
    True
    """

    config: RunConfig
    repeat: int
    code: Code
    users: tuple[Samples, ...]
    validation: Samples
    evaluation: Samples
    n_classes: int
    training: TrainingSettings
    _attacks: dict[int, list[AttackGroup]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def model_seed(self) -> int:
        """The seed from which the models of the repeat derive theirs."""
        return self.config.seed * 1_000_003 + self.repeat

    def attack(self, n_attackers: int) -> list[AttackGroup]:
        """Return the attacking groups of a cell; the same users, triggers and targets for every size, nested."""
        if n_attackers == 0:
            return []
        if n_attackers not in self._attacks:
            attack = self.config.attack
            assert attack.fraction is not None  # the configuration fills it in
            self._attacks[n_attackers] = draw_groups(
                n_users=self.config.users,
                n_attackers=n_attackers,
                n_groups=attack.groups,
                image_shape=self.evaluation.images.shape[1:],
                n_classes=self.n_classes,
                kind=attack.kind,
                position=attack.position,
                fraction=attack.fraction,
                rng=np.random.default_rng(self.seed(Draw.ATTACKERS)),
            )
        return self._attacks[n_attackers]

    def poisoned(self, n_attackers: int) -> list[Samples]:
        """Return every user's data after the attack: a function from data to data; training sees its result only."""
        return poison_users(self.users, self.attack(n_attackers), self.seed(Draw.POISON))

    def triggered(self, group: AttackGroup) -> Samples:
        """Lay a group's trigger over the inputs on which figures are taken."""
        return trigger_inputs(self.evaluation, group, seed=self.seed(Draw.TRIGGER))

    def seed(self, draw: Draw) -> list[int]:
        """Return the seed of one purpose in this repeat."""
        return [self.config.seed, self.repeat, int(draw)]


def split_data(config: RunConfig, repeat: int, pair: DatasetPair) -> Parts:
    """Split the training data of one repeat among the users: sample indices of each.

    Examples
    --------
    >>> config = RunConfig(users=12)
    >>> len(split_data(config, 0, load_pair(config)))
    12
    """
    labels, rng = pair.train.labels, np.random.default_rng([config.seed, repeat, int(Draw.SPLIT)])
    if config.split.kind == "iid":
        return split_iid(labels, config.users, rng)
    if config.split.kind == "dirichlet":
        assert config.split.alpha is not None  # the configuration checks it
        return split_dirichlet(labels, config.users, config.split.alpha, rng)
    if pair.groups is None:
        raise InputError(f"split: {pair.name} has no groups; kind: groups needs a .npz with a groups array")
    parts = split_groups(pair.groups)
    if len(parts) != config.users:
        raise InputError(f"split: the data have {len(parts)} groups, but the run has {config.users} users")
    return parts


def settle_users(config: RunConfig) -> RunConfig:
    """Let the users that an ``.npz`` brings (``groups``) be the users of the run, unless another split was asked for.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> arrays = {"images": np.zeros((6, 4, 4), np.uint8), "labels": np.arange(6) % 2}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "clinics.npz")
    ...     np.savez(file, **arrays, groups=np.array(["north", "south", "west"] * 2))
    ...     settled = settle_users(RunConfig(dataset=str(file)))
    >>> settled.split.kind, settled.users
    ('groups', 3)
    """
    if not config.dataset.endswith(".npz") or "kind" in config.split.model_fields_set:
        return config
    names = name_users(load_pair(config))
    if names is None:
        return config
    if "users" in config.model_fields_set and config.users != len(names):
        raise InputError(
            f"users: {config.users}, but the groups of {config.dataset} are {len(names)} users; leave users out, "
            "or set split.kind=iid to give the samples to invented ones"
        )
    most = max((size for size in config.attack.attackers if size * config.attack.groups <= len(names)), default=0)
    changes: dict[str, Any] = {"users": len(names), "split": {"kind": "groups"}}
    content = config.model_dump(mode="python", exclude_unset=True) | changes
    if "attack" not in config.model_fields_set or "attackers" not in config.attack.model_fields_set:
        content["attack"] = content.get("attack", {}) | {"attackers": [k for k in config.attack.attackers if k <= most]}
    try:
        return type(config).model_validate(content)
    except ValueError as error:
        told = [line.strip() for line in str(error).splitlines() if "error," in line]
        raise InputError(f"{config.dataset}: {len(names)} users: {' '.join(told)[:120]}") from error


def name_users(pair: DatasetPair) -> tuple[str, ...] | None:
    """Return the names of the users that the data bring, in the order of `split_groups`; None where they bring none."""
    return None if pair.groups is None else tuple(str(name) for name in np.unique(pair.groups).tolist())


def prepare_setting(
    config: RunConfig, repeat: int, pair: DatasetPair, code: Code, parts: Parts | None = None
) -> Setting:
    """Split the data among the users of one repeat (unless they are split) and halve the test set.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> config = RunConfig(code={"name": "d"})
    >>> setting = prepare_setting(config, 0, load_pair(config), named_code("d"))
    >>> len(setting.users), len(setting.validation), len(setting.evaluation)
    (12, 269, 270)
    """
    parts = split_data(config, repeat, pair) if parts is None else parts
    rng = np.random.default_rng([config.seed, repeat, int(Draw.HALVES)])
    validation, evaluation = halve_test(pair.test.labels, rng)
    return Setting(
        config=config,
        repeat=repeat,
        code=code,
        users=tuple(pair.train.take(part) for part in parts),
        validation=pair.test.take(validation),
        evaluation=pair.test.take(evaluation),
        n_classes=pair.n_classes,
        training=choose_training(config, pair),
    )


def keep_training(setting: Setting, folder: RunFolder) -> Setting:
    """Return the setting with the recipe by which the folder's first cell was trained, if there is one.

    A configuration may only name its recipe, and a later release may mean another one by that name. A run that goes on,
    or forgets a user, keeps its own: cells of two recipes have no common mean, and no model need be trained again.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> config = RunConfig(code={"name": "d"})
    >>> setting = prepare_setting(config, 0, load_pair(config), named_code("d"))
    >>> keep_training(setting, RunFolder("no/such/folder")) is setting
    True
    """
    for cell in folder.list_records()[:1]:
        file = folder.record(*cell)
        try:
            return replace(setting, training=TrainingSettings(**load_record(file)["training"]))
        except (KeyError, TypeError) as error:
            raise InputError(f"{file}: how its models were trained is not to be read; choose another folder") from error
    return setting


def choose_training(config: RunConfig, pair: DatasetPair) -> TrainingSettings:
    """Return the data set's recipe with the configuration's overrides.

    Examples
    --------
    >>> config = RunConfig(training={"epochs": 3})
    >>> choose_training(config, load_pair(config)).epochs
    3
    """
    # By the configured name: a file that happens to be called mnist.npz is not MNIST.
    base = choose_recipe(config.dataset, config.training.recipe or "modern")
    base = replace(base, n_classes=pair.n_classes, mean=tuple(pair.mean), std=tuple(pair.std))
    given = config.training.model_dump(exclude={"engine", "device", "recipe"}, exclude_none=True)
    return replace(base, **given)


def load_pair(config: RunConfig) -> DatasetPair:
    """Load the data set a run names.

    Examples
    --------
    >>> load_pair(RunConfig()).n_classes
    10
    """
    return load_dataset(config.dataset, config.data_dir)
