import json
import shutil

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.certificates import certify_agreement
from codeward.codes import Code, named_code
from codeward.decoding import BayesDecoder, VoteSet
from codeward.experiments import run_experiment
from codeward.reproduction import (
    CellStudy,
    count_grid,
    draw_grid,
    drop_scores,
    pack_setting,
    plan_cells,
    plan_study,
    study_grid,
    vote_grid,
)
from codeward.reproduction._findings import PARTS, study_cell
from codeward.reproduction._grid_folder import describe_setting
from codeward.reproduction._studies import choose_parts
from codeward.runs import Cell, RunFolder, SimulatedAttack, load_config, load_records
from codeward.serve import open_run
from codeward.training import ModelStore


def small_plan(**changes):
    """Two codes that share no model, two numbers of attackers, one epoch."""
    plan = plan_study("figure5", smoke=True, codes=("b", "d"), splits=("iid",))
    for path, config in plan.items():
        training = config.training.model_copy(update={"epochs": 1})
        attack = config.attack.model_copy(update={"attackers": (0, 2)})
        plan[path] = config.model_copy(update={"training": training, "attack": attack, **changes})
    return plan


def vote_bytes(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.npz")}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    plan = small_plan()
    vote_grid(plan, folder, ModelStore(folder / "store"))
    return folder, plan, list(count_grid(plan, folder))


def test_a_run_of_a_grid_is_served_from_the_store_they_share(grid):
    opened = open_run(grid[0] / "digits-iid" / "d")
    assert opened.cell.store.resolve() == (grid[0] / "store").resolve()
    assert opened.guard.models.n_models == 6
    assert opened.gallery == ()  # files of a grid are small: votes without scores and pictures


def test_a_grid_is_a_folder_of_run_folders_with_the_records_of_codeward_run(grid, tmp_path):
    folder, plan, counted = grid
    assert [planned.path for planned in counted] == ["digits-iid/b"] * 2 + ["digits-iid/d"] * 2
    alone = list(run_experiment(plan["digits-iid/d"], tmp_path / "d"))
    shared = load_records(folder / "digits-iid/d")
    for one, other in zip(alone, shared, strict=True):
        for key in ("figures", "config_digest", "code_digest", "training", "repeat", "n_attackers"):
            assert one[key] == other[key], key


def test_a_finished_grid_trains_nothing_and_changes_nothing(grid, tmp_path):
    folder, plan, counted = grid
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    vote_grid(plan, folder, ModelStore(tmp_path / "elsewhere"))
    assert [planned.cell.record for planned in count_grid(plan, folder)] == [planned.cell.record for planned in counted]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not (tmp_path / "elsewhere").exists()


def test_cells_that_are_missing_are_made_again_with_the_same_votes(grid, tmp_path):
    folder, plan, _ = grid
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "store")
    for file in (copy / "digits-iid/d").rglob("repeat0-attackers2*"):
        file.unlink()
    vote_grid(plan, copy, ModelStore(copy / "store"))
    assert vote_bytes(copy) == vote_bytes(folder)


def test_records_come_from_vote_files_alone(grid, tmp_path, monkeypatch):
    folder, plan, counted = grid
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("store", "records"))
    monkeypatch.setattr("codeward.experiments._setting.load_dataset", None)  # nothing may load data
    monkeypatch.setattr("codeward.reproduction._sweep.load_dataset", None)
    again = [planned.cell.record for planned in count_grid(plan, copy)]
    for one, other in zip(again, counted, strict=True):
        assert {**one, "seconds": 0} == {**other.cell.record, "seconds": 0}


def test_more_repeats_and_attackers_go_into_the_same_folder(grid, tmp_path):
    folder, plan, _ = grid
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    grown = {path: config.model_copy(update={"repeats": 2}) for path, config in plan.items()}
    assert [planned.cell.has_votes for planned in plan_cells(grown, copy)] == [True] * 4 + [False] * 4
    vote_grid({"digits-iid/b": grown["digits-iid/b"]}, copy, ModelStore(copy / "store"))
    assert sum(planned.cell.has_votes for planned in plan_cells(grown, copy)) == 6


def test_a_run_that_is_asked_for_fewer_cells_keeps_the_others_in_its_config(tmp_path):
    place = RunFolder(tmp_path / "b")
    for attackers, repeats in (((0, 2), 3), ((1,), 1)):
        plan = plan_study("figure5", "mnist", repeats, ("b",), ("iid",), attackers=attackers)
        place.open(plan["mnist-iid/b"])
    kept = load_config(tmp_path / "b" / "config.yaml")
    assert (kept.attack.attackers, kept.repeats) == ((0, 1, 2), 3)


def test_votes_of_another_code_are_refused(grid, tmp_path):
    folder, plan, _ = grid
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("store", "records"))
    shutil.copy(folder / "digits-iid/b/code.json", copy / "digits-iid/d/code.json")
    with pytest.raises(InputError, match="votes of another code"):
        list(count_grid(plan, copy))


def test_studies_hold_every_part_once_and_agree_with_the_records(grid, tmp_path):
    folder, plan, counted = grid
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("store"))
    study_grid(plan, copy, smoke=True)
    for planned in counted:
        cell, record, code = planned.cell, planned.cell.record, planned.path.split("/")[1]
        study = json.loads((copy / planned.path / "studies" / f"repeat0-attackers{cell.n_attackers}.json").read_text())
        assert study["parts"] == sorted(choose_parts(planned.config, code, 0, cell.n_attackers, smoke=True))
        for name, key in (("plurality", "plurality"), ("bayes", "bayes")):
            counts = study["decoders"][name]
            assert counts["clean"]["right"] == record["figures"]["clean"]["all"][key]
            for group in record["figures"]["groups"]:
                for rows in ("all", "other_labels"):
                    assert counts["triggered"][rows]["right"] == group["triggered"][rows][key]
        if cell.n_attackers:
            assert study["tracking"]["pooled-5"]["of_attackers"] == 2
            assert 0 <= study["detection"]["bayes"]["auc"] <= 1
            # The best explanation by an attack names one to three users.
            named = study["tracking"]["bayes-joint"]
            assert 1 <= named["true_positives"] + named["false_positives"] <= 3


def test_certified_counts_never_rise_with_the_attackers(grid):
    folder, _, _ = grid
    study = CellStudy.of(Cell(RunFolder(folder / "digits-iid/d"), 0, 0))
    for found in PARTS["certificates"](study)["certified"].values():
        assert found["right"] == sorted(found["right"], reverse=True)
        assert found["right"][0] <= found["inputs"]


def test_models_that_no_attacker_feeds_vote_alone():
    """Written out on a cell where honest models, hit models and the trigger each do something of their own."""
    rng = np.random.default_rng(5)
    n_inputs, honest = 300, [0, 3]
    code = Code([[1, 0, 0], [0, 1, 1], [1, 1, 0], [1, 0, 0]])
    confusion_votes = rng.integers(0, 3, (200, 4)), rng.integers(0, 3, 200)
    labels = rng.integers(0, 3, n_inputs)
    clean = np.repeat(labels[:, None], 4, axis=1)
    triggered = np.where(rng.random((n_inputs, 4)) < 0.4, rng.integers(0, 3, (n_inputs, 4)), labels[:, None])
    given = [VoteSet(votes, truth) for votes, truth in (confusion_votes, (clean, labels), (triggered, labels))]
    cell = CellStudy(code, 3, *given[:2], (given[2],), (SimulatedAttack((1,), 2),))
    found = PARTS["unreached"](cell)["unreached"]
    assert found["models"] == 2
    assert found["single"]["clean"] == {"count": 2 * n_inputs, "of": 2 * n_inputs}
    right = sum(int(triggered[row, i] == labels[row]) for row in range(n_inputs) for i in honest)
    assert found["single"]["triggered"] == [{"count": right, "of": 2 * n_inputs}]
    likely = [
        max(range(3), key=lambda y: (sum(np.log(cell.confusion[i, y, vote[i]]) for i in honest), -y))
        for vote in triggered
    ]
    assert found["known"]["triggered"] == [{"count": int((np.array(likely) == labels).sum()), "of": n_inputs}]


def test_the_attackers_of_all_groups_are_left_out_when_models_vote_alone(tmp_path):
    plan = plan_study("past", smoke=True, codes=("d",), splits=("iid-two-groups",), attackers=(3,))
    ((path, config),) = plan.items()
    plan[path] = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 1})})
    vote_grid(plan, tmp_path, ModelStore(tmp_path / "store"))
    (planned,) = count_grid(plan, tmp_path)
    cell = planned.cell
    everyone = [user for group in cell.record["figures"]["groups"] for user in group["attackers"]]
    assert len(everyone) == 6
    assert cell.reached.tolist() == [any(row[everyone]) for row in cell.code.matrix]
    # Six of twelve users reach all six models of d: nothing is left to take votes of.
    assert PARTS["unreached"](CellStudy.of(cell)) == {"unreached": {"models": 0}}


def test_a_decoder_that_expects_fewer_attacks_raises_fewer_alarms_and_half_is_the_record(grid):
    _, _, counted = grid
    for planned in counted:
        cell, record = planned.cell, planned.cell.record
        rows = PARTS["dial"](CellStudy.of(cell))["dial"]
        assert [row["attack_rate"] for row in rows] == sorted((row["attack_rate"] for row in rows), reverse=True)
        assert all(("kept" in row) == (cell.n_attackers == 0) for row in rows)
        alarms = [row["clean_alarms"]["count"] for row in rows]
        assert alarms == sorted(alarms, reverse=True)
        assert rows[0]["clean_right"] == record["figures"]["clean"]["all"]["bayes"]
        if cell.n_attackers:
            assert rows[0]["right"] == record["figures"]["groups"][0]["triggered"]["all"]["bayes"]


def test_what_the_decoder_keeps_is_asked_at_every_rate():
    code, n_classes = named_code("d"), 3
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, 400)
    wrong = (labels[:, None] + rng.integers(1, n_classes, (400, code.n_models))) % n_classes
    votes = np.where(rng.random(wrong.shape) < 0.9, labels[:, None], wrong)
    given = VoteSet(votes, labels)
    cell = CellStudy(code, n_classes, given, given)
    rows = PARTS["dial"](cell)["dial"]
    for row in rows:
        decoder = BayesDecoder(code, cell.confusion, attack_rate=row["attack_rate"])
        assert row["kept"] == certify_agreement(code, decoder, n_classes, max_attackers=3).n_attackers
    assert len({row["kept"] for row in rows}) > 1


def test_scores_that_come_later_are_still_studied(grid, tmp_path):
    cell, kept = Cell(RunFolder(shutil.copytree(grid[0] / "digits-iid/b", tmp_path / "b")), 0, 0), {}
    known = study_cell(cell, ["explanations", "scores"])
    assert known["parts"] == ["explanations"]
    for name in ("validation", "clean"):
        found = cell.load_votes(name)
        scores = np.full((*found.votes.shape, 10), -5, dtype=np.float32)
        np.put_along_axis(scores, found.votes[..., None], -0.1, axis=2)
        kept[name] = VoteSet(found.votes, found.labels, scores=scores)
    known = study_cell(cell.save_votes(kept, cell.about), ["explanations", "scores"])
    assert known["parts"] == ["explanations", "scores"]
    assert known["decoders"]["soft"]["clean"]["right"]["of"] == len(found.labels)


def test_two_groups_are_studied_by_the_decoder_for_them_and_by_nothing_for_one(tmp_path):
    plan = plan_study("past", smoke=True, codes=("c",), splits=("iid-two-groups",), attackers=(0, 1))
    config = plan["digits-iid-two-groups/c"]
    plan = {
        "digits-iid-two-groups/c": config.model_copy(
            update={"training": config.training.model_copy(update={"epochs": 1})}
        )
    }
    vote_grid(plan, tmp_path, ModelStore(tmp_path / "store"))
    study_grid(plan, tmp_path)
    place = tmp_path / "digits-iid-two-groups/c"
    cells = [planned.cell for planned in count_grid(plan, tmp_path)]
    records = {cell.n_attackers: cell.record["figures"] for cell in cells}
    for size in (0, 1):
        study = json.loads((place / "studies" / f"repeat0-attackers{size}.json").read_text())
        assert study["parts"] == ["groups", "unreached"]
        found, figures = study["groups"], records[size]
        assert len(found["triggered"]) == len(figures["groups"]) == 2 * size
        for name in ("plurality", "bayes"):
            assert found["clean"][name]["right"] == figures["clean"]["all"][name]
            for one, group in zip(found["triggered"], figures["groups"], strict=True):
                assert one[name]["right"] == group["triggered"]["all"][name]
        assert {*found["clean"]} == {"plurality", "bayes", "two-groups"}
    with pytest.raises(InputError, match="one attacking group"):
        study_cell(Cell(RunFolder(place), 0, 1), ["paper"])


def test_a_study_of_another_kind_is_refused_by_name(grid, tmp_path):
    folder, _, _ = grid
    copy = tmp_path / "d"
    shutil.copytree(folder / "digits-iid/d", copy)
    (copy / "studies").mkdir()
    (copy / "studies/repeat0-attackers0.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(InputError, match="not a codeward-study/1 file"):
        study_cell(Cell(RunFolder(copy), 0, 0), ["paper"])


def test_the_papers_grids_are_complete():
    figure, table = plan_study("figure5", "cifar10"), plan_study("table1", "mnist")
    assert len(figure) == 4 * 6
    assert {config.repeats for config in figure.values()} == {5}
    assert {config.users for config in figure.values()} == {12}
    assert figure["cifar10-alpha0.1/c"].split.alpha == 0.1
    assert {config.repeats for config in table.values()} == {10}
    assert {config.users for config in table.values()} == {16}
    assert {"mnist-iid/g", "mnist-iid/h16"} <= set(table)
    for plan in (figure, table):
        assert {config.attack.attackers for config in plan.values()} == {(0, 1, 2, 3)}
    few = plan_study("past", "mnist", attackers=(3, 1, 3))
    alone = {path for path in few if "-each-" in path}  # groups of one have no room for three
    assert {few[path].attack.attackers for path in set(few) - alone} == {(3, 1)}
    assert {few[path].attack.attackers for path in alone} == {(1,)}
    assert not any("-each-" in path for path in plan_study("past", "mnist", attackers=(3,)))
    assert few["mnist-iid-split/c"].attack.kind == "split"
    # Stamping before or after augmentation differs where there is some.
    assert "mnist-iid-early-stamp/c" not in few
    assert plan_study("past", "cifar10")["cifar10-iid-early-stamp/c"].attack.position == "early-corner"


@pytest.mark.parametrize(
    ("study", "options", "words"),
    [
        ("figure6", {}, "figure5, table1, past"),
        ("figure5", {"codes": ("g",)}, "--code g: figure5 has a, b"),
        ("table1", {"splits": ("alpha1",)}, "--split alpha1: table1 has iid"),
        ("table1", {"attackers": (17,)}, "--attackers 17: iid/g has room for 0 to 16"),
        ("past", {"attackers": (7,)}, "--attackers 7: iid-two-groups/c has room for 0 to 6"),
    ],
)
def test_what_a_study_does_not_have_is_refused_by_name(study, options, words):
    with pytest.raises(InputError, match=words):
        plan_study(study, **options)


def test_class_shares_are_drawn_once_for_each_way_of_dealing(grid, tmp_path):
    folder, plan, _ = grid
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("store"))
    assert draw_grid(plan, copy) == [copy / "digits-iid/b/plots/users.svg"]
    assert draw_grid(plan, copy) == []
    # Not even when the run that has the picture is not asked for.
    assert draw_grid({"digits-iid/d": plan["digits-iid/d"]}, copy) == []
    assert draw_grid(plan, tmp_path / "empty") == []
    (copy / "digits-iid/b/plots/users.svg").unlink()
    elsewhere = {path: config.model_copy(update={"dataset": "mnist"}) for path, config in plan.items()}
    with pytest.raises(InputError, match="mnist"):
        draw_grid(elsewhere, copy, tmp_path)


def test_modern_settings_stand_beside_the_papers():
    paper, modern = (plan_study("figure5", "cifar10", recipe=recipe) for recipe in ("paper", "modern"))
    assert {path.replace("/", "-modern/") for path in paper} == set(modern)
    assert not set(paper) & set(modern)
    assert {config.training.recipe for config in paper.values()} == {"paper"}
    assert {config.training.recipe for config in modern.values()} == {"modern"}
    assert describe_setting(modern["cifar10-iid-modern/c"]).name == "CIFAR-10, modern recipe, IID"
    assert describe_setting(paper["cifar10-iid/c"]).name == "CIFAR-10, IID"


def test_every_user_may_attack_alone():
    plan = plan_study("past", "mnist", splits=["iid-each-alone", "iid-each-apart"])
    assert {config.attack.groups for config in plan.values()} == {12}
    assert {config.attack.attackers for config in plan.values()} == {(0, 1)}
    assert describe_setting(plan["mnist-iid-each-alone/c"]).attack == "every user alone"


def test_votes_are_packed_without_their_scores(tmp_path):
    plan = {path: config for path, config in small_plan().items() if path.endswith("/d")}
    vote_grid(plan, tmp_path, ModelStore(tmp_path / "store"), with_scores=True)
    cell = Cell(RunFolder(tmp_path / "digits-iid" / "d"), 0, 2)
    before = cell.triggered[0]
    assert before.scores is not None
    drop_scores(tmp_path, "digits-iid")
    after = Cell(RunFolder(tmp_path / "digits-iid" / "d"), 0, 2)
    assert after.triggered[0].scores is None
    assert np.array_equal(after.triggered[0].votes, before.votes)
    assert after.is_whole
    assert after.keys == cell.keys
    assert pack_setting(tmp_path, "digits-iid")[1] == {}
