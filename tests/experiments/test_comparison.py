import json
from pathlib import Path

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.cli import main
from codeward.data import load_dataset
from codeward.experiments.comparison import (
    ATTACKS,
    DEFENCES,
    Comparison,
    Outcome,
    make_scene,
    measure_outcome,
    run_comparison,
)
from codeward.report import write_comparison
from codeward.training import PRESETS

PAIR = load_dataset("digits")
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_scene_follows_from_its_seed_and_only_attackers_differ(attack):
    scene, again = (make_scene(attack, PAIR, PRESETS["digits"], seed=3) for _ in range(2))
    clean = make_scene("none", PAIR, PRESETS["digits"], seed=3)
    assert [user.digest() for user in scene.users] == [user.digest() for user in again.users]
    changed = {j for j in range(12) if scene.users[j].digest() != clean.users[j].digest()}
    assert changed == set(scene.attackers)
    assert len(scene.attackers) == {"none": 0, "two-groups": 4}.get(attack, 2)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("compare-*.yaml")), ids=lambda file: file.name)
def test_every_comparison_that_ships_is_valid(file):
    assert Comparison.load(file).dataset == file.stem.removeprefix("compare-")


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
    with pytest.raises(InputError, match="another comparison"):
        list(run_comparison(Comparison(attacks=("patch",), defences=("none",), seeds=(0,), epochs=2), tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attacks: [nothing]", "attacks: expected some of"),
        ("foo: 1", "expected keys among"),
        ("attackers: 9", "1 to 6"),
    ],
)
def test_bad_configurations_are_one_line(tmp_path, capsys, text, message):
    file = tmp_path / "compare.yaml"
    file.write_text(text)
    assert main(["compare", str(file), "-o", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_every_defence_answers_and_codeward_recovers_labels(tmp_path):
    given = Comparison(attacks=("patch",), seeds=(0,))
    figures = {cell.defence: record["figures"] for cell, record in run_comparison(given, tmp_path)}
    assert set(figures) == set(DEFENCES)
    rates = {name: found["triggered"]["count"] / found["triggered"]["of"] for name, found in figures.items()}
    assert rates["none"] < 0.1
    assert rates["codeward"] > 0.7
    assert json.dumps(figures)
