"""The plain vote."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding._decoded import Decoded
from codeward.decoding._models import check_votes


class PluralityDecoder:
    """The class with the most votes; ties go to the smaller class, as in DPA (Levine and Feizi, 2021).

    Threat model: none of its own; `codeward.certify` gives its radius under *arbitrary* attacks.

    Parameters
    ----------
    code : Code, optional
        Checked against the number of votes when given.
    n_classes : int, optional
        Number of classes c; by default one more than the largest vote of each call.
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
