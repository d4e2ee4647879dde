"""The first version that is still read: processes, their step rows in chunks, events, end marks and health events.

A table that later versions left as it is serves the ledger too, which does not load alembic.
"""

from __future__ import annotations

import sqlalchemy as sql

revision, down_revision = "4", None

tables = sql.MetaData()


def key_columns() -> list[sql.Column]:
    return [
        sql.Column("run", sql.String(128), primary_key=True),
        sql.Column("rank", sql.Integer, primary_key=True),
        sql.Column("host", sql.String(255), primary_key=True),
        sql.Column("pid", sql.BigInteger, primary_key=True),
        sql.Column("start_ns", sql.BigInteger, primary_key=True),
    ]


def end_columns() -> list[sql.Column]:
    return [
        sql.Column("reason", sql.String(32), nullable=False),
        sql.Column("at_ns", sql.BigInteger, nullable=False),
        sql.Column("until_ns", sql.BigInteger, nullable=False),
    ]


processes = sql.Table(
    "processes",
    tables,
    *key_columns(),
    sql.Column("sequence", sql.BigInteger, nullable=False),
    # A schema.RankReport without steps and events: identity, phases and the last live part.
    sql.Column("report", sql.LargeBinary, nullable=False),
    sql.Index("processes_by_start", "start_ns", "rank", "run", "host", "pid"),
)
chunks = sql.Table(
    "chunks",
    tables,
    *key_columns(),
    # Numbers of the first and last row; rows are sorted, at most 512.
    sql.Column("first", sql.BigInteger, primary_key=True),
    sql.Column("last", sql.BigInteger, primary_key=True),
    # Two chunks from the same first to the same last number can hold different rows in between.
    sql.Column("digest", sql.BigInteger, primary_key=True),
    sql.Column("start_ns_first", sql.BigInteger, nullable=False),
    sql.Column("end_ns_last", sql.BigInteger, nullable=False),
    sql.Column("rows", sql.LargeBinary, nullable=False),
    sql.Index("chunks_by_end", "run", "rank", "start_ns", "end_ns_last", "start_ns_first", "first"),
)
events = sql.Table(
    "events",
    tables,
    *key_columns(),
    sql.Column("number", sql.BigInteger, primary_key=True),
    sql.Column("kind", sql.String(32), nullable=False),
    sql.Column("time_ns", sql.BigInteger, nullable=False),
    sql.Column("step", sql.BigInteger, nullable=False),
    sql.Column("text", sql.String(255), nullable=False),
)
# MessagePack in one column (schema.Health), and beside it what readers order by.
health = sql.Table(
    "health",
    tables,
    sql.Column("node", sql.String(255), primary_key=True),
    sql.Column("number", sql.BigInteger, primary_key=True),
    sql.Column("severity", sql.Integer, nullable=False),  # index in schema.SEVERITIES
    sql.Column("time_ns", sql.BigInteger, nullable=False),
    sql.Column("event", sql.LargeBinary, nullable=False),
    sql.Index("health_by_severity", "node", "severity", "time_ns"),
)
# At most one per process, apart from `processes`, whose rows each report replaces.
ends = sql.Table(
    "ends",
    tables,
    *key_columns(),
    *end_columns(),
    sql.Column("said_ns", sql.BigInteger, nullable=False),
)


def upgrade() -> None:
    from alembic import op

    tables.create_all(op.get_bind())
