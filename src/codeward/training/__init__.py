"""Architectures, the model store, and the training of a code's sub-models. Never learns who attacks.

Names below are imported on first use, so that those who need no network do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "ARCHITECTURES": "_architectures",
    "MODERN": "_training_settings",
    "PRESETS": "_training_settings",
    "BatchStream": "_sub_models",
    "BatchedEnsemble": "_ensemble",
    "Cluster": "_ray_cluster",
    "Ensemble": "_ensemble",
    "ModelPlan": "_sub_models",
    "ModelStore": "_model_store",
    "SubModels": "_sub_models",
    "TrainingSettings": "_training_settings",
    "Weights": "_engines",
    "build_network": "_architectures",
    "choose_recipe": "_training_settings",
    "drop_users": "_sub_models",
    "fingerprint": "_architectures",
    "model_key": "_model_store",
    "plan_batches": "_sub_models",
    "plan_models": "_sub_models",
    "train_ensemble": "_train",
    "train_ensembles": "_train",
    "train_from": "_loop_engine",
    "vote": "_ensemble",
}

__all__ = [
    "ARCHITECTURES",
    "MODERN",
    "PRESETS",
    "BatchStream",
    "BatchedEnsemble",
    "Cluster",
    "Ensemble",
    "ModelPlan",
    "ModelStore",
    "SubModels",
    "TrainingSettings",
    "Weights",
    "build_network",
    "choose_recipe",
    "drop_users",
    "fingerprint",
    "model_key",
    "plan_batches",
    "plan_models",
    "train_ensemble",
    "train_ensembles",
    "train_from",
    "vote",
]

if TYPE_CHECKING:
    from codeward.training._architectures import ARCHITECTURES, build_network, fingerprint
    from codeward.training._engines import Weights
    from codeward.training._ensemble import BatchedEnsemble, Ensemble, vote
    from codeward.training._loop_engine import train_from
    from codeward.training._model_store import ModelStore, model_key
    from codeward.training._ray_cluster import Cluster
    from codeward.training._sub_models import BatchStream, ModelPlan, SubModels, drop_users, plan_batches, plan_models
    from codeward.training._train import train_ensemble, train_ensembles
    from codeward.training._training_settings import MODERN, PRESETS, TrainingSettings, choose_recipe


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"codeward.training.{_HOME[name]}"), name)
    raise AttributeError(f"module 'codeward.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
