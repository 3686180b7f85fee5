"""Configurations of federated runs: those of a run, and how the federation trains and is attacked."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from codeward.runs._config import RunConfig, load_config
from codeward.runs._sections import CodeSection, DecoderSection, Section


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
        if self.training.engine != "auto" or self.cluster is not None:
            raise ValueError("training: users train on their own machines; leave out engine and cluster")
        return self


def load_federated_config(path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> FederatedConfig:
    """Read a YAML file (the defaults when there is none) and apply ``key=value`` overrides, as `load_config` does.

    Examples
    --------
    >>> load_federated_config(overrides=["federated.rounds=3"]).federated.rounds
    3
    """
    return load_config(path, overrides, kind=FederatedConfig)
