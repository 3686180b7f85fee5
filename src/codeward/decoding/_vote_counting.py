"""Decoders that count votes: the plain vote, and consensus (hit models say anything)."""

from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code, PatternTable, enumerate_patterns
from codeward.decoding._assumptions import check_votes
from codeward.decoding._attacker_sets import join_ranked, rank_sets
from codeward.decoding._decoded import ALARM, NO_VERDICT, Decoded, distinct_rows, have_agreed

#: Attacker sets tried at most to explain one vote vector; past it nobody is named for certain.
MOST_TRIED = 20_000


class PluralityDecoder:
    """The class with the most votes; ties go to the smaller class, as in DPA (Levine and Feizi, 2021).

    Threat model: none of its own; `codeward.certify` gives its radius under *arbitrary* attacks. Where every user
    feeds one model, no decoder that treats classes and models alike certifies more, ties aside (Proposition 45).

    Parameters
    ----------
    code : Code, optional
        Checked against the number of votes when given.
    n_classes : int, optional
        Number of classes c; by default one more than the largest vote of each call.

    Examples
    --------
    >>> PluralityDecoder().predict([[0, 1, 1], [2, 1, 0]])
    array([1, 0])
    """

    needs: Literal["votes"] = "votes"
    threshold: float = ALARM

    def __init__(self, code: Code | None = None, n_classes: int | None = None) -> None:
        self.code = code
        self.n_classes = n_classes

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,)."""
        return np.asarray(np.argmax(self._count(votes), axis=1), dtype=np.int64)

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m).

        ``label_probability`` holds vote shares; the attack probability is 1 where any model dissents; there are no
        targets (-1) and no suspects.
        """
        counts = self._count(votes)
        labels = np.argmax(counts, axis=1).astype(np.int64)
        n_users = self.code.n_users if self.code is not None else 0
        return Decoded.by_counting(labels, counts, counts / max(int(np.asarray(votes).shape[1]), 1), n_users)

    def _count(self, votes: ArrayLike) -> NDArray[np.int64]:
        checked = check_votes(votes, self.code.n_models if self.code is not None else None, self.n_classes)
        if checked.shape[1] == 0:
            raise InputError("votes: no models voted")
        return tally_votes(checked, self.n_classes or int(checked.max(initial=0)) + 1)


def tally_votes(votes: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """Votes per class, shape (N, c), for checked votes of shape (N, m)."""
    n_inputs = votes.shape[0]
    cells = np.arange(n_inputs)[:, None] * n_classes + votes
    return np.bincount(cells.ravel(), minlength=n_inputs * n_classes).reshape(n_inputs, n_classes)


class ConsensusDecoder:
    r"""The one label for which at most k users explain every dissenting model but at most e.

    A label l is *explained* by an attacker set x when at most e of the models that do not say l are outside the hit
    pattern of x. The verdict is the label that some set of at most k users explains, if there is exactly one; otherwise
    there is no verdict (-1).

    Guarantee (Proposition 14 of docs/theory.md; threat model *arbitrary*: hit models may say anything). Let every
    2k-sum of the code have at least 2e + 1 zeros, let at most k users attack and at most e models that they do not hit
    be wrong. Then the verdict is the true label.

    Without the condition on the code the answer may be "no verdict" and, if more than k users attack or more than e
    clean models err, wrong: it is never a guess between two explained labels.

    Parameters
    ----------
    code : Code
    n_attackers : int
        k, 0 or more.
    n_errors : int
        e, wrong clean votes to tolerate, 0 or more.
    n_classes : int, optional
        Number of classes c; by default one class past the largest vote of a call is allowed for.

    Notes
    -----
    A label nobody voted for counts as well: it is explained when m - e models can be hit (a code with such a k-sum
    guarantees nothing, and the decoder says so by giving no verdict).

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> ConsensusDecoder(code, n_attackers=1).decode([[0, 0, 0, 0, 1, 1]]).suspects
    [(2,)]
    >>> ConsensusDecoder(code, n_attackers=1).predict([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2]])
    array([ 0, -1])
    """

    needs: Literal["votes"] = "votes"
    threshold: float = ALARM

    def __init__(self, code: Code, n_attackers: int, n_errors: int = 0, n_classes: int | None = None) -> None:
        self.code = code
        self.n_attackers = n_attackers
        self.n_errors = n_errors
        self.n_classes = n_classes

    @cached_property
    def patterns_(self) -> PatternTable:
        """All hit patterns of at most k users, fewest users first."""
        for name, value in (("n_attackers", self.n_attackers), ("n_errors", self.n_errors)):
            if int(value) != value or value < 0:
                raise InputError(f"{name} must be a whole number, 0 or more, got {value}")
        return enumerate_patterns(self.code, int(self.n_attackers))

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,); -1 is no verdict."""
        labels, _, inverse, _ = self._explain(votes)
        return labels[inverse]

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m).

        ``suspect_sets`` are the minimal sets of at most k users that explain the verdict, the smallest first (lowest
        indices on a tie), none without a verdict. Under the assumptions of the guarantee the attackers contain one of
        them, so that ``suspects``, the users in all of them, have attacked for certain. ``user_probability`` is the
        share of these sets that a user is in. The attack probability is 1 where nobody is no explanation or there is no
        verdict, else 0; ``targets`` is -1: hit models need not agree. ``label_probability`` is 1 for the verdict, or
        shared evenly by the explained labels.
        """
        labels, distinct, inverse, explained = self._explain(votes)
        n_distinct = labels.size
        users = np.zeros((n_distinct, self.code.n_users))
        answers = []
        for row, label in enumerate(labels.tolist()):
            found, missed = self._list_minimal(distinct[row] != label) if label >= 0 else ([], 0)
            for x in found:
                users[row, list(x)] += 1 / len(found)
            answers.append(rank_sets(dict.fromkeys(found, 1.0), missed))
        suspects = join_ranked(answers)
        shares = np.where(explained.any(axis=1, keepdims=True), explained, True).astype(np.float64)
        return Decoded(
            labels,
            np.array([float(label < 0 or () not in sets) for label, sets in zip(labels, suspects.sets, strict=True)]),
            np.full(n_distinct, -1, dtype=np.int64),
            suspects.certain,
            np.minimum(users, 1.0),
            shares / shares.sum(axis=1, keepdims=True),
            np.zeros(n_distinct),
            suspects.sets,
            suspects.more,
            have_agreed(distinct),
            self.code.users,
        ).take(inverse)

    def _list_minimal(self, dissent: NDArray[np.bool_]) -> tuple[list[tuple[int, ...]], int]:
        """Minimal sets of at most k users that hit all dissenting models (m,) but e, and 1 if some were not looked at.

        Of any e + 1 dissenting models an explanation hits one: so the users of the first e + 1 that nobody hits yet are
        tried, one after the other.
        """
        columns = [_as_number(column) for column in self.code.matrix.T]
        users = [np.flatnonzero(row).tolist() for row in self.code.matrix]
        widest = max(column.bit_count() for column in columns)
        start, most = _as_number(dissent), int(self.n_attackers)
        waiting: list[tuple[tuple[int, ...], int]] = [((), start)]
        seen: set[tuple[int, ...]] = {()}
        found = []
        while waiting and len(seen) < MOST_TRIED:
            chosen, left = waiting.pop()
            if left.bit_count() <= self.n_errors:
                without = (_leave(start, columns, chosen[:k] + chosen[k + 1 :]) for k in range(len(chosen)))
                if all(rest.bit_count() > self.n_errors for rest in without):
                    found.append(chosen)
                continue
            if left.bit_count() - (most - len(chosen)) * widest > self.n_errors:
                continue
            free = [model for model in range(dissent.size) if left >> model & 1][: int(self.n_errors) + 1]
            for user in sorted({user for model in free for user in users[model]}):
                longer = tuple(sorted((*chosen, user)))
                if longer not in seen:
                    seen.add(longer)
                    waiting.append((longer, left & ~columns[user]))
        return sorted(found, key=lambda x: (len(x), x)), int(bool(waiting))

    def _explain(
        self, votes: ArrayLike
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Verdicts (U,) on the distinct votes (U, m), where each input's are (N,), and the explained labels (U, c)."""
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        n_classes = self.n_classes or int(checked.max(initial=0)) + 2
        distinct, inverse = distinct_rows(checked, n_classes)
        bits = self.patterns_.bits
        explained = np.zeros((distinct.shape[0], n_classes), dtype=bool)
        # |D \ s| = sum over models outside s of [y_i != l]: one matrix product a label and chunk.
        outside = (~bits).T.astype(np.float32)
        step = max(1, 20_000_000 // max(1, bits.shape[0]))
        for label in range(n_classes):
            for start in range(0, distinct.shape[0], step):
                here = slice(start, start + step)
                # Zeros and ones cannot be invalid, but BLAS was once seen to raise the flag (as in numpy issue 24067).
                with np.errstate(invalid="ignore"):
                    outliers = (distinct[here] != label).astype(np.float32) @ outside
                explained[here, label] = (outliers <= self.n_errors).any(axis=1)
        only = explained.sum(axis=1) == 1
        labels = np.where(only, explained.argmax(axis=1), NO_VERDICT).astype(np.int64)
        return labels, distinct, inverse, explained


def _as_number(bits: NDArray[np.bool_]) -> int:
    """Return a set of models as a number, model i being bit i."""
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def _leave(models: int, columns: list[int], chosen: tuple[int, ...]) -> int:
    """Models that none of these users hits."""
    for user in chosen:
        models &= ~columns[user]
    return models
