"""Adds a checksum of the other columns to tables whose columns of numbers nothing else protects.

A row that an earlier version wrote has none.
"""

from __future__ import annotations

import sqlalchemy as sql

from goodput.aggregator.ledger.checksums import CHECKSUM
from goodput.aggregator.ledger.migrations.versions import version_4, version_5

revision, down_revision = "8", "7"

TABLES = (version_5.processes, version_5.blocks, version_4.events, version_4.health, version_5.ends)


def _column() -> sql.Column:
    return sql.Column(CHECKSUM, sql.BigInteger)


for _table in TABLES:
    # Alembic loads this module once more.
    if CHECKSUM not in _table.columns:
        _table.append_column(_column())


def upgrade() -> None:
    from alembic import op

    for table in TABLES:
        op.add_column(table.name, _column())
