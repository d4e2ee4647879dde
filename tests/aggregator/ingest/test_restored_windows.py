"""Step windows of a restored run: the steps that its newest segment holds count again, each once."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from support.account.account_history import Process
from support.aggregator.exports import STALE
from support.aggregator.live_accounts import STALL
from support.aggregator.reports import body_of, rank_report

from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.snapshots import Snapshots
from goodput.aggregator.ingest import restored_windows
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.restored_windows import RestoredWindows
from goodput.aggregator.ingest.store import Store

RANKS = 3


class Aggregator:
    """Over a ledger; what it restored from is noted for its windows."""

    def __init__(self, ledger):
        self.now_ns, self.store = 0, Store()
        self.ingest = Ingest(self.store, ledger, clock_ns=lambda: self.now_ns)
        self.accounts = Accounts(
            self.store, stall_seconds=STALL, stale_seconds=STALE, age_seconds=0, history=History(ledger)
        )
        self.windows = RestoredWindows(ledger, self.store)
        self.ingest.restore(then=self._resume)

    def _resume(self, run, state) -> None:
        self.accounts.resume(run, state, self.now_ns)
        self.windows.note(run, self.store.recent[run], state)

    async def push(self, process: Process, rows: slice) -> None:
        self.now_ns = process.now_ns
        await self.ingest.accept(body_of(rank_report(process, rows=process.rows[rows], world_size=RANKS)))

    async def write(self) -> None:
        self.accounts.account("r1", self.now_ns)
        assert await Snapshots(self.accounts, self.ingest).write("r1", self.accounts._lives["r1"])

    def found(self, now_ns: int):
        return self.store.recent["r1"].windows(now_ns, RANKS)


def processes(steps: int, seconds: float) -> list[Process]:
    return [Process(rank, world_size=RANKS).steps(steps, forward=seconds) for rank in range(RANKS)]


@pytest.mark.parametrize("steps, seconds", [(100, 1.0), (900, 1.0), (500, 0.125)])
def test_windows_reach_as_far_back_as_before(ledger, steps, seconds):
    async def story():
        before, made = Aggregator(ledger), processes(steps, seconds)
        for process in made:
            await before.push(process, slice(0, steps - 20))
        await before.write()
        for process in made:
            await before.push(process, slice(steps - 20, steps - 10))
        now_ns = made[0].now_ns
        after = Aggregator(ledger)
        lacking = after.found(now_ns).sliding.steps
        for process in made:
            await before.push(process, slice(steps - 10, None))
            await after.push(process, slice(steps - 20, None))  # ten of them again
        await after.windows.fill("r1")
        found, wanted = after.found(now_ns), before.found(now_ns)
        # A step that began before the oldest window's start and ended in it is the first that is counted.
        assert found.discrete[1:] == wanted.discrete[1:] and found.sliding.steps == wanted.sliding.steps
        assert lacking == 10 * RANKS < found.sliding.steps
        await after.windows.fill("r1")
        assert after.found(now_ns) == found

    asyncio.run(story())


def test_rows_that_a_state_lacked_count_when_they_come(ledger):
    """A hole in what was pushed is filled between the restart and the reading."""

    async def story():
        before, made = Aggregator(ledger), processes(60, 1.0)
        for process in made:
            await before.push(process, slice(0, 20))
            await before.push(process, slice(30, 50))
        await before.write()
        after = Aggregator(ledger)
        for process in made:
            await after.push(process, slice(20, 30))
            await before.push(process, slice(20, 30))
        await after.windows.fill("r1")
        now_ns = made[0].now_ns
        wanted = before.found(now_ns).sliding.steps
        # Of a step that follows a hole it is not known how long it took.
        assert wanted - RANKS <= after.found(now_ns).sliding.steps <= wanted

    asyncio.run(story())


@pytest.mark.parametrize("backend", ["sqlite"])
def test_runs_are_filled_once_none_is_restored(ledger, monkeypatch):
    monkeypatch.setattr(restored_windows, "EVERY_SECONDS", 0.001)
    monkeypatch.setattr(restored_windows, "AFTER_SECONDS", 0.003)

    async def story():
        before, made = Aggregator(ledger), processes(50, 1.0)
        for process in made:
            await before.push(process, slice(None))
        await before.write()
        after = Aggregator(ledger)
        gone = after.store.recent["r1"]
        working = asyncio.create_task(after.windows.run())
        until = partial(asyncio.wait_for, timeout=30)
        await until(_until(lambda: after.found(made[0].now_ns).sliding.steps == 50 * RANKS))
        # A run that left memory meanwhile is left alone.
        after.windows.note("r1", before.store.recent["r1"], None)
        after.store.forget("r1")
        after.windows._lacking["r1"] = restored_windows._Lacking(gone, None)
        await until(_until(lambda: not after.windows._lacking))
        working.cancel()

    asyncio.run(story())


async def _until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.001)
