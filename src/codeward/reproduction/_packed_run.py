"""A run of a packed setting, read as any other run: a `codeward.runs.RunFolder` with its cells."""

import re
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import VoteSet
from codeward.reproduction._packing import PackedSetting
from codeward.runs import Cell, RunConfig, RunFolder, parse_yaml, read_stored

#: More classes than this, and it is no run.
_MOST_CLASSES = 4096
_OPTIONAL: dict[str, type] = {"keys": list, "digests": dict, "class_names": list, "revoked": dict, "federated": dict}


class PackedRun(RunFolder):
    """A run of a packed setting: a `codeward.runs.RunFolder` that is read from there and not written to.

    Examples
    --------
    >>> PackedRun(PackedSetting(Path("results/mnist-iid")), "c").path.as_posix()
    'results/mnist-iid/c'
    """

    def __init__(self, setting: PackedSetting, name: str) -> None:
        super().__init__(setting.path / name)
        object.__setattr__(self, "setting", setting)

    setting: PackedSetting

    @cached_property
    def code(self) -> Code:
        """The code of the run."""
        return self.setting.load_code(self.path.name)

    @property
    def config(self) -> RunConfig:
        """The configuration."""
        text = self.setting.read_text(f"{self.path.name}/config.yaml")
        try:
            return RunConfig.model_validate(read_stored(parse_yaml(text, str(self.config_file))))
        except ValidationError as error:
            told = " ".join(str(error).split())
            raise InputError(f"{self.config_file}: not a configuration ({told})") from error

    def list_records(self) -> list[tuple[int, int]]:
        """Return repeat and number of attackers of every record, in order."""
        return self._list("records")

    def list_votes(self) -> list[tuple[int, int]]:
        """Return repeat and number of attackers of every cell with votes, in order."""
        return self._list("votes")

    def _list(self, part: str) -> list[tuple[int, int]]:
        names = self.setting.list_files(f"{self.path.name}/{part}")
        found = [re.fullmatch(r".*/repeat(\d{1,9})-attackers(\d{1,9})\.json", name) for name in names]
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def cell(self, repeat: int, n_attackers: int) -> Cell:
        """Return a cell of the run."""
        return _PackedCell(self, repeat, n_attackers)


class _PackedCell(Cell):
    """A cell of a packed run; everything that a `Cell` makes of its files holds."""

    folder: PackedRun

    def _name(self, file: Path) -> str:
        return f"{self.folder.path.name}/{file.relative_to(self.folder.path).as_posix()}"

    @property
    def has_votes(self) -> bool:
        """Whether the votes are there."""
        return self._name(self.folder.about(self.repeat, self.n_attackers)) in self.folder.setting.files

    @property
    def has_record(self) -> bool:
        """Whether the record is there."""
        return self._name(self.folder.record(self.repeat, self.n_attackers)) in self.folder.setting.files

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the votes are."""
        about = self._check(self.folder.about(self.repeat, self.n_attackers), {"classes": int, "groups": list})
        if not 1 <= about["classes"] <= _MOST_CLASSES:
            raise InputError(f"{self.folder.path}: {self.name}: {str(about['classes'])[:20]} classes")
        return about

    @cached_property
    def record(self) -> dict[str, Any]:
        """The cell's record."""
        needed = {"repeat": int, "n_attackers": int, "seed": int, "config": dict, "config_digest": str}
        needed |= {"training": dict, "figures": dict}
        return self._check(self.folder.record(self.repeat, self.n_attackers), needed)

    def load_votes(self, inputs: str) -> VoteSet:
        """Return the votes on ``validation``, ``clean``, ``triggered``, ... inputs."""
        file = self.folder.votes(self.repeat, self.n_attackers, inputs)
        return self.check_votes(self.folder.setting.load_votes(self._name(file)), file)

    def _check(self, file: Path, needed: dict[str, type]) -> dict[str, Any]:
        content = self.folder.setting.read_json(self._name(file))
        missing = [key for key in (*needed, "code_digest") if not isinstance(content, dict) or key not in content]
        if missing:
            raise InputError(f"{file}: it lacks {', '.join(missing)}")
        for key, expected in (needed | _OPTIONAL).items():
            if key in content and not (
                (content[key] is None and key in _OPTIONAL) or isinstance(content[key], expected)
            ):
                raise InputError(f"{file}: it has no {expected.__name__} under {key}")
        if content["code_digest"] != self.code.digest:
            raise InputError(f"{self.folder.path}: code.json is not the code of the records; was the folder edited?")
        return dict(content)
