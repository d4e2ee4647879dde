"""End marks of processes: at most one per process, apart from `processes`, whose rows each report replaces."""

from __future__ import annotations

import sqlalchemy as sql

from goodput.aggregator.ledger.migrations.versions.version_1 import key_columns

revision, down_revision = "4", "3"

ends = sql.Table(
    "ends",
    sql.MetaData(),
    *key_columns(),
    sql.Column("reason", sql.String(32), nullable=False),
    sql.Column("at_ns", sql.BigInteger, nullable=False),
    sql.Column("until_ns", sql.BigInteger, nullable=False),
    sql.Column("said_ns", sql.BigInteger, nullable=False),  # when it was set, on the aggregator's clock
)


def upgrade() -> None:
    from alembic import op

    ends.create(op.get_bind())
