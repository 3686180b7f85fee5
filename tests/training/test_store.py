import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from codeward._errors import InputError
from codeward.codes import Code
from codeward.data import Samples
from codeward.training import PRESETS, BatchedEnsemble, ModelPlan, ModelStore, model_key, train_ensemble

RECIPE = replace(PRESETS["digits"], epochs=1, batch_size=32)
KEY = "ab" * 32

SCRIPT = """
import sys
import numpy as np
from dataclasses import replace
from codeward.codes import Code
from codeward.data import Samples
from codeward.training import PRESETS, ModelStore, train_ensemble
rng = np.random.default_rng(0)
users = [Samples(rng.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, 40)) for _ in range(6)]
code = Code(np.triu(np.ones((6, 6), dtype=bool)))
recipe = replace(PRESETS["digits"], epochs=int(sys.argv[2]), batch_size=32)
print("start", flush=True)
print(train_ensemble(users, code, recipe, 0, ModelStore(sys.argv[1]), "cpu", engine="loop").trained)
"""


def make_users(n=3):
    rng = np.random.default_rng(0)
    return [Samples(rng.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, 40)) for _ in range(n)]


def entries(root: Path) -> list[Path]:
    return [path for path in root.rglob("*.json") if ".scores." not in path.name]


def test_weights_and_scores_come_back_as_they_went_in(tmp_path):
    store = ModelStore(tmp_path)
    weights = {"b": torch.randn(3, 4), "a": torch.tensor(7)}
    assert store.load_weights(KEY) is None
    store.save_weights(KEY, weights, {"users": [1]})
    loaded = store.load_weights(KEY)
    assert set(loaded) == set(weights)
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    scores = np.arange(6, dtype=np.float32).reshape(2, 3)
    store.save_scores(KEY, "cd" * 32, scores)
    assert (store.load_scores(KEY, "cd" * 32) == scores).all()
    assert store.load_scores(KEY, "ce" * 32) is None
    with pytest.raises(InputError, match="not a key"):
        store.load_weights("../../etc/passwd")


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def link_to_9_gigabytes(path):
    large = path.with_name("large")
    with large.open("wb") as file:
        file.truncate(9 * 2**30)
    path.unlink()
    path.symlink_to(large)


def replace_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("*.safetensors", flip_a_byte),
        ("*.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-10])),
        ("*.safetensors", Path.unlink),
        ("*.safetensors", link_to_9_gigabytes),
        ("*.safetensors", replace_by_a_pipe),
        ("*.json", lambda path: path.write_text("{")),
        ("*.json", lambda path: path.write_text('{"file": 3, "sha256": "0"}')),
        ("*.json", lambda path: path.write_text(path.read_text().replace('"bytes": ', '"bytes": -'))),
        ("*.json", lambda path: path.write_text('{"about": ' + "[" * 100_000)),
        ("*.json", replace_by_a_pipe),
    ],
)
def test_a_damaged_entry_is_reported_and_trained_again_with_the_same_bytes(tmp_path, caplog, pattern, damage):
    users, code, store = make_users(), Code([[1, 1, 0], [0, 1, 1]]), ModelStore(tmp_path)
    first = train_ensemble(users, code, RECIPE, 0, store, "cpu")
    weights = first.weights(0)
    damage(next(path for path in tmp_path.rglob(pattern) if path.name.startswith(first.keys[0])))
    second = train_ensemble(users, code, RECIPE, 0, store, "cpu")
    assert (second.trained, second.reused) == (1, 1)
    assert store.corrupted_ == [first.keys[0]]
    assert "damaged" in caplog.text
    assert all(torch.equal(second.weights(0)[name], weights[name]) for name in weights)


def test_changing_one_user_trains_only_the_models_that_saw_it(tmp_path):
    users, store = make_users(4), ModelStore(tmp_path)
    code = Code([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
    train_ensemble(users, code, RECIPE, 0, store, "cpu")
    changed = [users[0].take(np.arange(39)), *users[1:]]
    again = train_ensemble(changed, code, RECIPE, 0, store, "cpu")
    assert (again.trained, again.reused) == (2, 2)
    other = train_ensemble(users, code, replace(RECIPE, learning_rate=1e-4), 0, store, "cpu")
    assert other.trained == 4


def start(root, epochs):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(root), str(epochs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def kill_after(n_models, process, root):
    deadline = time.monotonic() + 60
    while len(entries(root)) < n_models and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(entries(root))
    assert kept >= n_models
    return kept


def test_kill_9_leaves_whole_models_and_a_store_that_goes_on_to_the_same_bytes(tmp_path):
    kept = kill_after(1, start(tmp_path, 3), tmp_path)
    users, code = make_users(6), Code(np.triu(np.ones((6, 6), dtype=bool)))
    recipe, store = replace(RECIPE, epochs=3), ModelStore(tmp_path)
    resumed = train_ensemble(users, code, recipe, 0, store, "cpu", engine="loop")
    assert (resumed.trained, resumed.reused, store.corrupted_) == (6 - kept, kept, [])
    fresh = train_ensemble(users, code, recipe, 0, device="cpu", engine="loop")
    assert resumed.keys == fresh.keys
    for model in range(6):
        assert all(torch.equal(resumed.weights(model)[name], value) for name, value in fresh.weights(model).items())


@pytest.mark.slow
def test_kill_9_loses_only_models_in_flight_and_processes_resume_to_the_same_files(tmp_path):
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    kept = kill_after(2, start(broken, 8), broken)
    resumed = start(broken, 8)
    fresh = start(whole, 8)
    assert resumed.communicate()[0].split() == ["start", str(6 - kept)]
    assert fresh.communicate()[0].split() == ["start", "6"]
    names = {path.name for path in whole.rglob("*.safetensors")}
    assert len(names) == 6
    for path in whole.rglob("*.safetensors"):
        assert (broken / path.relative_to(whole)).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_two_processes_on_one_store_leave_one_whole_store(tmp_path):
    processes = [start(tmp_path, 2) for _ in range(2)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    store = ModelStore(tmp_path)
    assert len(entries(tmp_path)) == 6
    assert all(store.holds(path.stem) for path in entries(tmp_path))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 6
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("computation", "key"),
    [
        ("cpu stacked float32", "99a57a1e2ad69f1858ff9a3e48eeb46d287e5722919cdc094a6391997517177e"),
        ("cpu loop float32", "8f37162bf0db0d037ec37bd4c498f693073aacafb795ba5dc59e46a05e333d50"),
        ("cuda loop bfloat16", "be1bde1b929b6d5a6180890b36d49cb51ec30cbb1503097da94b8dc919289f23"),
        # Format 8: the modern networks have kernels of our own.
        ("cuda lanes bfloat16", "613eb93bd926a52b1b8838617271ec4b1670f4ea418a5468a9d15b5cafd74e40"),
    ],
)
def test_keys_are_those_of_stores_that_exist(computation, key):
    plan = ModelPlan((0, 2), 1, 123)
    assert model_key(plan, ["aa", "bb", "cc"], PRESETS["digits"], "net", computation) == key


def test_whole_weights_of_another_network_are_refused_in_one_line(tmp_path):
    users, store = make_users(), ModelStore(tmp_path)
    ensemble = train_ensemble(users, Code([[1, 1, 1]]), RECIPE, 0, store, "cpu")
    store.save_weights(ensemble.keys[0], {"0.weight": torch.zeros(3)}, {})
    for ask in (ensemble.votes, lambda samples: BatchedEnsemble(ensemble)):
        with pytest.raises(InputError, match="do not fit digits-cnn; remove it from the store"):
            ask(users[0])


def test_an_entry_of_scores_without_scores_is_damaged(tmp_path):
    store = ModelStore(tmp_path)
    store.save_weights(KEY, {"weight": torch.ones(2)}, {})
    folder = tmp_path / KEY[:2]
    (folder / f"{KEY}.scores.x.json").write_bytes((folder / f"{KEY}.json").read_bytes())
    assert store.load_scores(KEY, "x") is None
    assert store.corrupted_ == [KEY]
    assert store.holds(KEY)
