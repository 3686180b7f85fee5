"""The sub-models of a finished run, found again for serving; nothing is trained."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from codeward._errors import InputError
from codeward.attacks import AttackGroup, poison_users, trigger_inputs
from codeward.certificates import Threat
from codeward.data import Samples
from codeward.experiments._cells import draw_attack
from codeward.experiments._federated_run import find_models
from codeward.experiments._runner import model_seed
from codeward.experiments._setting import Draw, Setting, load_pair, prepare_setting
from codeward.experiments._unlearning import plan_remaining
from codeward.runs import FederatedConfig, RunFolder, load_revocation
from codeward.training import Ensemble, ModelPlan, ModelStore, build_network, fingerprint, model_key


@dataclass(frozen=True)
class ServedRun:
    """One cell of a run folder, or of a state of it after a revocation, ready to answer.

    Attributes
    ----------
    setting : Setting
        Data, training recipe and original code of the repeat, before anybody attacks or is revoked.
    groups : tuple of AttackGroup
        Who attacks in the simulation; none where the cell has no attackers.
    ensemble : Ensemble
        The sub-models that are left, in the order of the rows of the present code, on the CPU.
    """

    setting: Setting
    groups: tuple[AttackGroup, ...]
    ensemble: Ensemble

    @property
    def threat(self) -> Threat:
        """What users could do to a model they reach: anything where they sent updates (DESIGN.md, threat models)."""
        return "arbitrary" if isinstance(self.setting.config, FederatedConfig) else "deterministic"

    def triggered(self, samples: Samples, group: AttackGroup) -> Samples:
        """Lay a group's trigger over inputs, as the run did."""
        places = [self.setting.config.seed, self.setting.repeat, int(Draw.TRIGGER)]
        return trigger_inputs(samples, group, seed=places)


def load_served(folder: str | os.PathLike[str], repeat: int, n_attackers: int) -> ServedRun:
    """Find the sub-models of one cell of a run folder in its store.

    A model's key says on what it was trained, so a run made on a GPU is found, and served, on a machine without one.

    Raises
    ------
    InputError
        When a sub-model is missing or damaged: what is served is what the records describe, or nothing.
    """
    place = RunFolder(Path(folder))
    config = place.config
    if not place.record(repeat, n_attackers).is_file():
        raise InputError(f"{place.path}: no record of repeat {repeat} with {n_attackers} attackers")
    # Who was revoked stays in the numbering: seeds, keys and the simulated attack come from the original users.
    revocation = load_revocation(place.path)
    setting = prepare_setting(config, repeat, load_pair(config), revocation.original)
    groups = tuple(draw_attack(setting, n_attackers))
    if isinstance(config, FederatedConfig):
        return ServedRun(setting, groups, find_models(setting, n_attackers, place))
    users = poison_users(setting.users, groups, seed=[config.seed, repeat, int(Draw.POISON)])
    store = ModelStore(config.store or place.path / "store")
    plans = plan_remaining(revocation, model_seed(setting))
    return ServedRun(setting, groups, _find_ensemble(setting, plans, users, store, place.path))


def _find_ensemble(
    setting: Setting, plans: Sequence[ModelPlan], users: Sequence[Samples], store: ModelStore, folder: Path
) -> Ensemble:
    settings = setting.training
    channels, height, width = setting.evaluation.images.shape[1:]
    shape = (int(channels), int(height), int(width))
    marks = fingerprint(build_network(settings.architecture, shape, settings.n_classes, 0))
    digests = [samples.digest() for samples in users]
    # Where and how the run trained is part of every key and is written nowhere else: a dozen guesses, one hash each.
    for device, engine, precision in product(("cpu", "cuda"), ("stacked", "loop", "lanes"), ("float32", "bfloat16")):
        computation = f"{device} {engine} {precision}"
        keys = tuple(model_key(plan, digests, settings, marks, computation) for plan in plans)
        distinct = tuple(dict.fromkeys(keys))
        if all(store.holds(key) for key in distinct):
            cpu = torch.device("cpu")
            return Ensemble(keys, 0, len(distinct), settings, shape, cpu, "float32", {}, store)
    raise InputError(
        f"{folder}: the store lacks sub-models of repeat {setting.repeat} (moved, damaged, or of another version); "
        f"codeward run {folder / 'config.yaml'} -o {folder} trains what is missing"
    )
