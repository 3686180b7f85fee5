"""`codeward serve` as a process: announced, interrupted, killed; and what it refuses to start."""

import base64
import json
import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from codeward.cli import main
from codeward.estimators import load_sub_models
from codeward.runs import find_cell

SETTINGS = (
    "users=16",
    "code.name=g",
    "decoder.name=bayes",
    "attack.attackers=[1]",
    "attack.fraction=0.5",
    "training.architecture=mlp",
    "training.epochs=12",
    "training.device=cpu",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from codeward.experiments import run_experiment
    from codeward.runs import load_config

    place = tmp_path_factory.mktemp("serve") / "run"
    for _ in run_experiment(load_config(None, SETTINGS), place):
        pass
    return place


def start(folder, *options):
    """Start a server on a free port and return the process and what it announced."""
    code = "import sys; from codeward.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", str(folder), "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return process, json.loads(line)


def finish(process):
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=20)


def triggered(client):
    pictures = [p for p in client.get("/gallery").json()["pictures"] if p["kind"] == "triggered"]
    return [base64.b64decode(picture["png"].partition(",")[2]) for picture in pictures]


def test_a_server_killed_right_after_its_answer_has_lost_no_incident(folder, tmp_path):
    ledger = str(tmp_path / "incidents.sqlite")
    acknowledged = {}
    for _ in range(2):
        process, about = start(folder, "--ledger", ledger)
        try:
            with httpx.Client(base_url=about["url"]) as client:
                for body in triggered(client):
                    answer = client.post("/predict", content=body, headers={"content-type": "image/png"}).json()
                    (found,) = answer["predictions"]
                    if found["incident"] is not None:
                        acknowledged[found["incident"]] = found["digest"]
                os.kill(process.pid, signal.SIGKILL)
            assert process.wait(20) == -signal.SIGKILL
        finally:
            finish(process)
    assert len(acknowledged) >= 8  # both servers raised alarms, under numbers of their own
    from codeward.serve import Ledger

    with Ledger(ledger) as kept:
        assert {entry.id: entry.digest for entry in kept.incidents()} == acknowledged


def test_ctrl_c_ends_it_gracefully(folder, tmp_path):
    process, about = start(folder, "--ledger", str(tmp_path / "ledger.sqlite"))
    try:
        assert (about["simulated_attackers"], about["token"]) == (1, False)
        assert httpx.get(about["url"] + "healthz").json()["status"] == "ok"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        finish(process)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "is open to other machines"),
        (["--host", "192.0.2.1"], "is open to other machines"),
        (["--port", "70000"], "0..65535"),
        (["--threshold", "1.5"], "threshold"),
        (["--attackers", "3"], "no record"),
        (["--repeat", "7"], "no record"),
        (["--expect", "0"], "expect"),
        (["--token-file", "/does/not/exist"], "token file"),
        (["--ledger", "mysql://localhost/x"], ""),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(folder, capsys, monkeypatch, options, said):
    monkeypatch.delenv("CODEWARD_TOKEN", raising=False)
    assert main(["serve", str(folder), *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def test_short_tokens_and_folders_that_are_no_runs_are_refused(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CODEWARD_TOKEN", "short")
    assert main(["serve", str(folder)]) == 2
    monkeypatch.delenv("CODEWARD_TOKEN")
    assert main(["serve", str(tmp_path)]) == 2
    assert "no run folder" in capsys.readouterr().err


def test_a_configuration_that_cannot_be_read_gets_no_advice_that_would_fail_on_it(folder, tmp_path, capsys):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "config.yaml").write_bytes(b"\xff")
    assert main(["serve", str(copy), "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "config.yaml: not UTF-8" in said
    assert "codeward run" not in said


def test_models_that_are_gone_are_not_served(folder, tmp_path, capsys):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    victim = next(path for path in (copy / "store").rglob("*.safetensors") if ".scores." not in path.name)
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    assert main(["serve", str(copy), "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "lacks 1 of 6 sub-models" in said
    # What it advises helps: the lost model is trained again, the others are not, and the votes are the same.
    advice = re.search("`codeward (.*)`", said)[1]
    before = find_cell(copy)
    assert main([*advice.split(), "--quiet"]) == 0
    assert "1 of 6 sub-models trained" in capsys.readouterr().out
    after = find_cell(copy)
    assert load_sub_models(after).keys == before.keys
    assert after.about["digests"] == before.about["digests"]
    assert after.record["figures"] == before.record["figures"]
    assert main([*advice.split(), "--quiet"]) == 0
    assert "already there" in capsys.readouterr().out


def test_a_grid_or_packed_results_in_the_place_of_a_run_are_told_apart(tmp_path, capsys):
    run = tmp_path / "grid" / "digits-iid" / "c"
    run.mkdir(parents=True)
    (run / "code.json").write_text("{}")
    (run / "config.yaml").write_text("")
    assert main(["serve", str(tmp_path / "grid")]) == 2
    assert f"it holds runs, such as {run}" in capsys.readouterr().err
    (tmp_path / "mnist-iid.runs.npz").write_bytes(b"")
    for folder in (tmp_path, tmp_path / "mnist-iid", tmp_path / "mnist-iid" / "c"):
        assert main(["serve", str(folder)]) == 2
        assert "packed results have votes but no models" in capsys.readouterr().err
    assert main(["serve", str(run.parent)]) == 2
    assert capsys.readouterr().err.strip().endswith("(no code.json and config.yaml)")
