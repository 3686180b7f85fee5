"""Federated training of a code's sub-models: users keep their data, the server enforces the code.

The Flower components are `codeward.federated.server_app:app` and `codeward.federated.client_app:app`; nothing here
imports Flower, and what one round needs of heads and backbones is imported when it is asked for.
"""

from typing import TYPE_CHECKING

from codeward._importing import attach
from codeward.federated._federation import FederatedResult, Federation, FederationPlan, RoundReport, derive_seed
from codeward.federated._federation_folder import FederationFolder
from codeward.federated._flower_simulation import (
    CLIENT_APP,
    SERVER_APP,
    SimulatedFederation,
    simulate_federation,
    simulate_federations,
)
from codeward.federated._local_training import load_samples, save_samples, train_federated, train_model, train_update
from codeward.federated._protocol import Arrays, Assignment, FederatedSettings, Parcel, Reply, Update, answer
from codeward.federated._replies import Checked, Refusal, check_reply, combine

if TYPE_CHECKING:
    from codeward.federated._one_round import (
        ONE_ROUND_FILE,
        STATISTICS,
        OneRound,
        OneRoundPlan,
        load_one_round,
        make_statistics,
        save_statistics,
    )

__all__ = [
    "CLIENT_APP",
    "ONE_ROUND_FILE",
    "SERVER_APP",
    "STATISTICS",
    "Arrays",
    "Assignment",
    "Checked",
    "FederatedResult",
    "FederatedSettings",
    "Federation",
    "FederationFolder",
    "FederationPlan",
    "OneRound",
    "OneRoundPlan",
    "Parcel",
    "Refusal",
    "Reply",
    "RoundReport",
    "SimulatedFederation",
    "Update",
    "answer",
    "check_reply",
    "combine",
    "derive_seed",
    "load_one_round",
    "load_samples",
    "make_statistics",
    "save_samples",
    "save_statistics",
    "simulate_federation",
    "simulate_federations",
    "train_federated",
    "train_model",
    "train_update",
]

__getattr__, __dir__ = attach(__name__)
