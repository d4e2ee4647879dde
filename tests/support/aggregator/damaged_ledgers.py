"""Flips bits of a ledger's values or files, and starts an aggregator over it."""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import httpx
from support.account.account_history import Process
from support.aggregator.full_ledgers import RUNS
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import serving

from goodput.aggregator.api.app import create_app
from goodput.aggregator.ledger.ledger import LedgerError

START_SECONDS_MAX = 30
WINDOW = "from=1000&to=1030"
_OF_ALL = ("/api/v1/runs", "/metrics", "/api/v1/health", "/api/v1/installation")
_OF_RUN = ("", f"/account?{WINDOW}", "/timeline", "/story")


class Served(NamedTuple):
    """What came of a start: "served", "partly" (queries were refused), "refused" (the start), or what must not be: "hang" and "crash".

    `accounts` are those of a window of each run that was there before.
    """

    outcome: str
    text: str = ""
    accounts: Mapping[str, object] = MappingProxyType({})
    log: tuple[str, ...] = ()


def columns(path: Path) -> list[tuple[str, str, str]]:
    """Table, name and type of each column of a table with rows."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return [
            (table, name, kind)
            for table in sorted(tables)
            if connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")
        ]


def flip_value(path: Path, table: str, column: str, kind: str, rng: random.Random) -> str | None:
    """Flip one bit of a value in a random row; the run of which it was, or nothing where a constraint forbids it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        rows = connection.execute(
            f'SELECT rowid, "{column}" FROM {table} WHERE "{column}" IS NOT NULL'
        ).fetchall()
        if not rows:
            return None
        row, value = rng.choice(rows)
        run = _run_of(connection, table, row, [name.decode() for name in names])
        place = "?"
        if isinstance(value, bytes):
            if not value:
                return None
            flipped: object = _flipped(value, rng)
            place = "?" if kind == "BLOB" else "CAST(? AS TEXT)"
        else:
            flipped = value ^ 1 << rng.randrange(62)
        try:
            connection.execute(f'UPDATE {table} SET "{column}" = {place} WHERE rowid = ?', (flipped, row))
        except sqlite3.IntegrityError:
            return None
        connection.commit()
        return run


def _run_of(connection: sqlite3.Connection, table: str, row: int, names: list[str]) -> str:
    if table == "blocks":
        query = "SELECT p.run FROM blocks b JOIN processes p ON p.id = b.process WHERE b.id = ?"
    elif "run" in names:
        query = f"SELECT run FROM {table} WHERE rowid = ?"
    else:
        return ""
    return connection.execute(query, (row,)).fetchone()[0].decode()


def flip_bytes(path: Path, rng: random.Random) -> list[int]:
    """Flip one bit of some bytes of a file; their places."""
    found = bytearray(path.read_bytes())
    places = [rng.randrange(len(found)) for _ in range(rng.choice((1, 1, 2, 5)))]
    for at in places:
        found[at] ^= 1 << rng.randrange(8)
    path.write_bytes(found)
    return places


def _flipped(value: bytes, rng: random.Random) -> bytes:
    found = bytearray(value)
    found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def served(path: Path) -> Served:
    """Start an aggregator over a ledger, ask for everything and push a new run."""
    with _logged() as records:
        found = _served(path)
    traces = [record.getMessage() for record in records if record.exc_info]
    log = tuple(record.getMessage() for record in records)
    if traces:
        return Served("crash", traces[0], log=log)
    return found._replace(log=log)


def _served(path: Path) -> Served:
    try:
        app = create_app(f"sqlite:///{path}")
    except LedgerError as error:
        return Served("refused", str(error))
    startup = app.state.startup
    with serving(app, whole=False) as client:
        until = time.monotonic() + START_SECONDS_MAX
        while not (startup.is_whole or startup.error):
            if time.monotonic() > until:
                return Served("hang", "the ledger was not read")
            time.sleep(0.002)
        if startup.error:
            is_refusal = isinstance(startup.error, LedgerError)
            return Served("refused" if is_refusal else "crash", str(startup.error))
        try:
            return _asked(client)
        except httpx.TimeoutException as error:
            return Served("hang", repr(error))


def _asked(client: httpx.Client) -> Served:
    refused, listed = [], client.get("/api/v1/runs")
    known = {one["run"] for one in listed.json()["runs"]} if listed.status_code == 200 else set()
    paths = [*_OF_ALL, *(f"/api/v1/runs/{run}{part}" for run in sorted({*known, *RUNS}) for part in _OF_RUN)]
    for path in paths:
        answer = client.get(path)
        if answer.status_code not in (200, 400, 404, 422, 503):
            return Served("crash", f"{path}: {answer.status_code} {answer.text[:300]}")
        if answer.status_code == 503:
            refused.append(f"{path}: {answer.text[:300]}")
    new = rank_report(Process(0, 1, time.time() - 50).steps(30, forward=1), "new")
    answer = client.post("/api/v1/ingest", content=body_of(new))
    if answer.status_code != 200 or client.get("/api/v1/runs/new").json()["steps"]["kept"] != 30:
        return Served("crash", f"a push: {answer.status_code} {answer.text[:300]}")
    accounts = {run: _account(client, run) for run in RUNS}
    return Served("partly" if refused else "served", "; ".join(refused[:3]), accounts)


def _account(client: httpx.Client, run: str) -> object:
    """What of a run's account does not follow the clock, or the status of the refusal."""
    answer = client.get(f"/api/v1/runs/{run}")
    if answer.status_code != 200:
        return answer.status_code
    found = answer.json()
    ranks = [(one["rank"], {**one["states"], "unobserved": 0, "down": 0}) for one in found["ranks"]]
    return found["steps"], ranks


@contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Collect()
    logging.getLogger().addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger().removeHandler(handler)


def copy(source: Path, target: Path) -> None:
    """A copy of a ledger's file in place of whatever was there."""
    for name in (target, *(Path(f"{target}{suffix}") for suffix in ("-wal", "-shm", "-owner"))):
        if os.path.exists(name):
            os.unlink(name)
    target.write_bytes(source.read_bytes())
