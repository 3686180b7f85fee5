"""How a federation trains: rounds, local work, patience, and how the replies of a row become one model."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from codeward._errors import InputError

RULES = ("mean", "trimmed-mean", "median")


@dataclass(frozen=True)
class FederatedSettings:
    """What the server decides before the first round; the same for every sub-model.

    Attributes
    ----------
    rounds : int
    local_epochs : int
        Epochs over its own data that a user trains each of its models for in a round.
    rule : {"mean", "trimmed-mean", "median"}
        How the replies for one model are combined. ``mean`` weighs users by their capped sample counts; the robust
        rules go coordinate by coordinate and count every user once, since a sample count is a client's own claim.
    trim : int
        ``trimmed-mean``: how many of the largest and of the smallest values of a coordinate are left out.
    clip_norm : float, optional
        Largest Euclidean length of an update (reply minus the round's starting weights) for one model; a longer one is
        scaled down to it before the rule.
    sample_cap : int
        A user weighs at most this many samples.
    sample_limit : int
        A reply that claims more samples is refused: nobody in this federation holds so many.
    sample : int, optional
        Users of each column who are asked in a round, drawn anew every round from the plan's seed; by default all.
        Users share a column where they are grouped (see docs/federated.md).
    timeout : float
        Seconds a round waits for replies; what is late or missing does not count.
    """

    rounds: int = 10
    local_epochs: int = 1
    rule: str = "mean"
    trim: int = 1
    clip_norm: float | None = None
    sample_cap: int = 10_000
    sample_limit: int = 10_000_000
    sample: int | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for name in ("rounds", "local_epochs", "trim", "sample_cap", "sample_limit", "sample"):
            value = getattr(self, name)
            if name == "sample" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"federated.{name}: expected a positive whole number, got {value!r}")
        if self.rule not in RULES:
            raise InputError(f"federated.rule: expected one of {', '.join(RULES)}, got {self.rule!r}")
        if self.clip_norm is not None and not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise InputError(f"federated.clip_norm: expected a positive number, got {self.clip_norm!r}")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise InputError(f"federated.timeout: expected a positive number of seconds, got {self.timeout!r}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON that the constructor takes back."""
        return asdict(self)

    @property
    def identity(self) -> str:
        """Canonical text of what decides the bytes of a model, beside the replies and their weights."""
        names = ("local_epochs", "rule", "trim", "clip_norm")
        return json.dumps({name: getattr(self, name) for name in names}, sort_keys=True)
