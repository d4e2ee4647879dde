"""Simulates one scenario, evaluates the rules on it, and returns the alerts that fired."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.alert_replay.evaluate import Evaluation, Firing
from bench.alert_replay.rules import Rule, load, ordered, raw
from bench.alert_replay.scrape import ScrapedScenario, Scraper
from bench.alert_replay.server import Server

Progress = Callable[[str, float], None]


@dataclass
class Replay:
    """`seconds` is how long it took, by part."""

    scenario: ScrapedScenario
    firings: list[Firing]
    samples: int
    queries: int
    seconds: dict[str, float]

    def pages(self) -> list[Firing]:
        return [one for one in self.firings if one.severity == "critical"]


def replay(
    scenario: ScrapedScenario, rules: list[Rule] | None = None, progress: Progress = lambda what, part: None
) -> Replay:
    """`rules` are the shipped ones if None. Its files lie in a temporary directory, which is removed."""
    rules = ordered(load() if rules is None else rules)
    scraper = Scraper(scenario, raw(rules), lambda part: progress("simulate", part))
    directory = Path(tempfile.mkdtemp(prefix="goodput-replay-"))
    began = time.monotonic()
    try:
        with Server(directory) as server:
            server.write(scraper.series())
            simulated = time.monotonic()
            evaluation = Evaluation(server, scenario.ticks, scraper.evaluated)
            firings = evaluation.run(rules, lambda part: progress("evaluate", part))
            seconds = {"simulate": simulated - began, "evaluate": time.monotonic() - simulated}
            return Replay(scenario, firings, server.written, server.queries, seconds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
