"""Migrations of the ledger with alembic: brings an empty database, or a version from OLDEST on, to HEAD.

A new version is a new file in versions/ and a new HEAD; a published one is never changed. Pending revisions run in
one transaction, so a failed migration leaves the ledger as it was, and of several programs that open an old ledger at
once one migrates it and the others find it done (Database.migrating). The exception is the conversion of step rows
between versions 5 and 6, which may take minutes: it commits in steps, and the next process that opens the ledger continues it.
Each table is defined in the version that made it, also for the ledger. A new ledger gets the tables of HEAD at once: alembic,
which takes 0.2 s and 12 MiB, is imported only where there is something to migrate.
"""

from __future__ import annotations

import importlib.resources
import logging
from collections.abc import Callable

import sqlalchemy as sql

from goodput.aggregator.ledger.migrations.versions import version_4, version_5, version_7, version_8

HEAD, CONVERTING = "8", "5"
OLDEST = version_4.revision  # that is migrated
# The tables of this version, to which version_8 has added columns; with a newer HEAD and none of them a new ledger is migrated from nothing.
TABLES_OF = version_8.revision
TABLES = (
    *version_5.tables.sorted_tables,
    version_5.ends,
    version_4.events,
    version_4.health,
    version_7.bases,
)
EARLIER = tuple(map(str, range(int(OLDEST), int(HEAD))))
Progress = Callable[[int, int], object]
# As alembic makes it.
VERSIONS = sql.Table(
    "alembic_version",
    sql.MetaData(),
    sql.Column("version_num", sql.String(32), nullable=False),
    sql.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
# Of aggregators over a stream that are running: see ledger/fence.py.
_fence = sql.table("stream_partitions", sql.column("token", sql.BigInteger))


class TooNew(Exception):
    """The ledger was written by a later version of the program; `version` is its own."""

    def __init__(self, version: str):
        super().__init__(f"version {version}")
        self.version = version


def version(connection: sql.Connection) -> str | None:
    """The ledger's version, None for an empty database."""
    if not sql.inspect(connection).has_table(VERSIONS.name):
        return None
    found = connection.execute(sql.select(VERSIONS.c.version_num)).scalar()
    if found is not None and not (found.isascii() and found.isdigit()):
        raise ValueError(f"its version is {found!r}, which no program writes")
    return found


def is_current(connection: sql.Connection) -> bool:
    """Whether nothing is to be migrated."""
    return version(connection) == HEAD


def migrate(engine: sql.Engine, target: str = HEAD, progress: Progress = lambda done, to_do: None) -> None:
    """Bring the ledger to `target`; `engine` is Database.migrating's. Raises TooNew, having changed nothing.

    `progress(rows done, rows to do)` is called every few seconds of a long conversion.
    """
    if target == HEAD == TABLES_OF and _create(engine):
        return
    with engine.connect() as connection:
        is_new = version(connection) is None
    if int(target) > int(CONVERTING) and not is_new:
        from goodput.aggregator.ledger.migrations.conversion import convert

        _upgrade(engine, CONVERTING)
        convert(engine, progress)
    _upgrade(engine, target)


def _create(engine: sql.Engine) -> bool:
    """Make the tables of a new ledger; False where there is any of them, also of one that was left half made."""
    with engine.begin() as connection:
        found = sql.inspect(connection)
        if any(found.has_table(one.name) for one in (VERSIONS, *TABLES)):
            return False
        for table in (VERSIONS, *TABLES):
            table.create(connection)
        connection.execute(VERSIONS.insert().values(version_num=HEAD))
    return True


def _upgrade(engine: sql.Engine, target: str) -> None:
    # Before the import, which logs every plugin at INFO.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(importlib.resources.files(__name__)))
    with engine.begin() as connection:
        found = version(connection)
        if found is not None and int(found) > int(HEAD):
            raise TooNew(found)
        if found is not None and int(found) < int(OLDEST):
            raise ValueError(f"it has version {found}, this program converts versions from {OLDEST} on")
        config.attributes["connection"] = connection
        if found is None or int(found) < int(target):
            if sql.inspect(connection).has_table(_fence.name):
                # Programs of the version before end what they are writing, and then write nothing any more.
                connection.execute(sql.update(_fence).values(token=_fence.c.token + 1))
            command.upgrade(config, target)
