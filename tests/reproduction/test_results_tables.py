"""The tables in the repository are what the records in the repository say."""

from dataclasses import replace
from pathlib import Path

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
