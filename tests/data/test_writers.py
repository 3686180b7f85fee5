"""MNIST with the writer of every image."""

import os

import numpy as np
import pytest

from codeward.data import CATALOG, load_dataset, load_user_data
from codeward.data._datasets import _read_writers


def test_the_writers_ship_with_the_package():
    train, test = _read_writers()
    assert (len(train), len(test)) == CATALOG["mnist-writers"].sizes
    names, counts = np.unique(train, return_counts=True)
    assert len(names) == 539
    assert (counts.min(), counts.max()) == (19, 131)
    assert len(np.unique(test)) == 297
    assert not set(names) & set(test)
    assert {name.split("-")[0] for name in names} == {"staff", "student"}


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("CODEWARD_DATA"), reason="CODEWARD_DATA is not set")
def test_mnist_writers_has_real_users():
    pair = load_dataset("mnist-writers")
    assert len(pair.groups) == len(pair.train) == 60_000
    assert len(pair.test_groups) == len(pair.test)
    data = load_user_data("mnist-writers")
    assert data.n_users == 539
    assert data.user_names[0].startswith("staff-")
    assert len(data.test) == 10_000
