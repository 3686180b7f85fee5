"""A tiny federation: digits, four users, four models of two users each."""

import os
from dataclasses import replace

import numpy as np
import pytest

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="session")
def code():
    from codeward import Code

    return Code([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]], users=["ann", "bob", "cleo", "dan"])


@pytest.fixture(scope="session")
def users():
    from codeward.data import load_dataset

    train = load_dataset("digits", None).train
    # Unequal amounts: a weighted mean then differs from a plain one.
    ends = np.cumsum([24, 40, 32, 20])
    return [train.take(np.arange(end - size, end)) for end, size in zip(ends, [24, 40, 32, 20], strict=True)]


@pytest.fixture(scope="session")
def plan(code):
    from codeward.federated import FederatedSettings, FederationPlan
    from codeward.training import PRESETS

    training = replace(PRESETS["digits"], architecture="mlp", batch_size=16)
    return FederationPlan(code, training, FederatedSettings(rounds=2, local_epochs=1), (1, 8, 8), 5)


@pytest.fixture(scope="session")
def honest(users, plan):
    from codeward.federated import train_federated

    return train_federated(users, plan)


@pytest.fixture
def assignment(plan):
    from codeward.federated import Federation

    return Federation(plan).assign()[0]
