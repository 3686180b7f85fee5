"""The votes of one cell of a run, as its studies read them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import BayesDecoder, estimate_confusion
from codeward.runs import Cell, RunFolder


@dataclass(frozen=True)
class CellVotes:
    """The votes of one cell and the decoders of the paper on them.

    Attributes
    ----------
    code : Code
    n_classes : int
    validation, clean : tuple of (votes, labels)
    groups : tuple of tuple of (votes, labels)
        Inputs with the trigger of each attacking group.
    attackers : tuple of int
        Of the first group; empty without.
    target : int
        Of the first group; -1 without.
    reached : ndarray of bool, shape (m,)
        Models that some attacker of any group feeds.
    scores : tuple of ndarray, shape (N, m, c), or None
        Of the same inputs, where the vote files have them.
    """

    code: Code
    n_classes: int
    validation: tuple[NDArray[np.int64], NDArray[np.int64]]
    clean: tuple[NDArray[np.int64], NDArray[np.int64]]
    groups: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    attackers: tuple[int, ...]
    target: int
    reached: NDArray[np.bool_]
    scores: tuple[NDArray[Any], ...] | None

    @cached_property
    def confusion(self) -> NDArray[np.float64]:
        """Confusion matrices of the validation half, shape (m, c, c)."""
        return estimate_confusion(*self.validation, self.n_classes)

    def decoder(self, **assumed: Any) -> BayesDecoder:
        """Return the paper's decoder, with its assumptions unless told otherwise."""
        return BayesDecoder(self.code, self.confusion, **assumed)

    @property
    def triggered(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Inputs with the trigger of the one attacking group; None without attackers."""
        if len(self.groups) > 1:
            raise InputError("this part of a study is for one attacking group")
        return self.groups[0] if self.groups else None

    @cached_property
    def others(self) -> NDArray[np.bool_]:
        """Triggered inputs whose true label is not the target: those an attack can change."""
        assert self.triggered is not None
        rows: NDArray[np.bool_] = self.triggered[1] != self.target
        return rows


def read_cell(place: RunFolder, repeat: int, n_attackers: int, code: Code) -> CellVotes:
    """Read the vote files of a cell."""
    cell = Cell(place, repeat, n_attackers)
    sets = [cell.validation, cell.clean, *cell.triggered]
    pairs = [(found.votes, found.labels) for found in sets if found.labels is not None]
    scores = tuple(found.scores for found in sets if found.scores is not None)
    return CellVotes(
        code,
        cell.n_classes,
        pairs[0],
        pairs[1],
        tuple(pairs[2:]),
        cell.groups[0].attackers if cell.groups else (),
        cell.groups[0].target if cell.groups else -1,
        cell.reached,
        scores if len(scores) == len(sets) else None,
    )
