import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from codeward._errors import InputError, UnmetError
from codeward.cli import main
from codeward.codes import named_code
from codeward.data import load_dataset
from codeward.decoding import BayesDecoder, PluralityDecoder
from codeward.experiments.comparison import (
    ATTACKS,
    DEFENCES,
    UPDATE_ATTACKS,
    AttackPlan,
    Battlefield,
    Comparison,
    Outcome,
    make_scene,
    measure_outcome,
    run_comparison,
    search_plan,
)
from codeward.experiments.comparison._coded_defences import check_certificates
from codeward.experiments.comparison._comparison import Stage
from codeward.report import ComparedRecords, pack_comparison, write_comparison
from codeward.training import PRESETS

PAIR = load_dataset("digits")
CONFIGS = Path(__file__).parents[2] / "configs"


PLAN = AttackPlan((2, 9), (4, 6), tuple(int(t) for t in np.where(named_code("btc2412").pattern((2, 9)), 4, -1)))


def plan_of(attack):
    return PLAN if attack.startswith("adaptive") else None


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_scene_follows_from_its_seed_and_only_attackers_differ(attack):
    scene, again = (make_scene(attack, PAIR, PRESETS["digits"], seed=3, plan=plan_of(attack)) for _ in range(2))
    clean = make_scene("none", PAIR, PRESETS["digits"], seed=3)
    assert [user.digest() for user in scene.users] == [user.digest() for user in again.users]
    changed = {j for j in range(12) if scene.users[j].digest() != clean.users[j].digest()}
    assert changed == set(scene.attackers)
    assert [user.digest() for user in scene.honest] == [user.digest() for user in clean.users]
    assert len(scene.attackers) == {"none": 0, "two-groups": 4}.get(attack, 2)
    assert (scene.validation.digest() != clean.validation.digest()) == (attack == "validation")


def test_a_searched_attack_needs_its_plan_and_others_take_none():
    for attack, plan in (("adaptive-label", None), ("patch", PLAN)):
        with pytest.raises(InputError, match="plan"):
            make_scene(attack, PAIR, PRESETS["digits"], plan=plan)


def test_dynamic_triggers_differ_in_place_and_pattern_and_cover_shows_half_of_the_patch():
    scene = make_scene("dynamic", PAIR, PRESETS["digits"])
    assert len({overlay.alpha.tobytes() for overlay in scene.triggered.overlays}) > 20
    user = scene.users[scene.attackers[0]]
    assert len(set(user.overlay_ids[user.overlay_ids >= 0])) > 20
    cover = make_scene("cover", PAIR, PRESETS["digits"])
    user, full = cover.users[cover.attackers[0]], cover.triggered.overlays[0].alpha.sum()
    assert {float(overlay.alpha.sum()) for overlay in user.overlays} == {full // 2, full - full // 2}


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("compare-*.yaml")), ids=lambda file: file.name)
def test_every_comparison_that_ships_is_valid(file):
    assert file.stem.removeprefix("compare-").startswith(Comparison.load(file).dataset)


COSTS = CONFIGS.parent / "results" / "comparison" / "digits-costs.jsonl.gz"
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
    text = (CONFIGS.parent / "docs" / "comparison.md").read_text(encoding="utf-8")
    _, _, *rows = (head + text.split(head)[1].split("\n\n")[0]).splitlines()
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
    assert f"**No certificate broke**: 0 of {total:,}." in (CONFIGS.parent / "docs" / "comparison.md").read_text()


def test_the_picture_of_the_docs_is_what_the_records_say(tmp_path):
    write_comparison(CONFIGS.parent / "results" / "comparison" / "digits.jsonl.gz", tmp_path / "report.html")
    assert (CONFIGS.parent / "docs" / "comparison.svg").read_bytes() == (tmp_path / "right-labels.svg").read_bytes()


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


SHOWN = {"MNIST": "mnist", "CIFAR-10": "cifar10", "digits": "digits"}


def test_the_losses_of_the_docs_are_what_the_records_say(kept):
    head = "| where | data | codeward | DPA |"
    text = (CONFIGS.parent / "docs" / "comparison.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in text.split(head)[1].split("\n\n")[0].splitlines()
    ]
    assert len(rows) > 5
    for where, data, *cells in rows[2:]:
        attack = where.split("`")[1]
        for defence, cell in zip(("codeward", "partition", "consensus"), cells, strict=True):
            of = [r for r in kept[SHOWN[data]] if (r["attack"], r["defence"]) == (attack, defence)]
            assert cell == show_mean([record["figures"]["triggered"] for record in of], cell), (where, defence)


#: Sentences of docs/comparison.md with the figures left out, and where each is from: data, figure, attack, defence.
SENTENCES = [
    ("(CIFAR-10: {} where codeward has {})", "cifar10 clean * partition", "cifar10 clean * codeward"),
    ("under one target ({} against {})", "cifar10 triggered patch codeward", "cifar10 triggered patch partition"),
    (
        "where each attacker plants its own ({} against {})",
        "cifar10 triggered own-targets codeward",
        "cifar10 triggered own-targets partition",
    ),
    (
        "three leave it {} on MNIST, and DPA {}.",
        "mnist triggered adaptive-past codeward",
        "mnist triggered adaptive-past partition",
    ),
    ("names {} of two attackers an input under a patch", "cifar10 named_rightly patch codeward"),
    ("names few: {} users an input", "cifar10 named_rightly own-targets codeward"),
    (
        "{} of two attackers an input on digits, where one target gives {}.",
        "digits named_rightly own-targets codeward",
        "digits named_rightly patch codeward",
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
    page = (CONFIGS.parent / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert template.format(*found) in " ".join(page.split())


def test_what_the_docs_say_without_a_table_is_what_the_records_say(kept):
    page = " ".join((CONFIGS.parent / "docs" / "comparison.md").read_text(encoding="utf-8").split())

    def mean(data, attack, defence, figure="triggered"):
        of = [r["figures"][figure] for r in kept[data] if (r["attack"], r["defence"]) == (attack, defence)]
        return fmean(one["mean"] if "mean" in one else one["count"] / one["of"] for one in of)

    worst = min(mean("digits", attack, "partition") for attack in ATTACKS if attack not in (*UPDATE_ATTACKS, "none")
                if any(r["attack"] == attack for r in kept["digits"]))  # fmt: skip
    assert f"**DPA** never falls below {100 * worst:.0f}." in page
    cost = mean("cifar10", "patch", "codeward") - mean("cifar10", "validation", "codeward")
    assert f"On CIFAR-10 it costs {100 * cost:.1f} points." in page
    # An alarm on nearly all inputs, hardly anybody named wrongly, where attackers are too many.
    for data in ("digits", "mnist"):
        assert mean(data, "adaptive-past", "codeward", "detected") > 0.95
        assert mean(data, "adaptive-past", "codeward", "named_wrongly") < 0.1
    words = [r["figures"]["guarantee"] for r in kept["digits"] if (r["defence"], r["attack"]) == ("noise", "patch")]
    norms = [float(text.split()[3]) for text in words]
    patches = [int(text.split("attack's is ")[1].split(".")[0]) for text in words]
    assert f"norm {max(norms):.2f} at most; the patches' is {min(patches)} to {max(patches)}." in page


def test_seeds_that_are_missing_are_those_of_the_docs(kept):
    """Three seeds everywhere else."""
    fewer = {}
    for data, records in kept.items():
        cells = {(record["attack"], record["defence"]) for record in records}
        for cell in cells:
            seeds = {record["seed"] for record in records if (record["attack"], record["defence"]) == cell}
            if len(seeds) < 3:
                fewer.setdefault((data, cell[0]), set()).add(len(seeds))
    assert fewer == {
        ("mnist", "adaptive-past"): {2},
        ("mnist", "own-targets"): {2},
        ("cifar10", "adaptive-label"): {1},
        ("cifar10", "patch"): {1},
        ("cifar10", "cover"): {1, 2},
    }


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.name)
def test_the_tables_of_the_docs_are_what_the_records_say(file):
    found = ComparedRecords.load(file)
    name = file.name.removesuffix(".jsonl.gz")
    text = (
        (CONFIGS.parent / "docs" / "comparison.md").read_text(encoding="utf-8").split(f"<!-- records: {name} -->\n")[1]
    )
    head, _, *rows = [line.strip("| ").split(" | ") for line in text.split("\n\n")[0].splitlines()]
    titles = {found.say("defence", defence, "title"): defence for defence in found.defences}
    assert {row[0] for row in rows} == set(titles)
    for row in rows:
        cells = dict(zip(head, row, strict=False))
        of = [record for record in found.records if record["defence"] == titles[row[0]]]
        assert cells["clean"] == show_mean([record["figures"]["clean"] for record in of], cells["clean"]), row[0]
        if "trigger alone" in cells:
            alone = [record["figures"]["triggered"] for record in of if record["attack"] == "none"]
            assert cells["trigger alone"] == show_mean(alone, cells["trigger alone"]), row[0]
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


def test_own_targets_are_one_trigger_and_several_targets():
    scene = make_scene("own-targets", PAIR, PRESETS["digits"])
    assert len({group.target for group in scene.groups}) == 2
    assert scene.groups[0].trigger is scene.groups[1].trigger


def test_half_of_the_stamped_images_keep_their_label():
    scene, full = (make_scene(attack, PAIR, PRESETS["digits"]) for attack in ("half-labelled", "patch"))
    user, target = scene.attackers[0], scene.groups[0].target
    stamped = scene.users[user].overlay_ids >= 0
    assert stamped.sum() == (full.users[user].overlay_ids >= 0).sum() > 0
    assert 0.3 < (scene.users[user].labels[stamped] == target).mean() < 0.75


def test_measures_leave_the_target_class_out_and_count_names():
    scene = make_scene("patch", PAIR, PRESETS["digits"])
    truth, target = scene.clean.labels, scene.groups[0].target
    said = np.full_like(truth, target)
    wrong = next(user for user in range(12) if user not in scene.attackers)
    named = ((scene.attackers[0], wrong),) * len(truth)
    alarm = np.linspace(0, 1, len(truth))
    figures = measure_outcome(scene, Outcome(truth, said, alarm, alarm + 2, named))
    assert figures["triggered"] == {"count": 0, "of": int((truth != target).sum())}
    assert figures["attack_succeeds"]["count"] == figures["attack_succeeds"]["of"]
    assert figures["detected"]["count"] == figures["detected"]["of"]
    assert (figures["named_rightly"]["mean"], figures["named_wrongly"]["mean"]) == (1.0, 1.0)


def test_a_comparison_resumes_and_its_page_is_the_same_bytes(tmp_path):
    small = Comparison(attacks=("patch",), defences=("none", "strip", "partition-runoff"), seeds=(0,), epochs=1)
    first = dict(run_comparison(small, tmp_path))
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "records").iterdir()}
    assert dict(run_comparison(small, tmp_path)) == first
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "records").iterdir()} == times
    files = write_comparison(tmp_path)
    page = (tmp_path / "report.html").read_bytes()
    assert write_comparison(tmp_path) == files
    assert (tmp_path / "report.html").read_bytes() == page
    assert "STRIP" in page.decode()
    assert (tmp_path / "right-labels.csv").read_text().splitlines()[0].startswith("defence,clean inputs,patch")
    assert "\\begin{tabular}" in (tmp_path / "right-labels.tex").read_text()
    assert "<svg" in page.decode()
    pack_comparison(tmp_path, tmp_path / "all.jsonl.gz")
    again = write_comparison(tmp_path / "all.jsonl.gz", tmp_path / "packed" / "report.html")
    assert Path(again["report"]).read_bytes() == page
    with pytest.raises(InputError, match="another comparison"):
        list(run_comparison(Comparison(attacks=("patch",), defences=("none",), seeds=(0,), epochs=2), tmp_path))


def test_the_smoke_run_prints_every_defence_with_its_worst_attack(tmp_path, capsys):
    assert main(["compare", "--smoke", "-o", str(tmp_path), "--pack", str(tmp_path / "all.jsonl.gz")]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:7]}
    assert list(rows) == ["none", "spectral", "strip", "partition", "codeward", "fed-krum"]
    assert max(map(len, lines[:7])) <= 80
    assert (tmp_path / "all.jsonl.gz").is_file()
    assert float(rows["none"][2]) < 10 < 50 < float(rows["codeward"][2])


def test_a_fold_judges_on_training_images_alone_and_older_records_keep_their_digest(tmp_path):
    own, other = (Stage(Comparison(fold=fold), tmp_path, None).pair for fold in (0, 1))
    assert own.test.digest() == PAIR.test.digest()
    seen = {image.tobytes() for image in other.test.images}
    assert {image.tobytes() for image in PAIR.train.images[: len(PAIR.test)]} == seen
    assert len(other.train) == len(PAIR.train)
    assert len(other.test) == len(PAIR.test)
    kept = next(ComparedRecords.load(file).records[0] for file in KEPT if file.name == "digits.jsonl.gz")
    assert Comparison().digest == kept["digest"] != Comparison(fold=1).digest
    with pytest.raises(InputError, match="0 to 2"):
        _ = Stage(Comparison(fold=3), tmp_path, None).pair


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attacks: [nothing]", "attacks: expected some of"),
        ("foo: 1", "expected keys among"),
        ("attackers: 9", "1 to 6"),
        ("seeds: 3", "seeds: expected a list"),
        ("attacks: patch", "attacks: expected a list"),
        ("seeds: [a]", "seeds: expected whole numbers"),
        ("inputs: many", "inputs: expected a whole number of at least 1"),
        ("recipe: fast", "modern or paper"),
    ],
)
def test_bad_configurations_are_one_line(tmp_path, capsys, text, message):
    file = tmp_path / "compare.yaml"
    file.write_text(text)
    assert main(["compare", str(file), "-o", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_votes_are_kept_and_decoded_without_training(tmp_path, monkeypatch):
    given = Comparison(attacks=("patch",), defences=("partition", "paper"), seeds=(0,), epochs=1, inputs=60)
    assert list(run_comparison(given, tmp_path, votes_only=True)) == []
    assert len(list((tmp_path / "votes").iterdir())) == 2
    monkeypatch.setattr("codeward.experiments.comparison._scene.train_ensembles", None)
    figures = [record["figures"] for _, record in run_comparison(given, tmp_path)]
    assert [found["clean"]["of"] for found in figures] == [60, 60]
    assert all(found["broken"]["count"] == 0 for found in figures)


def test_updates_are_attacked_only_where_users_send_some():
    for name, defence in DEFENCES.items():
        assert all(defence.meets(attack) == name.startswith("fed-") for attack in UPDATE_ATTACKS)


def make_votes(scene, code, target, wrong=0.05):
    """Votes of models that err on some inputs, and the same with every model the attackers reach saying the target."""
    rng = np.random.default_rng(0)
    truth = np.tile(scene.triggered.labels[:, None], code.n_models)
    free = np.where(rng.random(truth.shape) < wrong, (truth + 1) % 10, truth)
    return free, np.where(code.pattern(scene.attackers), target, free)


def test_certificates_of_the_models_without_the_attack_hold_and_a_false_one_is_seen():
    scene = make_scene("patch", PAIR, PRESETS["digits"])
    code, target = named_code("c"), scene.groups[0].target
    free, hit = make_votes(scene, code, target)
    votes = {"unattacked": free, "triggered": hit}
    confusion = np.full((15, 10, 10), 0.05 / 9) + np.eye(10) * (0.95 - 0.05 / 9)
    decoder = BayesDecoder(code, confusion)
    certified, broken = check_certificates(scene, code, decoder, votes, votes)
    assert certified.mean() > 0.5
    assert not broken.any()

    class Forgetful(BayesDecoder):
        """As certified, but for the very votes of the attack."""

        def decode(self, votes, *args, **kwargs):
            decoded = super().decode(votes, *args, **kwargs)
            return replace(decoded, labels=decoded.labels + 1) if np.array_equal(votes, hit) else decoded

    assert check_certificates(scene, code, Forgetful(code, confusion), votes, votes)[1].sum() == certified.sum()
    spoilt = hit.copy()
    spoilt[0, ~code.pattern(scene.attackers)] += 1
    with pytest.raises(UnmetError, match="no attacker reaches"):
        check_certificates(scene, code, decoder, votes, {"unattacked": free, "triggered": spoilt % 10})


@pytest.mark.parametrize("freedom", ["one-target", "own-targets", "per-model"])
def test_the_search_breaks_plurality_past_its_radius_and_never_within(freedom):
    code, labels = named_code("a"), np.zeros(3, dtype=np.int64)
    scores = np.where(np.arange(4) == 0, -0.1, -3.0) * np.ones((3, 12, 1))
    field = Battlefield(code, PluralityDecoder(code, 4), scores.astype(np.float32), labels)
    # Twelve models of one user each: five never change the vote, seven do.
    assert search_plan(field, "label", 5, [0], freedom, steps=40)[1] == 0
    assert search_plan(field, "label", 7, [0], freedom, steps=60)[1] == 1


@pytest.mark.slow
def test_every_defence_answers_and_codeward_recovers_labels(tmp_path):
    given = Comparison(attacks=("patch",), seeds=(0,))
    figures = {cell.defence: record["figures"] for cell, record in run_comparison(given, tmp_path)}
    assert set(figures) == set(DEFENCES)
    assert all(not found["broken"] or found["broken"]["count"] == 0 for found in figures.values())
    rates = {name: found["triggered"]["count"] / found["triggered"]["of"] for name, found in figures.items()}
    assert rates["none"] < 0.1
    assert rates["codeward"] > 0.7
    assert json.dumps(figures)
