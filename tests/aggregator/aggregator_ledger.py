"""An ingest over a ledger, without HTTP: push bodies, read the account, look into the database."""

from __future__ import annotations

import asyncio
import sqlite3

from account_history import assert_closes, ns
from aggregator_reports import body_of

from goodput import schema
from goodput.account import compute, document
from goodput.aggregator.ingest import Ingest
from goodput.aggregator.ledger import Ledger, LedgerError
from goodput.aggregator.store import Store
from goodput.causes import explain

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
                answers.append(await ingest.take(body))
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


def contents(url: str) -> dict:
    """Every row of every table."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: sorted(database.execute(f"select * from {name}")) for name in tables}


def restored_equals(ledger: Ledger, ingest: Ingest) -> bool:
    restored = aggregator(ledger)
    return account(restored) == account(ingest)
