"""Step blocks, and no chunks any more: the first version after the conversion."""

from __future__ import annotations

revision, down_revision = "6", "5"


def upgrade() -> None:
    from alembic import op

    op.drop_table("chunks_4")
