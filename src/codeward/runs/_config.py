"""Run configurations: what a YAML file may say, checked before anything starts."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, overload

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from codeward._errors import InputError
from codeward._ray_address import check_address
from codeward.runs._yaml import parse_yaml, read_yaml, shorten

#: Share of an attacker's data that is poisoned in the paper.
FRACTION = 0.05

#: The same where the paper's 5% are too little.
#: An attacker of digits holds about 105 images; 5% of them, 5 images, plant a trigger that hit models obey on 40% of
#: the inputs only. Measured, 12 users, 20 epochs: 40% at 0.05, 61% at 0.10, 87% at 0.20 (code d), 93 to 97% at 0.35,
#: 98.5 to 99.7% at 0.5 (code c). The paper's setting is an attack that works (99%).
FRACTIONS: dict[str, float] = {"digits": 0.5}

#: Mistakes that an error tells of.
MAX_TOLD = 20


class Section(BaseModel):
    """Unknown keys are mistakes, and a configuration does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_values(cls, content: Any) -> Any:
        """No setting is a yes or no, but YAML's ``yes`` would pass for the number 1."""
        if isinstance(content, dict):
            for key, value in content.items():
                if isinstance(value, bool):
                    raise ValueError(f"{key}: expected a value, got {str(value).lower()}")
        return content


class SplitSection(Section):
    """How training data are split among users.

    Examples
    --------
    >>> SplitSection(kind="dirichlet", alpha=0.1).alpha
    0.1
    """

    kind: Literal["iid", "dirichlet", "groups"] = "iid"
    alpha: float | None = Field(
        default=None, gt=0, description="Dirichlet concentration; the paper uses 10, 1 and 0.1."
    )

    @model_validator(mode="after")
    def _alpha_goes_with_dirichlet(self) -> "SplitSection":
        if (self.kind == "dirichlet") != (self.alpha is not None):
            raise ValueError("alpha goes with kind: dirichlet, and dirichlet needs it")
        return self


class CodeSection(Section):
    """Where the code comes from: a file, one of the paper's by name, or the designer.

    Examples
    --------
    >>> CodeSection(name="c").name, CodeSection().margin
    ('c', 3)
    """

    file: Path | None = None
    name: str | None = None
    attackers: int = Field(default=3, ge=1, description="Designer: k.")
    utilization: float | None = Field(
        default=None, gt=0, lt=1, description="Designer: least share of users a model learns from."
    )
    row_weight: int | None = Field(default=None, ge=1)
    guarantee: Literal["detect", "correct", "correct-arbitrary", "track"] = "correct"
    margin: int = Field(default=3, ge=1, description="Designer: 3 corrects one wrong vote; real models err.")
    max_models: int | None = Field(default=None, ge=1)
    time_limit: float = Field(default=10.0, gt=0)

    @model_validator(mode="after")
    def _one_source(self) -> "CodeSection":
        if self.file is not None and self.name is not None:
            raise ValueError("give file or name, not both")
        if self.utilization is not None and self.row_weight is not None:
            raise ValueError("give utilization or row_weight, not both")
        return self


class AttackSection(Section):
    """Who attacks and how. Attackers of one repeat are nested: 1 within 2 within 3.

    Examples
    --------
    >>> AttackSection(attackers=[0, 2], kind="blended").attackers
    (0, 2)
    """

    attackers: tuple[int, ...] = Field(
        default=(0, 1, 2, 3), min_length=1, description="Sizes of the colluding group to try."
    )
    kind: Literal["patch", "blended", "split", "label-flip", "clean-label"] = "patch"
    position: Literal["corner", "fixed-random", "per-image", "early-corner"] = "corner"
    fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of an attacker's data that is poisoned; see FRACTIONS.",
    )
    groups: int = Field(default=1, ge=1, description="Independent groups of that size, each with its own trigger.")

    @model_validator(mode="after")
    def _sizes(self) -> "AttackSection":
        if min(self.attackers) < 0 or len(set(self.attackers)) != len(self.attackers):
            raise ValueError("attackers: distinct numbers, 0 or more")
        return self


#: Training settings that the first runs did not have.
_LATER_SETTINGS = ("optimizer", "schedule", "label_smoothing", "batches", "cutout", "mixup", "jitter")


class TrainingSection(Section):
    """The recipe of the sub-models (see `codeward.training.choose_recipe`) and overrides of it.

    ``recipe``: ``modern``, unless said otherwise (federations: ``paper``), or ``paper``.

    Examples
    --------
    >>> TrainingSection(epochs=3).model_dump(exclude_none=True)
    {'epochs': 3, 'engine': 'auto', 'device': 'auto'}
    """

    recipe: Literal["modern", "paper"] | None = None
    architecture: str | None = None
    epochs: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    weight_decay: float | None = Field(default=None, ge=0)
    augmentation: Literal["none", "crop-flip", "shift", "shift-flip", "warp"] | None = None
    optimizer: Literal["adam", "sgd"] | None = None
    schedule: Literal["constant", "one-cycle"] | None = None
    label_smoothing: float | None = Field(default=None, ge=0, lt=1)
    batches: Literal["user", "mixed"] | None = None
    cutout: int | None = Field(default=None, ge=0)
    mixup: float | None = Field(default=None, ge=0)
    jitter: float | None = Field(default=None, ge=0)
    precision: Literal["auto", "float32", "bfloat16"] | None = None
    engine: Literal["auto", "loop", "compiled", "graphs", "stacked", "lanes"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class DecoderSection(Section):
    """Assumptions of the Bayes decoder; the paper's by default.

    Examples
    --------
    >>> DecoderSection().success_rate
    0.99
    """

    attack_rate: float = Field(default=0.5, ge=0, le=1)
    success_rate: float = Field(default=0.99, ge=0, le=1)
    max_attackers: int = Field(default=3, ge=0, description="Prior of the number of attackers: uniform on 0 .. this.")


class RunConfig(Section):
    """One run of the main job: data, users, code, attack, training, decoding, all from one seed.

    Examples
    --------
    >>> config = RunConfig(code={"name": "d"}, repeats=2)
    >>> config.dataset, config.users, config.attack.fraction
    ('digits', 12, 0.5)
    >>> config.differences(RunConfig(code={"name": "c"}))
    ['code.name: "d" here, "c" there']
    """

    #: What ``training.recipe`` is when a configuration does not say.
    default_recipe: ClassVar[Literal["modern", "paper"]] = "modern"

    dataset: str = "digits"
    data_dir: Path | None = None
    users: int = Field(default=12, ge=2)
    split: SplitSection = SplitSection()
    code: CodeSection = CodeSection()
    attack: AttackSection = AttackSection()
    training: TrainingSection = TrainingSection()
    decoder: DecoderSection = DecoderSection()
    seed: int = Field(default=0, ge=0, lt=2**31)
    repeats: int = Field(default=1, ge=1)
    store: Path | None = Field(
        default=None, description="Model store to share between runs; the run folder's own by default."
    )
    cluster: str | None = Field(
        default=None, description="Ray cluster to train on: local, auto or HOST:PORT; without one, this process trains."
    )

    @field_validator("cluster")
    @classmethod
    def _cluster_is_an_address(cls, address: str | None) -> str | None:
        return address if address is None else check_address(address)

    @model_validator(mode="after")
    def _fits(self) -> "RunConfig":
        most = max(self.attack.attackers) * self.attack.groups
        if most > self.users:
            raise ValueError(f"attack: {most} attackers among {self.users} users")
        if self.decoder.max_attackers > self.users:
            raise ValueError(f"decoder.max_attackers: {self.decoder.max_attackers} among {self.users} users")
        return self

    @model_validator(mode="after")
    def _resolve_fraction(self) -> "RunConfig":
        # Here rather than at use: the configuration a run keeps says what was done, and has one digest either way.
        if self.attack.fraction is None:
            fraction = FRACTIONS.get(self.dataset, FRACTION)
            object.__setattr__(self, "attack", self.attack.model_copy(update={"fraction": fraction}))
        return self

    @model_validator(mode="after")
    def _resolve_recipe(self) -> "RunConfig":
        if self.training.recipe is None:
            object.__setattr__(self, "training", self.training.model_copy(update={"recipe": self.default_recipe}))
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides the figures of a cell.

        Where data and models are kept and trained does not, nor which cells there are (repeats, numbers of attackers):
        a run may grow.
        """
        elsewhere: Any = {"data_dir": True, "store": True, "cluster": True, "repeats": True, "attack": {"attackers"}}
        content = self.model_dump(mode="json", exclude=elsewhere)
        # Settings that came later than the first runs, where they are as in those: their digests stay what they are.
        earlier = {"recipe": "paper"} | dict.fromkeys(_LATER_SETTINGS)
        training = content["training"]
        content["training"] = {name: value for name, value in training.items() if value != earlier.get(name, ...)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """Return the configuration for a record; where data, models and machines are is left out."""
        content: dict[str, Any] = self.model_dump(mode="json")
        return content | {"data_dir": None, "store": None, "cluster": None}

    def differences(self, other: "RunConfig") -> list[str]:
        """Say in which settings that decide figures another configuration differs, one text a setting."""
        here, there = _flatten(self.model_dump(mode="json")), _flatten(other.model_dump(mode="json"))
        free = ("data_dir", "store", "cluster", "repeats", "attack.attackers")
        return [
            f"{key}: {json.dumps(here.get(key))} here, {json.dumps(there.get(key))} there"
            for key in dict.fromkeys([*here, *there])
            if key not in free and here.get(key) != there.get(key)
        ]

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML that `load_config` reads back."""
        text: str = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
        return text


Kind = TypeVar("Kind", bound=RunConfig)


@overload
def load_config(
    path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = (), *, kind: type[Kind]
) -> Kind: ...
@overload
def load_config(path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> RunConfig: ...
def load_config(
    path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = (), *, kind: type[RunConfig] = RunConfig
) -> RunConfig:
    """Read a YAML file (the defaults when there is none) and apply ``key=value`` overrides.

    Parameters
    ----------
    path : path-like, optional
    overrides : sequence of str
        ``section.key=value``; the value is read as YAML, so ``attack.attackers=[0,1]`` works.
    kind : type
        `RunConfig`, or a kind of run with more sections.

    Raises
    ------
    InputError
        Names every unknown key and impossible value, in one line.

    Examples
    --------
    >>> load_config(overrides=["users=16", "attack.attackers=[0, 1]"]).attack.attackers
    (0, 1)
    """
    content: Any = {}
    if path is not None:
        file = Path(path)
        content = read_yaml(file) or {}
        if not isinstance(content, dict):
            raise InputError(f"{file}: expected keys and values, found a {type(content).__name__}")
        if "federated" in content and "federated" not in kind.model_fields:
            raise InputError(f"{file}: a federated run; this command is for pooled ones (see codeward federate --help)")
        # A YAML file may leave a section empty.
        sections = {name for name, field in kind.model_fields.items() if _is_section(field.annotation)}
        content = {key: {} if value is None and key in sections else value for key, value in content.items()}
    for override in overrides:
        _apply(content, override)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        where = f"{path}: " if path else ""
        problems = [f"{shorten('.'.join(map(str, item['loc'])) or 'config')}: {_explain(item)}"
                    for item in error.errors()[:MAX_TOLD]]  # fmt: skip
        if error.error_count() > MAX_TOLD:
            problems.append(f"and {error.error_count() - MAX_TOLD} more")
        raise InputError(where + "; ".join(problems)) from error


def _flatten(content: dict[str, Any], head: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flatten(value, f"{head}{key}.") if isinstance(value, dict) else {head + key: value}
    return flat


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"--set {override}: expected key=value, such as attack.kind=blended")
    *sections, last = key.split(".")
    place = content
    for section in sections:
        if place.get(section) is None:  # absent, or a section without content
            place[section] = {}
        place = place[section]
        if not isinstance(place, dict):
            raise InputError(f"--set {override}: {section} is not a section")
    place[last] = parse_yaml(text, f"--set {shorten(override)}")


def _explain(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown key"
    message: str = shorten(item["msg"].removeprefix("Value error, "), 400)
    return f"{message} (got {shorten(repr(item['input']))})" if item["loc"] else message
