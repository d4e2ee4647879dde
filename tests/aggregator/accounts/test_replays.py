"""Gains of causes by replay in the API and the series: those of the exported log, bounded, and never waited for long."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from support.aggregator.reports import body_of
from support.aggregator.serve_process import serving

from goodput.account.account import Account, ReplayedGains
from goodput.account.document_types import Gain
from goodput.aggregator.accounts import replays
from goodput.aggregator.accounts.history import HistoryError
from goodput.aggregator.accounts.recorded_steps import ranks_by_excess
from goodput.aggregator.accounts.replays import Replays, recorded
from goodput.aggregator.api.app import create_app
from goodput.simulate.reports import acknowledge
from goodput.simulate.scenario import AttemptPlan, RunFault, RunPlan, Scenario, Workload
from goodput.simulate.world import World
from goodput.whatif.gains import replayed_gains

MINUTE = 60.0
PLACES = [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]
RUN = "/api/v1/runs/team%2Fone"


def world() -> World:
    """Four ranks for ten minutes, of which rank 2's loader is slow."""
    slow = RunFault("loader", 0.0, 10 * MINUTE, 1.5, rank=2)
    attempts = [AttemptPlan(0.0, 10 * MINUTE, PLACES, "finished")]
    plan = RunPlan("team/one", attempts, Workload(step=1), 1, [slow], thinned=False)
    return World(Scenario({"n0": 2, "n1": 2}, [plan]), [30.0 * at for at in range(22)], ())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    ledger = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db"
    simulated = world()
    with serving(create_app(ledger)) as client:
        for tick, now in enumerate(simulated.times):
            simulated.advance(tick)
            found = [one for run in simulated.current(now) for one in simulated.reports(run, now)]
            for attempt, rank, _ in found:
                acknowledge(attempt, rank)
            body = body_of(*(report for _, _, report in found), node="n0")
            assert client.post("/api/v1/ingest", content=body).status_code == 200
        yield client, ledger


def causes_of(document: dict) -> dict[str, dict]:
    return {cause["state"]: cause for cause in document["causes"]}


def test_gains_are_those_of_the_exported_log(served, tmp_path):
    client, ledger = served
    log = tmp_path / "run.jsonl"
    goodput = [sys.executable, "-m", "goodput"]
    subprocess.run(
        [*goodput, "export", "team/one", "--ledger", ledger, "--output", str(log)], check=True, timeout=60
    )
    done = subprocess.run(
        [*goodput, "replay", str(log), "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    document = client.get(RUN).json()
    ours, exported = causes_of(document), causes_of(json.loads(done.stdout))
    replayed = {state for state, cause in ours.items() if cause["gain_basis"] == "replay"}
    assert {"loader", "straggler", "communication"} <= replayed
    for state in replayed:
        for name in ("gain", "gain_low", "gain_high"):
            assert ours[state][name] == pytest.approx(exported[state][name], rel=1e-3), (state, name)
    loader = ours["loader"]
    assert loader["gain_low"] < loader["gain"] < loader["gain_high"]
    assert loader["gain"] > 1.2 / (1 - loader["share"]), "the others wait for the slow loader"
    assert "As fast as the median rank" in ours["straggler"]["advice"]
    assert ours["startup"]["gain_basis"] == "share" and ours["startup"]["gain_low"] is None


def test_newest_steps_of_some_ranks_stand_for_all(served, monkeypatch):
    """Of some 200 steps of four ranks the last 50 of two, of which one is the slow one."""
    requests = []
    request = Replays.request

    def noted(self, account, past, revision):
        requests.append((account, past(), self._history.ledger))
        return request(self, account, past, revision)

    monkeypatch.setattr(Replays, "request", noted)
    served[0].get(RUN).raise_for_status()
    account, past, ledger = requests[0]
    worst = ranks_by_excess(account)
    assert worst[0] == 2
    whole, again = (recorded(ledger, past.run, worst, lambda: None) for _ in range(2))
    for name, value in (("ROWS_MAX", 100), ("RANKS_MAX", 2), ("WORST_MAX", 1)):
        monkeypatch.setattr(replays, name, value)
    some = recorded(ledger, past.run, worst, lambda: None)
    threshold_ns = account.threshold_ns
    (all_steps,), (newest,) = (one.teams(False, threshold_ns) for one in (whole, some))
    assert (len(newest), len(newest.ranks), 2 in newest.ranks) == (50, 2, True)
    assert (newest.steps, newest.devices) == (all_steps.steps, all_steps.devices) and len(all_steps) > 200
    every = replayed_gains(account, again)
    few = replays._gains_of(ledger, past, account, lambda: None)
    assert every is not None and few is not None
    for state in ("loader", "communication", "straggler"):
        assert few.by_state[state].low < every.by_state[state].value < few.by_state[state].high
    assert few.by_rank[2].value <= few.by_state["straggler"].value


# -- when a run is replayed


class Queue:
    """A History whose computations take as long as the test wants."""

    def __init__(self):
        self.count, self.found, self.took = 0, ReplayedGains({"loader": Gain(2.0, 1.9, 2.1)}, {}), 0.01
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def run(self, owner, function, past, account):
        self.count += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return self.found, self.took


class Clock:
    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(replays, "time", one)
    return one


def account(run: str = "r", ranks: int = 2) -> Account:
    found = object.__new__(Account)
    found.run, found.ranks = run, [None] * ranks
    return found


def started(queue: Queue) -> tuple[Replays, dict]:
    done: dict[str, ReplayedGains] = {}
    return Replays(queue, done.__setitem__), done  # type: ignore[arg-type]


def test_a_run_is_replayed_once_a_minute(clock):
    async def query():
        queue = Queue()
        queue.go.set()
        ours, done = started(queue)
        for _ in range(3):
            await asyncio.gather(*(ours.refresh(account(), lambda: None, None) for _ in range(5)))
        assert (queue.count, ours.of("r"), done) == (1, queue.found, {"r": queue.found})
        clock.seconds += replays.EVERY_SECONDS - 1
        assert ours.request(account(), lambda: None, None) is None
        clock.seconds += 1
        await ours.request(account(), lambda: None, None)
        assert queue.count == 2
        # One that takes ten seconds is not repeated before 500.
        queue.took = 10.0
        clock.seconds += replays.EVERY_SECONDS
        await ours.request(account(), lambda: None, None)
        clock.seconds += 10 * replays.EVERY_TIMES - 1
        assert ours.request(account(), lambda: None, None) is None
        ours.forget("r")
        assert ours.of("r") is None and ours.request(account(), lambda: None, None) is not None

    asyncio.run(query())


def test_a_run_that_is_over_is_replayed_once_for_each_revision(clock):
    async def query():
        queue = Queue()
        queue.go.set()
        ours, _ = started(queue)
        for revision, count in ((7, 1), (7, 1), (8, 2), (None, 3)):
            clock.seconds += 1e6
            task = ours.request(account(), lambda: None, revision)
            assert (task is not None) == (count > queue.count)
            await task if task else None
            assert queue.count == count

    asyncio.run(query())


def test_series_request_few_runs_of_any_size(clock):
    async def query():
        queue = Queue()
        queue.go.set()
        ours, _ = started(queue)
        queue.took = 2.0
        ours.request_seldom(account("a", replays.RANKS_MAX + 1), lambda: None, None)
        await ours._tasks["a"]
        ours.request_seldom(account("b"), lambda: None, None)
        assert ours._tasks.keys() <= {"a"}, "their share of a core was used"
        clock.seconds += 2.0 * replays.SELDOM_TIMES
        ours.request_seldom(account("b"), lambda: None, None)
        await ours._tasks["b"]
        assert queue.count == 2

    asyncio.run(query())


def test_a_slow_replay_is_waited_for_once_and_not_for_long(monkeypatch):
    monkeypatch.setattr(replays, "FIRST_SECONDS", 0.05)

    async def query():
        queue = Queue()
        ours, done = started(queue)
        await asyncio.wait_for(ours.refresh(account(), lambda: None, None), 30)
        assert (done, ours.of("r"), queue.count) == ({}, None, 1)
        task = ours._tasks["r"]
        queue.go.set()
        await task
        assert done == {"r": queue.found}
        # Gains that are known are never waited for.
        queue.go.clear()
        ours._next_seconds.clear()
        await asyncio.wait_for(ours.refresh(account(), lambda: None, None), 30)
        assert ours.of("r") is queue.found and not ours._tasks["r"].done()
        ours._tasks["r"].cancel()

    asyncio.run(query())


def test_a_replay_that_fails_keeps_what_is_known(clock, caplog):
    async def query():
        queue = Queue()
        queue.go.set()
        ours, _ = started(queue)
        await ours.refresh(account(), lambda: None, None)
        for error in (HistoryError("no ledger"), ValueError("a defect")):
            clock.seconds += 1e6
            queue.error = error
            await ours.request(account(), lambda: None, None)
            assert ours.of("r") is queue.found
        assert queue.count == 3

    asyncio.run(query())
    assert "no ledger" in caplog.text and "a defect" in caplog.text


def test_gains_of_few_runs_are_kept(clock, monkeypatch):
    monkeypatch.setattr(replays, "RUNS_MAX", 3)

    async def query():
        queue = Queue()
        queue.go.set()
        ours, _ = started(queue)
        for name in "abcde":
            await ours.refresh(account(name), lambda: None, None)
        assert [name for name in "abcde" if ours.of(name)] == ["c", "d", "e"]

    asyncio.run(query())
