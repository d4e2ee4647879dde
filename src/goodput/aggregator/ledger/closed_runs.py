"""What a run's end leaves in the ledger for good: its account, by which its steps may be thinned.

`state` is a digest of the run's processes and end marks. A closed run whose state is another one has gone on since: its
stored account is no longer its account, and its steps are not thinned until it is closed again.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sql

from goodput.aggregator.ledger.block_reader import KEY
from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_5

# Kinds of stored bytes.
ACCOUNT, DOCUMENT, SUMMARY = "account", "document", "summary"

_processes, _blocks, _ends = version_5.processes, version_5.blocks, version_5.ends
_accounts, _closed = version_5.accounts, version_5.closed_runs


def state_of(ledger: Ledger, run: str) -> bytes:
    """Changes whenever a process of the run reports, or an end mark is set."""
    return _states(ledger, lambda table: table.c.run == run).get(run, _digest()).digest()


class ClosedRun(NamedTuple):
    start_ns: int
    processes: int
    newest_ns: int  # the end of its last row


def closed(ledger: Ledger) -> dict[str, ClosedRun]:
    """All runs that were closed and have not gone on since."""
    columns = _closed.c.run, _closed.c.state, _closed.c.newest_ns
    stored = {run: (bytes(state), newest_ns) for run, state, newest_ns in ledger.fetch(sql.select(*columns))}
    states = _states(ledger, lambda table: table.c.run.in_(sql.select(_closed.c.run)))
    kept = ledger.fetch(sql.select(_accounts.c.run).where(_accounts.c.kind == SUMMARY)).scalars()
    found = sql.func.min(_processes.c.start_ns), sql.func.count()
    of_run = sql.select(_processes.c.run, *found).group_by(_processes.c.run)
    runs = {run: (start_ns, processes) for run, start_ns, processes in ledger.fetch(of_run)}
    return {
        run: ClosedRun(*runs[run], stored[run][1])
        for run in kept
        if run in states and run in stored and states[run].digest() == stored[run][0]
    }


def _states(ledger: Ledger, chosen: Callable[[sql.Table], sql.ColumnElement]) -> dict[str, Any]:
    """A digest for each of the chosen runs."""
    states: dict[str, Any] = {}
    for table, value in ((_processes, "sequence"), (_ends, "set_ns")):
        columns = [table.c[name] for name in (*KEY[1:], value)]
        query = sql.select(table.c.run, *columns).where(chosen(table)).order_by(table.c.run, *columns)
        for run, *row in ledger.fetch(query):
            states.setdefault(run, _digest()).update(repr(tuple(row)).encode())
    return states


def _digest() -> Any:
    return hashlib.blake2b(digest_size=16)


def newest_ns(ledger: Ledger, run: str) -> int:
    """The end of the run's last row, 0 if it has none."""
    query = sql.select(sql.func.max(_blocks.c.end_ns_last)).where(
        _blocks.c.process.in_(sql.select(_processes.c.id).where(_processes.c.run == run))
    )
    return ledger.fetch(query).scalar() or 0


def close_run(ledger: Ledger, run: str, state: bytes, newest_ns: int, bodies: Mapping[str, bytes]) -> None:
    """Store what is left of a run that is over, by kind; `state` is that of which `bodies` were computed."""
    with ledger.transaction({run}) as connection:
        put_bodies(connection, run, bodies)
        _replace(connection, _closed, [{"run": run, "state": state, "newest_ns": newest_ns, "tier": 0}])


def put_bodies(connection: sql.Connection, run: str, bodies: Mapping[str, bytes]) -> None:
    """Store what is left of a run, by kind, in place of what is stored."""
    rows = [{"run": run, "kind": kind, "body": zlib.compress(body)} for kind, body in bodies.items()]
    _replace(connection, _accounts, rows)


def is_closed(ledger: Ledger, run: str) -> bool:
    """Whether the run was closed and has not gone on since."""
    stored = ledger.fetch(sql.select(_closed.c.state).where(_closed.c.run == run)).scalar()
    return stored is not None and bytes(stored) == state_of(ledger, run)


def stored_account(ledger: Ledger, run: str, kind: str = DOCUMENT) -> bytes | None:
    """What was stored when the run was closed, None if it was not or has gone on since."""
    body = body_of(ledger.fetch, run, kind) if is_closed(ledger, run) else None
    return None if body is None else zlib.decompress(body)


def body_of(fetch: Callable[..., Any], run: str, kind: str) -> bytes | None:
    """What was stored, compressed, also of a run that has gone on since."""
    return fetch(
        sql.select(_accounts.c.body).where(_accounts.c.run == run, _accounts.c.kind == kind)
    ).scalar()


def summaries(ledger: Ledger, runs: Collection[str]) -> dict[str, bytes]:
    """What was stored as the summaries of these runs, none of which has gone on since."""
    query = sql.select(_accounts.c.run, _accounts.c.body).where(
        _accounts.c.kind == SUMMARY, _accounts.c.run.in_(runs)
    )
    with ledger.errors():
        return {row.run: zlib.decompress(row.body) for row in ledger.fetch(query)}


def thinned_seconds(ledger: Ledger, run: str) -> int:
    """Of how many seconds the coarsest of the run's blocks have one row, 0 where all have every step."""
    query = sql.select(sql.func.max(_blocks.c.tier)).where(
        _blocks.c.process.in_(sql.select(_processes.c.id).where(_processes.c.run == run))
    )
    return ledger.fetch(query).scalar() or 0


def thinned_until_ns(ledger: Ledger, run: str) -> dict[int, int]:
    """By rank the end of the last row that may stand for thinned steps; without ranks that have every step."""
    ends = sql.func.max(_blocks.c.end_ns_last)
    query = sql.select(_processes.c.rank, ends).join(_blocks, _blocks.c.process == _processes.c.id)
    thinned = query.where(_processes.c.run == run, _blocks.c.tier > 0).group_by(_processes.c.rank)
    return dict(map(tuple, ledger.fetch(thinned)))


def _replace(connection: sql.Connection, table: sql.Table, rows: list[dict]) -> None:
    """Write rows in place of those with the same key."""
    if not rows:
        return
    statement = insert(connection.dialect.name, table)
    others = {c.name: statement.excluded[c.name] for c in table.columns if not c.primary_key}
    key = list(table.primary_key.columns)
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_=others), rows)
