"""Tables of a grid's report: what a cell says, and of what."""

from typing import get_args

import pytest

from codeward.attacks import Position
from codeward.report import Table, TableEntry, share_cell, write_page
from codeward.reproduction import plan_study
from codeward.reproduction._grid_folder import GridRun, describe_setting, list_common
from codeward.reproduction._paper_tables import tracking_cell
from codeward.reproduction._studies import Printed
from codeward.runs import RunConfig


@pytest.mark.parametrize(
    ("right", "wrong", "good"), [(1.99, 0.01, True), (1.986, 0.0, True), (1.98, 0.0, False), (2.0, 0.02, False)]
)
def test_at_least_as_good_means_both_at_two_digits(right, wrong, good):
    named = {"true_positives": right, "false_positives": wrong, "of_attackers": 2, "inputs": 900}
    cell = tracking_cell([named], Printed(1.99, 0.0, 0.01, 0.0))
    assert (cell.mark == "good") == good


def test_decoders_are_compared_on_the_repeats_that_all_of_them_have():
    config = plan_study("table1")["mnist-iid/h16"]
    studies = [
        {"repeat": repeat, "n_attackers": 2, "detection": {"bayes": repeat} | ({"soft": -repeat} if repeat else {})}
        for repeat in range(3)
    ]
    studies.append({"repeat": 0, "n_attackers": 3, "detection": {"bayes": 9}})
    run = GridRun("mnist-iid/h16", config, None, (), tuple(studies))
    assert list_common(run, 2, "detection", ["bayes", "soft", "discounted"]) == {
        "bayes": [1, 2],
        "soft": [-1, -2],
        "discounted": [],
    }
    assert list_common(run, 3, "detection", ["bayes", "soft"]) == {"bayes": [9], "soft": []}
    assert list_common(run, 1, "detection", ["bayes"]) == {"bayes": []}


def test_a_denominator_of_most_cells_is_said_once_and_the_others_stay():
    rows = tuple((TableEntry("x"), share_cell([{"count": of // 2, "of": of}])) for of in (10, 10, 10, 20))
    table = Table("t", "T", "Note.", "g", ("a", "b"), (("one | two", rows),))
    text = table.to_markdown()
    assert "Unless a cell says otherwise: of 10." in text
    assert text.count("of 10") == 1
    assert "50.0% (1 time 20)" in text
    assert "one \\| two" in text
    page = write_page("comparison.html", title="T", footer="", story="", tables=[table], attacks=[], heatmap="")
    assert page.count('title="5 of 10"') == 3


@pytest.mark.parametrize("position", get_args(Position))
def test_every_place_of_a_trigger_has_words(position):
    words = describe_setting(RunConfig.model_validate({"attack": {"position": position}})).attack
    assert words == "" if position == "corner" else words.startswith("trigger ")
