"""Converts a ledger of version 5: moves the rows of its chunks into step blocks, in small transactions.

A transaction writes blocks and deletes the chunks that they hold, so what is left is what is still to be done: a
conversion that was killed continues where it was, and programs that open the ledger together share the work. Memory is
bounded by ROWS_AT_ONCE, some 60 MB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby

import msgspec
import numpy as np
import sqlalchemy as sql

from goodput.aggregator.ledger.blocks import block_columns
from goodput.aggregator.ledger.checksums import CHECKSUM
from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.migrations.versions import version_4, version_5

PAGE_CHUNKS = 64  # of 512 rows at most
ROWS_AT_ONCE = 20_000
PROGRESS_SECONDS = 2.0

_chunks = version_5.chunks_4
_ORDER = list(_chunks.primary_key.columns)
_KEY = [column.name for column in version_4.key_columns()]


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A row of a chunk, as version 4 wrote it."""

    number: int
    step: int
    start_ns: int
    end_ns: int
    samples: int
    totals: list[int]
    outside: list[int]
    device_ns: int = 0


_decoder = msgspec.msgpack.Decoder(list[_Row])


def convert(engine: sql.Engine, progress: Callable[[int, int], object]) -> None:
    """Convert what is left; `engine` is Database.migrating's. Raises ValueError, which names a damaged chunk."""
    with engine.connect() as connection:
        if not sql.inspect(connection).has_table(_chunks.name):
            return  # another program has done it
        rows = _chunks.c.last - _chunks.c.first + 1
        to_do = int(connection.execute(sql.select(sql.func.sum(rows))).scalar() or 0)
    done, last = 0, time.monotonic()
    while True:
        with engine.begin() as connection:
            if not sql.inspect(connection).has_table(_chunks.name):
                return
            converted = _convert_some(connection)
        if not converted:
            break
        done += converted
        if time.monotonic() - last > PROGRESS_SECONDS:
            progress(done, max(to_do, done))
            last = time.monotonic()
    if done:
        progress(done, done)


def _convert_some(connection: sql.Connection) -> int:
    """Convert chunks of ROWS_AT_ONCE rows and some; returns the number of rows, 0 where no chunk is left."""
    found, rows, after = [], 0, None
    while rows < ROWS_AT_ONCE:
        page = sql.select(_chunks).order_by(*_ORDER).limit(PAGE_CHUNKS)
        if after is not None:
            page = page.where(sql.tuple_(*_ORDER) > after)
        chunks = connection.execute(page).mappings().all()
        if not chunks:
            break
        for chunk in chunks:
            own = _rows(chunk)
            rows += len(own)
            found.append((tuple(chunk[name] for name in _KEY), own))
        after = sql.tuple_(*(chunks[-1][column.name] for column in _ORDER))
    if after is None:
        return 0
    blocks = []
    for key, parts in groupby(found, key=lambda one: one[0]):
        process = _process(connection, key)
        # Without its process, which is written in the same transaction, no reader could have read a chunk.
        if process is not None:
            values = _values([row for _, own in parts for row in own])
            new = [{"process": process, **columns} for columns in block_columns(values)]
            blocks += [{name: one[name] for name in one.keys() - {CHECKSUM}} for one in new]
    if blocks:
        statement = insert(connection.dialect.name, version_5.blocks).on_conflict_do_nothing()
        connection.execute(statement, blocks)
    connection.execute(_chunks.delete().where(sql.tuple_(*_ORDER) <= after))
    return max(rows, 1)


def _rows(chunk) -> list[_Row]:
    try:
        return _decoder.decode(chunk["rows"])
    except (msgspec.DecodeError, TypeError) as error:
        where = f"run {chunk['run']!r} rank {chunk['rank']} steps {chunk['first']} to {chunk['last']}"
        raise ValueError(f"a chunk is damaged ({where}): {error}") from None


def _process(connection: sql.Connection, key: tuple) -> int | None:
    table = version_5.processes
    query = sql.select(table.c.id).where(
        *(table.c[name] == value for name, value in zip(_KEY, key, strict=True))
    )
    return connection.execute(query).scalar()


def _values(rows: list[_Row]) -> np.ndarray:
    """Rows as in StepColumns.values."""
    width = max((len(row.totals) for row in rows), default=0)
    values = np.zeros((8 + 2 * width, len(rows)), np.int64)
    for column, name in enumerate(("number", "step", "start_ns", "end_ns", "samples", "device_ns")):
        values[column] = [getattr(row, name) for row in rows]
    for first, name in ((8, "totals"), (9, "outside")):
        of = [getattr(row, name) for row in rows]
        if any(len(one) != width for one in of):
            of = [one + [0] * (width - len(one)) for one in of]
        values[first::2] = np.array(of, np.int64).reshape(len(rows), width).T
    return values
