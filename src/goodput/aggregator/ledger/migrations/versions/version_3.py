"""Health events of nodes: MessagePack in one column (schema.Health), and beside it what readers order by."""

from __future__ import annotations

import sqlalchemy as sql

revision, down_revision = "3", "2"

health = sql.Table(
    "health",
    sql.MetaData(),
    sql.Column("node", sql.String(255), primary_key=True),
    sql.Column("number", sql.BigInteger, primary_key=True),
    sql.Column("severity", sql.Integer, nullable=False),  # index in schema.SEVERITIES
    sql.Column("time_ns", sql.BigInteger, nullable=False),
    sql.Column("event", sql.LargeBinary, nullable=False),
    sql.Index("health_by_severity", "node", "severity", "time_ns"),
)


def upgrade() -> None:
    from alembic import op

    health.create(op.get_bind())
