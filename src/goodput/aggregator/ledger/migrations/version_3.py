"""Version 3 of the ledger: health events of nodes.

In: a connection in a transaction on version 2. Out: the table `health`, empty. An event lies in one column as
MessagePack (schema.Health); beside it is what a reader orders by, so that the newest and gravest of each node are found
without reading the others.

It does not know what an event says.
"""

from __future__ import annotations

import sqlalchemy as sql

tables = sql.MetaData()
health = sql.Table(
    "health",
    tables,
    sql.Column("node", sql.String(255), primary_key=True),
    sql.Column("number", sql.BigInteger, primary_key=True),
    sql.Column("severity", sql.Integer, nullable=False),
    sql.Column("time_ns", sql.BigInteger, nullable=False),
    sql.Column("event", sql.LargeBinary, nullable=False),
    sql.Index("health_by_severity", "node", "severity", "time_ns"),
)


def upgrade(connection: sql.Connection) -> None:
    tables.create_all(connection)
