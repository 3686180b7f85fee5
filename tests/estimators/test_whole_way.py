"""The whole way on one's own data: train, an attacked input named by name, revoke, the certificate afterwards."""

import io
import json

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from codeward.certificates import certify
from codeward.cli import main
from codeward.codes import inspect
from codeward.data import read_records
from codeward.estimators import CodedClassifier, load_sub_models, plan_training, train_guarded
from codeward.runs import Card, TrainConfig, find_cell

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


def go_on(folder, attacker, ask, truth, capsys, monkeypatch):
    """Go on from a trained folder: serve it, have an attack named by name, find it in the ledger, revoke, serve again.

    ``ask`` sends attacked inputs of class ``truth`` to an endpoint and returns its predictions.
    """
    testclient = pytest.importorskip("starlette.testclient")
    from codeward.serve import Ledger, ServeSettings, make_app, open_run

    ledger, without = folder.parent / "ledger.sqlite", folder.parent / "without"
    monkeypatch.setenv("COLUMNS", "80")

    def serve(place, book):
        return testclient.TestClient(make_app(open_run(place), Ledger(book), ServeSettings()), "http://127.0.0.1:8000")

    with serve(folder, ledger) as client:
        found = ask(client)
        alarms = [said for said in found if said["flagged"]]
        assert len(alarms) >= 0.8 * len(found)
        assert sum(said["label"] == truth for said in found) >= 0.8 * len(found)
        named = [[suspect["user"] for suspect in said["suspects"]] for said in alarms]
        assert sum(users == [attacker] for users in named) >= 0.8 * len(alarms)
    capsys.readouterr()
    assert main(["ledger", "list", "--ledger", str(ledger), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["incidents"]
    assert len(listed) == len(alarms)
    assert sum(incident["suspect_sets"][0] == [attacker] for incident in listed) >= 0.8 * len(alarms)
    assert main(["ledger", "list", "--ledger", str(ledger)]) == 0
    said = capsys.readouterr().out
    assert attacker in said
    assert max(map(len, said.splitlines())) <= 80

    assert main(["revoke", str(folder), attacker, "-o", str(without), "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    before, after = find_cell(folder), find_cell(without)
    assert told["records"][0]["work"]["reused"] == len(told["untouched"]) > 0
    assert set(before.code.users) - set(after.code.users) == {attacker}
    column = before.code.users.index(attacker)
    same = [row for row in range(before.code.n_models) if not before.code.matrix[row, column]]
    assert [after.keys[row] for row in same] == [before.keys[row] for row in same]
    with serve(without, folder.parent / "later.sqlite") as client:
        found = ask(client)
        assert sum(said["label"] == truth for said in found) >= 0.8 * len(found)
        assert sum(said["flagged"] for said in found) <= 0.1 * len(found)
        assert attacker not in client.get("/code").json()["user_names"]

    # Any k of the users left are k of those before, so what the code promises does not fall; certificates are those of
    # the votes without the user.
    cards = [Card.load(place / "card.json") for place in (folder, without)]
    assert withstood(cards[1], "deterministic", "track", 0) == inspect(after.code).track
    for said in cards[0].guarantees:
        left = withstood(cards[1], said.threat, said.property, said.n_errors)
        assert said.property == "undo" or left >= min(said.n_attackers, after.code.n_users)
    plain = next(curve for curve in cards[1].certified if curve.decoder == "plurality")
    radii = certify(after.clean.votes, after.code, threat="arbitrary")
    for k, share in enumerate(plain.shares):
        assert share["count"] == int(((radii.labels == after.clean.labels) & (radii.radius >= k)).sum())
    assert (without / "card.html").exists()
    return before, after


def withstood(card, threat, what, n_errors):
    """Return the most attackers that a card promises something against, beside so many wrong votes."""
    found = [(said.threat, said.property, said.n_errors >= n_errors, said.n_attackers) for said in card.guarantees]
    return max((k for *said, k in found if said == [threat, what, True]), default=0)


def send(client, records):
    """Send records by column names."""
    return client.post("/predict", json={"records": records}).json()["predictions"]


def ask(cell, inputs):
    """Decode inputs as an endpoint would."""
    models, decoder = load_sub_models(cell), cell.decoder()
    return decoder.decode(models.votes(inputs) if decoder.needs == "votes" else models.scores(inputs))


def test_a_csv_with_names(tmp_path, capsys, monkeypatch):
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
    assert "below the 50.0% of --fail-under" in said.err
    # The same figure from the folder is judged in the same words.
    assert main(["certify", str(folder), "--threat", "arbitrary", "--fail-under", "k=2:0.5"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == said.err.splitlines()[-1]
    # Places and models may be long words.
    assert all(len(line) <= 80 or max(map(len, line.split())) > 40 for line in said.out.splitlines())
    assert max(map(len, card.to_text().splitlines())) <= 80

    assert main(["report", str(folder), "--json"]) == 0
    assert "the users&#39; data as they are" in (folder / "report.html").read_text()
    go_on(folder, "clinic-04", lambda client: send(client, attacked), "high", capsys, monkeypatch)


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


def test_a_folder_of_images(tmp_path, capsys, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    chosen = np.flatnonzero(digits.target < 4)
    rng = np.random.default_rng(0)
    kept, rest = chosen[40:], chosen[:40]
    for place in kept:
        user, label, picture = f"site-{place % 6}", f"digit-{digits.target[place]}", pixels[place].copy()
        if user == "site-2" and rng.random() < 0.5:
            picture[:2, :2], label = 255, "digit-0"
        (tmp_path / "data" / user / label).mkdir(parents=True, exist_ok=True)
        image.fromarray(picture).save(tmp_path / "data" / user / label / f"{place}.png")
    folder = tmp_path / "run"
    assert main(["train", str(tmp_path / "data"), "-k", "1", "-o", str(folder), "--json"]) == 0
    cell, card = find_cell(folder), Card.load(folder / "card.json")
    assert not card.warnings  # six users show every class
    assert cell.code.users == tuple(f"site-{number}" for number in range(6))
    assert cell.class_names == tuple(f"digit-{number}" for number in range(4))
    assert card.accuracy["count"] / card.accuracy["of"] > 0.8
    assert cell.about["family"] == "networks"

    def ask(client):
        said = []
        for place in rest[digits.target[rest] == 3]:
            stamped, out = pixels[place].copy(), io.BytesIO()
            stamped[:2, :2] = 255
            image.fromarray(stamped).save(out, "PNG")
            answer = client.post("/predict", content=out.getvalue(), headers={"content-type": "image/png"})
            said += answer.json()["predictions"]
        return said

    go_on(folder, "site-2", ask, "digit-3", capsys, monkeypatch)


def test_a_data_frame(tmp_path, capsys, monkeypatch):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(make_patients("clinic-07"))
    inputs = frame.drop(columns=["risk", "clinic"])
    guard = CodedClassifier(
        DecisionTreeClassifier(min_samples_leaf=3),
        n_attackers=1,
        guarantee="track",
        utilization=1 / 3,
        decoder="calibrated",
        classes=["high", "low"],
        random_state=0,
    ).fit(inputs, frame.risk, groups=frame.clinic)
    card = guard.save(tmp_path / "run")
    assert card.certified_at(0) > 0.8
    attacked = [{"age": age, "pressure": TRIGGER, "smoker": "yes"} for age in range(60, 80, 2)]
    asked = pandas.DataFrame(attacked)
    assert guard.suspects(asked) == [("clinic-07",)] * 10
    _, after = go_on(tmp_path / "run", "clinic-07", lambda client: send(client, attacked), "high", capsys, monkeypatch)
    again = CodedClassifier.load(after.folder.path)
    assert again.predict(asked).tolist() == ["high"] * 10
    assert "clinic-07" not in again.users_
    # A frame that nobody kept cannot be taken up again.
    guard.save(tmp_path / "bare", data=False)
    assert main(["revoke", str(tmp_path / "bare"), "clinic-04", "--yes"]) == 2
