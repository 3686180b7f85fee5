"""The incident ledger and the evidence it gathers.

Writing incidents needs a database only; what decodes votes is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codeward.serve._incident_ledger import DEFAULT_LEDGER, Ledger, Verification
from codeward.serve._incidents import DamagedIncident, Incident, find_incidents

if TYPE_CHECKING:
    from codeward.serve._convictions import Evidence, Examiner, gather_evidence
    from codeward.serve._opening import GuardedRun, load_models, make_examiner, open_run

_HOME = {
    "Evidence": "codeward.serve._convictions",
    "Examiner": "codeward.serve._convictions",
    "GuardedRun": "codeward.serve._opening",
    "gather_evidence": "codeward.serve._convictions",
    "load_models": "codeward.serve._opening",
    "make_examiner": "codeward.serve._opening",
    "open_run": "codeward.serve._opening",
}

__all__ = [
    "DEFAULT_LEDGER",
    "DamagedIncident",
    "Evidence",
    "Examiner",
    "GuardedRun",
    "Incident",
    "Ledger",
    "Verification",
    "find_incidents",
    "gather_evidence",
    "load_models",
    "make_examiner",
    "open_run",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'codeward.serve' has no attribute {name!r}")
