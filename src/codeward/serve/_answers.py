"""The answers of the endpoint, as its OpenAPI document states them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
