"""Accounts of windows read from the ledger equal those over all rows, and read little."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from support.account.account_history import ns
from support.aggregator.ledgers import aggregator, take
from support.aggregator.random_runs import ingested_run
from support.aggregator.reports import body_of, rank_report
from support.seeds import cases

from goodput.account import compute, document
from goodput.account.states import INDEX
from goodput.aggregator.accounts import history as history_module
from goodput.aggregator.accounts import rolling
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History, HistoryError
from goodput.aggregator.accounts.past import HELD_LEAST, Past, account_of
from goodput.aggregator.accounts.slices import AT_A_TIME_SECONDS
from goodput.aggregator.accounts.snapshots import Snapshots
from goodput.aggregator.fair_queue import INTERNAL
from goodput.aggregator.ledger import page_reader
from goodput.aggregator.memory_bound import MemoryBound
from goodput.causes import explain


@pytest.mark.parametrize("seed", cases(25))
def test_ledger_window_equals_window_of_all_rows(ledger, seed):
    ingest, now_ns = ingested_run(ledger, seed)
    run, rng = ingest._store.runs["r1"], random.Random(seed)
    whole = compute(run, now_ns, stale_seconds=30.0, known_only=True)
    past = Past(run, now_ns, whole.threshold_ns, 30.0)
    assert not any(attempt.kept_rows() for attempt in past.run.attempts.values())
    borders = sorted(rng.randrange(whole.start_ns - ns(5), whole.end_ns + ns(5)) for _ in range(5))
    for window in [
        (None, None),
        *pairwise(borders),
        (None, borders[2]),
        (borders[2], None),
    ]:
        want = compute(run, now_ns, stale_seconds=30.0, known_only=True, window=window)
        found = account_of(ledger, past, window)
        assert [(r.states, r.kept_ns, r.wall_ns, r.kept_steps, r.lost_steps) for r in found.ranks] == [
            (r.states, r.kept_ns, r.wall_ns, r.kept_steps, r.lost_steps) for r in want.ranks
        ]
        assert (found.start_ns, found.end_ns, found.status) == (want.start_ns, want.end_ns, want.status)
        assert found.straggler.caused_ns == want.straggler.caused_ns
        for rank in found.ranks:
            assert sum(rank.states) == rank.wall_ns and min(rank.states) >= 0


@pytest.mark.parametrize("seed", cases(10))
def test_adjacent_windows_sum_to_the_whole(ledger, seed):
    """A step that crosses a border is shared in proportion, and so is the idle time of devices."""
    ingest, now_ns = ingested_run(ledger, seed)
    run = ingest._store.runs["r1"]
    whole = compute(run, now_ns, stale_seconds=30.0, known_only=True)
    cuts = [whole.start_ns + i * (whole.end_ns - whole.start_ns) // 7 for i in range(8)]
    parts = [
        compute(run, now_ns, stale_seconds=30.0, known_only=True, window=pair) for pair in pairwise(cuts)
    ]
    for rank in whole.ranks:
        same = [r for part in parts for r in part.ranks if r.rank == rank.rank]
        assert sum(r.wall_ns for r in same) == rank.wall_ns
        sums = [sum(r.states[i] for r in same) for i in range(len(rank.states))]
        # A nanosecond may be rounded into another state at each of the six borders.
        assert all(abs(one - other) <= 6 * len(sums) for one, other in zip(sums, rank.states, strict=True))
        assert sum(r.kept_steps for r in same) == rank.kept_steps
        assert sum(r.lost_steps for r in same) == rank.lost_steps


def test_thread_returns_documents_or_its_error(ledger):
    ingest, now_ns = ingested_run(ledger, 3)
    run = ingest._store.runs["r1"]
    whole = compute(run, now_ns, stale_seconds=30.0, known_only=True)
    past = Past(run, now_ns, whole.threshold_ns, 30.0)

    async def query(history, of):
        documents, took = await history.documents(of, [(None, None)])
        assert took > 0
        return documents

    (found,) = asyncio.run(query(History(ledger), past))
    assert found == document(whole, explain(whole))
    unknown = Past(replace(run, name="r2"), now_ns, whole.threshold_ns, 30.0)
    with pytest.raises(HistoryError, match="it has no data of run 'r2'"):
        asyncio.run(query(History(ledger), unknown))


def test_query_that_takes_too_long_ends(ledger, monkeypatch):
    ingest, now_ns = ingested_run(ledger, 3)
    past = Past(ingest._store.runs["r1"], now_ns, ns(60), 30.0)
    monkeypatch.setattr("goodput.aggregator.accounts.history.SECONDS_MAX", 0.0)
    history = History(ledger)
    with pytest.raises(HistoryError, match="ask for a shorter window"):
        asyncio.run(history.documents(past, [(None, None)]))
    history.stop()
    with pytest.raises(HistoryError, match="stops"):
        asyncio.run(history.documents(past, [(None, None)]))


@pytest.mark.parametrize("owner, gives_way", [(INTERNAL, True), ("", False)])
def test_internal_work_gives_way_to_pushes(owner, gives_way, monkeypatch):
    """It sleeps between parts, about as long as it computes; a person's query does not."""
    slept = []
    monkeypatch.setattr(history_module, "time", SimpleNamespace(**vars(time) | {"sleep": slept.append}))

    def compute_parts(_ledger, check):
        begin = time.thread_time()
        while time.thread_time() < begin + 10 * AT_A_TIME_SECONDS:
            check()

    asyncio.run(History(None).run(owner, compute_parts))
    assert not gives_way or (0 < len(slept) <= 12 and set(slept) == {AT_A_TIME_SECONDS})
    assert gives_way or not slept


def test_query_gives_back_what_it_freed(monkeypatch):
    calls = []
    monkeypatch.setattr(history_module, "give_back_free_memory", lambda: calls.append("given back"))
    asyncio.run(History(None).run("", lambda _ledger, _check: calls.append("computed")))
    assert calls == ["computed", "given back"]


def test_short_window_of_long_run_reads_little(ledger, monkeypatch):
    from support.account.account_history import Process

    one = Process()
    ingest = aggregator(ledger)
    accounts = Accounts(ingest._store, stall_seconds=60, stale_seconds=30.0, history=History(ledger))
    snapshots = Snapshots(accounts, ingest)
    for _ in range(20):
        one.steps(200, forward=0.5, loader=0.25)
        take(ingest, body_of(rank_report(one, rows=one.rows[-200:])))
        accounts.expire("r1")
        accounts.account("r1", one.now_ns)
        asyncio.run(snapshots.write("r1", accounts._lives["r1"]))
    run = ingest._store.runs["r1"]
    read = []
    pages = page_reader.PageReader.pages
    monkeypatch.setattr(
        page_reader.PageReader,
        "pages",
        lambda *a: (read.append(one.shape[1]) or one for one in pages(*a)),
    )
    end_ns = one.now_ns - ns(300)
    found = account_of(ledger, Past(run, one.now_ns, ns(60), 30.0), (end_ns - ns(60), end_ns))
    assert found.ranks[0].states[INDEX["loader"]] == ns(20)
    assert 0 < sum(read) < 700, "of 4000 rows"


@pytest.mark.parametrize("seconds", [5.0, 10_000.0])
def test_rolling_windows_have_figures_of_documents(ledger, seconds, monkeypatch):
    """A window that is not shorter than the run is not folded."""
    ingest, now_ns = ingested_run(ledger, 3)
    run = ingest._store.runs["r1"]
    whole = compute(run, now_ns, stale_seconds=30.0, known_only=True)
    past = Past(run, now_ns, whole.threshold_ns, 30.0)
    start_ns = whole.end_ns - ns(seconds)
    want = document(window := account_of(ledger, past, (start_ns, whole.end_ns)), explain(window))
    monkeypatch.setattr(rolling, "ROLLING", (("last", seconds),))
    if start_ns < whole.start_ns:
        monkeypatch.setattr(rolling, "account_of", None)
    found, lifetime = rolling.rolling_windows(ledger, past, whole).windows
    names = ("start", "end", "gpu_seconds", "states", "factors", "steps")
    assert {name: getattr(found, name) for name in names} == {name: want[name] for name in names}
    assert (found.name, found.seconds, found.leading_cause) == ("last", seconds, want["advice_order"][0])
    assert lifetime.states == document(whole)["states"]


@pytest.mark.parametrize("backend", ["sqlite"])
def test_memory_for_every_attempts_rows_is_reserved(ledger):
    """Of a wide run some rows of each attempt are in memory, however few rows a query may hold."""
    ingest, now_ns = ingested_run(ledger, 1)
    run, ledger.rows_held = ingest._store.runs["r1"], 10
    past = Past(run, now_ns, ns(60), 30.0)
    memory = MemoryBound(1 << 40, resident=lambda: 0, trim=lambda: None)

    def reserved(_ledger, _past, _check) -> int:
        return memory._reserved

    found, _ = asyncio.run(History(ledger, memory).run("", reserved, past))
    rows = min(past.rows(), HELD_LEAST * len(run.attempts))
    assert found == rows * history_module.ROW_BYTES > 10 * history_module.ROW_BYTES and not memory._reserved
    small = MemoryBound(100 << 20, resident=lambda: 0, trim=lambda: None)
    small.request_bytes_max = lambda: 7
    assert asyncio.run(History(ledger, small).run("", lambda *_: small._reserved, past))[0] == 7
