"""The database under the ledger: an engine from an SQLAlchemy URL, in which every wait has a limit.

A commit is on disk when it returns (SQLite: WAL with synchronous=FULL; PostgreSQL: synchronous_commit). An
SQLite file has mode 0600. On PostgreSQL
connecting, lock waits and statements have timeouts; a frozen server, which cannot enforce its own, is disconnected from
this side after SILENT_SECONDS_MAX. Errors are LedgerError, whose text names the database without its passwords.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import stat
import time
import traceback
import zlib
from collections.abc import Generator
from contextlib import suppress

import msgspec
import sqlalchemy as sql
from sqlalchemy import event, exc

from goodput.aggregator.ledger.refused_rows import is_of_values

CONNECT_SECONDS_MAX = 5
LOCK_SECONDS_MAX = 5
STATEMENT_SECONDS_MAX = 10
SILENT_SECONDS_MAX = 15
# A program that was stopped in a transaction holds its locks for so long; all writes can be repeated.
IDLE_SECONDS_MAX = 5
# A connection that worked this recently is used without testing it first.
FRESH_SECONDS = 1.0
LOG_PAGES_MAX = 4000  # of SQLite's write-ahead log, 16 MB
# Migrating a big ledger takes a while; other programs that open it wait.
MIGRATION_WAIT_SECONDS_MAX = 120

_DRIVERS = {"sqlite": ("sqlite", "pysqlite"), "postgresql": ("postgresql", "psycopg")}


# What SQLite says of pages that it cannot read.
_NO_TEXT, NO_VERSION = "Could not decode to UTF-8", "which no program writes"
_UNREADABLE = ("malformed", "not a database", "unsupported file format", "is damaged", _NO_TEXT, NO_VERSION)
_RESTORE = (
    "The file is damaged, or its write-ahead log (-wal) is lost or of another file: `goodput ledger check` says where, and "
    "the last backup in its place is whole"
)


class LedgerError(Exception):
    """The ledger cannot be opened, read or written; the text has its URL and the reason."""


class ValuesRefused(LedgerError):
    """A write failed for the values of a row: repeated as a whole it would fail again."""


class DamagedData(LedgerError):
    """What was read is nothing that was ever written."""


class Database:
    """One database. `shown` is its URL without secrets."""

    def __init__(self, url: str):
        self.shown, self._secrets = "URL", ()
        self._url = self._parsed(url)
        self.engine = self._create(self._query(STATEMENT_SECONDS_MAX, LOCK_SECONDS_MAX))
        if self.backend == "sqlite":
            event.listen(self.engine, "connect", _configure_sqlite)
        else:
            _bound_silence(self.engine)

    @property
    def backend(self) -> str:
        return self._url.get_backend_name()

    @property
    def file(self) -> str | None:
        """The file of an SQLite ledger, None for a server's."""
        return self._url.database if self.backend == "sqlite" else None

    def migrating(self) -> sql.Engine:
        """An engine whose transactions exclude each other and may take long; it keeps SQLite's journal mode."""
        engine = self._opening(self._query(0, MIGRATION_WAIT_SECONDS_MAX))
        if self.backend == "sqlite":
            event.listen(engine, "connect", _take_over_transactions)
            event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        else:
            # An arbitrary number that all versions of this program share; the lock ends with the transaction.
            lock = sql.select(sql.func.pg_advisory_xact_lock(0x600D9074))
            event.listen(engine, "begin", lambda connection: connection.execute(lock))
        return engine

    def inspecting(self) -> sql.Engine:
        """An engine for reading the version: it changes nothing, not even SQLite's journal."""
        return self._opening(self._query(STATEMENT_SECONDS_MAX, LOCK_SECONDS_MAX))

    def error(self, error: Exception) -> LedgerError:
        """The error as a LedgerError of one line, without secrets."""
        text = str(getattr(error, "orig", None) or error).split("\n")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == "psycopg":
            text = "PostgreSQL needs psycopg: pip install 'goodput-telemetry[postgresql]'"
        if (
            self.file is not None
            and text == "unable to open database file"
            and (why := _why_unopened(self.file))
        ):
            text = f"{text}: {why}"
        for secret in self._secrets:
            text = text.replace(secret, "***")
        if any(sign in text for sign in _UNREADABLE):
            text = f"{text}. {_RESTORE}"
        if _is_of_damage(error, text):
            kind = DamagedData
        else:
            kind = ValuesRefused if is_of_values(error) else LedgerError
        _clear_frames(error)
        return kind(f"ledger {self.shown}: {text}")

    def check_encoding(self) -> None:
        """Raise LedgerError for a database whose encoding cannot hold every text, such as the name of a run."""
        if self.backend == "sqlite":
            return
        with self.inspecting().connect() as connection:
            encoding = connection.execute(sql.text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8":
            name = self._url.database or self._url.username or ""
            raise LedgerError(
                f"ledger {self.shown}: database {name!r} has the encoding {encoding}, which cannot hold every text; "
                f"create one with UTF8: createdb -E UTF8 -T template0 NAME (pg_dump {name} | psql NAME moves a ledger)"
            )

    def _parsed(self, text: str) -> sql.URL:
        try:
            url = sql.engine.make_url(text)
        except (exc.ArgumentError, ValueError, TypeError):
            # The parser's own message may quote as a port what is half of a password.
            raise LedgerError(
                "ledger: Could not parse the URL; escape characters such as / : @ in a password as %2F %3A %40"
            ) from None
        hidden = {name for name in url.query if "pass" in name.lower()}
        self._secrets = tuple(filter(None, [url.password, *(str(url.query[name]) for name in hidden)]))
        masked = url.set(query={**url.query, **dict.fromkeys(hidden, "***")})
        self.shown = masked.render_as_string(hide_password=True)
        backend, _, driver = url.drivername.partition("+")
        if backend not in _DRIVERS or driver not in ("", _DRIVERS[backend][1]):
            raise LedgerError(
                f"ledger {self.shown}: {url.drivername} is not supported, use sqlite or postgresql"
            )
        if backend == "sqlite" and url.database in (None, "", ":memory:"):
            raise LedgerError(
                f"ledger {self.shown}: an in-memory ledger does not outlive the process; name a file"
            )
        return url.set(drivername="+".join(_DRIVERS[backend]))

    def _opening(self, url: sql.URL) -> sql.Engine:
        wait = {"timeout": MIGRATION_WAIT_SECONDS_MAX} if self.backend == "sqlite" else {}
        return self._create(url, poolclass=sql.NullPool, connect_args=wait)

    def _create(self, url: sql.URL, **options) -> sql.Engine:
        try:
            engine = sql.create_engine(url, hide_parameters=True, **options)
            if (file := self.file) is not None:
                event.listen(engine, "do_connect", lambda *_: make_private(file))
            return engine
        except (exc.SQLAlchemyError, ModuleNotFoundError, ValueError, TypeError) as error:
            raise self.error(error) from None

    def _query(self, statement_seconds: int, lock_seconds: int) -> sql.URL:
        """The URL with our limits; limits in the given URL override them."""
        if self.backend == "sqlite":
            return self._url
        settings = {
            "statement_timeout": statement_seconds * 1000,
            "lock_timeout": lock_seconds * 1000,
            "idle_in_transaction_session_timeout": (IDLE_SECONDS_MAX if statement_seconds else 60) * 1000,
            "synchronous_commit": "on",
        }
        given = self._url.query
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        query = {
            "connect_timeout": str(CONNECT_SECONDS_MAX),
            "application_name": "goodput",
            **given,
            "client_encoding": "utf8",  # whatever the database's encoding or the environment says
            "options": f"{options} {given.get('options', '')}".strip(),
        }
        return self._url.set(query=query)


def _why_unopened(file: str) -> str:
    """Why SQLite cannot open a file, which its own message leaves out; empty if that is not seen here."""
    folder = os.path.dirname(file) or "."
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"this user may not write to {folder}"
    try:
        with open(file, "r+b"):
            return ""
    except OSError as error:
        return error.strerror or ""


def _is_of_damage(error: Exception, text: str) -> bool:
    """Whether what a row or a page holds could not be decoded."""
    decoding = (
        msgspec.DecodeError,
        zlib.error,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        MemoryError,
    )
    is_of_writing = isinstance(error, OverflowError | UnicodeEncodeError)
    is_unreadable = any(sign in text for sign in _UNREADABLE)
    return is_unreadable or (isinstance(error, decoding) and not is_of_writing)


def _clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an error: psycopg's keep the socket of a failed attempt open until the next collection."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def make_private(path: str) -> None:
    """Create an SQLite file with mode 0600, which its journals get too; take from others what they may do with one.

    A group that may read it is left so: an administrator set that. What belongs to another user is left as it is.
    """
    with suppress(FileExistsError, OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(OSError):
            mode = stat.S_IMODE(os.stat(name).st_mode)
            if mode & stat.S_IRWXO:
                os.chmod(name, 0o600)


def insert(dialect: str, table: sql.Table):
    """An INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`, which both dialects have."""
    # The other dialect, of PostgreSQL for most, takes 2 MiB.
    return importlib.import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def _configure_sqlite(connection, _record) -> None:
    """WAL, so that readers and the writer do not block each other; FULL, so that commits survive a power loss."""
    connection.execute(f"PRAGMA busy_timeout={LOCK_SECONDS_MAX * 1000}")
    end = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            # The busy timeout does not apply to this pragma; it only matters when the ledger is created.
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=FULL")
    # By default each 1000th page: pages that are written again and again would be moved as often.
    connection.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES_MAX}")


def _take_over_transactions(connection, _record) -> None:
    """Control transactions ourselves: Python's sqlite3 leaves CREATE and DROP outside of them."""
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")


def _bound_silence(engine: sql.Engine) -> None:
    """Disconnect from a server that does not answer; test a connection that was idle before using it."""
    connection_type = _bounded_connection(engine.dialect.loaded_dbapi)

    def checkout(connection, record, _proxy):
        if time.monotonic() - record.info.get("used", -FRESH_SECONDS) < FRESH_SECONDS:
            return
        try:
            connection.execute("SELECT 1")
            connection.rollback()
        except Exception as error:
            raise exc.DisconnectionError(str(error)) from None

    def checkin(_connection, record):
        record.info["used"] = time.monotonic()

    event.listen(
        engine, "do_connect", lambda _dialect, _record, args, kwargs: connection_type.connect(*args, **kwargs)
    )
    event.listen(engine, "checkout", checkout)
    event.listen(engine, "checkin", checkin)


def _bounded_connection(psycopg) -> type:
    """A connection that is closed when the server sends nothing for SILENT_SECONDS_MAX.

    A statement timeout is enforced by the server, which may be frozen, and TCP's timeouts do not notice that: the
    kernel of a frozen process still acknowledges what it is sent.
    """

    def bounded(connection, exchange: Generator):
        """Psycopg sends an exchange 0 ten times a second while nothing arrives."""
        last_heard = time.monotonic()
        try:
            wanted = next(exchange)
            while True:
                ready = yield wanted
                if ready:
                    last_heard = time.monotonic()
                elif time.monotonic() - last_heard > SILENT_SECONDS_MAX:
                    connection.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer for {SILENT_SECONDS_MAX} s, disconnected")
                wanted = exchange.send(ready)
        except StopIteration as done:
            return done.value

    class Connection(psycopg.Connection):
        def wait(self, gen, *args, **kwargs):
            return super().wait(bounded(self, gen), *args, **kwargs)

    return Connection
