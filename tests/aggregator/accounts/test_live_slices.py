"""Accounts computed in slices while reports are merged between them: they close, and the next one is exact."""

from __future__ import annotations

import asyncio
import random
from itertools import count, islice

import pytest
from support.account.account_history import Process, assert_closes, ns
from support.aggregator.live_accounts import STALE, STALL, TwoStores
from support.aggregator.random_reports import RandomReports
from support.aggregator.reports import rank_report

from goodput.account import facts
from goodput.account.by_core import compute, engine, stragglers
from goodput.aggregator.accounts import live, new_rows
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.live import RunIsDirty
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.ingest.store import Store


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch):
    """Every attempt and every rank is a slice of its own."""
    for module in (facts, compute, engine, stragglers):
        monkeypatch.setattr(module, "AT_A_TIME", 1)
    monkeypatch.setattr(new_rows, "ATTEMPTS_AT_ONCE", 1)
    monkeypatch.setattr(new_rows, "ROWS_AT_ONCE", 3)


def play(seed: int, monkeypatch) -> int:
    """Merge reports between the slices of accounts, some of which are given up; returns between how many."""
    rng = random.Random(seed)
    draws, both, between = RandomReports(rng), TwoStores(), 0
    monkeypatch.setattr(live, "ROWS_MAX", rng.choice([0, 5, 200_000]))
    monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", rng.choice([1 << 18, 2, 30]))
    pushes, now_ns = iter(draws.story()), 0
    for now_ns, report in pushes:
        both.push(report, now_ns)
        if rng.random() < 0.3:
            continue
        parts, given_up_at = both.folding.computing(now_ns), rng.choice([-1, -1, rng.randrange(80)])
        try:
            for at in count():
                next(parts)
                if at == given_up_at:
                    parts.close()
                    break
                assert both.folding.copy() is None, "a state that is half folded"
                for later_ns, other in islice(pushes, rng.choice([0, 0, 1, 3])):
                    both.push(other, max(now_ns, later_ns))
                    between += 1
        except StopIteration as over:
            assert_closes(over.value, elastic=True)
        except RunIsDirty:
            pass
        both.compare(now_ns)
    if now_ns:
        both.compare(now_ns + ns(20))
    return between


@pytest.mark.parametrize("part", range(2))
def test_reports_between_slices_change_no_later_account(part, monkeypatch):
    between = 0
    for seed in range(part, 40, 2):
        try:
            between += play(seed, monkeypatch)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert between > 100


def test_account_given_up_anywhere_leaves_next_exact():
    store = Store()
    for rank in range(3):
        process = Process(rank, world_size=3)
        for step in range(20):
            process.steps(1, forward=1 + (rank == step % 3) / 4, communication=0.1 * ((rank + step) % 3))
        store.merge(rank_report(process), process.now_ns)
    now_ns, run = process.now_ns, store.runs["r1"]

    def fold_of() -> live.IncrementalAccount:
        return live.IncrementalAccount(run, stall_seconds=STALL, stale_seconds=STALE)

    whole, slices = fold_of(), 0
    want = whole.account(now_ns)
    assert want.straggler.waited_ns
    for _ in fold_of().computing(now_ns):
        slices += 1
    for at in range(slices):
        folding = fold_of()
        parts = folding.computing(now_ns)
        for _ in islice(parts, at + 1):
            pass
        parts.close()
        assert folding.account(now_ns) == want, f"given up after {at + 1} slices"


def store_of(ranks: int) -> tuple[Store, list[Process]]:
    store, processes = Store(), [Process(rank, world_size=ranks).steps(5, forward=1) for rank in range(ranks)]
    for one in processes:
        store.merge(rank_report(one), one.now_ns)
    return store, processes


def accounts_of(store: Store) -> Accounts:
    return Accounts(store, stall_seconds=STALL, stale_seconds=STALE, history=None)


def test_several_wait_for_one_computation():
    """Each gets the same account, those who cannot wait the one before, and an account that is dropped is begun anew."""
    store, processes = store_of(4)
    accounts, now_ns = accounts_of(store), processes[0].now_ns
    before = accounts.account("r1", now_ns)
    for one in processes:
        store.merge(rank_report(one.steps(5, forward=1)), one.now_ns)
    now_ns = processes[0].now_ns + ns(3600)

    async def both():
        waiting = [asyncio.ensure_future(in_slices(accounts.computing("r1", now_ns))) for _ in range(2)]
        await asyncio.sleep(0)
        return await asyncio.gather(*waiting)

    first, second = accounts.computing("r1", now_ns), accounts.computing("r1", now_ns)
    next(first), next(second)
    assert accounts.account("r1", now_ns) is before
    first.close()
    one, other = asyncio.run(both())
    assert one is other is not before and sum(rank.kept_steps for rank in one.ranks) == 40
    assert list(second) == [] and accounts.account("r1", now_ns) is one


def test_deleted_run_ends_its_computation():
    store, processes = store_of(2)
    accounts = accounts_of(store)
    parts = accounts.computing("r1", processes[0].now_ns)
    next(parts)
    store.forget("r1")
    accounts.forget("r1")
    with pytest.raises(KeyError):
        list(parts)


@pytest.mark.parametrize("parts_before", range(8))
def test_late_row_between_slices_of_a_restart_is_folded(parts_before):
    both, ranks = TwoStores(), [Process(rank, world_size=2).steps(6, forward=1) for rank in range(2)]
    now_ns = ranks[0].now_ns

    def push(rank: int, *numbers: int) -> None:
        rows = [row for row in ranks[rank].rows if row.number in numbers]
        both.push(rank_report(ranks[rank], rows=rows), now_ns)

    push(0, 1, 3, 5, 6)
    push(1, 1, 2, 3, 4, 5, 6)
    assert both.compare(now_ns)
    push(0, 2)
    parts = both.folding.computing(now_ns)
    for _ in range(parts_before):
        next(parts, None)
    push(0, 4)
    list(parts)
    assert both.compare(now_ns + ns(1))


def test_fold_from_the_ledger_pauses_by_the_accounts_clock(monkeypatch):
    """So that one which is needed anew soon after is not late in a simulated time that runs faster than ours."""
    store, (one,) = store_of(1)
    now, begun = [one.now_ns], []
    accounts = Accounts(
        store, stall_seconds=STALL, stale_seconds=STALE, history=_History(), clock_ns=lambda: now[0]
    )
    live_fold = accounts._fold_of("r1", store.runs["r1"])
    monkeypatch.setattr(live_fold, "begin", lambda *read, late: begun.append(late))

    async def fold(late: int) -> list[int]:
        accounts._fold_again("r1", live_fold, RunIsDirty(None, late))
        await asyncio.wait_for(asyncio.gather(*accounts._folding.values()), 5)
        return begun

    async def story() -> None:
        # The first takes half a second of a core.
        assert await fold(1) == [1]
        now[0] += ns(4)
        assert await fold(2) == [1]
        now[0] += ns(1.5)
        assert await fold(3) == [1, 3]
        now[0] -= ns(60)
        assert await fold(4) == [1, 3, 4], "a clock that was set back"

    ticks = count()
    monkeypatch.setattr("goodput.aggregator.accounts.accounts.time.perf_counter", lambda: 0.5 * next(ticks))
    asyncio.run(story())


class _History:
    async def run(self, *_) -> tuple[tuple[int, ...], int]:
        return (), 0
