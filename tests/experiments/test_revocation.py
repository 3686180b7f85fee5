import hashlib
import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.codes import Code, inspect, named_code
from codeward.decoding import load_votes
from codeward.experiments import _setting, load_pair, name_output, prepare_setting, revoke_users, run_experiment
from codeward.experiments._unlearning import plan_remaining
from codeward.runs import Revocation, foresee_revocation, load_config, load_record, load_revocation
from codeward.training import ModelStore, drop_users, plan_models, train_ensemble

# Columns are 4 users with one zero and 2 with two: rows (models) have 3 to 5 users.
CODE = named_code("toy-d")
SETTINGS = [
    "code.name=toy-d",
    "decoder.name=bayes",
    "users=6",
    "training.epochs=1",
    "training.device=cpu",
    "decoder.max_attackers=1",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    config = load_config(None, [*SETTINGS, "attack.attackers=[0,1]", "attack.fraction=0.5"])
    list(run_experiment(config, folder))
    return folder


@pytest.fixture
def run_folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def list_models(folder):
    """Sidecar of every model in a store, by key."""
    files = (file for file in (folder / "store").glob("*/*.json") if ".scores." not in file.name)
    return {file.stem: json.loads(file.read_text()) for file in files}


def hash_files(folder):
    return {file.relative_to(folder): hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.rglob("*.*")}


def test_untouched_models_stay_byte_for_byte_and_nothing_left_saw_the_revoked_user(run_folder):
    before = hash_files(run_folder)
    old = list_models(run_folder)
    outlook = foresee_revocation(run_folder, ["4"])
    output = name_output(run_folder, outlook)
    records = list(revoke_users(run_folder, outlook, output))
    assert output == run_folder / "revoked" / "4"
    new = list_models(output)

    # 1. The old folder is as it was.
    assert {file: digest for file, digest in hash_files(run_folder).items() if file.parts[0] != "revoked"} == before
    # 2. What never saw user 4 is there under the same key, in the same bytes.
    untouched = {key for key, entry in old.items() if 4 not in entry["about"]["users"]}
    assert len(outlook.untouched) == 2
    assert untouched
    assert set(new) & set(old) == untouched
    for key in untouched:
        for name in (f"{key}.json", new[key]["file"]):
            kept, taken = (place / "store" / key[:2] / name for place in (run_folder, output))
            assert kept.read_bytes() == taken.read_bytes()
    # 3. No model of the new state saw user 4.
    assert all(4 not in entry["about"]["users"] for entry in new.values())
    # 4. Only what was touched was trained, in every cell.
    assert records[0]["work"]["trained"] == len(outlook.retrained) == 2
    assert sum(record["work"]["trained"] for record in records) == len(new) - len(untouched)


def test_retrained_models_are_those_of_a_training_that_never_had_the_user(run_folder, tmp_path):
    outlook = foresee_revocation(run_folder, ["4"])
    output = tmp_path / "new"
    list(revoke_users(run_folder, outlook, output))
    config = load_config(run_folder / "config.yaml")
    setting = prepare_setting(config, 0, load_pair(config), CODE)
    # Another code altogether, made for the other five users from the start (user 4 has a model of its own), with
    # other data for user 4: models of equal user sets must come out equal, bit for bit.
    remaining = [tuple(user for user in np.flatnonzero(row) if user != 4) for row in CODE.matrix]
    matrix = np.zeros((5, 6), dtype=int)
    for row, users in enumerate(remaining):
        matrix[row, list(users)] = 1
    matrix[4, 4] = 1
    users = list(setting.users)
    users[4] = replace(users[4], images=255 - users[4].images)
    store = ModelStore(tmp_path / "fresh")
    train_ensemble(users, Code(matrix), setting.training, setting.model_seed, store, "cpu", config.training.engine)
    fresh = {tuple(entry["about"]["users"]): entry for entry in list_models_in(tmp_path / "fresh")}
    clean = [entry for entry in list_models(output).values() if tuple(entry["about"]["users"]) in fresh]
    same = [entry for entry in clean if entry["sha256"] == fresh[tuple(entry["about"]["users"])]["sha256"]]
    # The store also holds models under attack; of each user set one is the clean one.
    assert {tuple(entry["about"]["users"]) for entry in same} == set(remaining)


def test_a_revocation_trains_by_the_recipe_of_the_run_although_its_name_means_another_now(
    run_folder, tmp_path, monkeypatch
):
    recipe = _setting.choose_recipe("digits")
    monkeypatch.setattr(_setting, "choose_recipe", lambda *_: replace(recipe, label_smoothing=0.1))
    outlook = foresee_revocation(run_folder, ["4"])
    records = list(revoke_users(run_folder, outlook, tmp_path / "new"))
    assert max(record["work"]["trained"] for record in records) == len(outlook.retrained)


def list_models_in(root):
    return [json.loads(file.read_text()) for file in root.glob("*/*.json") if ".scores." not in file.name]


def test_the_new_state_is_a_run_folder_that_says_who_was_revoked(run_folder, tmp_path):
    attacker = load_record(run_folder / "records" / "repeat0-attackers1.json")["figures"]["groups"][0]["attackers"][0]
    outlook = foresee_revocation(run_folder, [str(attacker)])
    records = list(revoke_users(run_folder, outlook, tmp_path / "new"))
    # A server of the old folder finds a note there, since the new state is elsewhere.
    note = json.loads((run_folder / "revoked" / f"{outlook.after.digest[:16]}.json").read_text())
    assert (note["folder"], note["users"]) == (str(tmp_path / "new"), [str(attacker)])
    code = Code.load(tmp_path / "new" / "code.json")
    assert code.n_users == 5
    assert code.users == tuple(str(user) for user in range(6) if user != attacker)
    assert np.array_equal(code.matrix, np.delete(CODE.matrix, attacker, axis=1))
    for record in records:
        assert record["revoked"]["users"] == [str(attacker)]
        assert record["code_digest"] == code.digest
        assert record["code"] == {"models": 4, "users": 5, "row_weight": code.row_weight}
        file = f"repeat0-attackers{record['n_attackers']}-validation.npz"
        assert load_votes(tmp_path / "new" / "votes" / file).votes.shape[1] == 4
    # Without the attacker the trigger is in no model, and under attack the votes are those of the clean models.
    (group,) = records[1]["figures"]["groups"]
    assert group["attackers"] == []
    assert group["revoked"] == [str(attacker)]
    assert group["success"]["hit_models"] == {"count": 0, "of": 0}
    clean, attacked = (load_votes(tmp_path / "new" / "votes" / f"repeat0-attackers{k}-clean.npz") for k in (0, 1))
    assert np.array_equal(clean.votes, attacked.votes)
    assert records[1]["work"]["trained"] == 0


def test_a_second_revocation_goes_on_from_the_first(run_folder, tmp_path):
    first = foresee_revocation(run_folder, ["4"])
    list(revoke_users(run_folder, first, tmp_path / "one"))
    second = foresee_revocation(tmp_path / "one", ["1"])
    assert second.before == first.after
    list(revoke_users(tmp_path / "one", second, tmp_path / "two"))
    assert load_revocation(tmp_path / "two").steps == ((4,), (1,))
    assert Code.load(tmp_path / "two" / "code.json").users == ("0", "2", "3", "5")
    old, new = list_models(tmp_path / "one"), list_models(tmp_path / "two")
    assert set(old) & set(new) == {key for key, entry in old.items() if 1 not in entry["about"]["users"]}
    with pytest.raises(InputError, match="already revoked"):
        foresee_revocation(tmp_path / "two", ["4"])


def test_an_interrupted_revocation_goes_on_and_trains_nothing_twice(run_folder, tmp_path):
    outlook = foresee_revocation(run_folder, ["0"])
    steps = revoke_users(run_folder, outlook, tmp_path / "new")
    next(steps)
    steps.close()
    (tmp_path / "new" / "records" / "repeat0-attackers0.json").unlink()
    records = list(revoke_users(run_folder, outlook, tmp_path / "new"))
    assert len(records) == 2
    assert records[0]["work"]["trained"] == 0


def test_the_outlook_verifies_what_is_left(run_folder):
    outlook = foresee_revocation(run_folder, ["4", "0"])
    left = Code(np.delete(CODE.matrix, [0, 4], axis=1))
    assert outlook.guarantees_after.track == inspect(left).track
    assert outlook.guarantees_after.margin == inspect(left).margin
    assert outlook.guarantees_before.track == 1
    as_json = outlook.to_json()
    assert as_json["revoked"] == ["0", "4"]
    assert sorted(as_json["retrained"] + as_json["untouched"]) == [0, 1, 2, 3]


def test_models_without_users_are_dropped_and_names_stay():
    code = Code([[1, 1, 0], [0, 0, 1], [1, 0, 1]], users=["ann", "bob", "eve"], models=["x", "y", "z"])
    left = Revocation(code).add(["eve"])
    assert left.code == Code([[1, 1], [1, 0]], users=["ann", "bob"], models=["x", "z"])
    assert [plan.users for plan in plan_remaining(left, 0)] == [(0, 1), (0,)]


def test_states_that_share_a_matrix_are_told_apart():
    twins = Code([[1, 1, 0], [0, 0, 1]])
    assert Revocation(twins).add(["0"]).code.digest == Revocation(twins).add(["1"]).code.digest
    assert Revocation(twins).add(["0"]).digest != Revocation(twins).add(["1"]).digest


@pytest.mark.parametrize(
    ("users", "words"),
    [(["7"], "no user is named '7'"), ([], "at least one"), (list("012345"), "all the users")],
)
def test_impossible_revocations_are_refused(run_folder, users, words):
    with pytest.raises(InputError, match=words):
        foresee_revocation(run_folder, users)


def test_folders_in_use_are_refused(run_folder, tmp_path):
    outlook = foresee_revocation(run_folder, ["0"])
    with pytest.raises(InputError, match="not empty"):
        next(revoke_users(run_folder, outlook, run_folder))
    list(revoke_users(run_folder, outlook, tmp_path / "new"))
    with pytest.raises(InputError, match="another state"):
        next(revoke_users(run_folder, foresee_revocation(run_folder, ["1"]), tmp_path / "new"))
    with pytest.raises(InputError, match="not a run folder"):
        foresee_revocation(tmp_path / "nowhere", ["0"])
    (tmp_path / "new" / "revocation.json").write_text("{}")
    with pytest.raises(InputError, match="not a codeward-revocation/1 file"):
        load_revocation(tmp_path / "new")


def test_a_run_made_on_another_device_is_refused(run_folder, monkeypatch):
    for file in (run_folder / "records").glob("*.json"):
        record = json.loads(file.read_text())
        record["hardware"]["device"] = "cuda:0"
        file.write_text(json.dumps(record))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="GPU"):
        next(revoke_users(run_folder, foresee_revocation(run_folder, ["0"]), run_folder / "new"))


matrices = st.integers(2, 5).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n).filter(any), min_size=1, max_size=8)
)


@given(matrices, st.data())
def test_plans_without_users_are_those_of_the_smaller_code_and_untouched_ones_stay(rows, data):
    matrix = np.array(rows)
    matrix = np.vstack([matrix, ~matrix.any(axis=0)]) if not matrix.any(axis=0).all() else matrix
    code = Code(matrix[matrix.any(axis=1)])
    plans = plan_models(code, 5)
    for _ in range(2):
        gone = data.draw(st.sets(st.integers(0, code.n_users - 1), min_size=1, max_size=2))
        before, plans = plans, drop_users(plans, sorted(gone), 5)
        # Untouched plans stay, in order; nobody revoked is left.
        assert [plan for plan in before if not gone & set(plan.users)] == [plan for plan in plans if plan in before]
        assert not any(gone & set(plan.users) for plan in plans)
        # Up to the order of equal rows: what `plan_models` gives for the rows that are left, so seeds are all distinct.
        counts = Counter(plan.users for plan in plans)
        for users, count in counts.items():
            assert sorted(plan.replica for plan in plans if plan.users == users) == list(range(count))
        assert len({plan.seed for plan in plans}) == len(plans)
