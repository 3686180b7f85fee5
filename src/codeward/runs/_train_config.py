"""Configurations of ``codeward train``: one's own data, nobody attacks."""

from typing import Any

from pydantic import Field

from codeward.runs._config import RunConfig
from codeward.runs._sections import Section


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
    parts: int = Field(default=50, ge=2, description="Parts into which samples without users are hashed.")


class TrainConfig(RunConfig):
    """A run without attack on one's own data.

    Examples
    --------
    >>> TrainConfig(train={"data": "patients.csv"}, attack={"attackers": [0]}).train.data
    'patients.csv'
    """

    train: TrainSection = TrainSection()

    def _elsewhere(self) -> dict[str, Any]:
        places = {"data", "test", "trusted", "columns", "weights"}
        return {**super()._elsewhere(), "train": places}

    def described(self) -> dict[str, Any]:
        """Return the configuration for a record; where data, models and machines are is left out."""
        told = super().described()
        return told | {"train": told["train"] | dict.fromkeys(("data", "test", "trusted", "columns", "weights"))}
