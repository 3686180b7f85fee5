"""One cell of a run folder: the models that serve, and what is needed to weigh their incidents."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward.codes import Code, inspect
from codeward.decoding import VoteSet, load_votes
from codeward.serve._evidence import Examiner


@dataclass(frozen=True)
class RunCell:
    """One repeat and number of attackers of a run folder; each has its own models.

    Attributes
    ----------
    folder : Path
    record : dict
        The cell's record; see `codeward.experiments`.
    """

    folder: Path
    record: dict[str, Any]

    @property
    def repeat(self) -> int:
        """Which repeat of the run."""
        return int(self.record["repeat"])

    @property
    def n_attackers(self) -> int:
        """How many users attacked in the simulation."""
        return int(self.record["n_attackers"])

    @property
    def id(self) -> str:
        """Name of these models in a ledger; it tells them from all others, also from before a revocation."""
        name = f"{self.record['config_digest'][:16]}/repeat{self.repeat}-attackers{self.n_attackers}"
        revoked = self.record.get("revoked")
        return f"{name}/without-{revoked['state'][:16]}" if revoked else name

    @cached_property
    def code(self) -> Code:
        """The run's code, checked against the record."""
        code = Code.load(self.folder / "code.json")
        if code.digest != self.record["code_digest"]:
            raise InputError(f"{self.folder}: code.json is not the code of the records; was the folder edited?")
        return code

    @cached_property
    def validation(self) -> VoteSet:
        """Clean votes with labels and confusion matrices."""
        return load_votes(self._vote_file("validation"))

    def _vote_file(self, inputs: str) -> Path:
        return self.folder / "votes" / f"repeat{self.repeat}-attackers{self.n_attackers}-{inputs}.npz"

    @property
    def assumptions(self) -> dict[str, Any]:
        """Keyword arguments of the run's `BayesDecoder`."""
        section = self.record["config"]["decoder"]
        size = section["max_attackers"] + 1
        return {
            "attack_rate": section["attack_rate"],
            "success_rate": section["success_rate"],
            "attackers_prior": (1 / size,) * size,
        }

    def serving_assumptions(self, expect: int | None = None) -> dict[str, Any]:
        """Return the assumptions of an endpoint: those of the run, up to the k the code detects or up to ``expect``."""
        from codeward.serve._guard import choose_prior

        assumptions = self.assumptions
        if expect is None:
            assumptions["attackers_prior"] = choose_prior(assumptions["attackers_prior"], inspect(self.code))
        elif 1 <= expect <= self.code.n_users:
            assumptions["attackers_prior"] = (1 / (expect + 1),) * (expect + 1)
        else:
            raise InputError(f"expect: expected 1..{self.code.n_users} attackers, got {expect}")
        return assumptions

    def examiner(self, expect: int | None = None, **limits: float) -> Examiner:
        """Return the examiner of an endpoint's incidents.

        Parameters
        ----------
        expect : int, optional
            As given to the endpoint.
        **limits
            Threshold, alpha, certainty and false_alarms of the `Examiner`.
        """
        confusion = self.validation.confusion
        if confusion is None:
            raise InputError(f"{self.folder}: the validation votes hold no confusion matrices")
        assumptions = self.serving_assumptions(expect)
        # The clean test inputs made no confusion matrix: incidents are compared with the alarms on them.
        clean = load_votes(self._vote_file("clean")) if self._vote_file("clean").is_file() else None
        return Examiner(self.code, self.validation, confusion.shape[1], reference=clean, **limits, **assumptions)


def list_cells(folder: str | os.PathLike[str]) -> list[RunCell]:
    """Return the finished cells of a run folder, by repeat and number of attackers."""
    from codeward.experiments import load_records

    place = Path(folder)
    if not (place / "code.json").is_file():
        raise InputError(f"{place}: not a run folder (no code.json); make one with codeward run -o {place}")
    cells = [RunCell(place, record) for record in load_records(place)]
    if not cells:
        raise InputError(f"{place}: no finished records; let codeward run -o {place} finish first")
    return cells


def find_cell(folder: str | os.PathLike[str], repeat: int = 0, n_attackers: int | None = None) -> RunCell:
    """Return one cell of a run folder; without a number of attackers the one with the most."""
    cells = [cell for cell in list_cells(folder) if cell.repeat == repeat]
    if n_attackers is not None:
        cells = [cell for cell in cells if cell.n_attackers == n_attackers]
    if not cells:
        raise InputError(f"{folder}: no record of repeat {repeat} with {n_attackers} attackers")
    return cells[-1]
