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

HEAD, NEXT = migrations.HEAD, str(int(migrations.HEAD) + 1)
NEXT_VERSION = f"""
import sqlalchemy as sql
revision, down_revision = "{NEXT}", "{HEAD}"

def upgrade():
    from alembic import op
    op.add_column("events", sql.Column("weight", sql.BigInteger))
"""


def later_migrations(folder: Path) -> Path:
    """The migrations with one more."""
    if not folder.exists():
        shutil.copytree(Path(migrations.__file__).parent, folder)
        (folder / "versions" / f"version_{NEXT}.py").write_text(NEXT_VERSION)
    return folder


if __name__ == "__main__":
    changed, folder = sys.argv[1].split(","), Path(sys.argv[2])
    if "messages" in changed:
        messages.VERSION = 2
    if "ledger" in changed:
        copy = later_migrations(folder / "migrations")
        migrations.HEAD, migrations.EARLIER = NEXT, (*migrations.EARLIER, HEAD)
        migrations.migrate = partial(migrations.migrate, target=NEXT)
        migrations.importlib.resources.files = lambda _: copy
    sys.exit(main(sys.argv[3:]))
