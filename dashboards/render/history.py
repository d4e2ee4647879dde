"""A Prometheus that holds a simulated cluster's last hours, to draw boards from.

The series of scenario.py's cluster, and the results of the shipped recording rules, are written into a new Prometheus
by remote write, as in the replay of the alerts (bench/alert_replay). Two and a half hours of 48 GPUs take about a
minute and 0.5 GB.

    with history(Path("/tmp/history"), seconds=9000, end_seconds=1_767_609_480) as url: ...
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bench.alert_replay import rules
from bench.alert_replay.evaluate import Evaluation
from bench.alert_replay.scrape import Scraper
from bench.alert_replay.server import Server
from bench.alert_replay.ticks import Ticks

from dashboards.render.scenario import cluster
from goodput.metrics import CATALOGUE
from goodput.simulate.scenario import EPOCH_SECONDS

RULES_SECONDS = 15.0


@contextlib.contextmanager
def history(directory: Path, *, seconds: float, end_seconds: float) -> Iterator[str]:
    """The address of a Prometheus with the samples up to `end_seconds` (unix); its data is removed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    scraper = scraped(seconds, end_seconds)
    times = np.arange(scraper.times[0], scraper.times[-1] + 1e-9, RULES_SECONDS)
    moments = Ticks(seconds, RULES_SECONDS, RULES_SECONDS, [], times)
    try:
        with Server(directory) as server:
            server.write(scraper.series())
            Evaluation(server, moments, np.full(len(times), True)).run(rules.recording(rules.load()))
            yield f"http://127.0.0.1:{server.port}"
    finally:
        shutil.rmtree(directory / "data", ignore_errors=True)


def scraped(seconds: float, end_seconds: float) -> Scraper:
    start = end_seconds - seconds - EPOCH_SECONDS
    scenario = cluster(start, seconds)
    scenario.ticks.times = scenario.ticks.times[scenario.ticks.times > start]
    return Scraper(scenario, CATALOGUE)
