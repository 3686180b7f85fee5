"""What every sample is for: training, fitting the decoder, or figures; and what is learned from votes on them."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import InputTable, Samples, UserData, arrange_inputs, sort_names
from codeward.decoding import VoteSet, count_confusion, pool_counts, smooth_confusion
from codeward.runs import round_scores

if TYPE_CHECKING:
    from codeward.estimators._guarded_plan import GuardedPlan

Rows = tuple[NDArray[np.int64], ...]

#: Bytes of a sample's digest: two 64-bit words.
_DIGEST_SIZE = 16
#: A user validates with at most this many times the median user's samples, so that a large account is one voice, not
#: many.
SHARE_CAP = 2


@dataclass(frozen=True)
class Division:
    """What every user's samples are for.

    Attributes
    ----------
    training : tuple of ndarray of int64
        Rows each user's sub-models learn from.
    validation : tuple of ndarray of int64
        Rows of each user that validate sub-models, capped at `SHARE_CAP` times the median.
    held_out : bool
        Whether these rows train nobody. Otherwise they are training rows and validate only models without that user.
    """

    training: Rows
    validation: Rows
    held_out: bool


def hold_out(rows: Rows, fraction: float, seed: int) -> Division:
    """Hold out ``fraction`` of every user's samples, at least one of each user with two or more.

    A user's share is drawn from (seed, column) and its own number of samples alone: what other users hand in does not
    move it. When nothing can be held out (fraction 0, or one sample a user), samples validate the models that do not
    learn from their user.
    """
    if not 0 <= fraction < 1:
        raise InputError(f"validation_fraction must be at least 0 and below 1, got {fraction}")
    training, held = [], []
    for user, own in enumerate(rows):
        wanted = max(1, round(fraction * own.size)) if fraction > 0 else 0
        size = min(wanted, max(own.size - 1, 0))
        order = np.random.default_rng([seed, 0, user]).permutation(own.size)
        training.append(own[np.sort(order[size:])])
        held.append(own[order[:size]])
    if any(part.size for part in held):
        return Division(tuple(training), _cap(tuple(held)), True)
    return Division(rows, _cap(rows), False)


def _cap(rows: Rows) -> Rows:
    """Shorten what a large user validates with; never training rows: that would leak sizes into models."""
    limit = max(1, int(SHARE_CAP * np.median([own.size for own in rows])))
    return tuple(own[:limit] for own in rows)


def count_from_users(
    votes: NDArray[np.int64],
    labels: NDArray[np.int64],
    owners: NDArray[np.int64],
    validates: NDArray[np.bool_],
    n_attackers: int,
    n_classes: int,
) -> NDArray[np.int64]:
    """Count label and vote of each model, (m, c, c), on users' samples, k of whom may want the count wrong.

    For each model the errors are trimmed as `trim_errors` says. A model that nobody may validate takes the counts of
    all others together.

    Parameters
    ----------
    votes : ndarray of int64, shape (N, m)
    labels, owners : ndarray of int64, shape (N,)
        Label and user of each sample.
    validates : ndarray of bool, shape (m, n)
        Which users' samples validate which model.
    """
    n_models, n_users = validates.shape
    counts = np.zeros((n_models, n_classes, n_classes), dtype=np.int64)
    for model in range(n_models):
        heard = validates[model, owners]
        by_user = np.zeros((n_users, n_classes, n_classes), dtype=np.int64)
        np.add.at(by_user, (owners[heard], labels[heard], votes[heard, model]), 1)
        counts[model] = trim_errors(by_user, n_attackers)
    counts[~validates.any(axis=1)] = counts.sum(axis=0)
    return counts


def trim_errors(by_user: NDArray[np.int64], n_attackers: int) -> NDArray[np.int64]:
    """Add up counts of label and vote over users, (n, c, c) to (c, c), without the k users of most errors on a label.

    An attacker's triggered samples bear the target's label; models that it does not reach read them right, which counts
    as an error. Enough of those teach the decoder that clean models often contradict the target, and it takes the next
    attack for such a slip. With the k users of most errors left out, for each label by itself (ties to the lower
    column), the errors that remain are no more than those on honest users' samples alone, whichever k users lie: the
    least sum over n - k users is at most the sum over the honest ones. The price is an estimate somewhat too good.
    """
    errors = by_user.sum(axis=2) - by_user.diagonal(axis1=1, axis2=2)
    worst = np.argsort(-errors, axis=0, kind="stable")[:n_attackers]
    kept = np.ones(errors.shape, dtype=bool)
    # A user without errors cannot inflate them and stays.
    np.put_along_axis(kept, worst, np.take_along_axis(errors, worst, axis=0) == 0, axis=0)
    return np.asarray((by_user * kept[:, :, None]).sum(axis=0))


def find_contradicted(
    votes: NDArray[np.int64],
    labels: NDArray[np.int64],
    owners: NDArray[np.int64],
    matrix: NDArray[np.bool_],
    n_attackers: int,
) -> NDArray[np.int64]:
    """Return the k users whose held-out labels are contradicted most by the sub-models that never learned from them.

    A trigger's samples bear the target's label, which only the models of their user repeat. Left in, they teach a
    decoder that the very pattern of an attack is usual on clean inputs, and set the alarm's threshold above it. Without
    the k users of the largest share of contradicted votes (ties to the lower column; an honest one among them costs a
    few samples), what is left of a lie is contradicted no more than an honest user's samples are.

    Parameters
    ----------
    votes : ndarray of int64, shape (N, m)
    labels, owners : ndarray of int64, shape (N,)
    matrix : ndarray of bool, shape (m, n)
        Which model learns from which user.
    n_attackers : int
        k.
    """
    shares = np.zeros(matrix.shape[1])
    for user in np.unique(owners):
        others = votes[owners == user][:, ~matrix[:, user]]
        wrong = others != labels[owners == user, None]
        shares[user] = wrong.mean() if wrong.size else 0.0
    worst = np.argsort(-shares, kind="stable")[:n_attackers]
    return np.sort(worst[shares[worst] > 0])


@dataclass(frozen=True)
class Labelled:
    """Inputs with labels, and where users handed them in, whose they are."""

    inputs: Any
    labels: NDArray[np.int64]
    owners: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: NDArray[np.int64]) -> "Labelled":
        """Return the samples at ``index``."""
        inputs = self.inputs.take(index) if isinstance(self.inputs, InputTable) else self.inputs[index]
        return Labelled(inputs, self.labels[index], None if self.owners is None else self.owners[index])


@dataclass(frozen=True)
class Roles:
    """The samples by what they are for.

    Attributes
    ----------
    training : tuple of ndarray
        Each user's training samples, in an order of their own content.
    digests : tuple of str
        SHA-256 of each user's training samples.
    validation : Labelled
        Fits what is common to all: confusion matrices, threshold.
    clean : Labelled
        Figures are taken on these.
    trusted : bool
        Whether no user handed in the validation samples.
    held_out : bool
        Whether the validation samples train nobody. Otherwise each validates only the models without its user.
    """

    training: tuple[NDArray[np.int64], ...]
    digests: tuple[str, ...]
    validation: Labelled
    clean: Labelled
    trusted: bool
    held_out: bool = True

    def check(self, n_attackers: int) -> None:
        """Refuse roles that leave nothing to fit the decoder on, or nothing to take figures on, without k users."""
        if not self.held_out:
            if max(own.size for own in self.training) > 1:
                raise InputError(
                    "nothing is held out of the users' samples, so nothing can be measured: fit with "
                    "validation_fraction above 0, or with trusted samples"
                )
            raise InputError(
                "no user has two samples, one to learn from and one to hold out: give --trusted FILE (labelled samples "
                "of your own, of no user), more samples a user, or, where samples are hashed, fewer --parts"
            )
        if self.trusted and min(len(self.validation), len(self.clean)) < 2:
            raise InputError("trusted: too few samples; half of them fit the decoder, half measure (or give --test)")
        if not len(self.validation) or not len(self.clean):
            other = " or --test FILE" if len(self.validation) else ""
            raise InputError(f"too few samples to hold out for fitting and for figures: give --trusted FILE{other}")
        for given in (self.validation, self.clean):
            if given.owners is not None and (users := np.unique(given.owners).size) <= n_attackers:
                raise InputError(
                    f"too few samples: {users} users have one that is held out, and {n_attackers} users may be left "
                    "out; give --trusted FILE, more samples, or a larger --test-fraction"
                )

    def without(self, gone: Collection[int]) -> "Roles":
        """Return the roles with the samples of some users taken out of all of them."""
        nothing = np.zeros(0, dtype=np.int64)
        training = tuple(nothing if user in gone else own for user, own in enumerate(self.training))
        kept = [given if given.owners is None else given.take(np.flatnonzero(~np.isin(given.owners, list(gone))))
                for given in (self.validation, self.clean)]  # fmt: skip
        return replace(self, training=training, validation=kept[0], clean=kept[1])


def assign_roles(
    data: UserData,
    trusted: UserData | None,
    test: UserData | None,
    fraction: float,
    seed: int,
    measured: bool = True,
) -> Roles:
    """Hold out what the decoder and the figures need.

    With trusted samples these fit the decoder, and give the figures too (the other half of them) when there is no test
    set. Without, ``fraction`` of every user's own samples is held out, drawn from the seed, the user's place and the
    number of its samples alone: half of it fits, half measures (all of it fits beside a test set). Where nothing is to
    be ``measured`` all of it fits, too.
    """
    digests = digest_rows(arrange_inputs(data.inputs, data.schema))
    division = hold_out(list_rows(data, digests), 0.0 if trusted is not None else fraction, seed)
    names = np.array(data.class_names, dtype=object)
    marks = tuple(_digest(digests[own], names[data.labels[own]]) for own in division.training)
    measures = None if test is None else Labelled(test.inputs, test.labels)
    if not measured:
        measures = _take(data, np.zeros(0, dtype=np.int64))
    if trusted is not None:
        fits = Labelled(trusted.inputs, trusted.labels)
        if measures is None:
            order = np.random.default_rng([seed, 2]).permutation(len(trusted))
            half = len(trusted) // 2
            fits, measures = (fits.take(np.sort(part)) for part in (order[:half], order[half:]))
        return Roles(division.training, marks, fits, measures, True)
    fits_of, measures_of = [], []
    for place, own in enumerate(division.validation):
        whole = measures is not None or not division.held_out
        cut = own.size if whole else (own.size + place % 2) // 2  # users with one sample take turns
        fits_of.append(own[:cut])
        measures_of.append(own[cut:])
    fits = _take(data, np.concatenate(fits_of))
    if measures is None:
        measures = _take(data, np.concatenate(measures_of))
    return Roles(division.training, marks, fits, measures, False, division.held_out)


def digest_rows(table: Any) -> NDArray[np.uint64]:
    """Hash the content of every row, shape (N, 2); numbers count as 64-bit floats, whatever type they came in.

    The type of an array is common to all users: hashing its bytes would let one user reorder another's samples.
    """
    if hasattr(table, "tocsr"):
        rows: Any = table.tocsr(copy=True).astype(np.float64)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        edges = rows.indptr.tolist()
        indices = rows.indices.astype(np.int64)
        content = [indices[start:stop].tobytes() + rows.data[start:stop].tobytes() for start, stop in pairwise(edges)]
    else:
        dense = np.asarray(table)
        if dense.dtype.kind in "biuf":
            flat = dense.reshape(dense.shape[0], int(np.prod(dense.shape[1:])))
            content = [row.astype(np.float64).tobytes() for row in flat]
        else:
            content = [repr(row).encode() for row in dense.tolist()]
    hashed = b"".join(hashlib.blake2b(row, digest_size=_DIGEST_SIZE).digest() for row in content)
    return np.frombuffer(hashed, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def list_rows(data: UserData, digests: NDArray[np.uint64]) -> Rows:
    """Give the samples of each user in an order of their own: by content, then label, never by place in the input.

    So a sub-model sees the same sequence however the samples of all users were mixed, and another user's samples
    cannot move its own.
    """
    order = np.lexsort((data.labels, digests[:, 1], digests[:, 0], data.users))
    edges = np.searchsorted(data.users[order], np.arange(data.n_users + 1))
    return tuple(order[start:stop] for start, stop in pairwise(edges))


def digest_data(data: UserData) -> str:
    """Return a SHA-256 of samples, labels and users by name; the order of samples does not matter."""
    digests = digest_rows(arrange_inputs(data.inputs, data.schema))
    names = np.array(data.class_names, dtype=object)[data.labels]
    total = hashlib.sha256()
    rows = dict(zip(data.user_names, list_rows(data, digests), strict=True))
    for user in sort_names(rows):  # a code may have the users in another order
        own = rows[user]
        total.update(f"{user}\n{_digest(digests[own], names[own])}\n".encode())
    return total.hexdigest()


def _digest(digests: NDArray[np.uint64], names: NDArray[Any]) -> str:
    total = hashlib.sha256(f"{len(names)}\n".encode())
    for (high, low), name in zip(digests.tolist(), names.tolist(), strict=True):
        total.update(f"{high:016x}{low:016x} {name}\n".encode())
    return total.hexdigest()


def _take(data: UserData, index: NDArray[np.int64]) -> Labelled:
    part = data.take(index)
    return Labelled(part.inputs, part.labels, part.users)


def align(other: UserData, data: UserData, what: str) -> UserData:
    """Give the classes of trusted or test samples the numbers of the users' data; unknown ones are refused."""
    strange = sorted(set(other.class_names) - set(data.class_names))
    if strange:
        raise InputError(f"{what}: class {strange[0]!r} is none of the users' ({', '.join(data.class_names)[:80]})")
    places = np.array([data.class_names.index(name) for name in other.class_names], dtype=np.int64)
    return UserData(
        other.inputs, places[other.labels], other.users, data.class_names, other.user_names, data.schema, other.hashed
    )


def vote_roles(
    plan: "GuardedPlan", models: Any, code: Code, roles_of: Sequence[str] = ("validation", "clean"), scores: bool = True
) -> dict[str, VoteSet]:
    """Let the models vote on the samples that validate and on those that measure; estimate how they err.

    Where users handed the samples in, the k whom others contradict most are left out, and errors are trimmed.
    """
    data, roles, trimmed = plan.data, plan.roles, plan.choice.n_attackers
    votes = {}
    for name in roles_of:
        given: Labelled = getattr(roles, name)
        said, found = ask_models(models, given.inputs, scores)
        votes[name] = VoteSet(said, given.labels, None, found)
    fitted, owners = votes["validation"], roles.validation.owners
    assert fitted.labels is not None
    if owners is None:
        counts = count_confusion(fitted.votes, fitted.labels, data.n_classes)
    else:
        matrix = _learn_from(code, data)
        # Held-out samples validate every model, training samples only models that never saw them.
        validates = ~matrix | roles.held_out
        counts = count_from_users(fitted.votes, fitted.labels, owners, validates, trimmed, data.n_classes)
        if roles.held_out:
            gone = find_contradicted(fitted.votes, fitted.labels, owners, matrix, trimmed)
            votes = {name: _leave_out(given, getattr(roles, name).owners, gone) for name, given in votes.items()}
    confusion = smooth_confusion(pool_counts(counts))
    return {name: replace(given, confusion=confusion) for name, given in votes.items()}


def _learn_from(code: Code, data: UserData) -> NDArray[np.bool_]:
    """Return which model learns from which user of the data, of whom some may be revoked."""
    matrix = np.zeros((code.n_models, data.n_users), dtype=bool)
    left = [data.user_names.index(code.user_name(user)) for user in range(code.n_users)]
    matrix[:, left] = code.matrix
    return matrix


def _leave_out(given: VoteSet, owners: NDArray[np.int64] | None, gone: NDArray[np.int64]) -> VoteSet:
    """Leave the samples of some users out; those of nobody stay."""
    if owners is None or given.labels is None:
        return given
    kept = ~np.isin(owners, gone)
    return VoteSet(given.votes[kept], given.labels[kept], None, None if given.scores is None else given.scores[kept])


def ask_models(models: Any, inputs: Any, scored: bool) -> tuple[NDArray[np.int64], NDArray[np.float16] | None]:
    """Return what the models say of inputs and, if asked, their class scores as vote files keep them."""
    if isinstance(inputs, np.ndarray) and inputs.dtype == np.uint8:
        inputs = Samples(np.ascontiguousarray(inputs), np.zeros(len(inputs), dtype=np.int64))
    scores = models.scores(inputs) if scored else None
    said = models.votes(inputs)
    if scores is not None:
        scores = round_scores(scores)
    return said, scores
