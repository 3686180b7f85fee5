"""A guarded endpoint, the ledger of its incidents, and the evidence they gather.

Writing incidents needs a database only; what decodes votes is imported on first use.
"""

from typing import TYPE_CHECKING

from codeward._importing import attach
from codeward.serve._database import Verification
from codeward.serve._incident_ledger import DEFAULT_LEDGER, Ledger
from codeward.serve._incidents import DamagedIncident, Incident, find_incidents

if TYPE_CHECKING:
    from codeward.serve._access import Limits, ServeSettings, read_token
    from codeward.serve._alarms import bet_on_small, compute_p_values, find_alarms
    from codeward.serve._convictions import Examiner, TargetEvidence, gather_evidence
    from codeward.serve._endpoint import make_app, serve_run
    from codeward.serve._opening import GuardedRun, make_examiner, name_classes, open_run

__all__ = [
    "DEFAULT_LEDGER",
    "DamagedIncident",
    "Examiner",
    "GuardedRun",
    "Incident",
    "Ledger",
    "Limits",
    "ServeSettings",
    "TargetEvidence",
    "Verification",
    "bet_on_small",
    "compute_p_values",
    "find_alarms",
    "find_incidents",
    "gather_evidence",
    "make_app",
    "make_examiner",
    "name_classes",
    "open_run",
    "read_token",
    "serve_run",
]

__getattr__, _ = attach(__name__)
