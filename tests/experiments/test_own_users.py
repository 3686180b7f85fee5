"""Users that the data bring are the users of a run, by name, through run and revoke."""

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.experiments import revoke_users, run_experiment, settle_users
from codeward.runs import RunConfig, RunFolder, foresee_revocation


def test_groups_of_an_npz_are_the_users_by_name(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    names = np.array([f"clinic-{place % 5:02}" for place in range(len(digits.target))])
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=digits.target, groups=names)
    few = {"attack": {"attackers": [0]}, "training": {"epochs": 1}, "decoder": {"name": "bayes"}}
    config = RunConfig(dataset=str(tmp_path / "own.npz"), code={"attackers": 1, "time_limit": 1}, **few)
    [record] = run_experiment(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert record["config"]["split"]["kind"] == "groups"
    assert folder.code.users == tuple(f"clinic-{place:02}" for place in range(5))
    outlook = foresee_revocation(folder.path, ["clinic-03"])
    [without] = revoke_users(folder.path, outlook, tmp_path / "without")
    assert without["revoked"]["users"] == ["clinic-03"]
    with pytest.raises(InputError, match="users: 7, but the groups"):
        settle_users(RunConfig(dataset=str(tmp_path / "own.npz"), users=7))
    asked = RunConfig(dataset=str(tmp_path / "own.npz"), split={"kind": "iid"})
    assert settle_users(asked) == asked
