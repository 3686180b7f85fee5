"""A ledger keeps incidents whole, finds them again, exports them, and refuses what is none."""

import csv
import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.incidents import CODE, make_incident

from codeward._errors import InputError
from codeward.decoding import BayesDecoder
from codeward.serve import Ledger, find_incidents


def test_what_is_recorded_comes_back_whole(url):
    time = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=timezone(timedelta(hours=2)))
    incident = make_incident(time=time, user_probability=(1 / 3,) * 16, key="request-1", threshold=0.25)
    with Ledger(url) as ledger:
        number = ledger.record(incident)
        assert ledger.incident(number) == replace(incident, id=number)
    with Ledger(url) as again:
        assert again.incidents() == [replace(incident, id=number)]
        assert again.incident(number).time.utcoffset() == timedelta(0)


def test_filters_and_order(url):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with Ledger(url) as ledger:
        batch = [make_incident(i, target=i % 3, time=start + timedelta(days=i)) for i in range(9)]
        batch.append(make_incident(9, run="other", target=8))
        numbers = ledger.record_all(batch)
        assert numbers == sorted(set(numbers))
        assert [i.id for i in ledger.incidents()] == numbers
        assert [i.id for i in ledger.incidents(limit=2, newest_first=True)] == numbers[:-3:-1]
        assert [i.digest for i in ledger.incidents(target=1)] == [batch[i].digest for i in (1, 4, 7)]
        late = ledger.incidents(since=start + timedelta(days=7), run=batch[0].run)
        assert [i.id for i in late] == numbers[7:9]
        assert [i.id for i in ledger.incidents(after=numbers[6], run=batch[0].run)] == numbers[7:9]
        assert ledger.count() == {0: 3, 1: 3, 2: 3, 8: 1}
        assert ledger.count(run="other") == {8: 1}
        assert ledger.runs() == [("other", CODE.digest), (batch[0].run, CODE.digest)]
        assert ledger.incidents(code_digest="0" * 64) == []
        with pytest.raises(InputError, match="no incident has the id"):
            ledger.incident(numbers[-1] + 1000)


def test_an_idempotency_key_records_once_and_refuses_another_input(url):
    with Ledger(url) as ledger:
        first = ledger.record(make_incident(1, key="k"))
        assert ledger.record(make_incident(1, key="k")) == first
        assert ledger.record(make_incident(1)) != first  # without a key nothing is merged
        with pytest.raises(InputError, match="already used for another input"):
            ledger.record(make_incident(2, key="k"))
        assert len(ledger.incidents()) == 2


def test_a_batch_is_recorded_whole_or_not_at_all(url):
    with Ledger(url) as ledger:
        ledger.record(make_incident(1, key="k"))
        with pytest.raises(InputError):
            ledger.record_all([make_incident(2), make_incident(3, key="k")])
        assert len(ledger.incidents()) == 1
        assert ledger.record_all([]) == []


def test_exports_hold_everything_in_order(url, tmp_path, monkeypatch):
    monkeypatch.setattr("codeward.serve._incident_ledger.PAGE", 4)
    with Ledger(url) as ledger:
        ledger.record_all([make_incident(i, target=i % 2) for i in range(10)])
        assert ledger.export(tmp_path / "all.jsonl") == 10
        assert ledger.export(tmp_path / "some.csv", target=1) == 5
        lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
        assert lines == [incident.to_json() for incident in ledger.incidents()]
        with open(tmp_path / "some.csv", newline="") as handle:
            rows = list(csv.DictReader(handle))
        assert [int(row["id"]) for row in rows] == [incident.id for incident in ledger.incidents(target=1)]
        assert rows[0]["votes"] == "3 3 7 3 3 3"
        with pytest.raises(InputError, match=r"\.jsonl or \.csv"):
            ledger.export(tmp_path / "all.txt")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    votes=st.lists(st.integers(0, 999), min_size=1, max_size=20).map(tuple),
    probability=st.floats(0, 1),
    users=st.lists(st.floats(0, 1), max_size=20).map(tuple),
    run=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=50),
    when=st.datetimes(timezones=st.just(UTC)),
)
def test_any_valid_incident_survives_the_round_trip(tmp_path, votes, probability, users, run, when):
    with Ledger(tmp_path / "round.sqlite") as ledger:
        incident = make_incident(
            votes=votes, attack_probability=probability, user_probability=users, suspects=(), run=run, time=when
        )
        number = ledger.record(incident)
        assert ledger.incident(number) == replace(incident, id=number)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"votes": ()}, "votes"),
        ({"votes": (1, -1)}, "votes"),
        ({"attack_probability": float("nan")}, "attack_probability"),
        ({"attack_probability": 1.1}, "attack_probability"),
        ({"threshold": -0.1}, "threshold"),
        ({"label": -2}, "label"),
        ({"suspects": (16,)}, "suspect"),
        ({"user_probability": (float("nan"),) * 16}, "user_probability"),
        ({"digest": "A" * 64}, "digest"),
        ({"code_digest": "0"}, "code_digest"),
        ({"run": ""}, "run"),
        ({"run": "a\0"}, "NUL"),
        ({"key": "k" * 201}, "key"),
        ({"key": ""}, "key"),
        ({"time": datetime(2026, 1, 1)}, "time zone"),
    ],
)
def test_wrong_incidents_are_refused_by_name(changes, words):
    with pytest.raises(InputError, match=words):
        make_incident(**changes)


def test_databases_that_cannot_be_opened_are_input_errors_without_passwords(tmp_path):
    for url, words in (
        (tmp_path / "nowhere" / "l.sqlite", "does not exist"),
        ("mysql://u:secret@host/db", "not supported"),
        ("sqlite://", "not supported"),
        ("://", "not a database URL"),
        ("postgresql://u:secret@127.0.0.1:1/db", "cannot be opened"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            Ledger(url)
        assert "secret" not in str(caught.value)
    (tmp_path / "text").write_text("not a database, but a text that is long enough to be looked at" * 20)
    with pytest.raises(InputError, match="cannot be opened"):
        Ledger(tmp_path / "text")


def test_a_ledger_of_a_later_format_is_refused(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger, ledger._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE ledger_about SET version = 99")
    with pytest.raises(InputError, match="format 99"):
        Ledger(tmp_path / "l.sqlite")


def test_a_ledger_that_fails_to_record_says_so(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        with ledger._engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE ledger_incidents")
        with pytest.raises(OSError, match="did not take"):
            ledger.record(make_incident())


def test_incidents_are_the_inputs_whose_attack_probability_passes_the_threshold():
    rng = np.random.default_rng(0)
    # Half of the inputs as if user 13 had triggered them, on models that are nearly always right.
    votes = np.full((50, 6), 4)
    votes[:25, CODE.column(13)] = 7
    votes[rng.random((50, 6)) < 0.02] = 1
    confusion = np.full((6, 10, 10), 0.002) + 0.98 * np.eye(10)
    decoder = BayesDecoder(CODE, confusion, attackers_prior=(0.5, 0.5))
    decoded = decoder.decode(votes)
    digests = [hashlib.sha256(row.tobytes()).hexdigest() for row in votes]
    found = find_incidents(decoded, votes, digests, CODE, "r", threshold=0.6)
    rows = [row for row in range(50) if decoded.attack_probability[row] > 0.6]
    assert 0 < len(rows) < 50
    assert [incident.digest for incident in found] == [digests[row] for row in rows]
    for incident, row in zip(found, rows, strict=True):
        assert incident.votes == tuple(votes[row])
        assert incident.target == decoded.targets[row]
        assert (incident.suspects, incident.suspect_sets) == (decoded.suspects[row], decoded.suspect_sets[row])
    with pytest.raises(InputError, match="digests"):
        find_incidents(decoded, votes, digests[1:], CODE, "r")
