"""Configurations, the runner and its records: where what trains meets what proves."""

from codeward.experiments._cells import ask_cell, draw_attack, name_triggered, read_about
from codeward.experiments._config import FRACTIONS, RunConfig, load_config
from codeward.experiments._folder import RunFolder
from codeward.experiments._measure import ALARM
from codeward.experiments._records import load_record, load_records, rate, share
from codeward.experiments._revocation import Outlook, Revocation, foresee_revocation, load_revocation
from codeward.experiments._runner import model_seed, record_cell, run_experiment
from codeward.experiments._served import ServedRun, load_served
from codeward.experiments._setting import Draw, Setting, choose_training, deal_data, load_pair, prepare_setting
from codeward.experiments._unlearning import name_output, revoke_users

__all__ = [
    "ALARM",
    "FRACTIONS",
    "Draw",
    "Outlook",
    "Revocation",
    "RunConfig",
    "RunFolder",
    "ServedRun",
    "Setting",
    "ask_cell",
    "choose_training",
    "deal_data",
    "draw_attack",
    "foresee_revocation",
    "load_config",
    "load_pair",
    "load_record",
    "load_records",
    "load_revocation",
    "load_served",
    "model_seed",
    "name_output",
    "name_triggered",
    "prepare_setting",
    "rate",
    "read_about",
    "record_cell",
    "revoke_users",
    "run_experiment",
    "share",
]
