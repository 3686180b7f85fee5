"""The run folder: where everything of a run is kept. No other module spells these paths."""

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._files import open_regular, read_json, read_text, remove_leftovers, write_text_atomic
from codeward._notebook import Displayed, Sheet
from codeward.codes import Code, design, named_code
from codeward.decoding import VoteSet, load_votes
from codeward.runs._config import FederatedConfig, RunConfig, TrainConfig, parse_yaml, read_config, read_stored
from codeward.runs._records import CODE_FILE, CONFIG_FILE, load_record


@dataclass(frozen=True)
class RunFolder(Displayed):
    """What a run keeps, in one folder: of `codeward run`, `reproduce`, `federate` and `revoke` alike.

    ``config.yaml``, ``code.json``, and folders ``records`` (one a cell), ``votes`` (vote files of a cell, and a JSON
    file that says what they are and which models gave them), ``gallery``, ``studies``, ``plots`` and ``store``.

    Attributes
    ----------
    path : Path

    Examples
    --------
    >>> RunFolder("runs/digits").record(0, 3).as_posix()
    'runs/digits/records/repeat0-attackers3.json'
    """

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "path", Path(path))

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / CONFIG_FILE

    @property
    def code_file(self) -> Path:
        """The code, of the users that are left."""
        return self.path / CODE_FILE

    @property
    def card_file(self) -> Path:
        """The certificate card; ``card.html`` beside it is the same as a page."""
        return self.path / "card.json"

    @property
    def revocation_file(self) -> Path:
        """Who was revoked; absent where nobody was."""
        return self.path / "revocation.json"

    @property
    def revoked(self) -> Path:
        """Folder of the states without revoked users, and of notes that say where others are."""
        return self.path / "revoked"

    @property
    def plots(self) -> Path:
        """Folder of plots."""
        return self.path / "plots"

    def record(self, repeat: int, n_attackers: int) -> Path:
        """Return the file of one record."""
        return self.path / "records" / f"{name_cell(repeat, n_attackers)}.json"

    def votes(self, repeat: int, n_attackers: int, inputs: str) -> Path:
        """Return a vote file of one cell, of ``validation``, ``clean`` or ``triggered`` inputs."""
        return self.path / "votes" / f"{name_cell(repeat, n_attackers)}-{inputs}.npz"

    def about(self, repeat: int, n_attackers: int) -> Path:
        """Return the file that says what the vote files of one cell are; it is written after them."""
        return self.path / "votes" / f"{name_cell(repeat, n_attackers)}.json"

    def gallery(self, repeat: int, n_attackers: int) -> Path:
        """Return the file of example inputs of one cell."""
        return self.path / "gallery" / f"{name_cell(repeat, n_attackers)}.npz"

    def study(self, repeat: int, n_attackers: int) -> Path:
        """Return the file of one study."""
        return self.path / "studies" / f"{name_cell(repeat, n_attackers)}.json"

    @cached_property
    def config(self) -> RunConfig:
        """The configuration; a `FederatedConfig` of a federated run, a `TrainConfig` of one's own data."""
        content = parse_yaml(self.read_text(self.config_file), str(self.config_file))
        kinds: dict[str, type[RunConfig]] = {"federated": FederatedConfig, "train": TrainConfig}
        named = [kind for section, kind in kinds.items() if isinstance(content, dict) and section in content]
        return read_config(read_stored(content), str(self.config_file), named[0] if named else RunConfig)

    def save_config(self, config: RunConfig) -> None:
        """Write the configuration."""
        write_text_atomic(self.config_file, config.to_yaml())
        self.__dict__.pop("config", None)  # read anew, as it is written

    @cached_property
    def code(self) -> Code:
        """The code in ``code.json``."""
        return Code.load(self.code_file)

    @property
    def store(self) -> Path:
        """The model store: the configuration's, or the folder's own; cells of a grid may point elsewhere."""
        chosen = self.config.store if self.config_file.exists() else None
        return chosen or self.path / "store"

    @property
    def advice(self) -> str:
        """The command that makes what the folder lacks."""
        try:
            config = self.config
        except InputError:
            config = None
        if isinstance(config, TrainConfig):
            return f"`codeward train {config.train.data or 'DATA'} -o {self.path}`, with the same options,"
        command = "federate simulate" if isinstance(config, FederatedConfig) else "run"
        return f"`codeward {command} {self.config_file} -o {self.path}`"

    def list_records(self) -> list[tuple[int, int]]:
        """Return repeat and number of attackers of every record, in order."""
        return self._list_cells("records")

    def list_votes(self) -> list[tuple[int, int]]:
        """Return repeat and number of attackers of every cell with vote files, in order."""
        return self._list_cells("votes")

    def _list_cells(self, part: str) -> list[tuple[int, int]]:
        names = [re.fullmatch(r"repeat(\d{1,9})-attackers(\d{1,9})\.json", f.name) for f in self.list_json(part)]
        return sorted((int(match[1]), int(match[2])) for match in names if match)

    # How its files are read; a run that is kept otherwise than in plain files has its own way.

    def list_json(self, part: str) -> list[Path]:
        """Return the JSON files of ``records``, ``votes`` or ``studies``, in order."""
        return sorted((self.path / part).glob("*.json"))

    def holds(self, file: Path) -> bool:
        """Say whether a file of the folder is there."""
        return file.is_file()

    def read_text(self, file: Path) -> str:
        """Return a text file of the folder."""
        return read_text(file)

    def read_json(self, file: Path) -> Any:
        """Return the content of a JSON file of the folder."""
        return read_json(file)

    def load_votes(self, file: Path, digest: str | None = None) -> VoteSet | None:
        """Return a vote file of the folder; None where it is not the one of that SHA-256."""
        return None if digest is not None and hash_file(file) != digest else load_votes(file)

    def find_votes(self, file: str | os.PathLike[str]) -> tuple[int, int] | None:
        """Return repeat and number of attackers of the cell that a vote file is of; None where it is of none."""
        inputs = Path(file).stem.rpartition("-")[2]
        return next((cell for cell in self.list_votes() if self.votes(*cell, inputs) == Path(file)), None)

    def open(self, config: RunConfig, found: Code | None = None) -> Code:
        """Make the folder, or check that it holds this very run; return its code: its own, ``found``, or a new one.

        The code is found once and kept, so that a resumed run goes on with the same one. Nothing is written before the
        code is found, so that a mistake leaves no folder; a folder in which no cell was finished is taken over.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: a file, not a folder; choose another with -o")
        if self.revocation_file.exists():
            raise InputError(f"{self.path}: a run without its revoked users; only codeward revoke makes such a folder")
        for place in (self.path, *self.path.glob("*/"), *self.path.glob("store/*/")):
            remove_leftovers(place.resolve())
        begun = bool(self.list_records() or self.list_votes())
        known = self.config if self.config_file.exists() else None
        if known is None and begun:
            raise InputError(f"{self.path}: holds cells but no config.yaml, so it is no run; choose another folder")
        if known is None and self.code_file.exists():
            raise InputError(f"{self.path}: holds a code but no config.yaml, so it is no run; choose another folder")
        if known is not None and (type(known) is not type(config) or known.digest != config.digest):
            if begun:
                changes = "; ".join(config.differences(known)) or "federated here or there only"
                raise InputError(
                    f"{self.path}: holds another run ({changes}); choose another folder with -o, or --force "
                    "moves this one aside"
                )
            known = None
            self.code_file.unlink(missing_ok=True)
        code = self.code if self.code_file.exists() else found or find_code(config)
        if begun:
            for cell in self.list_records():
                file = self.record(*cell)
                if load_record(file).get("code_digest") != code.digest:
                    raise InputError(f"{file}: a record of another code than {self.code_file}; was the folder edited?")
        # The code comes last, so that a folder with a code always says whose it is. A run that has grown says so, and
        # one that is asked for fewer of its cells this time keeps the others.
        whole = config if known is None else _join(known, config)
        if known != whole:
            self.save_config(whole)
        if not self.code_file.exists():
            code.save(self.code_file)
        return code

    def move_aside(self) -> Path | None:
        """Rename the folder, so that another run can have its place; return its new name, None without a folder."""
        if not self.path.exists():
            return None
        number = 1
        while (target := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        return self.path.rename(target)

    def _sheet(self) -> Sheet:
        from codeward.runs._listing import describe_run

        return describe_run(self)


def name_cell(repeat: int, n_attackers: int) -> str:
    """Return the name that all files of a cell share."""
    return f"repeat{repeat}-attackers{n_attackers}"


def name_triggered(group: int, n_groups: int) -> str:
    """Return the name, among the vote files of a cell, of the inputs with one group's trigger.

    Examples
    --------
    >>> name_triggered(0, 1), name_triggered(1, 2)
    ('triggered', 'triggered1')
    """
    return "triggered" if n_groups == 1 else f"triggered{group}"


def find_code(config: RunConfig) -> Code:
    """Load, look up or design the code of a run; it must have one column a user.

    Examples
    --------
    >>> from codeward.runs import RunConfig
    >>> find_code(RunConfig(code={"name": "d"})).matrix.shape
    (6, 12)
    """
    section = config.code
    if section.file is not None:
        code = Code.load(section.file)
    elif section.name is not None:
        code = named_code(section.name)
    else:
        # A third of the users a model, like the default code and the paper's c, unless told otherwise.
        unbounded = section.utilization is None and section.row_weight is None and section.max_models is None
        code = design(
            config.users,
            section.attackers,
            row_weight=section.row_weight,
            utilization=1 / 3 if unbounded else section.utilization,
            guarantee=section.guarantee,
            margin=section.margin,
            max_models=section.max_models,
            time_limit=section.time_limit,
            seed=config.seed,
            groups=True,
            reproducible=True,
        ).code
    if code.n_users != config.users:
        raise InputError(f"code: {code.n_users} columns, but the run has {config.users} users (set users)")
    return code


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(file) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()  # type: ignore[arg-type]


def _join(known: RunConfig, config: RunConfig) -> RunConfig:
    """Return the run with the cells of both."""
    attackers = tuple(sorted({*known.attack.attackers, *config.attack.attackers}))
    attack = config.attack.model_copy(update={"attackers": attackers})
    return config.model_copy(update={"attack": attack, "repeats": max(known.repeats, config.repeats)})
