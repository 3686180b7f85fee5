"""The chain of hashes: edits and gaps are seen and block nothing."""

import json

import pytest
from tests.serve.incidents import change, make_incident

from codeward._errors import InputError
from codeward.serve import DamagedIncident, Ledger


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
