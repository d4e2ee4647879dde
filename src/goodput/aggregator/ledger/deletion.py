"""Finds and deletes runs of a ledger, which an aggregator may be using.

A run is listed in `deletions` first, so that aggregators forget it; then it is deleted in small transactions. A
deletion that was interrupted is completed by deleting the run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import sqlalchemy as sql

from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_4, version_5, version_7

BLOCKS_AT_ONCE = 1000
# A run that reported this recently is not deleted: its next push would bring it back.
REPORTING_SECONDS = 600.0

_processes, _blocks = version_5.processes, version_5.blocks
_deletions = version_5.deletions
_OF_RUN = (
    *(version_4.events, version_5.ends, version_5.accounts, version_5.closed_runs, version_5.segments),
    version_7.bases,
)


class RunLife(NamedTuple):
    """When a run was last seen (unix ns, on its hosts' clocks), and its ranks that report now."""

    run: str
    seen_ns: int
    reporting: list[int]


def life_of(ledger: Ledger, run: str, now_ns: int) -> RunLife:
    """The ranks that report are those that have not ended and have reported recently."""
    marked, processes = ledger.ends(run), ledger.processes(run)
    recent_ns = now_ns - int(REPORTING_SECONDS * 1e9)
    reporting = {
        one.identity.rank
        for one in processes
        if one.live.alive and not one.live.ended and one.live.now_ns > recent_ns
    }
    seen_ns = max((one.live.end_ns or one.live.now_ns for one in processes), default=0)
    return RunLife(run, seen_ns, sorted(reporting - {request.rank for request in marked}))


def lives(ledger: Ledger, chosen: Callable[[str], bool], now_ns: int, age_ns: int = 0) -> Iterator[RunLife]:
    """The runs whose name is chosen and that were not seen for `age_ns`, by name."""
    for run in sorted(ledger.runs()):
        if chosen(run):
            life = life_of(ledger, run, now_ns)
            if now_ns - life.seen_ns >= age_ns:
                yield life


def delete(ledger: Ledger, run: str) -> Iterator[int]:
    """Delete a run; yields the number of blocks deleted after each transaction."""
    with ledger.transaction() as connection:
        statement = insert(connection.dialect.name, _deletions)
        statement = statement.on_conflict_do_update(
            index_elements=["run"], set_={"deleted_ns": statement.excluded.deleted_ns}
        )
        connection.execute(statement, [{"run": run, "deleted_ns": time.time_ns()}])
        for table in _OF_RUN:
            connection.execute(table.delete().where(table.c.run == run))
    deleted = 0
    for process in ledger.fetch(sql.select(_processes.c.id).where(_processes.c.run == run)).scalars().all():
        some = sql.select(_blocks.c.id).where(_blocks.c.process == process).limit(BLOCKS_AT_ONCE)
        while ids := ledger.fetch(some).scalars().all():
            with ledger.transaction() as connection:
                connection.execute(_blocks.delete().where(_blocks.c.id.in_(ids)))
            deleted += len(ids)
            yield deleted
        with ledger.transaction() as connection:
            # Also what was appended since.
            connection.execute(_blocks.delete().where(_blocks.c.process == process))
            connection.execute(_processes.delete().where(_processes.c.id == process))


def deletions(ledger: Ledger) -> dict[str, int]:
    """When each run was deleted last, in unix ns."""
    return dict(tuple(row) for row in ledger.fetch(sql.select(_deletions)))
