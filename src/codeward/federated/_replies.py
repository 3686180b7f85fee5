"""What the server makes of replies: refused, in whole or for one model, with a reason, or combined model by model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.federated._protocol import Arrays, Assignment, FederatedSettings, Parcel, Reply

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

    Examples
    --------
    >>> Checked(samples=0, models={}, refusals=()).models
    {}
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
    if type(number) is not int or number != assignment.round:
        complaints.add(f"belongs to round {quote(number)}, now is round {assignment.round}: an old reply, or a replay")
        return None
    if nonce != assignment.nonce:
        complaints.add("carries another nonce than this round's: a replay, or somebody else's reply")
        return None
    if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples <= sample_limit:
        complaints.add(f"claims {quote(samples)} samples; expected a whole number from 1 to {sample_limit:,}")
        return None
    return samples


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


_DIGIT = 32


class ExactSum:
    """A sum of arrays of finite doubles that is exact, and therefore the same in whatever order they are added.

    Every number is written in base 2**32 and its digits are added as whole numbers, one array of 64 bits a digit; a
    digit that no number has takes no memory. Weights of a network need two or three digits, single precision as a
    whole eleven. Exact for up to 2**31 terms.

    Parameters
    ----------
    size : int
        Length of the arrays.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._digits: dict[int, NDArray[np.int64]] = {}

    def add(self, term: NDArray[np.float64]) -> None:
        """Add an array."""
        rest = term.copy()
        while largest := float(np.abs(rest).max(initial=0.0)):
            place = (math.frexp(largest)[1] - 1) // _DIGIT
            unit = math.ldexp(1.0, _DIGIT * place)
            # Scaling by a power of two, cutting off and taking the rest are all exact.
            digit = np.trunc(rest / unit)
            rest -= digit * unit
            self._digits.setdefault(place, np.zeros(self.size, np.int64)).__iadd__(digit.astype(np.int64))

    def round(self) -> NDArray[np.float64]:
        """Return the sum in double precision."""
        total = np.zeros(self.size)
        for place in sorted(self._digits):
            total += self._digits[place] * math.ldexp(1.0, _DIGIT * place)
        return total


class RowCombiner:
    """What the users of one row send for their model in one round, combined as it arrives.

    The result is a function of the round's starting weights and of these replies only: the bytes do not depend on who
    answered first, nor on anything sent for another model. ``mean`` keeps a running sum (see `ExactSum`), whose size
    does not depend on the number of users. The median and the trimmed mean need every value of a coordinate and keep
    all replies; in large federations let `FederatedSettings.sample` bound their number. Values of the weights' own type
    cannot overflow in double precision, and no average leaves the range of what it averages.

    Parameters
    ----------
    start : arrays
        The weights the round began with.
    settings : FederatedSettings
    """

    def __init__(self, start: Arrays, settings: FederatedSettings) -> None:
        self.start = start
        self.settings = settings
        self.weight = 0
        self._sum = ExactSum(sum(array.size for array in start.values()))
        self._kept: dict[int, NDArray[np.float64]] = {}

    def add(self, user: int, reply: Arrays, weight: int) -> None:
        """Take in arrays that `check_reply` accepted, with the user's capped sample count."""
        values = self._flatten(reply)
        if self.settings.clip_norm is not None:
            values = self._shorten(values, self.settings.clip_norm)
        self.weight += weight
        if self.settings.rule == "mean":
            # w = sum_j n_j w_j / sum_j n_j  (McMahan et al. 2017, algorithm 1), over the users of the row
            self._sum.add(weight * values)
        else:
            self._kept[user] = values

    def finish(self) -> Arrays:
        """Return the model's next weights: those it started with when nobody replied."""
        if not self.weight:
            return dict(self.start)
        if self.settings.rule == "mean":
            values = self._sum.round() / self.weight
        else:
            values = self._trim([self._kept[user] for user in sorted(self._kept)])
        found: Arrays = {}
        first = 0
        for name, begin in self.start.items():
            part = values[first : first + begin.size].reshape(begin.shape)
            # asarray: arithmetic turns 0-d arrays into scalars.
            found[name] = np.asarray(np.rint(part) if begin.dtype.kind in "iu" else part).astype(begin.dtype)
            first += begin.size
        return found

    def _flatten(self, arrays: Arrays) -> NDArray[np.float64]:
        return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in self.start])

    def _shorten(self, values: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
        """Scale the change of all float arrays by min(1, limit / its length)."""
        floats = np.concatenate([np.full(array.size, array.dtype.kind == "f") for array in self.start.values()])
        base = self._flatten(self.start)
        change = np.where(floats, values - base, 0.0)
        length = float(np.sqrt(np.square(change).sum()))
        return values if length <= limit else np.where(floats, base + (limit / length) * change, values)

    def _trim(self, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        ordered = np.sort(np.stack(values), axis=0)
        count = len(ordered)
        # Trimming that would leave nothing takes the middle: the median is the trimmed mean trimmed as far as it goes.
        half = (count - 1) // 2
        cut = half if self.settings.rule == "median" else min(self.settings.trim, half)
        total = np.zeros(ordered.shape[1:])
        for value in ordered[cut : count - cut]:
            total += value
        return total / (count - 2 * cut)


def combine(
    start: Arrays, replies: Mapping[int, Arrays], weights: Mapping[int, int], settings: FederatedSettings
) -> Arrays:
    """Combine what the users of one row sent for their model (see `RowCombiner`).

    Parameters
    ----------
    start : arrays
        The weights the round began with; returned as they are when nobody replied.
    replies : mapping of user to arrays
        Accepted by `check_reply`.
    weights : mapping of user to int
        Capped sample count of each of them.
    settings : FederatedSettings

    Examples
    --------
    >>> start = {"w": np.float32([0.0])}
    >>> replies = {0: {"w": np.float32([1.0])}, 3: {"w": np.float32([5.0])}}
    >>> combine(start, replies, {0: 30, 3: 10}, FederatedSettings())["w"]
    array([2.], dtype=float32)
    """
    combiner = RowCombiner(start, settings)
    for user, reply in replies.items():
        combiner.add(user, reply, weights[user])
    return combiner.finish()
