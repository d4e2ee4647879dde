"""Quantiles of step and phase times: against NumPy, over minutes, and in a real Prometheus."""

import random
import time

import numpy as np
import pytest
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.aggregator.step_times import START, run_of, times_of
from support.seeds import cases
from support.servers.servers import Prometheus, render, require

from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest.recent import recent_steps, recent_times
from goodput.aggregator.ingest.recent.recent_times import QUANTILES, STEP, RecentTimes
from goodput.aggregator.ingest.store import Store

EXACT = 2**-11


def expected(processes: list[Process]) -> dict[str, list[float]]:
    return {
        name: [float(np.quantile(own, q, method="inverted_cdf")) / 1e9 for q in QUANTILES.values()]
        for name, own in times_of(processes).items()
    }


def taken(processes: list[Process], rng: random.Random, now: float) -> dict[str, list[float]]:
    """The rows arrive in several pushes, some of them twice."""
    store = Store()
    for one in processes:
        at = 0
        while at < len(one.rows):
            size = rng.randint(1, 40)
            for _ in range(rng.randint(1, 2)):
                store.merge(rank_report(one, rows=one.rows[at : at + size]), one.now_ns)
            at += size
    return store.recent["r1"].quantiles(ns(now))


@pytest.mark.parametrize("seed", cases(5))
@pytest.mark.parametrize("fold_rows", [1, 128])
def test_quantiles_are_those_of_numpy(seed, fold_rows, monkeypatch):
    monkeypatch.setattr(recent_steps, "ROWS_MIN", fold_rows)
    rng = random.Random(seed)
    processes = run_of(4, 100, rng)
    found = taken(processes, rng, max(one.now_ns for one in processes) / 1e9)
    want = expected(processes)
    assert set(found) == set(want) == {STEP, "forward", "loader"}
    for name, seconds in want.items():
        assert found[name] == pytest.approx(seconds, rel=EXACT), name


def test_old_minutes_are_forgotten():
    store = Store()
    slow = Process(0, 1, START).steps(50, forward=2)
    store.merge(rank_report(slow), slow.now_ns)
    times = store.recent["r1"]
    assert times.quantiles(slow.now_ns)[STEP] == [2.0] * 3
    slow.steps(200, forward=0.5)
    store.merge(rank_report(slow), slow.now_ns)
    assert times.quantiles(slow.now_ns)[STEP] == [0.5, 2.0, 2.0]
    slow.steps(600, forward=0.5)
    store.merge(rank_report(slow), slow.now_ns)
    assert times.quantiles(slow.now_ns)[STEP] == [0.5] * 3
    assert len(times._times._spans) <= recent_times.SPANS
    assert times.quantiles(slow.now_ns + ns(300)) == {}, "no step in five minutes"


def test_other_clocks_and_missing_rows():
    """A host whose clock is a day behind counts as it reports; a row without its predecessor does not."""
    store, one = Store(), Process(0, 1, START).steps(10, forward=1)
    one.step(forward=7).steps(5, forward=1)
    now_ns = one.now_ns + ns(86_400)
    store.merge(rank_report(one, rows=[*one.rows[:10], *one.rows[11:]]), now_ns)
    assert store.recent["r1"].quantiles(now_ns)["forward"] == [1.0] * 3
    assert sum(int(counts.sum()) for _, counts in store.recent["r1"]._times._spans.values()) == 2 * 14


def test_many_phases_are_bounded(monkeypatch):
    monkeypatch.setattr(recent_times, "NAMES_MAX", 3)
    times = RecentTimes()
    phases = ["none", *(f"p{i}" for i in range(8))]
    times.add(phases, np.full(5, ns(START)), np.full((5, 9), ns(1)))
    assert set(times.quantiles(ns(START))) == {STEP, "p0", "p1"}
    endless = np.full((1, 1), 70_000 * 10**9)
    times.add(["none"], np.full(1, ns(START)), endless)
    assert times.quantiles(ns(START))[STEP][2] == float("inf")


def test_prometheus_has_the_quantiles_of_numpy(tmp_path):
    """A known distribution of step times through the aggregator into a real Prometheus."""
    require("prometheus")
    rng = random.Random(7)
    processes = run_of(4, 60, rng, start=time.time() - 90)
    want = expected(processes)
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        push(client, *(rank_report(one, run="a/b ü") for one in processes))
        target = client.base_url.netloc.decode()
        config = render(tmp_path, {"goodput-aggregator": [target]}, alertmanagers=[])
        with Prometheus(tmp_path, config) as prometheus:
            prometheus.wait_for("goodput_run_step_seconds", seconds=30)
            for name, seconds in want.items():
                series, phase = ("phase", f',phase="{name}"') if name else ("step", "")
                for q, value in zip(QUANTILES, seconds, strict=True):
                    found = prometheus.value(f'goodput_run_{series}_seconds{{run="a/b ü",q="{q}"{phase}}}')
                    assert found == pytest.approx(value, rel=EXACT), (name, q)
