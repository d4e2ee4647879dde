"""Processes, their step rows in chunks as they were pushed, and their events.

A version-1 program that was killed while it made the tables left some of them, hence `create_all`. The ledger uses the
tables as the last version that changed them defines them, without loading alembic.
"""

from __future__ import annotations

import sqlalchemy as sql

revision, down_revision = "1", None

tables = sql.MetaData()


def key_columns() -> list[sql.Column]:
    return [
        sql.Column("run", sql.String(128), primary_key=True),
        sql.Column("rank", sql.Integer, primary_key=True),
        sql.Column("host", sql.String(255), primary_key=True),
        sql.Column("pid", sql.BigInteger, primary_key=True),
        sql.Column("start_ns", sql.BigInteger, primary_key=True),
    ]


processes = sql.Table(
    "processes",
    tables,
    *key_columns(),
    sql.Column("sequence", sql.BigInteger, nullable=False),
    # A schema.RankReport without steps and events: identity, phases and the last live part.
    sql.Column("report", sql.LargeBinary, nullable=False),
)
step_chunks = sql.Table(
    "step_chunks",
    tables,
    *key_columns(),
    sql.Column("first", sql.BigInteger, primary_key=True),
    sql.Column("last", sql.BigInteger, primary_key=True),
    sql.Column("rows", sql.LargeBinary, nullable=False),
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


def upgrade() -> None:
    from alembic import op

    tables.create_all(op.get_bind())
