"""`codeward report`: where the file goes, what is printed, and what is refused."""

import json

import pytest

from codeward.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli-report") / "run"
    settings = (
        "code.name=d",
        "decoder.name=bayes",
        "training.epochs=2",
        "attack.attackers=[0,1]",
        "training.device=cpu",
    )
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert main(["run", *arguments, "--quiet", "-o", str(place)]) == 0
    return place


def test_the_report_lands_in_the_folder_with_the_class_shares_that_the_run_drew(folder, capsys):
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert "Who holds what" in html
    assert str(folder / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert not list(folder.glob(".*tmp"))


def test_json_is_one_object_and_nothing_else(folder, tmp_path, capsys):
    capsys.readouterr()
    target = tmp_path / "new" / "a.html"
    assert main(["report", str(folder), "-o", str(target), "--json"]) == 0
    shown = capsys.readouterr()
    facts = json.loads(shown.out)
    assert facts["report"] == str(target)
    assert facts["records"] == 2
    assert 0 <= facts["auc"]["1"][0] <= 1
    assert target.is_file()
    assert shown.err == ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path / "missing", "no such folder"),
        (lambda path: path, "not a run folder"),
    ],
)
def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path, capsys, make, said):
    assert main(["report", str(make(tmp_path))]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_run_without_records_is_refused_with_the_command_that_finishes_it(folder, tmp_path, capsys):
    for name in ("code.json", "config.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert main(["report", str(tmp_path)]) == 2
    assert "no records yet; `codeward run" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_report_with_another_ending_is_refused(folder, tmp_path, capsys):
    assert main(["report", str(folder), "-o", str(tmp_path / "report.pdf")]) == 2
    assert "ends in .html" in capsys.readouterr().err
