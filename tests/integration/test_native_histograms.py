"""A real Prometheus with native histograms: what it computes from them against the exact quantiles of what was measured."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.aggregator.step_times import run_of, times_of
from support.node.agents import agent_on
from support.node.node_rank import Rank
from support.node.node_tree import Clock, write_tree
from support.servers.servers import Prometheus, render, require

from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest.recent.recent_times import STEP
from goodput.histograms.native_histogram import ERROR
from goodput_exporters.server.server import Server

# Of a number of samples such that none lies between two of them.
QUANTILES = (0.501, 0.95, 0.99)


class NativePrometheus(Prometheus):
    def command(self) -> list[str]:
        return [*super().command(), "--enable-feature=native-histograms"]


def check_quantiles(prometheus: Prometheus, series: str, selector: str, times: list[int]) -> None:
    """Of the samples that came between two scrapes."""
    for q in QUANTILES:
        found = prometheus.value(f"histogram_quantile({q}, rate({series}{{{selector}}}[1m]))")
        exact = float(np.quantile(times, q, method="inverted_cdf")) / 1e9
        assert found is not None and abs(found / exact - 1) < ERROR, (series, q, found, exact)


def scrape_twice(
    prometheus: Prometheus, series: str, counts: tuple[int, int], more: Callable[[], object]
) -> None:
    """Wait for the first count, do `more`, and wait for the second."""
    prometheus.wait_for(f"histogram_count({series}) == {counts[0]}", seconds=30)
    more()
    prometheus.wait_for(f"histogram_count({series}) == {counts[1]}", seconds=30)


def check_nothing_is_lost(prometheus: Prometheus, series: str, count: int) -> None:
    """The classic series are there as from the text, and no sample was refused."""
    (classic,) = prometheus.query(f'{series}_bucket{{le="+Inf"}}')
    assert classic.value == prometheus.value(f"{series}_count") == count
    assert prometheus.value(f"{series}_sum") == pytest.approx(prometheus.value(f"histogram_sum({series})"))
    assert [target["health"] for target in prometheus.targets()] == ["up"]
    assert "err=" not in prometheus.log.read_text()


def test_prometheus_has_the_aggregators_native_histograms(tmp_path):
    require("prometheus")
    processes = run_of(4, 63, random.Random(7), start=time.time() - 90)
    first = [rank_report(one, rows=one.rows[:10]) for one in processes]
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        push(client, *first)
        target = client.base_url.netloc.decode()
        config = render(tmp_path, {"goodput-aggregator": [target]})
        series = "goodput_run_step_duration_seconds"
        with NativePrometheus(tmp_path, config) as prometheus:
            scrape_twice(prometheus, series, (40, 252), lambda: push(client, *map(rank_report, processes)))
            for name, times in times_of(processes, after=10).items():
                phase = "" if name == STEP else f'phase="{name}"'
                of = "goodput_run_phase_duration_seconds" if phase else series
                check_quantiles(prometheus, of, phase, times)
            check_nothing_is_lost(prometheus, series, 252)
            route = 'goodput_aggregator_request_seconds{route="ingest"}'
            assert prometheus.value(f"histogram_count({route})") == 2
            assert 0 < prometheus.value(f"histogram_quantile(0.5, {route})") < 20


def test_prometheus_has_the_agents_native_histograms(tmp_path):
    require("prometheus")
    rng, times = random.Random(3), []
    write_tree(tmp_path)
    (tmp_path / "pages").mkdir()
    rank = Rank(tmp_path / "pages")

    def steps(count: int) -> None:
        for _ in range(count):
            times.append(round(1e9 * rng.lognormvariate(-1, 0.7)))
            rank.step({"forward": times[-1]})

    steps(5)
    with agent_on(tmp_path, Clock(), interval_seconds=0.05) as agent:
        server = Server(agent.exposition, agent.health)
        server.start()
        try:
            config = render(tmp_path, {"goodput-node": [f"{server.address[0]}:{server.address[1]}"]})
            series = "goodput_step_duration_seconds"
            with NativePrometheus(tmp_path, config) as prometheus:
                scrape_twice(prometheus, series, (5, 217), lambda: steps(212))
                for of in (series, "goodput_phase_duration_seconds"):
                    check_quantiles(prometheus, of, "", times[5:])
                check_nothing_is_lost(prometheus, series, 217)
        finally:
            server.stop()
