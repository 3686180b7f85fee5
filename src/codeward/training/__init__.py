"""Architectures, the model store, and the training of a code's sub-models. Never learns who attacks.

Names below are imported on first use, so that those who need no network do not wait for torch.
"""

from typing import TYPE_CHECKING

from codeward._importing import attach

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

__getattr__, __dir__ = attach(__name__)
