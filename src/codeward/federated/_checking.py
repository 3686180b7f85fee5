"""What the server lets in: a reply is refused, in whole or for one model, with a reason that names the user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.federated._protocol import Arrays, Assignment, Parcel, Reply

#: Bytes that a serialised array may take up beyond its values.
OVERHEAD = 4096
#: Refusals of one reply that are listed one by one: what a client sends must not fill the disk through the log.
LISTED = 20

_ENVELOPE = ("round", "nonce", "samples")


@dataclass(frozen=True)
class Refusal:
    """Something of a reply that does not count.

    Attributes
    ----------
    round : int
    user : int
        By the server's binding, whatever the reply says.
    model : int or None
        None when the whole reply is refused.
    reason : str

    Examples
    --------
    >>> Refusal(round=1, user=3, model=None, reason="no reply").to_json()
    {'round': 1, 'user': 3, 'model': None, 'reason': 'no reply'}
    """

    round: int
    user: int
    model: int | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for a record."""
        return {"round": self.round, "user": self.user, "model": self.model, "reason": self.reason}


@dataclass(frozen=True)
class Checked:
    """What is left of a reply: arrays of the right names, shapes and types, finite, for models of the user's column.

    Attributes
    ----------
    samples : int
        As claimed and plausible; not yet capped.
    models : dict
        Arrays by model; empty when the reply is refused in whole.
    refusals : tuple of Refusal
    """

    samples: int
    models: Mapping[int, Arrays]
    refusals: tuple[Refusal, ...]


@dataclass
class _Complaints:
    assignment: Assignment
    found: list[Refusal] = field(default_factory=list)
    unlisted: int = 0

    def add(self, reason: str, model: int | None = None) -> None:
        if len(self.found) < LISTED:
            self.found.append(Refusal(self.assignment.round, self.assignment.user, model, reason))
        else:
            self.unlisted += 1

    def close(self) -> tuple[Refusal, ...]:
        if self.unlisted:
            reason = f"and {self.unlisted} more of this kind"
            self.found.append(Refusal(self.assignment.round, self.assignment.user, None, reason))
        return tuple(self.found)


def check_reply(
    reply: Reply,
    assignment: Assignment,
    sample_limit: int,
    names: Sequence[str] = (),
) -> Checked:
    """Take from a reply what its user may say, and refuse the rest.

    Guarantee (arbitrary threat model, docs/theory.md): whatever the reply holds, the result has arrays
    for models of the user's column only, each with exactly the names, shapes and types of the model and finite values,
    under the user the server bound the sender to. An array is decoded only when its declared size is the model's. A
    defect in the envelope refuses the whole reply, a defect in one model's arrays that model only; what the user sent
    for one model never changes what counts for another.

    Parameters
    ----------
    reply : Reply
    assignment : Assignment
        What this user was asked in the present round; its models are the user's column.
    sample_limit : int
        A larger sample count is refused.
    names : sequence of str
        Names of the users, to tell a reply that speaks for somebody else.

    Examples
    --------
    >>> from codeward.federated import Assignment, answer
    >>> from codeward.training import TrainingSettings
    >>> weights = {"w": np.zeros(2, np.float32)}
    >>> task = Assignment(0, 1, "nonce", (1, 8, 8), TrainingSettings(), seeds={4: 7}, models={4: weights})
    >>> lie = answer(task, 30, {4: {"w": np.float32([np.nan, 0])}, 5: weights})
    >>> checked = check_reply(lie, task, sample_limit=1000)
    >>> checked.models
    {}
    >>> [refusal.reason for refusal in checked.refusals]
    ['w: NaN or infinite values', "sent arrays for '5', which is not a model of its column; dropped"]
    """
    complaints = _Complaints(assignment)
    samples = _check_envelope(reply.envelope, assignment, sample_limit, names, complaints)
    if samples is None:
        return Checked(0, {}, complaints.close())
    accepted: dict[int, Arrays] = {}
    asked = {str(model): model for model in assignment.models}
    # 1. The models of the column, in order; an absent one is a refusal too, so that the record says who fell silent.
    for key, model in asked.items():
        if key not in reply.models:
            complaints.add("no arrays for this model", model)
            continue
        arrays, reason = _check_arrays(reply.models[key], assignment.models[model])
        if arrays is None:
            complaints.add(reason, model)
        else:
            accepted[model] = arrays
    # 2. Everything else is dropped unopened: H is enforced here, not where the client is.
    for key in reply.models:
        if key not in asked:
            complaints.add(f"sent arrays for {quote(key)}, which is not a model of its column; dropped")
    return Checked(samples, accepted, complaints.close())


def quote(text: object) -> str:
    """Return what a client sent, safe to print: one line of at most 60 printable characters."""
    try:
        shown = ascii(str(text)[:200])
    except ValueError:  # Python refuses to print integers of thousands of digits
        return f"an unprintable {type(text).__name__}"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _check_envelope(
    envelope: Mapping[str, object],
    assignment: Assignment,
    sample_limit: int,
    names: Sequence[str],
    complaints: _Complaints,
) -> int | None:
    """Return the sample count, or None when the whole reply is refused."""
    claimed = envelope.get("user")
    own = {assignment.user, str(assignment.user)} | ({names[assignment.user]} if names else set())
    if claimed is not None and (not isinstance(claimed, int | str) or claimed not in own):
        complaints.add(f"says it is user {quote(claimed)}; whose reply it is, the server knows; refused")
        return None
    strange = [key for key in envelope if key not in (*_ENVELOPE, "user")]
    missing = [key for key in _ENVELOPE if key not in envelope]
    if strange or missing:
        complaints.add(f"envelope without {', '.join(missing) or 'a gap'}, with unknown keys {quote(strange[:5])}")
        return None
    number, nonce, samples = (envelope[key] for key in _ENVELOPE)
    if not _is_whole(number) or number != assignment.round:
        complaints.add(f"belongs to round {quote(number)}, now is round {assignment.round}: an old reply, or a replay")
        return None
    if nonce != assignment.nonce:
        complaints.add("carries another nonce than this round's: a replay, or somebody else's reply")
        return None
    if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples <= sample_limit:
        complaints.add(f"claims {quote(samples)} samples; expected a whole number from 1 to {sample_limit:,}")
        return None
    return samples


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_arrays(parcels: Mapping[str, Parcel], template: Arrays) -> tuple[Arrays | None, str]:
    missing = [name for name in template if name not in parcels]
    extra = [name for name in parcels if name not in template]
    if missing or extra:
        return None, f"arrays missing: {quote(missing[:5])}, arrays unknown: {quote(extra[:5])}"
    opened: Arrays = {}
    for name, expected in template.items():
        parcel = parcels[name]
        if tuple(parcel.shape) != expected.shape:
            return None, f"{name}: shape {quote(tuple(parcel.shape))}, expected {expected.shape}"
        if parcel.dtype != str(expected.dtype):
            return None, f"{name}: type {quote(parcel.dtype)}, expected {expected.dtype}"
        if parcel.size > expected.nbytes + OVERHEAD:
            return None, f"{name}: {parcel.size:,} bytes, expected {expected.nbytes:,}; not opened"
        try:
            array: NDArray[Any] = parcel.open()
        except Exception as error:
            return None, f"{name}: cannot be decoded ({quote(type(error).__name__)})"
        # What it is counts, not what it said it was.
        if not isinstance(array, np.ndarray) or array.shape != expected.shape or array.dtype != expected.dtype:
            return None, f"{name}: not what it declares to be"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return None, f"{name}: NaN or infinite values"
        opened[name] = array
    return opened, ""
