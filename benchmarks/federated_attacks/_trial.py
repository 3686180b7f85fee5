"""A trial: the data, code, attackers and trigger that the two sides of the comparison share.

Nothing here trains, and nothing here draws from a generator of its own: every stream is named by a `Draw` of the
setting's repeat (`seed_draw`), so that both sides meet the same attackers, the same poisoned samples and the same
triggered inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from codeward.attacks import AttackGroup, trigger_inputs
from codeward.codes import Code, design, inspect
from codeward.data import DatasetPair, Samples
from codeward.experiments import Draw, MaliciousUpdate, Setting, make_attackers, plan_cell, prepare_setting
from codeward.federated import Arrays
from codeward.runs import FederatedConfig, load_federated_config, share
from codeward.training import Ensemble

USERS = 12
ROW_WEIGHT = 4  # a third of the users, as in the paper's code c
#: The margin that the code for k attackers is designed for.
MARGINS = {1: 5, 2: 3}


@dataclass(frozen=True)
class Trial:
    """A data set, what is trained on it and how it is attacked."""

    dataset: str
    data_dir: str | None
    images_per_user: int | None
    rounds: int
    local_epochs: int
    batch_size: int
    learning_rate: float
    architecture: str
    fraction: float
    opacity: float

    def config(self) -> FederatedConfig:
        """Return the configuration that all cells share."""
        values = {
            "dataset": self.dataset, "users": USERS, "code.name": "c", "attack.fraction": self.fraction,
            "attack.kind": "blended",
            "training.architecture": self.architecture, "training.batch_size": self.batch_size,
            "training.learning_rate": self.learning_rate,
            "federated.rounds": self.rounds, "federated.local_epochs": self.local_epochs,
        }  # fmt: skip
        if self.data_dir:
            values["data_dir"] = self.data_dir
        return load_federated_config(None, [f"{name}={value}" for name, value in values.items()])


TRIALS = {
    "digits": Trial("digits", None, None, 15, 4, 32, 1e-2, "mlp", 0.5, 0.3),
    "mnist": Trial("mnist", None, 2000, 15, 1, 64, 3e-3, "mlp", 0.5, 0.15),
}


@cache
def find_code(n_attackers: int) -> Code:
    """Design the code for k attackers and check what the consensus decoder needs of it."""
    margin = MARGINS[n_attackers]
    code = design(
        USERS,
        n_attackers,
        row_weight=ROW_WEIGHT,
        guarantee="correct-arbitrary",
        margin=margin,
        time_limit=10,
        seed=0,
        reproducible=True,
    ).code
    found = inspect(code).margin_arbitrary[n_attackers - 1]
    if found is None or found < margin:
        raise AssertionError(f"code for {n_attackers} attackers: margin {found}, asked for {margin}")
    return code


def prepare(trial: Trial, pair: DatasetPair, seed: int, code: Code) -> Setting:
    """Deal the data; only the first images of each user are kept where the trial says so."""
    setting = prepare_setting(trial.config(), seed, pair, code)
    if trial.images_per_user is None:
        return setting
    kept = np.arange(trial.images_per_user)
    return replace(setting, users=tuple(samples.take(kept) for samples in setting.users))


def seed_draw(setting: Setting, draw: Draw) -> list[int]:
    """Return the seed of one random stream of a repeat."""
    return [setting.config.seed, setting.repeat, int(draw)]


def draw_group(trial: Trial, setting: Setting, n_attackers: int) -> AttackGroup:
    """Draw attackers, target and a random pattern that is blended into the whole image."""
    (group,) = setting.attack(n_attackers)
    alpha = np.full_like(group.trigger.alpha, trial.opacity)
    return replace(group, trigger=replace(group.trigger, alpha=alpha))


def make_updates(
    setting: Setting, group: AttackGroup, behaviour: str, boost: float | None = None
) -> dict[int, MaliciousUpdate]:
    """Return what attackers send that behave in one of the ways a federated run knows."""
    config = setting.config
    assert isinstance(config, FederatedConfig)
    section = config.federated.model_copy(update={"behaviour": behaviour, "boost": boost})
    seed = seed_draw(setting, Draw.POISON)
    return make_attackers(section, [group], setting.code, setting.users, setting.n_classes, seed)


def lay_trigger(setting: Setting, group: AttackGroup) -> Samples:
    """Return the evaluation inputs with the trigger on each."""
    return trigger_inputs(setting.evaluation, group, seed_draw(setting, Draw.TRIGGER))


def gather(setting: Setting, models: Sequence[Arrays]) -> Ensemble:
    """Return networks that can be asked."""
    weights = {
        str(number): {name: torch.tensor(value) for name, value in arrays.items()}
        for number, arrays in enumerate(models)
    }
    shape, cpu = plan_cell(setting).shape, torch.device("cpu")
    return Ensemble(tuple(weights), len(models), 0, setting.training, shape, cpu, "float32", weights, None)


def count(found: NDArray[np.bool_]) -> dict[str, int]:
    """Return how many of all are true, as records write it."""
    return share(int(found.sum()), found.size)
