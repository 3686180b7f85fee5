"""Reading the ledger for the page: incidents by name, and their evidence, computed when it has changed."""

import threading
from typing import Any

from codeward.serve._evidence import gather_evidence
from codeward.serve._incident import DamagedIncident
from codeward.serve._ledger import Ledger
from codeward.serve._opening import GuardedRun


class EvidenceDesk:
    """Incidents and evidence of the models that serve; other models may share the ledger and are left out.

    Parameters
    ----------
    run : GuardedRun
    ledger : Ledger
    """

    def __init__(self, run: GuardedRun, ledger: Ledger) -> None:
        self.run, self.ledger = run, ledger
        self._lock = threading.Lock()
        self._newest = -1
        self._weighed: list[dict[str, Any]] = []

    def list_incidents(self, limit: int, after: int) -> list[dict[str, Any]]:
        """Return incidents with a number above ``after``, newest first."""
        code = self.run.guard.code
        found = self.ledger.entries(
            limit=limit, run=self.run.cell.id, code_digest=code.digest, after=after, newest_first=True
        )
        return [
            incident.to_json()
            if isinstance(incident, DamagedIncident)
            else {
                "id": incident.id,
                "time": incident.to_json()["time"],
                "label": incident.label,
                "target": incident.target,
                "attack_probability": incident.attack_probability,
                "suspects": [code.user_name(user) for user in incident.suspects],
                "votes": list(incident.votes),
                "digest": incident.digest,
            }
            for incident in found
        ]

    def weigh(self) -> list[dict[str, Any]]:
        """Return the evidence of every target; computed once for each newest incident."""
        with self._lock:
            newest = self.list_incidents(limit=1, after=0)
            number = newest[0]["id"] if newest else 0
            if number != self._newest:
                found = gather_evidence(self.ledger, self.run.examiner, self.run.cell.id)
                self._weighed = [evidence.to_json(self.run.guard.code) for evidence in found.values()]
                self._newest = number
            return self._weighed
