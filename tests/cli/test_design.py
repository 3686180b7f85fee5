"""The ``design`` command: its JSON contract, files, refusals."""

import json
from pathlib import Path

import pytest

from codeward.cli import main
from codeward.codes import Code

BARE = ("--margin", "1")


def test_json_has_every_key_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "--users", "7", "--attackers", "2", "--row-weight", "4", *BARE, "--json", "-t", "2"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert printed.out.count("\n") == 1
    keys = {"models", "users", "row_weight", "utilization", "attackers", "margin", "margin_track", "margin_arbitrary"}
    assert keys | {"models_lower_bound", "witness", "matrix", "construction", "seconds"} <= set(result)
    assert result["models"] == 7
    assert result["attackers"]["correct"] >= 2
    assert Code(result["matrix"]).n_users == 7


def test_card_and_code_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "code.csv"
    arguments = ["design", "-n", "8", "-k", "2", "-u", "0.5", "-g", "detect", "-d", "1", "-t", "1", "-o", str(target)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "6 sub-models, optimal" in out
    assert Code.load(target).n_models == 6


def test_the_saved_json_of_a_design_is_a_code_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "-n", "7", "-k", "1", "-m", "4", "-d", "1", "-t", "1", "--json"]) == 0
    file = tmp_path / "design.json"
    file.write_text(capsys.readouterr().out)
    assert Code.load(file).n_models <= 4


def test_weights_from_a_list_and_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sizes.txt"
    file.write_text("3\n2\n2\n1\n1\n1\n")
    results = []
    for given in ("3,2,2,1,1,1", str(file)):
        assert main(["design", "-n", "6", "-k", "1", "-u", "0.5", *BARE, "-t", "1", "--weights", given, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0]["matrix"] == results[1]["matrix"]
    assert results[0]["utilization"] >= 0.5


def test_many_users_are_reported_with_the_verified_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "-n", "200", "-k", "3", "-u", "0.5", "-d", "1", "-t", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["users"] == 200
    assert result["attackers"]["detect"] >= 3
    assert result["attackers"]["correct"] >= 3
    assert "group" in result["note"]


def test_what_inspection_cannot_enumerate_is_reported_as_verified_by_the_design(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 130 users have 366,276 sets of at most 3: past what an inspection enumerates unasked.
    assert main(["design", "-n", "130", "-k", "3", "-r", "30", "-g", "track", "-d", "1", "-t", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert not result["grouped"]
    assert result["attackers"]["track"] == result["attackers"]["correct"] == result["max_attackers"] == 3
    assert list(result["margin"]) == ["1", "2", "3"]
    assert result["margin_track"]["3"] is None
    assert any("verified by the design" in note for note in result["notes"])


def test_groups_are_tracked_where_users_are_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "design",
                "-n",
                "1000",
                "-k",
                "2",
                "-u",
                "0.4",
                "-g",
                "track",
                "-d",
                "5",
                "-t",
                "0.5",
                "--groups",
                "--json",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["grouped"]
    assert "names groups" in result["note"]
    # Single users are not tracked, and the card says so; the label is corrected for single users.
    assert result["attackers"]["track"] == 0
    assert result["attackers"]["correct"] >= 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "539", "-k", "3", "-u", "0.3", "-g", "track"], "2 attackers; margin 1; tracking 18 groups"),
        (["-n", "10", "-k", "2", "-r", "7", "-m", "16", "-t", "1"], "margin 1 needs at least"),
    ],
)
def test_a_design_that_misses_what_it_was_asked_for_exits_1_with_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "code.csv"
    assert main(["design", *arguments, "-o", str(target)]) == 1
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not target.exists()


def test_curve_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "curve.svg"
    assert main(["design", "-n", "7", "-k", "1", "-r", "3", "-t", "1", "--curve", str(target)]) == 0
    capsys.readouterr()
    picture = target.read_text()
    assert picture.startswith("<svg xmlns")
    assert "k = 1, ours, row weight 3: " in picture


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "6", "-k", "2", "-r", "5"], "impossible"),
        (["-n", "6", "-k", "2", "-r", "2", "-u", "0.5"], "not both"),
        (["-n", "6", "-k", "2", "-r", "2", "-o", "code.txt"], "must end in"),
        (["-n", "6", "-k", "2", "-r", "2", "--weights", "a,b"], "comma list"),
        (["-n", "6", "-k", "2", "-r", "2", "-g", "magic"], "guarantee"),
    ],
)
def test_bad_input_exits_2_with_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", *arguments]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "margin 3 absorbs one wrong vote"),
        (("-d", "5"), "margin 5 absorbs 2 wrong votes"),
        (("--margin", "1"), "margin 1 absorbs no wrong vote"),
        (("-g", "detect"), "margin 3: at least 3 models stay clean"),
    ],
)
def test_what_the_margin_absorbs_is_told(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["design", "--users", "8", "--attackers", "1", "--row-weight", "3", "-t", "2", *options]) == 0
    assert said in capsys.readouterr().out


def test_users_and_attackers_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "code.json"
    assert main(["design", "--users", "12", "--attackers", "2", "-t", "2", "-o", str(target)]) == 0
    assert "at least 4 of 12 users" in capsys.readouterr().out
    assert Code.load(target).row_weight >= 4
