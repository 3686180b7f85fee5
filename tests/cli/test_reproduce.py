"""The whole pipelines of the paper's figure and table on the embedded data, as `--smoke` runs them."""

import json

import pytest

from codeward.cli import main
from codeward.runs import load_records, rate


def accuracy(folder, code, n_attackers, decoder):
    (record,) = [record for record in load_records(folder / code) if record["n_attackers"] == n_attackers]
    figures = record["figures"]["groups"][0]["triggered"] if n_attackers else record["figures"]["clean"]
    return rate(figures["all"][decoder])


def test_figure5_smoke_shows_what_the_figure_shows(tmp_path, capsys):
    assert main(["reproduce", "figure5", "--smoke", "-o", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path), "cells": 48, "voted": 48, "recorded": 48}
    iid = tmp_path / "digits-iid"
    assert accuracy(iid, "c", 0, "plurality") > 0.8  # ten epochs
    # Three attackers reach most sub-models: the vote falls, the decoder does not (paper, Figure 5).
    assert accuracy(iid, "c", 3, "plurality") < accuracy(iid, "c", 3, "bayes") - 0.3
    # Going on trains nothing, counts nothing anew, and says the same.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert main(["reproduce", "figure5", "--smoke", "-o", str(tmp_path), "--quiet"]) == 0
    assert "48 of 48 cells have votes, 48 are recorded" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_table1_smoke_names_attackers_and_nobody_else(tmp_path, capsys):
    assert main(["reproduce", "table1", "--smoke", "-o", str(tmp_path), "--quiet"]) == 0
    assert "16 of 16 cells" in capsys.readouterr().out
    study = json.loads((tmp_path / "digits-iid/h16/studies/repeat0-attackers2.json").read_text())
    pooled = study["tracking"]["pooled-5"]
    assert pooled["true_positives"] > 1
    assert pooled["false_positives"] < 0.2


def test_votes_may_be_made_here_and_counted_there(tmp_path, capsys):
    some = ["reproduce", "past", "--smoke", "--code", "c", "--split", "iid-split", "-o", str(tmp_path), "--quiet"]
    assert main([*some, "--votes-only"]) == 0
    assert "4 of 4 cells have votes, 0 are recorded" in capsys.readouterr().out
    assert not (tmp_path / "digits-iid-split/c/records").exists()
    assert main([*some, "--count-only", "--no-studies", "--jobs", "2"]) == 0
    assert "4 are recorded" in capsys.readouterr().out
    assert not (tmp_path / "digits-iid-split/c/studies").exists()


@pytest.mark.slow
def test_past_smoke_runs_designed_codes_and_other_attacks(tmp_path, capsys):
    assert main(["reproduce", "past", "--smoke", "-o", str(tmp_path), "--quiet"]) == 0
    assert "40 of 40 cells" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["figure7"], "expected one of figure5, table1, past"),
        (["figure5", "--votes-only", "--count-only"], "exclude each other"),
        (["figure5", "--code", "z"], "figure5 has a, b, c"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, words, capsys):
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
