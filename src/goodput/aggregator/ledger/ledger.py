"""The ledger: what must outlive the aggregator, in SQLite (WAL) or PostgreSQL through SQLAlchemy Core.

Step rows are stored as step blocks (blocks.py): a push is one insert per rank, and small blocks are merged later
(compaction.py). Every write is keyed and repeatable, and committed when it returns. Readers hold a page of blocks, some
MB, and keep no transaction open between pages (block_reader.py).

    for process in ledger.processes("r1"):
        for row in ledger.rows(process.identity, start_ns=an_hour_ago):
            ...
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter

import msgspec
import numpy as np
import sqlalchemy as sql
from sqlalchemy import exc
from sqlalchemy.sql.elements import KeyedColumnElement

from goodput.account import EndMark
from goodput.aggregator.ledger import checksums, migrations, segments, write_ahead_log
from goodput.aggregator.ledger.block_reader import KEY, Moments, Window, read, read_tails
from goodput.aggregator.ledger.blocks import COLUMNS, EVERY_ROW, as_columns, columns_of, step_rows
from goodput.aggregator.ledger.database import (
    LOCK_SECONDS_MAX,
    DamagedData,
    Database,
    LedgerError,
    ValuesRefused,
)
from goodput.aggregator.ledger.inserts import Write, put
from goodput.aggregator.ledger.migrations.versions import version_4, version_5
from goodput.aggregator.ledger.owner import LOCK_FILE_SUFFIX
from goodput.aggregator.ledger.page_reader import PageBounds, PageReader, ProcessRows, numbers_before
from goodput.aggregator.ledger.refused_rows import RefusedRows
from goodput.aggregator.ledger.stored_process import AnyProcess, ProcessKey, StoredProcess, decoded
from goodput.aggregator.records import SCOPED_OFFSET, HealthKey, NewRecords
from goodput.wire import schema
from goodput.wire.step_blocks import TOTALS
from goodput.wire.step_columns import StepColumns, widened

__all__ = ["Ledger", "LedgerError"]

PAGE_EVENTS = 10_000
# How many rows of a run those who fold them should have in memory: some 16 MB with ten phases.
ROWS_HELD = 1 << 16
TAILS_AT_ONCE = 128  # processes
_LOST_COMMITS = "The last backup has what is older; ranks that still run push again what their pages have once their agents are restarted"
log = logging.getLogger("goodput.aggregator")

_processes, _blocks, _events = version_5.processes, version_5.blocks, version_4.events
_health, _end_marks = version_4.health, version_5.ends
_BY_START = [_processes.c[name] for name in ("start_ns", "rank", "run", "host", "pid")]
_EVENT = [_events.c[name] for name in schema.EventRow.__struct_fields__]


# What is written of each table, the key first, in the order of the table.
_PROCESS_COLUMNS = (*KEY, "sequence", "report")
_BLOCK_COLUMNS = (*KEY, *COLUMNS)
_EVENT_COLUMNS = (*KEY, *schema.EventRow.__struct_fields__)
_HEALTH_COLUMNS = ("node", "number", "severity", "time_ns", "event")
_END_COLUMNS = (*KEY, *EndMark._fields, "set_ns")


def _of(table: sql.Table) -> list:
    """Conditions that select the process whose KEY is bound to the statement."""
    return [table.c[name] == sql.bindparam(name) for name in KEY]


# Built once: building a statement takes longer than SQLite takes to execute it.
_EVENTS_OF = sql.select(*checksums.columns(_events)).where(*_of(_events)).order_by(_events.c.number)

_key_values = attrgetter(*KEY)
_encoder = msgspec.msgpack.Encoder()
_report_decoder = msgspec.msgpack.Decoder(schema.RankReport)
_event_decoder = msgspec.msgpack.Decoder(schema.Health)


class Ledger:
    """One database. Methods block, so call them off the event loop, and raise nothing but LedgerError."""

    def __init__(
        self,
        url: str,
        create: bool = True,
        progress: migrations.Progress | None = None,
        migrate_later: bool = False,
    ):
        """Open, create or migrate the ledger. Without `create` an SQLite file must exist.

        The progress of a long migration, in step rows, is passed to `progress` every few seconds, or logged. With
        `migrate_later` a ledger of an earlier version is left to a call of `migrate`, before which nothing else works.
        """
        self._database = Database(url)
        self.url = self._database.shown
        if self._database.file is not None:
            _check_file(self._database.file, create)
        # Asked before it is opened: the first program that does ends the log.
        file = self._database.file
        self.lost_commits = "" if file is None else write_ahead_log.problem(file)
        if self.lost_commits:
            log.error(
                "ledger %s: %s, though agents take them for stored. %s",
                self.url,
                self.lost_commits,
                _LOST_COMMITS,
            )
        self.refused = RefusedRows(self.url)
        self.rows_held = ROWS_HELD
        self.has_damage = False  # whether something was read since this was reset that cannot be decoded
        self._engine = self._database.engine
        # Every read is one statement; a transaction around it would cost two more round trips.
        self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        if create:
            with self.errors():
                self._database.check_encoding()
        with self.errors(), self._database.inspecting().connect() as connection:
            self.is_old = not migrations.is_current(connection)
            is_convertible = migrations.version(connection) in migrations.EARLIER
        if not (migrate_later and is_convertible):
            self.migrate(progress)
        with self.errors(), self._engine.connect():
            pass  # A connection that fails should fail now.
        self._file = self._same_file()
        self._writer: sql.Connection | None = None
        self._writing = threading.Lock()
        # Called at the beginning of each transaction with the runs that it writes; raises LedgerError where this process
        # may not.
        self.check_write: Callable[[sql.Connection, Collection[str]], object] = lambda connection, runs: None
        # Rows that were appended here, by process, until they are merged: so that merging need not search for them.
        self.appended: Counter[tuple] = Counter()

    def migrate(self, progress: migrations.Progress | None = None) -> None:
        """Bring a ledger of an earlier version to the present one."""
        if not self.is_old:
            return
        try:
            with self.errors():
                migrations.migrate(self._database.migrating(), progress=progress or self._log_progress)
        except migrations.TooNew as found:
            raise LedgerError(
                f"ledger {self.url} has version {found.version}, this program knows up to {migrations.HEAD}; "
                "use the version of goodput that wrote it, or a newer one"
            ) from None
        self.is_old = False

    @property
    def file(self) -> str | None:
        """The file of an SQLite ledger, None for a server's."""
        return self._database.file

    def close(self) -> None:
        with self._writing:
            self._drop_writer()
        self._engine.dispose()

    def _log_progress(self, done: int, to_do: int) -> None:
        share = f"{100 * done // to_do} %"
        log.info("ledger %s: converted %d of about %d step rows, %s", self.url, done, to_do, share)

    def vacuum(self) -> None:
        """Give the free pages of an SQLite file back to the file system."""
        with self.errors(), self._reading.connect() as connection:
            connection.execute(sql.text("VACUUM"))

    def rebuild_indices(self) -> None:
        """Build the indices of an SQLite file anew from its tables, which agree with them no more."""
        with self.transaction() as connection:
            connection.execute(sql.text("REINDEX"))

    def _same_file(self) -> tuple[int, int] | None:
        """Device and inode of an SQLite file. Writes to a deleted file succeed and are lost when the process ends."""
        if self._database.file is None:
            return None
        try:
            found = os.stat(self._database.file)
        except OSError:
            return (0, 0)
        return (found.st_dev, found.st_ino)

    # ---- Writing

    def append(
        self,
        batch: list[NewRecords],
        health: Mapping[HealthKey, schema.Health] | None = None,
        new_segments: Iterable[segments.Segment] = (),
        late: Mapping[str, Mapping[segments.Key, int]] | None = None,
    ) -> None:
        """Write new records, health events and segments in one transaction. Raises LedgerError; then nothing is written.

        Rows that the database refuses for their values are left out (`refused`).
        `late` has, by run and attempt, the lowest number from which segments are wrong with these records.
        """
        if self._same_file() != self._file:
            raise LedgerError(f"ledger {self.url}: its file was deleted or replaced; restart the aggregator")
        blocks, events, processes = [], [], {}
        appended: list[tuple[tuple, int]] = []
        for merged in batch:
            report = merged.report
            process = _key_values(report.identity)
            for block in merged.blocks:
                blocks.append((*process, *columns_of(block, EVERY_ROW)))
                appended.append((process, block.rows))
            for event in merged.events:
                events.append((*process, *_event_columns(event)))
            if process not in processes or processes[process].sequence < report.sequence:
                processes[process] = report
        reports = [(*key, report.sequence, _encoder.encode(report)) for key, report in processes.items()]
        health_rows = [_health_columns(key, event) for key, event in (health or {}).items()]
        writes = [
            Write(_processes, _PROCESS_COLUMNS, reports, "sequence"),
            Write(_blocks, _BLOCK_COLUMNS, blocks),
            Write(_events, _EVENT_COLUMNS, events),
            Write(_health, _HEALTH_COLUMNS, health_rows),
        ]
        late, new_segments = late or {}, list(new_segments)
        runs = {key[0] for key in processes}
        try:
            with self.transaction(runs) as connection:
                for write in writes:
                    put(connection, *write)
                for run, numbers in late.items():
                    segments.drop_wrong(connection, run, numbers)
                for segment in new_segments:
                    segments.put(connection, segment)
        except ValuesRefused:
            self._append_apart(runs, writes, late, new_segments)
        for process, rows in appended:
            self.appended[process] += rows

    def _append_apart(
        self,
        runs: Collection[str],
        writes: list[Write],
        late: Mapping[str, Mapping[segments.Key, int]],
        new_segments: Sequence[segments.Segment],
    ) -> None:
        """The same without the rows that the database refuses. Raises LedgerError; then nothing is written."""
        with self._apart(runs) as connection:
            gone: set[tuple] = set()
            for table, names, rows, newest in writes:
                if table is _events:  # They name their process, and do not need it.
                    left = [row for row in rows if row[: len(KEY)] not in gone]
                    self.refused.count(table.name, len(rows) - len(left))
                    rows = left
                put_rows = partial(put, connection, table, names, newest=newest)
                refused = self.refused.put_apart(connection, table.name, rows, put_rows)
                if table is _processes:
                    gone = {row[: len(KEY)] for row in refused}
            tables = (
                ("late", late.items(), segments.drop_wrong),
                (
                    "segments",
                    ((one.run, one) for one in new_segments),
                    lambda connection, _, one: segments.put(connection, one),
                ),
            )
            for name, values, write in tables:
                for row in values:
                    self.refused.put_apart(
                        connection, name, [row], lambda rows, write=write: write(connection, *rows[0])
                    )

    @contextmanager
    def _apart(self, runs: Collection[str]) -> Iterator[sql.Connection]:
        """A transaction with savepoints."""
        with self.transaction(runs) as connection:
            driver = connection.connection.driver_connection
            if isinstance(driver, sqlite3.Connection) and not driver.in_transaction:
                # Python's sqlite3 begins one at the first INSERT; the release of a savepoint before it would commit.
                connection.exec_driver_sql("BEGIN")
            yield connection

    def end(self, marks: list[tuple[schema.Identity, EndMark]], set_ns: int) -> None:
        """Write end marks of processes, set at `set_ns`; a later mark of a process replaces an earlier one."""
        rows = [(*_key_values(of), *mark, set_ns) for of, mark in marks]
        runs = {of.run for of, _ in marks}
        try:
            with self.transaction(runs) as connection:
                put(connection, _end_marks, _END_COLUMNS, rows, newest="set_ns")
        except ValuesRefused:
            with self._apart(runs) as connection:
                put_rows = partial(put, connection, _end_marks, _END_COLUMNS, newest="set_ns")
                self.refused.put_apart(connection, _end_marks.name, rows, put_rows)

    # ---- Reading

    def runs(self) -> list[str]:
        """Names of all runs, ordered by the start of their first process."""
        start_ns = sql.func.min(_processes.c.start_ns)
        query = sql.select(_processes.c.run).group_by(_processes.c.run).order_by(start_ns, _processes.c.run)
        return list(self.fetch(query).scalars())

    def starts(self) -> dict[str, int]:
        """The starts of all runs in unix ns, the run that reported last being the first."""
        start_ns, reported = sql.func.min(_processes.c.start_ns), sql.func.max(_processes.c.sequence)
        query = sql.select(_processes.c.run, start_ns).group_by(_processes.c.run)
        return {run: int(ns) for run, ns in self.fetch(query.order_by(reported.desc(), _processes.c.run))}

    def count_processes(self, run: str | None = None) -> int:
        """How many rank processes a run or all runs have."""
        query = sql.select(sql.func.count()).select_from(_processes)
        return self.fetch(query if run is None else query.where(_processes.c.run == run)).scalar_one()

    def processes(self, run: str) -> list[schema.RankReport]:
        """The processes of a run, oldest first, without steps and events."""
        with self.errors():
            return [_report_decoder.decode(report) for report in self._reports(run)]

    def sources(self, run: str) -> list[StoredProcess]:
        """The same as those need them who read their rows."""
        with self.errors():
            return decoded(self._reports(run))

    def _reports(self, run: str) -> Iterator[bytes]:
        query = sql.select(*checksums.columns(_processes)).where(_processes.c.run == run)
        for row in checksums.checked(_processes, self.fetch(query.order_by(*_BY_START))):
            yield row.report

    def attempt_keys(self, run: str) -> dict[int, segments.Key]:
        """The rank and number of the attempt that each process of a run is, by its id."""
        query = sql.select(_processes.c.id, _processes.c.report).where(_processes.c.run == run)
        with self.errors():
            found = {id: _report_decoder.decode(report) for id, report in self.fetch(query)}
        return {id: (one.identity.rank, one.identity.attempt) for id, one in sorted(found.items())}

    def ends(self, run: str) -> dict[schema.StackRequest, EndMark]:
        """The end marks of the run's processes."""
        query = sql.select(*checksums.columns(_end_marks)).where(_end_marks.c.run == run)
        with self.errors():
            found = checksums.checked(_end_marks, self.fetch(query))
        return {
            schema.StackRequest(*(getattr(row, name) for name in KEY)): EndMark(
                row.reason, row.at_ns, row.until_ns
            )
            for row in found
        }

    def rows(
        self, identity: schema.Identity, start_ns: int | None = None, end_ns: int | None = None
    ) -> Iterator[schema.StepRow]:
        """A process's rows in ascending number, each number once.

        With `start_ns` or `end_ns` (unix ns on the process's host), the rows that touch that window, ends included;
        blocks outside of it are not read. Phases that a row lacks are zero.
        """
        with self.errors():
            for values in read(self.fetch, _key(identity), Window(start_ns, end_ns)):
                yield from step_rows(values)

    def columns(
        self,
        process: schema.RankReport | StoredProcess,
        start_ns: int | None = None,
        end_ns: int | None = None,
        after: int = 0,
        page_blocks: int = 0,
    ) -> Iterator[StepColumns]:
        """The same rows as columns, of at least the phases of the process's report, those with numbers above `after`.

        Up to `page_blocks` thousand at a time.
        """
        key, width = _key(process.identity), len(process.phases)
        with self.errors():
            window = Window(start_ns, end_ns)
            for values in read(self.fetch, key, window, width, after, page_blocks):
                yield as_columns(values)

    def rows_at(
        self, process: schema.RankReport | StoredProcess, at_ns: Sequence[int], after: int = 0
    ) -> np.ndarray:
        """The rows that touch one of these times (ascending unix ns on the process's host), as columns."""
        key, width = _key(process.identity), len(process.phases)
        with self.errors():
            # All at once: a generator would hold the blocks around its last row.
            parts = list(read(self.fetch, key, Moments(at_ns), width, after)) if at_ns else []
        width = max([width, *((len(part) - TOTALS) // 2 for part in parts)])
        parts = [np.zeros((TOTALS + 2 * width, 0), np.int64), *(widened(part, width) for part in parts)]
        return np.concatenate(parts, axis=1)

    def tails(
        self, processes: Sequence[AnyProcess], after: Sequence[int]
    ) -> Iterator[tuple[AnyProcess, StepColumns]]:
        """The rows of each of these processes of one run that have numbers above `after`, some processes at a time."""
        of = dict(zip(self._ids(processes), processes, strict=True))
        numbers = list(zip(of, after, strict=True))
        with self.errors():
            for at in range(0, len(numbers), TAILS_AT_ONCE):
                some = dict(numbers[at : at + TAILS_AT_ONCE])
                widths = {process: len(of[process].phases) for process in some}
                for process, values in read_tails(self.fetch, some, widths):
                    if values is None:
                        for more in self.columns(of[process], after=some[process]):
                            yield of[process], more
                    elif values.shape[1]:
                        yield of[process], as_columns(values)

    def pages(
        self, processes: Sequence[AnyProcess], bounds: Sequence[PageBounds], rows: int
    ) -> list[Iterator[np.ndarray]]:
        """The rows of each of these processes of one run that have numbers above those of its bounds, as columns.

        Up to about `rows` at a time; read for many processes at once when the first of them is needed. Raises
        LedgerError, also while they are read.
        """
        ids = self._ids(processes)
        late = {id: one.from_ns for id, one in zip(ids, bounds, strict=True) if one.from_ns is not None}
        with self.errors():
            after = numbers_before(self.fetch, late)
        wanted = [
            ProcessRows(id, len(process.phases), max(one.after, after.get(id, 0)), one.until_ns, one.from_ns)
            for id, process, one in zip(ids, processes, bounds, strict=True)
        ]
        reader = PageReader(self.fetch, wanted, rows)
        return [self._translated(reader.pages(one)) for one in wanted]

    def _translated(self, pages: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        with self.errors():
            yield from pages

    def _ids(self, processes: Sequence[AnyProcess]) -> list[int]:
        """The ids of these processes of one run."""
        run = processes[0].identity.run if processes else ""
        columns = [_processes.c.id, *(_processes.c[name] for name in KEY)]
        found = self.fetch(sql.select(*columns).where(_processes.c.run == run)).all()
        ids = {tuple(key): id for id, *key in found}
        for one in processes:
            if _key_values(one.identity) not in ids:
                self.has_damage = True
                raise DamagedData(
                    f"ledger {self.url}: it has no process of rank {one.identity.rank} of run {run!r} any more"
                )
        return [ids[_key_values(one.identity)] for one in processes]

    def events_of_run(self, run: str) -> dict[schema.StackRequest, list[schema.EventRow]]:
        """The events of a run's processes, each one's in ascending number."""
        query = sql.select(*checksums.columns(_events)).where(_events.c.run == run)
        found: dict[schema.StackRequest, list[schema.EventRow]] = {}
        with self.errors():
            rows = checksums.checked(_events, self.fetch(query.order_by(_events.c.number)))
        for *values, _ in rows:
            key = schema.StackRequest(*values[: len(KEY)])
            found.setdefault(key, []).append(schema.EventRow(*values[len(KEY) :]))
        return found

    def segments(self, run: str) -> Iterator[bytes]:
        """The segments of a run, newest first, each read when it is needed."""
        return segments.newest_first(self.fetch, run)

    def segment_rows(self, run: str) -> list[int]:
        """How many rows each segment of a run has, ascending."""
        return segments.listed(self.fetch, run)

    def segment(self, run: str, rows: int) -> bytes | None:
        """The segment with so many rows, None if it was dropped meanwhile."""
        return segments.body(self.fetch, run, rows)

    def events(self, identity: schema.Identity) -> list[schema.EventRow]:
        """A process's events in ascending number."""
        with self.errors():
            rows = checksums.checked(_events, self.fetch(_EVENTS_OF, _key(identity)))
        return [schema.EventRow(*row[len(KEY) : -1]) for row in rows]

    def health(self, per_node: int) -> Iterator[tuple[str, schema.Health]]:
        """(node, event) of each node's `per_node` most severe events, newest first within a severity.

        As many again of those pushed with a token for some runs. An event's number is its key's (records.health_key).
        """
        order_by = [_health.c.severity.desc(), _health.c.time_ns.desc(), _health.c.number.desc()]
        parts = [_health.c.node, _health.c.number >= SCOPED_OFFSET]
        place = sql.func.row_number().over(partition_by=parts, order_by=order_by).label("place")
        placed = sql.select(_health, place).subquery()
        of_health = [placed.c[column.name] for column in checksums.columns(_health)]
        query = sql.select(*of_health).where(placed.c.place <= per_node)
        order = [placed.c.node, placed.c.number]
        with self.errors():
            for found in self._pages(query.order_by(*order), order, PAGE_EVENTS):
                checksums.checked(_health, [found])
                yield (
                    found.node,
                    msgspec.structs.replace(_event_decoder.decode(found.event), number=found.number),
                )

    def _pages(
        self, query: sql.Select, order: Sequence[KeyedColumnElement], count: int, key: dict | None = None
    ) -> Iterator[sql.Row]:
        """The rows of a query ordered by `order`, `count` at a time, each page on its own connection."""
        found = self.fetch(query.limit(count), key).all()
        while found:
            yield from found
            if len(found) < count:
                return
            after = sql.tuple_(*(getattr(found[-1], column.key) for column in order))
            found = self.fetch(query.where(sql.tuple_(*order) > after).limit(count), key).all()

    # ---- Access to the database

    def fetch(self, query: sql.Select | sql.TextClause, key: dict | None = None) -> sql.Result:
        """The rows of a query in no transaction. Raises LedgerError."""
        with self.errors(), self._reading.connect() as connection:
            return connection.execute(query, key).freeze()()

    @contextmanager
    def transaction(self, runs: Collection[str] = ()) -> Iterator[sql.Connection]:
        """A transaction that is committed at the end, which writes these runs. Raises LedgerError."""
        with self.errors(), self._connection() as connection, connection.begin():
            self.check_write(connection, runs)
            yield connection

    @contextmanager
    def _connection(self) -> Iterator[sql.Connection]:
        """A connection that writes. In SQLite one at a time can, so one is kept: the pool costs as much as a push's rows."""
        if self._database.file is None:
            with self._engine.connect() as connection:
                yield connection
            return
        if not self._writing.acquire(timeout=LOCK_SECONDS_MAX):
            raise LedgerError(f"ledger {self.url}: database is locked")
        try:
            self._writer = self._writer or self._engine.connect()
            yield self._writer
        except BaseException:
            self._drop_writer()
            raise
        finally:
            self._writing.release()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of the database, and of decoding what it has, as LedgerError."""
        try:
            yield
        except (
            exc.SQLAlchemyError,
            sqlite3.Error,
            msgspec.DecodeError,
            zlib.error,
            ModuleNotFoundError,
            TypeError,
            ValueError,
            OverflowError,
        ) as error:
            found = self._database.error(error)
            self.has_damage |= isinstance(found, DamagedData)
            raise found from None


def _check_file(file: str, create: bool) -> None:
    """Raise LedgerError for a file that cannot be what is wanted; SQLite takes one of 0 bytes for a new database."""
    try:
        is_empty = os.path.getsize(file) == 0
    except OSError:
        if create:
            return
        raise LedgerError(f"there is no ledger {file}") from None
    traces = [name for name in (f"{file}{LOCK_FILE_SUFFIX}", f"{file}-wal") if os.path.exists(name)]
    if is_empty and (traces or not create):
        beside = f", though {traces[0]} says that it was a ledger" if traces else ""
        raise LedgerError(
            f"ledger {file} has 0 bytes{beside}: what was in it is lost. Put the last backup in its place; to begin "
            f"with an empty one, remove {file} and all files {file}-*"
        )


def _key(identity: schema.Identity | ProcessKey) -> dict:
    return dict(zip(KEY, _key_values(identity), strict=True))


def _health_columns(key: HealthKey, event: schema.Health) -> tuple:
    node, number = key
    severity = schema.SEVERITIES.index(event.severity)
    encoded = msgspec.msgpack.encode(event)
    return node, number, severity, event.time_ns, encoded


def _event_columns(event: schema.EventRow) -> tuple:
    """PostgreSQL's text type rejects NUL, which the text of a user's mark may contain."""
    return msgspec.structs.astuple(msgspec.structs.replace(event, text=event.text.replace("\0", "")))
