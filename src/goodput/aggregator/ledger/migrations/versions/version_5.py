"""Step rows as step blocks, keyed by a small integer per process, and tables of segments and closed accounts.

A ledger of this version is being converted: the chunks of version 4 are in `chunks_4`, from which `conversion` moves
them into `blocks`, in transactions of their own. Programs of version 4 refuse it, so none adds chunks meanwhile.
"""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy import event

from goodput.aggregator.ledger.migrations.versions import version_4

revision, down_revision = "5", "4"

tables = sql.MetaData()
# SQLite numbers rows by itself only in a column of this type.
_Id = sql.BigInteger().with_variant(sql.Integer, "sqlite")


def _process(**options) -> sql.Column:
    return sql.Column("process", sql.BigInteger, sql.ForeignKey("processes.id"), nullable=False, **options)


processes = sql.Table(
    "processes",
    tables,
    sql.Column("id", _Id, primary_key=True),
    *(sql.Column(column.name, column.type, nullable=False) for column in version_4.key_columns()),
    sql.Column("sequence", sql.BigInteger, nullable=False),
    # A schema.RankReport without steps and events: identity, phases and the last live part.
    sql.Column("report", sql.LargeBinary, nullable=False),
    sql.UniqueConstraint("run", "rank", "host", "pid", "start_ns", name="processes_key"),
    sql.Index("processes_in_order", "start_ns", "rank", "run", "host", "pid"),
    implicit_returning=False,
)
blocks = sql.Table(
    "blocks",
    tables,
    sql.Column("id", _Id, primary_key=True),
    _process(),
    sql.Column("first", sql.BigInteger, nullable=False),  # the number of the first row
    sql.Column("last", sql.BigInteger, nullable=False),
    sql.Column("start_ns_first", sql.BigInteger, nullable=False),  # the least start of a row
    sql.Column("end_ns_last", sql.BigInteger, nullable=False),  # the greatest end
    sql.Column("rows", sql.Integer, nullable=False),
    sql.Column("tier", sql.Integer, nullable=False),  # seconds in which one row was kept, 0: every row
    sql.Column("digest", sql.BigInteger, nullable=False),  # of `block`, so that a repeated write adds nothing
    sql.Column("width", sql.Integer, nullable=False),  # number of phases
    sql.Column("block", sql.LargeBinary, nullable=False),  # a step_blocks.StepBlock in MessagePack
    # What windows, merging and compaction look for is in this index: they read no block that they do not need.
    sql.Index(
        "blocks_key",
        *("process", "first", "last", "start_ns_first", "end_ns_last", "rows", "tier", "digest"),
        unique=True,
    ),
    implicit_returning=False,
)


@event.listens_for(blocks, "before_create")
def _include_id(table: sql.Table, connection: sql.Connection, **_) -> None:
    # In the definition of the index it would have the dialect of PostgreSQL imported for every database.
    if connection.dialect.name == "postgresql":
        (key,) = table.indexes
        key.dialect_options["postgresql"]["include"] = ["id"]


segments = sql.Table(
    "segments",
    tables,
    sql.Column("run", sql.String(128), primary_key=True),
    sql.Column("rows", sql.BigInteger, primary_key=True),  # that are in it, of all processes
    sql.Column("bytes", sql.BigInteger, nullable=False),  # of `body`
    sql.Column("numbers", sql.LargeBinary, nullable=False),  # of the last row of each attempt in it
    sql.Column("body", sql.LargeBinary, nullable=False),  # a columns.snapshot
)
accounts = sql.Table(
    "accounts",
    tables,
    sql.Column("run", sql.String(128), primary_key=True),
    sql.Column("kind", sql.String(32), primary_key=True),
    sql.Column("body", sql.LargeBinary, nullable=False),
)
# Runs whose account was stored after their end, so that their steps may be thinned.
closed_runs = sql.Table(
    "closed_runs",
    tables,
    sql.Column("run", sql.String(128), primary_key=True),
    sql.Column("state", sql.LargeBinary, nullable=False),  # digest of its processes and end marks then
    sql.Column("newest_ns", sql.BigInteger, nullable=False),  # end of its last row
    sql.Column("tier", sql.Integer, nullable=False),  # to which all of its blocks are thinned
)
deletions = sql.Table(
    "deletions",
    tables,
    sql.Column("run", sql.String(128), primary_key=True),
    sql.Column("deleted_ns", sql.BigInteger, nullable=False),
)
ends = sql.Table(
    "ends",
    sql.MetaData(),
    *version_4.key_columns(),
    *version_4.end_columns(),
    sql.Column("set_ns", sql.BigInteger, nullable=False),  # on the aggregator's clock
)
chunks_4 = version_4.chunks.to_metadata(sql.MetaData(), name="chunks_4")


def upgrade() -> None:
    from alembic import op

    connection = op.get_bind()
    op.rename_table("processes", "processes_4")
    op.drop_index("processes_by_start", "processes_4")
    op.drop_index("chunks_by_end", "chunks")
    op.rename_table("chunks", "chunks_4")
    op.execute("ALTER TABLE ends RENAME COLUMN said_ns TO set_ns")
    tables.create_all(connection)
    names = [column.name for column in version_4.processes.columns]
    old = sql.table("processes_4", *map(sql.column, names))
    in_order = sql.select(old).order_by(old.c.start_ns, old.c.run, old.c.rank)
    connection.execute(processes.insert().from_select(names, in_order))
    op.drop_table("processes_4")
