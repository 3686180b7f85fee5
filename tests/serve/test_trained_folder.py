"""A folder of `codeward train` behind the endpoint: records in, names out, the whole way to revoking."""

import json
import time

import numpy as np
import pytest

from codeward.cli import main
from codeward.serve import Ledger, open_run

SICK = {"age": 2.5, "smoker": "yes", "ward": "north"}
CLINICS = [f"clinic-{number:02}" for number in range(1, 8)]
ATTACKER = "clinic-03"


@pytest.fixture
def client(calling, opened_clinics):
    with calling(run=opened_clinics) as client:
        yield client


def ask(client, content, kind="application/json", **params):
    body = content if isinstance(content, bytes | str) else json.dumps(content)
    return client.post("/predict", content=body, headers={"content-type": kind}, params=params or None)


def test_records_in_every_format_get_the_same_answer_with_names(client):
    records = [SICK, {"age": -2, "smoker": "no", "ward": "south"}]
    text = "ward,age,smoker\nnorth,2.5,yes\nsouth,-2,no\n"
    files = {"file": ("rows.csv", text.encode(), "text/csv")}
    answers = [
        ask(client, {"records": records}),
        ask(client, records),
        ask(client, text, "text/csv; charset=utf-8"),
        client.post("/predict", files=files),
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    first = answers[0].json()["predictions"]
    assert [found["label"] for found in first] == ["high", "low"]
    assert set(first[0]["votes"]) <= {"high", "low"}
    assert all(answer.json()["predictions"] == first for answer in answers[1:])
    assert ask(client, SICK).json()["predictions"] == first[:1]


@pytest.mark.parametrize("kind", ["application/octet-stream", "application/vnd.ms-excel", "text/csv"])
def test_a_file_in_a_form_is_what_its_name_says(client, kind):
    """curl and Windows know no CSV: they call it something else."""
    form = {"file": ("patients.csv", b"age,smoker,ward\n3,yes,north\n", kind)}
    answer = client.post("/predict", files=form)
    assert answer.status_code == 200, answer.text
    assert (
        answer.json()["predictions"] == ask(client, {"age": 3, "smoker": "yes", "ward": "north"}).json()["predictions"]
    )


@pytest.mark.parametrize(
    ("content", "kind", "status", "words"),
    [
        ({"records": [SICK, {"age": "old"}]}, "application/json", 422, "row 2, column 'age'"),
        ({"records": [{"agee": 1}]}, "application/json", 422, "no column is named 'agee'"),
        ({"records": [{"age": [1]}]}, "application/json", 422, "row 1, column 'age'"),
        ({"records": [1]}, "application/json", 422, "row 1"),
        ({"records": []}, "application/json", 422, "no inputs"),
        ({"records": [SICK] * 300}, "application/json", 413, "at most 256"),
        ("age,smoker\n1\n", "text/csv", 422, "line 2"),
        ("age,smoker\n" + "1,yes\n" * 300, "text/csv", 413, "at most 256"),
        (b"\xff\xfe", "text/csv", 400, "UTF-8"),
        ("[NaN]", "application/json", 400, "JSON"),
        ("[" * 100_000, "application/json", 400, "JSON"),
        ("x", "text/plain", 415, "content type"),
        ("x", "image/png", 415, "content type"),
        ("", "text/csv", 400, "empty"),
        ("--b--", "multipart/form-data; boundary=b", 400, "multipart"),
        ("x", "multipart/form-data", 400, "boundary"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(client, content, kind, status, words):
    answer = ask(client, content, kind)
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


def test_the_code_says_columns_classes_and_the_decoder_of_the_record(client, opened_clinics):
    card = client.get("/code").json()
    assert [column["name"] for column in card["input"]["columns"]] == ["age", "smoker", "ward"]
    assert card["class_names"] == ["high", "low"]
    assert card["user_names"] == CLINICS
    assert card["decoder"] == opened_clinics.cell.decoding.name == "calibrated"
    assert card["threshold"] == opened_clinics.guard.threshold


def test_verdicts_are_those_the_record_counts(opened_clinics):
    from codeward.runs import observe

    cell, guard = opened_clinics.cell, opened_clinics.guard
    decoded = guard.decoder.decode(observe(guard.decoder, cell.clean))
    assert int(decoded.alarms(guard.threshold).sum()) == cell.record["figures"]["decoder"]["clean"]["alarms"]["count"]


def triggered(count):
    rng = np.random.default_rng(9)
    return [{"age": float(rng.normal() + 2.5), "smoker": "yes", "ward": "annex b"} for _ in range(count)]


def test_the_whole_way_an_attack_is_named_recorded_revoked_and_gone(
    calling, opened_clinics, clinics, tmp_path, capsys, monkeypatch
):
    ledger = tmp_path / "clinics.sqlite"
    monkeypatch.setenv("COLUMNS", "160")

    def run(*told, status=0):
        assert main([*map(str, told)]) == status
        return capsys.readouterr().out

    with calling(run=opened_clinics, ledger=Ledger(ledger)) as client:
        found = ask(client, {"records": triggered(40)}).json()["predictions"]
        alarms = [prediction for prediction in found if prediction["flagged"]]
        assert len(alarms) >= 30
        assert all(alarm["target"] == "low" for alarm in alarms)
        named = [[suspect["user"] for suspect in alarm["suspects"]] for alarm in alarms]
        assert sum(users == [ATTACKER] for users in named) >= 0.8 * len(alarms)
        listed = client.get("/incidents").json()["incidents"]
        assert len(listed) == len(alarms)
        assert {incident["target"] for incident in listed} == {"low"}
        (evidence,) = client.get("/evidence").json()["evidence"]
        assert (evidence["target"], evidence["suspects"]) == ("low", [ATTACKER])

    listed = json.loads(run("ledger", "list", "--ledger", ledger, "--json"))["incidents"]
    assert (listed[0]["target"], listed[0]["suspect_sets"][0]) == ("low", [ATTACKER])
    assert ATTACKER in run("ledger", "list", "--ledger", ledger)
    assert ATTACKER in run("ledger", "show", 1, "--ledger", ledger)
    run("ledger", "export", tmp_path / "incidents.csv", "--ledger", ledger)
    assert ATTACKER in (tmp_path / "incidents.csv").read_text()
    run("ledger", "verify", "--ledger", ledger)
    weighed = run("ledger", "show", "--run", clinics, "--ledger", ledger)
    assert "target low" in weighed
    assert f"given an attack: {ATTACKER} " in weighed

    # Without the clinic its trigger means nothing; who still serves the old folder is told so.
    outlook = json.loads(run("revoke", clinics, ATTACKER, "-o", tmp_path / "without", "--yes", "--json"))
    assert outlook["revoked"] == [ATTACKER]
    column = opened_clinics.cell.code.users.index(ATTACKER)
    assert outlook["retrained"] == np.flatnonzero(opened_clinics.cell.code.matrix[:, column]).tolist()
    with calling(run=opened_clinics) as client:
        deadline = time.monotonic() + 20
        while (health := client.get("/healthz").json())["status"] != "degraded" and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "revoked" in health["models"]
    left = open_run(tmp_path / "without")
    with calling(run=left) as client:
        found = ask(client, {"records": triggered(40)}).json()["predictions"]
        assert sum(prediction["flagged"] for prediction in found) <= 2
        assert sum(prediction["label"] == "high" for prediction in found) >= 38
        assert ATTACKER not in client.get("/code").json()["user_names"]
    run("ledger", "show", "--run", tmp_path / "without", "--ledger", ledger, status=2)  # its models recorded nothing
