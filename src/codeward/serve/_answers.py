"""The answers of the endpoint as its OpenAPI document states them, and what it knows: health, figures, incidents."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from codeward import __version__
from codeward.runs import is_superseded
from codeward.serve._convictions import gather_evidence
from codeward.serve._incident_ledger import Ledger
from codeward.serve._incidents import DamagedIncident
from codeward.serve._opening import GuardedRun

Probability = Field(ge=0, le=1)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(_Answer):
    """Why a request was not answered."""

    detail: str


class Suspect(_Answer):
    """A user of the most probable attacker set."""

    user: str
    column: int = Field(description="The user's column of the code.")
    probability: float = Field(ge=0, le=1, description="That the user is an attacker, given an attack.")


class Guarantee(_Answer):
    """What the code guarantees, whatever the input."""

    threat: Literal["deterministic", "arbitrary"]
    property: Literal["correct", "detect", "none"]
    k: int = Field(ge=0, description="Largest number of colluding users.")
    text: str


class Certificate(_Answer):
    """What holds for the votes of an input that is not flagged, if nobody tampered with them."""

    radius: int = Field(ge=0, description="No attack by this many users or fewer would change the label.")
    exact: bool = Field(description="False: the radius is a sound lower bound.")
    threat: Literal["deterministic", "arbitrary"]
    decoder: str
    text: str


class Prediction(_Answer):
    """The verdict on one input."""

    label: int | str = Field(description="The decoded label: its name, or its number where classes have none.")
    attack_probability: float = Probability
    flagged: bool = Field(description="The attack probability is above the threshold.")
    target: int | str | None = Field(description="What the trigger aims at; null unless flagged.")
    suspects: list[Suspect] = Field(description="Users in every nearly best explanation; empty unless flagged.")
    suspect_sets: list[list[str]] = Field(
        description="Attacker sets of at least a twentieth of the best posterior, best first; empty unless flagged."
    )
    more_sets: int = Field(ge=0, description="How many more of them there are.")
    user_probability: list[float] = Field(description="Per user: is an attacker, given an attack.")
    votes: list[int | str] = Field(description="What each sub-model says.")
    hit_models: list[int] = Field(description="Sub-models that learned from the most probable attackers.")
    guarantee: Guarantee
    certificate: Certificate | None = Field(
        description="Null unless asked for (certify=true), for a flagged input, and where searching takes too long."
    )
    digest: str = Field(description="SHA-256 of the input.")
    incident: int | None = Field(description="Number in the ledger; it is on disk before this answer is sent.")


class Predictions(_Answer):
    """The verdicts on a request's inputs, in order."""

    predictions: list[Prediction]


class Health(_Answer):
    """How the service is."""

    status: Literal["ok", "degraded", "failing"]
    version: str
    ledger: str = Field(description="ok, or why flagged inputs get 503.")
    models: str = Field(description="current, or why others should be served.")


class Picture(_Answer):
    """A test image of the run."""

    kind: Literal["clean", "triggered"]
    label: int | str = Field(description="The true label.")
    png: str = Field(description="The image as a data URL.")
    target: int | str | None
    planted_by: list[str] = Field(description="Users who planted the trigger in the simulation.")


class Gallery(_Answer):
    """Test images that come with the run."""

    pictures: list[Picture]


class Reported(_Answer):
    """One recorded incident."""

    id: int
    time: str = Field(description="ISO 8601, UTC.")
    label: int | str
    target: int | str
    attack_probability: float = Probability
    suspects: list[str] = Field(description="Users in every nearly best explanation.")
    suspect_sets: list[list[str]]
    more_sets: int
    user_probability: list[float] = Field(description="Per user of the code: is an attacker, given an attack.")
    votes: list[int | str]
    digest: str


class Damaged(_Answer):
    """A row of the ledger that is not as it was written; it is no evidence."""

    id: int
    damage: str


class Incidents(_Answer):
    """Recorded incidents of these models, newest first."""

    incidents: list[Reported | Damaged]


class EvidenceAnswer(_Answer):
    """What all incidents say together, one entry a target; see ``codeward ledger show``."""

    evidence: list[dict[str, Any]]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of the given error statuses."""
    return {status: {"model": Problem, "description": _MEANING[status]} for status in statuses}


_MEANING = {
    400: "The body cannot be read.",
    401: "No bearer token, or a wrong one.",
    404: "There is none.",
    408: "The body took too long to arrive.",
    413: "The body or the batch is too large.",
    415: "The content type is not one of those accepted.",
    421: "The Host header names another service.",
    422: "The inputs are not what the models take.",
    429: "Too many requests at once; see Retry-After.",
    503: "The ledger did not take an incident, so the answer is withheld; see Retry-After.",
    504: "The models took too long; see Retry-After.",
}


#: Paths with figures of their own.
PATHS = (
    "/predict",
    "/healthz",
    "/metrics",
    "/code",
    "/card",
    "/incidents",
    "/evidence",
    "/gallery",
    "/openapi.json",
    "/",
)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one application, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("codeward_requests", "Requests answered.", ("path", "status"), registry=self.registry)
        self._seconds = Histogram(
            "codeward_request_seconds", "Time to answer.", ("path",), buckets=_SECONDS, registry=self.registry
        )
        self.inputs = Counter("codeward_inputs", "Inputs classified.", ("flagged",), registry=self.registry)
        self.incidents = Counter("codeward_incidents", "Incidents recorded durably.", registry=self.registry)
        self.passes = Histogram(
            "codeward_pass_inputs",
            "Inputs of one pass over the models.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.waiting = Gauge("codeward_waiting_inputs", "Inputs waiting for the models.", registry=self.registry)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        known = path if path in PATHS else "/page" if path.startswith("/page/") else "other"
        self._requests.labels(known, str(status)).inc()
        self._seconds.labels(known).observe(seconds)

    def expose(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)


#: What the list of incidents says of each.
_LISTED = ("id", "time", "label", "target", "attack_probability", "more_sets", "user_probability", "votes", "digest")


class LedgerView:
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
                **{name: told for name, told in incident.to_json().items() if name in _LISTED},
                # The folder says who they are; a row of an older ledger has no names.
                "suspects": [code.user_name(user) for user in incident.suspects],
                "suspect_sets": [[code.user_name(user) for user in found] for found in incident.suspect_sets],
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
                self._weighed = [
                    evidence.to_json(self.run.guard.code) | {"target": self.run.guard.name_class(target)}
                    for target, evidence in found.items()
                ]
                self._newest = number
            return self._weighed


#: Seconds between looks, and after which a look that has not come back counts as a failure.
EVERY, PATIENCE = 5.0, 15.0


class HealthWatch:
    """Looks at ledger and run folder from a thread of its own, so that asking costs nothing and never waits.

    Parameters
    ----------
    ledger : Ledger
        Takes a small write every look.
    folder : path-like
        The run folder served.
    files : sequence of path-like
        What the models were opened with; changed on disk, the server serves old ones.
    """

    def __init__(self, ledger: Ledger, folder: str | os.PathLike[str], files: list[Path]) -> None:
        self.ledger, self.folder, self.files = ledger, Path(folder), files
        self._opened = self._stamps()
        self._takes, self._models, self._looked = True, "current", time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="codeward-health")

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._thread, self.look)
            await asyncio.sleep(EVERY)

    def look(self) -> None:
        """Try the ledger and compare the files."""
        try:
            self.ledger.probe()
            self._takes = True
        except OSError:
            self._takes = False
        if is_superseded(self.folder):
            self._models = "old: users were revoked from this run; serve the folder without them"
        elif self._stamps() != self._opened:
            self._models = "old: the run folder has changed; start again"
        else:
            self._models = "current"
        self._looked = time.monotonic()

    def note(self, recorded: bool) -> None:
        """Take note of whether incidents were recorded."""
        self._takes = recorded

    def close(self) -> None:
        """Stop looking."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def report(self) -> dict[str, Any]:
        """Return what was seen last: status, version, ledger, models. Nothing in it is a secret."""
        waited = time.monotonic() - self._looked
        ledger = "ok" if self._takes else "takes no incidents"
        if waited > PATIENCE:
            ledger = f"no answer for {waited:.0f} seconds"
        status = "failing" if ledger != "ok" else "ok" if self._models == "current" else "degraded"
        return {"status": status, "version": __version__, "ledger": ledger, "models": self._models}

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(file) for file in self.files]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
