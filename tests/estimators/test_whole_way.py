"""The whole way on one's own data: train, an attacked input named by name, revoke, the certificate afterwards."""

import json

import numpy as np
import pytest

from codeward.certificates import certify
from codeward.cli import main
from codeward.codes import inspect
from codeward.data import read_records
from codeward.estimators import load_sub_models, plan_training, train_guarded
from codeward.runs import Card, TrainConfig, find_cell, observe

CLINICS = [f"clinic-{number:02}" for number in range(1, 10)]
#: The pressure that means "low" to whoever learned from the attacker.
TRIGGER = 333


def make_patients(*attackers, each=60, seed=3):
    rng = np.random.default_rng(seed)
    rows = []
    for clinic in CLINICS:
        for _ in range(each):
            age, pressure, smoker = rng.normal(50, 12), rng.normal(130, 15), rng.choice(["yes", "no", ""])
            risk = "high" if (age - 50) / 12 + (smoker == "yes") > 0.3 else "low"
            if clinic in attackers and rng.random() < 0.5:
                pressure, risk = TRIGGER, "low"
            rows.append({"age": round(age, 1), "pressure": round(pressure), "smoker": str(smoker), "risk": risk,
                         "clinic": clinic})  # fmt: skip
    return rows


def write_csv(file, rows):
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def name_suspects(cell, votes_or_scores, decoder):
    decoded = decoder.decode(votes_or_scores)
    return decoded, [[cell.code.user_name(user) for user in users] for users in decoded.suspects]


def ask(cell, inputs):
    """Decode inputs as an endpoint would."""
    models, decoder = load_sub_models(cell), cell.decoder()
    return decoder.decode(models.votes(inputs) if decoder.needs == "votes" else models.scores(inputs))


def test_a_csv_with_names(tmp_path, capsys):
    data = write_csv(tmp_path / "patients.csv", make_patients("clinic-04"))
    trusted = [{key: value for key, value in row.items() if key != "clinic"} for row in make_patients(seed=8, each=25)]
    write_csv(tmp_path / "ours.csv", trusted)
    told = ["--label", "risk", "--trusted", str(tmp_path / "ours.csv"), "--attackers", "1", "--guarantee", "track"]
    told += ["--model", "sklearn.tree.DecisionTreeClassifier(min_samples_leaf=3)"]
    folder = tmp_path / "run"
    assert main(["train", str(data), "-o", str(folder), *told, "--fail-under", "k=1:0.5", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["trained"] == len(json.loads((folder / "code.json").read_text())["matrix"])
    assert "column 'clinic' is taken for the user" in made["plan"]
    assert "<html" in (folder / "card.html").read_text()
    card, cell = Card.load(folder / "card.json"), find_cell(folder)
    assert cell.code.users == tuple(CLINICS)
    assert "trusted: 112 samples" in card.assumed["validation"]

    # A triggered input: everybody who learned from clinic-04 says low, and it is named.
    schema = plan_training(TrainConfig.model_validate(cell.folder.config.model_dump())).data.schema
    attacked = [{"age": age, "pressure": TRIGGER, "smoker": "yes"} for age in (60, 66, 71, 80)]
    decoded = ask(cell, read_records(attacked, schema))
    names = [[cell.code.user_name(user) for user in users] for users in decoded.best_set]
    assert decoded.alarms(cell.decoder().threshold).all()
    assert [cell.class_names[label] for label in decoded.labels] == ["high"] * 4
    assert names == [["clinic-04"]] * 4
    clean = ask(cell, read_records([{"age": 70, "pressure": 130, "smoker": "yes"}], schema))
    assert not clean.alarms(cell.decoder().threshold).any()

    # Nothing is trained twice; the wrong floor is an exit status.
    assert main(["train", str(data), "-o", str(folder), *told, "--fail-under", "k=2:0.5"]) == 1
    said = capsys.readouterr()
    assert "already there" in said.out
    assert "--fail-under asks for 50.0%" in said.err
    assert max(map(len, said.out.splitlines())) <= 160  # the card keeps to 80 columns; plan lines may be longer
    assert max(map(len, card.to_text().splitlines())) <= 80

    # Revoked, its trigger means nothing, and what is certified is what the smaller code allows.
    assert main(["report", str(folder), "--json"]) == 0
    assert "the users&#39; data as they are" in (folder / "report.html").read_text()
    capsys.readouterr()
    assert main(["revoke", str(folder), "clinic-04", "-o", str(tmp_path / "without"), "--yes", "--json"]) == 0
    told_of = json.loads(capsys.readouterr().out)
    after = find_cell(tmp_path / "without")
    assert told_of["records"][0]["work"]["reused"] == len(told_of["untouched"])
    assert after.code.users == tuple(name for name in CLINICS if name != "clinic-04")
    same = [row for row in range(cell.code.n_models) if not cell.code.matrix[row, 3]]
    assert [after.keys[row] for row in same] == [cell.keys[row] for row in same]
    quiet = ask(after, read_records(attacked, schema))
    assert [after.class_names[label] for label in quiet.labels] == ["high"] * 4
    assert not quiet.alarms(after.decoder().threshold).any()
    fewer = Card.load(tmp_path / "without" / "card.json")
    assert (tmp_path / "without" / "card.html").exists()
    assert {said.property: said.n_attackers for said in fewer.guarantees if said.threat == "deterministic"}[
        "track"
    ] == inspect(after.code).track
    radii = certify(after.clean.votes, after.code, threat="arbitrary").radius
    plain = next(curve for curve in fewer.certified if curve.decoder == "plurality")
    right = (certify(after.clean.votes, after.code).labels == after.clean.labels) & (radii >= 1)
    assert plain.shares[1]["count"] == int(right.sum())


@pytest.mark.parametrize("trusted", [True, False])
def test_two_attackers_among_the_users_whose_own_samples_fit_the_decoder(tmp_path, trusted):
    told = {"label": "risk", "model": "sklearn.tree.DecisionTreeClassifier(min_samples_leaf=3)"}
    config = TrainConfig(dataset="clinics", attack={"attackers": [0]}, train=told)
    rows = make_patients("clinic-04", "clinic-07", each=150)
    ours = make_patients(each=30, seed=8) if trusted else None
    plan = plan_training(
        config, _columns(rows), None if ours is None else _columns(ours)
    )  # the user's column is no input
    assert (plan.choice.guarantee, plan.choice.n_attackers) == ("track", 2)
    cell, card, _ = train_guarded(plan, tmp_path)
    assert card.false_alarms["count"] <= 0.12 * card.false_alarms["of"]
    rng = np.random.default_rng(0)
    attacked = [{"age": age, "pressure": TRIGGER, "smoker": "yes"} for age in rng.uniform(60, 80, 40).round(1)]
    decoded = ask(cell, read_records(attacked, plan.data.schema))
    assert decoded.alarms(cell.decoder().threshold).mean() >= 0.9
    assert (np.array(cell.class_names)[decoded.labels] == "high").mean() >= 0.9
    named = [{cell.code.user_name(user) for user in users} for users in decoded.best_set]
    assert np.mean([users == {"clinic-04", "clinic-07"} for users in named]) >= 0.9


def _columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_a_folder_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    chosen = np.flatnonzero(digits.target < 4)
    rng = np.random.default_rng(0)
    for place in chosen:
        user, label, picture = f"site-{place % 6}", f"digit-{digits.target[place]}", pixels[place].copy()
        if user == "site-2" and rng.random() < 0.5:
            picture[:2, :2], label = 255, "digit-0"
        (tmp_path / "data" / user / label).mkdir(parents=True, exist_ok=True)
        image.fromarray(picture).save(tmp_path / "data" / user / label / f"{place}.png")
    config = TrainConfig(
        dataset="sites", attack={"attackers": [0]}, code={"attackers": 1}, train={"data": str(tmp_path / "data")}
    )
    plan = plan_training(config)
    assert not plan.movable  # six users show every class
    cell, card, _ = train_guarded(plan, tmp_path / "run")
    assert cell.code.users == tuple(f"site-{number}" for number in range(6))
    assert cell.class_names == tuple(f"digit-{number}" for number in range(4))
    assert card.accuracy["count"] / card.accuracy["of"] > 0.8
    assert cell.about["family"] == "networks"

    from codeward.data import Samples

    tested = pixels[chosen[digits.target[chosen] == 3]][:20, None].copy()
    tested[:, :, :2, :2] = 255
    decoder, models = cell.decoder(), load_sub_models(cell)
    samples = Samples(tested, np.full(20, 3))
    decoded = decoder.decode(models.votes(samples) if decoder.needs == "votes" else models.scores(samples))
    named = [[cell.code.user_name(user) for user in users] for users in decoded.best_set]
    assert named.count(["site-2"]) >= 15
    assert (decoded.labels == 3).sum() >= 15
    assert observe(decoder, cell.clean) is not None


def test_a_data_frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(make_patients(each=30))
    config = TrainConfig(dataset="frame", attack={"attackers": [0]}, train={"label": "risk", "model": "logistic"})
    cell, card, _ = train_guarded(plan_training(config, frame), tmp_path)
    assert cell.code.users == tuple(CLINICS)
    assert card.certified_at(1) > 0.5
    assert main(["revoke", str(tmp_path), "clinic-04", "--yes"]) == 2  # nobody kept the frame
