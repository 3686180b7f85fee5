"""The incident ledger: an append-only table that several replicas of the endpoint may write."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, or_, select, tuple_, update
from sqlalchemy.exc import SQLAlchemyError

from codeward._errors import InputError
from codeward._files import write_atomic
from codeward.serve._database import START, Verification, digest_row, extend_chain, head, open_engine, read_url
from codeward.serve._database import incidents as table
from codeward.serve._incidents import CSV_COLUMNS, DamagedIncident, Incident, from_row, to_line, to_microseconds, to_row

#: Which targets: a number, or numbers with the run and the code digest to which they belong.
_Target = int | list[tuple[str, str, int]] | None
#: Name of the ledger of a run folder where none is given.
DEFAULT_LEDGER = "ledger.sqlite"
#: Incidents read from the database at a time.
PAGE = 1000


class Ledger:
    """Incidents in SQLite (a file) or PostgreSQL (a URL).

    Guarantees, for any number of writers (threads, processes, replicas) and readers at once:

    - When `record` returns, the incident is committed and flushed: a killed process or server loses none that was
      acknowledged. (The disk's own honesty about flushing is assumed.)
    - Rows are only ever added; everything else, such as `gather_evidence`, is computed from them. No update is lost
      because there are none.
    - Numbers have no gaps, and every row carries a digest of its content and of all rows before it: `verify` finds rows
      that were changed, removed or slipped in by anyone who did not write all later rows again. Whoever can do that
      is found out with a chain value noted elsewhere. A row that is not as it was written is a `DamagedIncident`.
    - Nothing is acknowledged into a file that was removed or replaced, or a database that lost what was recorded here.
    - With an idempotency key, an incident sent again after an unclear failure is recorded once.

    Parameters
    ----------
    url : str or path-like
        A file (made when missing), ``sqlite:///FILE``, or ``postgresql://USER@HOST/NAME``.

    Notes
    -----
    Safe to share between threads. Open one after a fork, not before. Writers take turns, and ids are the order of
    writing.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.serve import Incident, Ledger
    >>> incident = Incident((3, 3, 7), 0.9, 7, 3, (2,), (0.0, 0.1, 1.0), "a" * 64, "b" * 64, "my run")
    >>> with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/ledger.sqlite") as ledger:
    ...     number = ledger.record(incident)
    ...     (number, ledger.incident(number).target, ledger.verify().problems)
    (1, 3, ())
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = read_url(url)
        self._engine = open_engine(self.url)
        self._files = self._identify()
        #: The last incident recorded here, and its chain value: while it is there, so is what was acknowledged.
        self._last: tuple[int, str] | None = None

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
        self._check_files()
        try:
            with self._engine.begin() as connection:
                before = self._lock_head(connection)
                numbers, last = self._append(connection, before, found)
        except SQLAlchemyError as error:
            raise self._fail("did not take the incident", error) from error
        # Where the file has gone meanwhile, the incidents went with it, and nobody is told that they are safe.
        self._check_files()
        self._last = last or self._last
        return numbers

    def probe(self) -> None:
        """Write something that is no incident, durably; OSError where the ledger would take no incident."""
        self._check_files()
        try:
            with self._engine.begin() as connection:
                self._lock_head(connection)
                connection.execute(update(head).values(checked=to_microseconds(datetime.now(UTC))))
        except SQLAlchemyError as error:
            raise self._fail("takes no incidents", error) from error
        self._check_files()

    def verify(self, chain: str | None = None) -> Verification:
        """Check the digests of all rows, one moment's, and that none is missing.

        Parameters
        ----------
        chain : str, optional
            A chain value noted earlier; it must be that of some row, or someone wrote the ledger anew.
        """
        problems: list[str] = []
        rows, number, value, noted = 0, 0, START, chain in (None, START)
        with self._reading() as connection:
            end = connection.execute(select(head)).mappings().first()
            adopted = int(end["adopted"]) if end else 0
            for row in self._walk(connection, None, None):
                rows += 1
                if row.id != number + 1 and row.id > adopted:
                    problems.append(f"incidents {number + 1} to {row.id - 1} are missing")
                elif row.row_digest is not None and row.chain != extend_chain(value, row.row_digest):
                    problems.append(f"incident {row.id} does not follow the one before it")
                entry = from_row(row)
                if isinstance(entry, DamagedIncident):
                    problems.append(f"incident {row.id}: {entry.damage}")
                number, value = int(row.id), str(row.chain)
                noted = noted or value == chain
        if end is None:
            problems.append("the end of the chain is not on record")
        elif end["number"] > number:
            problems.append(f"incidents {number + 1} to {end['number']} are missing")
        elif (end["number"], end["chain"]) != (number, value):
            problems.append(f"the last incident on record is {end['number']}, and {number} is another")
        if not noted:
            problems.append(f"no incident has the chain value {chain}: the ledger was written anew")
        return Verification(rows, number, value, adopted, tuple(problems))

    def incident(self, number: int) -> Incident:
        """Return the incident with this id."""
        with self._reading() as connection:
            row = connection.execute(select(table).where(table.c.id == number)).first()
        if row is None:
            raise InputError(f"ledger: no incident has the id {number}")
        found = from_row(row)
        if isinstance(found, DamagedIncident):
            raise InputError(f"ledger: incident {number} is damaged: {found.damage}")
        return found

    def incidents(self, *arguments: Any, **filters: Any) -> list[Incident]:
        """Return incidents in order of id, damaged ones left out; filters as for `entries`."""
        return [entry for entry in self.entries(*arguments, **filters) if isinstance(entry, Incident)]

    def entries(
        self,
        limit: int | None = None,
        target: int | str | None = None,
        since: datetime | None = None,
        run: str | None = None,
        code_digest: str | None = None,
        after: int | None = None,
        newest_first: bool = False,
    ) -> list[Incident | DamagedIncident]:
        """Return incidents in order of id, rows that are not as they were written among them.

        Parameters
        ----------
        limit : int, optional
            At most this many.
        target : int or str, optional
            Only those whose most probable target is this class, by number or by the name it had.
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
        query = _filter(select(table), self._find(target), since, after, run=run, code_digest=code_digest)
        query = query.order_by(table.c.id.desc() if newest_first else table.c.id).limit(limit)
        with self._reading() as connection:
            return [from_row(row) for row in connection.execute(query)]

    def count(self, run: str | None = None, code_digest: str | None = None) -> dict[int, int]:
        """Return the number of incidents by target, targets ascending."""
        query = _filter(select(table.c.target, func.count()), run=run, code_digest=code_digest)
        with self._reading() as connection:
            rows = connection.execute(query.group_by(table.c.target).order_by(table.c.target))
            return {int(target): int(count) for target, count in rows}

    def threshold(self, run: str, code_digest: str) -> float | None:
        """Return the highest threshold under which incidents of these models were recorded; None without any.

        Above it the ledger is complete, whatever thresholds there have been.
        """
        query = _filter(select(func.max(table.c.threshold)), run=run, code_digest=code_digest)
        with self._reading() as connection:
            found = connection.execute(query).scalar_one()
            return None if found is None else float(found)

    def runs(self) -> list[tuple[str, str]]:
        """Return the distinct (run, code digest) of the incidents, ordered."""
        query = select(table.c.run, table.c.code_digest).distinct().order_by(table.c.run, table.c.code_digest)
        with self._reading() as connection:
            return [(str(run), str(digest)) for run, digest in connection.execute(query)]

    def targets(self) -> dict[tuple[str, str, int], str]:
        """Return the names of all targets there are, numbers where they have none, by run, code digest and number."""
        groups = (table.c.run, table.c.code_digest, table.c.target)
        picked = [select(end(table.c.id)).group_by(*groups) for end in (func.min, func.max)]
        query = select(table).where(or_(*(table.c.id.in_(part) for part in picked))).order_by(table.c.id)
        with self._reading() as connection:
            rows = [from_row(row) for row in connection.execute(query)]
        found = [row for row in rows if isinstance(row, Incident)]
        return {(row.run, row.code_digest, row.target): str(row.name_class(row.target)) for row in found}

    def _find(self, target: int | str | None) -> _Target:
        """Return what a target's name stands for in the runs here; a number nobody has for a name is itself."""
        if not isinstance(target, str):
            return target
        known = self.targets()
        places = [place for place, name in known.items() if name == target]
        if not places and not target.isdecimal():
            names = ", ".join(sorted(set(known.values()))[:20]) or "none yet"
            raise InputError(f"ledger: no incident has the target {target[:60]!r}; there are {names}")
        return places or int(target[:18])

    def export(
        self, path: str | os.PathLike[str], target: int | str | None = None, since: datetime | None = None
    ) -> int:
        """Write incidents as ``.jsonl`` (everything) or ``.csv`` (without user probabilities); return how many.

        Damaged ones are lines of ``.jsonl`` with id and damage, and are left out of ``.csv``.
        The file appears whole or not at all, and holds one moment's incidents even while others are being recorded.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in (".jsonl", ".csv"):
            raise InputError(f"{path}: a ledger is exported as .jsonl or .csv")
        written, wanted = 0, self._find(target)

        def write(out: Any) -> None:
            nonlocal written
            if suffix == ".csv":
                out.write((",".join(CSV_COLUMNS) + "\n").encode())
            with self._reading() as connection:
                for row in self._walk(connection, wanted, since):
                    line = to_line(from_row(row), suffix)
                    out.write(line.encode())
                    written += bool(line)

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

    def _walk(self, connection: Connection, target: _Target, since: datetime | None) -> Iterator[Row[Any]]:
        last = 0
        while True:
            query = _filter(select(table), target, since, last).order_by(table.c.id).limit(PAGE)
            rows = connection.execute(query).all()
            yield from rows
            if len(rows) < PAGE:
                return
            last = rows[-1].id

    def _identify(self) -> tuple[tuple[int, int], ...] | None:
        """Return what tells the files of a SQLite ledger from others of the same names; None for a server."""
        if self.url.get_backend_name() != "sqlite":
            return None
        stats = [os.stat(f"{self.url.database}{suffix}") for suffix in ("", "-wal")]
        return tuple((stat.st_dev, stat.st_ino) for stat in stats)

    def _check_files(self) -> None:
        try:
            same = self._identify() == self._files
        except OSError:
            same = False
        if not same:
            raise OSError(f"ledger: {self.url.database} was removed or replaced; put it back, or start again")

    def _lock_head(self, connection: Connection) -> tuple[int, str]:
        """Return number and chain value of the newest incident; other writers wait for this transaction."""
        last = self._last  # of whichever thread came last: committed, so every later transaction sees it
        found = connection.execute(select(head).with_for_update()).mappings().first()
        if found is None:
            connection.execute(insert(head).values(place=0, number=0, chain=START, adopted=0, checked=0))
        before = (int(found["number"]), str(found["chain"])) if found else (0, START)
        if last is not None:
            kept = connection.execute(select(table.c.chain).where(table.c.id == last[0])).scalar_one_or_none()
            if kept != last[1]:
                shown = self.url.render_as_string(hide_password=True)
                raise OSError(f"ledger: {shown} has lost incident {last[0]}, recorded before; start again")
        # Rows that somebody slipped in keep their numbers; `verify` tells.
        newest = connection.execute(select(func.max(table.c.id))).scalar_one()
        return max(before[0], newest or 0), before[1]

    def _append(
        self, connection: Connection, before: tuple[int, str], found: Sequence[Incident]
    ) -> tuple[list[int], tuple[int, str] | None]:
        """Write incidents after the newest; return their numbers, and number and chain value of the last new one."""
        number, chain = before
        keys = [incident.key for incident in found if incident.key is not None]
        query = select(table.c.key, table.c.id, table.c.digest).where(table.c.key.in_(keys))
        known = {row.key: (int(row.id), row.digest) for row in connection.execute(query)} if keys else {}
        numbers, rows = [], []
        for incident in found:
            if incident.key in known:
                kept, digest = known[incident.key]
                if digest != incident.digest:
                    raise InputError(f"ledger: the key {incident.key!r} is already used for another input (id {kept})")
                numbers.append(kept)
                continue
            number += 1
            row = {"id": number} | to_row(incident)
            row["row_digest"] = digest_row(row)
            row["chain"] = chain = extend_chain(chain, row["row_digest"])
            rows.append(row)
            numbers.append(number)
            if incident.key is not None:
                known[incident.key] = (number, incident.digest)
        if not rows:
            return numbers, None
        connection.execute(insert(table), rows)
        connection.execute(update(head).values(number=number, chain=chain))
        return numbers, (number, chain)


def _filter(
    query: Select[Any], target: _Target = None, since: datetime | None = None, after: int | None = None, **same: Any
) -> Select[Any]:
    if since is not None:
        query = query.where(table.c.microseconds >= to_microseconds(since))
    if after is not None:
        query = query.where(table.c.id > after)
    if isinstance(target, list):
        query = query.where(tuple_(table.c.run, table.c.code_digest, table.c.target).in_(target))
    elif target is not None:
        query = query.where(table.c.target == target)
    wanted = {name: value for name, value in same.items() if value is not None}
    return query.filter_by(**wanted) if wanted else query
