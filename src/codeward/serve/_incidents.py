"""An incident: one input that looked triggered, with what the models said about it; and its row in a database."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sqlalchemy import Row

from codeward._errors import InputError
from codeward._files import format_csv
from codeward.serve._database import digest_row

if TYPE_CHECKING:
    from codeward.codes import Code
    from codeward.decoding import Decoded

_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Longest run id and idempotency key.
MAX_NAME = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Columns of an export as CSV.
CSV_COLUMNS = (
    "id",
    "time",
    "run",
    "target",
    "label",
    "attack_probability",
    "suspects",
    "votes",
    "digest",
    "code_digest",
)


#: Fields in the column of suspects.
_SUSPECTED = ("suspects", "suspect_sets", "more_sets", "classes", "users")
#: Fields that are JSON as they are.
_PLAIN = ("more_sets", "attack_probability", "digest", "code_digest", "run", "threshold", "key")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Incident:
    """One alarm, as the ledger keeps it; nothing of the input itself but its digest.

    Attributes
    ----------
    votes : tuple of int, length m
        What each sub-model said.
    attack_probability : float
        The decoder's, in 0..1.
    label, target : int
        The decoded label (-1: no verdict) and the most probable target given an attack (-1: none).
    suspects : tuple of int
        Users in every nearly best explanation, as columns of the code; nobody where two have nobody in common.
    user_probability : tuple of float, length n
        Posterior that each user is an attacker, given an attack.
    digest : str
        SHA-256 of the input, in hex. Evidence counts an input once however often it is sent.
    code_digest, run : str
        `Code.digest` and the id of the models that voted: evidence never mixes votes of different models.
    threshold : float
        Attack probability above which the endpoint recorded incidents: evidence compares like with like.
    suspect_sets : tuple of tuple of int
        The nearly best explanations, best first.
    more_sets : int
        How many more there are.
    classes, users : tuple of (int, str)
        Names of the classes and users that occur above, where they have names.
    time : datetime
        Aware; kept to the microsecond, in UTC.
    key : str or None
        Idempotency key: a second incident with the same key is the first one, sent again.
    id : int or None
        Given by the ledger; None before it is recorded.

    Examples
    --------
    >>> incident = Incident((3, 3, 7), 0.9, 7, 3, (2,), (0.0, 0.1, 1.0), "a" * 64, "b" * 64, "my run")
    >>> incident.to_json()["suspects"]
    [2]
    """

    votes: tuple[int, ...]
    attack_probability: float
    label: int
    target: int
    suspects: tuple[int, ...]
    user_probability: tuple[float, ...]
    digest: str
    code_digest: str
    run: str
    threshold: float = 0.5
    suspect_sets: tuple[tuple[int, ...], ...] = ()
    more_sets: int = 0
    classes: tuple[tuple[int, str], ...] = ()
    users: tuple[tuple[int, str], ...] = ()
    time: datetime = field(default_factory=_now)
    key: str | None = None
    id: int | None = None

    def __post_init__(self) -> None:
        if not self.votes or any(vote < 0 for vote in self.votes):
            raise InputError("incident: votes must be classes, 0 or more, one a sub-model")
        if not 0 <= self.attack_probability <= 1:
            raise InputError(f"incident: attack_probability must be in 0..1, got {self.attack_probability}")
        if not 0 <= self.threshold <= 1:
            raise InputError(f"incident: threshold must be in 0..1, got {self.threshold}")
        if self.label < -1 or self.target < -1:
            raise InputError("incident: label and target must be classes, or -1 for none")
        named = {*self.suspects, *(user for found in self.suspect_sets for user in found)}
        if any(not 0 <= user < len(self.user_probability) for user in named):
            raise InputError("incident: a suspect is not among the users that user_probability lists")
        if self.more_sets < 0 or any(not isinstance(name, str) for _, name in (*self.classes, *self.users)):
            raise InputError("incident: names must be texts, and more_sets a number")
        if any(not isfinite(value) or not 0 <= value <= 1 for value in self.user_probability):
            raise InputError("incident: user_probability must be in 0..1")
        for name in ("digest", "code_digest"):
            if not _DIGEST.fullmatch(getattr(self, name)):
                raise InputError(f"incident: {name} must be a SHA-256 in hex, 64 digits")
        if not 0 < len(self.run) <= MAX_NAME or not 0 < len("x" if self.key is None else self.key) <= MAX_NAME:
            raise InputError(f"incident: run and key must have 1 to {MAX_NAME} characters")
        if "\0" in self.run or "\0" in (self.key or ""):
            raise InputError("incident: run and key must not contain NUL")
        if self.time.tzinfo is None:
            raise InputError("incident: time must carry a time zone")

    def name_class(self, label: int) -> int | str:
        """Return what a class is called here: its name, or its number."""
        return dict(self.classes).get(label, label)

    def name_users(self, users: Sequence[int]) -> list[int | str]:
        """Return what users are called here: names, or columns of the code."""
        known = dict(self.users)
        return [known.get(user, user) for user in users]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, time in ISO 8601, UTC; classes and users by name where they have names."""
        stamp = self.time.astimezone(UTC).isoformat(timespec="microseconds")
        named = {
            "label": self.name_class(self.label),
            "target": self.name_class(self.target),
            "votes": [self.name_class(vote) for vote in self.votes],
            "suspects": self.name_users(self.suspects),
            "suspect_sets": [self.name_users(found) for found in self.suspect_sets],
            "user_probability": list(self.user_probability),
        }
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {"id": self.id, "time": stamp, **named, **plain}


@dataclass(frozen=True)
class DamagedIncident:
    """A row of the ledger that is not as it was written: shown as such, and no evidence.

    Attributes
    ----------
    id : int
    damage : str
        What is wrong with it.

    Examples
    --------
    >>> DamagedIncident(7, "it is not as it was written").to_json()
    {'id': 7, 'damage': 'it is not as it was written'}
    """

    id: int
    damage: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


def find_incidents(
    decoded: "Decoded",
    votes: ArrayLike,
    digests: Sequence[str],
    code: "Code",
    run: str,
    threshold: float = 0.5,
    class_names: Sequence[str] | None = None,
) -> list[Incident]:
    """Return the incidents among N decoded inputs: those whose attack probability passes (is above) the threshold.

    Parameters
    ----------
    decoded : Decoded
    votes : array_like of int, shape (N, m)
    digests : sequence of str, length N
        SHA-256 of each input, in hex.
    code : Code
    run : str
        Id of the models that voted, such as `codeward.runs.Cell.id`.
    threshold : float
    class_names : sequence of str, optional
        Kept with the incidents, as are the users' names where the code has any.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.codes import named_code
    >>> from codeward.decoding import BayesDecoder
    >>> code = named_code("g")
    >>> votes = np.full((2, code.n_models), 4)
    >>> votes[1, code.column(13)] = 7
    >>> decoder = BayesDecoder(code, np.full((6, 10, 10), 0.002) + 0.98 * np.eye(10), attackers_prior=(0.5, 0.5))
    >>> found = find_incidents(decoder.decode(votes), votes, ["0" * 64, "1" * 64], code, "my run")
    >>> [(incident.target, incident.suspects) for incident in found]
    [(7, (13,))]
    """
    table = np.asarray(votes)
    if table.shape != (len(decoded), code.n_models) or len(digests) != len(decoded):
        raise InputError(
            f"incidents: {len(decoded)} verdicts of {code.n_models} models, "
            f"but votes of shape {table.shape} and {len(digests)} digests"
        )
    found = []
    for row in np.flatnonzero(decoded.alarms(threshold)).tolist():
        said, sets = tuple(table[row].tolist()), decoded.suspect_sets[row]
        label, target = int(decoded.labels[row]), int(decoded.targets[row])
        classes = sorted({vote for vote in (*said, label, target) if vote >= 0}) if class_names else []
        users = sorted({user for users in sets for user in users}) if code.users else []
        found.append(
            Incident(
                votes=said,
                attack_probability=min(1.0, float(decoded.attack_probability[row])),
                label=label,
                target=target,
                suspects=decoded.suspects[row],
                user_probability=tuple(decoded.user_probability[row].tolist()),
                digest=digests[row],
                code_digest=code.digest,
                run=run,
                threshold=threshold,
                suspect_sets=sets,
                more_sets=int(decoded.more_sets[row]),
                classes=tuple((name, class_names[name]) for name in classes) if class_names else (),
                users=tuple((user, code.user_name(user)) for user in users),
            )
        )
    return found


def to_microseconds(time: datetime) -> int:
    """Return a time as the database keeps it."""
    if time.tzinfo is None:
        raise InputError("ledger: a time must carry a time zone")
    return (time - _EPOCH) // timedelta(microseconds=1)


def to_row(incident: Incident) -> dict[str, Any]:
    """Return an incident as a row of the database, without number and digests."""
    return {
        "key": incident.key,
        "microseconds": to_microseconds(incident.time),
        "run": incident.run,
        "code_digest": incident.code_digest,
        "digest": incident.digest,
        "target": incident.target,
        "label": incident.label,
        "attack_probability": incident.attack_probability,
        "threshold": incident.threshold,
        "votes": json.dumps(incident.votes, separators=(",", ":")),
        # One column holds all that is said of users, names included: the row's digest covers it.
        "suspects": json.dumps(
            {name: getattr(incident, name) for name in _SUSPECTED}, separators=(",", ":"), ensure_ascii=False
        ),
        "user_probability": json.dumps(incident.user_probability, separators=(",", ":")),
    }


def from_row(row: Row[Any]) -> Incident | DamagedIncident:
    """Return the incident of a row, or what is wrong with the row."""
    if row.row_digest != digest_row(row._mapping):
        return DamagedIncident(row.id, "it is not as it was written")
    try:
        return Incident(
            votes=tuple(json.loads(row.votes)),
            attack_probability=row.attack_probability,
            label=row.label,
            target=row.target,
            user_probability=tuple(json.loads(row.user_probability)),
            digest=row.digest,
            code_digest=row.code_digest,
            run=row.run,
            threshold=row.threshold,
            time=_EPOCH + timedelta(microseconds=row.microseconds),
            key=row.key,
            id=row.id,
            **_read_suspects(row.suspects),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        return DamagedIncident(row.id, f"it cannot be read ({type(error).__name__})")


def _read_suspects(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if isinstance(content, list):  # as format 2 had it: the best set alone
        return {"suspects": tuple(content), "suspect_sets": (tuple(content),) if content else ()}
    fields: dict[str, Any] = {"suspects": tuple(content["suspects"]), "more_sets": content["more_sets"]}
    for name in ("suspect_sets", "classes", "users"):
        fields[name] = tuple(tuple(part) for part in content[name])
    return fields


def to_line(incident: Incident | DamagedIncident, suffix: str) -> str:
    """Return the line of an incident in an export, ``.jsonl`` or ``.csv``; empty where it has none."""
    content = incident.to_json()
    if suffix == ".jsonl":
        return json.dumps(content) + "\n"
    if isinstance(incident, DamagedIncident):
        return ""
    # Names may hold spaces; numbers are told apart by one.
    content["suspects"] = ("; " if incident.users else " ").join(map(str, content["suspects"]))
    content["votes"] = ("; " if incident.classes else " ").join(map(str, content["votes"]))
    return format_csv([[_defuse(content[name]) for name in CSV_COLUMNS]])


def _defuse(value: Any) -> Any:
    """Keep a spreadsheet from taking a user's name for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
