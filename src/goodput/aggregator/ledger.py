"""The ledger: what must outlive the aggregator, in SQLite (WAL) or PostgreSQL through SQLAlchemy Core.

In: what each report brought (store.Merged). Out: at start, rank reports from which the store is whole again,
each under the attempt number that the store had given it.
Rows lie in chunks as they came, MessagePack in one column, so a push of a rank is one insert. Every write is
keyed and repeatable. A push is acknowledged only when its transaction is committed.

It knows nothing of states or accounts; opening it creates the tables, or refuses a newer version's.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite

from goodput import schema
from goodput.aggregator.store import Merged

VERSION = 1

_tables = sql.MetaData()
_meta = sql.Table("ledger", _tables, sql.Column("version", sql.Integer, primary_key=True))
_KEY = ("run", "rank", "host", "pid", "start_ns")


def _key_columns() -> list[sql.Column]:
    return [
        sql.Column("run", sql.String(128), primary_key=True),
        sql.Column("rank", sql.Integer, primary_key=True),
        sql.Column("host", sql.String(255), primary_key=True),
        sql.Column("pid", sql.BigInteger, primary_key=True),
        sql.Column("start_ns", sql.BigInteger, primary_key=True),
    ]


_processes = sql.Table(
    "processes",
    _tables,
    *_key_columns(),
    sql.Column("sequence", sql.BigInteger, nullable=False),
    # A schema.RankReport without steps and events: identity, phases and the last live part.
    sql.Column("report", sql.LargeBinary, nullable=False),
)
_chunks = sql.Table(
    "step_chunks",
    _tables,
    *_key_columns(),
    sql.Column("first", sql.BigInteger, primary_key=True),
    sql.Column("last", sql.BigInteger, primary_key=True),
    sql.Column("rows", sql.LargeBinary, nullable=False),
)
_events = sql.Table(
    "events",
    _tables,
    *_key_columns(),
    sql.Column("number", sql.BigInteger, primary_key=True),
    sql.Column("kind", sql.String(32), nullable=False),
    sql.Column("time_ns", sql.BigInteger, nullable=False),
    sql.Column("step", sql.BigInteger, nullable=False),
    sql.Column("text", sql.String(255), nullable=False),
)

_rows_decoder = msgspec.msgpack.Decoder(list[schema.StepRow])
_report_decoder = msgspec.msgpack.Decoder(schema.RankReport)


class LedgerError(Exception):
    """The ledger cannot be opened or written; the text says which and why."""


class Ledger:
    """One database. `append` and `reports` block: call them off the event loop."""

    def __init__(self, url: str):
        self.url = "URL"
        try:
            parsed = sql.engine.make_url(url)
            self.url = parsed.render_as_string(hide_password=True)
            if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
                raise LedgerError(f"ledger {self.url}: a ledger in memory outlives nothing; name a file")
            self._engine = sql.create_engine(url)
            if self._engine.dialect.name == "sqlite":
                sql.event.listen(self._engine, "connect", _configure_sqlite)
            self._insert = {"sqlite": sqlite, "postgresql": postgresql}[self._engine.dialect.name].insert
            with self._engine.begin() as connection:
                _meta.create(connection, checkfirst=True)
                found = connection.execute(sql.select(_meta.c.version)).scalars().all()
                if not found:
                    connection.execute(_meta.insert().values(version=VERSION))
                if max(found, default=VERSION) <= VERSION:
                    _tables.create_all(connection)
        except KeyError as error:
            raise LedgerError(
                f"ledger {self.url}: {error} is not supported, use sqlite or postgresql"
            ) from None
        except (sql.exc.SQLAlchemyError, ModuleNotFoundError, ValueError, TypeError) as error:
            raise LedgerError(f"ledger {self.url}: {_cause(error)}") from None
        if found and max(found) > VERSION:
            raise LedgerError(f"ledger {self.url} has version {max(found)}, this program knows {VERSION}")

    def close(self) -> None:
        self._engine.dispose()

    def append(self, batch: list[Merged]) -> None:
        """Write what these reports brought, in one transaction. Raises LedgerError; then nothing is written."""
        chunks, events, processes = [], [], {}
        for merged in batch:
            key = _key(merged.report.identity)
            if merged.rows:
                numbers = [row.number for row in merged.rows]
                rows = msgspec.msgpack.encode(merged.rows)
                chunks.append({**key, "first": min(numbers), "last": max(numbers), "rows": rows})
            events += [{**key, **_event_columns(event)} for event in merged.events]
            before = processes.get(tuple(key.values()))
            if before is None or before["sequence"] < merged.report.sequence:
                processes[tuple(key.values())] = {
                    **key,
                    "sequence": merged.report.sequence,
                    "report": msgspec.msgpack.encode(merged.report),
                }
        try:
            with self._engine.begin() as connection:
                self._put(connection, _chunks, chunks)
                self._put(connection, _events, events)
                self._put(connection, _processes, list(processes.values()), newest="sequence")
        except sql.exc.SQLAlchemyError as error:
            raise LedgerError(f"ledger {self.url}: {_cause(error)}") from None

    def reports(self) -> Iterator[schema.RankReport]:
        """Everything in the ledger as rank reports, one per process, oldest process first. Raises LedgerError."""
        try:
            yield from self._reports()
        except (sql.exc.SQLAlchemyError, msgspec.DecodeError, TypeError) as error:
            raise LedgerError(f"ledger {self.url}: {_cause(error)}") from None

    def _reports(self) -> Iterator[schema.RankReport]:
        with self._engine.connect() as connection:
            order = (_processes.c.start_ns, _processes.c.rank)
            for found in connection.execute(sql.select(_processes).order_by(*order)).mappings().all():
                key = {name: found[name] for name in _KEY}
                yield msgspec.structs.replace(
                    _report_decoder.decode(found["report"]),
                    steps=[
                        row
                        for blob in connection.execute(_select(_chunks, key, _chunks.c.rows)).scalars()
                        for row in _rows_decoder.decode(blob)
                    ],
                    events=[
                        schema.EventRow(*row)
                        for row in connection.execute(
                            _select(_events, key, *(_events.c[n] for n in schema.EventRow.__struct_fields__))
                        )
                    ],
                )

    def _put(self, connection, table: sql.Table, values: list[dict], newest: str | None = None) -> None:
        """Insert rows that are not there; with `newest`, replace those whose column has a lower value."""
        if not values:
            return
        insert = self._insert(table)
        if newest is None:
            statement = insert.on_conflict_do_nothing()
        else:
            statement = insert.on_conflict_do_update(
                index_elements=list(table.primary_key.columns),
                set_={c.name: insert.excluded[c.name] for c in table.columns if not c.primary_key},
                where=table.c[newest] < insert.excluded[newest],
            )
        connection.execute(statement, values)


def _key(identity: schema.Identity) -> dict:
    return {name: getattr(identity, name) for name in _KEY}


def _event_columns(event: schema.EventRow) -> dict:
    """PostgreSQL's text holds every character but NUL, which a user's mark may have."""
    return {**msgspec.structs.asdict(event), "text": event.text.replace("\0", "")}


def _select(table: sql.Table, key: dict, *columns):
    return sql.select(*columns).where(*(table.c[name] == value for name, value in key.items()))


def _configure_sqlite(connection, _record) -> None:
    """WAL, so that readers and the writer do not wait for each other; a commit is on disk when it returns."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA busy_timeout=5000")


def _cause(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).split("\n")[0]
