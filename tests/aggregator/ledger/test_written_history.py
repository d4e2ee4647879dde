"""The ledger that bench.history writes directly is that of a run that was pushed, and windows of it are exact."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest
import sqlalchemy as sql
from bench.history import ledger as history_ledger
from bench.history.run import RUN, Pushes

from goodput.account import Account, compute
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.past import Past, account_of
from goodput.aggregator.accounts.snapshots import Snapshots
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.pushed_steps import PushedSteps, decode_steps
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import closed_runs, compaction, page_reader, segments
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_5
from goodput.aggregator.run_states import RunState, decode

RANKS, STEPS, START_NS, STALE = 16, 2304, 1_700_000_000 * 10**9, 30.0


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Pushes of 128 steps."""
    monkeypatch.setattr("goodput.aggregator.accounts.snapshots.ROWS_MAX", 128 * RANKS)
    monkeypatch.setattr("goodput.aggregator.accounts.snapshots.STEPS_MAX", 128)


def pushed(directory, is_compacted: bool = True) -> tuple[Ledger, Store]:
    """The same run as a store merges it, with a state after each push; its blocks are merged if it is compacted."""
    ledger = Ledger(f"sqlite:///{directory}/pushed.db")
    store = Store()
    ingest = Ingest(store, ledger, clock_ns=lambda: 0)
    accounts = Accounts(store, stall_seconds=60, stale_seconds=STALE, age_seconds=0, history=History(ledger))
    snapshots = Snapshots(accounts, ingest)

    async def push() -> None:
        for reports in Pushes(RANKS, STEPS, START_NS).reports():
            merged = []
            for report, steps in zip(reports, decode_steps(reports), strict=True):
                assert isinstance(steps, PushedSteps)
                merged.append(store.merge(report, 0, "", steps))
            ledger.append(merged)
            accounts._cached.clear()
            accounts.account(RUN, reports[0].live.now_ns)
            assert await snapshots.write(RUN, accounts._lives[RUN])

    asyncio.run(push())
    for _ in compaction.Compaction(ledger).work(0) if is_compacted else ():
        pass
    return ledger, store


def whole_run() -> Store:
    """All rows in memory."""
    store = Store()
    for reports in Pushes(RANKS, STEPS, START_NS).reports():
        for report, steps in zip(reports, decode_steps(reports), strict=True):
            assert isinstance(steps, PushedSteps)
            store.merge(report, 0, "", steps)
    return store


def blocks_of(ledger: Ledger) -> list[tuple]:
    processes, blocks = version_5.processes, version_5.blocks
    columns = [column for column in blocks.columns if column.name not in ("id", "process")]
    query = sql.select(processes.c.rank, *columns).where(blocks.c.process == processes.c.id)
    return [tuple(row) for row in ledger.fetch(query.order_by(processes.c.rank, blocks.c.first))]


def states_of(ledger: Ledger) -> dict[int, RunState]:
    found = {}
    for rows in ledger.segment_rows(RUN):
        body = ledger.segment(RUN, rows)
        assert body is not None
        found[rows] = decode(body)
    return found


def assert_equal(found: Account, want: Account) -> None:
    for mine, theirs in zip(found.ranks, want.ranks, strict=True):
        for name in ("rank", "states", "wall_ns", "kept_steps", "lost_steps", "kept_ns"):
            assert getattr(mine, name) == getattr(theirs, name), name
    assert (found.start_ns, found.end_ns, found.status) == (want.start_ns, want.end_ns, want.status)
    assert found.straggler.caused_ns == want.straggler.caused_ns


def test_written_ledger_is_that_of_a_pushed_run(tmp_path):
    history_ledger.write(tmp_path, RANKS, STEPS, START_NS)
    written = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger, store = pushed(tmp_path)
    assert blocks_of(written) == blocks_of(ledger)
    assert states_of(written) == states_of(ledger)
    assert written.segment_rows(RUN) == [128 * RANKS * at for at in range(1, STEPS // 128 + 1)]
    now_ns, run = START_NS + STEPS * 10**9, whole_run().runs[RUN]
    all_rows = compute(run, now_ns, stale_seconds=STALE, known_only=True)
    past = Past(store.runs[RUN], now_ns, all_rows.threshold_ns, STALE)
    rng = random.Random(1)
    borders = sorted(rng.randrange(START_NS, now_ns) for _ in range(6))
    for window in [*pairwise(borders), (borders[0], borders[-1]), (None, None)]:
        want = compute(run, now_ns, stale_seconds=STALE, known_only=True, window=window)
        for one in (written, ledger):
            assert_equal(account_of(one, past, window), want)
    written.close()
    ledger.close()


def test_long_window_lists_blocks_at_its_ends_alone(tmp_path, monkeypatch):
    """Between two states it needs none, and a run of a year has a million there."""
    ledger, store = pushed(tmp_path, is_compacted=False)
    listed, read = [], page_reader.PageReader._list

    def counted(self, some):
        read(self, some)
        listed.extend(len(one.listed) for one in some)

    monkeypatch.setattr(page_reader.PageReader, "_list", counted)
    now_ns, run = START_NS + STEPS * 10**9, whole_run().runs[RUN]
    past = Past(store.runs[RUN], now_ns, 60 * 10**9, STALE)
    window = START_NS + 150 * 10**9, now_ns - 150 * 10**9
    found = account_of(ledger, past, window)
    assert len(listed) >= 2 * RANKS and max(listed) <= 3 < STEPS // 128 - 4
    want = compute(run, now_ns, stale_seconds=STALE, known_only=True, window=window)
    assert_equal(found, want)
    ledger.close()


def test_written_minutes_are_those_that_compaction_leaves(tmp_path, monkeypatch):
    """And between two segments a window is exact to the nanosecond."""
    monkeypatch.setattr(compaction, "SEGMENT_ROWS", 2)
    history_ledger.write_thinned(tmp_path, RANKS, STEPS, START_NS)
    written = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger, store = pushed(tmp_path)
    newest_ns = closed_runs.newest_ns(ledger, RUN)
    closed_runs.close_run(ledger, RUN, closed_runs.state_of(ledger, RUN), newest_ns, {})
    for _ in compaction.Compaction(ledger).work(newest_ns + 8 * compaction.DAY_NS):
        pass
    assert blocks_of(written) == blocks_of(ledger) and closed_runs.thinned_seconds(written, RUN)
    assert states_of(written) == states_of(ledger)
    run = whole_run().runs[RUN]
    all_rows = compute(run, newest_ns, stale_seconds=STALE, known_only=True)
    past = Past(store.runs[RUN], newest_ns, all_rows.threshold_ns, STALE)
    borders = [
        segments.border_of(state).end_ns
        for rows in written.segment_rows(RUN)
        if (state := segments.state(written.fetch, RUN, rows)) is not None
    ]
    assert len(borders) > 8
    for window in ((borders[1], borders[2]), (borders[2], borders[-2]), (borders[4], borders[7])):
        want = compute(run, newest_ns, stale_seconds=STALE, known_only=True, window=window)
        assert_equal(account_of(written, past, window), want)
    written.close()
    ledger.close()
