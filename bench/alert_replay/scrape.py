"""What a Prometheus would have scraped of a simulated cluster, with the staleness marks it writes where a series ends.

At each moment the runs are simulated up to it, agents push to the aggregator, and Prometheus scrapes both.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.alert_replay.aggregator import Aggregator, adapted
from bench.alert_replay.ticks import Ticks
from bench.alert_replay.wire import STALE
from goodput.simulate.node import Key, key_of
from goodput.simulate.reports import acknowledge
from goodput.simulate.scenario import EPOCH_SECONDS, Scenario, Span, within
from goodput.simulate.world import World
from goodput.wire import schema

Series = tuple[dict[str, str], np.ndarray, np.ndarray]
NODE_JOB, AGGREGATOR_JOB = "goodput-node", "goodput-aggregator"


@dataclass
class ScrapedScenario(Scenario):
    """A scenario, when it is scraped, and what happens to the servers that watch it."""

    ticks: Ticks = field(kw_only=True)
    aggregator_outages: list[Span] = field(default_factory=list)
    prometheus_outages: list[Span] = field(default_factory=list)
    # Series of the aggregator that no rank report brings about: (name, labels, start, end, how, value), where how is
    # grow (by so much a second) or set.
    aggregator_changes: list[tuple[str, dict[str, str], float, float, str, float]] = field(
        default_factory=list
    )
    # (moment, run, reason): a run is declared over, as by its scheduler, in the order of time.
    declared_ends: list[tuple[float, str, str]] = field(default_factory=list)
    # (moment, node, event): what agents report of their hardware, in the order of time.
    health_events: list[tuple[float, str, schema.Health]] = field(default_factory=list)


class Scraper:
    """Simulates a scenario once; `wanted` are the names of the series that are kept."""

    def __init__(
        self,
        scenario: ScrapedScenario,
        wanted: Container[str],
        progress: Callable[[float], None] = lambda _: None,
    ):
        self.scenario, self._wanted, self._progress = scenario, wanted, progress
        self.times = scenario.ticks.times
        self.evaluated = np.array([not within(at, scenario.prometheus_outages) for at in self.times])
        self._world = World(scenario, self.times, wanted)
        self._aggregator = Aggregator()
        self._aggregator_target = _Target(job=AGGREGATOR_JOB, instance="aggregator:9471")
        self._agents = {node: _Target(job=NODE_JOB, instance=f"{node}:9470") for node in scenario.nodes}
        self._events, self._ends = list(scenario.health_events), list(scenario.declared_ends)
        self._grown: dict[Key, float] = {}

    def series(self) -> Iterator[Series]:
        """All series, with times in unix seconds."""
        with adapted():
            self._simulate()
        unix = self.times + EPOCH_SECONDS
        for target in (self._aggregator_target, *self._agents.values()):
            yield from target.series(unix)
        for node in self.scenario.nodes:
            yield from self._hardware(node, unix)

    def _simulate(self) -> None:
        was_away, before = False, 0.0
        for tick, now in enumerate(self.times.tolist()):
            away = within(now, self.scenario.aggregator_outages)
            self._aggregator.now = now
            if was_away and not away:
                self._aggregator.start()
            was_away = away
            self._world.advance(tick)
            if not away:
                self._push(now)
            self._grow(now, now - before)
            if self.evaluated[tick]:
                self._scrape(tick, now, away)
            before = now
            self._progress(now / float(self.times[-1]))

    def _push(self, now: float) -> None:
        for run in self._world.current(now):
            for attempt, rank, report in self._world.reports(run, now):
                if self._aggregator.take(report):
                    acknowledge(attempt, rank)
        while self._events and self._events[0][0] <= now:
            _, node, event = self._events.pop(0)
            self._aggregator.take_event(node, event)
        while self._ends and self._ends[0][0] <= now:
            _, run, reason = self._ends.pop(0)
            self._aggregator.end(run, reason)

    def _grow(self, now: float, seconds: float) -> None:
        for name, labels, start, end, how, value in self.scenario.aggregator_changes:
            if how == "grow":
                key = key_of(name, labels)
                self._grown[key] = self._grown.get(key, 0.0) + value * seconds * (start <= now < end)

    def _scrape(self, tick: int, now: float, away: bool) -> None:
        found: dict[Key, float] = {}
        if not away:
            found = self._aggregator.scrape(self._wanted)
            for key, value in self._grown.items():
                found[key] = found.get(key, 0.0) + value
            for name, labels, start, end, how, value in self.scenario.aggregator_changes:
                if how == "set" and start <= now < end:
                    found[key_of(name, labels)] = value
        self._aggregator_target.scrape(tick, {**found, ("up", ()): float(not away)})
        for node, target in self._agents.items():
            up = not within(now, self.scenario.agent_outages.get(node, []))
            values = self._world.rank_series(node, now) if up else {}
            target.scrape(tick, {**values, ("up", ()): float(up)})

    def _hardware(self, node: str, unix: np.ndarray) -> Iterator[Series]:
        outages = self.scenario.agent_outages.get(node, [])
        up = np.array([not within(at, outages) for at in self.times])[self.evaluated]
        labels = self._agents[node].labels
        for (name, own), values in self._world.node_series(node).items():
            seen = values[self.evaluated]
            there = up & ~np.isnan(seen)
            ended = ~there & np.concatenate([[False], there[:-1]])
            kept = there | ended
            seen = np.where(ended, STALE, seen)
            if kept.any():
                yield {"__name__": name, **labels, **dict(own)}, unix[self.evaluated][kept], seen[kept]


class _Target:
    """What was scraped of one target, series by series."""

    def __init__(self, **labels: str):
        self.labels = labels
        self._samples: dict[Key, tuple[list[int], list[float]]] = {}
        self._last: Container[Key] = {}

    def scrape(self, tick: int, values: dict[Key, float]) -> None:
        for key in self._last:
            if key not in values:
                self._add(key, tick, STALE)
        for key, value in values.items():
            self._add(key, tick, value)
        self._last = values

    def _add(self, key: Key, tick: int, value: float) -> None:
        try:
            ticks, values = self._samples[key]
        except KeyError:
            ticks, values = self._samples[key] = ([], [])
        ticks.append(tick)
        values.append(value)

    def series(self, times: np.ndarray) -> Iterator[Series]:
        for (name, own), (ticks, values) in self._samples.items():
            labels = {"__name__": name, **self.labels, **dict(own)}
            yield labels, times[np.array(ticks)], np.array(values)
