"""At most one aggregator serves a ledger: each keeps runs in memory and would miss what another one stores.

The lock ends with the process, however it ends: flock on a file beside an SQLite ledger, an advisory lock of a session
in PostgreSQL. A database that restarts drops the locks of all sessions, so the owner checks its own and takes it again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import sqlalchemy as sql
from sqlalchemy import exc

from goodput.aggregator.ledger.database import Database, LedgerError

log = logging.getLogger("goodput.aggregator")
CHECK_SECONDS = 5.0
WAIT_SECONDS_MAX = 10.0  # for an aggregator that is being replaced to end
RETRY_SECONDS = 0.2
LOCK_FILE_SUFFIX = "-owner"
# The first key is arbitrary; the second distinguishes ledgers in one database.
_KEYS = "x'600d9075'::int, hashtext(current_schema()::text)"
_TRY = sql.text(f"SELECT pg_try_advisory_lock({_KEYS})")
_TRY_SHARED = sql.text(f"SELECT pg_try_advisory_lock_shared({_KEYS})")
_HOLDER = sql.text(
    f"""SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid, objid) = (SELECT a::oid, (b::bit(32)::bigint)::oid FROM (SELECT {_KEYS}) AS keys (a, b))"""
)
_NAME = sql.text("SELECT set_config('application_name', :name, false)")
# The server notices within half a minute that the owner's machine is gone.
_KEEPALIVES = ("tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3")


class _Lock(Protocol):
    def take(self) -> bool:
        """Take the lock, or check that it is still held; False where another process has it. Raises LedgerError."""
        ...

    def holder(self) -> str:
        """Who has it, for a message."""
        ...

    def release(self) -> None: ...


class LedgerOwner:
    """The right of this process to serve a ledger, alone or with others of which all have `is_shared`, since they divide
    its runs among them. Methods block, so call them off the event loop."""

    def __init__(self, url: str, is_shared: bool = False):
        """An SQLite ledger is never shared."""
        database = Database(url)
        self._shown, self._is_shared = database.shown, is_shared
        self._lock: _Lock = (
            _SessionLock(database, is_shared) if database.file is None else _FileLock(database.file)
        )

    def acquire(
        self,
        is_stopping: Callable[[], bool] = lambda: False,
        wait_seconds: float | None = None,
        settle_seconds: float = CHECK_SECONDS + 1,
    ) -> None:
        """Become the owner; raise LedgerError where another aggregator still is after `wait_seconds` (WAIT_SECONDS_MAX).

        After a wait the ledger is left alone for `settle_seconds` more: an owner whose database restarted has noticed
        by then that it is none any more.
        """
        wait_seconds = WAIT_SECONDS_MAX if wait_seconds is None else wait_seconds
        end = time.monotonic() + wait_seconds
        if self._lock.take():
            return
        where = f"ledger {self._shown}: another aggregator serves it{self._lock.holder()}"
        log.info("%s; waiting up to %g s for it to end", where, wait_seconds)
        while not self._lock.take():
            if is_stopping() or time.monotonic() > end:
                raise self._refusal()
            time.sleep(RETRY_SECONDS)
        if isinstance(self._lock, _SessionLock):
            time.sleep(settle_seconds)

    def check(self) -> None:
        """Raise LedgerError if another aggregator has become the owner; an unreachable database is no reason."""
        try:
            if self._lock.take():
                return
        except LedgerError:
            return
        raise self._refusal()

    def release(self) -> None:
        self._lock.release()

    def _refusal(self) -> LedgerError:
        who = f"ledger {self._shown}: another aggregator serves it{self._lock.holder()}"
        if self._is_shared:
            return LedgerError(f"{who} without --stream; stop that one, or start it with the same --stream")
        return LedgerError(
            f"{who}, and two would each miss what the other stores; stop that one, give this one a ledger of its own with "
            "--ledger, or have both divide the runs over a --stream (docs/scale.md)"
        )


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


class _FileLock:
    def __init__(self, ledger_file: str):
        self._path = os.path.realpath(ledger_file) + LOCK_FILE_SUFFIX
        self._descriptor: int | None = None

    def take(self) -> bool:
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"{self._path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise LedgerError(f"{self._path}: cannot be locked: {error.strerror}") from None
        self._descriptor = descriptor
        with suppress(OSError):  # A full disk: the note is for a message only.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _this_process().encode(), 0)
        return True

    def holder(self) -> str:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return ""
        with os.fdopen(descriptor, errors="replace") as file:
            note = file.read(200)
        return f" ({note.strip()})" if note.strip().isprintable() and note.strip() else ""

    def release(self) -> None:
        """The file stays: without it two processes could lock two files of this name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _SessionLock:
    def __init__(self, database: Database, is_shared: bool):
        self._database, self._try = database, _TRY_SHARED if is_shared else _TRY
        self._engine = database.inspecting().execution_options(isolation_level="AUTOCOMMIT")
        self._session: sql.Connection | None = None

    def take(self) -> bool:
        try:
            if self._session is not None:
                self._session.execute(sql.text("SELECT 1"))
                return True
            return self._take()
        except exc.SQLAlchemyError as error:
            self.release()
            raise self._database.error(error) from None

    def _take(self) -> bool:
        session = self._engine.connect()
        try:
            for setting in _KEEPALIVES:
                session.execute(sql.text(f"SET {setting}"))
            session.execute(_NAME, {"name": _this_process()})
            if session.execute(self._try).scalar():
                self._session = session
                return True
            return False
        finally:
            if self._session is not session:
                session.close()

    def holder(self) -> str:
        try:
            with self._engine.connect() as connection:
                found = connection.execute(_HOLDER).scalar()
        except exc.SQLAlchemyError:
            return ""
        return f" ({found})" if found else ""

    def release(self) -> None:
        if self._session is not None:
            with suppress(exc.SQLAlchemyError):
                self._session.invalidate()
                self._session.close()
            self._session = None
