"""The incident ledger and the evidence it gathers. Importing it loads no web framework."""

from codeward.serve._incident import Incident, find_incidents
from codeward.serve._ledger import DEFAULT_LEDGER, Ledger

__all__ = ["DEFAULT_LEDGER", "Incident", "Ledger", "find_incidents"]
