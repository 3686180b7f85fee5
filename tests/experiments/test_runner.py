import inspect
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import BayesDecoder, estimate_confusion, load_votes
from codeward.experiments import _setting, run_experiment
from codeward.runs import RunFolder, find_cell, load_config, load_record, load_records, rate

SMALL = ["code.name=d", "decoder.name=bayes", "training.epochs=3", "attack.attackers=[0,2]"]


def run(folder, *overrides):
    return list(run_experiment(load_config(None, [*SMALL, *overrides]), folder))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One finished run: digits, the paper's code d, no attacker and two, three epochs."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, run(folder)


def votes(folder, n_attackers, inputs, repeat=0):
    return load_votes(folder / "votes" / f"repeat{repeat}-attackers{n_attackers}-{inputs}.npz")


def vote_bytes(folder):
    return {file.name: file.read_bytes() for file in sorted((folder / "votes").glob("*.npz"))}


def test_the_folder_holds_config_code_records_and_vote_files(done):
    folder, records = done
    assert load_config(folder / "config.yaml") == load_config(None, SMALL)
    assert Code.load(folder / "code.json").digest == records[0]["code_digest"]
    assert load_records(folder) == records
    assert sorted(file.name for file in (folder / "votes").glob("*.npz")) == [
        "repeat0-attackers0-clean.npz",
        "repeat0-attackers0-validation.npz",
        "repeat0-attackers2-clean.npz",
        "repeat0-attackers2-triggered.npz",
        "repeat0-attackers2-validation.npz",
    ]
    assert len(votes(folder, 0, "validation").votes) + len(votes(folder, 0, "clean").votes) == 539


def test_a_record_says_with_what_it_was_made(done):
    for record in done[1]:
        assert record["config"]["attack"]["fraction"] == 0.5
        assert record["config_digest"] == load_config(None, SMALL).digest
        assert record["training"]["epochs"] == 3
        assert record["training"]["architecture"] == "digits-cnn"
        assert {"python", "numpy", "torch", "codeward"} <= record["versions"].keys()
        assert record["code"] == {"models": 6, "users": 12, "row_weight": 6}


def count(figure):
    return figure["count"], figure["of"]


def plurality(row):
    tally = np.bincount(row, minlength=10)
    return int(np.flatnonzero(tally == tally.max())[0])


def test_every_figure_can_be_counted_again_from_the_vote_files(done):
    folder, records = done
    code = Code.load(folder / "code.json")
    for record in records:
        clean = votes(folder, record["n_attackers"], "clean")
        cells = [(record["figures"]["clean"]["all"], clean, np.ones(len(clean.labels), dtype=bool))]
        for group in record["figures"]["groups"]:
            hit = np.flatnonzero(code.matrix[:, group["attackers"]].any(axis=1))
            triggered = votes(folder, record["n_attackers"], "triggered")
            other = triggered.labels != group["target"]
            cells.append((group["triggered"]["all"], triggered, np.ones(len(other), dtype=bool)))
            cells.append((group["triggered"]["other_labels"], triggered, other))
            for name, models in (("hit_models", hit), ("clean_models", np.setdiff1d(range(6), hit))):
                says = triggered.votes[other][:, models] == group["target"]
                assert count(group["success"][name]) == (says.sum(), says.size)
        for figures, answers, rows in cells:
            decoded = BayesDecoder(code, answers.confusion, attackers_prior=(0.25,) * 4).decode(answers.votes)
            right = np.array([plurality(row) for row in answers.votes]) == answers.labels
            assert count(figures["plurality"]) == (right[rows].sum(), rows.sum())
            assert count(figures["bayes"]) == ((decoded.labels == answers.labels)[rows].sum(), rows.sum())
            alarms = (decoded.attack_probability > 0.5) & (answers.votes != answers.votes[:, :1]).any(axis=1)
            assert count(figures["alarms"]) == (alarms[rows].sum(), rows.sum())
            single = (answers.votes == answers.labels[:, None])[rows]
            assert count(figures["single_model"]) == (single.sum(), single.size)


def test_confusion_matrices_come_from_the_validation_half_alone(done):
    folder, _ = done
    validation = votes(folder, 2, "validation")
    smoothing = inspect.signature(estimate_confusion).parameters["smoothing"].default
    for model in range(6):
        for label in range(10):
            seen = validation.votes[validation.labels == label, model]
            expected = (np.bincount(seen, minlength=10) + smoothing) / (len(seen) + 10 * smoothing)
            assert validation.confusion[model, label] == pytest.approx(expected)
    for inputs in ("clean", "triggered"):
        assert np.array_equal(votes(folder, 2, inputs).confusion, validation.confusion)


def test_votes_are_the_highest_scores(done):
    answers = votes(done[0], 2, "triggered")
    best = np.take_along_axis(answers.scores, answers.votes[:, :, None], axis=2)[:, :, 0]
    assert (best >= answers.scores.max(axis=2) - 1e-2).all()  # scores are kept in half precision


def test_attackers_change_only_the_models_that_hit_them_and_only_those_are_trained(done):
    folder, (without, attacked) = done
    hit = Code.load(folder / "code.json").matrix[:, attacked["figures"]["groups"][0]["attackers"]].any(axis=1)
    assert 0 < hit.sum() < 6
    for inputs in ("validation", "clean"):
        same = (votes(folder, 0, inputs).scores == votes(folder, 2, inputs).scores).all(axis=(0, 2))
        assert np.array_equal(same, ~hit)
    assert without["work"] == {"models": 6, "trained": 6, "reused": 0}
    assert attacked["work"] == {"models": 6, "trained": int(hit.sum()), "reused": int(6 - hit.sum())}


def test_a_second_run_reads_its_records_and_computes_nothing(done):
    folder, records = done
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert run(folder) == records
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_with_the_store_kept_nothing_is_trained_again_and_the_votes_are_the_same(done, tmp_path):
    folder, records = done
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "records")
    shutil.rmtree(copy / "votes")
    again = run(copy)
    assert [record["work"]["trained"] for record in again] == [0, 0]
    assert [record["figures"] for record in again] == [record["figures"] for record in records]
    assert vote_bytes(copy) == vote_bytes(folder)


def test_a_folder_of_an_older_version_gets_its_keys_without_training(done, tmp_path):
    copy = RunFolder(shutil.copytree(done[0], tmp_path / "run"))
    for size in (0, 2):
        about = json.loads(copy.about(0, size).read_text())
        copy.about(0, size).write_text(
            json.dumps({k: about[k] for k in about if k not in ("keys", "digests", "shape")})
        )
    shutil.rmtree(copy.path / "gallery")
    with pytest.raises(InputError, match=r"codeward run .* -o"):
        find_cell(copy).keys  # noqa: B018
    again = run(copy.path)
    assert [record["work"]["trained"] for record in again] == [0, 0]
    assert [record["figures"] for record in again] == [record["figures"] for record in done[1]]
    assert vote_bytes(copy.path) == vote_bytes(done[0])
    assert find_cell(copy).keys == find_cell(done[0]).keys


def test_a_run_goes_on_with_the_recipe_it_began_with_although_its_name_means_another_now(done, tmp_path, monkeypatch):
    copy = shutil.copytree(done[0], tmp_path / "run")
    recipe = _setting.choose_recipe("digits")
    monkeypatch.setattr(_setting, "choose_recipe", lambda *_: replace(recipe, label_smoothing=0.1))
    shutil.rmtree(copy / "store")
    again = run(copy, "repeats=2")
    assert [record["training"] for record in again] == [done[1][0]["training"]] * 4
    assert vote_bytes(copy).items() >= vote_bytes(done[0]).items()
    assert run(tmp_path / "new")[0]["training"] == done[1][0]["training"] | {"label_smoothing": 0.1}


def test_a_record_that_does_not_say_how_its_models_were_trained_is_refused_by_name(done, tmp_path):
    copy = shutil.copytree(done[0], tmp_path / "run")
    file = copy / "records" / "repeat0-attackers0.json"
    record = json.loads(file.read_text())
    shutil.rmtree(copy / "store")
    for training in ({"secret": 1}, None):
        file.write_text(json.dumps(record | {"training": training}))
        with pytest.raises(InputError, match=r"repeat0-attackers0\.json: how its models were trained"):
            run(copy)


def test_altered_votes_are_made_again(done, tmp_path):
    copy = RunFolder(shutil.copytree(done[0], tmp_path / "run"))
    shutil.copy(copy.votes(0, 2, "clean"), copy.votes(0, 2, "validation"))
    with pytest.raises(InputError, match="altered"):
        find_cell(copy).validation  # noqa: B018
    run(copy.path)
    assert vote_bytes(copy.path) == vote_bytes(done[0])


def test_data_are_loaded_and_split_once(tmp_path, monkeypatch):
    calls = []
    for name in ("load_dataset", "split_iid", "draw_groups"):
        inner = getattr(_setting, name)
        monkeypatch.setattr(_setting, name, lambda *a, n=name, f=inner, **k: (calls.append(n), f(*a, **k))[1])
    run(tmp_path / "run", "training.epochs=1")
    assert calls == ["load_dataset", "split_iid", "draw_groups"]


def test_a_store_is_shared_between_folders_when_the_configuration_says_so(done, tmp_path):
    records = run(tmp_path / "other", f"store={done[0] / 'store'}")
    assert [record["work"]["trained"] for record in records] == [0, 0]
    assert not (tmp_path / "other" / "store").exists()


def test_the_same_seed_gives_the_same_bytes_in_another_folder_and_another_seed_does_not(done, tmp_path):
    run(tmp_path / "again")
    assert vote_bytes(tmp_path / "again") == vote_bytes(done[0])
    run(tmp_path / "other", "seed=1", "training.epochs=1")
    assert vote_bytes(tmp_path / "other") != vote_bytes(done[0])


def test_a_folder_of_another_run_is_refused_and_left_as_it_is(done, tmp_path):
    before = sorted(done[0].rglob("*"))
    with pytest.raises(InputError, match="holds another run"):
        run(done[0], "seed=5")
    assert sorted(done[0].rglob("*")) == before
    (tmp_path / "code.json").write_bytes((done[0] / "code.json").read_bytes())
    with pytest.raises(InputError, match=r"no config\.yaml"):
        run(tmp_path)


def test_a_run_killed_between_config_and_code_goes_on(done, tmp_path):
    (tmp_path / "config.yaml").write_bytes((done[0] / "config.yaml").read_bytes())
    assert len(run(tmp_path, f"store={done[0] / 'store'}")) == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset=nothing"], "no data set is named 'nothing'"),
        (["dataset=nothing.npz"], "no such file"),
        (["dataset=mnist", "data_dir=."], "mnist is not in"),
        (["code.name=zz"], "no code is named"),
        (["code.name=g"], "16 columns, but the run has 12 users"),
        (["split.kind=groups"], "digits has no groups"),
    ],
)
def test_a_run_that_cannot_start_makes_no_folder(tmp_path, overrides, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        run(tmp_path / "folder", *overrides)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("kind", ["blended", "split", "label-flip", "clean-label"])
def test_every_kind_of_attack_runs(done, tmp_path, kind):
    (record,) = run(
        tmp_path, f"attack.kind={kind}", "attack.attackers=[2]", "training.epochs=1", "attack.position=per-image"
    )
    assert record["figures"]["groups"][0]["triggered"]["all"]["plurality"]["of"] == 270


def test_several_groups_at_once_have_figures_and_vote_files_of_their_own(tmp_path):
    (record,) = run(tmp_path, "attack.attackers=[2]", "attack.groups=3", "training.epochs=1")
    groups = record["figures"]["groups"]
    assert len({user for group in groups for user in group["attackers"]}) == 6
    for number, group in enumerate(groups):
        triggered = votes(tmp_path, 2, f"triggered{number}")
        of = group["triggered"]["other_labels"]["plurality"]["of"]
        assert of == (triggered.labels != group["target"]).sum()


def test_real_users_come_from_the_groups_of_an_npz(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 4
    images = (labels[:, None, None] * 60 + rng.integers(0, 20, (240, 8, 8))).astype(np.uint8)
    groups = np.array([f"user{i:02}" for i in rng.integers(0, 12, 240)])
    np.savez(tmp_path / "digits.npz", images=images, labels=labels, groups=groups)
    options = [f"dataset={tmp_path / 'digits.npz'}", "split.kind=groups", "training.architecture=digits-cnn"]
    (record,) = run(tmp_path / "run", *options, "attack.attackers=[1]", "training.epochs=1", "training.recipe=paper")
    assert record["config"]["attack"]["fraction"] == 0.05  # a file of that name is not the data set of that name
    assert record["training"]["n_classes"] == 4
    assert record["training"]["learning_rate"] == 1e-3
    with pytest.raises(InputError, match="12 groups, but the run has 11 users"):
        run(tmp_path / "other", *options, "users=11")


def test_repeats_differ_in_split_and_attackers(done, tmp_path):
    records = run(tmp_path, "repeats=2", "training.epochs=1", "attack.attackers=[1]")
    assert [(record["repeat"], record["n_attackers"]) for record in records] == [(0, 1), (1, 1)]
    first, second = (votes(tmp_path, 1, "clean", repeat) for repeat in (0, 1))
    assert not np.array_equal(first.labels, second.labels)
    assert (tmp_path / "records" / "repeat1-attackers1.json").exists()


def test_a_damaged_record_is_refused_by_name(tmp_path):
    for content in ("", "[1]", "{}", json.dumps({"format": "other"})):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(InputError, match=r"x\.json"):
            load_record(tmp_path / "x.json")


def test_a_rate_says_nothing_about_nothing():
    assert rate({"count": 3, "of": 4}) == 0.75
    assert np.isnan(rate({"count": 0, "of": 0}))
