"""Rows of a ledger that hold what nobody has written, such as after a flipped bit, and setting them aside.

A row is damaged where a text is no UTF-8, what is packed in it cannot be decoded, or its columns contradict each other. One
such row would fail every query that reads it, and with these the start of an aggregator. `set_aside` moves them, as they are,
to the table `damaged_rows`, so that the rest is served; agents push again what they still have, and the ledger's backup has
the others. Pages that the database itself cannot read are another matter: it refuses them.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sql

from goodput.aggregator.ledger import blocks, checksums
from goodput.aggregator.ledger.checksums import CHECKSUM
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.migrations.versions import version_4, version_5, version_7
from goodput.wire import schema
from goodput.wire.step_blocks import END, NUMBER, START

log = logging.getLogger("goodput.aggregator")
PAGE_ROWS, LOGGED_MAX = 256, 100
LARGE_ROWS = 8  # a page of segments, which may have some MB each
Result = TypeVar("Result")
_processes, _blocks = version_5.processes, version_5.blocks
_KEY = [column.name for column in version_4.key_columns()]
# Made where it is needed; no version of the ledger has it from the start.
DAMAGED = sql.Table(
    "damaged_rows",
    sql.MetaData(),
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("of", sql.String(64), nullable=False),  # its table
    sql.Column("reason", sql.String, nullable=False),
    sql.Column("row", sql.LargeBinary, nullable=False),  # its columns by name in MessagePack, texts as bytes
)
_report_decoder = msgspec.msgpack.Decoder(schema.RankReport)
_event_decoder = msgspec.msgpack.Decoder(schema.Health)
_numbers_decoder = msgspec.msgpack.Decoder(dict[tuple[int, int], int])


class DamagedRow(NamedTuple):
    table: sql.Table
    row: Any  # its place
    values: dict[str, Any]
    reason: str

    def run(self) -> str | None:
        """The run of which it was, None where that is not known."""
        found = self.values.get("run")
        return found.decode(errors="replace") if isinstance(found, bytes) else found

    def text(self) -> str:
        of = {
            name: self.values[name]
            for name in ("run", "rank", "pid", "node", "number", "process", "id")
            if name in self.values
        }
        where = ", ".join(f"{name} {_shown(value)}" for name, value in of.items())
        return f"table {self.table.name}, row {self.row} ({where}): {self.reason}"


def _shown(value: object) -> str:
    return repr(value.decode(errors="backslashreplace")) if isinstance(value, bytes) else str(value)


def damaged_rows(ledger: Ledger, tables: Collection[sql.Table] | None = None) -> Iterator[DamagedRow]:
    """The damaged rows of a ledger. Reads all of it, a page at a time. Raises LedgerError."""
    for table in CHECKS if tables is None else tables:
        place, begin = _place(ledger)
        page_rows = LARGE_ROWS if "body" in table.columns else PAGE_ROWS
        page = _rows(ledger, table).order_by(place).limit(page_rows)
        after = begin
        while found := ledger.fetch(page.where(place > after)).mappings().all():
            for one in found:
                values = dict(one)
                after = row = values.pop("_row")
                if why := reason(table, values):
                    yield DamagedRow(table, row, values, why)


def _place(ledger: Ledger) -> tuple[sql.ColumnElement, Any]:
    """Where a row lies, and a place before all."""
    if ledger.file is not None:
        return sql.literal_column("rowid", sql.BigInteger), -(1 << 62)
    return sql.literal_column("ctid", _TupleId), "(0,0)"


class _TupleId(sql.types.UserDefinedType):
    """The place of a row of PostgreSQL, as text."""

    cache_ok = True

    def get_col_spec(self, **_) -> str:
        return "tid"

    def bind_expression(self, bindvalue):
        return sql.cast(sql.type_coerce(bindvalue, sql.String), _TupleId)

    def column_expression(self, colexpr):
        return sql.cast(colexpr, sql.String)


def _rows(ledger: Ledger, table: sql.Table) -> sql.Select:
    """All columns of a table and `_row`; texts as bytes in SQLite, which may hold some that are no UTF-8."""
    columns: list[sql.ColumnElement] = list(table.columns)
    if ledger.file is not None:
        columns = [
            sql.cast(column, sql.LargeBinary).label(column.name)
            if isinstance(column.type, sql.String)
            else column
            for column in table.columns
        ]
    return sql.select(_place(ledger)[0].label("_row"), *columns).select_from(table)


def reason(table: sql.Table, values: dict[str, Any]) -> str:
    """What is wrong with a row, or nothing."""
    values = dict(values)
    for column in table.columns:
        if isinstance(column.type, sql.String):
            try:
                values[column.name] = _text(values[column.name])
            except (UnicodeDecodeError, TypeError) as error:
                return f"its {column.name} is no UTF-8: {error}"
    try:
        problem = CHECKS[table](values)
        if not problem and CHECKSUM in values:
            names = checksums.names(table)
            is_damaged = checksums.is_damaged([values[name] for name in names], values[CHECKSUM])
            problem = "its columns are not as they were written" if is_damaged else ""
    except (zlib.error, ValueError, TypeError, ArithmeticError, LookupError, msgspec.DecodeError) as error:
        return f"it cannot be decoded: {error}"
    return str(problem or "")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise TypeError("it is no text")
    return value.decode()


def set_aside(ledger: Ledger) -> list[DamagedRow]:
    """Move the damaged rows of a ledger to `damaged_rows`; returns those that were. Raises LedgerError."""
    found = list(damaged_rows(ledger))
    gone = {one.values["id"]: one for one in found if one.table is _processes}
    if gone:
        # First, since PostgreSQL refuses to delete a process that has blocks.
        found = _blocks_of(ledger, gone, {one.row for one in found if one.table is _blocks}) + found
    if not found:
        return []
    with ledger.transaction() as connection:
        DAMAGED.create(connection, checkfirst=True)
        return [
            one
            for one in sorted(found, key=lambda one: one.table is _processes)
            if _move(ledger, connection, one)
        ]


def _move(ledger: Ledger, connection: sql.Connection, one: DamagedRow) -> bool:
    """False for a row that was replaced since it was read."""
    place, _ = _place(ledger)
    now = connection.execute(_rows(ledger, one.table).where(place == one.row)).mappings().first()
    if now is None or dict(now) != {**one.values, "_row": one.row}:
        return False
    packed = msgspec.msgpack.encode(one.values)
    connection.execute(DAMAGED.insert(), {"of": one.table.name, "reason": one.reason, "row": packed})
    connection.execute(one.table.delete().where(place == one.row))
    return True


def _blocks_of(ledger: Ledger, processes: Mapping[int, DamagedRow], known: set[Any]) -> list[DamagedRow]:
    """Another process may get the number of one that is gone."""
    of = _rows(ledger, _blocks).where(_blocks.c.process.in_(list(processes)))
    found = []
    for one in map(dict, ledger.fetch(of).mappings()):
        row = one.pop("_row")
        if row not in known:
            found.append(DamagedRow(_blocks, row, one, f"its process {one['process']} is damaged"))
    return found


def runs_of(ledger: Ledger, found: Iterable[DamagedRow]) -> set[str]:
    """The runs of these rows, as far as that is known."""
    runs = {run for one in found if (run := one.run()) is not None}
    ids = {one.values["process"] for one in found if one.table is _blocks}
    of_ids = sql.select(_processes.c.run).where(_processes.c.id.in_(ids)).distinct()
    return runs | set(ledger.fetch(of_ids).scalars() if ids else ())


def count_set_aside(ledger: Ledger) -> int:
    """How many rows were set aside."""
    try:
        return int(ledger.fetch(sql.select(sql.func.count()).select_from(DAMAGED)).scalar_one())
    except LedgerError:
        return 0


def without_damage(
    ledger: Ledger, work: Callable[[], Result], undo: Callable[[], object] = lambda: None
) -> Result:
    """What `work` returns; where it fails, after `undo` and once more, if damaged rows could be set aside."""
    try:
        return work()
    except InterruptedError:
        raise
    except Exception:
        undo()
        found = set_aside(ledger)
        if found:
            log_set_aside(ledger, found)
        elif ledger.file is not None and ledger.has_damage:
            # All rows are right, so what was read of an index was not.
            ledger.rebuild_indices()
            log.error("ledger %s: an index was damaged, and was built anew from its table", ledger.url)
        else:
            raise
        return work()


def log_set_aside(ledger: Ledger, found: Sequence[DamagedRow]) -> None:
    for one in found[:LOGGED_MAX]:
        log.error("ledger %s: damaged and set aside: %s", ledger.url, one.text())
    log.error(
        "ledger %s: %d damaged rows are in its table %s now, and not in accounts. Agents push again what they still have; "
        "the last backup, in place of the ledger, has the others",
        *(ledger.url, len(found), DAMAGED.name),
    )


# ---- What each table's rows have to be


def _check_process(row: dict) -> str:
    report = _report_decoder.decode(row["report"])
    if [getattr(report.identity, name) for name in _KEY] != [row[name] for name in _KEY]:
        return "its columns name another process than its report"
    if report.sequence != row["sequence"]:
        return "its sequence is not that of its report"
    return ""


def check_block(row: Any) -> str:
    """What is wrong with a block of steps, a mapping of all columns, or nothing."""
    stored = blocks.StoredBlock(*(row[name] for name in blocks.StoredBlock._fields))
    values = blocks.decode([stored])
    found = {
        "first": values[NUMBER, 0],
        "last": values[NUMBER, -1],
        "rows": values.shape[1],
        "start_ns_first": values[START].min(),
        "end_ns_last": values[END].max(),
    }
    wrong = [f"{name} is {row[name]}" for name, value in found.items() if row[name] != value]
    if row["digest"] != blocks.digest(stored.block):
        wrong.append("the digest is another one")
    return f"its columns do not match its rows: {', '.join(wrong)}" if wrong else ""


def _check_health(row: dict) -> str:
    _event_decoder.decode(row["event"])
    return ""


def _check_segment(row: dict) -> str:
    numbers = _numbers_decoder.decode(row["numbers"])
    return "" if sum(numbers.values()) == row["rows"] else "its number of rows is not that of its ranks"


def _check_account(row: dict) -> str:
    body = zlib.decompress(row["body"])
    decoder = msgspec.json if body[:1] == b"{" else msgspec.msgpack
    decoder.decode(body)
    return ""


def _check_nothing(_row: dict) -> str:
    return ""


CHECKS: dict[sql.Table, Callable[[dict], str]] = {
    _processes: _check_process,
    _blocks: check_block,
    version_4.events: _check_nothing,
    version_4.health: _check_health,
    version_5.ends: _check_nothing,
    version_5.segments: _check_segment,
    version_5.accounts: _check_account,
    version_5.closed_runs: _check_nothing,
    version_5.deletions: _check_nothing,
    version_7.bases: _check_nothing,
}
