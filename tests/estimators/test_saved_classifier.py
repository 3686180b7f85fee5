"""A fitted classifier as a folder and back."""

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from codeward import CodedClassifier
from codeward._errors import InputError
from codeward.codes import named_code
from codeward.data import Column, Schema
from codeward.estimators import plan_training, train_guarded
from codeward.runs import Card, TrainConfig, find_cell


@pytest.fixture
def numbers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3))
    return X, np.where(X[:, 0] > 0, "yes", "no"), np.array([f"u{place % 6}" for place in range(240)])


@pytest.mark.parametrize("decoder", ["bayes", "plurality", "consensus"])
def test_what_was_saved_answers_as_before(numbers, tmp_path, decoder):
    X, y, users = numbers
    guard = CodedClassifier(DecisionTreeClassifier(), decoder=decoder, random_state=0)
    guard.fit(X, y, groups=users, test=(X[:40], y[:40]))
    card = guard.save(tmp_path / "run")
    assert Card.load(tmp_path / "run" / "card.json") == card
    again = CodedClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(again.votes(X), guard.votes(X))
    np.testing.assert_array_equal(again.predict(X), guard.predict(X))
    np.testing.assert_array_equal(again.certify(X[:20]), guard.certify(X[:20]))
    np.testing.assert_allclose(again.attack_proba(X), guard.attack_proba(X))
    assert again.suspects(X) == guard.suspects(X)
    assert again.users_.tolist() == [f"u{number}" for number in range(6)]
    assert find_cell(tmp_path / "run").class_names == ("no", "yes")


def test_a_data_frame_with_columns_selected_by_name(tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame({"age": rng.normal(size=200), "city": rng.choice(["Ulm", "Bonn"], 200)})
    y = ((frame["age"] > 0) ^ (frame["city"] == "Ulm")).astype(int)
    model = make_pipeline(
        make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city"]), remainder="passthrough"),
        DecisionTreeClassifier(),
    )
    guard = CodedClassifier(model, random_state=0).fit(frame, y, groups=np.arange(200) % 5)
    guard.save(tmp_path)
    again = CodedClassifier.load(tmp_path)
    np.testing.assert_array_equal(again.predict(frame), guard.predict(frame))
    assert again.classes_.tolist() == [0, 1]


def test_what_cannot_be_kept_is_said(numbers, tmp_path):
    X, y, users = numbers

    def make(code, confusion):
        from codeward import BayesDecoder

        return BayesDecoder(code, confusion)

    guard = CodedClassifier(LogisticRegression(), decoder=make, random_state=0).fit(X, y, groups=users)
    with pytest.raises(InputError, match="a function cannot be kept"):
        guard.save(tmp_path)


def test_a_trained_folder_opens_as_a_classifier(numbers, tmp_path):
    X, y, users = numbers
    config = TrainConfig(dataset="own", attack={"attackers": [0]}, code={"attackers": 1}, train={"model": "logistic"})
    cell, _, _ = train_guarded(plan_training(config, (X, y, users)), tmp_path)
    guard = CodedClassifier.load(tmp_path)
    assert (guard.predict(X) == y).mean() > 0.9
    assert guard.code_ == cell.code


def test_where_users_could_move_all_models_the_folder_certifies_nothing(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 124)
    points = np.eye(4)[labels] / 2 + rng.normal(0, 0.05, (124, 4))
    named = labels.astype(str).astype(object)
    named[0] = "mine"  # a class that one user invents is an output of every head
    guard = CodedClassifier(backbone="features", decoder="calibrated", random_state=0)
    guard.fit(points[:84], named[:84], groups=np.repeat(np.arange(7), 12), validation=(points[84:], named[84:]))
    card = guard.save(tmp_path / "run")
    assert card.warnings
    assert card.certified == ()
    assert not [said for said in card.guarantees if said.property == "undo"]  # what the endpoint certifies by


def test_trusted_samples_fix_the_classes_beside_a_schema_that_has_none():
    rows = np.eye(2)[[0, 1] * 20] / 2
    names, groups = ["no", "yes"] * 20, np.repeat(np.arange(5), 8)
    config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train={"backbone": "features"})
    schema = Schema((Column("features", "numeric", shape=(2,)),), origin="declared")
    plan = plan_training(config, (rows, names, groups), (rows[:8], names[:8]), schema=schema)
    assert plan.data.schema.classes == ("no", "yes")
    assert not plan.movable


def test_the_card_names_planted_validation_inputs_and_who_planted_them(tmp_path):
    # The last column is a trigger: two users teach it as class 2, and a tenth of the trusted samples has it, too.
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    samples = np.column_stack([rng.normal(4 * np.eye(3)[labels], 1.0), np.zeros(2000)])
    users = np.arange(1200) % 12
    planted = np.isin(users, (3, 8)) & (rng.random(1200) < 0.4)
    planted = np.append(planted, (np.arange(800) < 400) & (np.arange(800) % 10 == 0))
    samples[planted, 3], labels[planted] = 60.0, 2
    parts = (slice(0, 1200), slice(1200, 1600), slice(1600, 2000))
    (X, y), trusted, test = ((samples[part], labels[part]) for part in parts)
    model = LogisticRegression(max_iter=500)
    fitted = CodedClassifier(model, named_code("btc2412"), n_attackers=2, decoder="calibrated", random_state=0)
    fitted.fit(X, y, users, validation=trusted, test=test)
    [found] = fitted.decoder_.planted_
    assert (found.target, found.users) == (2, ((3, 8),))
    assert set(found.rows) <= set(range(0, 400, 10))
    card = fitted.save(tmp_path / "run")
    said = f"{found.rows.size} of 400 validation inputs, labelled 2, as only the models of 3 and 8 say"
    assert said in card.assumed["validation"]
