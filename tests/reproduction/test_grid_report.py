"""The report of a grid: it says what records and studies say, and what is not there."""

import json
import re
import shutil
from statistics import fmean, stdev

import pytest

from codeward import InputError
from codeward.cli import main
from codeward.reproduction import build_grid_report, count_grid_steps, is_grid, plan_study, write_grid_report
from codeward.runs import RunConfig, RunFolder, save_record

N = 1000


def share(value, of=N):
    return {"count": round(value * of), "of": of}


def counts(plurality, bayes):
    return {"single_model": share(0.9), "plurality": share(plurality), "bayes": share(bayes), "alarms": share(0.03)}


def put_record(place, config, code, repeat, size, plurality, bayes, success=0.99):
    groups = [
        {
            "attackers": list(range(size)),
            "target": 1,
            "success": {"hit_models": share(success), "clean_models": share(0.01)},
            "triggered": {"all": counts(plurality, bayes), "other_labels": counts(plurality, bayes)},
            "tracking": {"true_positives": 0.9 * size, "false_positives": 0.1, "of_attackers": size, "inputs": N},
        }
    ]
    record = {
        "repeat": repeat,
        "n_attackers": size,
        "seed": 0,
        "config": config.model_dump(mode="json"),
        "config_digest": config.digest,
        "created": "2026-01-01T00:00:00+00:00",
        "code_digest": code.digest,
        "training": {"architecture": "mnist-cnn", "epochs": 10},
        "figures": {"clean": {"all": counts(plurality, bayes)}, "groups": groups if size else []},
    }
    save_record(record, place.record(repeat, size))


def put_study(place, code, repeat, size, **parts):
    file = place.path / "studies" / f"repeat{repeat}-attackers{size}.json"
    file.parent.mkdir(exist_ok=True)
    head = {"format": "codeward-study/1", "repeat": repeat, "n_attackers": size, "code_digest": code.digest}
    file.write_text(json.dumps(head | parts))


def name_suspects(right, wrong):
    return {"true_positives": right, "false_positives": wrong, "of_attackers": 2, "inputs": 900}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """MNIST IID: c complete, d one repeat, k3r4d2's stand-in none; alpha 0.1: a; h16 with studies; a blended attack."""
    root = tmp_path_factory.mktemp("grid")
    plans = {**plan_study("figure5"), **plan_study("table1"), **plan_study("past")}
    for path, repeats in (
        ("mnist-iid/c", 5),
        ("mnist-iid/d", 1),
        ("mnist-iid/fa", 2),
        ("mnist-alpha0.1/a", 2),
        ("mnist-iid/h16", 2),
        ("mnist-iid/b", 0),
        ("mnist-iid-blended/c", 1),
    ):
        config, place = plans[path], RunFolder(root / path)
        code = place.open(config)
        for repeat in range(repeats):
            for size in range(4):
                success = 0.7 if "blended" in path and size == 2 else 0.99
                put_record(place, config, code, repeat, size, 0.98 - 0.2 * size, 0.97 - 0.01 * repeat, success)
        if path == "mnist-iid/h16":
            both = {
                "all": {"right": share(0.9), "alarms": share(0.8)},
                "other_labels": {"right": share(0.9), "alarms": share(0.9)},
            }
            clean = {"right": share(0.98), "alarms": share(0.02)}
            for repeat, (right, wrong) in enumerate(((2.0, 0.0), (1.98, 0.02))):
                put_study(
                    place,
                    code,
                    repeat,
                    2,
                    tracking={"bayes": name_suspects(right, wrong), "pooled-5": name_suspects(1.5, 0.0)},
                    decoders={name: {"clean": clean, "triggered": both} for name in ("plurality", "discounted")},
                    detection={
                        "bayes": {
                            "auc": 0.991,
                            "hits_at_5": share(0.97),
                            "roc": {"false_alarms": [0.0, 0.05, 1.0], "detected": [0.1, 0.9 + 0.1 * repeat, 1.0]},
                        }
                    },
                    assumed=[
                        {"attack_rate": 0.1, "success_rate": 0.7, "clean_right": share(0.9), "clean_alarms": share(0)}
                        | {"right": share(0.61), "alarms": share(0.5)}
                    ],
                )
            put_study(
                place,
                code,
                0,
                0,
                certified={"plurality": {"threat": "arbitrary", "inputs": 500, "right": [490, 321, 0]}},
            )
    return root


@pytest.fixture(scope="module")
def report(folder):
    return build_grid_report(folder)


def read_rows(markdown, title):
    """Return the cells of a Markdown table by its first two columns."""
    part = markdown.split(f"### {title}\n")[1].split("### ")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {(row[0].strip(), row[1].strip()): [cell.strip() for cell in row[2:]] for row in lines[1:]}


def test_the_page_nests_and_asks_for_nothing_outside_itself(report, read_page):
    page = read_page(report.html)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert not {"link", "iframe", "object", "img"} & {tag for tag, _ in page.tags}
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{}]  # the page's own
    assert not re.findall(r"url\((?!#)|@import|https?://", report.html)
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for tag, attrs in page.tags if tag == "th")


def test_what_is_there_of_the_plan_is_said_and_runs_without_records_count_as_none(report):
    rows = read_rows(report.markdown, "Figure 5: accuracy under attack")
    assert rows["MNIST", "IID"] == ["0/20", "0/20", "20/20", "4/20", "0/20", "0/20"]
    assert rows["MNIST", "alpha = 0.1"] == ["8/20", "0/20", "0/20", "0/20", "0/20", "0/20"]
    assert report.to_json()["cells"] == 20 + 4 + 8 + 8 + 8 + 4


def test_settings_without_records_have_no_panel_and_are_named(report, read_page):
    text = read_page(report.html).text
    assert "No records yet (the paper's recipe, where none is named): MNIST, alpha = 10; MNIST, alpha = 1." in text
    assert 'aria-label="Accuracy by number of attackers: MNIST, IID"' in report.html
    assert 'aria-label="Accuracy by number of attackers: MNIST, alpha = 10"' not in report.html


def test_roc_curves_are_means_over_repeats_up_to_a_fifth_of_false_alarms(report):
    assert 'aria-label="Detection against false alarms: MNIST, IID, code h16"' in report.html
    assert report.html.count("Detection against false alarms") == 1  # no other run has curves
    assert "2 attackers: 95.0% found at 5.0% false alarms" in report.html
    assert "at 100.0% false alarms" not in report.html


def test_the_success_of_the_attack_comes_before_any_accuracy(report):
    assert report.html.index("The weakest attack of every run") < report.html.index('class="chart"')
    assert report.markdown.index("The weakest attack of every run") < report.markdown.index("Accuracy by number")


def test_a_weak_attack_is_marked_with_where_it_was(report):
    assert re.search(r'<td class="weak" title="repeat 0, 2 attackers: 700 of 1,000">70.0%', report.html)


def test_accuracy_is_the_mean_over_repeats_with_its_deviation_and_denominator(report):
    rows = read_rows(report.markdown, "Accuracy by number of attackers")
    values = [100 * (0.97 - 0.01 * repeat) for repeat in range(5)]
    assert rows["MNIST, IID", "c, decoder"][3].startswith(f"{fmean(values):.1f}% ± {stdev(values):.1f}")
    assert "(1 time 1,000)" in rows["MNIST, IID", "d, decoder"][3]
    assert "code c, decoder" not in report.markdown
    assert "c, decoder, 3 attackers: 95.0% ± 1.6 (5 times 1,000)" in report.html


def test_designed_codes_are_compared_on_the_repeats_that_all_have(report):
    rows = read_rows(report.markdown, "Designed codes beside c and d")
    group = "MNIST, IID, at least 4 users a model"
    values = [97.0, 96.0]
    assert rows[group, "c"][:2] == ["15", f"{fmean(values):.1f}% ± {stdev(values):.1f}"]
    assert rows[group, "fa"][1] == rows[group, "c"][1]


def test_table_1_is_bold_only_where_nothing_is_worse_than_in_the_paper(report):
    rows = read_rows(report.markdown, "The paper's Table 1 beside ours")
    group = "MNIST, code h16, the paper's h: 16 models"
    paper, ours, _, own, pooled = rows[group, "2 attackers"][:5]
    assert paper == "1.99 / 0.01 (± 0.00 / 0.00)"
    assert ours.startswith("**1.99 / 0.01** (± 0.01 / 0.01")
    assert own == ""
    assert pooled.startswith("1.50")
    # No study there: the record's figure, on all labels, says so.
    assert "all labels" in rows[group, "1 attacker"][1]


def test_parts_of_studies_are_shown_where_they_are(report):
    assert read_rows(report.markdown, "Certified accuracy of every code, decoder and threat model")[
        "MNIST, IID", "h16, plurality"
    ][2:] == [
        "98.0%",
        "64.2%",
        "0.0%",
    ]
    assert "Empty: not searched. Unless a cell says otherwise: of 500." in report.markdown
    assert 'title="64.2% (321 of 500)"' in report.html
    wrong = read_rows(report.markdown, "Wrong assumptions")["MNIST, IID, code h16", "A = 0.1, S = 0.7"]
    assert wrong[0] == ""  # no study without attackers has it
    assert wrong[3].startswith("61.0% ± 0.0")
    found = read_rows(report.markdown, "Telling triggered inputs from clean ones")["MNIST, IID", "h16, paper's decoder"]
    assert found[1].startswith("0.991 (± 0.000")


def test_the_same_folder_gives_the_same_bytes(report, folder):
    again = build_grid_report(folder)
    assert again.html == report.html
    assert again.markdown == report.markdown


def test_without_studies_the_page_lacks_their_tables(folder, tmp_path, read_page):
    copy = shutil.copytree(folder, tmp_path / "grid", ignore=shutil.ignore_patterns("studies"))
    made = build_grid_report(copy)
    read_page(made.html)
    assert 'id="certified"' not in made.html
    assert "Wrong assumptions" not in made.markdown
    assert made.to_json()["studies"] == 0


def test_text_of_the_folder_is_escaped(tmp_path, read_page):
    config = RunConfig(dataset="<script>a|b", code={"name": "c"})
    place = RunFolder(tmp_path / "x-iid" / "<img src=x>")
    put_record(place, config, place.open(config), 0, 1, 0.5, 0.5)
    put_record(place, config, place.open(config), 0, 0, 0.5, 0.5)
    made = build_grid_report(tmp_path)
    read_page(made.html)
    assert "<script>a" not in made.html + made.markdown
    assert made.html.count("<script") == 1
    assert "<img" not in made.html + made.markdown
    assert "a\\|b" in made.markdown
    # A run of no study is expected to be what its own configuration says.
    assert made.to_json() == {"runs": 1, "cells": 2, "planned": 4, "studies": 0, "notes": list(made.notes)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "codeward-record/1"}, "not a codeward-study/1 file"),
        ({"code_digest": "0"}, "another code"),
    ],
)
def test_a_study_that_is_none_or_of_another_code_is_refused(folder, tmp_path, change, said):
    copy = shutil.copytree(folder, tmp_path / "grid")
    file = copy / "mnist-iid" / "h16" / "studies" / "repeat0-attackers2.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=said):
        build_grid_report(copy)


def test_records_of_another_code_are_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "grid")
    shutil.copy(copy / "mnist-iid" / "d" / "code.json", copy / "mnist-iid" / "c" / "code.json")
    with pytest.raises(InputError, match="not the code of the records"):
        build_grid_report(copy)


def test_a_grid_without_attacks_says_so(tmp_path, read_page):
    config = RunConfig(dataset="digits", code={"name": "c"}, attack={"attackers": (0,)})
    place = RunFolder(tmp_path / "digits-iid" / "c")
    put_record(place, config, place.open(config), 0, 0, 0.5, 0.5)
    made = build_grid_report(tmp_path)
    assert "No attack was simulated in this grid." in read_page(made.html).text
    assert "Whether the trigger works" not in made.markdown


def test_a_grid_is_told_from_a_run_and_from_nothing(folder, tmp_path):
    assert is_grid(folder)
    assert not is_grid(folder / "mnist-iid" / "c")
    assert not is_grid(tmp_path)
    assert not is_grid(tmp_path / "missing")


def test_a_grid_without_any_record_is_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "grid", ignore=shutil.ignore_patterns("records", "studies"))
    with pytest.raises(InputError, match="no records in any run folder"):
        build_grid_report(copy)


def test_progress_adds_up(folder):
    class Count:
        done = 0.0

        def advance(self, amount=1, note=""):
            self.done += amount

    count = Count()
    build_grid_report(folder, count)
    assert count.done == count_grid_steps(folder)


def test_the_command_writes_page_and_tables_beside_it(folder, tmp_path, report, capsys):
    target = tmp_path / "out" / "grid.html"
    assert main(["report", str(folder), "-o", str(target), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tables"] == str(target.with_name("tables.md"))
    assert target.read_text(encoding="utf-8") == report.html
    assert target.with_name("tables.md").read_text(encoding="utf-8") == report.markdown


def test_an_incomplete_grid_opens_with_what_it_found(report, read_page):
    text = " ".join(read_page(report.html).text.split())
    opening = text[text.index("In short") : text.index("Does the attack work?")]
    assert "MNIST, IID: with 3 of 12 users attacking the paper's decoder is right on 95.0% ± 1.6" in opening
    assert "planned cells" not in opening
    assert text.index("What is there") > text.index("What is not covered")


def test_every_table_goes_to_files_also_those_that_the_page_leaves_out(folder, tmp_path, report, capsys):
    assert main(["report", str(folder), "-o", str(tmp_path / "tables"), "--format", "csv", "--json"]) == 0
    assert {file.stem for file in (tmp_path / "tables").iterdir()} == {table.name for table in report.tables}
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / "tables")
    left = [table for table in report.tables if f'id="{table.name}"' not in report.html]
    assert left
    assert all(table.title in report.html and f"### {table.title}" in report.markdown for table in left)


def test_class_shares_that_a_run_drew_are_taken_in(folder, tmp_path, read_page):
    copy = shutil.copytree(folder, tmp_path / "grid")
    plot = copy / "mnist-iid" / "c" / "plots" / "users.svg"
    plot.parent.mkdir()
    plot.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><script>a()</script><text>share</text></svg>'
    )
    made = write_grid_report(copy)
    page = read_page((copy / "report.html").read_text(encoding="utf-8"))
    assert "Who holds what" in page.text
    assert "a()" not in made.html
    assert made.notes == ()


def test_independent_groups_are_counted_together_beside_runs_of_one_group(tmp_path):
    plans = plan_study("past") | plan_study("figure5")
    for path, triggers in (("mnist-iid-two-groups/c", (0.6, 0.4)), ("mnist-iid/c", (0.99,))):
        place, config = RunFolder(tmp_path / path), plans[path]
        code = place.open(config)
        put_record(place, config, code, 0, 2, 0.1, 0.5)
        parts = [
            {
                name: {"right": share(value + more), "alarms": share(0)}
                for name, more in (("plurality", 0.0), ("bayes", 0.001), ("two-groups", 0.002))
            }
            for value in (0.9, *triggers)
        ]
        put_study(place, code, 0, 2, groups={"clean": parts[0], "triggered": parts[1:]})
    table = build_grid_report(tmp_path).markdown.split("Independent groups")[1]
    for setting, values, of in (("IID", (99.0, 99.1, 99.2), "1,000"), ("IID, 2 groups", (50.0, 50.1, 50.2), "2,000")):
        cells = " | ".join(f"{value:.1f}% (1 time {of})" for value in values)
        assert f"| MNIST, {setting} | c | {cells} |" in table


def test_what_the_trigger_costs_stands_beside_the_decoder_on_the_same_repeats(tmp_path):
    plans = plan_study("figure5")
    place, config = RunFolder(tmp_path / "mnist-iid/c"), plans["mnist-iid/c"]
    code = place.open(config)
    for repeat, bayes in enumerate((0.6, 0.1)):
        put_record(place, config, code, repeat, 2, 0.1, bayes)
        assert "What the trigger itself costs" not in build_grid_report(tmp_path).markdown
    # The second repeat reaches every model: nothing to compare there, and its record is left out, too.
    single = {"clean": share(0.9, 9000), "triggered": [share(0.7, 9000)]}
    known = {"clean": share(0.95), "triggered": [share(0.65)]}
    put_study(place, code, 0, 2, unreached={"models": 9, "single": single, "known": known})
    put_study(place, code, 1, 2, unreached={"models": 0})
    table = build_grid_report(tmp_path).markdown.split("What the trigger itself costs")[1]
    cells = " | ".join(f"{value}.0% (1 time {of})" for value, of in ((90, "9,000"), (70, "9,000"), (65, "1,000")))
    assert f"| MNIST, IID | c | {cells} | 60.0% (1 time 1,000) |" in table


def test_the_dial_goes_from_the_papers_rate_down_with_a_mean_over_repeats(tmp_path):
    place, config = RunFolder(tmp_path / "mnist-iid/c"), plan_study("figure5")["mnist-iid/c"]
    code = place.open(config)
    for repeat, more in enumerate((0.0, 0.02)):
        for size in (0, 1):
            put_record(place, config, code, repeat, size, 0.9, 0.9)
            rows = [
                {"attack_rate": rate, "success_rate": 0.99, "clean_right": share(clean), "clean_alarms": share(alarms)}
                | ({"right": share(right + more), "alarms": share(0.9)} if size else {"kept": 2 + repeat})
                for rate, clean, alarms, right in ((0.5, 0.8, 0.2, 0.7), (0.01, 0.85, 0.01, 0.6))
            ]
            put_study(place, code, repeat, size, dial=rows)
    report = build_grid_report(tmp_path)
    rows = read_rows(report.markdown, "The attack rate as a dial")
    assert [label for _, label in rows] == ["A = 0.5, S = 0.99", "A = 0.01, S = 0.99"]
    found = rows["MNIST, IID, code c", "A = 0.01, S = 0.99"]
    assert [cell.split(" (")[0] for cell in found] == ["2 to 3", "85.0% ± 0.0", "1.0% ± 0.0", "61.0% ± 1.4"]
    assert found[0] == "2 to 3 (code: 4)"
