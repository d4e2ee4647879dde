"""Accounts of windows that begin at stored states equal those over all rows."""

from __future__ import annotations

import asyncio
import random
from dataclasses import fields

import pytest
from support.account.account_history import Process, ns
from support.aggregator.exports import STALE
from support.aggregator.ledgers import take
from support.aggregator.live_accounts import TwoStores
from support.aggregator.random_reports import RandomReports
from support.aggregator.reports import body_of, rank_report
from support.seeds import cases

from goodput.account import Account, compute
from goodput.aggregator.accounts import live, stored_states
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.past import Past, account_of
from goodput.aggregator.accounts.snapshots import Snapshots
from goodput.aggregator.accounts.stored_states import States
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import closed_runs, compaction, segments

# What is no sum: of the attempt since its start.
SINCE_START = {"best_samples_per_second"}


def steps(rng: random.Random, processes: list[Process], many: int) -> None:
    for _ in range(many):
        length = 1 + rng.random()
        for one in processes:
            own = round(length * rng.uniform(0.5, 0.8), 3)
            parts = {"forward": own, "communication": round(length - own, 9)}
            if rng.random() < 0.02:
                parts["loader"] = rng.choice([5, 45, 70])
            one.step(**parts, samples=rng.randrange(4), device=rng.random() < 0.5)
            if rng.random() < 0.05:
                one.between(none=0.2, evaluation=1)
        if rng.random() < 0.05:
            for one in processes:
                one.saved(None, committed=True)


def played(rng: random.Random) -> tuple[TwoStores, int]:
    """A run of some attempts that reports now and then, whose states are stored at times."""
    stores, start, point = TwoStores(), 1000.0, -1
    world, in_groups = rng.choice([1, 2, 4]), rng.choice([1, 2])
    for number in range(1, rng.choice([2, 3, 4])):
        processes = [
            Process(
                rank, number, start + rng.random(), world_size=world, group=f"g{rank // 2 * (in_groups - 1)}"
            )
            for rank in range(world)
        ]
        for one in processes:
            one.between(none=1, restore=1)
            if number > 1:
                one.resumed(point)
        sent = [0] * world
        for _ in range(rng.randrange(2, 12)):
            steps(rng, processes, rng.randrange(1, 12))
            now_ns = max(one.now_ns for one in processes)
            for at, one in enumerate(processes):
                if rng.random() < 0.9:
                    stores.push(rank_report(one, rows=one.rows[sent[at] :]), now_ns)
                    sent[at] = len(one.rows)
            if stores.folding is not None:
                stores.compare(now_ns)
        for at, one in enumerate(processes):
            over = rng.choice([one.killed, one.finished])
            stores.push(rank_report(over(), rows=one.rows[sent[at] :]), now_ns)
        point = rng.choice([-1, max(processes[0].rows[-1].step - rng.randrange(9), -1)])
        start = max(one.now_ns for one in processes) / 1e9 + 5
    return stores, max(one.now_ns for one in processes) + ns(1)


def assert_equal(found: Account, want: Account) -> None:
    for field in fields(Account):
        if field.name not in ("ranks", "straggler", "planned"):
            assert getattr(found, field.name) == getattr(want, field.name), field.name
    for mine, theirs in zip(found.ranks, want.ranks, strict=True):
        for name in type(want.ranks[0]).__slots__:
            if name in ("kept_samples", "flops", "hardware_flops"):
                assert getattr(mine, name) == pytest.approx(getattr(theirs, name)), name
            elif name not in SINCE_START:
                assert getattr(mine, name) == getattr(theirs, name), name
    for field in fields(want.straggler):
        if field.name == "steps":
            assert found.straggler.steps == pytest.approx(want.straggler.steps)
        elif field.name != "onsets":
            assert getattr(found.straggler, field.name) == getattr(want.straggler, field.name), field.name


@pytest.mark.parametrize("part", cases(4))
def test_windows_between_states_equal_all_rows(part, monkeypatch):
    monkeypatch.setattr(live, "ROWS_MAX", 0)
    # In 10 and 103 a rank's last steps lie in the window, and those that others made with it before.
    for seed in (*range(part, 12, 4), *([10, 103] if part == 0 else [])):
        rng = random.Random(seed)
        stores, now_ns = played(rng)
        compare_windows(stores, now_ns, rng, f"seed {seed}")


def test_steps_that_were_compared_without_a_rank_before_it_was_back(monkeypatch):
    """The first state has steps of rank 1 alone; in the next one they are compared with those of rank 0, also those of
    which only rank 0's lie in the window."""
    monkeypatch.setattr(live, "ROWS_MAX", 0)
    stores, now_ns = played(random.Random(1081))
    whole, rows = stores.full(now_ns), stores.rows
    past = Past(stores.some.runs["r1"], now_ns, whole.threshold_ns, STALE)
    window = (1_075_062_093_805, 1_176_396_137_312)
    found = account_of(rows, past, window)
    rows.kept_segments = []
    assert_equal(found, account_of(rows, past, window))


@pytest.mark.parametrize("part", cases(4))
def test_windows_of_hostile_runs_equal_all_rows(part, monkeypatch):
    """Where states cannot be used all rows are folded."""
    monkeypatch.setattr(live, "ROWS_MAX", 0)
    for seed in range(part, 12, 4):
        rng, stores, now_ns = random.Random(seed), TwoStores(), 0
        reports = RandomReports(rng)
        reports.again = 0
        for now_ns, report in reports.story():
            stores.push(report, now_ns)
            stores.compare(now_ns)
        if now_ns:
            compare_windows(stores, now_ns, rng, f"seed {seed}")


def compare_windows(stores: TwoStores, now_ns: int, rng: random.Random, what: str) -> None:
    """From states, and from the run's first row on, with the account of all rows."""
    whole, rows = stores.full(now_ns), stores.rows
    past = Past(stores.some.runs["r1"], now_ns, whole.threshold_ns, STALE)
    stored = rows.kept_segments
    for _ in range(6):
        borders = sorted(rng.randrange(whole.start_ns, whole.end_ns + 2) for _ in range(2))
        window = (borders[0], borders[1])
        rows.kept_segments = []
        without = account_of(rows, past, window)
        rows.kept_segments = stored
        found = account_of(rows, past, window)
        whole_run = stores.whole.runs["r1"]
        want = compute(whole_run, now_ns, stale_seconds=STALE, known_only=True, window=window)
        try:
            assert_equal(without, want)
            assert_equal(found, want)
        except AssertionError as error:
            raise AssertionError(f"{what}, window {window}") from error


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_first_place_is_found_from_any_other(count):
    for want in range(count + 1):
        for near in (-5, 0, count // 3, count - 1, count + 9):
            asked: list[int] = []

            def is_right(at: int, want=want, asked=asked) -> bool:
                asked.append(at)
                return at >= want

            assert stored_states.first_of(count, is_right, near) == want
            assert all(0 <= at < count for at in asked)
            assert len(asked) <= 2 + 2 * (abs(min(max(near, 0), count) - want) + 1).bit_length()


# ---- Thinned runs


def together(rng: random.Random, processes: list[Process], many: int) -> None:
    """Steps in lock step, of which some are slow for one rank."""
    for _ in range(many):
        own = [round(rng.uniform(0.8, 1.6) + 9 * (rng.random() < 0.01), 9) for _ in processes]
        for one, seconds in zip(processes, own, strict=True):
            waited = max(own) - seconds + 0.125
            one.step(forward=seconds, communication=round(waited, 9), samples=3, device=one.rank == 1)
            if one.step_next % 100 == 0:
                one.saved()


def reported(rng: random.Random, ledger) -> tuple[Ingest, int]:
    """A run of four ranks in two groups that starts again once, with a state after every few reports."""
    ingest = Ingest(Store(), ledger, clock_ns=lambda: 0)
    accounts = Accounts(
        ingest._store, stall_seconds=60, stale_seconds=STALE, age_seconds=0, history=History(ledger)
    )
    snapshots, start = Snapshots(accounts, ingest), 1000.0
    for number, point in ((1, None), (2, 299)):
        processes = [Process(r, number, start, world_size=4, group=f"g{r // 2}") for r in range(4)]
        for one in processes:
            one.between(none=2)
            if point is not None:
                one.resumed(point)
        sent = [0] * 4
        for at in range(30):
            together(rng, processes, rng.randrange(15, 40))
            # Some ranks are behind in their reports.
            for one in processes if at < 29 else ():
                if rng.random() < 0.95:
                    take(ingest, body_of(rank_report(one, rows=one.rows[sent[one.rank] :])))
                    sent[one.rank] = len(one.rows)
            accounts._cached.clear()
            live_fold = accounts.account("r1", processes[0].now_ns) and accounts._lives["r1"]
            if at % 2:
                asyncio.run(snapshots.write("r1", live_fold))
        take(
            ingest,
            *(body_of(rank_report(one.killed() if point is None else one.finished())) for one in processes),
        )
        start = processes[0].now_ns / 1e9 + 30
    return ingest, processes[0].now_ns


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize("seed", cases(4))
def test_windows_between_states_stay_exact_when_thinned(ledger, monkeypatch, seed):
    """And all others have the resolution of the rows that are left."""
    monkeypatch.setattr(compaction, "SEGMENT_ROWS", 2)
    rng = random.Random(seed)
    ingest, now_ns = reported(rng, ledger)
    run = ingest._store.runs["r1"]
    whole = account_of(ledger, Past(run, now_ns, 60 * 10**9, STALE), (None, None))
    past = Past(run, now_ns, 60 * 10**9, STALE)
    ends = {
        (key, row.step): row.end_ns
        for one in ledger.processes("r1")
        for key in [one.identity.attempt]
        for row in ledger.rows(one.identity)
    }
    exact = []
    states, facts = States(ledger, past.run), past.facts((None, None))
    for at, rows in enumerate(ledger.segment_rows("r1")):
        border = segments.border_of(segments.state(ledger.fetch, "r1", rows))
        if states.engine(at, facts, 60.0) is not None:
            newest = max(border.spans)
            exact.append((rows, ends[newest, border.spans[newest][1]]))
    windows = [(one[1], other[1]) for one in exact for other in exact if one[0] < other[0]]
    some = [tuple(sorted(rng.randrange(whole.start_ns, whole.end_ns) for _ in range(2))) for _ in range(9)]
    want = {window: account_of(ledger, past, window) for window in (*windows, *some)}

    close_and_thin(ledger, now_ns)
    left = [one for one in exact if one[0] in ledger.segment_rows("r1")]
    assert 2 <= len(left) < len(exact) and closed_runs.thinned_seconds(ledger, "r1")
    for one in left:
        for other in left:
            if one[0] < other[0]:
                window = one[1], other[1]
                assert_equal(account_of(ledger, past, window), want[window])
    for window in some:
        found = account_of(ledger, past, window)
        for mine, theirs in zip(found.ranks, want[window].ranks, strict=True):
            assert sum(mine.states) == sum(theirs.states) == mine.wall_ns
            assert abs(mine.productive_ns - theirs.productive_ns) < ns(140)


def close_and_thin(ledger, now_ns: int) -> None:
    closed_runs.close_run(ledger, "r1", closed_runs.state_of(ledger, "r1"), now_ns, {})
    for _ in compaction.Compaction(ledger).work(now_ns + 8 * compaction.DAY_NS):
        pass
