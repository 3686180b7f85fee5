"""Configurations, the runner and its records: where what trains meets what proves."""

from codeward.experiments._cells import ask_cell, draw_attack
from codeward.experiments._federated_run import collect_federation, find_models, plan_cell, run_federated
from codeward.experiments._malicious_clients import MaliciousUpdate, choose_targets, make_attackers
from codeward.experiments._runner import model_seed, record_cell, run_experiment
from codeward.experiments._served import ServedRun, load_served
from codeward.experiments._setting import Draw, Setting, choose_training, deal_data, load_pair, prepare_setting
from codeward.experiments._unlearning import name_output, revoke_users
from codeward.runs import (
    ALARM,
    FRACTIONS,
    Outlook,
    Revocation,
    RunConfig,
    RunFolder,
    foresee_revocation,
    load_config,
    load_record,
    load_records,
    load_revocation,
    rate,
    share,
)

__all__ = [
    "ALARM",
    "FRACTIONS",
    "Draw",
    "MaliciousUpdate",
    "Outlook",
    "Revocation",
    "RunConfig",
    "RunFolder",
    "ServedRun",
    "Setting",
    "ask_cell",
    "choose_targets",
    "choose_training",
    "collect_federation",
    "deal_data",
    "draw_attack",
    "find_models",
    "foresee_revocation",
    "load_config",
    "load_pair",
    "load_record",
    "load_records",
    "load_revocation",
    "load_served",
    "make_attackers",
    "model_seed",
    "name_output",
    "plan_cell",
    "prepare_setting",
    "rate",
    "record_cell",
    "revoke_users",
    "run_experiment",
    "run_federated",
    "share",
]
