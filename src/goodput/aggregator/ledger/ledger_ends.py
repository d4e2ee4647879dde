"""The ledger's table of what was said of processes: that their run is over.

In: identities with account.Over. Out: rows of the table, and the same from them. A process has one row at most, of what
was said last. It lies beside `processes`, whose rows what an agent reports replaces. It does not know what still holds.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sql

from goodput.account import Over
from goodput.wire import schema


def table(tables: sql.MetaData, key: list[sql.Column]) -> sql.Table:
    return sql.Table(
        "ends",
        tables,
        *key,
        sql.Column("reason", sql.String(32), nullable=False),
        sql.Column("at_ns", sql.BigInteger, nullable=False),
        sql.Column("until_ns", sql.BigInteger, nullable=False),
        sql.Column("said_ns", sql.BigInteger, nullable=False),  # when, on the aggregator's clock
    )


def columns(of: schema.Wanted, over: Over, said_ns: int) -> dict:
    return {
        **{name: getattr(of, name) for name in of.__struct_fields__},
        **over._asdict(),
        "said_ns": said_ns,
    }


def said(rows: Iterable[sql.Row]) -> dict[schema.Wanted, Over]:
    names = schema.Wanted.__struct_fields__
    return {
        schema.Wanted(*(getattr(row, name) for name in names)): Over(row.reason, row.at_ns, row.until_ns)
        for row in rows
    }
