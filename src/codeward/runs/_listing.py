"""The cells of a run folder that have a record, checked to belong together, and what a decoder reads of their votes."""

import os
from typing import Any

from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.decoding import Decoder, VoteSet
from codeward.runs._cell import Cell
from codeward.runs._run_folder import RunFolder


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
