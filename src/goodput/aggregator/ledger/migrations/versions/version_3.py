"""Health events of nodes: MessagePack in one column (schema.Health), and beside it what readers order by."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision, down_revision = "3", "2"


def upgrade() -> None:
    op.create_table(
        "health",
        sql.Column("node", sql.String(255), primary_key=True),
        sql.Column("number", sql.BigInteger, primary_key=True),
        sql.Column("severity", sql.Integer, nullable=False),
        sql.Column("time_ns", sql.BigInteger, nullable=False),
        sql.Column("event", sql.LargeBinary, nullable=False),
    )
    op.create_index("health_by_severity", "health", ["node", "severity", "time_ns"])
