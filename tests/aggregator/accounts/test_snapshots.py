"""States of folds in the ledger: an account that goes on from one is the same as of all rows, and reads few of them."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from support.account.account_history import Process
from support.aggregator.exports import STALE
from support.aggregator.ledgers import database
from support.aggregator.live_accounts import STALL, differing_fields
from support.aggregator.random_reports import RandomReports
from support.aggregator.reports import body_of, rank_report
from support.seeds import cases

from goodput.account import Account, compute
from goodput.aggregator.accounts import live, new_rows, snapshots
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.live import RunIsDirty
from goodput.aggregator.accounts.past import Past, account_of
from goodput.aggregator.accounts.snapshots import Snapshots
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.migrations.versions import version_5
from goodput.aggregator.ledger.page_reader import PageReader
from goodput.wire.step_blocks import NUMBER


class Aggregator:
    """Over a ledger, with a store of all rows beside it; `restart` begins it anew."""

    def __init__(self, ledger):
        self.ledger, self.whole, self.now_ns = ledger, Store(), 0
        self.restart()

    def restart(self) -> None:
        self.ingest = Ingest(Store(), self.ledger, clock_ns=lambda: self.now_ns)
        self.accounts = Accounts(
            self.ingest._store,
            stall_seconds=STALL,
            stale_seconds=STALE,
            age_seconds=0,
            history=History(self.ledger),
        )
        self.accounts.flush = self.ingest.flush
        self.snapshots = Snapshots(self.accounts, self.ingest)
        self.ingest.restore(then=self._resume)

    def _resume(self, run, state) -> None:
        attempts = self.whole.runs[run].attempts
        for key, attempt in self.ingest._store.runs[run].attempts.items():
            # The ledger has no time of reception.
            attempt.received_ns = attempts[key].received_ns
        self.accounts.resume(run, state, self.now_ns)

    async def push(self, report, now_ns: int) -> None:
        self.now_ns = now_ns
        await self.ingest.accept(body_of(report))
        self.whole.merge(report, now_ns)

    async def write(self) -> bool:
        return await self.snapshots.write("r1", self.accounts._lives["r1"])

    async def account(self, now_ns: int) -> Account:
        for _ in range(3):
            self.accounts._cached.clear()
            # A late row may change the threshold, so a second fold has all step lengths.
            try:
                found = self.accounts.account("r1", now_ns)
            except RunIsDirty as needs:
                self.accounts._fold_again("r1", self.accounts._lives["r1"], needs)
            folding = list(self.accounts._folding.values())
            if not folding:
                return found
            await asyncio.gather(*folding)
        return self.accounts.account("r1", now_ns)

    def full(self, now_ns: int) -> Account:
        return compute(self.whole.runs["r1"], now_ns, stale_seconds=STALE, known_only=True)


def segments(url: str) -> list[tuple]:
    with database(url) as connection:
        return [tuple(row) for row in connection.execute(version_5.segments.select())]


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize("part", cases(6))
def test_account_is_the_same_after_any_restart(new_url, part, monkeypatch):
    """Reports in any order; the state is written and the aggregator is restarted at any moment."""
    from goodput.aggregator.ledger.ledger import Ledger

    monkeypatch.setattr("goodput.aggregator.accounts.accounts.FOLD_AGAIN_SECONDS", 0.0)

    async def play(seed: int, ledger) -> None:
        rng = random.Random(seed)
        draws, one = RandomReports(rng, workers=rng.random() < 0.2), Aggregator(ledger)
        monkeypatch.setattr(live, "ROWS_MAX", rng.choice([0, 20, 200_000]))
        monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", rng.choice([1 << 18, 2, 30]))
        for now_ns, report in draws.story():
            await one.push(report, now_ns)
            found, want = await one.account(now_ns), one.full(now_ns)
            if found.end_ns <= want.end_ns or want.status != "running":
                assert differing_fields(found, want) == []
            if rng.random() < 0.3:
                await one.write()
            if rng.random() < 0.15:
                one.restart()
                found, want = await one.account(now_ns), one.full(now_ns)
                assert differing_fields(found, want) == []
                past = Past(one.ingest._store.runs["r1"], now_ns, want.threshold_ns, STALE)
                whole = account_of(ledger, past, (None, None))
                assert [rank.states for rank in whole.ranks] == [rank.states for rank in want.ranks]

    for seed in range(part, 30, 6):
        ledger = Ledger(new_url())
        try:
            asyncio.run(play(seed, ledger))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        finally:
            ledger.close()


def ranks(count: int, steps: int) -> list[Process]:
    return [Process(rank, world_size=count).steps(steps, forward=1) for rank in range(count)]


async def pushed(one: Aggregator, processes: list[Process], rows: slice) -> int:
    for process in processes:
        await one.push(rank_report(process, rows=process.rows[rows]), process.now_ns)
    return processes[0].now_ns


@pytest.mark.parametrize("is_written", [False, True])
def test_restart_unpacks_some_rows_at_a_time(ledger, monkeypatch, is_written):
    monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", 40)
    unpacked, rows_after = [], new_rows.rows_after

    def counting(wanted, *arguments):
        found = rows_after(wanted, *arguments)
        unpacked.append(found[0].shape[1])
        return found

    async def scenario():
        one, processes = Aggregator(ledger), ranks(4, 110)
        now_ns = await pushed(one, processes, slice(0, 10))
        await one.account(now_ns)
        if is_written:
            await one.write()
        await pushed(one, processes, slice(10, 110))
        monkeypatch.setattr(new_rows, "rows_after", counting)
        one.restart()
        assert differing_fields(await one.account(now_ns), one.full(now_ns)) == []
        assert sum(unpacked) >= 400 and max(unpacked) <= 40

    asyncio.run(scenario())


@pytest.mark.parametrize("backend", ["sqlite"])
def test_restart_reads_rows_after_the_state(ledger, monkeypatch):
    async def story():
        one, processes = Aggregator(ledger), ranks(3, 500)
        now_ns = await pushed(one, processes, slice(450))
        await one.account(now_ns)
        assert await one.write()
        await pushed(one, processes, slice(450, None))
        read, tails = [], type(ledger).tails

        def counted(*arguments):
            for process, found in tails(*arguments):
                read.append(len(found))
                yield process, found

        monkeypatch.setattr(type(ledger), "tails", counted)
        one.restart()
        assert await one.account(now_ns) == one.full(now_ns)
        assert sum(read) == 3 * 51, "the last row of the state, and those after it"
        process = one.ingest._store.newest["r1"][0]
        assert process.last.number == 500 and process.attempt.kept_rows() == 50

    asyncio.run(story())


@pytest.mark.parametrize("backend", ["sqlite"])
def test_restart_of_a_run_folds_from_the_state_before(ledger, monkeypatch):
    """Steps become lost that are in the newest state, so the one before it is the beginning."""
    monkeypatch.setattr("goodput.aggregator.accounts.accounts.FOLD_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(live, "ROWS_MAX", 0)

    async def story():
        one, processes = Aggregator(ledger), ranks(2, 300)
        for at in (0, 100, 200):
            now_ns = await pushed(one, processes, slice(at, at + 100))
            await one.account(now_ns)
            assert await one.write()
        for process in processes:
            process.killed(after=1)
        await pushed(one, processes, slice(0, 0))
        start = processes[0].now_ns / 1e9 + 5
        again = [Process(rank, 2, start, world_size=2).resumed(149).steps(5, forward=1) for rank in range(2)]
        read, pages = [], PageReader.pages

        def counted(*arguments):
            for found in pages(*arguments):
                read.append(int(found[NUMBER, 0]))
                yield found

        monkeypatch.setattr(PageReader, "pages", counted)
        now_ns = await pushed(one, again, slice(None))
        found = await one.account(now_ns)
        assert found == one.full(now_ns) and found.restarts[0].lost_steps == 300
        assert sorted(read) == [1, 1, 101, 101]

    asyncio.run(story())


def test_late_row_drops_the_states_with_it(ledger, url):
    async def story():
        one, processes = Aggregator(ledger), ranks(2, 30)
        now_ns = await pushed(one, processes, slice(10))
        await one.account(now_ns)
        assert await one.write()
        await pushed(one, processes, slice(20, 30))
        await one.account(now_ns)
        assert await one.write()
        assert len(segments(url)) == 2
        await one.push(rank_report(processes[0], rows=processes[0].rows[10:20]), now_ns)
        assert [row[1] for row in segments(url)] == [20]
        one.restart()
        assert await one.account(now_ns) == one.full(now_ns)
        processes[0].now_ns += 1
        await one.push(rank_report(processes[0], rows=[], group="g"), now_ns)
        assert segments(url) == [], "its steps were compared with those of another group"

    asyncio.run(story())


@pytest.mark.parametrize("backend", ["sqlite"])
def test_state_older_than_late_rows_is_not_written(ledger, url):
    """Rows that come while a state is encoded may make it wrong."""

    async def story():
        one, processes = Aggregator(ledger), ranks(1, 30)
        await pushed(one, processes, slice(10))
        now_ns = await pushed(one, processes, slice(20, 30))
        await one.account(now_ns)
        writing = asyncio.ensure_future(one.write())
        await asyncio.sleep(0)
        await one.ingest.accept(body_of(rank_report(processes[0])))
        await writing
        assert segments(url) == []

    asyncio.run(story())


@pytest.mark.parametrize("backend", ["sqlite"])
def test_damaged_state_is_logged_and_all_rows_are_read(ledger, url, caplog):
    async def story():
        one, processes = Aggregator(ledger), ranks(2, 30)
        now_ns = await pushed(one, processes, slice(None))
        await one.account(now_ns)
        assert await one.write()
        with database(url) as connection:
            connection.execute(version_5.segments.update().values(body=b"nonsense"))
        with caplog.at_level(logging.WARNING):
            one.restart()
        assert await one.account(now_ns) == one.full(now_ns)
        assert [one.getMessage() for one in caplog.records] == [
            "run 'r1': a segment in the ledger is not used, more rows are read: it is damaged"
        ]

    asyncio.run(story())


@pytest.mark.parametrize("backend", ["sqlite"])
def test_states_are_written_when_due(ledger, url, monkeypatch):
    monkeypatch.setattr(snapshots, "STEPS_MAX", 10)
    monkeypatch.setattr(snapshots, "WAIT_TIMES", 0)

    async def story():
        one, processes = Aggregator(ledger), ranks(2, 40)
        found = []
        for at in range(0, 40, 4):
            now_ns = await pushed(one, processes, slice(at, at + 4))
            await one.account(now_ns)
            await one.snapshots.write_due()
            found.append(sorted(row[1] for row in segments(url)))
        assert [len(rows) for rows in found] == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
        assert found[-1] == [24, 48, 72]

    asyncio.run(story())


@pytest.mark.parametrize("backend", ["sqlite"])
def test_interim_states_replace_each_other(ledger, url, monkeypatch):
    monkeypatch.setattr(snapshots, "STEPS_MAX", 20)
    monkeypatch.setattr(snapshots, "WAIT_TIMES", 0)

    async def story():
        one, processes = Aggregator(ledger), ranks(2, 50)
        one.snapshots = Snapshots(one.accounts, one.ingest, interim_seconds=0.0)
        found = []
        for at in range(0, 50, 5):
            now_ns = await pushed(one, processes, slice(at, at + 5))
            await one.account(now_ns)
            await one.snapshots.write_due()
            await one.snapshots.write_due()  # nothing new
            found.append(sorted(row[1] for row in segments(url)))
        # 10 rows are there when the run is first seen; from then on 40 make a state that stays.
        assert found == [[], [20], [30], [40], [50], [50, 60], [50, 70], [50, 80], [50, 90], [50, 90, 100]]
        one.restart()
        assert await one.account(now_ns) == one.full(now_ns)

    asyncio.run(story())


@pytest.mark.parametrize("backend", ["sqlite"])
def test_interim_states_are_apart_by_seconds(ledger, url):
    async def story():
        one, processes = Aggregator(ledger), ranks(1, 20)
        one.snapshots = Snapshots(one.accounts, one.ingest, interim_seconds=1000.0)
        for at in range(0, 20, 5):
            now_ns = await pushed(one, processes, slice(at, at + 5))
            await one.account(now_ns)
            await one.snapshots.write_due()
        at, rows = one.snapshots._written["r1"]
        assert segments(url) == [] and rows == 5
        one.snapshots._written["r1"] = at - 1000, rows
        await one.snapshots.write_due()
        assert [row[1] for row in segments(url)] == [20]

    asyncio.run(story())
