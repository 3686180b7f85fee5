import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from codeward import __version__
from codeward.cli import main
from codeward.cli._run import print_summary
from codeward.codes import named_code
from codeward.decoding import VoteSet
from codeward.experiments import record_cell
from codeward.runs import Cell, RunFolder, decoder_figures, describe_machine, load_config, load_records

SMALL = [
    "--set",
    "code.name=d",
    "--set",
    "decoder.name=bayes",
    "--set",
    "training.recipe=paper",
    "--set",
    "training.epochs=2",
    "--set",
    "attack.attackers=[0,1]",
]


def vote_bytes(folder):
    return {file.name: file.read_bytes() for file in sorted((folder / "votes").glob("*.npz"))}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["run", *SMALL, "-o", str(folder), "--quiet"]) == 0
    return folder


def test_a_run_prints_accuracy_and_attack_success_and_names_its_folder(done, capsys):
    assert main(["run", *SMALL, "-o", str(done)]) == 0
    out = capsys.readouterr().out
    assert "repeat 0, 1 attacker: " in out
    assert max(map(len, out.replace(str(done), "DIR").splitlines())) <= 80
    flat = " ".join(out.split())
    for word in ("plurality", "false alarms", "named", "270 test inputs", "nobody is named for sure"):
        assert word in flat
    # Models of two epochs of the paper's recipe err so often that the decoder keeps nothing: no number is within.
    assert "Nothing is guaranteed of the labels of the decoder in use." in flat
    assert "past" in flat
    assert "within" not in flat
    assert out.endswith(f"run folder: {done}\nnext: codeward report {done}\n")


def test_other_decoders_are_counted_beside_the_papers_and_name_by_pooled_evidence(done, tmp_path, capsys):
    code = named_code("btc2412")
    config = load_config(None, ["attack.attackers=[2,3]", "decoder.name=groups"])
    folder, rng = RunFolder(tmp_path / "run"), np.random.default_rng(0)
    folder.open(config)

    def vote(n_inputs, attackers=()):
        labels = rng.integers(1, 4, n_inputs)
        wrong = rng.random((n_inputs, code.n_models)) < 0.03
        votes = np.where(wrong, labels[:, None] % 3 + 1, labels[:, None])
        votes[:, code.pattern(attackers)] = 0 if attackers else votes[:, code.pattern(attackers)]
        return VoteSet(votes, labels)

    for attackers in ((2, 9), (2, 9, 4)):
        group = {"attackers": list(attackers), "target": 0}
        about = {"classes": 4, "training": {}, "groups": [group], "work": {}, **describe_machine("cpu")}
        votes = {"validation": vote(200), "clean": vote(100), "triggered": vote(100, attackers)}
        cell = record_cell(config, Cell(folder, 0, len(attackers)).save_votes(votes, about))
        own = cell.record["figures"]["decoder"]
        assert own["groups"][0]["all"]["right"]["count"] >= 90
        assert own["groups"][0]["all"]["unreached"]["of"] == 100
        pooled = own["groups"][0]["pooled"]
        assert pooled["rightly"]["of"] == len(attackers) * pooled["wrongly"]["of"] > 0
        assert pooled["wrongly"]["count"] == 0
        assert pooled["rightly"]["count"] == pooled["rightly"]["of"]
        assert decoder_figures(cell.record) == own
    print_summary(folder, load_records(folder.path))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.strip()[:1] in ("2", "3")] == [["2", "within"], ["3", "past"]]
    assert "who attacked, with up to 2 attackers" in " ".join(" ".join(lines).split())


def test_json_is_one_object_on_stdout_and_nothing_else(done, capsys):
    assert main(["run", *SMALL, "-o", str(done), "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err == ""
    assert result["folder"] == str(done)
    assert result["records"] == load_records(done)
    assert [record["n_attackers"] for record in result["records"]] == [0, 1]
    assert sorted(result["plots"]) == sorted(str(file) for file in (done / "plots").iterdir())
    assert len(result["plots"]) == 3


def test_the_folder_has_a_name_of_its_own_when_none_is_given(done, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *SMALL, "--set", f"store={done / 'store'}", "--json"]) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    assert folder.startswith("runs/digits-")
    assert (tmp_path / folder / "config.yaml").exists()


def test_what_is_there_is_not_called_trained(done, capsys):
    assert main(["run", *SMALL, "-o", str(done), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.count("already there") == 2
    assert "sub-models trained" not in out


def test_force_moves_another_run_aside_and_a_refusal_shows_what_differs(done, tmp_path, capsys):
    copy = shutil.copytree(done, tmp_path / "run")
    other = ["run", *SMALL, "--set", "attack.attackers=[0]", "--set", "seed=1", "-o", str(copy), "--quiet"]
    assert main(other) == 2
    assert "seed: 1 here, 0 there" in capsys.readouterr().err
    assert main([*other, "--force"]) == 0
    assert [record["seed"] for record in load_records(copy)] == [1]
    assert load_records(tmp_path / "run.1") == load_records(done)


def test_the_shipped_configuration_is_the_default_one():
    assert load_config(Path(__file__).parents[2] / "configs" / "digits.yaml") == load_config()


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"codeward {__version__}\n"


def test_a_wrong_setting_is_told_before_anything_heavy_is_imported():
    code = """
import sys
from codeward.cli import main
status = main(["run", "--set", "usres=3"])
sys.exit(f"{status} {sorted({'torch', 'numpy', 'numba', 'sklearn'} & set(sys.modules))}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines() == ["codeward: usres: unknown key", "2 []"]


def test_a_missing_package_is_named_with_the_extra_that_brings_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    for name in [name for name in sys.modules if name.startswith("codeward.runs")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["run"]) == 2
    assert "codeward[train]" in capsys.readouterr().err


def test_vote_files_of_a_run_go_straight_into_decode(done, tmp_path, capsys):
    votes, code = done / "votes" / "repeat0-attackers1-triggered.npz", done / "code.json"
    assert main(["decode", str(votes), "--code", str(code), "-o", str(tmp_path / "out.jsonl")]) == 0
    capsys.readouterr()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(lines) == 270
    alarms = load_records(done)[1]["figures"]["groups"][0]["triggered"]["all"]["alarms"]
    with np.load(votes) as content:
        split = (content["votes"] != content["votes"][:, :1]).any(axis=1)
    assert (
        sum(line["attack_probability"] > 0.5 and some for line, some in zip(lines, split, strict=True))
        == alarms["count"]
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "nothing=1"], ["nothing", "unknown key"]),
        (["--set", "users"], ["key=value"]),
        (["--set", "users=1"], ["users", "got 1"]),
        (["--set", "dataset=nothing"], ["nothing"]),
        (["none.yaml"], ["none.yaml", "no such configuration file"]),
        (["--nonsense"], ["nonsense"]),
    ],
)
def test_bad_input_exits_2_with_one_line_and_leaves_no_folder(tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for word in words:
        assert word in captured.err
    assert not list(tmp_path.iterdir())


def test_the_folder_of_another_run_is_refused(done, capsys):
    assert main(["run", *SMALL, "--set", "seed=1", "-o", str(done)]) == 2
    assert "holds another run" in capsys.readouterr().err


# One model after the other, long enough to be interrupted between two of them.
LONG = [
    "--set",
    "code.name=d",
    "--set",
    "decoder.name=bayes",
    "--set",
    "training.engine=loop",
    "--set",
    "training.epochs=6",
]
LONG += ["--set", "attack.attackers=[0]"]


def models_in(folder):
    return [file for file in (folder / "store").rglob("*.json") if ".scores." not in file.name]


def interrupt(folder, number):
    """Start the run in a process of its own and send it a signal once its first sub-model is in the store."""

    def listen():  # a shell that runs tests in the background makes its children deaf to Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    start = "import sys; from codeward.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "run", *LONG, "-o", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=listen)
    try:
        deadline = time.monotonic() + 120
        while not models_in(folder):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long") / "run"
    assert main(["run", *LONG, "-o", str(folder), "--quiet"]) == 0
    return folder


def go_on(folder, undisturbed):
    """Run the same command again: fewer sub-models are trained, and the votes are those of an undisturbed run."""
    assert not list((folder / "records").glob("*")), "it was done before the signal came"
    kept = len(models_in(folder))
    assert main(["run", *LONG, "-o", str(folder), "--quiet"]) == 0
    assert load_records(folder)[0]["work"] == {"models": 6, "trained": 6 - kept, "reused": kept}
    assert vote_bytes(folder) == vote_bytes(undisturbed)
    assert [record["figures"] for record in load_records(folder)] == [
        record["figures"] for record in load_records(undisturbed)
    ]


def test_ctrl_c_leaves_a_folder_from_which_the_same_command_goes_on(tmp_path, undisturbed):
    status, out, err = interrupt(tmp_path / "run", signal.SIGINT)
    assert status == 130
    assert out == ""
    assert f"the same command with -o {tmp_path / 'run'} goes on from here" in err
    assert "Traceback" not in err
    go_on(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_kill_9_loses_only_the_models_in_flight(tmp_path, undisturbed):
    status, _, _ = interrupt(tmp_path / "run", signal.SIGKILL)
    assert status == -signal.SIGKILL
    go_on(tmp_path / "run", undisturbed)
