"""Sections of a run configuration: what each may say, and what it says where nothing is said."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

#: Share of an attacker's data that is poisoned in the paper.
FRACTION = 0.05

#: The same where the paper's 5% are too little.
#: An attacker of digits holds about 105 images; 5% of them, 5 images, plant a trigger that hit models obey on 40% of
#: the inputs only. Measured, 12 users, 20 epochs: 40% at 0.05, 61% at 0.10, 87% at 0.20 (code d), 93 to 97% at 0.35,
#: 98.5 to 99.7% at 0.5 (code c). The paper's setting is an attack that works (99%).
FRACTIONS: dict[str, float] = {"digits": 0.5}

#: The code of 12 users who say nothing else: 15 models of a third of them, names two attackers with one vote wrong.
DEFAULT_CODE = "btc2412"


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


#: Settings of the designer, with what digests of named codes say of them: what stood there when digests began.
DESIGNER: dict[str, Any] = {
    "attackers": 3,
    "utilization": None,
    "row_weight": None,
    "guarantee": "correct",
    "margin": 3,
    "max_models": None,
    "time_limit": 10.0,
}


class CodeSection(Section):
    """Where the code comes from: a file, one of those with a name, or the designer.

    With nothing said, 12 users have `DEFAULT_CODE`, which is what the designer's defaults ask for; other numbers of
    users have one designed.

    Examples
    --------
    >>> CodeSection(name="c").name, CodeSection().margin
    ('c', 3)
    """

    file: Path | None = None
    name: str | None = None
    attackers: int = Field(default=2, ge=1, description="Designer: k.")
    utilization: float | None = Field(
        default=None, gt=0, lt=1, description="Designer: least share of users a model learns from."
    )
    row_weight: int | None = Field(default=None, ge=1)
    guarantee: Literal["detect", "correct", "correct-arbitrary", "track"] = "track"
    margin: int = Field(default=3, ge=1, description="Designer: 3 corrects one wrong vote; real models err.")
    max_models: int | None = Field(default=None, ge=1)
    time_limit: float = Field(default=10.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _no_designer(cls, content: Any) -> Any:
        """Forget the designer's settings where it is not asked: they decide nothing, and no two runs differ by them."""
        if isinstance(content, dict) and (content.get("file") or content.get("name")) is not None:
            return {key: value for key, value in content.items() if key not in DESIGNER}
        return content

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = dump(self)
        asked = self.file is None and self.name is None
        return {key: value for key, value in content.items() if asked or key not in DESIGNER}

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


#: Networks of the modern recipes.
MODERN_ARCHITECTURES = ("fast", "fast-small", "mnist-fast")

#: Training settings that the first runs did not have.
LATER_SETTINGS = ("optimizer", "schedule", "label_smoothing", "batches", "cutout", "mixup", "jitter", "committee")


class TrainingSection(Section):
    """The recipe of the sub-models (see `codeward.training.choose_recipe`) and overrides of it.

    ``recipe``: ``modern`` or ``paper``. Where it is not said: ``modern``; with an architecture that the modern recipes
    do not use, and in federations, ``paper``.

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
    committee: int | None = Field(default=None, ge=1, le=100, description="Networks a sub-model, averaged.")
    precision: Literal["auto", "float32", "bfloat16"] | None = None
    engine: Literal["auto", "loop", "compiled", "graphs", "stacked", "lanes"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class DecoderSection(Section):
    """The decoder and what it assumes; ``bayes`` is the paper's, with the paper's assumptions.

    Examples
    --------
    >>> DecoderSection().name, DecoderSection().success_rate
    ('calibrated', 0.99)
    """

    name: Literal["calibrated", "bayes", "groups", "discounted", "soft"] = "calibrated"
    false_alarm_rate: float = Field(
        default=0.05, gt=0, lt=1, description="Share of clean inputs that may be flagged (all but bayes, groups)."
    )
    attack_rate: float = Field(default=0.5, ge=0, le=1)
    success_rate: float = Field(default=0.99, ge=0, le=1)
    max_attackers: int = Field(default=3, ge=0, description="Prior of the number of attackers: uniform on 0 .. this.")


#: What the paper's decoder assumes.
ASSUMED_BY_BAYES = ("attack_rate", "success_rate", "max_attackers")


class FederatedSection(Section):
    """Rounds, local work and aggregation (see `codeward.federated.FederatedSettings`), and what attackers do.

    Examples
    --------
    >>> FederatedSection(rounds=3).server_settings()["rounds"]
    3
    """

    rounds: int = Field(default=10, ge=1)
    local_epochs: int = Field(default=2, ge=1)
    rule: Literal["mean", "trimmed-mean", "median"] = "mean"
    trim: int = Field(default=1, ge=1, description="trimmed-mean: values left out at each end of a coordinate.")
    clip_norm: float | None = Field(default=None, gt=0, description="Longest update of a model that counts in full.")
    sample_cap: int = Field(default=10_000, ge=1, description="A user weighs at most this many samples.")
    sample_limit: int = Field(default=10_000_000, ge=1, description="A reply that claims more is refused.")
    sample: int | None = Field(default=None, ge=1, description="Users of each column who are asked in a round.")
    timeout: float = Field(default=600.0, gt=0, description="Seconds a round waits for replies.")
    behaviour: Literal["poison", "replacement", "split-targets"] = Field(
        default="poison",
        description="What attackers do: train honestly on poisoned data; scale the poisoned update up so that it "
        "replaces the model; the same with another target in every sub-model.",
    )
    boost: float | None = Field(
        default=None, gt=0, description="Scale of a replacing update; by default the number of users of the model."
    )

    def server_settings(self) -> dict[str, Any]:
        """Return the part the server decides: keyword arguments of `codeward.federated.FederatedSettings`."""
        return self.model_dump(exclude={"behaviour", "boost"})


class FederatedDecoderSection(DecoderSection):
    """The decoder whose figures stand beside the consensus decoder's: the paper's, unless told otherwise.

    Examples
    --------
    >>> FederatedDecoderSection().name
    'bayes'
    """

    name: Literal["calibrated", "bayes", "groups", "discounted", "soft"] = "bayes"


class TrainSection(Section):
    """Where the data are, which columns mean what, and which model every row of the code is.

    Paths say where things are, digests what they are: the folder stays the same run when files move.

    Examples
    --------
    >>> TrainSection(data="patients.csv", label="risk").test_fraction
    0.2
    """

    data: str = Field(default="", description="File, folder or name of the data; empty where they came from memory.")
    data_digest: str = Field(default="", description="SHA-256 of the users' data.")
    label: str | None = None
    user: str | None = None
    text: str | None = Field(default=None, description="The column that holds text.")
    ignore: tuple[str, ...] = Field(default=(), description="Columns that nobody learns from.")
    columns: str | None = Field(default=None, description="Schema file: columns, kinds and classes as declared.")
    test: str | None = None
    test_digest: str = ""
    test_fraction: float = Field(default=0.2, gt=0, lt=1, description="Held out of every user's samples.")
    trusted: str | None = Field(default=None, description="Clean samples of nobody: all that is fitted for all rows.")
    trusted_digest: str = ""
    weights: str | None = Field(default=None, description="CSV of user and weight, for the columns of unlike users.")
    model: str | None = Field(default=None, description="Name, import path or file; by default what suits.")
    backbone: str | None = Field(default=None, description="Heads on its features instead of whole models.")
    ridge: float = Field(default=0.1, gt=0, description="Of the heads; stated, never estimated.")
    parts: int = Field(default=50, ge=2, le=10_000, description="Parts into which samples without users are hashed.")

    @property
    def reading(self) -> dict[str, Any]:
        """How `codeward.data.load_user_data` is to read the users' data, beside where they are and a schema."""
        told = {"label": self.label, "user": self.user, "text": self.text}
        return told | {"n_parts": self.parts, "drop": self.ignore}
