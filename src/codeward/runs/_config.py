"""Configurations of runs, of federations, of one's own data: what YAML may say, checked before anything starts."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, overload

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from codeward._cores import check_address
from codeward._errors import InputError
from codeward._files import read_text
from codeward.runs._sections import (
    ASSUMED_BY_BAYES,
    DEFAULT_CODE,
    DESIGNER,
    FRACTION,
    FRACTIONS,
    LATER_SETTINGS,
    MODERN_ARCHITECTURES,
    AttackSection,
    CodeSection,
    DecoderSection,
    FederatedDecoderSection,
    FederatedSection,
    Section,
    SplitSection,
    TrainingSection,
    TrainSection,
)

#: Longest and deepest YAML that is read: the loader takes a second for 32 kB of brackets.
MAX_BYTES, MAX_DEPTH = 2**15, 20
#: Characters of what was given that an error shows.
MAX_SHOWN = 80
#: Mistakes that an error tells of.
MAX_TOLD = 20


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
    cluster: Annotated[str, AfterValidator(check_address)] | None = Field(
        default=None, description="Ray cluster to train on: local, auto or HOST:PORT; without one, this process trains."
    )

    @model_validator(mode="after")
    def _complete(self) -> "RunConfig":
        most = max(self.attack.attackers) * self.attack.groups
        if most > self.users:
            raise ValueError(f"attack: {most} attackers among {self.users} users")
        if self.decoder.max_attackers > self.users:
            raise ValueError(f"decoder.max_attackers: {self.decoder.max_attackers} among {self.users} users")
        # Here rather than at use: the configuration a run keeps says what was done, and has one digest either way.
        if self.users == 12 and self.code == CodeSection():
            object.__setattr__(self, "code", CodeSection(name=DEFAULT_CODE))
        if self.attack.fraction is None:
            fraction = FRACTIONS.get(self.dataset, FRACTION)
            object.__setattr__(self, "attack", self.attack.model_copy(update={"fraction": fraction}))
        if self.training.recipe is None:
            # The modern rates are for networks with batch norm; a network of one's own gets the paper's careful ones.
            known = self.training.architecture in (None, *MODERN_ARCHITECTURES)
            recipe = self.default_recipe if known else "paper"
            object.__setattr__(self, "training", self.training.model_copy(update={"recipe": recipe}))
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides the figures of a cell.

        Where data and models are kept and trained does not, nor which cells there are (repeats, numbers of attackers):
        a run may grow.
        """
        content = self.model_dump(mode="json", exclude=self._elsewhere())
        # Settings that came later than the first runs, where they are as in those: their digests stay what they are.
        earlier = {"recipe": "paper"} | dict.fromkeys(LATER_SETTINGS)
        training = content["training"]
        content["training"] = {name: value for name, value in training.items() if value != earlier.get(name, ...)}
        content["code"] = DESIGNER | content["code"]
        if self.decoder.name == "bayes":  # before others could be named, and with the digests of then
            content["decoder"] = {key: content["decoder"][key] for key in ASSUMED_BY_BAYES}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _elsewhere(self) -> dict[str, Any]:
        """Return what decides no figure: where things are, and which cells there are."""
        return {"data_dir": True, "store": True, "cluster": True, "repeats": True, "attack": {"attackers"}}

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


class TrainConfig(RunConfig):
    """A run without attack on one's own data.

    Examples
    --------
    >>> TrainConfig(train={"data": "patients.csv"}, attack={"attackers": [0]}).train.data
    'patients.csv'
    """

    train: TrainSection = TrainSection()

    @classmethod
    def checked(cls, content: dict[str, Any]) -> "TrainConfig":
        """Return a configuration; what is wrong with it is said in one line, with the name of the option."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = f"{str(first['loc'][-1]).replace('_', '-')}: " if first["loc"] else ""
            raise InputError(where + first["msg"].removeprefix("Value error, ")) from error

    def _elsewhere(self) -> dict[str, Any]:
        places = {"data", "test", "trusted", "columns", "weights"}
        places |= set() if self.train.ignore else {"ignore"}  # as it was before columns could be left out
        return {**super()._elsewhere(), "train": places}

    def described(self) -> dict[str, Any]:
        """Return the configuration for a record; where data, models and machines are is left out."""
        told = super().described()
        return told | {"train": told["train"] | dict.fromkeys(("data", "test", "trusted", "columns", "weights"))}


class FederatedConfig(RunConfig):
    """A federated run: data, users, code, attack and decoder as for ``codeward run``, and the federation.

    Examples
    --------
    >>> FederatedConfig(federated={"rule": "median"}).federated.rule
    'median'
    """

    #: The modern recipes are for pooled training: a rate that falls to 0, a stem fitted to all users of a model.
    default_recipe: ClassVar[Literal["modern", "paper"]] = "paper"

    code: CodeSection = CodeSection(attackers=3, guarantee="correct")
    decoder: FederatedDecoderSection = FederatedDecoderSection()
    federated: FederatedSection = FederatedSection()

    @model_validator(mode="after")
    def _no_pooled_training(self) -> "FederatedConfig":
        if self.training.recipe == "modern":
            raise ValueError("training.recipe: a federation trains by the paper's; leave it out")
        if self.training.epochs is not None:
            raise ValueError("training.epochs: a federation counts federated.rounds and federated.local_epochs")
        if self.training.committee not in (None, 1):
            raise ValueError("training.committee: a federation trains one network a sub-model; leave it out")
        if self.training.engine != "auto" or self.cluster is not None:
            raise ValueError("training: users train on their own machines; leave out engine and cluster")
        return self


Kind = TypeVar("Kind", bound=RunConfig)


def read_stored(content: Any) -> Any:
    """Complete a configuration that a run keeps: where it names no decoder or recipe, there was only the paper's.

    Examples
    --------
    >>> read_stored({"decoder": {"max_attackers": 2}, "training": {"recipe": "modern"}})
    {'decoder': {'name': 'bayes', 'max_attackers': 2}, 'training': {'recipe': 'modern'}}
    """
    if not isinstance(content, dict):
        return content
    first: dict[str, dict[str, Any]] = {"decoder": {"name": "bayes"}, "training": {"recipe": "paper"}}
    return content | {part: first[part] | content[part] for part in first if isinstance(content.get(part), dict)}


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
        if not Path(path).is_file():
            raise InputError(f"{path}: no such configuration file")
        content = parse_yaml(read_text(path, MAX_BYTES), str(path)) or {}
        if isinstance(content, dict) and "federated" in content and "federated" not in kind.model_fields:
            raise InputError(f"{path}: a federated run; this command is for pooled ones (see codeward federate --help)")
    return read_config(content, str(path or ""), kind, overrides)


def load_federated_config(path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> FederatedConfig:
    """Read a YAML file (the defaults when there is none) and apply ``key=value`` overrides, as `load_config` does.

    Examples
    --------
    >>> load_federated_config(overrides=["federated.rounds=3"]).federated.rounds
    3
    """
    return load_config(path, overrides, kind=FederatedConfig)


def read_config(content: Any, what: str, kind: type[Kind], overrides: Sequence[str] = ()) -> Kind:
    """Check a configuration that was read from YAML, with overrides; ``what`` names it in errors."""
    if not isinstance(content, dict):
        raise InputError(f"{what}: expected keys and values, found a {type(content).__name__}")
    # A YAML file may leave a section empty.
    sections = {
        name
        for name, field in kind.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
    content = {key: {} if value is None and key in sections else value for key, value in content.items()}
    for override in overrides:
        _apply(content, override)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        where = f"{what}: " if what else ""
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


def parse_yaml(text: str, what: str) -> Any:
    """Read YAML from somebody else as `read_yaml` does; ``what`` names it in errors.

    Examples
    --------
    >>> parse_yaml("users: 12", "the configuration")
    {'users': 12}
    """
    try:
        if len(text) > MAX_BYTES:
            raise InputError(f"{what}: more than {MAX_BYTES:,} characters")
        return yaml.load(text, Loader=_Loader)
    except InputError:
        raise
    except Exception as error:  # PyYAML raises whatever comes up on values that are not what their tag says
        raise InputError(f"{what}: not readable as YAML: {' '.join(str(error).split())[:400]}") from error


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without what turns a small file into a large object, and with equal keys refused."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node; aliases, and nesting deeper than any configuration has, are mistakes."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not supported")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping, and refuse a key that stands there twice: the safe loader takes the last in silence."""
        seen = set()
        for key, _ in node.value:
            name = getattr(key, "value", None)
            if isinstance(name, str) and name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name} stands there twice", key.start_mark)
            seen.add(name if isinstance(name, str) else id(key))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Build a whole number of 64 bits at most: Python does not even print one of thousands of digits."""
        value = int(super().construct_yaml_int(node))
        if abs(value) >= 1 << 63:
            raise yaml.constructor.ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def shorten(text: str, length: int = MAX_SHOWN) -> str:
    """Return text as one line of at most ``length`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[:length]}..."
