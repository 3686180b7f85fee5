"""Configurations, the runner and its records: where what trains meets what proves."""

from codeward.experiments._config import FRACTIONS, RunConfig, load_config
from codeward.experiments._folder import RunFolder
from codeward.experiments._grid import GridCell, ask_grid, count_grid, draw_grid, list_cells, study_grid
from codeward.experiments._records import load_record, load_records, rate
from codeward.experiments._revocation import Outlook, Revocation, foresee_revocation, load_revocation
from codeward.experiments._runner import run_experiment
from codeward.experiments._served import ServedRun, load_served
from codeward.experiments._setting import deal_data, load_pair
from codeward.experiments._studies import plan_study
from codeward.experiments._unlearning import name_output, revoke_users

__all__ = [
    "FRACTIONS",
    "GridCell",
    "Outlook",
    "Revocation",
    "RunConfig",
    "RunFolder",
    "ServedRun",
    "ask_grid",
    "count_grid",
    "deal_data",
    "draw_grid",
    "foresee_revocation",
    "list_cells",
    "load_config",
    "load_pair",
    "load_record",
    "load_records",
    "load_revocation",
    "load_served",
    "name_output",
    "plan_study",
    "rate",
    "revoke_users",
    "run_experiment",
    "study_grid",
]
