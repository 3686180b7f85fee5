import csv
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.codes import named_code
from codeward.decoding import BayesDecoder
from codeward.serve import DamagedIncident, Incident, Ledger, find_incidents

CODE = named_code("g")


def make_incident(number: int = 0, **changes) -> Incident:
    whole = Incident(
        votes=(3, 3, 7, 3, 3, 3),
        attack_probability=0.9,
        label=7,
        target=3,
        suspects=(2,),
        user_probability=(0.0,) * 2 + (1.0,) + (0.0,) * 13,
        digest=hashlib.sha256(str(number).encode()).hexdigest(),
        code_digest=CODE.digest,
        run="run/repeat0-attackers1",
    )
    return replace(whole, **changes)


def find_server() -> str:
    """The folder of PostgreSQL's server programs, or the reason there is none."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3].split(".")[0]))
    initdb = str(folders[-1]) if folders else found
    if initdb is None:
        pytest.skip("PostgreSQL's server (initdb) is not installed: apt-get install postgresql")
    return str(Path(initdb).resolve().parent)


@pytest.fixture(scope="module")
def postgres():
    """A PostgreSQL server of our own on loopback, thrown away afterwards: its URL, and how to crash and start it."""
    programs = find_server()
    # initdb refuses root; the package brings a user of its own.
    account = {}
    folder = Path(tempfile.mkdtemp(prefix="codeward-pg-"))
    try:
        if os.geteuid() == 0:
            try:
                shutil.chown(folder, "postgres", "postgres")
            except LookupError:
                pytest.skip("running as root, and there is no user postgres to run the server as")
            account = {"user": "postgres", "group": "postgres", "extra_groups": []}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        data = folder / "data"

        def call(program, *arguments, check=True):
            with open(folder / "log", "a") as log:
                command = [f"{programs}/{program}", *arguments]
                subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=check, timeout=120, **account)

        call("initdb", "-D", str(data), "-U", "codeward", "--auth=trust", "-E", "UTF8", "--locale=C")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=40"

        def start():
            call("pg_ctl", "-D", str(data), "-w", "-t", "100", "-o", options, "start")

        def crash():
            call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop", check=False)

        start()
        try:
            yield SimpleNamespace(url=f"postgresql://codeward@127.0.0.1:{port}/postgres", crash=crash, start=start)
        finally:
            crash()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite")
    server = request.getfixturevalue("postgres").url
    import psycopg

    name = "test_" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.rsplit("/", 1)[0] + f"/{name}"


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


def test_threads_share_a_ledger(url):
    with Ledger(url) as ledger:
        numbers = [[] for _ in range(4)]

        def write(mine, start):
            mine.extend(ledger.record(make_incident(start + i)) for i in range(10))

        threads = [threading.Thread(target=write, args=(numbers[i], 100 * i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(number for mine in numbers for number in mine) == [i.id for i in ledger.incidents()]
        assert len(ledger.incidents()) == 40


# Prints each id only after `record` has returned.
WRITER = """
import hashlib, sys
from codeward.serve import DamagedIncident, Incident, Ledger
with Ledger(sys.argv[1]) as ledger:
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        incident = Incident((3, 3, 7), 0.9, 7, 3, (2,), (0.0, 0.0, 1.0), digest, "0" * 64, "run")
        print(ledger.record(incident), flush=True)
"""


def start_writer(url, start, count):
    command = [sys.executable, "-c", WRITER, url, str(start), str(start + count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_write_one_ledger_from_its_first_moment(url):
    # Neither has made the tables: both race for that too.
    writers = [start_writer(url, 1000 * i, 60) for i in range(2)]
    acknowledged = [[int(line) for line in writer.communicate(timeout=120)[0].split()] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert [len(numbers) for numbers in acknowledged] == [60, 60]
    with Ledger(url) as ledger:
        found = ledger.incidents()
    assert sorted(acknowledged[0] + acknowledged[1]) == [incident.id for incident in found]
    assert {incident.digest for incident in found} == {
        make_incident(1000 * i + j).digest for i in range(2) for j in range(60)
    }


def test_a_killed_writer_loses_no_acknowledged_incident(url):
    writers = [start_writer(url, 0, 10_000), start_writer(url, 20_000, 40)]
    acknowledged = [int(writers[0].stdout.readline()) for _ in range(25)]
    writers[0].send_signal(signal.SIGKILL)
    rest = writers[0].communicate(timeout=60)[0].splitlines(keepends=True)
    acknowledged += [int(line) for line in rest if line.endswith("\n")]
    assert writers[0].returncode == -signal.SIGKILL
    other = [int(line) for line in writers[1].communicate(timeout=120)[0].split()]
    assert len(other) == 40  # the survivor went on
    with Ledger(url) as ledger:
        kept = {incident.id: incident.digest for incident in ledger.incidents()}
        for place, number in enumerate(acknowledged):
            assert kept[number] == make_incident(place).digest
        for place, number in enumerate(other):
            assert kept[number] == make_incident(20_000 + place).digest
        # At most the one in flight was written without being acknowledged.
        assert len(kept) - len(acknowledged) - len(other) in (0, 1)


def test_a_crashed_server_loses_no_acknowledged_incident_and_writers_find_it_again(postgres):
    with Ledger(postgres.url) as ledger:
        numbers = [ledger.record(make_incident(i)) for i in range(5)]
        postgres.crash()
        try:
            with pytest.raises(OSError, match="did not take"):
                ledger.record(make_incident(5))
            with pytest.raises(OSError, match="cannot be read"):
                ledger.incidents()
        finally:
            postgres.start()
        numbers.append(ledger.record(make_incident(6)))
        assert [incident.id for incident in ledger.incidents()] == numbers


def test_sqlite_commits_are_flushed_and_logged(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger, ledger._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 30_000


def test_readers_do_not_block_writers(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.record(make_incident(1))
        with ledger._reading() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM ledger_incidents").scalar_one()
            ledger.record(make_incident(2))  # would time out after 30 s were the reader holding the lock
            assert connection.exec_driver_sql("SELECT count(*) FROM ledger_incidents").scalar_one() == 1


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


# --- the chain ------------------------------------------------------------------------------------------------------


def change(ledger, statement):
    with ledger._engine.begin() as connection:
        connection.exec_driver_sql(statement)


@pytest.mark.parametrize(
    ("statement", "problems"),
    [
        ("SELECT 1", []),
        ("UPDATE ledger_incidents SET target = 8 WHERE id = 3", ["incident 3: it is not as it was written"]),
        ("UPDATE ledger_incidents SET votes = 'x' WHERE id = 3", ["incident 3: it is not as it was written"]),
        ("UPDATE ledger_incidents SET row_digest = NULL WHERE id = 3", ["incident 3: it is not as it was written"]),
        ("DELETE FROM ledger_incidents WHERE id = 3", ["incidents 3 to 3 are missing"]),
        ("DELETE FROM ledger_incidents WHERE id > 3", ["incidents 4 to 6 are missing"]),
        ("DELETE FROM ledger_incidents", ["incidents 1 to 6 are missing"]),
        ("DELETE FROM ledger_head", ["the end of the chain is not on record"]),
        ("UPDATE ledger_incidents SET id = 9 WHERE id = 6", ["incidents 6 to 8 are missing", "incident 9: it is not"]),
        (
            "UPDATE ledger_incidents SET chain = row_digest WHERE id = 3",
            ["incident 3 does not follow", "incident 4 does not follow"],
        ),
    ],
)
def test_an_edit_or_a_gap_is_seen_and_blocks_nothing(url, statement, problems):
    with Ledger(url) as ledger:
        ledger.record_all([make_incident(i) for i in range(6)])
        change(ledger, statement)
        found = ledger.verify()
        assert len(found.problems) >= len(problems)
        for words, problem in zip(problems, found.problems, strict=False):
            assert problem.startswith(words)
        assert bool(found.problems) == bool(problems)
        # The others are still read; what was written stays numbered, and what is wrong stays visible.
        entries = ledger.entries()
        assert len(entries) == found.incidents
        assert sum(isinstance(entry, DamagedIncident) for entry in entries) <= 1
    with Ledger(url) as ledger:
        number = ledger.record(make_incident(7))
        assert number == max(6, *(entry.id for entry in entries), 0) + 1 if entries else number == 7
        assert bool(ledger.verify().problems) == bool(problems)


def test_a_ledger_written_anew_is_seen_with_a_chain_value_noted_before(tmp_path):
    with Ledger(tmp_path / "a.sqlite") as ledger:
        ledger.record_all([make_incident(i) for i in range(3)])
        noted = ledger.verify()
        ledger.record(make_incident(3))
        assert ledger.verify(noted.chain).problems == ()
    assert noted.number == 3
    with Ledger(tmp_path / "b.sqlite") as forged:
        forged.record_all([make_incident(i) for i in (0, 2, 3)])
        assert forged.verify().problems == ()
        assert "written anew" in forged.verify(noted.chain).problems[0]


def test_damaged_rows_are_shown_as_such_and_exported(url, tmp_path):
    with Ledger(url) as ledger:
        ledger.record_all([make_incident(i) for i in range(3)])
        change(ledger, "UPDATE ledger_incidents SET suspects = '[' WHERE id = 2")
        assert [entry.id for entry in ledger.entries()] == [1, 2, 3]
        assert [incident.id for incident in ledger.incidents(newest_first=True)] == [3, 1]
        with pytest.raises(InputError, match="incident 2 is damaged"):
            ledger.incident(2)
        assert ledger.export(tmp_path / "all.jsonl") == 3
        assert json.loads((tmp_path / "all.jsonl").read_text().splitlines()[1])["damage"]
        assert ledger.export(tmp_path / "all.csv") == 2


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_acknowledged_into_a_file_that_is_gone(tmp_path, suffix, replaced):
    file = tmp_path / "l.sqlite"
    with Ledger(file) as ledger:
        ledger.record(make_incident(1))
        kept = tmp_path / "kept"
        os.rename(f"{file}{suffix}", kept)
        if replaced:
            shutil.copy(kept, f"{file}{suffix}")
        for _ in range(2):
            with pytest.raises(OSError, match="removed or replaced"):
                ledger.record(make_incident(2))
        with pytest.raises(OSError, match="removed or replaced"):
            ledger.probe()
        os.rename(kept, f"{file}{suffix}")
        ledger.probe()
        assert ledger.record(make_incident(2)) == 2


def test_nothing_is_acknowledged_after_recorded_incidents_were_lost(url):
    with Ledger(url) as ledger:
        ledger.record(make_incident(1))
        change(ledger, "DELETE FROM ledger_incidents")
        for attempt in (ledger.probe, lambda: ledger.record(make_incident(2))):
            with pytest.raises(OSError, match="has lost incident 1"):
                attempt()


def test_a_ledger_without_a_chain_is_adopted(url):
    with Ledger(url) as ledger:
        ledger.record_all([make_incident(i) for i in range(5)])
        for statement in (
            "DELETE FROM ledger_incidents WHERE id = 2",  # numbers had gaps
            "DROP TABLE ledger_head",
            "ALTER TABLE ledger_incidents DROP COLUMN chain",
            "ALTER TABLE ledger_incidents DROP COLUMN row_digest",
            "UPDATE ledger_about SET version = 1",
        ):
            change(ledger, statement)
    with Ledger(url) as ledger:
        found = ledger.verify()
        assert (found.problems, found.adopted, found.incidents) == ((), 5, 4)
        assert ledger.record(make_incident(9)) == 6
        change(ledger, "UPDATE ledger_incidents SET label = 1 WHERE id = 4")
        assert len(ledger.verify().problems) == 1


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
