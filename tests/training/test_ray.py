"""Training on real Ray clusters, all of them on this machine's loopback interface; Linux only (they read /proc)."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.cli import main
from codeward.codes import Code
from codeward.data import Overlay, Samples
from codeward.runs import load_records
from codeward.training import PRESETS, Cluster, ModelStore, drop_users, plan_models, train_ensembles

# Not imported here: the processes of these tests import this module before codeward sets Ray's switches.
pytestmark = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or importlib.util.find_spec("ray") is None, reason="needs Ray and /proc"
    ),
    # Ray does not close the /dev/null it hands to its processes.
    pytest.mark.filterwarnings("ignore:unclosed file .*/dev/null:ResourceWarning"),
]

CODE = Code([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])


def make_tasks():
    """Return four tasks, with a poisoned user, a user who left and a network with dropout among them."""
    rng = np.random.default_rng(0)
    sizes = (40, 30, 150, 20)
    clean = [Samples(rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, n)) for n in sizes]
    corner = np.zeros((1, 8, 8), np.float32)
    corner[:, :3, :3] = 1
    marked = np.where(np.arange(30) % 3 == 0, 0, -1).astype(np.int32)
    poisoned = Samples(clean[1].images, np.full(30, 7), (Overlay(corner, corner),), marked)
    fewer = drop_users(plan_models(CODE, 3), [3], 3)
    return [(clean, CODE), ([clean[0], poisoned, *clean[2:]], CODE), (clean, fewer)]


def recipe(epochs=1, architecture="digits-cnn"):
    return replace(PRESETS["digits"], epochs=epochs, batch_size=32, architecture=architecture)


KINDS = (("compiled", "digits-cnn"), ("loop", "mnist-cnn"))


def weights_in(root):
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*.safetensors")}


def children(pid):
    """Return the living processes that descend from ``pid``, by their numbers, with their titles."""
    parents, titles = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(folder.name)] = int(parent)
                titles[int(folder.name)] = (folder / "cmdline").read_text().partition("\0")[0].strip()
            except OSError:  # it ended meanwhile
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: titles.get(child, "") for child in found - {pid}}


def listening_addresses(pids):
    """Return the local addresses, in hexadecimal, on which processes listen for TCP connections."""
    sockets = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(file))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found


#: 127.0.0.1 as /proc writes it, and the same as an IPv6 address.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}

LOCAL = """
import json, os, sys, tempfile
sys.path.insert(0, sys.argv[1])
from test_ray import KINDS, children, listening_addresses, make_tasks, recipe
from codeward.experiments import run_experiment
from codeward.runs import load_config
from codeward.training import Cluster, ModelStore, train_ensembles

with Cluster("local") as cluster:
    for engine, architecture in KINDS:
        store = ModelStore(os.path.join(sys.argv[2], engine))
        train_ensembles(make_tasks(), recipe(architecture=architecture), 3, store, "cpu", engine, True, cluster)
    # The main job, on the cluster this process is connected to.
    settings = ["code.name=d", "decoder.name=bayes", "training.epochs=1", "attack.attackers=[0]", "cluster=auto"]
    records = list(run_experiment(load_config(None, settings), os.path.join(sys.argv[2], "run"), progress=True))
    import ray
    started = children(os.getpid())
    said = {
        "trained": records[0]["work"]["trained"],
        "started": len(started),
        "listening": sorted(listening_addresses([os.getpid(), *started])),
        "usage": ray._common.usage.usage_lib.usage_stats_enabled(),
        "folder": cluster._folder,
        "mode": os.stat(cluster._folder).st_mode & 0o777,
    }
said |= {"left": children(os.getpid()), "kept": os.path.exists(said["folder"])}
print(json.dumps(said))
"""


def test_ray_on_this_machine_gives_the_bytes_of_the_serial_engine_on_loopback_and_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-c", LOCAL, str(Path(__file__).parent), str(tmp_path / "ray")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    for engine, architecture in KINDS:
        store = ModelStore(tmp_path / "serial" / engine)
        for ensemble in train_ensembles(make_tasks(), recipe(architecture=architecture), 3, store, "cpu", engine):
            assert all(ModelStore(tmp_path / "ray" / engine).holds(key) for key in ensemble.keys)
    assert len(weights_in(tmp_path / "serial")) == 2 * 8
    for engine, _ in KINDS:
        assert weights_in(tmp_path / "ray" / engine) == weights_in(tmp_path / "serial" / engine)
    said = json.loads(done.stdout)
    assert said["started"] > 3
    assert said["listening"]
    assert set(said["listening"]) <= LOOPBACK
    assert not said["usage"]
    assert (said["left"], said["kept"], said["mode"]) == ({}, False, 0o700)
    advice = [line for line in done.stderr.splitlines() if "without Ray" in line]
    assert (len(advice), said["trained"]) == (3, 6), "each of the three trainings was on Ray"
    others = [line for line in done.stderr.splitlines() if not line.startswith("training: ")]
    assert others == advice, "Ray's own lines stay away"


@pytest.fixture(scope="module")
def head():
    """Start the head of a cluster, with one core, on loopback; tests add and remove a second node."""
    place = tempfile.mkdtemp(prefix="cw-")  # short: Unix sockets have short names
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", place)
        patch.setenv("PYTHONPATH", place)
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster as RealCluster

        # Where another test imported Ray before.
        patch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
        cluster = RealCluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield cluster
        cluster.shutdown()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def second(head):
    node = head.add_node(num_cpus=1, num_gpus=1)
    yield node
    if node in head.worker_nodes:
        head.remove_node(node)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Train without Ray: models that take a few seconds each, to be disturbed."""
    root = tmp_path_factory.mktemp("serial")
    train_ensembles(make_tasks(), LONG, 3, ModelStore(root), "cpu", "loop")
    return weights_in(root)


LONG = recipe(60, "mnist-cnn")


def raylet(node):
    return node.all_processes["raylet"][0].process.pid


def disturb(act, store, node):
    """Call ``act`` once, while a task runs on ``node`` and at least one model is finished; return the thread."""
    happened = threading.Event()

    def watch():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            busy = [pid for pid, title in children(raylet(node)).items() if title == "ray::codeward-train"]
            if busy and any(store.root.rglob("*.json")):
                act(busy[0])
                happened.set()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread, happened


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["worker", "node"])
def test_a_run_that_loses_a_worker_or_a_whole_node_ends_with_the_bytes_of_the_serial_engine(
    loss, head, second, serial, tmp_path, capsys
):
    store = ModelStore(tmp_path)

    def kill(pid):
        if loss == "worker":
            os.kill(pid, signal.SIGKILL)
        else:
            head.remove_node(second, allow_graceful=False)

    thread, happened = disturb(kill, store, second)
    address = head.address if loss == "worker" else "auto"
    ensembles = train_ensembles(make_tasks(), LONG, 3, store, "cpu", "loop", cluster=address)
    thread.join()
    assert happened.is_set(), "it was done before anything was lost"
    assert capsys.readouterr() == ("", "")
    assert [ensemble.trained for ensemble in ensembles] == [4, 2, 2]
    assert weights_in(tmp_path) == serial


@pytest.mark.slow
def test_gpus_are_asked_for_where_the_cluster_has_them_and_the_device_allows(head, second, tmp_path):
    import torch

    with Cluster(head.address) as cluster:
        assert cluster.pick_device("auto") == torch.device("cuda")
        assert cluster.pick_device("cpu") == torch.device("cpu")
        # The second node only says that it has a GPU: the task gets there, and says that there is none.
        if not torch.cuda.is_available():
            with pytest.raises(InputError, match="its torch sees none"):
                train_ensembles(make_tasks(), recipe(), 3, ModelStore(tmp_path), "auto", cluster=cluster)
        train_ensembles(make_tasks(), recipe(), 3, ModelStore(tmp_path), "cpu", cluster=cluster)
        with pytest.raises(InputError, match="connected to a Ray cluster already"):
            Cluster("local").open()
        assert Cluster("auto").count("CPU") == 2


@pytest.mark.slow
def test_a_task_that_loses_its_worker_every_time_fails_the_run_and_says_so(head, monkeypatch):
    # A network that ends every process that builds it, except this one.
    place = Path(os.environ["PYTHONPATH"])
    (place / "fatal.py").write_text(
        "import os\n"
        "from codeward.training import ARCHITECTURES\n"
        "def build(shape, n_classes):\n"
        f"    return os._exit(1) if os.getpid() != {os.getpid()} else ARCHITECTURES['mlp'](shape, n_classes)\n"
    )
    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr("codeward.training._ray_tasks.RETRIES", 1)
    tasks = [(make_tasks()[0][0], plan_models(CODE, 3)[:1])]
    fatal = recipe(architecture="fatal:build")
    with pytest.raises(ConnectionError, match=r"lost a task for good.*run again to go on"):
        train_ensembles(tasks, fatal, 3, device="cpu", engine="loop", cluster=head.address)


@pytest.mark.slow
def test_who_gives_up_leaves_no_task_on_the_cluster(head, tmp_path):
    class Impatient(ModelStore):
        def save_weights(self, *arguments):
            super().save_weights(*arguments)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_ensembles(make_tasks(), LONG, 3, Impatient(tmp_path), "cpu", "loop", cluster=head.address)
    assert len(weights_in(tmp_path)) == 1
    deadline = time.monotonic() + 30
    while (busy := "ray::codeward-train" in children(raylet(head.head_node)).values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not busy


RUN = [
    "run",
    "--set",
    "code.name=d",
    "--set",
    "decoder.name=bayes",
    "--set",
    "training.engine=loop",
    "--set",
    "training.epochs=10",
]
RUN += ["--set", "attack.attackers=[0]"]


@pytest.mark.slow
def test_ctrl_c_leaves_a_folder_that_goes_on_and_no_process(tmp_path):
    folder = tmp_path / "run"
    start = "import sys; from codeward.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, *RUN, "-o", str(folder), "--engine", "ray"]

    def listen():
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
        start_new_session=True,
    )
    started = {}
    try:
        deadline = time.monotonic() + 120
        while not list(folder.glob("store/*/*.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground hears it
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert out == ""
    assert f"the same command with -o {folder} goes on from here" in err
    assert "Traceback" not in err
    assert len(started) > 3
    deadline = time.monotonic() + 10  # the last one watches the others end
    while (left := [pid for pid in started if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    kept = len(list(folder.glob("store/*/*.json")))
    assert 0 < kept < 6
    assert main([*RUN, "-o", str(folder), "--quiet", "--engine", "serial"]) == 0
    assert load_records(folder)[0]["work"] == {"models": 6, "trained": 6 - kept, "reused": kept}
