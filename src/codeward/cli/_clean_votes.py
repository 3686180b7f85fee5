"""What is decoded and certified: a vote file with its code and names, and where the noise model comes from."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codeward._errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from codeward.codes import Code
    from codeward.decoding import VoteReader, VoteSet
    from codeward.runs import Cell


@dataclass(frozen=True)
class VoteSource:
    """A vote file with the code of its models, and what its run folder knows of them.

    Attributes
    ----------
    reader : VoteReader
    code : Code
    class_names : tuple of str, or None
        Names of the classes, where the folder of `codeward train` (or run) has them.
    validation : Path or None
        Votes on clean validation inputs beside the file, where a whole folder was asked for.
    cell : Cell or None
        Of that folder.
    """

    reader: "VoteReader"
    code: "Code"
    class_names: tuple[str, ...] | None = None
    validation: Path | None = None
    cell: "Cell | None" = None

    def name_users(self, users: Iterable[int]) -> list[Any]:
        """Users by name, or by index where they have none."""
        return [self.code.users[user] for user in users] if self.code.users else list(users)

    def name_class(self, label: int | None) -> Any:
        """Return the name of a class, or its number where it has none (-1: no verdict, no target)."""
        named = self.class_names is not None and label is not None and 0 <= label < len(self.class_names)
        return self.class_names[label] if named else label  # type: ignore[index]


def open_votes(votes: Path, code: Path | None, force: bool) -> VoteSource:
    """Open a vote file, or the clean votes of a run folder; names come from the folder, the code too unless given."""
    from codeward.codes import Code
    from codeward.decoding import VoteReader

    cell = _find_cell(votes)
    if code is None and cell is None:
        raise InputError(f"{votes}: --code FILE is needed; only a folder of codeward train or run has its code with it")
    file = code if code is not None else cell.folder.code_file  # type: ignore[union-attr]
    the_code = Code.load(file)
    validation = None
    if votes.is_dir() and cell is not None:
        validation = cell.folder.votes(cell.repeat, cell.n_attackers, "validation")
        validation = validation if validation.is_file() else None
        votes = cell.folder.votes(cell.repeat, cell.n_attackers, "clean")
    reader = VoteReader(votes)
    if reader.n_models != the_code.n_models:
        raise InputError(f"{votes}: {reader.n_models} votes an input, but {file} has {the_code.n_models} models (rows)")
    check_digest(reader, the_code, file, force)
    if reader.n_inputs == 0:
        raise InputError(f"{votes}: no inputs")
    # Another code's columns are other users: names of the folder are for its own code.
    ours = cell is not None and cell.code.digest == the_code.digest
    names = cell.class_names if ours and cell is not None else None
    return VoteSource(reader, the_code, names, validation, cell if ours and validation is not None else None)


def check_digest(reader: "VoteReader", code: "Code", file: Path, force: bool) -> None:
    """Refuse votes of models that another code grouped, where the vote file says whose they are."""
    if reader.code_digest not in (None, code.digest) and not force:
        raise InputError(
            f"{reader.path}: votes of the code with digest {reader.code_digest}, but {file} has digest {code.digest}; "
            "give the code that the models were trained with, or --force"
        )


def _find_cell(votes: Path) -> "Cell | None":
    """Return the cell of a run folder, or that of a vote file in one; None for any other file."""
    from codeward.runs import is_run

    place = votes if votes.is_dir() else votes.parent.parent
    # A core install has no YAML, and reads vote files all the same.
    if not is_run(place):
        if not votes.is_dir():
            return None
        raise InputError(f"{votes}: no run folder (no config.yaml); give a vote file (.npz, .csv) or such a folder")
    from codeward.runs import Cell, RunFolder

    folder = RunFolder(place)
    if not votes.is_dir():
        known = folder.find_votes(votes)
        return None if known is None else Cell(folder, *known)
    cells = folder.list_votes()
    if len(cells) != 1:
        some = ", ".join(str(folder.votes(*cell, "clean")) for cell in cells[:3])
        raise InputError(f"{votes}: " + (f"several vote files; give one of them: {some}" if cells else "no votes yet"))
    return Cell(folder, *cells[0])


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
