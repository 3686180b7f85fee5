"""Configurations, the runner and its records: where what trains meets what proves."""

from codeward.experiments._config import FRACTIONS, RunConfig, load_config
from codeward.experiments._records import load_record, load_records, rate
from codeward.experiments._runner import RunFolder, run_experiment
from codeward.experiments._setting import deal_data, load_pair

__all__ = [
    "FRACTIONS",
    "RunConfig",
    "RunFolder",
    "deal_data",
    "load_config",
    "load_pair",
    "load_record",
    "load_records",
    "rate",
    "run_experiment",
]
