"""A world: its nodes, runs and mishaps; and everything that a Prometheus would have scraped of it.

In: a World. Out: series as (labels, times, values), with the marks of staleness that Prometheus writes when a series
or its target is gone. Each moment goes so: runs live up to it, agents push to the aggregator, Prometheus scrapes both.
An agent that is away neither pushes nor answers; its ranks keep what they have to tell until it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.alert_replay.aggregator import Aggregator
from bench.alert_replay.hardware import Change, Node
from bench.alert_replay.reports import Key, acknowledge, push, series
from bench.alert_replay.ticks import Ticks
from bench.alert_replay.trainer import EPOCH_SECONDS, Job
from bench.alert_replay.wire import STALE
from goodput.metrics import CATALOGUE

Series = tuple[dict[str, str], np.ndarray, np.ndarray]
Span = tuple[float, float]
# How busy a GPU looks while its rank is in a phase; in a collective it spins.
BUSY = {"checkpoint": 0.05, "restore": 0.05, "evaluation": 0.6, "compile": 0.1, "loader": 0.2, "h2d": 0.5}
NODE_JOB, AGGREGATOR_JOB = "goodput-node", "goodput-aggregator"
DONE_SECONDS = 3600.0


@dataclass
class World:
    """`nodes` has the number of GPUs by name. Times in seconds from 0."""

    ticks: Ticks
    nodes: dict[str, int]
    jobs: list[Job]
    changes: list[Change] = field(default_factory=list)
    agent_away: dict[str, list[Span]] = field(default_factory=dict)
    push_fails: dict[str, list[Span]] = field(default_factory=dict)
    aggregator_away: list[Span] = field(default_factory=list)
    prometheus_away: list[Span] = field(default_factory=list)
    # Of the aggregator, what no rank report brings about: (name, labels, at, until, how, value). How: grow, by so much
    # a second; set.
    overlays: list[tuple[str, dict[str, str], float, float, str, float]] = field(default_factory=list)


def within(at: float, spans: list[Span]) -> bool:
    return any(low <= at < high for low, high in spans)


class _Target:
    """What was scraped of one target, series by series."""

    def __init__(self, **labels: str):
        self.labels = labels
        self.found: dict[Key, tuple[list[int], list[float]]] = {}
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
            ticks, values = self.found[key]
        except KeyError:
            ticks, values = self.found[key] = ([], [])
        ticks.append(tick)
        values.append(value)

    def series(self, times: np.ndarray) -> Iterator[Series]:
        for (name, labels), (ticks, values) in self.found.items():
            told = {"__name__": name, **self.labels, **dict(labels)}
            yield told, times[np.array(ticks)], np.array(values)


class Recorder:
    """Lives through a world once; `wanted` are the names of series that are kept."""

    def __init__(
        self, world: World, wanted: Container[str], progress: Callable[[float], None] = lambda _: None
    ):
        self.world, self._wanted, self._progress = world, wanted, progress
        self.times = world.ticks.times
        self.evaluated = np.array([not within(at, world.prometheus_away) for at in self.times])
        self._aggregator = Aggregator()
        self._main = _Target(job=AGGREGATOR_JOB, instance="aggregator:9471")
        self._agents = {n: _Target(job=NODE_JOB, instance=f"{n}:9470") for n in world.nodes}
        self._busy = {n: np.zeros((gpus, len(self.times))) for n, gpus in world.nodes.items()}
        self._saving = {n: np.zeros(len(self.times)) for n in world.nodes}
        self._grown: dict[Key, float] = {}

    def series(self) -> Iterator[Series]:
        """Everything, with times in unix seconds."""
        down, before = False, 0.0
        for tick, at in enumerate(self.times):
            away = within(at, self.world.aggregator_away)
            self._aggregator.now = float(at)
            if down and not away:
                self._aggregator.start()
            down = away
            for job in self.world.jobs:
                if not (job.finished() and at - job.life.end_ns / 1e9 > DONE_SECONDS):
                    self._job(job, tick, float(at), away)
            self._scrape(tick, float(at), float(at) - before, away)
            before = float(at)
            self._progress(float(at) / float(self.times[-1]))
        unix = self.times + EPOCH_SECONDS
        for target in (self._main, *self._agents.values()):
            yield from target.series(unix)
        for name in self.world.nodes:
            yield from self._hardware(name, unix)

    def _job(self, job: Job, tick: int, at: float, away: bool) -> None:
        job.advance(at)
        if not away:
            for life, rank, report in push(job, at, lambda node: self._pushes(node, at)):
                if self._aggregator.take(report):
                    acknowledge(life, rank)
        life = job.life
        if life is None or not life.alive:
            return
        for (node, gpu), (phase, _, _) in zip(life.start.places, life.live, strict=True):
            self._busy[node][gpu, tick] = BUSY.get(phase, 1.0) if life.done or phase != "none" else 0.02
            self._saving[node][tick] = max(self._saving[node][tick], phase == "checkpoint")

    def _pushes(self, node: str, at: float) -> bool:
        away, fails = self.world.agent_away.get(node, []), self.world.push_fails.get(node, [])
        return not within(at, away) and not within(at, fails)

    def _scrape(self, tick: int, at: float, step: float, away: bool) -> None:
        for name, labels, begin, end, how, value in self.world.overlays:
            if how == "grow":
                key = _key(name, labels)
                self._grown[key] = self._grown.get(key, 0.0) + value * step * (begin <= at < end)
        if not self.evaluated[tick]:
            return
        found: dict[Key, float] = {}
        if not away:
            found = self._aggregator.scrape(self._wanted)
            for key, value in self._grown.items():
                found[key] = found.get(key, 0.0) + value
            for name, labels, begin, end, how, value in self.world.overlays:
                if how == "set" and begin <= at < end:
                    found[_key(name, labels)] = value
        self._main.scrape(tick, {**found, ("up", ()): float(not away)})
        for name, target in self._agents.items():
            here = not within(at, self.world.agent_away.get(name, []))
            values = self._ranks(name, at) if here else {}
            target.scrape(tick, {**values, ("up", ()): float(here)})

    def _ranks(self, node: str, at: float) -> dict[Key, float]:
        found = {}
        for job in self.world.jobs:
            for name, labels, value in series(job, at, node):
                if name in self._wanted:
                    found[_key(name, labels)] = value
        return found

    def _hardware(self, name: str, unix: np.ndarray) -> Iterator[Series]:
        world = self.world
        node = Node(
            name, world.nodes[name], self.times, self._busy[name], self._saving[name], sum(name.encode())
        )
        for change in world.changes:
            if change.node == name:
                node.change(change)
        away = world.agent_away.get(name, [])
        here = np.array([not within(at, away) for at in self.times])[self.evaluated]
        labels = self._agents[name].labels
        for (metric, own), values in node.series([back for _, back in away]).items():
            if metric not in self._wanted:
                continue
            seen = values[self.evaluated]
            there = here & ~np.isnan(seen)
            ended = ~there & np.concatenate([[False], there[:-1]])
            kept = there | ended
            seen = np.where(ended, STALE, seen)
            yield {"__name__": metric, **labels, **dict(own)}, unix[self.evaluated][kept], seen[kept]


def _key(name: str, labels: dict[str, str]) -> Key:
    if set(CATALOGUE[name].labels) != set(labels):
        raise KeyError(f"{name} with labels {sorted(labels)}; the catalogue says {CATALOGUE[name]}")
    return name, tuple(sorted(labels.items()))
