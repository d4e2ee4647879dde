"""Version 4 of the ledger: what was said of processes, that their run is over.

In: a connection in a transaction on version 3. Out: the table `ends`, empty. It has a row per process at most, beside
that of `processes`, since what an agent reports of a process replaces that one.

It does not know which of them still holds.
"""

from __future__ import annotations

import sqlalchemy as sql

from goodput.aggregator.ledger.migrations.version_1 import key_columns

tables = sql.MetaData()
ends = sql.Table(
    "ends",
    tables,
    *key_columns(),
    sql.Column("reason", sql.String(32), nullable=False),
    sql.Column("at_ns", sql.BigInteger, nullable=False),
    sql.Column("until_ns", sql.BigInteger, nullable=False),
    sql.Column("said_ns", sql.BigInteger, nullable=False),
)


def upgrade(connection: sql.Connection) -> None:
    tables.create_all(connection)
