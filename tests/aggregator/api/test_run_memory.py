"""Runs that left memory for the ledger: they read as before, come back exactly, and make room for new ones."""

import asyncio
import random
import threading
import time

import pytest
from support.account.account_history import Process, ns
from support.aggregator.exports import STALE, with_integers
from support.aggregator.ledgers import NOW, bodies
from support.aggregator.reports import body_of, rank_report, story
from support.seeds import cases

from goodput.account import FINAL_STATUSES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.run_summaries import RunSummaries
from goodput.aggregator.api import run_memory
from goodput.aggregator.api.ledger_maintenance import LedgerMaintenance
from goodput.aggregator.ingest import store as store_module
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.compaction import DAY_NS, Keep
from goodput.aggregator.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    yield ledger
    ledger.close()


class Aggregator:
    """One over a ledger, whose reports all come at `now_ns`, long ago."""

    def __init__(self, ledger: Ledger, now_ns: int = NOW):
        self.now_ns, self.store = now_ns, Store()
        self.ingest = Ingest(self.store, ledger, clock_ns=lambda: self.now_ns)
        history = History(ledger)
        self.accounts = Accounts(self.store, stall_seconds=60, stale_seconds=STALE, history=history)
        self.maintenance = LedgerMaintenance(ledger, self.ingest, self.accounts, Keep(7, 90))
        self.memory = self.maintenance.memory
        self.summaries = RunSummaries(self.accounts, self.memory.summaries)

    async def push(self, *pushed: bytes) -> list:
        return [await self.ingest.accept(body) for body in pushed]

    async def account(self, run: str):
        await self.memory.load(run)
        return self.accounts.account(run, NOW)


def run_bodies(run: str, rank: int = 0, **given) -> list[bytes]:
    return [body_of(rank_report(Process(rank).steps(3, forward=1, loader=0.25).finished(), run, **given))]


def test_ended_runs_leave_and_read_the_same(ledger):
    async def scenario():
        one = Aggregator(ledger)
        await one.push(*bodies(*story(ranks=3)), *run_bodies("small"))
        want = {run: with_integers(one.accounts.account(run, NOW)) for run in ("r1", "small")}
        before = await one.summaries.page(10)
        await one.maintenance.close_runs(NOW + DAY_NS)
        assert not one.store.runs and not one.store.processes and set(one.store.stored) == set(want)
        assert not list(one.accounts.last()), "nothing of them is held"
        assert (await one.summaries.page(10)) == before and not one.store.runs, "the list brings none back"
        for run in want:
            assert with_integers(await one.account(run)) == want[run]
        assert one.ingest.counts["runs", "loaded"] == 2
        again = Aggregator(ledger)
        assert again.memory.find_stored() == len(ledger.processes("r1")) + 1
        assert again.ingest.restore() == 0 and (await again.summaries.page(10)) == before
        for run in want:
            assert with_integers(await again.account(run)) == want[run]

    asyncio.run(scenario())


def test_so_many_runs_are_read_at_once(ledger, monkeypatch):
    """Those of an aggregator that died are all wanted at once; read all together each would be there last."""
    runs = [f"run-{at}" for at in range(5)]

    async def scenario():
        filling, one = Aggregator(ledger), Aggregator(ledger)
        await filling.push(*[body for run in runs for body in run_bodies(run)])
        one.store.stored |= ledger.starts()
        read, reading, most, may_end = one.memory._read, [], [], threading.Event()

        def slow_read(run):
            reading.append(run)
            most.append(len(reading))
            assert may_end.wait(30)
            reading.remove(run)
            return read(run)

        monkeypatch.setattr(one.memory, "_read", slow_read)
        loads = [asyncio.create_task(one.memory.load(run)) for run in runs]
        while len(reading) < run_memory.READ_AT_ONCE:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)  # in which a third one would begin
        may_end.set()
        await asyncio.gather(*loads)
        assert max(most) == run_memory.READ_AT_ONCE and sorted(one.store.runs) == runs

    asyncio.run(scenario())


def test_repeated_reports_of_thinned_runs_change_nothing(ledger):
    async def scenario():
        one, pushed = Aggregator(ledger), bodies(*story(ranks=3))
        await one.push(*pushed)
        want = with_integers(one.accounts.account("r1", NOW))
        for _ in range(2):
            await one.maintenance.close_runs(NOW + 8 * DAY_NS)
            await one.maintenance.compact(NOW + 8 * DAY_NS)
        assert one.ingest.counts["ledger", "rows_thinned_total"] and "r1" in one.store.stored
        answers = await one.push(*pushed)
        assert not any(answer.rejected for answer in answers)
        assert "r1" in one.store.runs and with_integers(one.accounts.account("r1", NOW)) == want

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", cases(4))
def test_runs_that_leave_at_any_moment_have_the_same_account(ledger, tmp_path, seed):
    """Reports in any order with repeats, the run stored away between any two: as if it had never left."""
    rng, pushed = random.Random(seed), bodies(*story(ranks=2))
    order = rng.sample(range(len(pushed)), len(pushed)) + rng.choices(range(len(pushed)), k=5)

    async def scenario():
        one, stays = Aggregator(ledger), Aggregator(Ledger(f"sqlite:///{tmp_path}/other.db"))
        for seconds, at in enumerate(order):
            await asyncio.gather(one.push(pushed[at]), stays.push(pushed[at]))
            if rng.random() < 0.5:
                # Each look is later than what an account may be behind.
                one.accounts.account("r1", NOW + ns(100 * seconds))
            if rng.random() < 0.3:
                one.memory._used.clear()
                assert one.memory.make_room() == 1 and not one.store.runs
        await one.memory.load("r1")
        found, want = (its.accounts.account("r1", NOW + ns(1e5)) for its in (one, stays))
        assert with_integers(found) == with_integers(want)

    asyncio.run(scenario())


def test_new_runs_take_the_place_of_the_oldest(ledger, monkeypatch):
    """100 runs where 16 fit: all are accepted, the newest are in memory, all are listed and read."""
    monkeypatch.setattr(store_module, "RUNS_MAX", 16)

    async def scenario():
        one = Aggregator(ledger)
        for number in range(100):
            one.now_ns = NOW + number
            (answer,) = await one.push(*run_bodies(f"run {number}", start_ns=ns(500 + number)))
            assert not answer.rejected
        assert len(one.store.runs) <= 16 and len(one.store.stored) == 100 - len(one.store.runs)
        assert "run 99" in one.store.runs and "run 0" in one.store.stored
        assert one.ingest.counts["runs", "full"] == len(one.store.stored)
        page = await one.summaries.page(1000)
        assert len(page.runs) == page.total == 100
        assert (await one.account("run 0")).status == "finished"
        opened = await one.summaries.page(len(one.store.runs), open_first=True)
        assert {row.run for row in opened.runs} == set(one.store.runs) and "run 0" in one.store.runs

    asyncio.run(scenario())


def test_runs_that_left_stay_in_the_ledger_at_a_restart(ledger, monkeypatch):
    """They were closed two minutes after their end, so a bound that was full leaves nothing to be read again."""
    monkeypatch.setattr(store_module, "RUNS_MAX", 8)

    async def scenario():
        one = Aggregator(ledger)
        for number in range(30):
            one.now_ns = NOW + number
            await one.push(*run_bodies(f"run {number}", start_ns=ns(500 + number)))
            await one.maintenance.close_runs(NOW + ns(121))
        want = await one.summaries.page(100)
        again = Aggregator(ledger)
        again.memory.find_stored()
        assert again.ingest.restore() == 0 and len(again.store.stored) == 30
        assert await again.summaries.page(100) == want and not again.store.runs

    asyncio.run(scenario())


def test_a_run_of_a_node_whose_clock_is_behind_is_not_computed_again_each_minute(ledger, monkeypatch):
    async def scenario():
        one = Aggregator(ledger)
        behind = Process(start=(NOW - ns(900)) / 1e9).steps(3, forward=1)
        await one.push(body_of(rank_report(behind)))
        assert (await one.account("r1")).status not in FINAL_STATUSES
        computed = []

        def computing(run):
            computed.append(run)
            raise KeyError(run)

        monkeypatch.setattr(one.accounts, "computing", computing)
        await one.maintenance.close_runs(one.now_ns + ns(119))
        assert computed == []
        await one.maintenance.close_runs(one.now_ns + ns(121))
        assert computed == ["r1"]

    asyncio.run(scenario())


def test_a_run_is_closed_whose_agents_repeat_its_end(ledger):
    async def scenario():
        one = Aggregator(ledger)
        ended = body_of(rank_report(Process(start=500.0).steps(3, forward=1).finished()))
        await one.push(ended)
        assert (await one.account("r1")).status in FINAL_STATUSES
        one.now_ns = NOW + ns(120)
        await one.push(ended)
        await one.maintenance.close_runs(one.now_ns + ns(1))
        assert one.ingest.counts["ledger", "runs_closed_total"] == 1

    asyncio.run(scenario())


def test_restart_reads_the_newest_runs_that_fit(ledger):
    """The others stay in the ledger, also those that are not over, and are listed and read as before."""

    async def scenario():
        one = Aggregator(ledger)
        for number in range(6):
            running = Process(start=500.0 + number).steps(3, forward=1)
            await one.push(body_of(rank_report(running, f"run {number}")))
        whole = Aggregator(ledger)
        assert whole.ingest.restore(whole.maintenance.restored) == 6
        want = {run: with_integers(await whole.account(run)) for run in one.store.runs}
        again = Aggregator(ledger)
        rooms = iter([True, True])
        assert again.ingest.restore(again.maintenance.restored, has_room=lambda: next(rooms, False)) == 2
        assert set(again.store.runs) == {"run 4", "run 5"} and set(again.store.stored) == want.keys() - {
            "run 4",
            "run 5",
        }
        assert [row.run for row in (await again.summaries.page(10)).runs] == sorted(want, reverse=True)
        for run, account in want.items():
            assert with_integers(await again.account(run)) == account

    asyncio.run(scenario())


def test_runs_that_report_now_are_not_driven_out(ledger, monkeypatch):
    monkeypatch.setattr(store_module, "RUNS_MAX", 4)

    async def scenario():
        one = Aggregator(ledger, time.time_ns())
        for number in range(4):
            await one.push(*run_bodies(f"run {number}"))
        (answer,) = await one.push(*run_bodies("one more"))
        (rejection,) = answer.rejected
        assert rejection.reason == "runs" and "by runs that report now" in rejection.text
        assert len(one.store.runs) == 4
        monkeypatch.setattr(run_memory, "OVER_SECONDS", 0.0)
        (answer,) = await one.push(*run_bodies("one more"))
        assert not answer.rejected

    asyncio.run(scenario())


def test_runs_that_are_read_are_not_driven_out(ledger, monkeypatch):
    async def scenario():
        one = Aggregator(ledger)
        await one.push(*run_bodies("read"), *run_bodies("other"))
        with one.memory.requested("read"), one.memory.requested("read"):
            assert one.memory.make_room() == 1 and one.memory.make_room() == 0
            with one.memory.requested("read"):
                pass
            monkeypatch.setattr(run_memory, "USED_SECONDS", 0.0)
            assert one.memory.make_room() == 0 and set(one.store.runs) == {"read"}
        monkeypatch.undo()
        assert one.memory.make_room() == 0, "it may be read again"
        monkeypatch.setattr(run_memory, "USED_SECONDS", 0.0)
        assert one.memory.make_room() == 1 and not one.store.runs

    asyncio.run(scenario())


def test_runs_of_full_tokens_make_room_for_their_own(ledger, monkeypatch):
    monkeypatch.setattr(store_module, "RUNS_MAX", 8)

    async def scenario():
        one = Aggregator(ledger)
        await one.push(*run_bodies("others"))
        for number in range(3):
            report = rank_report(Process().steps(1, forward=1).finished(), f"a/{number}")
            one.store.merge(report, NOW, "scoped")
        assert "others" in one.store.runs and "a/0" not in one.store.runs
        assert {"a/2", "others"} <= one.store.runs.keys()

    asyncio.run(scenario())


def test_deleted_runs_are_not_listed(ledger):
    from goodput.aggregator.ledger.deletion import delete

    async def scenario():
        one = Aggregator(ledger)
        await one.push(*run_bodies("gone"))
        await one.maintenance.close_runs(NOW + DAY_NS)
        assert "gone" in one.store.stored
        for _ in delete(ledger, "gone"):
            pass
        await one.maintenance.forget_deleted()
        assert not one.store.stored and not (await one.summaries.page(10)).runs

    asyncio.run(scenario())


def test_run_of_a_batch_stays_while_it_is_merged(ledger, monkeypatch):
    """A new run that is merged first and needs room does not send away the old one that is merged after it."""
    monkeypatch.setattr(store_module, "RUNS_MAX", 1)

    async def scenario():
        one = Aggregator(ledger)
        await one.push(*run_bodies("old"))
        (new,) = run_bodies("new")
        later = body_of(rank_report(Process(0).steps(5, forward=1, loader=0.25), "old"))
        acks = await asyncio.gather(one.ingest.accept(new), one.ingest.accept(later))
        return one, acks

    one, (new, later) = asyncio.run(scenario())
    assert [rejection.reason for rejection in new.rejected] == ["runs"] and not later.rejected
    assert one.store.stored == {} and list(one.store.runs) == ["old"]
    (attempt,) = one.store.runs["old"].attempts.values()
    assert attempt.top_number == 5
