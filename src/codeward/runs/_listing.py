"""The cells of a run folder: listed, what a decoder reads of their votes, and how they look."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._charts import ATTACKER_STYLES, Line, draw_lines, draw_matrix, make_point
from codeward._errors import InputError
from codeward._figures import Share
from codeward._notebook import Drawing, Sheet
from codeward.codes import inspect
from codeward.decoding import Decoder, ExplainedVerdict, VoteSet, explain_verdict
from codeward.runs._cell import Cell
from codeward.runs._clean_certificates import certify_kept
from codeward.runs._records import decoder_figures, rate
from codeward.runs._run_folder import RunFolder
from codeward.runs._stated_guarantees import count_words, state_guarantees, sum_up_guarantees


def list_cells(folder: str | os.PathLike[str] | RunFolder) -> list[Cell]:
    """Return the cells of a run folder that have a record, by repeat and number of attackers.

    Raises
    ------
    InputError
        When it is no run folder, holds no record, or records of several configurations or another code.

    Examples
    --------
    >>> list_cells("no/such/folder")
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no such folder
    """
    place = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    path = place.path
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    if not place.code_file.is_file() or not place.config_file.is_file():
        raise InputError(f"{path}: not a run folder (no code.json and config.yaml); `codeward run -o DIR` makes one")
    cells = [Cell(place, *found) for found in place.list_records()]
    if not cells:
        raise InputError(f"{path}: no records yet; {place.advice} finishes the run")
    if len({cell.record["config_digest"] for cell in cells}) > 1:
        raise InputError(f"{path}: holds records of different configurations; one run at a time")
    return cells


def find_cell(folder: str | os.PathLike[str] | RunFolder, repeat: int = 0, n_attackers: int | None = None) -> Cell:
    """Return one cell of a run folder that has a record; without a number of attackers the one with the most.

    Examples
    --------
    >>> find_cell("no/such/folder", repeat=0)
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no such folder
    """
    cells = [cell for cell in list_cells(folder) if cell.repeat == repeat]
    if n_attackers is not None:
        cells = [cell for cell in cells if cell.n_attackers == n_attackers]
    if not cells:
        many = "" if n_attackers is None else f" with {n_attackers} attackers"
        path = folder.path if isinstance(folder, RunFolder) else folder
        raise InputError(f"{path}: no record of repeat {repeat}{many}")
    return cells[-1]


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


#: Log-probability that stands for "never" in a vote file; half precision ends at -65,504.
_LOWEST_SCORE = -60_000.0


def round_scores(scores: NDArray[Any]) -> NDArray[np.float16]:
    """Return class scores as vote files keep them: half precision, finite.

    Votes are kept beside the scores, so no argmax depends on it. A model that diverged has NaN, which no reader should
    have to know: it counts as the lowest score.

    Examples
    --------
    >>> round_scores(np.array([-0.5, -np.inf, np.nan])).tolist()
    [-0.5, -60000.0, -60000.0]
    """
    kept: NDArray[Any] = np.clip(np.nan_to_num(scores, nan=_LOWEST_SCORE), _LOWEST_SCORE, 0)
    return kept.astype(np.float16)


def draw_accuracy(cells: Sequence[Cell]) -> Drawing:
    """Draw right labels of vote and decoder against the number of attackers, like one panel of the paper's Figure 5.

    A line is the mean over repeats, a bar its standard deviation.

    Examples
    --------
    >>> "attackers" in draw_accuracy([])
    True
    """
    sizes = sorted({cell.n_attackers for cell in cells})
    lines = []
    for decoder, word, style in (
        ("plurality", "vote", ATTACKER_STYLES[0]),
        ("right", "decoder", ATTACKER_STYLES[1]),
    ):
        shares: dict[int, list[Share]] = {}
        for cell in cells:
            shares.setdefault(cell.n_attackers, []).extend(list_shares(cell, decoder))
        points = tuple(make_point(size, shares[size], f"{word}, {count_words(size, 'attacker')}") for size in sizes)
        lines.append(Line(word, style.kind, style.dashed, style.marker, points))
    return draw_lines(lines, "Accuracy by number of attackers", "attackers", sizes or (0, 1))


def list_shares(cell: Cell, name: str) -> list[Share]:
    """Return a figure of a cell on all triggered inputs, one a group, or on clean ones without attackers.

    ``plurality`` is the plain vote's; ``right`` and ``alarms`` are the run's own decoder's.
    """
    figures, own = cell.record["figures"], decoder_figures(cell.record)
    if name == "plurality":
        return [part["all"][name] for part in [group["triggered"] for group in figures["groups"]] or [figures["clean"]]]
    return [group["all"][name] for group in own["groups"]] or [own["clean"][name]]


def draw_input(cell: Cell, index: int | None = None) -> Drawing | None:
    """Draw what every sub-model says about one triggered input; by default `pick_input`'s. None where there is none.

    Examples
    --------
    >>> draw_input(Cell(RunFolder("no/such/folder"), 0, 3)) is None
    True
    """
    row = pick_input(cell) if index is None else index
    if row is None:
        return None
    given, group = cell.triggered[0], cell.groups[0]
    assert given.labels is not None  # the votes of a cell have labels
    votes, label, words = given.votes[row].tolist(), int(given.labels[row]), list_class_names(cell)
    told = f"{cell.code.n_models} sub-models vote on one triggered input; {votes.count(label)} say the true label"
    says, right = [words[vote] for vote in votes], [vote == label for vote in votes]
    return draw_matrix(cell.code.matrix, cell.code.users, group.attackers, says, right, told)


def pick_input(cell: Cell) -> int | None:
    """Return the first triggered input on which most sub-models obey, of another class than the target.

    Examples
    --------
    >>> pick_input(Cell(RunFolder("no/such/folder"), 0, 3)) is None
    True
    """
    if not cell.n_attackers or not cell.has_votes:
        return None
    given, target = cell.triggered[0], cell.groups[0].target
    others = np.flatnonzero(given.labels != target)
    if not others.size:
        return None
    obey = (given.votes[others] == target).sum(axis=1)
    return int(others[np.argmax(obey * 2 > cell.code.n_models)])


def explain_input(cell: Cell, inputs: str = "triggered", index: int = 0) -> ExplainedVerdict:
    """Return the verdict of the run's decoder on one input of a vote file, with what explains it.

    Examples
    --------
    >>> explain_input(Cell(RunFolder("no/such/folder"), 0, 3))
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder/config.yaml: no such file
    """
    decoder, given = cell.decoder(), cell.load_votes(inputs)
    if not 0 <= index < len(given.votes):
        raise InputError(f"{cell.name}: {inputs} has inputs 0 to {len(given.votes) - 1}")
    votes = given.votes[[index]]
    one = VoteSet(votes, scores=None if given.scores is None else given.scores[[index]])
    found = decoder.decode(observe(decoder, one))
    return explain_verdict(found, votes, cell.code, cell.class_names, threshold=decoder.threshold)


def list_class_names(cell: Cell) -> list[str]:
    """Return names of the classes, their numbers where they have none.

    Examples
    --------
    >>> list_class_names(Cell(RunFolder("no/such/folder"), 0, 0))
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder/votes/repeat0-attackers0.json: no such file
    """
    names = cell.class_names
    return [str(names[label]) if names and label < len(names) else str(label) for label in range(cell.n_classes)]


def describe_run(folder: RunFolder) -> Sheet:
    """Return what a notebook shows of a run: a row a cell and group, accuracy as a picture."""
    cells = list_cells(folder)
    rows = []
    for cell in cells:
        own, plain = decoder_figures(cell.record), cell.record["figures"]
        groups = zip(plain["groups"], own["groups"], strict=True)
        pairs = [(vote["triggered"]["all"], found["all"]) for vote, found in groups]
        for vote, found in pairs or [(plain["clean"]["all"], own["clean"])]:
            shares = (vote["plurality"], found["right"], found["alarms"], own["clean"]["alarms"])
            rows.append((cell.repeat, cell.n_attackers, *map(rate, shares)))
    heads = ("repeat", "attackers", "vote right", "decoder right", "alarms", "false alarms")
    columns = {head: [row[place] for row in rows] for place, head in enumerate(heads)}
    kept = certify_kept(cells[0]) if cells and cells[0].has_votes else None
    said = sum_up_guarantees(state_guarantees(inspect(folder.code), kept))
    return Sheet(f"{folder.path}: {len(cells)} cells. {said}", columns, lambda: draw_accuracy(cells))


def describe_cell(cell: Cell) -> Sheet:
    """Return what a notebook shows of a cell: who attacks, one triggered input, and what each sub-model learned."""
    who = "; ".join(f"{', '.join(group.names)} want {list_class_names(cell)[group.target]}" for group in cell.groups)
    columns = {
        "sub-model": list(range(cell.code.n_models)),
        "users": [tuple(map(cell.code.user_name, np.flatnonzero(row).tolist())) for row in cell.code.matrix],
        "right on clean inputs": (cell.clean.votes == np.asarray(cell.clean.labels)[:, None]).mean(axis=0).tolist(),
        "reached by an attacker": cell.reached.tolist(),
    }
    drawn = draw_input(cell) or draw_matrix(cell.code.matrix, cell.code.users)
    return Sheet(f"{cell.name}: {who or 'nobody attacks on purpose'}", columns, lambda: drawn)
