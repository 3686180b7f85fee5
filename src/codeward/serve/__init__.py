"""The incident ledger and the evidence it gathers.

Writing incidents needs a database only; what decodes votes is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codeward.serve._incident import DamagedIncident, Incident, find_incidents
from codeward.serve._ledger import DEFAULT_LEDGER, Ledger, Verification

if TYPE_CHECKING:
    from codeward.serve._cell import RunCell, find_cell, list_cells
    from codeward.serve._evidence import Evidence, Examiner, gather_evidence

_HOME = {
    "Evidence": "codeward.serve._evidence",
    "Examiner": "codeward.serve._evidence",
    "RunCell": "codeward.serve._cell",
    "find_cell": "codeward.serve._cell",
    "gather_evidence": "codeward.serve._evidence",
    "list_cells": "codeward.serve._cell",
}

__all__ = [
    "DEFAULT_LEDGER",
    "DamagedIncident",
    "Evidence",
    "Examiner",
    "Incident",
    "Ledger",
    "RunCell",
    "Verification",
    "find_cell",
    "find_incidents",
    "gather_evidence",
    "list_cells",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'codeward.serve' has no attribute {name!r}")
