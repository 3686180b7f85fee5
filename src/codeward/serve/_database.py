"""The ledger's database: tables, the chain of digests over the rows, and opening it so that commits are on disk."""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from codeward._errors import InputError

#: Changes when a reader of older ledgers would misread newer ones.
VERSION = 3
#: Seconds a writer waits for another one.
BUSY_SECONDS = 30
#: What the first row follows.
START = "0" * 64
#: Any fixed number: the replicas that make the tables of a PostgreSQL ledger take turns on it.
_SCHEMA_LOCK = 6_033_412_001

metadata = MetaData()

about = Table("ledger_about", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

#: One row: the newest incident's number and chain value, so that rows cut off at the end are missed; how many of the
#: first numbers were chained when an older ledger was opened; and when the ledger was last seen to take a write.
head = Table(
    "ledger_head",
    metadata,
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("chain", String(64), nullable=False),
    Column("adopted", BigInteger, nullable=False),
    Column("checked", BigInteger, nullable=False),
)

#: One row an incident, never changed after it is written: replicas append, so no update can be lost.
incidents = Table(
    "ledger_incidents",
    metadata,
    # SQLite numbers rows by itself only where the key is spelt INTEGER.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("key", String(200), unique=True),
    Column("microseconds", BigInteger, nullable=False),
    Column("run", String(200), nullable=False),
    Column("code_digest", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("target", Integer, nullable=False),
    Column("label", Integer, nullable=False),
    Column("attack_probability", Float, nullable=False),
    Column("threshold", Float, nullable=False),
    Column("votes", Text, nullable=False),
    Column("suspects", Text, nullable=False),
    Column("user_probability", Text, nullable=False),
    Column("row_digest", String(64)),
    Column("chain", String(64)),
    Index("ledger_incidents_by_target", "target", "id"),
    Index("ledger_incidents_by_time", "microseconds"),
    sqlite_autoincrement=True,
)

#: What a row's digest covers, in this order.
_COVERED = tuple(column.name for column in incidents.columns if column.name not in ("row_digest", "chain"))


@dataclass(frozen=True)
class Verification:
    """What `Ledger.verify` found.

    Attributes
    ----------
    incidents : int
        Rows that are there.
    number : int
    chain : str
        Number and chain value of the newest one. Noted elsewhere, the value shows later whether all up to here is still
        as it is now.
    adopted : int
        Incidents up to this number were chained when a ledger of an older format was opened: what was done to them
        before cannot be seen.
    problems : tuple of str
        What is wrong; empty where nothing is.

    Examples
    --------
    >>> Verification(1, 3, "c" * 64, 0, ("incident 1 is missing",)).problems
    ('incident 1 is missing',)
    """

    incidents: int
    number: int
    chain: str
    adopted: int
    problems: tuple[str, ...]


def digest_row(row: Mapping[Any, Any]) -> str:
    """Return the SHA-256 of a row's content, in hex."""
    content = json.dumps([row[name] for name in _COVERED], separators=(",", ":"), default=repr)
    return hashlib.sha256(content.encode()).hexdigest()


def extend_chain(chain: str, row_digest: str) -> str:
    """Return the chain value of a row that follows the one with this chain value."""
    return hashlib.sha256(f"{chain}{row_digest}".encode()).hexdigest()


def read_url(url: str | os.PathLike[str]) -> URL:
    """Turn a file name or a database URL into the URL SQLAlchemy opens; SQLite and PostgreSQL only.

    A password never appears in the messages.
    """
    given = os.fspath(url)
    if "://" not in given:
        return URL.create("sqlite", database=given)
    try:
        parsed = make_url(given)
    except (ArgumentError, ValueError) as error:
        raise InputError(
            "ledger: not a database URL; expected a file, sqlite:///FILE or postgresql://HOST/NAME"
        ) from error
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername == "sqlite" and parsed.database and parsed.database != ":memory:":
        return parsed
    raise InputError(
        f"ledger: {parsed.render_as_string(hide_password=True)} is not supported; "
        "expected a file, sqlite:///FILE or postgresql://HOST/NAME"
    )


def open_engine(url: URL) -> Engine:
    """Open a database with durable commits and make the tables when they are missing.

    SQLite: write-ahead log with ``synchronous=FULL``: a commit is in the log, flushed, before it returns; writers wait
    for one another up to `BUSY_SECONDS`. PostgreSQL: ``synchronous_commit=on`` whatever the server's default is.
    """
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite":
        folder = Path(str(url.database)).parent
        if not folder.is_dir():
            raise InputError(f"ledger: the folder {folder} does not exist")
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        options = {"options": "-c synchronous_commit=on -c timezone=UTC", "connect_timeout": BUSY_SECONDS}
        engine = create_engine(url, connect_args=options, pool_pre_ping=True)
    try:
        with engine.begin() as connection:
            _make_tables(connection)
            found = connection.execute(select(about.c.version)).scalar_one()
    except (SQLAlchemyError, sqlite3.Error, ImportError) as error:
        engine.dispose()
        raise InputError(f"ledger: {shown} cannot be opened ({_first_line(error)})") from error
    if found != VERSION:
        engine.dispose()
        raise InputError(f"ledger: {shown} has format {found}; this version of codeward reads format {VERSION}")
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The module's own transactions start too late (before the first write only); ours start where SQLAlchemy says.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    cursor.execute("PRAGMA synchronous=FULL")
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            # Changing the mode of a new file fails at once, busy timeout or not, when another process is changing it.
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that will write takes the lock first: upgrading later fails where another one wrote meanwhile.
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _make_tables(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # CREATE TABLE IF NOT EXISTS of two sessions at once may fail in one of them.
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SCHEMA_LOCK})
    metadata.create_all(connection)
    found = connection.execute(select(about.c.version)).scalar_one_or_none()
    if found is None:
        connection.execute(insert(about).values(version=VERSION))
    if found == 1:
        _adopt(connection)
    if found in (1, 2):  # rows of format 2 are read as they are; newer ones have names, which it would not read
        connection.execute(update(about).values(version=VERSION))
    elif connection.execute(select(head.c.place)).first() is None:
        connection.execute(insert(head).values(place=0, number=0, chain=START, adopted=0, checked=0))


def _adopt(connection: Connection) -> None:
    """Chain the rows of a ledger of format 1, as they are found; what was done to them before cannot be seen."""
    there = {column["name"] for column in inspect(connection).get_columns(incidents.name)}
    for name in {"row_digest", "chain"} - there:
        connection.execute(text(f"ALTER TABLE {incidents.name} ADD COLUMN {name} VARCHAR(64)"))
    chain, number = START, 0
    for number in connection.execute(select(incidents.c.id).order_by(incidents.c.id)).scalars().all():
        row = connection.execute(select(incidents).where(incidents.c.id == number)).mappings().one()
        digest = digest_row(row)
        chain = extend_chain(chain, digest)
        connection.execute(update(incidents).where(incidents.c.id == number).values(row_digest=digest, chain=chain))
    connection.execute(insert(head).values(place=0, number=number, chain=chain, adopted=number, checked=0))


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().split("\n")[0]
