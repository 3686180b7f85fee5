"""Architectures, the model store, and the training of a code's sub-models. Never learns who attacks."""

from codeward.training._architectures import ARCHITECTURES, build_network, fingerprint
from codeward.training._ensemble import Ensemble, vote
from codeward.training._jobs import Weights
from codeward.training._loop import train_from
from codeward.training._plan import BatchStream, ModelPlan, drop_users, plan_batches, plan_models
from codeward.training._ray import Cluster, check_address
from codeward.training._settings import PRESETS, TrainingSettings
from codeward.training._stacked import is_compilable
from codeward.training._store import ModelStore, model_key
from codeward.training._train import train_ensemble, train_ensembles

__all__ = [
    "ARCHITECTURES",
    "PRESETS",
    "BatchStream",
    "Cluster",
    "Ensemble",
    "ModelPlan",
    "ModelStore",
    "TrainingSettings",
    "Weights",
    "build_network",
    "check_address",
    "drop_users",
    "fingerprint",
    "is_compilable",
    "model_key",
    "plan_batches",
    "plan_models",
    "train_ensemble",
    "train_ensembles",
    "train_from",
    "vote",
]
