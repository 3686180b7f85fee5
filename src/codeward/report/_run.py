"""What a run folder holds for a report: records and code, checked to belong together; vote files where they are."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward.codes import Code, Inspection, inspect
from codeward.decoding import BayesDecoder, VoteSet, estimate_confusion, load_votes
from codeward.experiments import RunFolder, load_records

_NEEDED = ("repeat", "n_attackers", "seed", "config", "config_digest", "code_digest", "training", "figures")


@dataclass(frozen=True)
class ReportedRun:
    """A run as its folder tells it; nothing is trained and no data set is read.

    Attributes
    ----------
    place : RunFolder
    code : Code
    records : tuple of dict
        In order of repeat and number of attackers; all of one configuration and this code.
    """

    place: RunFolder
    code: Code
    records: tuple[dict[str, Any], ...]

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as recorded."""
        config: dict[str, Any] = self.records[0]["config"]
        return config

    @cached_property
    def inspection(self) -> Inspection:
        """What the code guarantees."""
        return inspect(self.code)

    @property
    def name(self) -> str:
        """Data set, users and code, in a few words."""
        chosen = self.config["code"]["name"] or (Path(self.config["code"]["file"] or "").stem or "designed")
        return f"{Path(self.config['dataset']).stem}, {self.code.n_users} users, code {chosen}"

    @property
    def cells(self) -> dict[int, list[dict[str, Any]]]:
        """Records by number of attackers, one a repeat."""
        found: dict[int, list[dict[str, Any]]] = {}
        for record in self.records:
            found.setdefault(record["n_attackers"], []).append(record)
        return dict(sorted(found.items()))

    def votes(self, record: dict[str, Any], inputs: str) -> VoteSet | None:
        """Return a vote file of a record; None where the folder has none."""
        path = self.place.votes(record["repeat"], record["n_attackers"], inputs)
        if not path.is_file():
            return None
        found = load_votes(path)
        if found.votes.shape[1] != self.code.n_models:
            raise InputError(f"{path}: votes of {found.votes.shape[1]} models, the code has {self.code.n_models}")
        if found.confusion is None and inputs != "validation":
            # Compact vote files leave out what the validation half says.
            validation = self.votes(record, "validation")
            if validation is not None and validation.labels is not None:
                n_classes = int(max(validation.labels.max(), validation.votes.max())) + 1
                confusion = estimate_confusion(validation.votes, validation.labels, n_classes)
                found = replace(found, confusion=confusion)
        return found

    def decoder(self, confusion: Any) -> BayesDecoder:
        """Return the decoder as the run had it: the stored confusion matrices and the configuration's assumptions."""
        assumed = self.config["decoder"]
        size = assumed["max_attackers"] + 1
        return BayesDecoder(
            self.code,
            confusion,
            attack_rate=assumed["attack_rate"],
            success_rate=assumed["success_rate"],
            attackers_prior=(1 / size,) * size,
        )


def open_run(folder: str | os.PathLike[str]) -> ReportedRun:
    """Read a run folder.

    Raises
    ------
    InputError
        When it is no run folder, holds no finished record, or records of another configuration or code.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    if not (path / "code.json").is_file() or not (path / "config.yaml").is_file():
        raise InputError(f"{path}: not a run folder (no code.json and config.yaml); `codeward run -o DIR` makes one")
    code = Code.load(path / "code.json")
    files = sorted((path / "records").glob("*.json"))
    if not files:
        raise InputError(f"{path}: no records yet; `codeward run {path / 'config.yaml'} -o {path}` finishes the run")
    return ReportedRun(RunFolder(path), code, read_records(path, code))


def read_records(path: Path, code: Code) -> tuple[dict[str, Any], ...]:
    """Read the records of a run folder; refuse those that lack something or are of another code or configuration."""
    try:
        found = load_records(path)
    except KeyError as error:
        raise InputError(f"{path}: a record lacks {error}") from error
    return check_records(found, path, code)


def check_records(found: Sequence[dict[str, Any]], path: Path, code: Code) -> tuple[dict[str, Any], ...]:
    """Return the records of a run in order; refuse what lacks something or is of another code or configuration."""
    for record in found:
        missing = [key for key in _NEEDED if key not in record]
        if missing:
            raise InputError(f"{path}: a record lacks {', '.join(missing)}")
        if record["code_digest"] != code.digest:
            raise InputError(f"{path}: code.json is not the code of the records")
        if record["config_digest"] != found[0]["config_digest"]:
            raise InputError(f"{path}: holds records of different configurations; report one run at a time")
    return tuple(sorted(found, key=lambda record: (record["repeat"], record["n_attackers"])))
