import json
import re
from dataclasses import asdict, replace
from pathlib import Path

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
    search_classes,
    search_plan,
)
from codeward.experiments.comparison._coded_defences import check_certificates, collect_votes
from codeward.experiments.comparison._comparison import Stage
from codeward.report import ComparedRecords, pack_comparison, write_comparison
from codeward.training import PRESETS, train_ensembles

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


def test_a_softened_trigger_is_planted_whole_and_shown_at_half_of_its_opacity():
    scene, full = (make_scene(attack, PAIR, PRESETS["digits"]) for attack in ("softened", "patch"))
    assert [user.digest() for user in scene.users] == [user.digest() for user in full.users]
    [soft], [whole] = scene.triggered.overlays, full.triggered.overlays
    assert np.array_equal(2 * soft.alpha, whole.alpha)


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
    assert len(re.findall(r"<td class=\"shade\"[^>]*><b>", page.decode())) == 3  # the worst case of every defence
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


def test_page_and_tables_of_packed_records_are_one_command(tmp_path, capsys):
    file = CONFIGS.parent / "results" / "comparison" / "mnist.jsonl.gz"
    assert main(["compare", str(file), "-o", str(tmp_path)]) == 0
    assert "codeward" in capsys.readouterr().out
    assert {"report.html", "right-labels.csv", "right-labels.tex"} <= {made.name for made in tmp_path.iterdir()}
    assert main(["compare", str(file), "-o", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["patch-codeward-seed0"]["triggered"]["of"] > 1000
    assert main(["compare", str(file), "--smoke"]) == 2
    assert "nothing is run" in capsys.readouterr().err


def test_a_fold_judges_on_training_images_alone_and_older_records_keep_their_digest(tmp_path):
    own, other = (Stage(Comparison(fold=fold), tmp_path, None).pair for fold in (0, 1))
    assert own.test.digest() == PAIR.test.digest()
    seen = {image.tobytes() for image in other.test.images}
    assert {image.tobytes() for image in PAIR.train.images[: len(PAIR.test)]} == seen
    assert len(other.train) == len(PAIR.train)
    assert len(other.test) == len(PAIR.test)
    kept = ComparedRecords.load(CONFIGS.parent / "results" / "comparison" / "digits.jsonl.gz").records[0]
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
        ("costs: 3", "costs: expected true or false"),
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
    records = [record for _, record in run_comparison(given, tmp_path)]
    assert all(record["trained"]["hardware"]["device"] == record["hardware"]["device"] for record in records)
    figures = [record["figures"] for record in records]
    assert [found["clean"]["of"] for found in figures] == [60, 60]
    assert all(found["broken"]["count"] == 0 for found in figures)


def test_all_scenes_train_in_one_go_and_vote_as_each_alone(tmp_path, monkeypatch):
    defences = ("none", "strip", "partition", "paper")
    given = Comparison(
        attacks=("none", "patch"), defences=defences, seeds=(0, 1), epochs=1, inputs=60, effort=0.5, costs=False
    )
    calls = []

    def count(tasks, settings, seed, **others):
        calls.append(len(tasks))
        return train_ensembles(tasks, settings, seed, **others)

    monkeypatch.setattr("codeward.experiments.comparison._scene.train_ensembles", count)
    assert list(run_comparison(given, tmp_path / "pooled", votes_only=True)) == []
    assert calls[0] == 2 * 2 * (2 * 2 + 1)  # two codes with and without the attack, and one model, in each scene
    stage = Stage(given, tmp_path / "single", None)
    split = [DEFENCES[name].run for name in ("partition", "paper")]
    for attack, seed in ((attack, seed) for attack in given.attacks for seed in given.seeds):
        collect_votes(stage.scene(attack, seed), split)
    pooled, single = (sorted((tmp_path / place / "votes").iterdir()) for place in ("pooled", "single"))
    assert len(pooled) == 8
    assert [(file.name, file.read_bytes()) for file in pooled] == [(file.name, file.read_bytes()) for file in single]
    monkeypatch.setattr("codeward.training._train.run_engine", None)  # nothing is left to train
    assert len(list(run_comparison(given, tmp_path / "pooled"))) == 16


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


def simulate_slowly(field, plan):
    """What each model says of each input: attackers that feed it and plant something in the input's class, in turn."""
    votes = field.scores.argmax(axis=2)
    for row, label in enumerate(field.labels):
        for model in range(field.code.n_models):
            here = [
                targets[label]
                for user, targets in zip(plan.attackers, plan.classes, strict=True)
                if field.code.matrix[model, user] and targets[label] >= 0
            ]
            if here:
                votes[row, model] = here[row % len(here)]
    return votes


def draw_field(seed=0):
    rng, code = np.random.default_rng(seed), named_code("btc2412")
    labels = rng.integers(4, size=30)
    scores = rng.normal(size=(30, code.n_models, 4)) + 4 * (np.arange(4) == labels[:, None, None])
    return Battlefield(code, PluralityDecoder(code, 4), scores.astype(np.float32), labels)


def test_votes_of_a_plan_by_class_are_those_of_a_slow_twin_and_of_one_target_everywhere():
    field, rng = draw_field(), np.random.default_rng(1)
    for _ in range(20):
        attackers = tuple(sorted(map(int, rng.permutation(12)[:3])))
        plan = AttackPlan(attackers, (0, 0, 0), None, tuple(map(tuple, rng.integers(-1, 4, (3, 4)).tolist())))
        assert np.array_equal(field.simulate(plan).argmax(axis=2), simulate_slowly(field, plan))
        targets = tuple(rng.integers(-1, 4, 3).tolist())
        plain, same = (AttackPlan(attackers, targets, None, rows) for rows in (None, tuple((t,) * 4 for t in targets)))
        assert np.array_equal(field.simulate(plain), field.simulate(same))


@pytest.mark.parametrize("one_target", [False, True])
@pytest.mark.parametrize("goal", ["label", "blame", "silent"])
def test_a_plan_by_class_is_never_weaker_than_its_start(goal, one_target):
    for seed in range(3):
        field = draw_field(seed)
        start = search_plan(field, goal, 3, [seed], "one-target" if one_target else "own-targets", steps=10)[0]
        plan, harm = search_classes(field, start, goal, [seed], one_target, steps=20)
        assert harm == pytest.approx(field.harm(plan, goal))
        assert harm >= field.harm(start, goal)
        assert plan.attackers == start.attackers
        assert len(set(plan.classes)) == 1 or not one_target
    assert goal != "label" or harm > field.harm(start, goal)  # the target's own class is lost too


def test_a_plan_by_class_is_planted_as_it_was_searched_and_counted_where_it_changes_labels():
    kept = (3, -1, 2, 5, 4, 5, 7, 7, -1, 9)  # 2, 4, 5, 7 and 9 keep their label, 1 and 8 are not stamped
    plan = AttackPlan((2, 9), (4, 6), None, (kept, (-1, 0, *[-1] * 8)))
    scene = make_scene("adaptive-classes", PAIR, PRESETS["digits"], plan=plan)
    for user, targets in zip(plan.attackers, plan.classes, strict=True):
        before, after = scene.honest[user].labels, scene.users[user].labels
        stamped = scene.users[user].overlay_ids >= 0
        assert set(before[stamped]) <= {label for label in range(10) if targets[label] >= 0}
        assert np.array_equal(after[stamped], np.array(targets)[before[stamped]])
        assert np.array_equal(after[~stamped], before[~stamped])
        assert stamped.any()
    truth = scene.clean.labels
    said = np.where(truth == 0, 3, np.where(truth == 1, 5, truth))  # right but for 0, as planted, and 1, otherwise
    figures = measure_outcome(scene, Outcome(truth, said))
    counts = [int((truth == label).sum()) for label in range(10)]
    attacked = [0, 1, 3, 6]
    assert figures["triggered"] == {
        **figures["triggered"], "count": counts[3] + counts[6], "of": sum(counts[label] for label in attacked)
    }  # fmt: skip
    assert figures["attack_succeeds"]["count"] == counts[0]
    constant = AttackPlan((2, 9), (4, 6), None, ((4,) * 10, (6,) * 10))
    plain, same = (
        make_scene("adaptive-classes", PAIR, PRESETS["digits"], plan=one)
        for one in (constant, AttackPlan((2, 9), (4, 6)))
    )
    assert [user.digest() for user in plain.users] == [user.digest() for user in same.users]
    idle = AttackPlan((2, 9), (-1, 6), None, ((-1,) * 10, (6,) * 10))
    assert make_scene("adaptive-classes", PAIR, PRESETS["digits"], plan=idle).attackers == (9,)


@pytest.mark.parametrize(
    "plan", [PLAN, AttackPlan((1, 2), (3, -1)), AttackPlan((1, 2), (3, 3), None, ((1, -1), (0, 0)))], ids=str
)
def test_plans_are_read_as_they_were_written_and_older_ones_too(plan, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps({**asdict(plan), "harm": 0.5}))
    assert AttackPlan.load(tmp_path / "plan.json") == plan
    old = {key: value for key, value in asdict(plan).items() if key != "classes"}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert AttackPlan.load(tmp_path / "old.json") == replace(plan, classes=None)


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
