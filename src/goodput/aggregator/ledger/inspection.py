"""What a ledger holds, whether it is whole, and copies of it: the reading part of `goodput ledger`."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from random import Random

import sqlalchemy as sql
from msgspec import Struct

from goodput.aggregator.ledger import blocks, damage
from goodput.aggregator.ledger.block_reader import KEY
from goodput.aggregator.ledger.compaction import DAY_NS
from goodput.aggregator.ledger.database import make_private
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.migrations.versions import version_4, version_5

TIERS = {blocks.EVERY_ROW: "steps", blocks.MINUTES: "minutes", blocks.HOURS: "hours"}
PAGE_BLOCKS = 64
# The bytes of more blocks than this are estimated from a sample of so many.
MEASURED_MAX, SAMPLED = 20_000, 500
BACKUP_PAGES = 2048
DAY_SECONDS = DAY_NS // 10**9
GROWTH_SECONDS_LEAST = 60

_processes, _blocks = version_5.processes, version_5.blocks
_closed, _ends, _events = version_5.closed_runs, version_5.ends, version_4.events


class Tier(Struct):
    """The blocks of one resolution. `bytes` are of the blocks alone, and estimated where they are many."""

    name: str
    blocks: int
    rows: int
    steps: int  # that these rows stand for, about
    bytes: int
    oldest: float | None  # unix seconds
    newest: float | None


class Contents(Struct):
    """Size and contents of a ledger. `bytes_per_day` is the rate of blocks with every step over the `growth_seconds` before the
    newest one, a day at most; None where they are less than a minute."""

    ledger: str
    bytes: int  # of the database, or its tables on a server
    free_bytes: int  # of these, not used at the moment; None of it is lost: new rows go there first
    bytes_per_day: int | None
    growth_seconds: int
    runs: int
    closed_runs: int  # whose account is stored
    processes: int
    events: int
    tiers: list[Tier]
    steps_kept_longer: int  # rows of steps past their time


def contents(ledger: Ledger, steps_days: float, now_ns: int) -> Contents:
    """What `goodput ledger show` prints. Reads the index of the blocks, and some blocks."""
    total, free = size_bytes(ledger), _free_bytes(ledger)
    tiers = [_tier(ledger, tier) for tier in TIERS]
    is_old = _blocks.c.end_ns_last < now_ns - int(steps_days * DAY_NS)
    return Contents(
        ledger.url,
        total,
        free,
        *_growth(ledger, tiers[0], steps_days),
        runs=_count(ledger, sql.select(_processes.c.run).distinct()),
        closed_runs=_count(ledger, sql.select(_closed.c.run)),
        processes=_count(ledger, sql.select(_processes.c.id)),
        events=_count(ledger, sql.select(_events.c.number)),
        tiers=tiers,
        steps_kept_longer=_sum(ledger, _blocks.c.tier == 0, is_old),
    )


def _growth(ledger: Ledger, steps: Tier, steps_days: float) -> tuple[int | None, int]:
    """Bytes per day, and over how many seconds: those of the last day of which steps are kept."""
    least = min(DAY_SECONDS, int(steps_days * DAY_SECONDS))
    seconds = min(int((steps.newest or 0) - (steps.oldest or 0)), least)
    if seconds < GROWTH_SECONDS_LEAST:
        return None, seconds
    since_ns = int((steps.newest or 0) - seconds) * 10**9
    rows = _sum(ledger, _blocks.c.tier == 0, _blocks.c.end_ns_last > since_ns)
    return rows * steps.bytes // steps.rows * DAY_SECONDS // seconds, seconds


def _tier(ledger: Ledger, tier: int) -> Tier:
    of = _blocks.c.tier == tier
    numbers = _blocks.c.last - _blocks.c.first + 1
    query = sql.select(
        sql.func.count(), sql.func.sum(_blocks.c.rows), sql.func.sum(numbers),
        sql.func.min(_blocks.c.start_ns_first), sql.func.max(_blocks.c.end_ns_last),
    ).where(of)  # fmt: skip
    count, rows, steps, oldest_ns, newest_ns = ledger.fetch(query).one()
    size = sql.func.length(_blocks.c.block)
    if count <= MEASURED_MAX:
        found = int(ledger.fetch(sql.select(sql.func.sum(size)).where(of)).scalar() or 0)
    else:
        low, high = ledger.fetch(sql.select(sql.func.min(_blocks.c.id), sql.func.max(_blocks.c.id))).one()
        ids = Random(0).sample(range(low, high + 1), min(10 * SAMPLED, high - low))
        sample = sql.select(size, _blocks.c.rows).where(of, _blocks.c.id.in_(ids)).limit(SAMPLED)
        pairs = (
            ledger.fetch(sample).all()
            or ledger.fetch(sql.select(size, _blocks.c.rows).where(of).limit(1)).all()
        )
        found = int(rows) * sum(one for one, _ in pairs) // sum(one for _, one in pairs)
    times = [ns / 1e9 if ns is not None else None for ns in (oldest_ns, newest_ns)]
    return Tier(TIERS[tier], count, int(rows or 0), int(steps or 0), found, *times)


def size_bytes(ledger: Ledger) -> int:
    """Bytes of the database, or of its tables on a server."""
    if ledger.file is not None:
        return _pragma(ledger, "page_count") * _pragma(ledger, "page_size")
    tables = sql.text(
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
    )
    return int(ledger.fetch(tables).scalar() or 0)


def _free_bytes(ledger: Ledger) -> int:
    if ledger.file is None:
        return 0
    return _pragma(ledger, "freelist_count") * _pragma(ledger, "page_size")


def _pragma(ledger: Ledger, name: str) -> int:
    return int(ledger.fetch(sql.text(f"PRAGMA {name}")).scalar() or 0)


def _sum(ledger: Ledger, *where) -> int:
    return int(ledger.fetch(sql.select(sql.func.sum(_blocks.c.rows)).where(*where)).scalar() or 0)


def _count(ledger: Ledger, query: sql.Select) -> int:
    return int(ledger.fetch(sql.select(sql.func.count()).select_from(query.subquery())).scalar() or 0)


# ---- Checking


def damages(ledger: Ledger, progress: Callable[[int, int], object] = lambda done, of: None) -> Iterator[str]:
    """What is wrong and where, one line each; `progress(blocks done, all blocks)` is called after each page."""
    if ledger.lost_commits:
        yield ledger.lost_commits
    yield from _broken_pages(ledger)
    for one in damage.damaged_rows(ledger, [table for table in damage.CHECKS if table is not _blocks]):
        yield one.text()
    aside = damage.count_set_aside(ledger)
    if aside:
        yield f"table {damage.DAMAGED.name}: {aside} damaged rows were set aside by an aggregator"
    try:
        yield from _broken_references(ledger)
        names = _names(ledger)
    except LedgerError as error:  # For the texts that are listed above.
        yield f"references were not checked: {error}"
        names = {}
    of, done, after = _count(ledger, sql.select(_blocks.c.id)), 0, 0
    columns = [column for column in _blocks.columns if column.name not in ("block", "width")]
    page = sql.select(*columns).order_by(_blocks.c.id).limit(PAGE_BLOCKS)
    while found := ledger.fetch(page.where(_blocks.c.id > after)).all():
        for listed in found:
            reason = _damage(ledger, listed)
            if reason:
                run, rank, pid = names.get(listed.process, ("unknown", "unknown", "unknown"))
                where = f"run {run!r} rank {rank} pid {pid}"
                yield f"block {listed.id} ({where}, rows {listed.first} to {listed.last}): {reason}"
        done, after = done + len(found), found[-1].id
        progress(done, max(of, done))


def _names(ledger: Ledger) -> dict[int, tuple[str, int, int]]:
    """Run, rank and pid of each process, by its id."""
    columns = [_processes.c[name] for name in ("id", "run", "rank", "pid")]
    return {id: (run, rank, pid) for id, run, rank, pid in ledger.fetch(sql.select(*columns))}


def _damage(ledger: Ledger, listed: sql.Row) -> str:
    """What is wrong with a block, or nothing."""
    try:
        row = ledger.fetch(sql.select(_blocks).where(_blocks.c.id == listed.id)).mappings().first()
        if row is None:
            return ""  # merged meanwhile
        reason = damage.reason(_blocks, dict(row))
        stored = blocks.StoredBlock(row["id"], row["width"], row["block"])
        if not reason and blocks.has_wrong_rows(blocks.decode([stored])):
            return "it has a row that no rank can have recorded, or rows out of order"
        return reason
    except (LedgerError, ValueError, TypeError, ArithmeticError) as error:
        return f"it cannot be decoded: {error}"


def _broken_pages(ledger: Ledger) -> Iterator[str]:
    if ledger.file is not None:
        for (found,) in ledger.fetch(sql.text("PRAGMA integrity_check(20)")):
            if found != "ok":
                yield f"database: {found}"


def _broken_references(ledger: Ledger) -> Iterator[str]:
    known = sql.select(_processes.c.id)
    query = sql.select(_blocks.c.process, sql.func.count()).where(_blocks.c.process.not_in(known))
    for process, count in ledger.fetch(query.group_by(_blocks.c.process)):
        yield f"table {_blocks.name}: {count} rows of the process {process}, which is unknown"
    for table in (_events, _ends):
        same = [table.c[name] == _processes.c[name] for name in KEY]
        query = sql.select(table.c.run, sql.func.count()).where(~sql.exists().where(*same))
        for run, count in ledger.fetch(query.group_by(table.c.run)):
            yield f"table {table.name}: {count} rows of the run {run!r} belong to no process"


def newest_report(ledger: Ledger) -> float | None:
    """When the page of the newest report in the ledger was read, in unix seconds; None without one."""
    found = ledger.fetch(sql.select(sql.func.max(_processes.c.sequence))).scalar()
    return None if found is None else int(found) / 1e9


def has_lost_log(file: str) -> bool:
    """Whether the write-ahead log of an SQLite ledger that was not closed is gone; to be called before it is opened."""
    return os.path.exists(f"{file}-shm") and not os.path.exists(f"{file}-wal")


# ---- Copying


def backup(ledger: Ledger, path: str, progress: Callable[[int, int], object]) -> None:
    """Copy an SQLite ledger as it is at this moment, while it is in use. `path` must not exist. Raises OSError, LedgerError."""
    assert ledger.file is not None
    part = f"{path}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    try:
        make_private(part)
        source, target = sqlite3.connect(ledger.file), sqlite3.connect(part)
        with contextlib.closing(source), contextlib.closing(target):
            # With a read transaction open, writers do not make the copy start again.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM alembic_version").fetchone()
            source.backup(target, pages=BACKUP_PAGES, progress=lambda _, left, of: progress(of - left, of))
        os.link(part, path)
    except sqlite3.Error as error:
        raise LedgerError(f"ledger {ledger.url}: the copy failed: {error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
