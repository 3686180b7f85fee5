import json

import numpy as np
import pytest

from codeward.cli import main
from codeward.codes import Code, named_code


@pytest.fixture
def code_c(tmp_path):
    named_code("c").save(tmp_path / "c.csv")
    return tmp_path / "c.csv"


def test_json_follows_the_contract(code_c, capsys):
    assert main(["inspect", str(code_c), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["models"] == 15
    assert out["users"] == 12
    assert out["row_weight"] == 4
    assert out["utilization"] == pytest.approx(1 / 3)
    assert out["attackers"] == {"detect": 4, "correct": 4, "correct_arbitrary": 2, "track": 0}
    assert out["margin"] == {"1": 7, "2": 5, "3": 3, "4": 1}
    assert out["margin_track"] == {"1": 0, "2": 0, "3": 0, "4": 0}
    assert out["margin_arbitrary"] == {"1": 6, "2": 1, "3": 0, "4": 0}
    assert 1 <= out["models_lower_bound"] <= 15
    assert out["witness"]["detect"] == {"attackers": 5, "sets": [[0, 1, 2, 3, 4]]}


def test_the_card_speaks_and_draws(code_c, tmp_path, capsys):
    assert main(["inspect", str(code_c), "--plot", str(tmp_path / "c.svg")]) == 0
    out = capsys.readouterr().out
    for words in ("sub-models", "row weight", "deterministic", "arbitrary", "margins", "██"):
        assert words in out
    assert (tmp_path / "c.svg").read_text().startswith("<svg xmlns")
    assert main(["inspect", str(tmp_path / "none.csv"), "--plot", "c.png"]) == 2  # said before anything is read
    assert "c.png: drawings are written as .svg" in capsys.readouterr().err


def test_witnesses_are_printed_by_name(tmp_path, capsys):
    Code([[1, 0], [0, 1]], users=["ann", "bob"]).save(tmp_path / "two.json")
    assert main(["inspect", str(tmp_path / "two.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["witness"]["correct"]["sets"] == [["ann"], ["bob"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "nowhere.csv"], "no such code file"),
        (["inspect"], "CODE"),
        (["inspect", "x.csv", "--max-attackers", "0"], "max-attackers"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_exits_2_with_one_line(arguments, words, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_a_check_too_large_is_refused_with_its_size(tmp_path, capsys):
    Code(np.eye(300)).save(tmp_path / "wide.csv")
    assert main(["inspect", str(tmp_path / "wide.csv"), "--max-attackers", "4"]) == 2
    assert "attacker sets" in capsys.readouterr().err


def test_more_attackers_than_users_are_answered_at_once(code_c, capsys):
    assert main(["inspect", str(code_c), "--max-attackers", "1000000", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["max_attackers"] == 12
    assert out["attackers"] == {"detect": 4, "correct": 4, "correct_arbitrary": 2, "track": 0}
    assert "1000000 attackers were asked for; there are 12 users" in out["notes"]


@pytest.mark.parametrize(("users", "shown"), [(40, "1,099,511,627,776"), (9000, "more than 10^2709")])
def test_absurdly_many_attacker_sets_are_refused_at_once(tmp_path, users, shown, capsys):
    matrix = (np.arange(1, users + 1)[None, :] >> np.arange(14)[:, None]) & 1
    Code(matrix[matrix.any(axis=1)]).save(tmp_path / "wide.npy")
    assert main(["inspect", str(tmp_path / "wide.npy"), "--max-attackers", "1000000"]) == 2
    error = capsys.readouterr().err
    assert shown in error
    assert error.count("\n") == 1
