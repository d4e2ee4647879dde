"""Chunks that a reader of a time window can skip, and indices for the orders that readers use.

`chunks` replaces `step_chunks`: every old chunk is decoded once, a page at a time, for its times and its digest. The
table is created anew, not altered: the times must precede the bytes of the rows, or SQLite reads through those to find
them. The digest is in the key since two chunks from the same first to the same last number can hold different rows in
between. Rows are decoded without schema.StepRow, which may change: number, start and end are items 0, 2 and 3.
"""

from __future__ import annotations

import hashlib

import msgspec
import sqlalchemy as sql

from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.migrations.versions import version_1

revision, down_revision = "2", "1"

CHUNK_ROWS_MAX = 512
PAGE_CHUNKS = 64

chunks = sql.Table(
    "chunks",
    sql.MetaData(),
    *version_1.key_columns(),
    # Numbers of the first and last row; rows are sorted.
    sql.Column("first", sql.BigInteger, primary_key=True),
    sql.Column("last", sql.BigInteger, primary_key=True),
    sql.Column("digest", sql.BigInteger, primary_key=True),
    sql.Column("start_ns_first", sql.BigInteger, nullable=False),
    sql.Column("end_ns_last", sql.BigInteger, nullable=False),
    sql.Column("rows", sql.LargeBinary, nullable=False),
    # Without host and pid: two processes of a rank hardly start in the same nanosecond.
    sql.Index("chunks_by_end", "run", "rank", "start_ns", "end_ns_last", "start_ns_first", "first"),
)


def upgrade() -> None:
    from alembic import op

    connection = op.get_bind()
    chunks.create(connection)
    old, after = version_1.step_chunks, None
    order = list(old.primary_key.columns)
    while True:
        page = sql.select(old).order_by(*order).limit(PAGE_CHUNKS)
        if after is not None:
            page = page.where(sql.tuple_(*order) > sql.tuple_(*after))
        found = connection.execute(page).mappings().all()
        if not found:
            break
        new = [chunk for row in found for chunk in _converted(row)]
        if new:
            connection.execute(insert(connection.dialect.name, chunks).on_conflict_do_nothing(), new)
        after = [found[-1][column.name] for column in order]
    old.drop(connection)
    op.create_index("processes_by_start", "processes", ["start_ns", "rank", "run", "host", "pid"])


def _converted(old) -> list[dict]:
    """A chunk of version 1 as chunks of version 2."""
    key = {column.name: old[column.name] for column in version_1.key_columns()}
    try:
        rows = sorted(msgspec.msgpack.decode(old["rows"], type=list[list]), key=lambda row: row[0])
        parts = [rows[at : at + CHUNK_ROWS_MAX] for at in range(0, len(rows), CHUNK_ROWS_MAX)]
        return [{**key, **_columns(part)} for part in parts]
    except (msgspec.DecodeError, IndexError, TypeError) as error:
        where = f"run {old['run']!r} rank {old['rank']} steps {old['first']} to {old['last']}"
        raise ValueError(f"a chunk is damaged ({where}): {error}") from None


def _columns(rows: list[list]) -> dict:
    encoded = msgspec.msgpack.encode(rows)
    return {
        "first": rows[0][0],
        "last": rows[-1][0],
        "digest": int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big", signed=True),
        "start_ns_first": min(row[2] for row in rows),
        "end_ns_last": max(row[3] for row in rows),
        "rows": encoded,
    }
