"""The incident ledger: an append-only table that several replicas of the endpoint may write."""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from codeward._errors import InputError
from codeward._files import write_atomic
from codeward.serve._incident import Incident
from codeward.serve._schema import incidents as table
from codeward.serve._schema import open_engine, read_url

#: Name of the ledger of a run folder where none is given.
DEFAULT_LEDGER = "ledger.sqlite"
#: Incidents read from the database at a time.
PAGE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = ("id", "time", "run", "target", "label", "attack_probability", "suspects", "votes", "digest", "code_digest")


class Ledger:
    """Incidents in SQLite (a file) or PostgreSQL (a URL).

    Guarantees, for any number of writers (threads, processes, replicas) and readers at once:

    - When `record` returns, the incident is committed and flushed: a killed process or server loses none that was
      acknowledged. (The disk's own honesty about flushing is assumed.)
    - Rows are only ever added; everything else, such as `gather_evidence`, is computed from them. No update is lost
      because there are none.
    - With an idempotency key, an incident sent again after an unclear failure is recorded once.

    Parameters
    ----------
    url : str or path-like
        A file (made when missing), ``sqlite:///FILE``, or ``postgresql://USER@HOST/NAME``.

    Notes
    -----
    Safe to share between threads. Open one after a fork, not before. Ids rise with the order of writing; with several
    writers an incident may become visible after one with a higher id.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = read_url(url)
        self._engine = open_engine(self.url)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def record(self, incident: Incident) -> int:
        """Write one incident durably and return its id; see `record_all`."""
        return self.record_all([incident])[0]

    def record_all(self, found: Sequence[Incident]) -> list[int]:
        """Write incidents in one transaction, all or none, durably before it returns; return their ids in order.

        Raises
        ------
        InputError
            When a key is already used for another input.
        OSError
            When the database does not take the incidents: none was recorded, and the caller may try again.
        """
        if not found:
            return []
        try:
            with self._engine.begin() as connection:
                return [self._insert(connection, incident) for incident in found]
        except SQLAlchemyError as error:
            raise self._fail("did not take the incident", error) from error

    def incident(self, number: int) -> Incident:
        """Return the incident with this id."""
        with self._reading() as connection:
            row = connection.execute(select(table).where(table.c.id == number)).first()
        if row is None:
            raise InputError(f"ledger: no incident has the id {number}")
        return _from_row(row)

    def incidents(
        self,
        limit: int | None = None,
        target: int | None = None,
        since: datetime | None = None,
        run: str | None = None,
        code_digest: str | None = None,
        after: int | None = None,
        newest_first: bool = False,
    ) -> list[Incident]:
        """Return incidents in order of id.

        Parameters
        ----------
        limit : int, optional
            At most this many.
        target : int, optional
            Only those whose most probable target is this class.
        since : datetime, optional
            Aware; only those at this time or later.
        run, code_digest : str, optional
            Only those of these models, of this code.
        after : int, optional
            Only ids above this one: what a page that updates live asks for.
        newest_first : bool
            Highest id first; with ``limit``, the latest ones.
        """
        if limit is not None and limit < 0:
            raise InputError(f"limit must be 0 or more, got {limit}")
        query = _filter(select(table), target, since, run, code_digest, after)
        query = query.order_by(table.c.id.desc() if newest_first else table.c.id).limit(limit)
        with self._reading() as connection:
            return [_from_row(row) for row in connection.execute(query)]

    def count(self, run: str | None = None, code_digest: str | None = None) -> dict[int, int]:
        """Return the number of incidents by target, targets ascending."""
        query = _filter(select(table.c.target, func.count()), None, None, run, code_digest, None)
        with self._reading() as connection:
            rows = connection.execute(query.group_by(table.c.target).order_by(table.c.target))
            return {int(target): int(count) for target, count in rows}

    def threshold(self, run: str, code_digest: str) -> float | None:
        """Return the highest threshold under which incidents of these models were recorded; None without any.

        Above it the ledger is complete, whatever thresholds there have been.
        """
        query = _filter(select(func.max(table.c.threshold)), None, None, run, code_digest, None)
        with self._reading() as connection:
            found = connection.execute(query).scalar_one()
            return None if found is None else float(found)

    def runs(self) -> list[tuple[str, str]]:
        """Return the distinct (run, code digest) of the incidents, ordered."""
        query = select(table.c.run, table.c.code_digest).distinct().order_by(table.c.run, table.c.code_digest)
        with self._reading() as connection:
            return [(str(run), str(digest)) for run, digest in connection.execute(query)]

    def export(self, path: str | os.PathLike[str], target: int | None = None, since: datetime | None = None) -> int:
        """Write incidents as ``.jsonl`` (everything) or ``.csv`` (without user probabilities); return how many.

        The file appears whole or not at all, and holds one moment's incidents even while others are being recorded.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in (".jsonl", ".csv"):
            raise InputError(f"{path}: a ledger is exported as .jsonl or .csv")
        written = 0

        def write(out: Any) -> None:
            nonlocal written
            if suffix == ".csv":
                out.write((",".join(_COLUMNS) + "\n").encode())
            for incident in self._pages(target, since):
                out.write(_line(incident, suffix).encode())
                written += 1

        write_atomic(path, write)
        return written

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        # REPEATABLE READ on PostgreSQL and a plain BEGIN on SQLite: everything in one transaction sees one moment.
        options: dict[str, Any] = {"reads": True}
        if self._engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"
        try:
            with self._engine.execution_options(**options).begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._fail("cannot be read", error) from error

    def _fail(self, what: str, error: SQLAlchemyError) -> OSError:
        """Return the error a caller gets; without the statement, which may hold much, and without the password."""
        return OSError(f"ledger: {self.url.render_as_string(hide_password=True)} {what} ({type(error).__name__})")

    def _pages(self, target: int | None, since: datetime | None) -> Iterator[Incident]:
        with self._reading() as connection:
            last = 0
            while True:
                query = _filter(select(table), target, since, None, None, last).order_by(table.c.id).limit(PAGE)
                rows = connection.execute(query).all()
                yield from map(_from_row, rows)
                if len(rows) < PAGE:
                    return
                last = rows[-1].id

    def _insert(self, connection: Connection, incident: Incident) -> int:
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        statement = dialect.insert(table).values(_to_row(incident))
        statement = statement.on_conflict_do_nothing(index_elements=[table.c.key]).returning(table.c.id)
        number = connection.execute(statement).scalar_one_or_none()
        if number is not None:
            return int(number)
        # The key is there. On PostgreSQL the conflicting insert has waited for the other transaction to commit.
        kept = connection.execute(select(table.c.id, table.c.digest).where(table.c.key == incident.key)).one()
        if kept.digest != incident.digest:
            raise InputError(f"ledger: the key {incident.key!r} is already used for another input (id {kept.id})")
        return int(kept.id)


def _filter(
    query: Select[Any],
    target: int | None,
    since: datetime | None,
    run: str | None,
    code_digest: str | None,
    after: int | None,
) -> Select[Any]:
    if since is not None:
        query = query.where(table.c.microseconds >= _microseconds(since))
    if after is not None:
        query = query.where(table.c.id > after)
    for column, value in ((table.c.target, target), (table.c.run, run), (table.c.code_digest, code_digest)):
        if value is not None:
            query = query.where(column == value)
    return query


def _microseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise InputError("ledger: a time must carry a time zone")
    return (time - _EPOCH) // timedelta(microseconds=1)


def _to_row(incident: Incident) -> dict[str, Any]:
    return {
        "key": incident.key,
        "microseconds": _microseconds(incident.time),
        "run": incident.run,
        "code_digest": incident.code_digest,
        "digest": incident.digest,
        "target": incident.target,
        "label": incident.label,
        "attack_probability": incident.attack_probability,
        "threshold": incident.threshold,
        "votes": json.dumps(incident.votes, separators=(",", ":")),
        "suspects": json.dumps(incident.suspects, separators=(",", ":")),
        "user_probability": json.dumps(incident.user_probability, separators=(",", ":")),
    }


def _from_row(row: Row[Any]) -> Incident:
    return Incident(
        votes=tuple(json.loads(row.votes)),
        attack_probability=row.attack_probability,
        label=row.label,
        target=row.target,
        suspects=tuple(json.loads(row.suspects)),
        user_probability=tuple(json.loads(row.user_probability)),
        digest=row.digest,
        code_digest=row.code_digest,
        run=row.run,
        threshold=row.threshold,
        time=_EPOCH + timedelta(microseconds=row.microseconds),
        key=row.key,
        id=row.id,
    )


def _line(incident: Incident, suffix: str) -> str:
    content = incident.to_json()
    if suffix == ".jsonl":
        return json.dumps(content) + "\n"
    content["suspects"], content["votes"] = (" ".join(map(str, content[name])) for name in ("suspects", "votes"))
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([content[name] for name in _COLUMNS])
    return line.getvalue()
