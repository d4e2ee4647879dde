"""Which aggregator may write the runs of a partition, where several serve one ledger.

A lease alone does not prevent this: a process that was suspended goes on writing after its lease went to another one. So
a process that takes a partition raises the partition's token. Every transaction locks the tokens of its process, and
fails where one was raised since. `position` is up to which message of the `stream` the ledger has the pushes, so that the
next holder begins there.

A migration raises all tokens, so that a program of the version before stops writing tables that it would misread, and
gets an error that says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

import sqlalchemy as sql

from goodput.aggregator.ledger import migrations
from goodput.aggregator.ledger.database import LedgerError, insert
from goodput.aggregator.ledger.ledger import Ledger

log = logging.getLogger("goodput.aggregator")
_partitions = sql.Table(
    "stream_partitions",
    sql.MetaData(),
    sql.Column("partition", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("token", sql.BigInteger, nullable=False),
    sql.Column("stream", sql.Text, nullable=False),
    sql.Column("position", sql.BigInteger, nullable=False),
)


class Fenced(LedgerError):
    """Another aggregator has taken a partition of this process."""


class LedgerTooNew(LedgerError):
    """A later version of the program has migrated the ledger."""


class Fence:
    """The partitions of this process. Methods block, so call them off the event loop; they raise LedgerError."""

    def __init__(self, ledger: Ledger, stream: str, partition_of: Callable[[str], int]):
        """`stream` names the stream of the positions, `partition_of` gives a run's partition. The ledger needs to have
        the present version."""
        self._ledger, self._stream, self._partition_of = ledger, stream, partition_of
        self._held: dict[int, int] = {}  # token by partition; replaced, never changed, since threads read it
        self.lost: set[int] = set()  # partitions that another process was found to have taken
        # Why this program may not write, once the ledger was found to be of a later version.
        self.too_new = ""
        with ledger.transaction() as connection:
            _partitions.create(connection, checkfirst=True)
        ledger.check_write = self._check

    def take(self, partition: int) -> int:
        """Become the one who writes a partition; returns the position after which its messages are not in the ledger."""
        fields = {"partition": partition, "token": 1, "stream": self._stream, "position": 0}
        table = _partitions
        with self._ledger.transaction() as connection:
            before = connection.execute(
                sql.select(table.c.stream).where(table.c.partition == partition)
            ).scalar()
            put = insert(connection.dialect.name, table).values(**fields)
            connection.execute(
                put.on_conflict_do_update(
                    index_elements=[table.c.partition],
                    set_={
                        "token": table.c.token + 1,
                        "position": sql.case((table.c.stream == self._stream, table.c.position), else_=0),
                        "stream": self._stream,
                    },
                )
            )
            row = connection.execute(sql.select(table).where(table.c.partition == partition)).one()
        if before not in (None, self._stream):
            log.warning(
                "partition %d: its position was one of the stream %r, not of %r; all messages are read again",
                *(partition, before, self._stream),
            )
        self._held = {**self._held, partition: row.token}
        self.lost.discard(partition)
        return row.position

    def drop(self, partition: int) -> None:
        """Forget a partition, which this process does not write any more."""
        self._held = {one: token for one, token in self._held.items() if one != partition}
        self.lost.discard(partition)

    def keep(self, positions: Mapping[int, int]) -> None:
        """Note up to where the messages of partitions are in the ledger."""
        table, held = _partitions, self._held
        with self._ledger.transaction() as connection:
            for partition, position in sorted(positions.items()):
                if partition in held:
                    own = table.c.partition == partition, table.c.token == held[partition]
                    statement = table.update().where(*own, table.c.position < position)
                    connection.execute(statement.values(position=position))

    def verify(self) -> None:
        """Find out whether this process may write its partitions. Raises Fenced, LedgerTooNew."""
        with self._ledger.transaction():
            pass

    def _check(self, connection: sql.Connection, runs: Collection[str]) -> None:
        held = self._held
        if held:
            self._lock(connection, held)
        else:
            self._check_version(connection)
        others = {partition for partition in map(self._partition_of, runs) if partition not in held}
        if others:
            raise self._fenced(others)

    def _lock(self, connection: sql.Connection, held: dict[int, int]) -> None:
        table = _partitions
        query = sql.select(table.c.partition, table.c.token).where(table.c.partition.in_(sorted(held)))
        # Shared, so that transactions of this process do not wait for each other.
        query = query.order_by(table.c.partition).with_for_update(read=True)
        found = {row.partition: row.token for row in connection.execute(query)}
        lost = {partition for partition, token in held.items() if found.get(partition) != token}
        if lost:
            self._check_version(connection)
            self.lost |= lost
            raise self._fenced(lost)

    def _check_version(self, connection: sql.Connection) -> None:
        """Shared with others until the end of the transaction, which a migration waits for."""
        column = migrations.VERSIONS.c.version_num
        version = (
            connection.execute(sql.select(column).with_for_update(read=True)).scalar() or migrations.HEAD
        )
        if int(version) > int(migrations.HEAD):
            self.too_new = (
                f"ledger {self._ledger.url} has version {version}, this program knows up to {migrations.HEAD}"
            )
            raise LedgerTooNew(self.too_new)

    def _fenced(self, partitions: Collection[int]) -> Fenced:
        names = ", ".join(map(str, sorted(partitions)))
        return Fenced(
            f"ledger {self._ledger.url}: another aggregator writes partition {names}; nothing was written"
        )
