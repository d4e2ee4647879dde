"""End marks of processes: at most one per process, apart from `processes`, whose rows each report replaces."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

from goodput.aggregator.ledger.migrations.versions.version_1 import key_columns

revision, down_revision = "4", "3"


def upgrade() -> None:
    op.create_table(
        "ends",
        *key_columns(),
        sql.Column("reason", sql.String(32), nullable=False),
        sql.Column("at_ns", sql.BigInteger, nullable=False),
        sql.Column("until_ns", sql.BigInteger, nullable=False),
        sql.Column("said_ns", sql.BigInteger, nullable=False),
    )
