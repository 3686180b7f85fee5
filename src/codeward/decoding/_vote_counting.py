"""Decoders that need no noise model: the plain vote, and the consensus that holds whatever hit models say."""

from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code, PatternTable, enumerate_patterns
from codeward.decoding._decoded import NO_VERDICT, Decoded, distinct_rows
from codeward.decoding._vote_models import check_votes


class PluralityDecoder:
    """The class with the most votes; ties go to the smaller class, as in DPA (Levine and Feizi, 2021).

    Threat model: none of its own; `codeward.certify` gives its radius under *arbitrary* attacks.

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
        n_inputs = labels.size
        n_users = self.code.n_users if self.code is not None else 0
        n_models = int(np.asarray(votes).shape[1])
        return Decoded(
            labels,
            (counts.max(axis=1) < n_models).astype(np.float64),
            np.full(n_inputs, -1, dtype=np.int64),
            [()] * n_inputs,
            np.zeros((n_inputs, n_users)),
            counts / max(n_models, 1),
            np.zeros(n_inputs),
        )

    def _count(self, votes: ArrayLike) -> NDArray[np.int64]:
        checked = check_votes(votes, self.code.n_models if self.code is not None else None, self.n_classes)
        if checked.shape[1] == 0:
            raise InputError("votes: no models voted")
        return count_votes(checked, self.n_classes or int(checked.max(initial=0)) + 1)


def count_votes(votes: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
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
        return self._explain(votes)[0]

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m).

        ``suspects`` is the smallest set that explains the verdict (lowest indices on a tie), empty without a verdict;
        the attack probability is 1 where that set is not empty or there is no verdict, else 0; ``targets`` is -1: hit
        models need not agree. ``label_probability`` is 1 for the verdict, or shared evenly by the explained labels.
        """
        labels, rows, explained = self._explain(votes)
        suspects = [() if row < 0 else self.patterns_.attacker_set(row) for row in rows.tolist()]
        n_inputs = labels.size
        users = np.zeros((n_inputs, self.code.n_users))
        for i, found in enumerate(suspects):
            users[i, list(found)] = 1.0
        shares = np.where(explained.any(axis=1, keepdims=True), explained, True).astype(np.float64)
        return Decoded(
            labels,
            np.array([float(bool(found) or label < 0) for found, label in zip(suspects, labels, strict=True)]),
            np.full(n_inputs, -1, dtype=np.int64),
            suspects,
            users,
            shares / shares.sum(axis=1, keepdims=True),
            np.zeros(n_inputs),
        )

    def _explain(self, votes: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Verdicts (N,), row of the first pattern that explains each (or -1), and which labels are explained (N, c)."""
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        n_classes = self.n_classes or int(checked.max(initial=0)) + 2
        distinct, inverse = distinct_rows(checked, n_classes)
        bits = self.patterns_.bits
        first = np.full((distinct.shape[0], n_classes), -1, dtype=np.int64)
        # |D \ s| = sum over models outside s of [y_i != l]: one matrix product a label and chunk.
        outside = (~bits).T.astype(np.float32)
        step = max(1, 20_000_000 // max(1, bits.shape[0]))
        for label in range(n_classes):
            for start in range(0, distinct.shape[0], step):
                here = slice(start, start + step)
                covered = (distinct[here] != label).astype(np.float32) @ outside <= self.n_errors
                first[here, label] = np.where(covered.any(axis=1), covered.argmax(axis=1), -1)
        explained = first >= 0
        only = explained.sum(axis=1) == 1
        labels = np.where(only, explained.argmax(axis=1), NO_VERDICT).astype(np.int64)
        rows = np.where(only, first.max(axis=1), -1)
        return labels[inverse], rows[inverse], explained[inverse]
