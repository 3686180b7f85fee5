"""docs/comparison.md against results/comparison: every table, the picture and the figures in the text."""

from pathlib import Path
from statistics import fmean

import pytest

from codeward.experiments.comparison import ATTACKS, UPDATE_ATTACKS
from codeward.report import ComparedRecords, write_comparison

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
COSTS = ROOT / "results" / "comparison" / "digits-costs.jsonl.gz"
KEPT = sorted(set(COSTS.parent.glob("*.jsonl.gz")) - {COSTS})


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.name)
def test_no_attack_of_the_kept_comparisons_broke_a_certificate(file):
    found = ComparedRecords.load(file)
    certified = [record["figures"] for record in found.records if record["figures"]["certified"] is not None]
    assert sum(figures["certified"]["count"] for figures in certified) > 1000
    assert all(figures["broken"]["count"] == 0 for figures in certified)


def show_mean(shares, like):
    """Mean share in percent, with as many places as another text has."""
    return f"{100 * fmean(one['count'] / one['of'] for one in shares):.{len(like.strip('%').partition('.')[2])}f}"


def read_table(head):
    """Rows of the table of the docs that begins with a head, by defence."""
    _, _, *rows = (head + PAGE.split(head)[1].split("\n\n")[0]).splitlines()
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows)}


@pytest.fixture(scope="module")
def kept():
    return {file.name.removesuffix(".jsonl.gz"): ComparedRecords.load(file).records for file in KEPT}


def test_alarms_and_names_of_the_docs_are_what_the_records_say(kept):
    rows = read_table("| defence | detected, patch |")
    assert len(rows) == 10
    for title, (patch, own, label, everything, rightly, rightly_all, wrongly_all) in rows.items():
        source = kept["digits-federated" if title.endswith("federated") else "digits"]
        of = [record for record in source if record["title"] == title and record["attack"] != "none"]
        for attack, cell in (("patch", patch), ("own-targets", own), ("adaptive-label", label), (None, everything)):
            detected = [record["figures"]["detected"] for record in of if attack in (record["attack"], None)]
            assert cell == (show_mean(detected, cell) + "%" if detected else ""), (title, attack)
        for attack, what, cell in (
            ("patch", "named_rightly", rightly), (None, "named_rightly", rightly_all),
            (None, "named_wrongly", wrongly_all),
        ):  # fmt: skip
            named = [record["figures"][what] for record in of if attack in (record["attack"], None)]
            nobody = "names nobody" if what == "named_rightly" else ""
            assert cell == (f"{fmean(one['mean'] for one in named):.2f}" if all(named) else nobody), (title, what)


def test_alarms_on_mnist_and_cifar10_of_the_docs_are_what_the_records_say(kept):
    rows = read_table("| defence | MNIST, patch |")
    where = [("mnist", attack) for attack in ("patch", "own-targets", "adaptive-label", None)]
    where += [("cifar10", attack) for attack in ("patch", "cover", "own-targets", "adaptive-label", None)]
    assert len(rows) > 5
    for title, cells in rows.items():
        for (data, attack), cell in zip(where, cells, strict=True):
            of = [r for r in kept[data] if r["title"] == title and r["attack"] != "none"]
            detected = [r["figures"]["detected"] for r in of if attack in (r["attack"], None)]
            assert cell == (show_mean(detected, cell) + "%" if detected else ""), (title, data, attack)


def test_certificates_of_the_docs_are_what_the_records_say(kept):
    rows = read_table("| defence | threat model |")
    everything = [record for records in kept.values() for record in records]
    total = 0
    for title, (_, *shares, broken) in rows.items():
        for dataset, cell in zip(("digits", "mnist", "cifar10"), shares, strict=True):
            source = kept.get(dataset + "-federated" * title.endswith("federated"), ())
            certified = [r["figures"]["certified"] for r in source if (r["title"], r["attack"]) == (title, "patch")]
            assert cell == (show_mean(certified, cell) + "%" if certified else ""), (title, dataset)
        figures = [record["figures"]["certified"] for record in everything if record["title"] == title]
        counted = sum(certified["count"] for certified in figures if certified)
        assert broken == f"0 of {counted:,}", title
        total += counted
    assert f"**No certificate broke**: 0 of {total:,}." in PAGE


def test_the_picture_of_the_docs_is_what_the_records_say(tmp_path):
    write_comparison(ROOT / "results" / "comparison" / "digits.jsonl.gz", tmp_path / "report.html")
    assert (ROOT / "docs" / "comparison.svg").read_bytes() == (tmp_path / "right-labels.svg").read_bytes()


def test_the_costs_of_the_docs_are_what_the_records_say():
    rows = read_table("| defence | models | passes an input |")
    alone = ComparedRecords.load(COSTS).records
    assert {record["attack"] for record in alone} == {"none"}

    def least(title, part):
        return min(record["seconds"][part] for record in alone if record["title"] == title)

    assert set(rows) == {record["title"] for record in alone}
    for title, (models, passes, *ratios) in rows.items():
        [figures] = {
            (r["figures"]["models"], r["figures"]["passes"]) for r in alone if r["title"] == title and r["seed"] == 0
        }
        assert (models, passes) == tuple(map(str, figures))
        for part, ratio in zip(("training", "inference"), ratios, strict=True):
            assert ratio == f"{least(title, part) / least('no defence', part):.1f}", (title, part)


SHOWN = {"digits": "digits", "MNIST": "mnist", "CIFAR-10": "cifar10"}


def test_the_losses_of_the_docs_are_what_the_records_say(kept):
    head = "| where | data | codeward | DPA |"
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in PAGE.split(head)[1].split("\n\n")[0].splitlines()
    ]
    assert len(rows) > 5
    for where, data, *cells in rows[2:]:
        attack = where.split("`")[1]
        for defence, cell in zip(("codeward", "partition", "consensus"), cells, strict=True):
            of = [r for r in kept[SHOWN[data]] if (r["attack"], r["defence"]) == (attack, defence)]
            assert cell == show_mean([record["figures"]["triggered"] for record in of], cell), (where, defence)


def test_the_worst_attacks_of_the_docs_are_what_the_records_say(kept):
    rows = read_table("| defence | digits, two attack |")
    assert len(rows) > 5
    for title, cells in rows.items():
        for (data, past), cell in zip(((d, p) for d in SHOWN.values() for p in (False, True)), cells, strict=True):
            found = {}
            for record in kept[data]:
                if record["title"] == title and (record["attack"] in ("two-groups", "adaptive-past")) == past:
                    found.setdefault(record["attack"], []).append(record["figures"]["triggered"])
            means = {
                attack: show_mean(shares, (cell.split() or [""])[0])
                for attack, shares in found.items()
                if attack != "none"
            }
            if not means:
                assert not cell
                continue
            figure, attack = cell.split()
            assert means[attack] == figure
            assert float(figure) == min(map(float, means.values())), (title, data)


#: Sentences of docs/comparison.md with the figures left out, and where each is from: data, figure, attack, defence.
SENTENCES = [
    (
        "on CIFAR-10 spectral signatures keep {} and activation clustering {}, more than codeward's {}.",
        "cifar10 triggered patch spectral",
        "cifar10 triggered patch clustering",
        "cifar10 triggered patch codeward",
    ),
    (
        "A target each ({} and {}), a searched plan ({} and {})",
        "cifar10 triggered own-targets spectral",
        "cifar10 triggered own-targets clustering",
        "cifar10 triggered adaptive-label spectral",
        "cifar10 triggered adaptive-label clustering",
    ),
    (
        "clean inputs fall from {} to {} and {}.",
        "mnist clean * none",
        "mnist clean * spectral",
        "mnist clean * clustering",
    ),
    ("({} under `patch`, {} without)", "cifar10 clean patch cleanse", "cifar10 clean patch none"),
    ("{} by spectral signatures", "cifar10 triggered patch spectral"),
    ("(CIFAR-10: {} where codeward has {})", "cifar10 clean * partition", "cifar10 clean * codeward"),
    ("under one target ({} against {})", "cifar10 triggered patch codeward", "cifar10 triggered patch partition"),
    (
        "where each attacker plants its own ({} against {})",
        "cifar10 triggered own-targets codeward",
        "cifar10 triggered own-targets partition",
    ),
    (
        "On MNIST no defence keeps {}, and the codes pay more than that: the paper's decoder on codeward's code "
        "keeps {}, codeward {}, DPA {}. On CIFAR-10 no defence keeps {}, codeward {}.",
        "mnist triggered adaptive-classes none",
        "mnist triggered adaptive-classes tracking",
        "mnist triggered adaptive-classes codeward",
        "mnist triggered adaptive-classes partition",
        "cifar10 triggered adaptive-classes none",
        "cifar10 triggered adaptive-classes codeward",
    ),
    (
        "there it keeps {}, where the paper's decoder on the same votes keeps {} and DPA {}.",
        "cifar10 triggered cover codeward",
        "cifar10 triggered cover tracking",
        "cifar10 triggered cover partition",
    ),
    (
        "three leave it {} on MNIST, and DPA {}.",
        "mnist triggered adaptive-past codeward",
        "mnist triggered adaptive-past partition",
    ),
    ("names {} of two attackers an input under a patch", "cifar10 named_rightly patch codeward"),
    ("names few: {} users an input", "cifar10 named_rightly own-targets codeward"),
    (
        "{} of two attackers an input on digits, where one target gives {}. Plans by class have it name honest users, "
        "{} an input on MNIST and {} on CIFAR-10, and so has a `cover` ({}).",
        "digits named_rightly own-targets codeward",
        "digits named_rightly patch codeward",
        "mnist named_wrongly adaptive-classes codeward",
        "cifar10 named_wrongly adaptive-classes codeward",
        "cifar10 named_wrongly cover codeward",
    ),
]


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence[0])
def test_figures_in_the_text_of_the_docs_are_what_the_records_say(kept, sentence):
    template, *sources = sentence
    found = []
    for data, figure, attack, defence in map(str.split, sources):
        of = [r["figures"][figure] for r in kept[data] if r["defence"] == defence and attack in (r["attack"], "*")]
        named = "mean" in of[0]
        found.append(f"{fmean(one['mean'] for one in of):.2f}" if named else show_mean(of, "0.0"))
    assert template.format(*found) in " ".join(PAGE.split())


def test_what_the_docs_say_without_a_table_is_what_the_records_say(kept):
    page = " ".join(PAGE.split())

    def mean(data, attack, defence, figure="triggered"):
        of = [r["figures"][figure] for r in kept[data] if (r["attack"], r["defence"]) == (attack, defence)]
        return fmean(one["mean"] if "mean" in one else one["count"] / one["of"] for one in of)

    worst = min(mean("digits", attack, "partition") for attack in ATTACKS if attack not in (*UPDATE_ATTACKS, "none")
                if any(r["attack"] == attack for r in kept["digits"]))  # fmt: skip
    assert f"**DPA** never falls below {100 * worst:.0f}." in page
    lost = [
        100 * (mean(data, "patch", "codeward") - mean(data, "validation", "codeward"))
        for data in ("digits", "cifar10", "mnist")
    ]
    assert f"it costs {lost[0]:.1f} points on digits and nothing on CIFAR-10 and MNIST," in page
    assert max(lost[1:]) < 0.05
    by_seed = [
        ("{}, {} and {} are right by seed without a defence", "digits", "adaptive-classes", "none", "triggered"),
        ("with codeward {}, {} and {}.", "digits", "adaptive-classes", "codeward", "triggered"),
        ("clustering keeps {}, {} and {} by seed", "cifar10", "own-targets", "clustering", "triggered"),
        ("spectral signatures {}, {} and {}.", "cifar10", "own-targets", "spectral", "triggered"),
        ("sees {}%, {}% and {}% of it on MNIST by seed", "mnist", "patch", "sentinet", "detected"),
        ("one model on MNIST keeps {}, {} and {} under `patch`", "mnist", "patch", "none", "triggered"),
    ]
    for template, data, attack, defence, figure in by_seed:
        of = [r["figures"][figure] for r in kept[data] if (r["attack"], r["defence"]) == (attack, defence)]
        assert template.format(*(show_mean([one], "0") for one in of)) in page
    seen = [f"{100 * mean(data, 'patch', 'strip', 'detected'):.0f}" for data in ("mnist", "cifar10")]
    assert "sees most of a patch ({}% on MNIST, {}% on CIFAR-10)".format(*seen) in page
    unlearned = [
        [r["figures"]["triggered"]["count"] > 0.5 * r["figures"]["triggered"]["of"] for r in kept[data]
         if (r["attack"], r["defence"]) == (attack, "cleanse")]
        for data, attack in (
            ("cifar10", "patch"), ("cifar10", "cover"), ("cifar10", "own-targets"), ("digits", "patch")
        )
    ]  # fmt: skip
    assert [sum(found) for found in unlearned] == [3, 3, 2, 1]
    assert mean("mnist", "patch", "cleanse") == mean("mnist", "patch", "none")
    designed = [record for record in kept["digits"] if record["defence"] == "designed" and record["attackers"]]
    assert min(len(record["attackers"]) for record in designed) == 2
    assert not any((record["figures"]["certified"] or {"count": 0})["count"] for record in designed)
    assert "All plans have two or more, so nothing of it was certified" in page
    assert f"leave it {100 * mean('digits', 'adaptive-past', 'codeward'):.0f} on digits." in page
    # An alarm on nearly all inputs, hardly anybody named wrongly, where attackers are too many.
    for data in ("digits", "mnist"):
        assert mean(data, "adaptive-past", "codeward", "detected") > 0.95
        assert mean(data, "adaptive-past", "codeward", "named_wrongly") < 0.1
    words = [r["figures"]["guarantee"] for r in kept["digits"] if (r["defence"], r["attack"]) == ("noise", "patch")]
    norms = [float(text.split()[3]) for text in words]
    patches = [int(text.split("attack's is ")[1].split(".")[0]) for text in words]
    assert f"norm {max(norms):.2f} at most; the patches' is {min(patches)} to {max(patches)}." in page


def test_every_cell_has_three_seeds(kept):
    for data, records in kept.items():
        seeds = {}
        for record in records:
            seeds.setdefault((record["attack"], record["defence"]), set()).add(record["seed"])
        assert {cell: found for cell, found in seeds.items() if len(found) < 3} == {}, data


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.name)
def test_the_tables_of_the_docs_are_what_the_records_say(file):
    found = ComparedRecords.load(file)
    name = file.name.removesuffix(".jsonl.gz")
    text = PAGE.split(f"<!-- records: {name} -->\n")[1]
    head, _, *rows = [line.strip("| ").split(" | ") for line in text.split("\n\n")[0].splitlines()]
    titles = {found.say("defence", defence, "title"): defence for defence in found.defences}
    assert {row[0] for row in rows} == set(titles)
    for row in rows:
        cells = dict(zip(head, row, strict=False))
        of = [record for record in found.records if record["defence"] == titles[row[0]]]
        assert cells["clean"] == show_mean([record["figures"]["clean"] for record in of], cells["clean"]), row[0]
        if "trigger alone" in cells:
            alone = [record["figures"]["triggered"] for record in of if record["attack"] == "none"]
            assert cells["trigger alone"] == (show_mean(alone, cells["trigger alone"]) if alone else ""), row[0]
        shown = {attack: cells[attack].strip("* |") for attack in found.attacks if cells.get(attack, "").strip("| ")}
        for attack, cell in shown.items():
            triggered = [record["figures"]["triggered"] for record in found.of(attack, titles[row[0]])]
            assert cell == show_mean(triggered, cell), (row[0], attack)
        worst = min(map(float, shown.values()))
        assert {attack for attack in shown if "**" in cells[attack]} == {
            attack for attack, cell in shown.items() if float(cell) == worst
        }
    assert len(rows) > 4
    assert len(head) > 4
