"""What every sample is for: training, fitting the decoder, or figures; and whose word that is."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data import InputTable, UserData
from codeward.estimators._holdout import hold_out
from codeward.estimators._model_choice import as_matrix
from codeward.estimators._ownership import Ownership, digest_rows, list_rows


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
    """

    training: tuple[NDArray[np.int64], ...]
    digests: tuple[str, ...]
    validation: Labelled
    clean: Labelled
    trusted: bool


def assign_roles(data: UserData, trusted: UserData | None, test: UserData | None, fraction: float, seed: int) -> Roles:
    """Hold out what the decoder and the figures need.

    With trusted samples these fit the decoder, and give the figures too (the other half of them) when there is no test
    set. Without, ``fraction`` of every user's own samples is held out, drawn from the seed, the user's place and the
    number of its samples alone: half of it fits, half measures (all of it fits beside a test set).
    """
    matrix = as_matrix(data.inputs, data.schema)
    digests = digest_rows(matrix)
    ownership = Ownership(np.array(data.user_names), data.users, data.hashed)
    rows = list_rows(ownership, digests, data.labels)
    needed = 0.0 if trusted is not None else fraction
    division = hold_out(rows, needed, seed)
    training = division.training
    names = np.array(data.class_names, dtype=object)
    marks = tuple(_digest(digests[own], names[data.labels[own]]) for own in training)
    if trusted is not None:
        first = Labelled(trusted.inputs, trusted.labels)
        if test is not None:
            return Roles(training, marks, first, Labelled(test.inputs, test.labels), True)
        if len(trusted) < 4:
            raise InputError(f"trusted: {len(trusted)} samples are too few; half of them fit, half measure")
        order = np.random.default_rng([seed, 2]).permutation(len(trusted))
        half = len(trusted) // 2
        fits, measures = (first.take(np.sort(part)) for part in (order[:half], order[half:]))
        return Roles(training, marks, fits, measures, True)
    if not division.held_out:
        raise InputError("every user has one sample; nothing can be held out: give --trusted FILE")
    fits_of, measures_of = [], []
    for place, own in enumerate(division.validation):
        cut = own.size if test is not None else (own.size + place % 2) // 2  # users with one sample take turns
        fits_of.append(own[:cut])
        measures_of.append(own[cut:])
    fits = _take(data, np.concatenate(fits_of))
    measures = _take(data, np.concatenate(measures_of)) if test is None else Labelled(test.inputs, test.labels)
    if not len(fits) or not len(measures):
        raise InputError("too few samples to hold any out; give --trusted FILE or --test FILE")
    return Roles(training, marks, fits, measures, False)


def digest_data(data: UserData) -> str:
    """Return a SHA-256 of samples, labels and users by name; the order of samples does not matter."""
    digests = digest_rows(as_matrix(data.inputs, data.schema))
    names = np.array(data.class_names, dtype=object)[data.labels]
    total = hashlib.sha256()
    for user, own in zip(data.user_names, data.parts, strict=True):
        order = own[np.lexsort((data.labels[own], digests[own, 1], digests[own, 0]))]
        total.update(f"{user}\n{_digest(digests[order], names[order])}\n".encode())
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
