"""Where a decoder's noise model comes from: the vote file, a validation file, or an assumption."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from codeward._errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from codeward.decoding import VoteReader, VoteSet


def find_classes(reader: "VoteReader", classes: int | None) -> int:
    """Find c: as asked for, as in the confusion matrices, or one more than the largest vote or label in the file."""
    if reader.confusion is not None:
        found = int(reader.confusion.shape[1])
        if classes not in (None, found):
            raise InputError(f"--classes {classes}, but the confusion matrices have {found}")
        return found
    if classes is not None:
        if classes < 1:
            raise InputError(f"--classes must be 1 or more, got {classes}")
        return classes
    largest = 0
    for part in reader.chunks():
        largest = max(largest, int(part.votes.max(initial=0)))
        if part.labels is not None:
            largest = max(largest, int(part.labels.max(initial=0)))
    return max(2, largest + 1)


def find_confusion(
    reader: "VoteReader", n_classes: int, accuracy: float | None, validation: Path | None = None
) -> "tuple[NDArray[np.float64], str]":
    """Confusion matrices of the m models, shape (m, c, c), and where they come from in words."""
    import numpy as np

    from codeward.decoding import count_confusion, smooth_confusion

    if accuracy is not None:
        if not 0 < accuracy < 1:
            raise InputError(f"--accuracy must be between 0 and 1, got {accuracy}")
        one = np.full((n_classes, n_classes), (1 - accuracy) / max(n_classes - 1, 1))
        np.fill_diagonal(one, accuracy)
        return np.repeat(
            one[None], reader.n_models, axis=0
        ), f"assumed: every model right with probability {accuracy:g}"
    if validation is not None:
        return _estimate_on(validation, reader.n_models, n_classes), f"estimated on {validation} (add-0.5 per cell)"
    if reader.confusion is not None:
        return reader.confusion, "given in the vote file"
    if not reader.has_labels:
        raise InputError(
            f"{reader.path}: neither confusion matrices nor labels to estimate them; add `confusion` (or `labels` of "
            "clean inputs) to the file, or assume --accuracy P"
        )
    counts = np.zeros((reader.n_models, n_classes, n_classes), dtype=np.int64)
    start = 0
    for part in reader.chunks():
        assert part.labels is not None
        first = start % 2
        counts += count_confusion(part.votes[first::2], part.labels[first::2], n_classes)
        start += part.votes.shape[0]
    return smooth_confusion(counts), "estimated on the even-numbered inputs (add-0.5 per cell)"


def find_validation(reader: "VoteReader", validation: Path | None, name: str) -> "tuple[VoteSet, str, str]":
    """Return the clean inputs to fit on, the decoder that can be fitted on them, and where they are from in words.

    The decoder on scores gives way to the one on votes where either file has no scores.
    """
    from codeward.decoding import load_votes

    if validation is None:
        raise InputError(
            f"--decoder {name} is fitted on clean labelled inputs: give --validation FILE (votes, labels, scores)"
        )
    clean = load_votes(validation)
    if clean.labels is None:
        raise InputError(f"{validation}: no labels; the fit needs the true label of every validation input")
    if name != "discounted" and clean.scores is not None and reader.has_scores:
        return clean, name, f"fitted on the scores of {validation}"
    without = "" if name == "discounted" else f" (no scores in {validation if clean.scores is None else reader.path})"
    chosen = "calibrated" if name == "calibrated" else "discounted"
    return replace(clean, scores=None), chosen, f"fitted on the votes of {validation}{without}"


def _estimate_on(validation: Path, n_models: int, n_classes: int) -> "NDArray[np.float64]":
    """Confusion matrices from a file of clean labelled inputs."""
    from codeward.decoding import estimate_confusion, load_votes

    clean = load_votes(validation)
    if clean.labels is None:
        raise InputError(f"{validation}: no labels to estimate confusion matrices from")
    if clean.votes.shape[1] != n_models:
        raise InputError(f"{validation}: {clean.votes.shape[1]} votes an input, not {n_models}")
    return estimate_confusion(clean.votes, clean.labels, n_classes)
