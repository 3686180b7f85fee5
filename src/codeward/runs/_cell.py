"""One cell of a run, a repeat with a number of attackers: its votes, what they are votes of, and its record."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_npz, write_atomic, write_json
from codeward._notebook import Displayed, Sheet
from codeward.codes import Code
from codeward.decoding import (
    Assumptions,
    Decoder,
    VoteSet,
    estimate_confusion,
    make_decoder,
    save_votes,
)
from codeward.runs._config import FederatedConfig, RunConfig, read_stored
from codeward.runs._records import SimulatedAttack, check_keys, check_record, save_record
from codeward.runs._run_folder import RunFolder, hash_file, name_cell, name_triggered
from codeward.runs._sections import DecoderSection

if TYPE_CHECKING:
    from codeward.certificates import Threat

#: Changes when a reader of older files would misread newer ones.
FORMAT = "codeward-cell/1"

#: A store near the run folder, as cells of a grid point to theirs.
_POINTER = re.compile(r"(\.\./){0,3}[A-Za-z0-9_][A-Za-z0-9_.-]*")

#: More values than this in the confusion matrices of a cell, and it is no cell.
_MOST_VALUES = 2**27

_ABOUT: dict[str, type] = {"code_digest": str, "classes": int, "training": dict, "groups": list, "hardware": dict}
_ABOUT_TOO: dict[str, type] = {"keys": list, "digests": dict, "shape": list, "class_names": list, "store": str}
_RECORD: dict[str, type] = {"repeat": int, "n_attackers": int, "seed": int, "config": dict, "figures": dict}
_RECORD |= {"config_digest": str, "code_digest": str, "training": dict}
_RECORD_TOO: dict[str, type] = {"revoked": dict, "federated": dict, "hardware": dict, "work": dict}


@dataclass(frozen=True)
class Cell(Displayed):
    """One repeat of a run under one number of attackers; each has its own models.

    Everything is read when it is first asked for, and checked: files that do not belong together are an `InputError`.
    A cell may have vote files and no record yet (it was not counted), or a record alone.

    Attributes
    ----------
    folder : RunFolder
    repeat, n_attackers : int

    Examples
    --------
    >>> cell = Cell(RunFolder("runs/nowhere"), repeat=0, n_attackers=3)
    >>> cell.name, cell.has_record, cell.has_votes
    ('repeat0-attackers3', False, False)
    """

    folder: RunFolder
    repeat: int
    n_attackers: int

    @property
    def name(self) -> str:
        """Name that all files of the cell share."""
        return name_cell(self.repeat, self.n_attackers)

    @property
    def has_votes(self) -> bool:
        """Whether the vote files are there, and what says what they are."""
        return self.folder.holds(self.folder.about(self.repeat, self.n_attackers))

    @property
    def has_record(self) -> bool:
        """Whether the votes were counted."""
        return self.folder.holds(self._record_file)

    @property
    def _record_file(self) -> Path:
        return self.folder.record(self.repeat, self.n_attackers)

    @property
    def is_whole(self) -> bool:
        """Whether all vote files are there as they were written, with the keys of their models."""
        try:
            files = {inputs: self.folder.votes(self.repeat, self.n_attackers, inputs) for inputs in self._digests}
            return self.has_keys and bool(files) and {i: hash_file(file) for i, file in files.items()} == self._digests
        except InputError:
            return False

    @property
    def _digests(self) -> dict[str, str]:
        """SHA-256 of the vote files by inputs; empty in cells of older versions."""
        return (self.about.get("digests") or {}) if self.has_votes else {}

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the vote files are: the JSON beside them, checked to be of the folder's code."""
        file = self.folder.about(self.repeat, self.n_attackers)
        about = self.folder.read_json(file)
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise InputError(f"{file}: not a {FORMAT} file")
        check_keys(about, _ABOUT, _ABOUT_TOO, f"{file}: it")
        if not about["classes"] >= 1 or self.folder.code.n_models * about["classes"] ** 2 > _MOST_VALUES:
            raise InputError(f"{file}: {str(about['classes'])[:20]} classes are none, or too many")
        if about["code_digest"] != self.folder.code.digest:
            raise InputError(f"{file}: votes of another code than {self.folder.code_file}; was the folder edited?")
        return about

    @cached_property
    def record(self) -> dict[str, Any]:
        """The cell's record, checked to be of the folder's code."""
        file, record = self._record_file, self._read_record()
        check_keys(record, _RECORD, _RECORD_TOO, f"{file}: a record")
        if (record["repeat"], record["n_attackers"]) != (self.repeat, self.n_attackers):
            raise InputError(f"{file}: a record of another cell")
        if record["code_digest"] != self.folder.code.digest:
            raise InputError(f"{self.folder.path}: code.json is not the code of the records; was the folder edited?")
        return record

    def _read_record(self) -> dict[str, Any]:
        return check_record(self.folder.read_json(self._record_file), self._record_file)

    @property
    def code(self) -> Code:
        """The code whose rows the models are."""
        return self.folder.code

    @property
    def id(self) -> str:
        """Name of these models in a ledger; it tells them from all others, also from before a revocation."""
        name = f"{self.record['config_digest'][:16]}/{self.name}"
        revoked = self.record.get("revoked")
        return f"{name}/without-{str(revoked.get('state'))[:16]}" if revoked else name

    @property
    def threat(self) -> "Threat":
        """What users could do to a model they reach: anything where they sent updates."""
        if not self.has_record:
            return "arbitrary" if isinstance(self.folder.config, FederatedConfig) else "deterministic"
        return "arbitrary" if self.record.get("federated") is not None else "deterministic"

    @property
    def advice(self) -> str:
        """The command that makes what the cell lacks."""
        federated = self._read_record().get("federated") if self.has_record else None
        if self.folder.revocation_file.exists():
            return f"`codeward revoke RUN_DIR USERS -o {self.folder.path}`"
        if isinstance(federated, dict) and federated.get("engine") in ("consortium", "one-round"):
            return "`codeward federate collect` into another folder"
        return self.folder.advice

    # What the models are.

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return int(self.about["classes"])

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, where the data have any."""
        names = self.about.get("class_names")
        return tuple(map(str, names)) if names else None

    @property
    def training(self) -> dict[str, Any]:
        """Keyword arguments of the `codeward.training.TrainingSettings` of the models; normalisation is among them."""
        settings: dict[str, Any] = self.about["training"]
        return settings

    @property
    def committee(self) -> int:
        """Networks of a sub-model."""
        size = self.training.get("committee", 1)
        if type(size) is not int or size < 1:
            raise InputError(f"{self.folder.path}: {self.name}: a committee of {str(size)[:20]} networks")
        return size

    @property
    def has_keys(self) -> bool:
        """Whether the cell says which models of the store gave its votes; those of older versions do not."""
        return self.has_votes and bool(self._find_keys())

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the models in the store, one a row of the code."""
        keys = self._find_keys()
        if not keys:
            raise InputError(
                f"{self.folder.path}: {self.name} does not say which models it has (made by an older version); "
                f"{self.advice} writes it, and trains what is missing"
            )
        if len(keys) != self.code.n_models:
            raise InputError(f"{self.folder.path}: {self.name}: {len(keys)} models for {self.code.n_models} rows")
        return keys

    @property
    def store(self) -> Path:
        """The model store: the configuration's, the one the cell points to (of its grid), or the run folder's own."""
        pointer = self.about.get("store") if self.has_votes else None
        if self.folder.config.store is None and isinstance(pointer, str) and _POINTER.fullmatch(pointer):
            return self.folder.path / pointer
        return self.folder.store

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images the models take."""
        try:
            channels, height, width = (int(size) for size in self.about["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.folder.path}: {self.name} does not say what its models take (made by an older version); "
                f"{self.advice} writes it"
            ) from error
        return channels, height, width

    def _find_keys(self) -> tuple[str, ...]:
        keys = self.about.get("keys")
        if not keys and self.has_record:
            keys = (self.record.get("federated") or {}).get("keys")  # where earlier versions kept a federation's
        return tuple(map(str, keys or ()))

    # What they say.

    def load_votes(self, inputs: str) -> VoteSet:
        """Return the votes on ``validation``, ``clean``, ``triggered``, ... inputs; labels are there."""
        file = self.folder.votes(self.repeat, self.n_attackers, inputs)
        found = self.folder.load_votes(file, self._digests.get(inputs, "") if self._digests else None)
        if found is None:
            raise InputError(f"{file}: altered since {self.name} was made; {self.advice} makes it again")
        if found.labels is None:
            raise InputError(f"{file}: the votes of a run have labels")
        if found.votes.shape[1] != self.code.n_models:
            raise InputError(f"{file}: votes of {found.votes.shape[1]} models, the code has {self.code.n_models}")
        if max(int(found.votes.max(initial=0)), int(found.labels.max(initial=0))) >= self.n_classes:
            raise InputError(f"{file}: votes of more than {self.n_classes} classes")
        return found

    @cached_property
    def validation(self) -> VoteSet:
        """Votes on the half of the test set from which confusion is estimated."""
        return self.load_votes("validation")

    @cached_property
    def clean(self) -> VoteSet:
        """Votes on the half of the test set on which figures are taken."""
        return self.load_votes("clean")

    @cached_property
    def triggered(self) -> tuple[VoteSet, ...]:
        """Votes on the same half with the trigger of each attacking group."""
        return tuple(self.load_votes(name_triggered(number, len(self.groups))) for number in range(len(self.groups)))

    @property
    def gallery(self) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Example images (N, C, H, W) and their true labels by inputs, ``clean``, ``triggered``, ...; may be empty."""
        file = self.folder.gallery(self.repeat, self.n_attackers)
        if not file.is_file():
            return {}
        arrays = read_npz(file, limit=2**26, kinds="u")
        names = [name for name in arrays if not name.endswith("_labels")]
        for name in names:
            shape, labels = arrays[name].shape, arrays.get(f"{name}_labels")
            if len(shape) != 4 or labels is None or labels.shape != shape[:1] or arrays[name].dtype != np.uint8:
                raise InputError(f"{file}: not a gallery")
        return {name: (arrays[name], arrays[f"{name}_labels"].astype(np.int64)) for name in names}

    @cached_property
    def groups(self) -> tuple[SimulatedAttack, ...]:
        """Who attacks, group by group; none in a cell without attackers."""
        try:
            return tuple(self._read_group(group) for group in self.about["groups"])
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise InputError(
                f"{self.folder.path}: {self.name}: groups of attackers are not readable ({error})"
            ) from error

    def _read_group(self, group: Mapping[str, Any]) -> SimulatedAttack:
        attackers = tuple(int(user) for user in group["attackers"])
        self.code.pattern(attackers)  # they are users of the code
        targets = tuple(int(target) for target in group.get("targets") or ())
        names = group.get("names") or [self.code.user_name(user) for user in attackers]
        return SimulatedAttack(attackers, int(group["target"]), targets or None, tuple(map(str, names)))

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Models that some attacker of any group feeds, shape (m,)."""
        return self.code.pattern(user for group in self.groups for user in group.attackers)

    @cached_property
    def confusion(self) -> NDArray[np.float64]:
        """Confusion matrices of the validation half, shape (m, c, c): those of its file, or else estimated."""
        kept = self.validation.confusion
        if kept is not None and kept.shape[1] == self.n_classes:
            return kept
        assert self.validation.labels is not None
        return estimate_confusion(self.validation.votes, self.validation.labels, self.n_classes)

    @cached_property
    def decoding(self) -> DecoderSection:
        """Which decoder the run has, and what it assumes."""
        try:
            if not self.has_record:
                return self.folder.config.decoder
            return DecoderSection.model_validate(read_stored(self.record["config"])["decoder"])
        except (KeyError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self._record_file}: not readable as assumptions of a decoder") from error

    @cached_property
    def assumptions(self) -> Assumptions:
        """What the run assumes about attacks."""
        section = self.decoding
        rates = {name: getattr(section, name) for name in ("attack_rate", "success_rate", "false_alarm_rate")}
        counts = self.about.get("class_counts") if self.has_votes else None
        return Assumptions.uniform(section.max_attackers, class_counts=counts, **rates)

    def decoder(self, name: str | None = None, assumptions: Assumptions | None = None) -> Decoder:
        """Return a decoder of the cell (see `codeward.decoding.make_decoder`) with the run's assumptions.

        Without a name it is the run's own: the one whose verdicts its record counts, and that is served.
        """
        name = name or self.decoding.name
        noise = self.confusion if name in ("bayes", "groups") else self.validation
        return make_decoder(name, self.code, noise, assumptions or self.assumptions, self.n_classes)

    def _sheet(self) -> Sheet:
        from codeward.runs._listing import describe_cell

        return describe_cell(self)

    # Writing.

    def save_votes(
        self, votes: Mapping[str, VoteSet], about: Mapping[str, Any], store: str | os.PathLike[str] | None = None
    ) -> "Cell":
        """Write vote files and, last, what they are; return the cell as it is now.

        Parameters
        ----------
        votes : mapping of str to VoteSet
            By inputs: ``validation``, ``clean``, and `name_triggered` of every group.
        about : mapping
            ``classes``, ``training``, ``groups``, ``hardware``, ``versions``, ``work``; where users hand in samples
            ``class_counts``; for serving ``keys``, ``shape`` and, where there are any, ``class_names``.
        store : path-like, optional
            Where the models are; a store near the run folder is written down, others are the configuration's to name.
        """
        file = self.folder.about(self.repeat, self.n_attackers)
        file.unlink(missing_ok=True)  # it must never vouch for other files than those it was written after
        digests = {}
        for inputs, given in votes.items():
            target = self.folder.votes(self.repeat, self.n_attackers, inputs)
            save_votes(target, given.votes, given.labels, given.confusion, given.scores, self.folder.code.digest)
            digests[inputs] = hash_file(target)
        pointer = None if store is None else Path(os.path.relpath(store, self.folder.path)).as_posix()
        near = {"store": pointer} if pointer is not None and _POINTER.fullmatch(pointer) else {}
        content = {
            "format": FORMAT,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "code_digest": self.folder.code.digest,
            **about,
            **near,
            "digests": digests,
        }
        write_json(file, content)
        return Cell(self.folder, self.repeat, self.n_attackers)

    def save_gallery(self, pictures: Mapping[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]) -> None:
        """Write example images and their labels; see `gallery`."""
        arrays: dict[str, Any] = {name: images for name, (images, _) in pictures.items()}
        arrays |= {f"{name}_labels": labels.astype(np.uint32) for name, (_, labels) in pictures.items()}
        file = self.folder.gallery(self.repeat, self.n_attackers)
        write_atomic(file, lambda out: np.savez_compressed(out, **arrays))

    def save_record(self, config: RunConfig, content: Mapping[str, Any]) -> "Cell":
        """Write the record: configuration and seed of the run, and ``content``; return the cell as it is now."""
        record = {
            "repeat": self.repeat,
            "n_attackers": self.n_attackers,
            "seed": config.seed,
            "config": config.described(),
            "config_digest": config.digest,
            **content,
        }
        save_record(record, self._record_file)
        return Cell(self.folder, self.repeat, self.n_attackers)
