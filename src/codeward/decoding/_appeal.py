"""A vote with an appeal: models of few users decide, and where they are at odds, models of many users do."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding._decoded import ALARM, Decoded
from codeward.decoding._vote_counting import count_votes
from codeward.decoding._vote_models import check_votes


class AppealDecoder:
    """The first models vote; where their winner has at most ``most`` votes, the other models vote instead.

    Ties go to the smaller class in both votes. Meant for a partition stacked on a code with more users a model
    (`codeward.codes.stack_codes`): few attackers cannot sway many small models, and large models know more where the
    small ones are at odds.

    Guarantee (Proposition 41 of docs/theory.md; threat model *arbitrary*): if every user is in one of the first models,
    whatever plurality of these certifies against k > ``most`` users stays certified. `codeward.certify` gives the exact
    radius of every input.

    Parameters
    ----------
    code : Code
        All models, the first ones first.
    n_first : int
        How many models vote first, at least 1; at least one must be left for the appeal.
    most : int
        The first vote counts when its winner has more votes than this.
    n_classes : int
        Number of classes c.

    Examples
    --------
    >>> from codeward.codes import Code, partition_code, stack_codes
    >>> code = stack_codes(partition_code(4, 4), partition_code(4, 2))
    >>> decoder = AppealDecoder(code, n_first=4, most=2, n_classes=3)
    >>> decoder.predict([[0, 0, 0, 1, 2, 2], [0, 0, 1, 1, 2, 2]])
    array([0, 2])
    """

    needs: Literal["votes"] = "votes"
    threshold: float = ALARM

    def __init__(self, code: Code, n_first: int, most: int, n_classes: int) -> None:
        if not 1 <= n_first < code.n_models or most < 0 or n_classes < 2:
            raise InputError(
                f"appeal: expected 1 to {code.n_models - 1} first models, most >= 0 and 2 classes or more, got "
                f"{n_first}, {most} and {n_classes}"
            )
        self.code, self.n_first, self.most, self.n_classes = code, n_first, most, n_classes

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,)."""
        return self._decide(votes)[0]

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m).

        ``label_probability`` holds the shares of the vote that decides; the attack probability is 1 where any model
        dissents from the verdict; there are no targets (-1) and no suspects.
        """
        labels, shares, counts = self._decide(votes)
        return Decoded.by_counting(labels, counts, shares, self.code.n_users)

    def _decide(self, votes: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Verdicts (N,), shares in the vote that decided (N, c), and all votes (N, c)."""
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        first, second = (count_votes(part, self.n_classes) for part in np.split(checked, [self.n_first], axis=1))
        chosen = np.where(first.max(axis=1, keepdims=True, initial=0) > self.most, first, second)
        shares = chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1)
        return np.argmax(chosen, axis=1).astype(np.int64), shares, first + second
