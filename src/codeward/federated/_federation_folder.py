"""The server's folder: what a federation is told (``federation.json``, ``code.json``) and what it leaves behind."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from codeward._errors import InputError
from codeward._files import read_json, write_atomic, write_json, write_text_atomic
from codeward.codes import Code
from codeward.federated._federation import FederatedResult, Federation, FederationPlan, RoundReport
from codeward.federated._protocol import FederatedSettings
from codeward.training import TrainingSettings

FORMAT = "codeward-federation/1"


@dataclass(frozen=True)
class FederationFolder:
    """A folder on the server's machine; users never see it.

    ``federation.json`` and ``code.json`` hold the plan. After every round training adds a line to ``rounds.jsonl`` and
    replaces ``checkpoint.safetensors``, from which a server that was killed goes on; it ends with
    ``models/*.safetensors`` and, last, ``result.json``, which names them with their SHA-256.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.federated import FederatedSettings
    >>> plan = FederationPlan(Code([[1, 1]]), TrainingSettings(), FederatedSettings(rounds=3), (1, 28, 28), 0)
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = FederationFolder(Path(path))
    ...     folder.save_plan(plan)
    ...     folder.load_plan().settings.rounds, folder.finished
    (3, False)
    """

    path: Path

    def save_plan(self, plan: FederationPlan) -> None:
        """Write the plan."""
        content = {
            "format": FORMAT,
            "training": plan.training.to_json(),
            "settings": plan.settings.to_json(),
            "shape": list(plan.shape),
            "seed": plan.seed,
        }
        self.path.mkdir(parents=True, exist_ok=True)
        plan.code.save(self.path / "code.json")
        write_json(self.path / "federation.json", content)

    def load_plan(self) -> FederationPlan:
        """Read the plan."""
        file = self.path / "federation.json"
        content = _read_json(file)
        try:
            channels, height, width = (int(size) for size in content["shape"])
            return FederationPlan(
                code=Code.load(self.path / "code.json"),
                training=TrainingSettings(**content["training"]),
                settings=FederatedSettings(**content["settings"]),
                shape=(channels, height, width),
                seed=int(content["seed"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file}: not a plan of a federation: {error}") from error

    def clear(self) -> None:
        """Forget an earlier run."""
        for name in ("rounds.jsonl", "result.json", "checkpoint.safetensors"):
            (self.path / name).unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """Whether a result is there."""
        return (self.path / "result.json").exists()

    def open_federation(self) -> Federation:
        """Return the federation of the plan, after the rounds that an interrupted server finished, if there are any.

        Rounds of another plan (another code, recipe, rule or seed) are refused; more rounds, another timeout or sample
        are not another plan.
        """
        federation, file = Federation(self.load_plan()), self.path / "checkpoint.safetensors"
        if not file.exists():
            self.clear()
            return federation
        try:
            with safe_open(file, "numpy") as content:
                about = json.loads((content.metadata() or {})["codeward"])
                models: list[dict[str, Any]] = [{} for _ in federation.models]
                for key in content.keys():  # noqa: SIM118
                    model, _, name = key.partition("/")
                    models[int(model)][name] = content.get_tensor(key)
            if about["identity"] != federation.identity:
                raise InputError(
                    f"{file}: rounds of another plan than {self.path / 'federation.json'}; "
                    "delete the checkpoint to begin anew"
                )
            # A line is written before its checkpoint: a round whose checkpoint is missing is done again.
            lines = self.read_rounds()[: about["round"]]
            reports = [RoundReport.from_json(line) for line in lines]
            if len(reports) != about["round"]:
                raise ValueError(f"{len(reports)} lines in rounds.jsonl, expected {about['round']}")
            ordered = [
                {name: found[name] for name in start} for start, found in zip(federation.models, models, strict=True)
            ]
            federation.resume(ordered, about["histories"], reports)
        except (KeyError, IndexError, TypeError, ValueError, OSError, SafetensorError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{file}: not a checkpoint of this federation ({error}); delete it to begin anew"
            ) from error
        write_text_atomic(self.path / "rounds.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        return federation

    def add_round(self, federation: Federation, measured: dict[str, Any]) -> None:
        """Keep the round that a federation just closed: a line about it, and all that the next round needs."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(federation.reports[-1].to_json() | measured) + "\n")
            out.flush()
            os.fsync(out.fileno())
        about = {
            "identity": federation.identity,
            "round": federation.round,
            "histories": list(federation.keys),
        }
        arrays = {
            f"{model}/{name}": array for model, found in enumerate(federation.models) for name, array in found.items()
        }
        content = save_arrays(arrays, {"codeward": json.dumps(about)})
        write_atomic(self.path / "checkpoint.safetensors", lambda out: out.write(content))

    def read_rounds(self) -> list[dict[str, Any]]:
        """Return what `add_round` wrote so far; a line that is still being written is left out."""
        file = self.path / "rounds.jsonl"
        if not file.exists():
            return []
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def save_result(self, result: FederatedResult) -> None:
        """Write the models, then what names them."""
        files = []
        for model, arrays in enumerate(result.models):
            content = save_arrays(arrays)
            name = f"models/model-{model}.safetensors"
            write_atomic(self.path / name, lambda out, content=content: out.write(content))  # type: ignore[misc]
            files.append({"file": name, "sha256": hashlib.sha256(content).hexdigest()})
        summary = {
            "format": FORMAT,
            "keys": list(result.keys),
            "models": files,
            "rounds": [report.to_json() for report in result.rounds],
        }
        write_json(self.path / "result.json", summary)
        (self.path / "checkpoint.safetensors").unlink(missing_ok=True)

    def load_result(self) -> FederatedResult:
        """Read the result; models are compared with their SHA-256 first."""
        file = self.path / "result.json"
        content = _read_json(file)
        try:
            models = []
            for entry in content["models"]:
                raw = (self.path / "models" / Path(entry["file"]).name).read_bytes()
                if hashlib.sha256(raw).hexdigest() != entry["sha256"]:
                    raise ValueError(f"{entry['file']} does not match its SHA-256")
                models.append(load_arrays(raw))
            rounds = tuple(RoundReport.from_json(entry) for entry in content["rounds"])
            return FederatedResult(tuple(models), tuple(content["keys"]), rounds)
        except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
            raise InputError(f"{file}: not the result of a federation: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{file}: not a {FORMAT} file")
    return content
