"""The tables in the repository are what the records in the repository say."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from codeward.reproduction._grid_folder import open_grid
from codeward.reproduction._grid_report import _list_tiles, _tell_story, collect_tables, write_tables

STORED = Path(__file__).parents[2] / "results"

pytestmark = pytest.mark.skipif(not (STORED / "README.md").is_file(), reason="the stored results are not here")


@pytest.fixture(scope="module")
def grid():
    return open_grid(STORED)


def test_the_stored_tables_are_made_from_the_stored_records(grid):
    made = write_tables(collect_tables(grid))
    stored = (STORED / "tables.md").read_text(encoding="utf-8")
    assert made == stored, "results/tables.md is out of date: run `codeward report results`"


def test_every_stored_study_has_its_record(grid):
    for run in grid.runs:
        cells = {(record["repeat"], record["n_attackers"]) for record in run.records}
        assert {(study["repeat"], study["n_attackers"]) for study in run.studies} <= cells, run.path


def test_the_page_opens_with_the_best_models_and_decoder(grid):
    story = "\n".join(_tell_story(grid))
    assert (
        "CIFAR-10, modern recipe, IID: with 3 of 12 users attacking the calibrated decoder is right on 91.8%" in story
    )
    assert "CIFAR-10, IID: with 3 of 12 users attacking the paper's decoder is right on 85.6%" in story
    assert [(words.split(":")[0], value[:5]) for words, value, _ in _list_tiles(grid)] == [
        ("CIFAR-10, modern recipe, IID", "99.6%"),
        ("15 models, 3 attackers", "10.3%"),
        ("15 models, 3 attackers", "91.8%"),
    ]


def test_a_grid_of_uneven_data_alone_has_headline_figures_too(grid):
    uneven = replace(grid, runs=[run for run in grid.runs if run.path == "cifar10-alpha1-modern/c"])
    assert _list_tiles(uneven)[0][0] == "CIFAR-10, modern recipe, alpha = 1: trigger works in hit models"


#: Rows of the table of false alarms, and the runs that they are of; the last row has all others.
ALARMS = [
    ("the code of `codeward run`, CIFAR-10, all splits", "cifar10-", ("btc2412",)),
    ("the code of `codeward run`, MNIST, all splits", "mnist-", ("btc2412",)),
    ("a designed code for three users (22 models), CIFAR-10, all splits", "cifar10-", ("k3r6d2",)),
    ("the same, MNIST, all splits", "mnist-", ("k3r6d2",)),
    ("designed codes of 12 and 10 models, CIFAR-10, IID", "cifar10-", ("k3r4d2", "k2r4d3")),
    ("the one of 10 models, MNIST, IID", "mnist-", ("k2r4d3",)),
    ("all other codes, most with earlier thresholds", "", ()),
]


def test_the_false_alarms_of_the_docs_are_what_the_records_say(grid):
    left = {
        (run.path, record["repeat"], record["n_attackers"]): record["figures"]["decoder"]["clean"]["alarms"]
        for run in grid.runs
        if "-modern" in run.path.split("/")[0]
        for record in run.records
    }
    assert {alarms["of"] for alarms in left.values()} == {5000}
    everything = [alarms["count"] / alarms["of"] for alarms in left.values()]
    page = (STORED.parent / "docs" / "soft-decoder.md").read_text(encoding="utf-8")
    for words, data, codes in ALARMS:
        cells = [cell for cell in left if cell[0].startswith(data) and (not codes or cell[0].split("/")[1] in codes)]
        rates = [alarms["count"] / alarms["of"] for alarms in map(left.pop, cells)]
        figures = f"{len(rates):,} | {sum(rate > 0.05 for rate in rates)} | {max(rates):.1%} | {fmean(rates):.1%}"
        assert f"| {words} | {figures} |" in page
    above = [rate for rate in everything if rate > 0.05]
    aims = (STORED.parent / "docs" / "development" / "aims.md").read_text(encoding="utf-8")
    assert f"| {len(everything) - len(above):,} of {len(everything):,} cells; one has {above[0]:.1%}" in aims
    assert len(above) == 1


def test_the_number_of_vote_columns_is_what_the_packed_files_have():
    columns = distinct = 0
    for file in STORED.glob("*.runs.npz"):
        with np.load(file) as kept:
            _, *entries = map(json.loads, kept["index"].tobytes().decode().splitlines())
            columns += sum(len(entry["votes"][1]) for entry in entries if "votes" in entry)
            distinct += sum(len(kept[name]) for name in kept.files if name.startswith("votes-"))
    page = " ".join((STORED / "README.md").read_text(encoding="utf-8").split())
    assert f"of {columns:,} columns {distinct:,} are distinct" in page
