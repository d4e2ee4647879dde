"""A Prometheus full of a simulated cluster's last hours, to draw boards from.

In: how long the story is, when it ends. Out: a running Prometheus, for `with`. The aggregator's series are those of
the project's own Store, Accounts and Exposition on a simulated clock; the agents' are simulated (hardware.py); the
recording rules are the shipped ones. All goes by remote write into a Prometheus of its own, with marks where series
end, and so do the results of the rules; that is what the replay of the alerts (bench/alert_replay) does too, whose
server and rules these are. Two and a half hours of 48 GPUs, ten million samples, take about a minute and 0.5 GB.

    with history(Path("/tmp/story"), length_seconds=9000, end_seconds=1_767_609_000) as url: ...
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from bench.alert_replay import rules as alert_rules
from bench.alert_replay.evaluate import Evaluation
from bench.alert_replay.rules import Rule
from bench.alert_replay.server import Server
from bench.alert_replay.trainer import EPOCH_SECONDS
from bench.alert_replay.wire import STALE

from dashboards.render.cluster import Job, plans
from dashboards.render.hardware import Node
from goodput.access.tokens import EVERYTHING
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthView
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.http.authentication import Door
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.metrics import CATALOGUE
from goodput.wire import schema

SCRAPE_SECONDS, RULES_SECONDS = 10.0, 15.0
STALL_SECONDS, STALE_SECONDS = 60.0, 30.0


class _Accounts(Accounts):
    """Accounts whose `now` is the story's."""

    clock_ns = time.time_ns

    def account(self, name, now_ns=None):
        return super().account(name, self.clock_ns() if now_ns is None else now_ns)


class Aggregator:
    """The project's aggregator without HTTP and ledger, on a clock that is set from outside."""

    def __init__(self):
        self.now_ns, self.random = 0, random.Random(0)
        self.store, self.health, self.door = Store(), HealthLog(), Door()
        self.accounts = _Accounts(
            self.store, stall_seconds=STALL_SECONDS, stale_seconds=STALE_SECONDS, age_seconds=0.0
        )
        self.accounts.clock_ns = lambda: self.now_ns
        self.ingest = Ingest(self.store, None, clock_ns=self.accounts.clock_ns, health=self.health)
        view = HealthView(self.health, self.accounts)
        self.exposition = Exposition(
            self.accounts, self.ingest, view, self.door, clock_ns=self.accounts.clock_ns
        )

    def take(self, report: schema.RankReport) -> None:
        schema.check(report)
        self.store.merge(report, self.now_ns)
        self.ingest.counts["report", "accepted"] += 1
        self.door.requests.observe("ingest", 200, self.random.lognormvariate(-6.2, 0.6))

    def hit(self, node: str, event: schema.Health) -> None:
        self.health.take(node, event, self.now_ns, 1 << 62)

    def series(self, up_seconds: float) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Its exposition now; what it says of its own process is that of a sound one, since this runs faster."""
        own = {
            "goodput_aggregator_cpu_seconds_total": 0.02 * up_seconds,
            "goodput_aggregator_ingest_seconds_total": 0.01 * up_seconds,
            "goodput_aggregator_memory_bytes": 96e6,
        }
        for family in self.exposition.families(EVERYTHING):
            for sample in family.samples:
                yield sample.name, sample.labels, own.get(sample.name, sample.value)


class Recorder:
    """Series as they are scraped, each checked against the catalogue when it comes first; by number of the scrape."""

    def __init__(self):
        self._found: dict[tuple, tuple[dict, array, array]] = {}
        self.samples = 0

    def add(
        self, scrape: int, name: str, labels: Mapping[str, str], value: float, job: str, instance: str
    ) -> None:
        key = (name, instance, *labels.items())
        found = self._found.get(key)
        if found is None:
            if name != "up":
                _check(name, labels)
            whole = {"__name__": name, **labels, "job": job, "instance": instance}
            found = self._found[key] = (whole, array("L"), array("d"))
        found[1].append(scrape)
        found[2].append(value)
        self.samples += 1

    def series(self, times: np.ndarray) -> Iterator[tuple[dict[str, str], np.ndarray, np.ndarray]]:
        """Labels, times, values; after a series' last sample, and before a gap, the mark of its end."""
        for labels, scrapes, values in self._found.values():
            at = np.array(scrapes, np.int64)
            ends = at[np.append(np.diff(at) > 1, at[-1] < len(times) - 1)] + 1
            both = np.concatenate([at, ends])
            order = np.argsort(both, kind="stable")
            yield labels, times[both[order]], np.concatenate([values, np.full(len(ends), STALE)])[order]


def _check(name: str, labels: Mapping[str, str]) -> None:
    metric = CATALOGUE.get(name)
    if metric is None:
        metric = CATALOGUE[name.rsplit("_", 1)[0]]
        labels = {label: value for label, value in labels.items() if label != "le"}
    if set(labels) != set(metric.labels):
        raise KeyError(f"{name} has labels {sorted(labels)}, the catalogue says {sorted(metric.labels)}")


def tell(length_seconds: float, end_seconds: float) -> tuple[np.ndarray, Recorder]:
    """The whole story: when it was scraped, and what was found."""
    epoch = end_seconds - length_seconds
    jobs = [Job(plan, epoch) for plan in plans(length_seconds)]
    nodes = [Node(f"gpu-0{number}", lost=5 if number == 6 else None) for number in range(1, 7)]
    aggregator, recorder = Aggregator(), Recorder()
    events = _events(jobs, nodes)
    times = np.arange(SCRAPE_SECONDS, length_seconds + 1e-9, SCRAPE_SECONDS)
    for scrape, now in enumerate(times.tolist()):
        aggregator.now_ns = round((now + epoch) * 1e9)
        for job in jobs:
            job.advance(now)
            for report in job.reports(now):
                aggregator.take(report)
        while events and events[0][0] <= now:
            at, node, event = events.pop(0)
            aggregator.hit(node, schema.Health(time_ns=round((at + epoch) * 1e9), **event))
        for node in nodes:
            of = ("goodput-node", f"{node.name}:9470")
            recorder.add(scrape, "up", {}, 1, *of)
            for name, labels, value in node.series(now, jobs, length_seconds):
                recorder.add(scrape, name, labels, value, *of)
        of = ("goodput-aggregator", "goodput:9471")
        recorder.add(scrape, "up", {}, 1, *of)
        for name, labels, value in aggregator.series(now):
            recorder.add(scrape, name, labels, value, *of)
    return times + epoch, recorder


def _events(jobs: list[Job], nodes: list[Node]) -> list[tuple[float, str, dict]]:
    """What the agents report of their hardware, by time."""
    plan, gpus = jobs[0].plan, nodes[1].gpus
    number, since, *_ = plan.slow
    fallen = {"device": gpus[3], "severity": "critical", "hits": [(plan.run, 11)]}
    hot = {"device": gpus[number % 8], "severity": "warning", "hits": [(plan.run, number)]}
    found = [
        (plan.kill - 1, {"number": 1, "kind": "xid", "code": 79, "name": "bus", **fallen}),
        (plan.kill - 1, {"number": 2, "kind": "lost", **fallen}),
        (since, {"number": 3, "kind": "throttle", "name": "thermal", **hot}),
    ]
    return [(at, "gpu-02", event) for at, event in sorted(found, key=lambda one: one[0])]


class _Evenly:
    """Moments of evaluation, as Evaluation takes them: seconds since the replay's epoch."""

    def __init__(self, start_seconds: float, end_seconds: float):
        self.times = np.arange(start_seconds, end_seconds + 1e-9, RULES_SECONDS) - EPOCH_SECONDS

    def stretches(self) -> list[tuple[float, float, float]]:
        return [(float(self.times[0]), float(self.times[-1]), RULES_SECONDS)]


def in_order(rules: list[Rule]) -> list[Rule]:
    """Recording rules, each after those that it reads."""
    waiting = [rule for rule in rules if not rule.alert]
    found: list[Rule] = []
    while waiting:
        names = {rule.name for rule in waiting}
        ready = [rule for rule in waiting if not (rule.needs - {rule.name}) & names]
        if not ready:
            raise ValueError(f"recording rules that read each other: {sorted(names)}")
        found += ready
        waiting = [rule for rule in waiting if rule not in ready]
    return found


@contextlib.contextmanager
def history(directory: Path, *, length_seconds: float, end_seconds: float) -> Iterator[str]:
    """The address of a Prometheus that holds the story; it is ended, and its data removed, at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        times, recorder = tell(length_seconds, end_seconds)
        with Server(directory) as server:
            server.write(recorder.series(times))
            ticks = _Evenly(end_seconds - length_seconds, end_seconds)
            Evaluation(server, ticks, np.full(len(ticks.times), True)).run(in_order(alert_rules.load()))
            yield f"http://127.0.0.1:{server._port}"
    finally:
        shutil.rmtree(directory / "data", ignore_errors=True)
