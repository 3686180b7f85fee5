import contextlib
import http.server
import socket
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from codeward._cores import check_address
from codeward._errors import InputError
from codeward.cli import main
from codeward.codes import Code
from codeward.data import Overlay, Samples
from codeward.runs import load_config
from codeward.training import PRESETS, Cluster, ModelPlan, train_ensemble
from codeward.training._engines import Job
from codeward.training._ray_tasks import (
    GPU_CHUNK,
    START,
    Recipe,
    announce,
    cut_chunks,
    list_versions,
    pack_samples,
    train_chunk,
    unpack_samples,
)

RECIPE = Recipe(replace(PRESETS["digits"], epochs=1), "float32", (1, 8, 8), "cpu", "compiled")


def make_samples(n=10, overlays=True):
    rng = np.random.default_rng(n)
    images, labels = rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, n)
    if not overlays:
        return Samples(images, labels)
    two = tuple(Overlay(*rng.random((2, 1, 8, 8), dtype=np.float32)) for _ in range(2))
    return Samples(images, labels, two, rng.integers(-1, 2, n).astype(np.int32))


def make_jobs(*users, task=0):
    return [Job(ModelPlan(users, 0, number), f"{task}-{number}", task) for number, users in enumerate(users)]


@pytest.mark.parametrize("n_gpus", [0, 1, 2, 3])
@pytest.mark.parametrize("n_jobs", [1, 2, 9, 40])
def test_every_job_is_in_exactly_one_chunk(n_gpus, n_jobs):
    rng = np.random.default_rng(n_jobs)
    sizes = [40, 130, 300, 20]
    jobs = make_jobs(*(tuple(np.flatnonzero(rng.random(4) < 0.6).tolist()) or (0,) for _ in range(n_jobs)))
    chunks = cut_chunks(jobs, sizes, RECIPE.settings, n_gpus)
    assert sorted(job.key for chunk in chunks for job in chunk) == sorted(job.key for job in jobs)
    assert all(chunks)


def test_chunks_are_single_models_or_a_share_of_each_gpu():
    settings, sizes = RECIPE.settings, [40, 40, 300]
    jobs = make_jobs(*[(0, 1)] * 11, *[(0, 2)] * 9)
    alone = cut_chunks(jobs, sizes, settings, 0)
    assert set(map(len, alone)) == {1}
    assert alone[0][0].plan.users == (0, 2), "the longest first"
    assert [len(chunk) for chunk in cut_chunks(jobs, sizes, settings, 4)] == [5] * 4
    assert max(len(chunk) for chunk in cut_chunks(jobs * 5, sizes, settings, 1)) <= GPU_CHUNK
    later = make_jobs(*[(0, 2)] * 3, task=1)
    ordered = [job.task for chunk in cut_chunks([*later, *jobs], sizes, settings, 0) for job in chunk]
    assert ordered == sorted(ordered), "an earlier task is done first"


@pytest.mark.parametrize("overlays", [True, False])
def test_samples_travel_as_plain_arrays_and_come_back_with_the_same_digest(overlays):
    samples = make_samples(overlays=overlays)
    arrays = pack_samples(samples)
    assert all(type(array) is np.ndarray and array.dtype.kind in "uif" for array in arrays)
    assert unpack_samples(arrays).digest() == samples.digest()


def test_what_a_user_hides_in_an_array_does_not_travel():
    class Trap(np.ndarray):
        def __reduce__(self):
            raise AssertionError("pickled")

    samples = make_samples(overlays=False)
    trapped = Samples(samples.images.view(Trap), samples.labels.view(Trap), (), samples.overlay_ids.astype(object))
    assert all(type(array) is np.ndarray and not array.dtype.hasobject for array in pack_samples(trapped))


def test_a_chunk_gives_the_bytes_of_the_serial_engine_whatever_is_cut():
    users = [make_samples(n) for n in (40, 30, 50)]
    code = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
    whole = train_ensemble(users, code, RECIPE.settings, 1, device="cpu", engine="compiled")
    from safetensors.torch import save

    from codeward.training import plan_models

    packed, plans = [pack_samples(samples) for samples in users], plan_models(code, 1)
    alone, arithmetic = train_chunk([replace(plans[1], users=(0, 1))], RECIPE, list_versions(), *packed[1:])
    assert alone == [save(whole.weights(1))]
    pair, again = train_chunk([plans[2], plans[0]], RECIPE, list_versions(), *packed)
    assert pair == [save(whole.weights(2)), save(whole.weights(0))]
    assert arithmetic == again != ""


def test_a_machine_with_another_release_or_without_its_gpu_refuses():
    arguments = [ModelPlan((0,), 0, 1)], RECIPE
    with pytest.raises(InputError, match=r"torch .* and the caller 1\.0; install the same release"):
        train_chunk(*arguments, list_versions() | {"torch": "1.0"}, pack_samples(make_samples()))
    with pytest.raises(InputError, match="its torch sees none"):
        train_chunk(arguments[0], replace(RECIPE, device="cuda"), list_versions(), pack_samples(make_samples()))


@pytest.mark.parametrize(
    "address", ["local", "auto", "10.0.0.1:6379", "head.example:6379", "[::1]:6379", "localhost:1"]
)
def test_addresses_of_clusters_are_accepted(address):
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address", ["", "Local", "head", "head:", "head:0", "head:65536", "head:6379/", "ray://head:10001", "a b:1", ":1"]
)
def test_other_addresses_are_refused(address):
    with pytest.raises(InputError, match="cluster"):
        check_address(address)
    with pytest.raises(InputError, match="cluster"):
        load_config(None, [f"cluster={address!r}"])


def test_where_models_are_trained_is_no_part_of_what_a_run_is():
    here, there = load_config(), load_config(None, ["cluster=10.0.0.1:6379"])
    assert there.cluster == "10.0.0.1:6379"
    assert here.digest == there.digest


@contextlib.contextmanager
def listening(answer):
    """Give the port of a server on loopback that answers, or that accepts and keeps silent."""
    if answer:
        server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
        server.server_close()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield server.getsockname()[1]


def test_an_address_where_nobody_answers_is_one_line_at_once_and_no_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main(["run", "--engine", "ray", "--address", f"127.0.0.1:{port}"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert f"127.0.0.1:{port}: Connection refused; is a Ray head running there" in captured.err
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_no_ray_head_is_told_from_one(monkeypatch):
    pytest.importorskip("ray")
    with listening(True) as port, pytest.raises(InputError, match="no Ray head"):
        Cluster(f"127.0.0.1:{port}").open()
    monkeypatch.setattr("codeward.training._ray_cluster._PATIENCE", 0.2)
    with listening(False) as port, pytest.raises(InputError, match="no answer"):
        Cluster(f"localhost:{port}").open()


def test_auto_needs_a_cluster_on_this_machine_and_no_stale_trace_of_one(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(InputError, match="no Ray cluster runs on this machine"):
        Cluster("auto").check()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1: Connection refused"):
        Cluster("auto").check()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:2")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:2: Connection refused"):
        Cluster("auto").check()


def test_without_ray_the_line_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["run", "--engine", "ray"]) == 2
    assert capsys.readouterr().err == "codeward: cluster: Ray is not installed (pip install 'codeward[ray]')\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "loop"], "expected serial or ray"),
        (["--address", "auto"], "goes with --engine ray"),
        (["--engine", "serial", "--address", "auto"], "goes with --engine ray"),
        (["--engine", "ray", "--address", "nonsense"], "local, auto or HOST:PORT"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, words, capsys):
    assert main(["run", *arguments]) == 2
    assert words in capsys.readouterr().err


class Elsewhere(Cluster):
    """A cluster of 100 cores, as far as the advice looks at one."""

    def count(self, resource):
        return 100


def test_the_advice_against_ray_comes_for_small_jobs_and_not_for_large_ones(capsys):
    jobs = make_jobs(*[(0,)] * 100)
    announce(Elsewhere("10.0.0.1:6379"), jobs, [100], RECIPE)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"about 0 s on this machine without Ray and about {START['cluster']:.0f} s with it" in line
    announce(Elsewhere("10.0.0.1:6379"), jobs, [10_000_000], RECIPE)
    announce(Elsewhere("10.0.0.1:6379"), jobs, [100], replace(RECIPE, device="cuda"))
    assert capsys.readouterr().err == ""
    # On the same cores Ray only adds its start-up, however long the job.
    announce(Cluster("local"), jobs, [10_000_000], RECIPE)
    assert "without Ray" in capsys.readouterr().err
