"""Step blocks, and no chunks any more: the first version after the conversion."""

from __future__ import annotations

import sqlalchemy as sql

revision, down_revision = "6", "5"


def upgrade() -> None:
    from alembic import op

    # A new ledger, or one that is converted: what is left would be lost.
    if op.get_bind().execute(sql.text("SELECT 1 FROM chunks_4 LIMIT 1")).first():
        raise ValueError("its step rows are not converted yet")
    op.drop_table("chunks_4")
