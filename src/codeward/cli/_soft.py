"""The score decoder for the command line: fitted on a validation file, driven like a vote decoder."""

from pathlib import Path
from typing import TYPE_CHECKING

from codeward._errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from codeward.codes import Code
    from codeward.decoding import Decoded, Decoder, VoteReader
    from codeward.decoding.soft import SoftDecoder


def fit_soft(
    code: "Code", reader: "VoteReader", validation: Path | None, false_alarm_rate: float | None, quiet: bool
) -> "tuple[Decoder, str]":
    """Fit the score decoder on a validation file; on votes alone where either file has no scores."""
    from codeward._progress import show_progress
    from codeward.decoding import load_votes
    from codeward.decoding.soft import DiscountedDecoder, SoftDecoder

    if validation is None:
        raise InputError(
            "--decoder soft is fitted on clean labelled inputs: give --validation FILE (votes, labels, scores)"
        )
    clean = load_votes(validation)
    if clean.labels is None:
        raise InputError(f"{validation}: no labels; the fit needs the true label of every validation input")
    rate = 0.05 if false_alarm_rate is None else false_alarm_rate
    with show_progress("fit", 0, quiet=quiet) as progress:
        progress.advance(0, f"on {len(clean.labels):,} validation inputs, a minute, or several with many attacker sets")
        if clean.scores is not None and reader.has_scores:
            on_scores = SoftDecoder(code, false_alarm_rate=rate).fit(clean.scores, clean.labels)
            return OnScores(on_scores), f"fitted on the scores of {validation}"
        n_classes = int(max(clean.votes.max(), clean.labels.max())) + 1
        on_votes = DiscountedDecoder(code, n_classes, false_alarm_rate=rate).fit(clean.votes, clean.labels)
        without = validation if clean.scores is None else reader.path
        return on_votes, f"fitted on the votes of {validation} (no scores in {without})"


class OnScores:
    """Let a score decoder take the place of a vote decoder: the decode loop hands it the scores of a part."""

    def __init__(self, decoder: "SoftDecoder") -> None:
        self.decoder = decoder

    def decode(self, scores: "ArrayLike") -> "Decoded":
        """Decode scores of shape (N, m, c)."""
        return self.decoder.decode(scores)

    def predict(self, scores: "ArrayLike") -> "NDArray[np.int64]":
        """Labels alone."""
        return self.decoder.decode(scores).labels
