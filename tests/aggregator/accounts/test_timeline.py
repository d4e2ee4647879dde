"""Timelines: buckets close and sum to the account, and samples of big runs are representative."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.account.account_history import Process
from support.account.random_histories import number_ns, runs
from support.aggregator.ledgers import aggregator, take
from support.aggregator.random_runs import ingested_run
from support.aggregator.reports import body_of, rank_report, story
from support.aggregator.serve_process import serving
from support.aggregator.shapes import assert_shape
from support.seeds import cases

from goodput.account import compute
from goodput.account.states import INDEX, STATES
from goodput.aggregator.accounts import past as past_accounts
from goodput.aggregator.accounts import result_cache
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.past import Past
from goodput.aggregator.accounts.run_summaries import RunPage
from goodput.aggregator.accounts.timelines import spans, timeline
from goodput.aggregator.accounts.timelines.grid import Grid, cells_of
from goodput.aggregator.accounts.timelines.spans import SPAN_STATES
from goodput.aggregator.accounts.timelines.timeline import Timeline, merged
from goodput.aggregator.api.app import create_app


@pytest.fixture
def backend():
    return "sqlite"


def past_of(ingest, now_ns: int, window=(None, None)) -> tuple:
    """r1 as the child process takes it, and the run's account in the window."""
    run = ingest._store.runs["r1"]
    whole = compute(run, now_ns, stale_seconds=30.0, known_only=True)
    account = compute(run, now_ns, stale_seconds=30.0, known_only=True, window=window)
    return Past(run, now_ns, whole.threshold_ns, 30.0), account


def assert_closes(found) -> None:
    for cell, gpu_ns in zip(found.cells, found.gpu_ns, strict=True):
        assert sum(cell) == gpu_ns and min(cell) >= 0


def sums_of_states(found) -> list[int]:
    return [sum(values) for values in zip(*found.cells, strict=True)]


# ---- The grid


@pytest.mark.parametrize("seed", cases(20))
def test_laid_spans_fill_their_buckets_exactly(seed):
    rng = random.Random(seed)
    longest = rng.choice([5000, 10**12, 1 << 57])
    grid = Grid(1000, 1000 + rng.randrange(1, longest), rng.randrange(1, 50))
    spans, laid, whole = [], [0] * grid.points, Counter()
    for _ in range(30):
        a, b = sorted(rng.randrange(grid.edges[0], grid.edges[-1] + 1) for _ in range(2))
        cuts = sorted(rng.randrange(b - a + 1) for _ in range(3))
        parts = [high - low for low, high in pairwise([0, *cuts, b - a])]
        states = dict(zip(rng.sample(SPAN_STATES, 4), parts, strict=True))
        spans.append([0, a, b, -1, *(states.get(state, 0) for state in SPAN_STATES)])
        whole.update({state: 2 * ns for state, ns in states.items()})
        for i, (low, high) in enumerate(pairwise(grid.edges)):
            laid[i] += 2 * max(0, min(b, high) - max(a, low))
    cells, empty = cells_of(np.array(spans), grid, np.array([0]), np.array([2], object))
    assert [sum(cell) for cell in cells] == laid and not any(map(any, empty))
    assert [sum(values) for values in zip(*cells, strict=True)] == [whole[state] for state in STATES]


def test_grid_has_equal_parts_of_whole_nanoseconds():
    assert Grid(0, 10, 3).edges == [0, 3, 6, 10]
    assert Grid(5, 8, 240).edges == [5, 6, 7, 8]
    assert Grid(5, 5, 240).points == 0
    assert merged([(5, 9), (1, 3), (3, 4), (20, 30)]) == [(1, 4), (5, 9), (20, 30)]


# ---- Against the account


@pytest.mark.parametrize("seed", cases(12))
def test_buckets_close_and_sum_to_the_account(ledger, seed):
    ingest, now_ns = ingested_run(ledger, seed)
    past, whole = past_of(ingest, now_ns)
    found = timeline.sums_of(ledger, past, (None, None), 17, [])
    assert_closes(found)
    assert sum(found.gpu_ns) == whole.wall_gpu_ns()
    assert sums_of_states(found) == whole.gpu_ns()


@pytest.mark.parametrize("seed", cases(6))
def test_bucket_equals_account_of_its_window(ledger, seed):
    ingest, now_ns = ingested_run(ledger, seed)
    past, _ = past_of(ingest, now_ns)
    found = timeline.sums_of(ledger, past, (None, None), 5, [])
    for i, window in enumerate(pairwise(found.grid.edges)):
        _, want = past_of(ingest, now_ns, window)
        assert all(abs(a - b) <= 200 for a, b in zip(found.cells[i], want.gpu_ns(), strict=True))
    # And the timeline of a window is the timeline of the whole there.
    cut = (found.grid.edges[1], found.grid.edges[3])
    assert timeline.sums_of(ledger, past, cut, 2, []).gpu_ns == pytest.approx(found.gpu_ns[1:3], abs=10)


def lock_step(ledger, ranks: int, steps: int, slow: int):
    """An ingest with a run in lock step; rank `slow` takes longer in its loader from half of it on."""
    processes = [Process(r, 1, 1000.0, world_size=ranks) for r in range(ranks)]
    for step in range(steps):
        for one in processes:
            wait = 0.5 if one.rank == slow and step >= steps // 2 else 0.0
            late = 0.5 if step >= steps // 2 else 0.0
            one.step(loader=0.125 + wait, forward=0.5, communication=0.25 + late - wait)
    ingest = aggregator(ledger)
    for one in processes:
        take(ingest, body_of(rank_report(one.finished())))
    return ingest, max(one.now_ns for one in processes)


def test_heat_shows_when_a_rank_became_slow(ledger):
    ingest, now_ns = lock_step(ledger, ranks=4, steps=40, slow=2)
    past, whole = past_of(ingest, now_ns)
    found = msgspec.to_builtins(timeline.timeline_of(ledger, past, (None, None), 10, [2, 0, 1, 3]))
    (row,) = [one["own_seconds"] for one in found["heat"]["ranks"] if one["rank"] == 2]
    others = [one["own_seconds"] for one in found["heat"]["ranks"] if one["rank"] != 2]
    assert row[:3] == pytest.approx([0.625] * 3) and row[-4:] == pytest.approx([1.125] * 4)
    assert all(values == pytest.approx([0.625] * 10) for values in others)
    early, late = found["buckets"][1]["states"], found["buckets"][-2]["states"]
    assert "straggler" not in early
    length = found["buckets"][-2]["end"] - found["buckets"][-2]["start"]
    assert late["straggler"] == pytest.approx(3 * 0.5 / 1.375 * length, rel=0.02)
    assert sum(b["states"].get("straggler", 0) for b in found["buckets"]) == pytest.approx(
        whole.gpu_ns()[INDEX["straggler"]] / 1e9
    )


@pytest.mark.parametrize("seed", cases(12))
def test_windows_sum_to_their_accounts(ledger, seed):
    """Also of rows of several steps."""
    ingest, now_ns = ingested_run(ledger, seed, every=1 + seed % 3)
    past, whole = past_of(ingest, now_ns)
    rng, length = random.Random(seed), whole.end_ns - whole.start_ns
    for _ in range(4):
        window = tuple(sorted(whole.start_ns + rng.randrange(length) for _ in range(2)))
        _, want = past_of(ingest, now_ns, window)
        found = timeline.sums_of(ledger, past, window, rng.choice([1, 7, 60, 240]), [])
        assert_closes(found)
        # Rows that cross the window are divided once here, and by two accounts there.
        slack = 20 * len(whole.ranks)
        assert all(abs(a - b) <= slack for a, b in zip(sums_of_states(found), want.gpu_ns(), strict=True))


def waiting_run(ledger, stages: int = 0):
    """Many ranks, of which some have two devices and know how long these were idle, and steps of two seconds."""
    processes = [
        Process(
            *(rank, 1, 1000.0),
            world_size=20,
            devices=1 + rank % 2,
            group=f"g{rank % 2}",
            stage=rank % stages if stages else None,
            microbatches=4 if stages else None,
        )
        for rank in range(20)
    ]
    rng = random.Random(1)
    for step in range(60):
        own = [rng.randrange(10**9, 2 * 10**9) for _ in processes]
        for one, ns_ in zip(processes, own, strict=True):
            one.step(forward=ns_ / 1e9, communication=(max(own) - ns_) / 1e9 + 0.1, loader=0.05)
            if step % 20 == 7:
                one.between(evaluation=30.0, none=0.25)
    ingest = aggregator(ledger)
    for one in processes:
        report = rank_report(one.finished())
        if one.rank % 3 == 0:
            hardware = {"since_ns": one.start_ns, "compute_ns": 10**12, "idle_ns": 10**11}
            report = replace(report, live=replace(report.live, hardware=hardware))
        take(ingest, body_of(report))
    return ingest, max(one.now_ns for one in processes)


@pytest.mark.parametrize("stages", [0, 2, 4])
def test_waiting_lies_where_it_was_measured(ledger, monkeypatch, stages):
    """However few rows are read at a time, and in whatever order ranks come."""
    ingest, now_ns = waiting_run(ledger, stages)
    past, whole = past_of(ingest, now_ns)
    found = timeline.sums_of(ledger, past, (None, None), 33, [])
    sums = sums_of_states(found)
    assert sums == whole.gpu_ns()
    assert sums[INDEX["straggler"]] and sums[INDEX["launch"]] and sums[INDEX["evaluation"]]
    assert bool(sums[INDEX["bubble"]]) == bool(stages)
    monkeypatch.setattr(past_accounts, "PAGE_ROWS_MAX", 7)
    monkeypatch.setattr(spans, "_ROWS_AT_ONCE", 9)
    again = timeline.sums_of(ledger, past, (None, None), 33, [])
    assert again.cells == found.cells


def straggler_seconds(ledger, processes, points: int) -> list[float]:
    """Of each bucket, of a run of these processes, whose buckets must sum to its account."""
    ingest = aggregator(ledger)
    for one in processes:
        take(ingest, body_of(rank_report(one.finished())))
    past, whole = past_of(ingest, max(one.now_ns for one in processes))
    found = timeline.sums_of(ledger, past, (None, None), points, [])
    assert_closes(found)
    assert sums_of_states(found) == whole.gpu_ns()
    return [cell[INDEX["straggler"]] / 1e9 for cell in found.cells]


def test_waiting_of_rows_of_several_steps_is_spread_over_them(ledger):
    """One rank has a row for each 20 steps, the other for each: what it waited is that of 20 rows."""
    slow, fast = (Process(rank, 1, 1000.0, world_size=2) for rank in range(2))
    for step in range(61):
        waits = 0.25 if step >= 21 else 0.0
        slow.step(forward=0.75, communication=0.25)
        fast.step(forward=0.75 - waits, communication=0.25 + waits)
    slow.rows = slow.rows[::20]
    seconds = straggler_seconds(ledger, [slow, fast], 61)
    assert seconds[:21] == [0.0] * 21
    assert seconds[21:] == pytest.approx([0.25] * 40)


def test_repeated_steps_wait_for_nobody(ledger):
    """A rank that makes steps again is compared in none of them, and in later ones as before."""
    first, again = (Process(rank, 1, 1000.0, world_size=2) for rank in range(2))
    first.steps(60, forward=0.75, communication=0.25)
    again.steps(20, forward=0.5, communication=0.5)
    again.step_next = 10
    again.steps(40, forward=0.5, communication=0.5)
    seconds = straggler_seconds(ledger, [first, again], 60)
    assert seconds[1:20] == pytest.approx([0.25] * 19)
    assert seconds[20:30] == [0.0] * 10
    assert seconds[30:] == pytest.approx([0.25] * 30)


def test_heat_of_a_window_has_steps_that_cross_it_in_part(ledger):
    ingest, now_ns = lock_step(ledger, ranks=2, steps=40, slow=1)
    past, whole = past_of(ingest, now_ns)
    start = whole.start_ns + 10 * 875 * 10**6 + 10**8
    found = timeline.sums_of(ledger, past, (start, start + 2 * 875 * 10**6), 1, [])
    assert found.own[0].steps == pytest.approx([2.0])
    assert found.own[0].ns == pytest.approx([2 * 625 * 10**6])


def test_stall_is_marked_where_it_lies_in_a_window(ledger):
    one = Process(0, 1, 1000.0).steps(20, forward=0.5).between(none=200.0).steps(5, forward=0.5)
    ingest = aggregator(ledger)
    take(ingest, body_of(rank_report(one.finished())))
    past, _ = past_of(ingest, one.now_ns)
    assert timeline.sums_of(ledger, past, (None, None), 9, []).stalls == [(1010 * 10**9, 1210 * 10**9)]
    window = (1100 * 10**9, 1150 * 10**9)
    assert timeline.sums_of(ledger, past, window, 9, []).stalls == [window]
    assert timeline.sums_of(ledger, past, (1210 * 10**9, one.now_ns), 9, []).stalls == []


def test_window_of_a_long_run_begins_at_late_rows(ledger, monkeypatch):
    """As many before it as are read of the window at most, and one that has all steps before them."""
    ingest, now_ns = lock_step(ledger, ranks=2, steps=400, slow=1)
    past, whole = past_of(ingest, now_ns)
    engines, real = [], timeline.CoreEngine
    monkeypatch.setattr(timeline, "ROWS_BEFORE_MAX", 120)
    monkeypatch.setattr(timeline, "CoreEngine", lambda *args: engines.append(real(*args)) or engines[-1])
    window = (whole.end_ns - 50 * 1375 * 10**6, whole.end_ns)
    found = timeline.sums_of(ledger, past, window, 10, [])
    assert_closes(found)
    assert found.sampled is None
    _, want = past_of(ingest, now_ns, window)
    assert sums_of_states(found) == pytest.approx(want.gpu_ns(), abs=100)
    assert 100 <= sum(engines[0].core.read(place)["rows"] for place in range(2)) <= 240


@settings(max_examples=40)
@given(runs(), number_ns, st.sampled_from([1, 5, 60]))
def test_hostile_rows_lie_in_buckets_as_the_account_has_them(run, now_ns, points):
    """Rows that contradict each other, of which a ledger would refuse some, straight into the core."""
    whole = compute(run, now_ns, stale_seconds=30.0, known_only=True)

    def fold_all(ledger, engine, begin_ns, check):
        for key in engine.places:
            engine.rows(key, run.attempts[key].ordered_rows())

    past = Past(run, now_ns, whole.threshold_ns, 30.0)
    with patch.object(timeline, "fold_from", fold_all), patch.object(timeline, "ROWS_MAX", 1 << 80):
        found = timeline.sums_of(None, past, (None, None), points, [])
    assert_closes(found)
    assert sum(found.gpu_ns) == whole.wall_gpu_ns()
    assert found.cells == [] or sums_of_states(found) == whole.gpu_ns()


# ---- Of big runs a part is read


@pytest.mark.parametrize("all_steps", [True, False])
def test_sampled_timeline_of_a_big_run_closes(ledger, monkeypatch, all_steps):
    ranks, steps = 40, 60
    ingest, now_ns = lock_step(ledger, ranks, steps, slow=7)
    # The slow rank alone and 16 that stand for the other 39, or of these only some rows.
    monkeypatch.setattr(timeline, "ROWS_MAX", 600 if all_steps else 100)
    past, whole = past_of(ingest, now_ns)
    read = timeline.sums_of(ledger, past, (None, None), 8, [7])
    assert read.sampled == timeline.Sampled(17, 40, all_steps)
    assert_closes(read)
    assert sum(read.gpu_ns) == whole.wall_gpu_ns()
    sums = [sum(values) / 1e9 for values in zip(*read.cells, strict=True)]
    for state in ("productive", "loader", "straggler"):
        assert sums[INDEX[state]] == pytest.approx(whole.gpu_ns()[INDEX[state]] / 1e9, rel=0.05), state
    found = msgspec.to_builtins(timeline.timeline_of(ledger, past, (None, None), 8, [7]))
    assert found["sampled"] == {"ranks": 17, "of": 40, "all_steps": all_steps}
    if all_steps:
        row = next(one for one in found["heat"]["ranks"] if one["rank"] == 7)
        assert row["own_seconds"][-2] == pytest.approx(1.125)


def test_heat_is_bounded_for_many_ranks():
    own = {rank: timeline.Own([rank * 10**6] * 60, [1] * 60) for rank in range(1000)}
    found = msgspec.to_builtins(timeline.heat_of(own, list(range(999, -1, -1)), 0.0, 60.0))
    assert [one["rank"] for one in found["ranks"]] == list(range(999, 935, -1))
    assert found["others"]["ranks"] == 936 and found["others"]["p100"][0] == pytest.approx(0.935)
    assert found["median"][0] == pytest.approx(0.4995)


# ---- Over HTTP


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with serving(create_app(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db")) as client:
        for run, start in (("r1", 1000.0), ("Team/Two", 2000.0), ("empty", 3000.0)):
            pushes = story(run, start=start) if run != "empty" else [[rank_report(Process(0, 1, start), run)]]
            for ranks in pushes:
                assert client.post("/api/v1/ingest", content=body_of(*ranks)).status_code == 200
        yield client


def test_timeline_over_http_closes_and_has_marks(client):
    run = client.get("/api/v1/runs/r1").json()
    found = client.get("/api/v1/runs/r1/timeline?points=20").json()
    assert_shape(found, Timeline)
    assert (found["start"], found["end"], found["sampled"]) == (run["start"], run["end"], None)
    assert len(found["buckets"]) == 20
    for bucket in found["buckets"]:
        assert sum(bucket["states"].values()) == pytest.approx(bucket["gpu_seconds"], abs=1e-6)
    for state, seconds in run["states"].items():
        assert sum(b["states"].get(state, 0) for b in found["buckets"]) == pytest.approx(seconds, abs=1e-5)
    kinds = [mark["kind"] for mark in found["marks"]]
    assert kinds == ["checkpoint", "restart", "checkpoint"]
    assert found["marks"][1]["step"] == run["restarts"][0]["resume_step"] == 7
    assert [one["rank"] for one in found["heat"]["ranks"]] == [0, 1] and found["heat"]["columns"] == 20
    part = client.get(f"/api/v1/runs/r1/timeline?points=4&start={run['start'] + 2}&end={run['end'] - 2}")
    assert [round(part.json()[name] - run[name]) for name in ("start", "end")] == [2, -2]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?points=0", 422),
        ("?points=241", 422),
        ("?start=9&end=8", 422),
        ("?start=1e300", 422),
        ("?points=240", 200),
    ],
)
def test_timeline_queries_are_bounded(client, query, status):
    answer = client.get(f"/api/v1/runs/r1/timeline{query}")
    assert answer.status_code == status
    if status == 200:
        assert len(answer.json()["buckets"]) == 240 and answer.json()["heat"]["columns"] == 60


def test_timeline_of_unknown_or_empty_run(client):
    assert client.get("/api/v1/runs/nobody/timeline").status_code == 404
    found = client.get("/api/v1/runs/empty/timeline").json()
    assert_shape(found, Timeline)
    assert found["heat"] is None


@pytest.fixture
def computed(monkeypatch):
    """The runs whose timelines are computed, in order; computing takes no time, and none stays fresh by its age."""
    computed, real = [], History.run

    async def run(self, owner, function, past, *arguments):
        computed.append(past.run.name)
        await asyncio.sleep(0.2)
        return (await real(self, owner, function, past, *arguments))[0], 0.0

    monkeypatch.setattr(History, "run", run)
    monkeypatch.setattr(result_cache, "AGE_SECONDS", 0.0)
    return computed


def test_timeline_of_a_final_run_is_cached(client, computed):
    for run in ("r1", "r1", "empty", "empty", "r1"):
        assert client.get(f"/api/v1/runs/{run}/timeline?points=33").status_code == 200
    assert computed == ["r1", "empty", "empty"]


def test_concurrent_timeline_requests_share_one_computation(client, computed):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.get("/api/v1/runs/r1/timeline?points=34").json(), range(4)))
    assert computed == ["r1"] and all(answer == answers[0] for answer in answers)


def test_run_list_is_paged_with_totals(client):
    def names(query):
        found = client.get(f"/api/v1/runs{query}").json()
        assert_shape(found, RunPage)
        return [row["run"] for row in found["runs"]], found["total"], found["truncated"]

    assert names("") == (["empty", "Team/Two", "r1"], 3, False)
    assert names("?limit=2") == (["empty", "Team/Two"], 3, True)
    assert names("?limit=2&offset=2") == (["r1"], 3, False)
    assert names("?q=TEAM%2F") == (["Team/Two"], 1, False)
    assert names("?offset=9") == ([], 3, False)
    assert names("?order=open") == names("") and client.get("/api/v1/runs?order=x").status_code == 422
    assert client.get("/api/v1/runs?limit=1001").status_code == 422


def test_run_summary_has_waste_and_closes(client):
    row = client.get("/api/v1/runs?q=r1").json()["runs"][0]
    run = client.get("/api/v1/runs/r1").json()
    assert sum(row["states"].values()) == pytest.approx(row["gpu_seconds"])
    assert row["waste_gpu_seconds"] == pytest.approx(row["gpu_seconds"] - run["states"]["productive"])
    assert row["cost"] == run["cost"]["total"]
    assert row["waste_cost"] == pytest.approx(run["cost"]["total"] - run["cost"]["states"]["productive"])
