"""The HTML report: what it says is what the records say, and it needs nothing outside itself."""

import csv
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codeward import InputError
from codeward._progress import silent
from codeward.certificates import Agreement, Witness, certify, certify_agreement
from codeward.codes import Code, inspect
from codeward.decoding import BayesDecoder, VoteSet, load_votes
from codeward.report import adopt_svg, build_report, count_steps, write_report
from codeward.report._page import tile_certified
from codeward.report._run_conclusion import _judge, conclude, state_kept
from codeward.report._run_sections import certify_cells, show_share, tell_certificates, tell_run
from codeward.report._table_builder import TableEntry, show_number
from codeward.reproduction import PackedSetting
from codeward.runs import Card, CardCurve, Cell, RunConfig, RunFolder, describe_machine

STORED = PackedSetting(Path(__file__).parents[2] / "results" / "cifar10-iid")


def test_the_page_nests_and_asks_for_nothing_outside_itself(report, read_page):
    page = read_page(report.html)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert not {"link", "iframe", "object", "img"} & {tag for tag, _ in page.tags}
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{}]
    assert not re.findall(r"url\((?!#)|@import|https?://", report.html)


def test_tables_have_captions_and_headers_with_scope_and_scroll_by_themselves(report, read_page):
    page = read_page(report.html)
    tables = [attrs for tag, attrs in page.tags if tag == "table"]
    assert len(tables) == len([tag for tag, _ in page.tags if tag == "caption"]) == report.html.count('class="scroll"')
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in page.tags if tag == "th")


def test_the_success_of_the_attack_comes_before_any_accuracy(report):
    assert report.html.index("hit models say the target") < report.html.index("plurality right")


def test_what_the_decoder_keeps_of_the_promise_is_said_with_an_attack_that_it_does_not_undo(report):
    cell = report.cells[0]
    kept = certify_agreement(cell.code, cell.decoder(), 10, max_attackers=3)
    assert kept.n_attackers < report.inspection.correct
    told = report.html.split("The decoder of this run")[1].split("</p>")[0]
    # Trained for two epochs, these sub-models err so often that one user is enough.
    assert kept.n_attackers == 0
    assert "may give in to <b>one user</b> even where no other sub-model errs, less than the code allows for" in told
    assert f"(user {kept.witness.attackers[0]}, label {kept.label}, target {kept.witness.target})" in told


@pytest.mark.parametrize(
    ("correct", "kept", "words"),
    [
        (2, Agreement(1, 3, 4, Witness((1, 7), 5)), "<b>1 user</b> as long as no other sub-model errs, less than"),
        (2, Agreement(1, 3, 4, Witness((1, 7), 5)), "(users 1, 7, label 4, target 5)"),
        (2, Agreement(2, 3, 0, Witness((0, 1, 2), 1)), "up to <b>2 users</b> as long as no other sub-model errs."),
        (0, Agreement(0, 3, 0, Witness((0,), 1)), ""),
    ],
)
def test_nothing_is_said_of_a_promise_that_is_none_and_the_rest_reads_well(report, correct, kept, words):
    told = state_kept(replace(report.inspection, correct=correct), kept)
    assert words in told if words else told == ""


def test_the_page_opens_with_the_conclusion_the_guarantee_and_one_input(report, read_page):
    text = read_page(report.html).text
    order = ("Conclusion", "Nothing is guaranteed of the labels of the", "One triggered input", "How to reproduce")
    flat = " ".join(text.split())
    places = [flat.index(word) for word in order]
    assert places == sorted(places)
    # The decoder of these models may give in to one user (below), whatever the code promises.
    assert "With 1 of 12 users attacking (past the guarantee), " in flat


def test_a_federated_run_promises_only_what_holds_whatever_users_send(report):
    cells = [replace(cell) for cell in report.cells if not cell.n_attackers]
    for cell in cells:
        cell.__dict__["record"] = {**cell.record, "federated": {"rounds": 1}}
    told = conclude(cells, report.inspection, report.curves)["guaranteed"]
    assert told.startswith("Guaranteed with the consensus decoder, whatever users send: With up to 1 of 12 users")
    weak = inspect(Code(np.eye(3, dtype=int) + np.eye(3, dtype=int)[[1, 2, 0]]))
    assert weak.correct_arbitrary == 0
    assert conclude(cells, weak, {})["guaranteed"].startswith("Nothing is guaranteed: users sent updates")


def test_a_federated_run_is_judged_by_consensus_within_what_it_promises(report):
    cells = [replace(cell) for cell in report.cells if cell.n_attackers]
    few, many = {"count": 1, "of": 10}, {"count": 9, "of": 10}
    for cell in cells:
        groups = [{"right": many, "alarms": many} for _ in cell.record["figures"]["groups"]]
        figures = {**cell.record["figures"], "consensus": {"clean": {"right": many, "alarms": few}, "groups": groups}}
        cell.__dict__["record"] = {**cell.record, "federated": {"rounds": 1}, "figures": figures}
    told = conclude(cells, report.inspection, report.curves)
    assert "90.0% of 10 triggered inputs got the right label" in told["conclusion"]
    assert "90.0% raised an alarm (clean inputs: 10.0%)" in told["conclusion"]
    assert "Sub-models that no attacker reached are right on" in told["conclusion"]
    # Code c names and recovers from more, but not whatever users send.
    assert report.inspection.correct > report.inspection.correct_arbitrary
    weak = replace(report.inspection, correct_arbitrary=0)
    assert "(past the guarantee)" in conclude(cells, weak, {})["conclusion"]
    facts = tell_run(cells, report.inspection)
    assert facts["limits_of"][0].startswith("More than 1 user acting together")


@pytest.mark.parametrize(
    ("right", "works", "word"), [(80, 90, "Defended"), (60, 90, "Not defended"), (80, 9, "No attack")]
)
def test_defended_means_nine_tenths_of_what_models_out_of_reach_know(right, works, word):
    shares = {name: [{"count": 50, "of": 100}] for name in ("plurality", "alarms", "false", "rightly", "wrongly")}
    shares |= {"right": [{"count": right, "of": 100}], "unreached": [{"count": 88, "of": 100}]}
    assert _judge(shares | {"works": [{"count": works, "of": 100}]}, 2, 12, True)[0] == word


def test_every_table_is_written_in_every_format_and_every_figure_as_a_file(folder, tmp_path):
    made = write_report(folder, tmp_path / "a.html")
    files = sorted((tmp_path / "figures").iterdir())
    assert {file.stem for file in files} == set(made.figures) == {"votes", "code", "accuracy", "roc", "certified"}
    for file in files:
        assert ElementTree.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    write_report(folder, tmp_path / "tables", kind="csv")
    assert {file.stem for file in (tmp_path / "tables").iterdir()} == {table.name for table in made.tables}
    rows = list(csv.DictReader((tmp_path / "tables" / "run-clean.csv").read_text().splitlines()))
    write_report(folder, tmp_path / "a.json", kind="json")
    tables = {table["name"]: table for table in json.loads((tmp_path / "a.json").read_text())["tables"]}
    assert tables["run-clean"]["rows"] == rows
    write_report(folder, tmp_path / "a.tex", kind="latex")
    text = (tmp_path / "a.tex").read_text()
    assert text.count(r"\begin{table}") == text.count(r"\end{tabular}") == len(made.tables)
    assert not re.search(r"(?<!\\)%", text)


def test_cells_past_what_the_code_corrects_are_marked(report):
    assert report.inspection.correct == 2
    assert '3 <span class="past">' in report.html
    assert '1 <span class="past">' not in report.html


def test_the_area_under_the_curve_counts_pairs_of_the_vote_files(report, folder):
    code = Code.load(folder / "code.json")
    clean, triggered = (
        load_votes(folder / "votes" / f"repeat1-attackers1-{name}.npz") for name in ("clean", "triggered1")
    )
    decoder = BayesDecoder(code, clean.confusion)  # the defaults are the configuration's
    low, high = (decoder.decode(part.votes).attack_probability for part in (clean, triggered))
    won = (high[:, None] > low).mean() + (high[:, None] == low).mean() / 2
    values = report.to_json()["auc"]["1"]
    assert len(values) == 4  # two repeats of two groups
    assert values[3] == pytest.approx(won, abs=1e-12)


def test_which_wrong_label_can_be_forced_is_said_label_by_label(report):
    """Against plurality's definition: one user makes a label where it wins once all models of that user say it."""
    cells, code = [cell for cell in report.cells if cell.n_attackers == 0], report.inspection.code
    votes, labels = (np.concatenate([getattr(cell.clean, name) for cell in cells]) for name in ("votes", "labels"))
    [table] = [table for table in report.tables if table.name == "run-forced"]
    rows = {int(row[0].value): [entry.counts for entry in row[1:]] for _, rows in table.groups for row in rows}
    assert set(rows) == set(range(10))

    def wins(said, target):
        counts = np.stack([(said == label).sum(axis=1) for label in range(10)], axis=1)
        return counts.argmax(axis=1) == target

    untargeted = certify(votes, code, n_classes=10, threat="arbitrary").radius
    for target, told in rows.items():
        others = votes[labels != target]
        forced = [np.where(code.pattern((user,)), target, others) for user in range(code.n_users)]
        made = np.any([wins(others, target), *(wins(said, target) for said in forced)], axis=0)
        assert told[0].startswith(f"{int((~wins(others, target)).sum())} of {len(others)}")
        assert told[1].startswith(f"{int((~made).sum())} of {len(others)}")
        assert (~made).sum() >= ((untargeted >= 1) & (labels != target) & ~wins(votes, target)).sum()
    assert table.title in report.html


def test_the_certified_curve_starts_at_the_recorded_accuracy_of_the_plurality_vote(report):
    cells = [cell for cell in report.cells if cell.n_attackers == 0]
    clean = [cell.record["figures"]["clean"]["all"]["plurality"] for cell in cells]
    share = sum(cell["count"] for cell in clean) / sum(cell["of"] for cell in clean)
    curve = report.curves["plurality vote"].accuracy
    assert curve[0] == pytest.approx(share)
    assert (np.diff(curve) <= 0).all()


def test_the_default_decoder_has_a_curve_where_votes_alone_determine_its_answer(tmp_path):
    place = RunFolder(tmp_path)
    code, rng = place.open(RunConfig(code={"name": "btc2412"}, attack={"attackers": [0]})), np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    votes = np.where(rng.random((200, code.n_models)) < 0.05, (labels[:, None] + 1) % 3, labels[:, None])
    about = {"classes": 3, "training": {}, "groups": [], **describe_machine("cpu")}
    says = VoteSet(votes, labels)
    cell = Cell(place, 0, 0).save_votes({"validation": says, "clean": says}, about)
    curves, _ = certify_cells([cell], inspect(code), silent())
    own, plain = curves["calibrated decoder"], curves["plurality vote"]
    assert (own.threat, plain.threat) == ("deterministic", "arbitrary")
    assert own.at(2) > plain.at(2)
    told = tell_certificates(curves, [])
    assert [row[0].value for _, rows in told["certified"].groups for row in rows][-1] == (
        "calibrated decoder, deterministic"
    )
    ((what, *_),) = tile_certified([CardCurve.of(curve) for curve in curves.values()], 2)
    assert what == "right whatever one target any 2 users plant"

    # Where users could move something that reaches all models, the card certifies nothing, and so does the report.
    Card("clinics", {}, {"count": 9, "of": 10}, warnings=("a column was fitted on all",)).save(place.card_file)
    assert certify_cells([cell], inspect(code), silent()) == ({}, ["Nothing is certified: a column was fitted on all"])


def test_the_same_folder_gives_the_same_bytes(report, folder):
    assert build_report(folder).html == report.html


def test_several_repeats_give_mean_and_sample_deviation_and_one_gives_counts():
    shares = [{"count": 1, "of": 4}, {"count": 3, "of": 4}]
    assert show_share(shares[:1]) == TableEntry("25.0%", "1 of 4")
    assert show_share(shares) == TableEntry("50.0% ± 35.4", "2 times 4")
    assert show_share([{"count": 0, "of": 0}]) == TableEntry("none")
    assert show_number([1.0, 3.0]) == "2.00 ± 1.41"


def test_text_of_the_folder_is_escaped(folder, tmp_path, read_page):
    copy = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("store", "votes"))
    for file in (copy / "records").glob("*.json"):
        record = json.loads(file.read_text())
        record["config"]["dataset"] = "<script>alert(1)</script>"
        record["versions"]["numpy"] = "<img src=x onerror=alert(1)>"
        file.write_text(json.dumps(record))
    html = build_report(copy).html
    read_page(html)
    assert html.count("<script") == 1
    assert "<img" not in html
    assert "&lt;img src=x" in html


def test_without_vote_files_the_page_says_what_is_missing(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("store", "votes"))
    made = build_report(copy)
    assert made.detections == []
    assert made.curves == {}
    assert "No vote files of attacked models" in made.html


def test_charts_need_no_matplotlib(folder, report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert build_report(folder).html == report.html
    assert report.html.count('class="chart"') == 3


def test_a_picture_from_the_folder_brings_no_scripts_and_no_outside_links():
    text = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:x="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" onload="a()">'
        '<script>a()</script><style>*{color:red}</style><a x:href="javascript:a()"><rect/></a>'
        '<image x:href="http://x/y.png"/><use x:href="http://x/y.svg#a"/><use x:href="#a"/>'
        '<path id="a" d="M0 0" style="fill: #000000; clip-path: url(#c)" onclick="a()"/>'
        '<path style="fill: url(http://x/y)"/><path style="fill: u\\72l(http://x/y)"/><text>a &lt;b&gt;</text></svg>'
    )
    html = adopt_svg(text, "p-", "a <picture>")
    for bad in ("script", "style>", "http", "javascript", "onload", "onclick", "image"):
        assert bad not in html
    assert '<use href="#p-a">' in html
    assert 'id="p-a"' in html
    assert "fill: currentColor; clip-path: url(#p-c)" in html
    assert "a &lt;b&gt;" in html
    assert 'aria-label="a &lt;picture&gt;"' in html


@pytest.mark.parametrize("text", ["", "<p/>", '<!DOCTYPE a [<!ENTITY b "c">]><svg viewBox="0 0 1 1">&b;</svg>'])
def test_what_is_no_picture_is_refused(text):
    with pytest.raises(InputError):
        adopt_svg(text, "p-", "")


def test_progress_adds_up(folder):
    class Count:
        done = 0.0

        def advance(self, amount=1, note=""):
            self.done += amount

    count = Count()
    build_report(folder, count)
    assert count.done == count_steps(folder)


def test_records_of_another_code_are_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("store", "votes"))
    Code(np.eye(6, 12, dtype=int) | np.eye(6, 12, 6, dtype=int)).save(copy / "code.json")
    with pytest.raises(InputError, match="not the code of the records"):
        build_report(copy)


def test_records_of_two_configurations_are_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("store", "votes"))
    file = copy / "records" / "repeat1-attackers1.json"
    file.write_text(file.read_text().replace('"config_digest": "', '"config_digest": "0'))
    with pytest.raises(InputError, match="different configurations"):
        build_report(copy)


@pytest.mark.skipif(not STORED.exists, reason="the stored results are not part of this checkout")
def test_stored_results_without_scores_and_plots_are_reported(tmp_path, read_page):
    # One repeat of those there are, so that counts stand on the page and not means.
    STORED.unpack_run("c", tmp_path / "whole")
    left_out = shutil.ignore_patterns("plots", "studies", "repeat[!0]*")
    place = shutil.copytree(tmp_path / "whole", tmp_path / "c", ignore=left_out)
    made = write_report(place, tmp_path / "c.html")
    page = read_page((tmp_path / "c.html").read_text(encoding="utf-8"))
    record = STORED.read_json("c/records/repeat0-attackers3.json")
    counted = record["figures"]["groups"][0]["triggered"]["other_labels"]["bayes"]
    assert f"{counted['count']:,} of {counted['of']:,}" in page.text
    assert "Who holds what" not in page.text
    assert set(made.to_json()["auc"]) == {"1", "2", "3"}
