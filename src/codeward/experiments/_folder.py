"""The run folder: where everything of a run is kept."""

from dataclasses import dataclass
from pathlib import Path

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward.codes import Code
from codeward.experiments._config import RunConfig, load_config
from codeward.experiments._setting import find_code


@dataclass(frozen=True)
class RunFolder:
    """What a run keeps: ``config.yaml``, ``code.json``, and folders ``records``, ``votes``, ``plots`` and ``store``."""

    path: Path

    def record(self, repeat: int, n_attackers: int) -> Path:
        """Return the file of one record."""
        return self.path / "records" / f"repeat{repeat}-attackers{n_attackers}.json"

    def votes(self, repeat: int, n_attackers: int, inputs: str) -> Path:
        """Return the vote file of one record, for ``validation``, ``clean`` or ``triggered`` inputs."""
        return self.path / "votes" / f"repeat{repeat}-attackers{n_attackers}-{inputs}.npz"

    def about(self, repeat: int, n_attackers: int) -> Path:
        """Return the file that says what the vote files of one cell are; it is written after them."""
        return self.path / "votes" / f"repeat{repeat}-attackers{n_attackers}.json"

    def open(self, config: RunConfig) -> Code:
        """Make the folder, or check that it holds this very run; return its code.

        The code is found once and kept, so that a resumed run goes on with the same one.
        """
        kept = self.path / "config.yaml"
        known = load_config(kept) if kept.exists() else None
        if known is not None and known.digest != config.digest:
            raise InputError(f"{self.path}: holds another run (its config.yaml differs); choose another folder with -o")
        if known is None and (self.path / "code.json").exists():
            raise InputError(f"{self.path}: holds a code but no config.yaml, so it is no run; choose another folder")
        code = Code.load(self.path / "code.json") if (self.path / "code.json").exists() else find_code(config)
        # Nothing is written before the code is found, so that a mistake leaves no folder; the code comes last, so that
        # a folder with a code always says whose it is. A run that has grown says so, and one that is asked for fewer of
        # its cells this time keeps the others.
        whole = config if known is None else _join(known, config)
        if known != whole:
            write_text_atomic(kept, whole.to_yaml())
        if not (self.path / "code.json").exists():
            code.save(self.path / "code.json")
        return code


def _join(known: RunConfig, config: RunConfig) -> RunConfig:
    """Return the run with the cells of both."""
    attackers = tuple(sorted({*known.attack.attackers, *config.attack.attackers}))
    attack = config.attack.model_copy(update={"attackers": attackers})
    return config.model_copy(update={"attack": attack, "repeats": max(known.repeats, config.repeats)})
