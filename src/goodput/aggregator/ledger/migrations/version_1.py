"""Version 1 of the ledger: processes, their step rows in chunks as they came, and their events.

In: a connection in a transaction. Out: the three tables, where they are not there yet: a version-1 program that
was killed while it made them left some.

It does not know later versions.
"""

from __future__ import annotations

import sqlalchemy as sql

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


def upgrade(connection: sql.Connection) -> None:
    tables.create_all(connection)
