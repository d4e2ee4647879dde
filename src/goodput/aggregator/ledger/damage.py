"""Rows of a ledger that hold what nobody has written, such as after a flipped bit, and setting them aside.

A row is damaged where a text is no UTF-8, what is packed in it cannot be decoded, or its columns contradict each other. One
such row would fail every query that reads it, and with these the start of an aggregator. `set_aside` moves them, as they are,
to the table `damaged_rows`, so that the rest is served; agents push again what they still have, and the ledger's backup has
the others. Pages that the database itself cannot read are another matter: it refuses them.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sql

from goodput.aggregator.ledger import blocks
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.migrations.versions import version_4, version_5, version_7
from goodput.wire import schema
from goodput.wire.step_blocks import END, NUMBER, START

log = logging.getLogger("goodput.aggregator")
PAGE_ROWS, LOGGED_MAX = 256, 100
Result = TypeVar("Result")
_processes, _blocks = version_5.processes, version_5.blocks
_KEY = [column.name for column in version_4.key_columns()]
_row_number = sql.literal_column("rowid", sql.BigInteger)
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
    row: int
    values: dict[str, Any]
    reason: str

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


def damaged_rows(ledger: Ledger, tables: dict[sql.Table, Callable] | None = None) -> Iterator[DamagedRow]:
    """The damaged rows of an SQLite ledger. Reads all of it, a page at a time. Raises LedgerError."""
    for table, check in (CHECKS if tables is None else tables).items():
        texts = [column.name for column in table.columns if isinstance(column.type, sql.String)]
        # A text that is no UTF-8 can be read as bytes alone.
        columns = [
            sql.cast(column, sql.LargeBinary).label(column.name) if column.name in texts else column
            for column in table.columns
        ]
        page = (
            sql.select(_row_number.label("_row"), *columns)
            .select_from(table)
            .order_by(_row_number)
            .limit(PAGE_ROWS)
        )
        after = -(1 << 62)
        while found := ledger.fetch(page.where(_row_number > after)).mappings().all():
            for one in found:
                values = dict(one)
                after = row = values.pop("_row")
                reason = _reason(values, texts, check)
                if reason:
                    yield DamagedRow(table, row, values, reason)


def _reason(values: dict[str, Any], texts: list[str], check: Callable[[dict], object]) -> str:
    """What is wrong with a row, or nothing."""
    try:
        for name in texts:
            if not isinstance(values[name], bytes):
                return f"its {name} is no text"
            values[name].decode()
    except UnicodeDecodeError as error:
        return f"its {name} is no UTF-8: {error.reason}"
    try:
        problem = check({**values, **{name: values[name].decode() for name in texts}})
    except (zlib.error, ValueError, TypeError, ArithmeticError, LookupError) as error:
        return f"it cannot be decoded: {error}"
    return str(problem or "")


def set_aside(ledger: Ledger) -> list[str]:
    """Move the damaged rows of an SQLite ledger to `damaged_rows`; returns what they are. Raises LedgerError."""
    found = list(damaged_rows(ledger))
    gone = {one.values["id"]: one for one in found if one.table is _processes}
    if gone:
        found += _blocks_of(ledger, gone, {one.row for one in found if one.table is _blocks})
    if not found:
        return []
    with ledger.transaction() as connection:
        DAMAGED.create(connection, checkfirst=True)
        for one in found:
            packed = msgspec.msgpack.encode(one.values)
            row = {"of": one.table.name, "reason": one.reason, "row": packed}
            connection.execute(DAMAGED.insert(), row)
            connection.execute(one.table.delete().where(_row_number == one.row))
    return [one.text() for one in found]


def _blocks_of(ledger: Ledger, processes: dict[int, DamagedRow], known: set[int]) -> list[DamagedRow]:
    """Another process may get the number of one that is gone."""
    found = ledger.fetch(sql.select(_blocks).where(_blocks.c.process.in_(list(processes)))).mappings()
    return [
        DamagedRow(_blocks, one["id"], dict(one), f"its process {one['process']} is damaged")
        for one in found
        if one["id"] not in known
    ]


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
        found = [] if ledger.file is None else set_aside(ledger)
        if not found:
            raise
        _log(ledger, found)
        return work()


def _log(ledger: Ledger, found: list[str]) -> None:
    for text in found[:LOGGED_MAX]:
        log.error("ledger %s: damaged and set aside: %s", ledger.url, text)
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


def _check_text(_row: dict) -> str:
    return ""


CHECKS: dict[sql.Table, Callable[[dict], str]] = {
    _processes: _check_process,
    _blocks: check_block,
    version_4.events: _check_text,
    version_4.health: _check_health,
    version_5.ends: _check_text,
    version_5.segments: _check_segment,
    version_5.accounts: _check_account,
    version_5.closed_runs: _check_text,
    version_5.deletions: _check_text,
    version_7.bases: _check_text,
}
