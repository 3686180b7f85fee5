import json

import numpy as np
import pytest

from codeward.cli import main
from codeward.data import CATALOG, Schema, load_user_data


def test_list_names_every_set_and_where_its_files_go(tmp_path, capsys):
    assert main(["data", "list", "--data-dir", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed.keys() == CATALOG.keys()
    assert listed["mnist"]["folder"] == str(tmp_path / "mnist")
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    assert str(tmp_path / "cifar10") in capsys.readouterr().out


def test_the_variable_names_the_directory_when_no_option_does(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CODEWARD_DATA", str(tmp_path))
    main(["data", "list", "--json"])
    assert json.loads(capsys.readouterr().out)["mnist"]["folder"] == str(tmp_path / "mnist")


def test_check_passes_over_missing_sets_unless_they_are_named(tmp_path, capsys):
    assert main(["data", "check", "--data-dir", str(tmp_path), "--json"]) == 0
    states = json.loads(capsys.readouterr().out)
    assert states == {
        "digits": "ok",
        "mnist": "missing",
        "fashion-mnist": "missing",
        "cifar10": "missing",
        "mnist-writers": "missing",
    }
    assert main(["data", "check", "mnist", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "mnist: missing\n"
    assert main(["data", "check", "digits"]) == 0


def test_check_fails_on_a_damaged_set_nobody_named(tmp_path, capsys):
    (tmp_path / "mnist").mkdir()
    for file in CATALOG["mnist"].train + CATALOG["mnist"].test:
        (tmp_path / "mnist" / file.name).write_bytes(b"\0\0\x08\x01\0\0\0\x01\0")
    assert main(["data", "check", "--data-dir", str(tmp_path)]) == 1
    assert "mnist: " in (out := capsys.readouterr().out)
    assert "train-images-idx3-ubyte: damaged" in out


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_an_unknown_name_exits_2_with_one_line_before_anything_is_done(tmp_path, capsys, command):
    assert main(["data", command, "mnist", "mnits", "--data-dir", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "mnits" in captured.err
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_fetch_from_a_dead_mirror_exits_2_with_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    pytest.importorskip("pooch")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    arguments = ["data", "fetch", "mnist", "--data-dir", str(tmp_path), "--url", "http://127.0.0.1:9"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "could not be downloaded" in captured.err
    assert not list(tmp_path.iterdir())


def test_fetching_digits_says_they_are_embedded(tmp_path, capsys):
    assert main(["data", "fetch", "digits", "--data-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"digits": "(embedded)"}
    assert main(["data", "fetch", "digits", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "digits: embedded\n"


def test_the_labels_of_a_damaged_npz_are_refused_by_run_with_one_line(tmp_path, capsys):
    np.savez(tmp_path / "mine.npz", images=np.zeros((20, 8, 8), np.uint8), labels=np.full(20, -1))
    arguments = [
        "run",
        "--set",
        f"dataset={tmp_path / 'mine.npz'}",
        "--set",
        "code.name=d",
        "--set",
        "decoder.name=bayes",
    ]
    arguments += ["-o", str(tmp_path / "r")]
    assert main(arguments) == 2
    assert "mine.npz: labels -1" in capsys.readouterr().err


def test_a_schema_is_written_down_and_then_no_user_moves_a_kind(tmp_path, capsys):
    rows = [f"{place},{place % 2},{place % 2},u{place % 2}" for place in range(20)]
    file, out = tmp_path / "own.csv", tmp_path / "schema.json"
    file.write_text("\n".join(["row,a,y,user", *rows]), encoding="utf-8")
    command = ["data", "schema", str(file), "--ignore", "row", "-o", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 1 column, 2 classes")
    declared = Schema.load(out)
    assert (declared.names, declared.label, declared.user, declared.classes) == (("a",), "y", "user", ("0", "1"))
    assert load_user_data(file).firm == 0
    assert load_user_data(file, schema=declared).firm is None
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"]["label"] == "y"
