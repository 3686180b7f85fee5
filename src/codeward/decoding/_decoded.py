"""What a decoder answers, how alarms are told, and how well answers match the truth."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward._notebook import Displayed, Sheet
from codeward.decoding._attacker_sets import SHOWN, TIE_TOLERANCE

#: Attack probability above which an input is an alarm, unless a threshold is given.
ALARM = 0.5
#: The label of an input on which a decoder gives no verdict.
NO_VERDICT = -1


@dataclass(frozen=True)
class Decoded(Displayed):
    """Verdicts on N inputs.

    Attributes
    ----------
    labels : ndarray of int64, shape (N,)
        The decoded label; `NO_VERDICT` (-1) where the decoder declines to answer.
    attack_probability : ndarray of float64, shape (N,)
        Posterior that the input carries a trigger. Decoders without a posterior give 1 where some model dissents from
        the verdict (or there is none), else 0.
    targets : ndarray of int64, shape (N,)
        Most probable target *given* an attack; ties to the smaller class. -1 where the decoder has none.
    suspects : sequence of tuple of int, length N
        Users in *every* nearly best explanation, given an attack: nobody where two explanations have nobody in common.
    user_probability : ndarray of float64, shape (N, n)
        Posterior that each user is an attacker, given an attack.
    label_probability : ndarray of float64, shape (N, c)
        Posterior of the label.
    neglected : ndarray of float64, shape (N,)
        Proved upper bound on the share of posterior mass left out; 0 means exact up to rounding.
    suspect_sets : sequence of tuple of tuple of int, length N
        Nearly best explanations: attacker sets whose posterior given an attack is at least a twentieth of the best
        one's, best first, at most 20; on a tie the fewest users first, then the lowest indices. None where the decoder
        names nobody.
    more_sets : ndarray of int64, shape (N,)
        How many more there are; at least so many where the sum is pruned.
    users : tuple of str or None
        Names of the users, where the code has any.
    agreed : ndarray of bool, shape (N,)
        All models vote alike. No code can tell such an input from a clean one, so it is never an alarm.

    Examples
    --------
    >>> from codeward.decoding import PluralityDecoder
    >>> found = PluralityDecoder(n_classes=2).decode([[0, 1, 1], [0, 0, 0]])
    >>> found.labels, found.alarms(0.5)
    (array([1, 0]), array([ True, False]))
    >>> len(Decoded.concatenate([found, found.take([0])]))
    3
    >>> found.plot()
    <Drawing: Share of inputs with an alarm by threshold>
    """

    labels: NDArray[np.int64]
    attack_probability: NDArray[np.float64]
    targets: NDArray[np.int64]
    suspects: Sequence[tuple[int, ...]]
    user_probability: NDArray[np.float64]
    label_probability: NDArray[np.float64]
    neglected: NDArray[np.float64]
    suspect_sets: Sequence[tuple[tuple[int, ...], ...]]
    more_sets: NDArray[np.int64]
    agreed: NDArray[np.bool_]
    users: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def _columns(self) -> dict[str, Any]:
        """What there is of every input: all but the names of the users."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "users"}

    @property
    def best_set(self) -> list[tuple[int, ...]]:
        """The paper's single most probable attacker set of each input, the first of ``suspect_sets``, or nobody."""
        return [found[0] if found else () for found in self.suspect_sets]

    @classmethod
    def concatenate(cls, parts: Sequence["Decoded"]) -> "Decoded":
        """Join verdicts on consecutive inputs; at least one part."""
        if not parts:
            raise InputError("there are no verdicts to join")
        each = {name: [part._columns[name] for part in parts] for name in parts[0]._columns}
        joined: dict[str, Any] = {
            name: np.concatenate(column) if isinstance(column[0], np.ndarray) else [*chain(*column)]
            for name, column in each.items()
        }
        return replace(parts[0], **joined)

    def overruled(self, labels: NDArray[np.int64]) -> "Decoded":
        """Take these labels (N,) where they are verdicts; where that is a change, they have all of the posterior."""
        changed = (labels >= 0) & (labels != self.labels)
        sure = labels[:, None] == np.arange(self.label_probability.shape[1])
        by_label = np.where(changed[:, None], sure, self.label_probability).astype(np.float64)
        return replace(self, labels=np.where(changed, labels, self.labels), label_probability=by_label)

    @classmethod
    def by_counting(
        cls,
        labels: NDArray[np.int64],
        counts: NDArray[np.int64],
        label_probability: NDArray[np.float64],
        n_users: int,
    ) -> "Decoded":
        """Verdicts of a decoder that only counts votes (N, c): no target, nobody named, 1 where a model dissents."""
        n_inputs, n_models = labels.size, counts.sum(axis=1)
        own = np.take_along_axis(counts, labels[:, None], axis=1)[:, 0]
        return cls(
            labels,
            (own < n_models).astype(np.float64),
            np.full(n_inputs, -1, dtype=np.int64),
            [()] * n_inputs,
            np.zeros((n_inputs, n_users)),
            label_probability,
            np.zeros(n_inputs),
            [()] * n_inputs,
            np.zeros(n_inputs, dtype=np.int64),
            counts.max(axis=1, initial=0) == n_models,
        )

    def take(self, rows: ArrayLike) -> "Decoded":
        """Return the verdicts of the given rows, in that order (repeats allowed), or of those where a mask is true."""
        chosen = np.arange(len(self))[np.asarray(rows)] if len(self) else np.zeros(0, dtype=np.int64)
        taken: dict[str, Any] = {
            name: column[chosen] if isinstance(column, np.ndarray) else [column[row] for row in chosen.tolist()]
            for name, column in self._columns.items()
        }
        return replace(self, **taken)

    def named(self, users: tuple[str, ...] | None) -> "Decoded":
        """Return the verdicts with names of the users."""
        return self if users is None else replace(self, users=users)

    def name_users(self, users: Sequence[int]) -> tuple[int | str, ...]:
        """Return users by name, or as the indices they are."""
        return tuple(users) if self.users is None else tuple(self.users[user] for user in users)

    def _sheet(self) -> Sheet:
        from codeward._charts import draw_flagged

        columns = {
            "label": self.labels.tolist(),
            "attack probability": self.attack_probability.tolist(),
            "suspects": [self.name_users(found) for found in self.suspects],
            "target": self.targets.tolist(),
            "explanations": (np.array([len(sets) for sets in self.suspect_sets], dtype=int) + self.more_sets).tolist(),
        }
        draw = partial(draw_flagged, self.attack_probability[~self.agreed], len(self))
        title = f"Verdicts on {len(self):,} inputs; alarms (above {ALARM}): {int(self.alarms().sum()):,}"
        return Sheet(title, columns, draw)

    def alarms(self, threshold: float = ALARM) -> NDArray[np.bool_]:
        """Return the inputs whose attack probability is *above* the threshold, shape (N,).

        Never one on which all models agree. Where the code detects k attackers they leave a model alone, which still
        says the label: then it is what everybody says and nothing was changed. More attackers, or a weaker code, may
        reach every model, but then no vote is left that could tell.
        """
        return np.asarray((self.attack_probability > threshold) & ~self.agreed)


class Decoder(Protocol):
    """What every decoder offers.

    Attributes
    ----------
    needs : {"votes", "scores"}
        What it decodes: votes of shape (N, m), or class scores (log-probabilities) of shape (N, m, c).
    n_classes : int or None
        Number of classes c; None where every call finds it.
    threshold : float
        Attack probability above which an input is an alarm, unless somebody asks for another.

    Examples
    --------
    >>> from codeward.decoding import PluralityDecoder
    >>> decoder: Decoder = PluralityDecoder(n_classes=2)
    >>> decoder.needs
    'votes'
    """

    @property
    def needs(self) -> Literal["votes", "scores"]:
        """What it decodes."""

    @property
    def n_classes(self) -> int | None:
        """Number of classes c, or None."""

    @property
    def threshold(self) -> float:
        """Attack probability above which an input is an alarm."""

    def decode(self, observed: ArrayLike, /) -> Decoded:
        """Verdicts with everything the decoder knows, for votes or scores of N inputs."""

    def predict(self, observed: ArrayLike, /) -> NDArray[np.int64]:
        """Labels alone, shape (N,), by the cheapest route; equal to ``decode(observed).labels``."""


def have_agreed(votes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether all models vote alike, for votes of shape (N, m), shape (N,)."""
    return np.asarray((votes == votes[:, :1]).all(axis=1))


def first_best(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Index of the largest value of each row of shape (N, K), shape (N,); tied ones go to the lowest index."""
    best = values.max(axis=1, keepdims=True)
    return np.asarray(np.argmax(values >= best * (1 - TIE_TOLERANCE), axis=1), dtype=np.int64)


def distinct_rows(votes: NDArray[np.int64], n_classes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct vote vectors and where each input's is: ``distinct[inverse]`` equals ``votes``.

    Returns
    -------
    distinct : ndarray of int64, shape (U, m)
    inverse : ndarray of int64, shape (N,)

    Examples
    --------
    >>> distinct, inverse = distinct_rows(np.array([[0, 1], [1, 1], [0, 1]]), n_classes=2)
    >>> distinct.shape, inverse
    ((2, 2), array([0, 1, 0]))
    """
    n_inputs, n_models = votes.shape
    if n_inputs == 0 or n_models == 0:
        return votes, np.zeros(n_inputs, dtype=np.int64)
    # Mixed-radix numbers sort much faster than rows; several words where one of 62 bits does not hold a row.
    per_word = max(1, int(62 / max(np.log2(max(n_classes, 2)), 1e-9)))
    words = []
    for start in range(0, n_models, per_word):
        part = votes[:, start : start + per_word]
        words.append(part @ (n_classes ** np.arange(part.shape[1], dtype=np.int64)))
    order = np.argsort(words[0], kind="stable") if len(words) == 1 else np.lexsort(words)
    new = np.zeros(n_inputs, dtype=bool)
    new[0] = True
    for word in words:
        ordered = word[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    inverse = np.empty(n_inputs, dtype=np.int64)
    inverse[order] = np.cumsum(new) - 1
    return votes[order[new]], inverse


class VerdictMemory:
    """A decoder on votes that decodes a vote vector once, however many parts of a file it is in.

    Parameters
    ----------
    decoder : Decoder
        Whose verdict on an input depends on that input alone.
    limit : int
        Numbers to keep at most; past it everything is forgotten.

    Examples
    --------
    >>> from codeward.decoding import PluralityDecoder
    >>> memory = VerdictMemory(PluralityDecoder(n_classes=2))
    >>> memory.decode([[0, 0, 1], [1, 1, 1]]).labels, memory.decode([[1, 1, 1]]).labels
    (array([0, 1]), array([1]))
    """

    needs: Literal["votes"] = "votes"

    def __init__(self, decoder: Decoder, limit: int = 8_000_000) -> None:
        self.decoder, self.limit = decoder, limit
        self._rows: dict[bytes, int] = {}
        self._known: Decoded | None = None

    @property
    def n_classes(self) -> int | None:
        """Number of classes c of the decoder."""
        return self.decoder.n_classes

    @property
    def threshold(self) -> float:
        """Threshold of the decoder."""
        return self.decoder.threshold

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,)."""
        return self.decode(votes).labels

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m), as the decoder would."""
        checked = np.asarray(votes)
        if self.n_classes is None or checked.ndim != 2 or checked.dtype.kind not in "iu" or not checked.size:
            return self.decoder.decode(votes)
        if checked.min() < 0 or checked.max() >= self.n_classes:
            return self.decoder.decode(votes)  # which says what is wrong
        distinct, inverse = distinct_rows(checked.astype(np.int64, copy=False), self.n_classes)
        raw = distinct.astype(np.min_scalar_type(self.n_classes)).tobytes()
        width = len(raw) // len(distinct)
        keys = [raw[start : start + width] for start in range(0, len(raw), width)]
        new = [row for row, key in enumerate(keys) if key not in self._rows]
        if new or self._known is None:
            found = self.decoder.decode(distinct[new])
            wide = found.user_probability.shape[1] + found.label_probability.shape[1] + SHOWN + 8
            if self._known is None or (len(self._rows) + len(new)) * wide > self.limit:
                found = found if len(new) == len(keys) else self.decoder.decode(distinct)
                self._rows, new, self._known = {}, list(range(len(keys))), None
            first = len(self._rows)
            self._rows.update((keys[row], first + place) for place, row in enumerate(new))
            self._known = found if self._known is None else Decoded.concatenate([self._known, found])
        return self._known.take(np.array([self._rows[key] for key in keys], dtype=np.int64)[inverse])


@dataclass(frozen=True)
class RocCurve:
    """One point per distinct threshold; an input is an alarm when its attack probability is *above* the threshold.

    Attributes
    ----------
    fpr, tpr : ndarray of float64, shape (K,)
        Share of the clean inputs flagged (false alarms) and of the triggered ones (detections), rising from 0 to 1.
    thresholds : ndarray of float64, shape (K,)
        Falling to minus infinity (always an alarm).

    Examples
    --------
    >>> roc_curve([0.1, 0.2], [0.2, 0.9]).auc
    0.875
    """

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]
    thresholds: NDArray[np.float64]

    @property
    def auc(self) -> float:
        """Area under the curve: Pr(a triggered input scores above a clean one), ties counted half."""
        return float(np.trapezoid(self.tpr, self.fpr))

    def threshold_for(self, false_alarm_rate: float) -> float:
        """Lowest threshold whose share of false alarms is at most ``false_alarm_rate``."""
        if not 0 <= false_alarm_rate <= 1:
            raise InputError(f"false alarm rate must be in 0..1, got {false_alarm_rate}")
        return float(self.thresholds[np.flatnonzero(self.fpr <= false_alarm_rate)[-1]])


def roc_curve(attack_probability_clean: ArrayLike, attack_probability_triggered: ArrayLike) -> RocCurve:
    """ROC curve of attack probabilities on clean inputs, shape (N0,), and triggered inputs, shape (N1,), none empty.

    Inputs with equal probability are flagged together: the curve has one point for them, and its AUC counts ties half.

    Examples
    --------
    >>> roc_curve([0.1, 0.2], [0.2, 0.9]).tpr
    array([0. , 0.5, 1. , 1. ])
    """
    groups = [
        np.asarray(attack_probability_clean, dtype=np.float64),
        np.asarray(attack_probability_triggered, np.float64),
    ]
    for name, group in zip(("clean", "triggered"), groups, strict=True):
        if group.ndim != 1 or group.size == 0 or np.isnan(group).any():
            raise InputError(f"attack probabilities of {name} inputs: expected a list of numbers, not empty, no NaN")
    values = np.unique(np.concatenate(groups))[::-1]
    rates = [1 - np.searchsorted(np.sort(group), values, side="left") / group.size for group in groups]
    return RocCurve(np.append(0.0, rates[0]), np.append(0.0, rates[1]), np.append(values, -np.inf))


def alarm_threshold(attack_probability_clean: ArrayLike, false_alarm_rate: float) -> float:
    """Lowest threshold (alarms are above it) that flags at most this share of the given clean inputs, shape (N,).

    Examples
    --------
    >>> alarm_threshold([0.1, 0.2, 0.2, 0.9], 0.25)
    0.2
    """
    return roc_curve(attack_probability_clean, attack_probability_clean).threshold_for(false_alarm_rate)
