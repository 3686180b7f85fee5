"""What the decoder of a run reads of a vote file."""

from typing import Any

from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.decoding import Decoder, VoteSet


def observe(decoder: Decoder, given: VoteSet) -> NDArray[Any]:
    """Return what a decoder decodes of a vote set: votes (N, m) or class scores (N, m, c).

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.decoding import PluralityDecoder
    >>> observe(PluralityDecoder(n_classes=2), VoteSet(np.array([[0, 1, 1]])))
    array([[0, 1, 1]])
    """
    if decoder.needs == "votes":
        return given.votes
    if given.scores is None:
        raise InputError(
            "the decoder reads class scores, but the vote files have none; a decoder of votes is discounted"
        )
    return given.scores
