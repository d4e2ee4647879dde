"""The command `goodput` as a later version may be: with another format of the stream's messages, or another ledger.

python later_goodput.py messages,ledger FOLDER serve ...    # FOLDER is its own

Its ledger has one more column, without which the present version could go on writing; see ledger/fence.py for what ends that.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

from goodput.aggregator.ledger import migrations
from goodput.aggregator.stream import messages
from goodput.cli import main

VERSION_7 = """
import sqlalchemy as sql
revision, down_revision = "7", "6"

def upgrade():
    from alembic import op
    op.add_column("events", sql.Column("weight", sql.BigInteger))
"""


def later_migrations(folder: Path) -> Path:
    """The migrations with one more."""
    if not folder.exists():
        shutil.copytree(Path(migrations.__file__).parent, folder)
        (folder / "versions" / "version_7.py").write_text(VERSION_7)
    return folder


if __name__ == "__main__":
    changed, folder = sys.argv[1].split(","), Path(sys.argv[2])
    if "messages" in changed:
        messages.VERSION = 2
    if "ledger" in changed:
        copy = later_migrations(folder / "migrations")
        migrations.HEAD, migrations.EARLIER = "7", (*migrations.EARLIER, "6")
        migrations.migrate = partial(migrations.migrate, target="7")
        migrations.importlib.resources.files = lambda _: copy
    sys.exit(main(sys.argv[3:]))
