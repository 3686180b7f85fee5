"""From the models of a consortium to a run folder: votes on data the server holds, and a record."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward.experiments._federation import finish_cell
from codeward.experiments._setting import Setting, load_pair, prepare_setting
from codeward.federated import FederationFolder, FederationPlan
from codeward.runs import (
    AttackSection,
    CodeSection,
    FederatedConfig,
    FederatedSection,
    RunFolder,
    TrainingSection,
    load_record,
)
from codeward.training import ModelStore

#: How many epochs a user trains and in which number format is the federation's own business, not the recipe's; how
#: pixels are scaled is the plan's, whatever the mean of these data.
_NOT_COMPARED = ("epochs", "precision", "mean", "std")


def collect_federation(
    server: str | os.PathLike[str],
    dataset: str,
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Make a run folder from a finished federation, so that decode, certify, report and serve work on it.

    The models are asked about the test part of a data set that the server holds; no user's data are needed, and nothing
    is said about who attacked: the record is that of zero known attackers.

    Parameters
    ----------
    server : path-like
        Folder with the plan and the result (``server/federation`` of a consortium).
    dataset : str
        A data set of the catalogue or an .npz; half of its test part estimates confusion matrices, half is counted.
    folder : path-like
        The run folder to make.
    data_dir : path-like, optional
        Where data sets are.

    Returns
    -------
    dict
        The record.
    """
    source, place = FederationFolder(Path(server)), RunFolder(Path(folder))
    plan, result = source.load_plan(), source.load_result()
    if place.path.exists():
        raise InputError(f"{place.path} exists; choose another folder with -o")
    if len(result.models) != plan.code.n_models:
        raise InputError(f"{source.path}: {len(result.models)} models for a code of {plan.code.n_models} rows")
    config = _describe(plan, dataset, data_dir)
    setting = prepare_setting(config, 0, load_pair(config), plan.code)
    _compare(setting, plan, dataset)
    setting = replace(setting, training=plan.training)

    write_text_atomic(place.path / "config.yaml", config.to_yaml())
    plan.code.save(place.path / "code.json")
    seconds = round(sum(line["seconds"] for line in source.read_rounds()), 3)
    about = {"engine": "consortium", "seconds": seconds}
    finish_cell(setting, 0, result, place, ModelStore(place.path / "store"), about)
    return load_record(place.record(0, 0))


def _describe(plan: FederationPlan, dataset: str, data_dir: str | os.PathLike[str] | None) -> FederatedConfig:
    """Return the configuration of a federated run that would have had this plan."""
    names = ("architecture", "batch_size", "learning_rate", "weight_decay", "augmentation")
    return FederatedConfig(
        dataset=dataset,
        data_dir=None if data_dir is None else Path(data_dir),
        users=plan.code.n_users,
        # The run folder keeps its own copy and reads that.
        code=CodeSection(file=Path("code.json")),
        attack=AttackSection(attackers=(0,)),
        training=TrainingSection(**{name: getattr(plan.training, name) for name in names}),
        seed=plan.seed,
        federated=FederatedSection(**plan.settings.to_json()),
    )


def _compare(setting: Setting, plan: FederationPlan, dataset: str) -> None:
    """Refuse data that the models were not made for: they would answer, and mean nothing."""
    shape = tuple(int(size) for size in setting.evaluation.images.shape[1:])
    if shape != plan.shape:
        raise InputError(f"{dataset}: images {shape}, but the models take {plan.shape}")
    here, there = asdict(setting.training), asdict(plan.training)
    for name in here:
        if name not in _NOT_COMPARED and here[name] != there[name]:
            raise InputError(f"{dataset}: {name} is {here[name]}, but the models were trained with {there[name]}")
