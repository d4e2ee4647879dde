"""An ingest over a ledger without HTTP: push bodies, compute accounts, read the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sql
from msgspec.structs import replace
from support.account.account_history import assert_closes, ns
from support.aggregator.reports import body_of

from goodput.account import compute, document
from goodput.aggregator.column_attempt import columns_of
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.records import NewRecords, new_blocks
from goodput.causes import explain
from goodput.wire import schema

NOW = ns(2000)


def aggregator(ledger) -> Ingest:
    ingest = Ingest(Store(), ledger, clock_ns=lambda: NOW)
    ingest.restore()
    return ingest


def take(ingest: Ingest, *bodies: bytes) -> list:
    """Push bodies one after the other; the Ack or the error of each."""

    async def push():
        answers = []
        for body in bodies:
            try:
                answers.append(await ingest.accept(body))
            except (LedgerError, schema.SchemaError) as error:
                answers.append(error)
        return answers

    return asyncio.run(push())


def account(ingest: Ingest, run: str = "r1", now_ns: int = NOW) -> dict:
    found = compute(ingest._store.runs[run], now_ns)
    assert_closes(found)
    return document(found, explain(found))


def bodies(*pushes) -> list[bytes]:
    return [body_of(*push) for push in pushes]


@contextmanager
def database(url: str):
    """A connection beside the ledger's, whose changes are committed at the end."""
    engine = sql.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sql.NullPool)
    with engine.begin() as connection:
        yield connection


def contents(url: str) -> dict:
    """Every row of every table."""
    with database(url) as connection:
        tables = sql.MetaData()
        tables.reflect(connection)
        return {
            name: sorted(tuple(row) for row in connection.execute(sql.select(table)))
            for name, table in tables.tables.items()
        }


def stored_reports(ledger: Ledger) -> Iterator[schema.RankReport]:
    """Everything in the ledger as rank reports, one per process, oldest process first."""
    found = [process for run in ledger.runs() for process in ledger.processes(run)]
    for one in sorted(found, key=lambda one: (one.identity.start_ns, one.identity.rank, one.identity.run)):
        yield replace(one, steps=list(ledger.rows(one.identity)), events=ledger.events(one.identity))


def restored_equals(ledger: Ledger, ingest: Ingest) -> bool:
    restored = aggregator(ledger)
    return account(restored) == account(ingest)


def read_only(ledger, url):
    """New connections may not write, as on a file system that was remounted, or a standby server."""
    return on_connect(
        ledger, sqlite="PRAGMA query_only=ON", postgresql="SET default_transaction_read_only=on"
    )


def on_connect(ledger, **statements):
    """A statement for every new connection, by the database's name; returns what takes it back."""
    statement = statements[ledger._engine.dialect.name]

    def execute(connection, _record):
        connection.execute(statement)
        connection.commit()

    sql.event.listen(ledger._engine, "connect", execute)
    ledger.close()

    def mend():
        sql.event.remove(ledger._engine, "connect", execute)
        ledger.close()

    return mend


def records_of(report: schema.RankReport, rows, events=()) -> NewRecords:
    """New records with these rows, in any order."""
    rows = list(rows)
    return NewRecords(report, new_blocks(columns_of(rows)) if rows else [], list(events))
