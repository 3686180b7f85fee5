"""One repeat of an experiment before anybody attacks: data, users, code, halves of the test set."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import (
    DatasetPair,
    Samples,
    halve_test,
    load_dataset,
    split_dirichlet,
    split_groups,
    split_iid,
)
from codeward.runs import RunConfig
from codeward.training import PRESETS, TrainingSettings


class Draw(IntEnum):
    """What a random stream is for: streams of one repeat never share draws, so one choice does not move another."""

    SPLIT = 0
    HALVES = 1
    ATTACKERS = 2
    TRIGGER = 3
    POISON = 4


def stream(config: RunConfig, repeat: int, draw: Draw) -> np.random.Generator:
    """Return the random stream of one purpose in one repeat."""
    return np.random.default_rng([config.seed, repeat, int(draw)])


@dataclass(frozen=True)
class Setting:
    """What the attackers of one repeat find.

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
    """

    config: RunConfig
    repeat: int
    code: Code
    users: tuple[Samples, ...]
    validation: Samples
    evaluation: Samples
    n_classes: int
    training: TrainingSettings


def deal_data(config: RunConfig, repeat: int, pair: DatasetPair) -> list[NDArray[np.int64]]:
    """Deal the training data of one repeat to the users: sample indices of each."""
    labels, rng = pair.train.labels, stream(config, repeat, Draw.SPLIT)
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


def prepare_setting(config: RunConfig, repeat: int, pair: DatasetPair, code: Code) -> Setting:
    """Deal the data to the users of one repeat and halve the test set."""
    parts = deal_data(config, repeat, pair)
    validation, evaluation = halve_test(pair.test.labels, stream(config, repeat, Draw.HALVES))
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


def choose_training(config: RunConfig, pair: DatasetPair) -> TrainingSettings:
    """Return the data set's recipe with the configuration's overrides."""
    # By the configured name: a file that happens to be called mnist.npz is not MNIST.
    base = PRESETS.get(config.dataset, TrainingSettings())
    base = replace(base, n_classes=pair.n_classes, mean=tuple(pair.mean), std=tuple(pair.std))
    given = config.training.model_dump(exclude={"engine", "device"}, exclude_none=True)
    return replace(base, **given)


def load_pair(config: RunConfig) -> DatasetPair:
    """Load the data set a run names."""
    return load_dataset(config.dataset, config.data_dir)
