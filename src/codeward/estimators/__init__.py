"""Guarded models on one's own data: `CodedClassifier` and the engine of ``codeward train``; torch for images only."""

from codeward.estimators._classifier import CodedClassifier
from codeward.estimators._code_choice import CodeChoice, choose_code
from codeward.estimators._family import load_sub_models
from codeward.estimators._fitted_folders import plan_collected, save_heads
from codeward.estimators._guarded_plan import GuardedPlan, plan_training
from codeward.estimators._guarded_training import retrain_without, train_guarded, write_folder
from codeward.estimators._model_choice import ModelChoice, choose_model
from codeward.estimators._table_models import TableModels

__all__ = [
    "CodeChoice",
    "CodedClassifier",
    "GuardedPlan",
    "ModelChoice",
    "TableModels",
    "choose_code",
    "choose_model",
    "load_sub_models",
    "plan_collected",
    "plan_training",
    "retrain_without",
    "save_heads",
    "train_guarded",
    "write_folder",
]
