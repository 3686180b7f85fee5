"""Heads that were fitted elsewhere, in the folder of a run: their plan, their votes on the operator's own samples."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from codeward.codes import Code, count_attacker_sets, inspect
from codeward.data import UserData
from codeward.estimators._code_choice import CodeChoice
from codeward.estimators._guarded_plan import GuardedPlan, settle_plan
from codeward.estimators._guarded_training import write_folder
from codeward.estimators._model_choice import choose_heads
from codeward.runs import AttackSection, Cell, DecoderSection, RunFolder, TrainConfig, TrainSection
from codeward.training import ModelStore

#: Sets of attackers up to which the decoder expects more of them.
_MOST_SETS = 65_536


def plan_collected(test: UserData, code: Code, heads: Any, told: TrainSection, sizes: Sequence[int]) -> GuardedPlan:
    """Return the plan of heads that were fitted elsewhere, from statistics that users sent; only votes are missing.

    Parameters
    ----------
    test : UserData
        Labelled samples of the operator, classes declared: half of them fit the decoder, half measure.
    code : Code
    heads : codeward.training.heads.HeadSet
    told : TrainSection
        Says as ``trusted`` where ``test`` is.
    sizes : sequence of int
        How many samples each user has; nobody else has them.

    Examples
    --------
    >>> from codeward.data import load_user_data
    >>> from codeward.training.backbones import make_backbone
    >>> from codeward.training.heads import fit_heads
    >>> code, X = Code([[1, 0], [0, 1]], users=["ann", "bob"]), np.eye(4)
    >>> heads = fit_heads(X, [0, 1, 0, 1], [0, 0, 1, 1], code, 2, backbone=make_backbone("features", sample=X))
    >>> test = load_user_data((X, ["no", "yes", "no", "yes"]))
    >>> plan = plan_collected(test, code, heads, TrainSection(trusted="test.npz"), [2, 2])
    >>> plan.model.name, plan.roles.trusted, plan.config.users
    ('ridge head on features', True, 2)
    """
    test = replace(test, hashed=False)
    names = tuple(code.user_name(user) for user in range(code.n_users))
    nobody = replace(test.take(np.zeros(0, np.int64)), user_names=names)
    told = told.model_copy(update={"backbone": heads.backbone.name, "ridge": heads.ridge})
    title = Path(told.trusted or "own data").stem
    config = TrainConfig(
        dataset=title,
        users=code.n_users,
        attack=AttackSection(attackers=(0,)),
        decoder=DecoderSection(name="bayes", max_attackers=min(DecoderSection().max_attackers, code.n_users)),
        train=told,
    )
    k = max(1, inspect(code).correct)
    while k > 1 and count_attacker_sets(code.n_users, k) > _MOST_SETS:  # what the decoder looks through
        k -= 1
    choice = CodeChoice(code, k, "given", 1, ())
    plan = settle_plan(config, nobody, test, None, choose_heads(heads.backbone, heads.ridge, test.schema), choice)
    plan.roles.check()
    return replace(plan, roles=replace(plan.roles, training=tuple(np.arange(size) for size in sizes)))


def save_heads(
    folder: str | Path,
    heads: Any,
    code: Code,
    test: UserData,
    told: TrainSection | None = None,
    sizes: Sequence[int] | None = None,
    data_dir: str | Path | None = None,
    **more: Any,
) -> Cell:
    """Write heads that are fitted into a run folder to serve, certify and report: models, votes, record, card.

    Parameters
    ----------
    folder : path-like
    heads : codeward.training.heads.HeadSet
        In the order of the code's rows, on a backbone that has a name.
    code : Code
    test : UserData
        Labelled samples of the operator, classes declared: half of them fit the decoder, half measure.
    told, sizes
        As for `plan_collected`; without, nothing is said of where ``test`` is and of how many samples users have.
    data_dir : path-like, optional
        Where data sets with a name are.
    **more
        For the record.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.data import load_user_data
    >>> from codeward.training.backbones import make_backbone
    >>> from codeward.training.heads import fit_heads
    >>> code, X, y = Code([[1, 0], [0, 1], [1, 1]]), np.eye(4)[[0, 1, 0, 1]], [0, 1, 0, 1]
    >>> heads = fit_heads(X, y, [0, 0, 1, 1], code, 2, backbone=make_backbone("features", sample=X))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cell = save_heads(folder, heads, code, load_user_data((X, y), classes=("0", "1")))
    >>> cell.record["figures"]["clean"]["all"]["plurality"]
    {'count': 2, 'of': 2}
    """
    begin, place = time.perf_counter(), RunFolder(folder)
    plan = plan_collected(test, code, heads, told or TrainSection(), sizes or [0] * code.n_users)
    place.open(plan.config.model_copy(update={"data_dir": data_dir and Path(data_dir)}), code)
    heads.save(ModelStore(place.store))
    return write_folder(Cell(place, 0, 0), plan, heads, begin, **more)[0]
