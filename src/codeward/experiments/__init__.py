"""Simulated attacks on a code: data, attack, training, votes, records. Where what trains meets what proves."""

from codeward.experiments._federated_run import collect_federation, collect_one_round, plan_cell, run_federated
from codeward.experiments._malicious_clients import (
    MaliciousUpdate,
    choose_targets,
    load_attacker,
    make_attackers,
    save_attackers,
)
from codeward.experiments._runner import Experiment, holds_models, run_experiment, vote_cell
from codeward.experiments._setting import (
    Draw,
    Setting,
    choose_training,
    load_pair,
    prepare_setting,
    settle_users,
    split_data,
)
from codeward.experiments._unlearning import name_output, revoke_users
from codeward.runs import count_votes, record_cell

__all__ = [
    "Draw",
    "Experiment",
    "MaliciousUpdate",
    "Setting",
    "choose_targets",
    "choose_training",
    "collect_federation",
    "collect_one_round",
    "count_votes",
    "holds_models",
    "load_attacker",
    "load_pair",
    "make_attackers",
    "name_output",
    "plan_cell",
    "prepare_setting",
    "record_cell",
    "revoke_users",
    "run_experiment",
    "run_federated",
    "save_attackers",
    "settle_users",
    "split_data",
    "vote_cell",
]
