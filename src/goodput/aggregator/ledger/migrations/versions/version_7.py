"""Adds the segments of runs that are not over up to which their steps may be thinned."""

from __future__ import annotations

import sqlalchemy as sql

revision, down_revision = "7", "6"

tables = sql.MetaData()
bases = sql.Table(
    "bases",
    tables,
    sql.Column("run", sql.String(128), primary_key=True),
    sql.Column("tier", sql.Integer, primary_key=True),  # seconds of which one row is kept
    sql.Column("rows", sql.BigInteger, nullable=False),  # of the segment
)


def upgrade() -> None:
    from alembic import op

    tables.create_all(op.get_bind())
