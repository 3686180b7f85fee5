"""A folder of ``codeward train`` without some users: what saw them is trained again, the rest stays, byte for byte."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward.estimators._code_choice import CodeChoice
from codeward.estimators._guarded_plan import GuardedPlan, plan_training
from codeward.estimators._guarded_training import train_family, write_card, write_cell, write_record
from codeward.runs import Cell, Revocation, RunFolder, TrainConfig
from codeward.training import ModelPlan, ModelStore


def retrain_without(
    cell: Cell, old: RunFolder, revocation: Revocation, plans: Sequence[ModelPlan], store: ModelStore, progress: bool
) -> Cell:
    """Make the cell of a trained folder again without the revoked users.

    Exact unlearning: the revoked users' samples are taken out before anything is trained, validated or measured, so
    that every sub-model is the one that training from scratch without them gives.

    Parameters
    ----------
    cell : Cell
        Of the new folder, which has its code and configuration.
    old : RunFolder
        The folder before.
    revocation : Revocation
    plans : sequence of ModelPlan
        What is left to train, in the numbers of the original users.
    store : ModelStore
        Of the new folder.
    progress : bool

    Examples
    --------
    See `codeward.experiments.revoke_users`, which calls it.
    """
    begin, config = time.perf_counter(), old.config
    assert isinstance(config, TrainConfig)
    plan = reopen_plan(config, old.path, revocation)
    models = train_family(plan.data, plan.roles, plan.model, plans, store, config.seed, progress)
    made = write_cell(cell, plan.data, plan.roles, plan.model, models)
    gone = {"users": revocation.names(revocation.revoked), "state": revocation.digest}
    made = write_record(made, config, time.perf_counter() - begin, revoked=gone)
    write_card(made, plan)
    return made


def reopen_plan(config: TrainConfig, folder: str | os.PathLike[str], revocation: Revocation) -> GuardedPlan:
    """Read the data of a trained folder again, check that they are those, and take the revoked users' samples out."""
    if not config.train.data:
        raise InputError(f"{folder}: its data came from memory, so nothing can be trained again from here; fit anew")
    original = revocation.original
    choice = CodeChoice(original, config.code.attackers, config.code.guarantee, config.code.margin, ())
    plan = plan_training(config, code=choice)
    for what in ("data_digest", "trusted_digest", "test_digest"):
        if getattr(plan.config.train, what) != getattr(config.train, what):
            told = what.removesuffix("_digest")
            raise InputError(
                f"{folder}: the {told} at {getattr(config.train, told)} are not those it was trained on; restore them"
            )
    if tuple(original.user_name(user) for user in range(original.n_users)) != plan.data.user_names:
        raise InputError(f"{folder}: the users in the data are not those of the code; was the folder edited?")
    return replace(plan, roles=_take_out(plan, set(revocation.revoked)))


def _take_out(plan: GuardedPlan, gone: set[int]) -> Any:
    roles = plan.roles
    nothing = np.zeros(0, dtype=np.int64)
    training = tuple(nothing if user in gone else own for user, own in enumerate(roles.training))
    kept = {}
    for name in ("validation", "clean"):
        given = getattr(roles, name)
        if given.owners is not None:
            given = given.take(np.flatnonzero(~np.isin(given.owners, list(gone))))
        kept[name] = given
    return replace(roles, training=training, **kept)
