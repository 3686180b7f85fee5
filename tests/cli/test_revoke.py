import json

import pytest

from codeward.cli import main
from codeward.codes import Code
from codeward.experiments import run_experiment
from codeward.runs import load_config


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    settings = [
        "code.name=toy-d",
        "decoder.name=bayes",
        "users=6",
        "training.epochs=1",
        "attack.attackers=[0]",
        "training.device=cpu",
    ]
    list(run_experiment(load_config(None, settings), folder))
    return folder


def test_it_says_what_will_hold_and_refuses_to_go_on_where_nobody_can_be_asked(run_folder, tmp_path, capsys):
    assert main(["revoke", str(run_folder), "4", "-o", str(tmp_path / "new")]) == 2
    captured = capsys.readouterr()
    assert "6 users become 5" in captured.out
    assert "2 sub-models never saw them and stay byte for byte" in captured.out
    assert "name the attackers             1 -> 1" in captured.out
    assert captured.err == "codeward: nothing was done: nobody can be asked here, so say --yes\n"
    assert not (tmp_path / "new").exists()


def test_yes_revokes_and_json_tells_all(run_folder, tmp_path, capsys):
    target = tmp_path / "new"
    assert main(["revoke", str(run_folder), "4", "-o", str(target), "--yes", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["folder"] == str(target)
    assert out["revoked"] == ["4"]
    assert len(out["retrained"]) == len(out["untouched"]) == 2
    assert out["dropped"] == []
    assert out["guarantees_after"]["attackers"]["track"] == 1
    assert out["guarantees_after"]["users"] == 5
    assert [record["work"] for record in out["records"]] == [{"models": 4, "trained": 2, "reused": 2}]
    assert Code.load(target / "code.json").n_users == 5


@pytest.mark.parametrize(("answer", "status"), [("n", 130), ("y", 0)])
def test_it_asks_a_person_and_does_as_told(run_folder, tmp_path, capsys, monkeypatch, answer, status):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: answer)
    target = tmp_path / "new"
    assert main(["revoke", str(run_folder), "0", "-o", str(target), "--quiet"]) == status
    assert target.exists() == (answer == "y")
    assert capsys.readouterr().out.startswith("revoking 0: 6 users become 5")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["RUN", "nobody", "--yes"], "no user is named 'nobody'"),
        (["RUN", "0", "--json"], "say --yes"),
        (["RUN"], "USER"),
        (["nowhere", "0", "--yes"], "not a run folder"),
        (["RUN", "0", "--yes", "-o", "RUN", "--json"], "not empty"),
    ],
)
def test_bad_input_exits_2_with_one_line(arguments, words, run_folder, capsys):
    assert main(["revoke", *(str(run_folder) if word == "RUN" else word for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
