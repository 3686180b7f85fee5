"""`CodedClassifier` and ``codeward train`` are one engine: same models, same votes, same folder, either way round."""

import json

import numpy as np
import pytest
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from codeward import Code, CodedClassifier, InputError, PluralityDecoder
from codeward.cli import main
from codeward.decoding import NearestDecoder
from codeward.estimators import plan_training, train_guarded
from codeward.runs import Cell, RunFolder, TrainConfig, find_cell
from codeward.training import ModelStore

CLINICS = [f"clinic-{number}" for number in range(1, 8)]
CODE = {"attackers": 1, "guarantee": "track", "margin": 3, "utilization": 0.4}


@pytest.fixture(scope="module")
def frame():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(2)
    age, smoker = rng.normal(size=280), rng.choice(["yes", "no", None], 280)
    age[::19] = np.nan
    risk = np.where(np.nan_to_num(age) + (smoker == "yes") > 0.4, "high", "low")
    return pandas.DataFrame({"age": age, "smoker": smoker}), risk, np.array(CLINICS)[np.arange(280) % 7]


def read_store(folder):
    cell = Cell(RunFolder(folder), 0, 0)
    return dict(zip(cell.keys, map(ModelStore(cell.store).load_bytes, cell.keys), strict=True))


def guard(**settings):
    told = {"n_attackers": 1, "guarantee": "track", "utilization": 0.4, "decoder": "calibrated", "random_state": 3}
    return CodedClassifier(**told | settings)


@pytest.mark.parametrize("model", ["logistic", "sklearn.tree.DecisionTreeClassifier(max_depth=4)"])
def test_fit_and_train_give_the_same_models_votes_and_card(frame, tmp_path, model):
    X, y, users = frame
    config = TrainConfig(
        dataset="own", seed=3, attack={"attackers": [0]}, code={**CODE, "time_limit": 2.0}, train={"model": model}
    )
    rows = {**{name: X[name].to_numpy() for name in X}, "y": y, "groups": users}
    cell, card, _ = train_guarded(plan_training(config, rows), tmp_path / "trained")
    fitted = guard(estimator=model).fit(X, y, groups=users)
    kept = fitted.save(tmp_path / "saved")
    assert read_store(tmp_path / "saved") == read_store(tmp_path / "trained")
    again = find_cell(tmp_path / "saved")
    for mine, theirs in ((again.clean, cell.clean), (again.validation, cell.validation)):
        np.testing.assert_array_equal(mine.votes, theirs.votes)
        np.testing.assert_array_equal(mine.scores, theirs.scores)
    assert kept.to_json()["certified"] == card.to_json()["certified"]
    assert (kept.accuracy, kept.assumed) == (card.accuracy, card.assumed)
    for folder in ("trained", "saved"):
        opened = CodedClassifier.load(tmp_path / folder)
        np.testing.assert_array_equal(opened.votes(X), fitted.votes(X))
        assert (opened.predict(X) == fitted.predict(X)).mean() > 0.95  # the folder's decoder knows half the samples
    files = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {path.name for path in (tmp_path / "trained").iterdir()} == files - {"data"}


def revoke(folder, *users):
    out = f"{folder}-without"
    assert main(["revoke", str(folder), *users, "-o", out, "--yes", "--quiet", "--json"]) == 0
    return out


def check_revoked(folder, out, user, X):
    """What never saw the user stays byte for byte, and the classifier opens without it."""
    before, after = read_store(folder), read_store(out)
    code = find_cell(folder).code
    column = code.matrix[:, code.users.index(user)]
    assert sum(key in after for key in before) >= (~column).sum() > 0
    assert all(after[key] == before[key] for key in set(before) & set(after))
    opened = CodedClassifier.load(out)
    assert user not in opened.users_.tolist()
    assert len(opened.predict(X)) == len(X)
    return opened


@pytest.mark.parametrize("estimator", [None, DecisionTreeClassifier(max_depth=4)])
def test_a_saved_classifier_forgets_a_user_by_name(frame, tmp_path, estimator, capsys):
    X, y, users = frame
    fitted = guard(estimator=estimator if estimator is not None else "logistic").fit(X, y, groups=users)
    fitted.save(tmp_path / "run")
    opened = check_revoked(tmp_path / "run", revoke(tmp_path / "run", "clinic-3"), "clinic-3", X)
    # It is the classifier that never had the user, of the code that is left.
    left = users != "clinic-3"
    told = {"estimator": fitted.estimator, "code": opened.code_}
    fresh = guard(**told).fit(X[left], y[left], groups=users[left])
    untouched = [row for row, others in enumerate(fitted.code_.matrix[:, 2]) if not others]
    assert untouched
    np.testing.assert_array_equal(opened.users_, fresh.users_)
    capsys.readouterr()


def test_a_folder_that_was_moved_is_revoked_all_the_same(frame, tmp_path, capsys):
    X, y, users = frame
    guard(estimator="logistic").fit(X, y, groups=users).save(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    out = revoke(tmp_path / "elsewhere", "clinic-1")
    again = revoke(out, "clinic-2")  # and once more
    assert CodedClassifier.load(again).users_.tolist() == CLINICS[2:]
    capsys.readouterr()


def test_without_the_data_nothing_is_revoked_and_it_says_so(frame, tmp_path, capsys):
    X, y, users = frame
    guard(estimator="logistic").fit(X, y, groups=users).save(tmp_path / "run", data=False)
    assert not (tmp_path / "run" / "data").exists()
    assert main(["revoke", str(tmp_path / "run"), "clinic-1", "--yes"]) == 2
    assert "came from memory and were not kept" in capsys.readouterr().err


def double(features):
    """A backbone: any function of inputs."""
    return np.concatenate([features, features**2], axis=1) / 10


@pytest.mark.parametrize("backbone", [double, "hashed-table"])
def test_a_backbone_takes_the_place_of_the_estimator(frame, tmp_path, backbone, capsys):
    X, y, users = frame
    inputs = np.nan_to_num(np.column_stack([X["age"], X["smoker"] == "yes"])) if callable(backbone) else X
    fitted = guard(backbone=backbone).fit(inputs, y, groups=users)
    assert (fitted.predict(inputs) == y).mean() > 0.75
    card = fitted.save(tmp_path / "run")
    assert fitted.estimators_.backbone.name in card.assumed["backbone"]
    np.testing.assert_array_equal(CodedClassifier.load(tmp_path / "run").votes(inputs), fitted.votes(inputs))
    check_revoked(tmp_path / "run", revoke(tmp_path / "run", "clinic-5"), "clinic-5", inputs)
    assert json.loads(capsys.readouterr().out)["revoked"] == ["clinic-5"]


def test_what_a_backbone_cannot_be_is_said(frame):
    X, y, users = frame
    with pytest.raises(InputError, match="exclude each other"):
        guard(estimator="logistic", backbone="hashed-table").fit(X, y, groups=users)
    with pytest.raises(InputError, match="found again by name"):
        guard(backbone=lambda rows: rows).fit(X, y, groups=users)
    with pytest.raises(InputError, match="choose strokes"):
        guard(backbone="nothing").fit(X, y, groups=users)


def test_a_pickle_has_the_models_and_no_data(frame):
    import pickle

    X, y, users = frame
    fitted = guard(estimator="logistic").fit(X, y, groups=users)
    content = pickle.dumps(fitted)
    assert b"clinic-1" in content
    assert len(content) < 200_000
    with pytest.raises(InputError, match="was loaded"):
        pickle.loads(content).save("nowhere")


def test_sparse_and_shared_samples_say_what_they_cannot(frame, tmp_path):
    X, y, users = frame
    shared = guard(estimator="logistic", validation_fraction=0.0).fit(X, y, groups=users)
    with pytest.raises(InputError, match=r"nothing is held out .* validation_fraction above 0"):
        shared.save(tmp_path)


@pytest.mark.parametrize("ensemble", [BaggingClassifier(n_estimators=3), ExtraTreesClassifier(n_estimators=3)])
def test_an_ensemble_that_has_no_length_before_it_is_fitted_is_a_model(frame, ensemble):
    X, y, users = frame
    fitted = guard(estimator=ensemble, decoder="plurality").fit(X[["age"]].fillna(0).to_numpy(), y, groups=users)
    assert type(fitted.estimators_[0]).__name__ == type(ensemble).__name__


class ByScores:
    """What a fitted decoder of class scores has: an answer of its own only where the votes determine none."""

    needs = "scores"

    def __init__(self, code, confusion):
        self.nearest_ = NearestDecoder(code, 2, 1, confusion.shape[1])

    def predict(self, scores):
        return np.maximum(self.nearest_.predict(scores.argmax(axis=2)), 0)


def test_what_is_certified_of_a_decoder_of_scores_is_its_answer():
    X = np.random.default_rng(0).normal(size=(450, 3))
    # Hardly fitted at all: the largest score, in half precision, need not be the vote.
    model = LogisticRegression(C=1e-6, fit_intercept=False)
    fitted = CodedClassifier(model, Code(np.eye(9, dtype=int)), 2, decoder=ByScores, random_state=0)
    found = fitted.fit(X, X[:, 0] > 0, groups=np.arange(450) % 9).certificates(X)
    said = PluralityDecoder(n_classes=2).predict(fitted.votes(X))
    held = found.radius > 0
    assert (said[held] != found.labels[held]).any()  # certifying what the models say would be about another answer
    np.testing.assert_array_equal(fitted.predict(X)[held], fitted.classes_[found.labels[held]])
    assert (found.threat, found.decoder) == ("deterministic", "NearestDecoder")
