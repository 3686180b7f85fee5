"""From one's own table to a folder: isolation to the byte, names kept, what is promised and what is not."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from codeward._errors import InputError, UnmetError
from codeward.data import Column, Schema
from codeward.estimators import choose_code, choose_model, load_sub_models, plan_training, train_guarded
from codeward.estimators._family import train_family
from codeward.experiments import revoke_users
from codeward.runs import Card, Cell, RunFolder, TrainConfig, foresee_revocation
from codeward.training import ModelStore, plan_models

CLINICS = [f"clinic-{number:02}" for number in range(1, 8)]


def make_rows(rng, users=CLINICS, each=40):
    columns = {"age": [], "smoker": [], "risk": [], "clinic": []}
    for user in users:
        age, smoker = rng.normal(size=each), rng.choice(["yes", "no", None], each)
        columns["age"] += [None if rng.random() < 0.05 else float(value) for value in age]
        columns["smoker"] += smoker.tolist()
        columns["risk"] += np.where(age + (smoker == "yes") > 0.5, "high", "low").tolist()
        columns["clinic"] += [user] * each
    return columns


@pytest.fixture(scope="module")
def rows():
    return make_rows(np.random.default_rng(5))


def make_config(**changes):
    told = {"model": "logistic", "label": "risk", "user": "clinic"} | changes.pop("train", {})
    return TrainConfig(dataset="clinics", attack={"attackers": [0]}, train=told, **changes)


@pytest.fixture(scope="module")
def trained(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinics")
    plan = plan_training(make_config(), rows)
    return plan, *train_guarded(plan, folder)


def list_models(folder):
    """Return the users of every kept model and its bytes."""
    cell = Cell(RunFolder(folder), 0, 0)
    store = ModelStore(cell.store)
    return {
        tuple(np.flatnonzero(row)): store.load_bytes(key) for row, key in zip(cell.code.matrix, cell.keys, strict=True)
    }


def test_a_folder_has_names_models_and_a_card(trained):
    plan, cell, card, made = trained
    assert made
    assert cell.code.users == tuple(CLINICS)
    assert cell.class_names == ("high", "low")
    assert card == Card.load(cell.folder.card_file)
    assert card.accuracy["count"] / card.accuracy["of"] > 0.8
    assert card.certified_at(1) > 0.5
    assert "users' own" in card.assumed["validation"]
    assert "linear models extrapolate" in card.assumed["values"]
    assert not any(said.property == "undo" for said in card.guarantees)
    models = load_sub_models(cell)
    said, owners = models.votes(plan.roles.clean.inputs), plan.roles.clean.owners
    assert len(cell.clean.votes) < len(said)  # the two users whom others contradict most are left out
    left = [users for users in itertools.combinations(range(7), 2)
            if np.array_equal(said[~np.isin(owners, users)], cell.clean.votes)]  # fmt: skip
    assert left
    assert models.scores(plan.roles.clean.inputs).shape == (*said.shape, 2)


def test_a_class_that_one_user_holds_is_left_out_of_the_certificate_and_named(tmp_path):
    rng, users = np.random.default_rng(4), [f"clinic {number}" for number in range(12)]
    owner = np.repeat(users, 300)
    label = rng.integers(0, 2, owner.size)
    label[(owner == "clinic 5") & (rng.random(owner.size) < 0.5)] = 2  # a disease that one clinic alone has seen
    values = label * 3 + rng.normal(size=owner.size)
    data = tmp_path / "own.csv"
    lines = [f"{one:.3f},d{what},{who}" for one, what, who in zip(values, label, owner, strict=True)]
    data.write_text("\n".join(["value,disease,clinic", *lines]))
    config = make_config(code={"attackers": 1}, train={"data": str(data), "label": "disease"})
    cell, card, _ = train_guarded(plan_training(config), tmp_path / "run")
    counts, place = np.array(cell.about["class_counts"]), cell.code.users.index("clinic 5")
    assert counts.shape == (12, 3)
    assert np.flatnonzero(counts[:, 2]).tolist() == [place]
    assert cell.assumptions.class_counts == tuple(map(tuple, counts.tolist()))
    uncovered = dict(cell.decoder().nearest_.list_uncovered())
    assert uncovered[place,] == (2,)
    assert set(uncovered.values()) == {(2,)}  # users of nearly the same models are left out with it
    assert "clinic 5 with target d2" in card.assumed["left out"]
    assert "at most one model without them has seen it" in card.assumed["left out"]
    curves = {curve.decoder: curve for curve in card.certified}
    assert curves["calibrated"].at(1) == 0
    assert curves["calibrated, not all attacks"].at(1) > 0.7
    assert card.certified_at(1) == curves["plurality"].at(1)  # what is said without a condition counts
    list(revoke_users(tmp_path / "run", foresee_revocation(tmp_path / "run", ["clinic 5"]), tmp_path / "without"))
    left = Cell(RunFolder(tmp_path / "without"), 0, 0)
    assert left.about["class_counts"] == np.delete(counts, place, axis=0).tolist()


def test_a_second_call_makes_nothing(trained, rows):
    _plan, cell, card, _ = trained
    again, same, made = train_guarded(plan_training(make_config(), rows), cell.folder.path)
    assert not made
    assert same == card
    assert again.keys == cell.keys


def test_lost_models_come_back_as_they_were(trained, rows, tmp_path):
    first = list_models(trained[1].folder.path)
    cell, _, _ = train_guarded(plan_training(make_config(), rows), tmp_path)
    assert cell.keys == trained[1].keys
    assert list_models(tmp_path) == first


def test_a_folder_whose_page_could_not_be_written_is_not_whole(trained, rows, tmp_path, monkeypatch):
    def fill(*_):
        raise OSError(28, "No space left on device")

    shutil.copytree(trained[1].folder.path, tmp_path / "run")
    for name in ("card.json", "card.html"):
        (tmp_path / "run" / name).unlink()
    plan = plan_training(make_config(), rows)
    with monkeypatch.context() as full:
        full.setattr("codeward.estimators._guarded_training.write_page", fill)
        with pytest.raises(OSError, match="No space"):
            train_guarded(plan, tmp_path / "run")
    assert train_guarded(plan, tmp_path / "run")[2]
    assert (tmp_path / "run" / "card.html").is_file()


def test_a_place_that_is_a_file_is_refused(rows, tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InputError, match="a file, not a folder"):
        train_guarded(plan_training(make_config(), rows), tmp_path / "run")


STRANGE = [
    lambda column, values: values,
    lambda column, values: ["poison"] * len(values) if column != "clinic" else values,  # words for numbers, a new class
    lambda column, values: [f"{column} {place}" for place in range(len(values))] if column == "smoker" else values,
    lambda column, values: ["1e300" if column == "age" else value for value in values],
    lambda column, values: [None if column in ("age", "smoker") else value for value in values],
]


@pytest.mark.parametrize("strange", STRANGE[1:])
def test_models_of_other_rows_keep_their_bytes_whatever_a_user_hands_in(rows, trained, tmp_path, strange):
    mine = np.array(rows["clinic"]) == CLINICS[3]
    attacked = {}
    for name, values in rows.items():
        own = strange(name, [value for value, own in zip(values, mine, strict=True) if own])
        given = iter(own)
        attacked[name] = [next(given) if own else value for value, own in zip(values, mine, strict=True)]
    # Also another amount and another order.
    attacked = {name: values[::-1] + values[-3:] for name, values in attacked.items()}
    attacked["clinic"][-3:] = [CLINICS[3]] * 3
    plan = plan_training(make_config(), attacked)
    train_guarded(plan, tmp_path)
    assert plan.choice.code == trained[0].choice.code
    before, after = list_models(trained[1].folder.path), list_models(tmp_path)
    untouched = [users for users in before if 3 not in users]
    assert len(untouched) >= 3
    for users in before:
        assert (before[users] == after[users]) == (3 not in users)


def test_trusted_samples_fix_columns_classes_and_the_decoder(rows):
    rng = np.random.default_rng(6)
    trusted = {name: values for name, values in make_rows(rng, ["nobody"], 120).items() if name != "clinic"}
    plan = plan_training(make_config(), rows, trusted)
    assert plan.roles.trusted
    assert plan.data.schema.origin == "trusted"
    assert plan.data.schema.classes == ("high", "low")
    assert "measured on trusted samples" in " ".join(plan.choice.reasons)
    assert sum(own.size for own in plan.roles.training) == len(plan.data)  # nothing of theirs is held out
    invented = {**rows, "risk": ["other", *rows["risk"][1:]]}
    with pytest.raises(InputError, match=r"column 'risk'.*'other' is not declared"):
        plan_training(make_config(), invented, trusted)


def test_what_few_users_could_move_is_said_and_nothing_is_certified(rows, tmp_path):
    torn = dict(rows)
    four = np.isin(rows["clinic"], CLINICS[:3])
    torn["age"] = ["old" if mine else value for value, mine in zip(rows["age"], four, strict=True)]
    plan = plan_training(make_config(), torn)  # four voices against three
    assert plan.data.firm == 0
    _, card, _ = train_guarded(plan, tmp_path)
    assert card.warnings
    assert card.certified == ()
    declared = Schema((Column("age", "numeric"), Column("smoker", "categorical")), "risk", "clinic", ("high", "low"))
    assert not plan_training(make_config(), torn, schema=declared).movable


def test_the_plan_says_what_it_does(rows):
    lines = plan_training(make_config(), rows).describe()
    assert "280 samples, 2 classes, 7 users: 40 to 40 samples each, median 40" in lines
    assert any("name 2 of 7 users" in line for line in lines)
    assert any(re.fullmatch(r"training takes about \d+ (s|min) here", line) for line in lines)
    assert any("linear models extrapolate" in line for line in lines)
    giant = {name: values + values[:1] * 400 for name, values in rows.items()}
    assert any("clinic-01 has 64.7% of all samples" in line for line in plan_training(make_config(), giant).describe())


def test_the_plan_says_how_columns_are_read_and_leaves_out_what_is_named(rows):
    size = len(rows["risk"])
    days = [f"2024-{1 + place % 12:02}-{1 + place // 12:02}" for place in range(size)]
    rows = rows | {"number": list(range(size)), "seen": days, "note": [f"well, case no. {day}" for day in days]}
    lines = plan_training(make_config(), rows).describe()
    assert any(line.startswith("columns: numbers age") and "number" in line for line in lines)
    assert any(line.startswith("column seen") and line.endswith("--ignore seen") for line in lines)
    assert any(line.startswith("column note") and "--text note reads its words" in line for line in lines)
    plan = plan_training(make_config(train={"ignore": ["number", "seen"], "model": "logistic", "text": "note"}), rows)
    assert not {"number", "seen"} & set(plan.data.schema.names)
    assert not any("different values" in line for line in plan.describe())
    assert plan.config.digest != plan_training(make_config(), rows).config.digest
    with pytest.raises(InputError, match=r"no column is named 'sean' \(did you mean 'seen'\?\)"):
        plan_training(make_config(train={"ignore": ["sean"]}), rows)


def test_too_few_samples_to_leave_users_out_are_refused_before_training(rows):
    few = [place for user in dict.fromkeys(rows["clinic"]) for place in _find(rows["clinic"], user)[:2]]
    with pytest.raises(InputError, match=r"too few samples: [34] users have one that is held out, and 4 users may be"):
        plan_training(
            make_config(code={"attackers": 4}), {name: [values[i] for i in few] for name, values in rows.items()}
        )


def test_one_sample_a_user_needs_trusted_samples_and_it_says_so(rows):
    size = len(rows["clinic"])
    single = rows | {"clinic": [f"user-{place}" for place in range(size)]}
    few = {name: values[:12] for name, values in single.items()}
    with pytest.raises(InputError, match=r"no user has two samples.*give --trusted FILE.*more samples a user"):
        plan_training(make_config(), few)
    ours = {name: values[12:] for name, values in single.items() if name != "clinic"}
    assert plan_training(make_config(), few, trusted=ours).roles.trusted  # the advice is one


def _find(values, wanted):
    return [place for place, value in enumerate(values) if value == wanted]


def test_without_users_samples_are_hashed_and_it_says_so(rows, tmp_path):
    samples = {name: values for name, values in rows.items() if name != "clinic"}
    plan = plan_training(make_config(train={"user": "none", "parts": 5}), samples)
    assert any("against k poisoned samples" in line for line in plan.describe())
    cell, card, _ = train_guarded(plan, tmp_path)
    assert cell.code.users == tuple(f"part-{number}" for number in range(5))
    assert card.certified_at(1) > 0.5


def test_codes_follow_what_is_asked_for():
    names = tuple("abcdefghi")
    assert (choose_code(names).guarantee, choose_code(names).n_attackers) == ("track", 2)
    assert choose_code(names, 1, "detect").guarantee == "detect"
    assert choose_code(("a", "b", "c")).n_attackers == 1
    with pytest.raises(InputError, match="at least two are needed"):
        choose_code(("a",))
    with pytest.raises(InputError, match="expected 1 to 2 of 3 users"):
        choose_code(("a", "b", "c"), 3)
    with pytest.raises(UnmetError, match=r"no code was found for 3 users .* ask for less"):
        choose_code(("a", "b", "c"), 2, "correct-arbitrary")


def test_a_code_for_a_hundred_users_is_not_tried_out_for_minutes(monkeypatch):
    monkeypatch.setattr("codeward.estimators._code_choice.certify_agreement", None)
    names = tuple(f"u{number}" for number in range(100))
    assert choose_code(names, 2, "correct", 3, time_limit=0.5).code.n_users == 100


def test_weights_are_declared_not_counted(rows, tmp_path):
    file = tmp_path / "weights.csv"
    file.write_text("user,weight\n" + "".join(f"{name},{place + 1}\n" for place, name in enumerate(CLINICS)))
    plan = plan_training(make_config(train={"weights": str(file)}), rows)
    assert plan.choice.code.users == tuple(CLINICS)
    file.write_text("user,weight\nclinic-01,3\n")
    with pytest.raises(InputError, match="no weight for user 'clinic-02'"):
        plan_training(make_config(train={"weights": str(file)}), rows)


TABLE = Schema((Column("age", "numeric"), Column("city", "categorical")))


class Own:
    """A classifier of somebody's own."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.repeat(self.classes_[:1], len(X))

    def get_params(self, deep=True):
        return {}

    def set_params(self, **_):
        return self


def test_a_model_that_cannot_be_kept_is_refused_by_name_before_training():
    with pytest.raises(InputError, match=r"Own cannot be kept safely"):
        choose_model(Own(), TABLE, 2)


@pytest.mark.parametrize(
    "name",
    ["sklearn.ensemble.RandomForestClassifier(n_estimators=3)", "sklearn.tree.DecisionTreeClassifier", "boosting"],
)
def test_models_by_import_path_are_kept(name):
    assert choose_model(name, TABLE, 2).family == "tables"


@pytest.mark.parametrize(
    ("name", "told"),
    [("nothing", "choose boosting"), ("no.such.Thing", "cannot be imported"), ("sklearn.svm.NoSVC", "has no NoSVC"),
     ("sklearn.svm.SVC(1)", "expected package.Class"), ("json:loads", "loads"), ("text", "no column is text"),
     ("sklearn.svm.SVC(CC=1)", "CC"), ("sklearn.svm.SVR", "SVR is a regressor; choose a classifier")],
)  # fmt: skip
def test_a_model_that_is_none_is_told(name, told):
    with pytest.raises(InputError, match=told):
        choose_model(name, TABLE, 2)


def test_many_categories_of_one_user_stop_nobodys_training(rows):
    # One-hot columns become sparse, which this model cannot read; that of other users must be trained all the same.
    cities = [f"city {place}" if user == CLINICS[0] else "Ulm" for place, user in enumerate(rows["clinic"])]
    config = make_config(train={"model": "sklearn.ensemble.HistGradientBoostingClassifier(max_iter=2)"})
    plan = plan_training(config, rows | {"city": cities})
    models = train_family(plan, plan_models(plan.choice.code, 0), None)
    assert not [model for model in models.models if type(model).__name__ == "DummyClassifier"]


def test_what_a_model_raises_on_some_users_data_stops_nobody_else(rows, monkeypatch):
    plan = plan_training(make_config(), rows)
    fit, calls = LogisticRegression.fit, itertools.count()

    def raise_once(self, *given):
        if next(calls) == 0:
            raise TypeError("not such data")
        return fit(self, *given)

    monkeypatch.setattr(LogisticRegression, "fit", raise_once)
    models = train_family(plan, plan_models(plan.choice.code, 0), None)
    assert [type(model).__name__ == "DummyClassifier" for model in models.models] == [
        number == 0 for number in range(models.n_models)
    ]


def test_a_file_in_the_working_folder_makes_a_model(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        "from sklearn.naive_bayes import GaussianNB\ndef small():\n    return GaussianNB()\n"
    )
    monkeypatch.chdir(tmp_path)
    features = Schema((Column("features", "numeric", shape=(3,)),))
    assert choose_model("own_models.py:small", features, 2).family == "tables"
    assert choose_model("own_models:small", features, 2).name == "own_models:small"


def test_texts_are_read_by_hashed_words(tmp_path):
    rng = np.random.default_rng(0)
    words = {"spam": ["win", "cash", "prize", "now"], "ham": ["see", "you", "at", "noon"]}
    labels = rng.choice(list(words), 150)
    data = {
        "mail": [" ".join(rng.permutation([*words[label], "the", "a"])) for label in labels],
        "label": labels.tolist(),
        "user": [f"u{place % 6}" for place in range(150)],
    }
    config = TrainConfig(dataset="mails", attack={"attackers": [0]})
    plan = plan_training(config, data)
    assert (plan.data.schema.kind, plan.model.name) == ("text", "text")
    _, card, _ = train_guarded(plan, tmp_path)
    assert card.accuracy["count"] == card.accuracy["of"]
    assert json.loads((tmp_path / "card.json").read_text())["facts"]["model"] == "text"
