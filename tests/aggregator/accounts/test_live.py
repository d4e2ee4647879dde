"""The incremental account equals the account over all rows, at every push."""

from __future__ import annotations

import asyncio
import random

import pytest
from support.account.account_history import Process, ns
from support.aggregator.exports import STALE
from support.aggregator.ledgers import NOW, aggregator
from support.aggregator.live_accounts import account_or_refold
from support.aggregator.random_runs import process_after, random_process
from support.aggregator.reports import body_of, rank_report
from support.seeds import cases

from goodput.account import compute
from goodput.aggregator.accounts import live
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.pushed_steps import decode_steps, in_version_2
from goodput.aggregator.ingest.store import Store


def readings(one: Process, rng: random.Random) -> list[Process]:
    """A process as its agent saw it: at a few moments of its life, and at its end."""
    counts = [(rng.randrange(len(one.rows) + 1), rng.random() * 0.3) for _ in range(rng.randrange(1, 6))]
    found = [process_after(one, *count) for count in counts]
    return [*sorted(found, key=lambda seen: seen.now_ns), one]


def story(rng: random.Random) -> list[tuple[int, Process]]:
    """(moment of arrival, process as it was seen) of a run; some ranks' agents are slow to push."""
    ranks, start, found = rng.randrange(1, 5), 1000.0, []
    for number in range(1, rng.randrange(2, 5)):
        processes = [random_process(rng, rank, number, start + rng.random(), ranks) for rank in range(ranks)]
        for one in processes:
            delay = rng.choice([0, 0, 0, 1, 20])
            found += [(seen.now_ns + ns(delay * rng.random()), seen) for seen in readings(one, rng)]
        start = max(one.now_ns for one in processes) / 1e9 + rng.random() * 5
    return sorted(found, key=lambda entry: entry[0])


@pytest.mark.parametrize("rows_max", [200_000, 20])
@pytest.mark.parametrize("seed", cases(60))
def test_incremental_account_equals_full_per_push(seed, rows_max, monkeypatch):
    monkeypatch.setattr(live, "ROWS_MAX", rows_max)
    monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", (1 << 18, 2, 30)[seed % 3])
    rng = random.Random(seed)
    some, whole = Store(), Store()
    folded, anew, behind = None, 0, 0
    for arrived_ns, seen in story(rng):
        new = seen.rows[-rng.randrange(1, 40) :] if rng.random() < 0.1 else seen.rows
        whole.merge(rank_report(seen, rows=new), arrived_ns)
        pushed = in_version_2(rank_report(seen, rows=new))
        some.merge(pushed, arrived_ns, steps=decode_steps([pushed])[0])  # steps in blocks
        folded = folded or IncrementalAccount(some.runs["r1"], stall_seconds=60.0, stale_seconds=STALE)
        want = compute(whole.runs["r1"], arrived_ns, stale_seconds=STALE, known_only=True)
        found, again = account_or_refold(folded, whole.runs["r1"], arrived_ns)
        anew += again
        if found.end_ns != want.end_ns:
            # A silent rank is back: what was known stays until as much is known again.
            assert found.end_ns > want.end_ns and want.status == "running"
            behind += 1
            continue
        assert found == want
    if rows_max == 20 and folded.last.end_ns == want.end_ns:
        # All folded rows are dropped.
        engine = folded._engine
        assert all(
            a.kept_rows() <= a.after(engine.core.read(engine.places[key])["number"]).shape[1]
            for key, a in some.runs["r1"].attempts.items()
            if sum(a.kept_rows() for a in some.runs["r1"].attempts.values()) > 20
        )


def test_update_of_a_long_run_costs_new_rows(monkeypatch):
    """An update folds no more rows than were pushed since the last."""
    store, ranks = Store(), [Process(rank) for rank in range(2)]
    folded, count, fold = None, [0], live.fold

    def counted(engine, batch):
        count[0] += batch.values.shape[1]
        return fold(engine, batch)

    monkeypatch.setattr(live, "fold", counted)
    for _ in range(30):
        for one in ranks:
            one.steps(500, forward=0.5, communication=0.25)
            store.merge(rank_report(one, rows=one.rows[-500:]), one.now_ns)
        folded = folded or IncrementalAccount(store.runs["r1"], stall_seconds=60.0, stale_seconds=STALE)
        count[0] = 0
        account = folded.account(ranks[0].now_ns)
        assert count[0] <= 1002
    assert sum(rank.kept_steps for rank in account.ranks) == 30_000


def test_repeated_trimmed_rows_are_known(monkeypatch):
    monkeypatch.setattr(live, "ROWS_MAX", 10)
    store, one = Store(), Process().steps(50, forward=1)
    store.merge(rank_report(one), one.now_ns)
    folded = IncrementalAccount(store.runs["r1"], stall_seconds=60.0, stale_seconds=STALE)
    want = folded.account(one.now_ns)
    (attempt,) = store.runs["r1"].attempts.values()
    assert attempt.kept_rows() == 0
    merged = store.merge(rank_report(one), one.now_ns)
    assert merged.rows() == [] and attempt.kept_rows() == 0
    assert folded.account(one.now_ns) == want


def test_trimmed_rows_are_folded_again_from_ledger(ledger, monkeypatch):
    """End to end: the rows of the attempt that died are dropped, and some of its steps turn out to be lost."""
    monkeypatch.setattr(live, "ROWS_MAX", 20)
    ingest, whole = aggregator(ledger), Store()
    accounts = Accounts(
        ingest._store, stall_seconds=60.0, stale_seconds=STALE, age_seconds=0, history=History(ledger)
    )

    async def push(*processes):
        for one in processes:
            report = rank_report(one, rows=one.rows[-40:], events=one.events)
            await ingest.accept(body_of(report))
            whole.merge(report, NOW)

    async def story():
        first = [Process(rank, 1, 1000.0, world_size=2) for rank in range(2)]
        for i in range(5):
            for one in first:
                one.steps(40, forward=0.5, communication=0.25)
            await push(*first)
            accounts.account("r1", NOW + ns(i))
        assert all(attempt.kept_rows() == 0 for attempt in ingest._store.runs["r1"].attempts.values())
        for one in first:
            one.killed(after=0.5)
        second = [Process(rank, 2, 1200.0, world_size=2).resumed(99) for rank in range(2)]
        for one in second:
            one.steps(30, forward=0.5, communication=0.25).finished()
        await push(*first, *second)
        stood = accounts.account("r1", NOW + ns(10))
        assert sum(rank.kept_steps for rank in stood.ranks) == 400, "what was known before stands meanwhile"
        while accounts._folding:
            await asyncio.gather(*accounts._folding.values())
        found = accounts.account("r1", NOW + ns(20))
        assert found == compute(whole.runs["r1"], NOW + ns(20), stale_seconds=STALE, known_only=True)
        assert sum(rank.lost_steps for rank in found.ranks) == 200
        assert sum(rank.kept_steps for rank in found.ranks) == 260

    asyncio.run(asyncio.wait_for(story(), 60))


def test_repeated_steps_are_not_refolded_each_time(monkeypatch):
    """Its own old steps are not late ones of its group: else the account would stand still for good."""
    monkeypatch.setattr(live, "ROWS_MAX", 10)
    store, whole, ranks = Store(), Store(), [Process(rank, world_size=2) for rank in range(2)]
    folded, anew = None, 0
    for turn in range(12):
        for one in ranks:
            one.step_next = 5 * (turn % 3)
            one.steps(10, forward=0.5, communication=0.25)
        for one in ranks:
            for into in (store, whole):
                into.merge(rank_report(one, rows=one.rows[-10:]), one.now_ns)
        folded = folded or IncrementalAccount(store.runs["r1"], stall_seconds=60.0, stale_seconds=STALE)
        _, again = account_or_refold(folded, whole.runs["r1"], ranks[0].now_ns)
        anew += again
    assert anew == 0


def test_rows_before_their_attempt_are_deferred(monkeypatch):
    """The host's clock was set back under the process: folded, they would lie outside of the attempt for good."""
    store, one = Store(), Process(start=1000.0)
    one.rows = Process(start=100.0).steps(3, forward=1).rows
    store.merge(rank_report(one, rows=one.rows), ns(1001))
    folded = IncrementalAccount(store.runs["r1"], stall_seconds=60.0, stale_seconds=STALE)
    for seconds in (1001, 1002, 1003):
        account = folded.account(ns(seconds))
        assert all(sum(rank.states) == rank.wall_ns for rank in account.ranks)
    assert folded._engine is not None


def test_attempts_of_a_rank_are_folded_one_after_the_other(monkeypatch):
    """How long its planned phases took before decides how long a later one may take."""
    monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", 100)
    first = Process(0, 1, 1000.0).steps(90, forward=1).between(evaluation=600.0).steps(10, forward=1)
    first.killed(after=1)
    second = Process(0, 2, first.now_ns / 1e9 + 5).resumed(99)
    second.steps(20, forward=1).between(evaluation=2500.0).steps(40, forward=1).silent(after=1)
    store = Store()
    for process in (first, second):
        store.merge(rank_report(process), process.now_ns)
    run, now_ns = store.runs["r1"], second.now_ns
    folded = IncrementalAccount(run, stall_seconds=60.0, stale_seconds=STALE)
    assert folded.account(now_ns) == compute(run, now_ns, stale_seconds=STALE, known_only=True)


def test_one_long_backlog_beside_many_attempts_takes_few_rounds(monkeypatch):
    monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", 100)
    store, rounds = Store(), []
    for rank in range(60):
        one = Process(rank, world_size=60, group=f"g{rank}").steps(1 if rank else 400, forward=1).finished()
        store.merge(rank_report(one), one.now_ns)
    run, now_ns = store.runs["r1"], ns(1500)
    folded = IncrementalAccount(run, stall_seconds=60.0, stale_seconds=STALE)
    wanted_of = live.wanted_of
    monkeypatch.setattr(live, "wanted_of", lambda engine: rounds.append(1) or wanted_of(engine))
    assert folded.account(now_ns) == compute(run, now_ns, stale_seconds=STALE, known_only=True)
    assert len(rounds) < 15
