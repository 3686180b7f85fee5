import hashlib
import json
from datetime import UTC, datetime

import numpy as np
import pytest

from codeward.cli import main
from codeward.codes import named_code
from codeward.decoding import VoteSet
from codeward.runs import Cell, RunConfig, RunFolder, describe_machine, find_cell
from codeward.serve import Incident, Ledger, find_incidents, make_examiner

CODE = named_code("g")


def make_folder(path, hard=0.08):
    """Make a run folder as `codeward run` leaves it, with votes of simulated models; a share of clean ones is hard."""
    rng = np.random.default_rng(0)
    votes = {}
    for inputs in ("validation", "clean"):
        labels = np.arange(300) % 10
        wrong = (labels + 1 + rng.integers(0, 3, 300)) % 10
        easy = 0.004 if hard else 0
        chance = np.where(rng.random(300) < (hard if inputs == "clean" else 0.08), 0.6, easy)
        says = np.where(rng.random((300, 6)) < chance[:, None], wrong[:, None], labels[:, None])
        votes[inputs] = VoteSet(says, labels)
    config = RunConfig.model_validate(
        {"users": 16, "code": {"name": "g"}, "decoder": {"name": "bayes", "max_attackers": 1}}
    )
    cell = Cell(RunFolder(path), 0, 1)
    cell.folder.open(config)
    cell = cell.save_votes(votes, {"classes": 10, "training": {}, "groups": [], **describe_machine("cpu")})
    cell.save_record(config, {"code_digest": CODE.digest, "training": {}, "figures": {}})
    return cell.folder.path


@pytest.fixture
def run_folder(tmp_path):
    """A run folder; user 13 attacks towards class 3."""
    return make_folder(tmp_path / "run")


@pytest.fixture
def filled(run_folder):
    """The same with twelve triggered inputs in its ledger."""
    return fill(run_folder)


def fill(run_folder):
    cell = find_cell(run_folder)
    votes = np.repeat((3 + 1 + np.arange(12) % 9)[:, None] % 10, 6, axis=1)
    votes[:, CODE.column(13)] = 3
    digests = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(12)]
    decoded = make_examiner(cell).alarm_decoder_.decode(votes)
    found = find_incidents(decoded, votes, digests, CODE, cell.id)
    assert len(found) == 12
    with Ledger(run_folder / "ledger.sqlite") as ledger:
        ledger.record_all(found)
        other = Incident((1,) * 6, 0.7, 1, 1, (), (0.0,) * 16, "0" * 64, CODE.digest, "old")
        ledger.record(other)
    return run_folder


def test_list_gives_the_latest_first(filled, capsys):
    assert main(["ledger", "list", "--ledger", str(filled / "ledger.sqlite"), "--limit", "3", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert [item["id"] for item in out["incidents"]] == [13, 12, 11]
    assert out["by_target"] == {"1": 1, "3": 12}
    assert main(["ledger", "list", "--run", str(filled), "--target", "1", "--json"]) == 0
    assert [item["run"] for item in json.loads(capsys.readouterr().out)["incidents"]] == ["old"]
    assert main(["ledger", "list", "--run", str(filled), "--since", "2999-01-01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["incidents"] == []
    assert main(["ledger", "list", "--run", str(filled)]) == 0
    assert "13 of 13 incidents" in capsys.readouterr().out


def test_the_ledger_may_come_from_the_environment(filled, capsys, monkeypatch):
    monkeypatch.setenv("CODEWARD_LEDGER", f"sqlite:///{filled / 'ledger.sqlite'}")
    assert main(["ledger", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["incidents"]) == 13


def test_show_prints_one_incident(filled, capsys):
    assert main(["ledger", "show", "1", "--run", str(filled), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    with Ledger(filled / "ledger.sqlite") as ledger:
        assert shown == ledger.incident(1).to_json()
    assert datetime.fromisoformat(shown["time"]).tzinfo == UTC
    assert main(["ledger", "show", "1", "--run", str(filled)]) == 0
    assert "suspects            13" in capsys.readouterr().out


def test_show_weighs_the_evidence_of_a_run_and_says_how_sure_it_is(filled, capsys):
    assert main(["ledger", "show", "--run", str(filled), "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["evidence"]
    assert item["target"] == 3
    assert item["incidents"] == 12
    assert item["attack_shown"]
    assert item["error_bound"] <= 0.01
    assert item["convicted"] == ["13"]
    assert main(["ledger", "show", "--run", str(filled)]) == 0
    assert "convicted: 13" in capsys.readouterr().out
    # A stricter limit than the evidence: the suspect stays, the conviction goes.
    assert main(["ledger", "show", "--run", str(filled), "--alpha", "1e-12"]) == 0
    shown = capsys.readouterr().out
    assert "they may all be false alarms" in shown
    assert "convicted: nobody" in shown
    assert main(["ledger", "show", "--run", str(filled), "--target", "5"]) == 0
    assert "no incidents" in capsys.readouterr().out


def test_verify_says_whether_the_ledger_is_as_it_was_written(filled, capsys):
    place = ["--run", str(filled)]
    assert main(["ledger", "verify", *place, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["intact"]
    assert (found["incidents"], found["number"], found["problems"]) == (13, 13, [])
    assert main(["ledger", "verify", *place, "--chain", found["chain"]]) == 0
    assert "intact: 13 incidents" in capsys.readouterr().out
    with Ledger(filled / "ledger.sqlite") as ledger, ledger._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE ledger_incidents SET votes = '[0]' WHERE id = 5")
        connection.exec_driver_sql("DELETE FROM ledger_incidents WHERE id = 8")
    assert main(["ledger", "verify", *place]) == 1
    shown = capsys.readouterr().out
    assert "incident 5: it is not as it was written" in shown
    assert "incidents 8 to 8 are missing" in shown
    assert main(["ledger", "verify", *place, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2
    assert main(["ledger", "list", *place]) == 0
    assert "damaged" in capsys.readouterr().out
    assert main(["ledger", "show", *place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evidence"][0]["incidents"] == 10


def test_export_writes_what_was_asked_for(filled, tmp_path, capsys):
    file = tmp_path / "out.jsonl"
    assert main(["ledger", "export", str(file), "--run", str(filled), "--target", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "incidents": 12}
    assert len(file.read_text().splitlines()) == 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list"], "which ledger"),
        (["list", "--ledger", "nowhere.sqlite"], "no such ledger"),
        (["list", "--ledger", "mysql://u:secret@h/d"], "not supported"),
        (["show"], "which incident"),
        (["show", "99", "--run", "RUN"], "no incident has the id 99"),
        (["show", "--run", "RUN", "--alpha", "2"], "alpha"),
        (["show", "--run", "RUN", "--expect", "3"], "--expect"),
        (["list", "--run", "RUN", "--since", "yesterday"], "--since yesterday"),
        (["export", "out.txt", "--run", "RUN"], ".jsonl or .csv"),
        (["show", "--run", "OTHER", "--ledger", "LEDGER"], "not a run folder"),
    ],
)
def test_bad_input_exits_2_with_one_line(arguments, words, filled, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("CODEWARD_LEDGER", raising=False)
    names = {"RUN": str(filled), "OTHER": str(tmp_path), "LEDGER": str(filled / "ledger.sqlite")}
    assert main(["ledger", *(names.get(word, word) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert "secret" not in captured.err


def test_looking_does_not_make_a_ledger(run_folder, capsys):
    assert main(["ledger", "list", "--run", str(run_folder)]) == 2
    assert not (run_folder / "ledger.sqlite").exists()
    assert f"no such ledger; `codeward serve {run_folder}` begins one" in capsys.readouterr().err


def test_targets_go_by_their_names(tmp_path, capsys):
    """Two runs number the same class differently; its name finds both, and a class called 3 is not class 3."""
    file = tmp_path / "ledger.sqlite"
    with Ledger(file) as ledger:
        for run, names in (("a", ("benign", "malign")), ("b", ("malign", "3"))):
            for target, name in enumerate(names):
                votes, digest = (target,) * 6, hashlib.sha256(f"{run}{name}".encode()).hexdigest()
                ledger.record(
                    Incident(votes, 0.9, 1 - target, target, (), (0.0,) * 16, digest, CODE.digest, run,
                             classes=tuple(enumerate(names)))
                )  # fmt: skip
    place = ["--ledger", str(file)]
    assert main(["ledger", "list", *place, "--target", "malign", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert [(item["run"], item["target"]) for item in out["incidents"]] == [("b", "malign"), ("a", "malign")]
    assert out["by_target"] == {"benign": 1, "malign": 2, "3": 1}
    assert main(["ledger", "export", str(tmp_path / "e.csv"), *place, "--target", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["incidents"] == 1
    assert ",b,3,malign," in (tmp_path / "e.csv").read_text()
    assert main(["ledger", "list", *place, "--target", "malicious"]) == 2
    assert "no incident has the target 'malicious'; there are 3, benign, malign" in capsys.readouterr().err


def test_without_a_false_alarm_to_compare_with_it_says_that_nobody_can_be_convicted(tmp_path, capsys):
    """The clean test inputs never raise an alarm: no test that keeps alpha could convict, and the user is told."""
    filled = fill(make_folder(tmp_path / "run", hard=0.0))
    assert main(["ledger", "show", "--run", str(filled), "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["evidence"]
    assert (item["reference_false_alarms"], item["incidents_needed"], item["convicted"]) == (0, None, [])
    assert main(["ledger", "show", "--run", str(filled)]) == 0
    shown = capsys.readouterr().out
    assert "nobody can be convicted here" in shown
    assert "and none raised one; train with more of them" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


def test_how_many_incidents_a_conviction_takes_is_what_the_test_needs():
    """The table of docs/ledger.md: with R false alarms, so many true incidents above all of them."""
    from codeward.serve import bet_on_small, compute_p_values

    for reference, needed in ((5, 14), (10, 7), (20, 4), (50, 3), (200, 2)):
        p_values = compute_p_values(np.arange(reference) * 1.0, np.arange(needed) + 1e6, np.full(needed, 1 / 2))
        shown = bet_on_small(p_values, reference) >= np.log(10 / 0.01)
        assert shown.tolist() == [False] * (needed - 1) + [True]
        best = bet_on_small(np.zeros(1000), reference) >= np.log(10 / 0.01)
        assert int(np.flatnonzero(best)[0]) + 1 == needed


def test_show_says_how_the_incidents_are_explained_without_somebody(filled, capsys):
    assert main(["ledger", "show", "--run", str(filled), "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["evidence"]
    assert item["convicted"]
    assert set(item["convicted"]) <= set(item["models_apart"])
    assert main(["ledger", "show", "--run", str(filled), "--spare", "99"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "convicted: nobody" in shown
    for name in item["convicted"]:
        assert f"not {name}: without, the incidents are explained if the trigger fails in" in shown
