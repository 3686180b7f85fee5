"""What is acknowledged stays: many writers, killed ones, crashed servers, files that are gone."""

import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from tests.serve.incidents import change, make_incident

from codeward.serve import Ledger


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
