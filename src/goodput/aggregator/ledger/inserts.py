"""Inserts of many rows at once, as the drivers take them: those whose key is new, or is replaced by a newer row."""

from __future__ import annotations

import sqlite3
from functools import cache
from itertools import chain
from typing import NamedTuple, cast

import sqlalchemy as sql

from goodput.aggregator.ledger import checksums
from goodput.aggregator.ledger.block_reader import KEY, PROCESS_ID
from goodput.aggregator.ledger.checksums import CHECKSUM, checksum
from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.migrations.versions import version_5

WRITES_AT_ONCE = 500  # rows that the driver is given together
# Rows of one statement of SQLite, which allows a statement 999 parameters.
STATEMENT_ROWS_MAX = 64
_processes, _blocks, _end_marks = version_5.processes, version_5.blocks, version_5.ends
# What makes a row the same as another, of tables in which it is replaced.
_KEYS = {_processes: KEY, _end_marks: tuple(_end_marks.primary_key.columns.keys())}


class Write(NamedTuple):
    """The arguments of `put` after the connection."""

    table: sql.Table
    names: tuple[str, ...]
    rows: list[tuple]
    newest: str | None = None


def put(
    connection: sql.Connection,
    table: sql.Table,
    names: tuple[str, ...],
    rows: list[tuple],
    newest: str | None = None,
) -> None:
    """Insert rows whose key is new, with the columns `names`, which begin with the key; with `newest`, replace rows that
    have a lower value in that column.

    In order, so that two aggregators that write the same rows cannot deadlock.
    """
    if not rows:
        return
    if table is not _blocks and CHECKSUM in table.columns:
        assert names == checksums.names(table)
        names, rows = (*names, CHECKSUM), [(*row, checksum(row)) for row in rows]
    # The driver is given the rows as they are: SQLAlchemy takes longer to bind them than SQLite to write them.
    statement, is_positional = _statement(connection.dialect, table, newest, names)
    rows, at = sorted(rows), 0
    if not is_positional:
        given = [dict(zip(names, row, strict=True)) for row in rows]
        for at in range(0, len(given), WRITES_AT_ONCE):
            connection.exec_driver_sql(statement, given[at : at + WRITES_AT_ONCE])
        return
    # One statement for many rows: Python's sqlite3 gives up the interpreter's lock for each, and waits for it again.
    driver = cast(sqlite3.Connection, connection.connection.driver_connection)
    while at < len(rows):
        count = _rows_at_once(len(rows) - at)
        values = tuple(chain.from_iterable(rows[at : at + count]))
        driver.execute(_of_rows(statement, count), values)
        at += count


def _rows_at_once(left: int) -> int:
    """How many of so many rows one statement writes: of few sizes, since SQLite keeps each prepared."""
    if left < 8:
        return 1 << left.bit_length() - 1
    return min(left - left % 8, STATEMENT_ROWS_MAX)


@cache
def _of_rows(statement: str, count: int) -> str:
    """An INSERT of one row as one of `count` rows."""
    head, _, rest = statement.partition(" VALUES ")
    row, conflict, action = rest.partition(" ON CONFLICT")
    return f"{head} VALUES {', '.join([row] * count)}{conflict}{action}"


@cache
def _statement(
    dialect: sql.Dialect, table: sql.Table, newest: str | None, names: tuple[str, ...]
) -> tuple[str, bool]:
    """The statement of `put` as the driver takes it, and whether its parameters go by place, in the order of `names`.

    Cached: building it takes as long as writing a hundred rows.
    """
    statement = insert(dialect.name, table).inline()
    if table is _blocks:
        statement = statement.values(process=PROCESS_ID)
    if newest is None:
        statement = statement.on_conflict_do_nothing()
    else:
        key, excluded = _KEYS[table], statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=key,
            set_={c.name: excluded[c.name] for c in table.columns if c.name not in (*key, "id")},
            where=table.c[newest] < excluded[newest],
        )
    of_process = KEY if table is _blocks else ()
    own = [name for name in names if name not in of_process]
    compiled = statement.compile(dialect=dialect, column_keys=own)
    assert not compiled.positional or tuple(compiled.positiontup or ()) == names
    return str(compiled), compiled.positional
