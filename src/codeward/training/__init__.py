"""Architectures, the model store, and the training of a code's sub-models. Never learns who attacks."""

from codeward.training._architectures import ARCHITECTURES, build_network, fingerprint
from codeward.training._batched_inference import BatchedEnsemble
from codeward.training._ensemble import Ensemble, vote
from codeward.training._jobs import Weights
from codeward.training._loop_engine import train_from
from codeward.training._model_store import ModelStore, model_key
from codeward.training._plan import BatchStream, ModelPlan, drop_users, plan_batches, plan_models
from codeward.training._ray_cluster import Cluster
from codeward.training._train import train_ensemble, train_ensembles
from codeward.training._training_settings import PRESETS, TrainingSettings

__all__ = [
    "ARCHITECTURES",
    "PRESETS",
    "BatchStream",
    "BatchedEnsemble",
    "Cluster",
    "Ensemble",
    "ModelPlan",
    "ModelStore",
    "TrainingSettings",
    "Weights",
    "build_network",
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
