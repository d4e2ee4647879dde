"""Migrations: bring a ledger of any earlier version, or an empty database, to the version of this program.

In: an engine whose transactions exclude each other (Database.migrating). Out: the tables of VERSION.
One file per version, in VERSIONS; a new one is a new file whose `upgrade(connection)` runs in one transaction
together with the change of the version, so a failed migration leaves the version before it, whole, and of two
programs that open an old ledger at once one works and the other finds it done. A new ledger is made by all of
them in turn, so it cannot differ from one that grew.

It does not know the tables, which are each version's own; a published version's file is never changed.
"""

from __future__ import annotations

import sqlalchemy as sql

from goodput.aggregator.ledger.migrations import version_1, version_2, version_3, version_4

VERSIONS = (version_1, version_2, version_3, version_4)
_tables = sql.MetaData()
_ledger = sql.Table("ledger", _tables, sql.Column("version", sql.Integer, primary_key=True))


class TooNew(Exception):
    """The ledger was written by a later program; `version` is its version."""

    def __init__(self, version: int):
        super().__init__(f"version {version}")
        self.version = version


def version(connection: sql.Connection) -> int:
    """The version that is there, 0 for an empty database."""
    if not sql.inspect(connection).has_table(_ledger.name):
        return 0
    return connection.execute(sql.select(sql.func.max(_ledger.c.version))).scalar() or 0


def migrate(engine: sql.Engine, current: int | None = None) -> None:
    """Bring the ledger to version `current` (by default the newest). Raises TooNew, having changed nothing."""
    current = len(VERSIONS) if current is None else current
    while True:
        with engine.begin() as connection:
            found = version(connection)
            if found > current:
                raise TooNew(found)
            if found == current:
                return
            VERSIONS[found].upgrade(connection)
            _tables.create_all(connection)
            connection.execute(_ledger.delete())
            connection.execute(_ledger.insert().values(version=found + 1))
