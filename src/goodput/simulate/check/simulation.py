"""A scenario played against an aggregator, in real or simulated time, and what was seen of it meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from goodput.simulate.check.cluster import Cluster
from goodput.simulate.check.own_aggregator import OwnAggregator, Serve
from goodput.simulate.check.stack import (
    HEALTH_EVENTS,
    Aggregators,
    Observation,
    StackClient,
    StackError,
    observation,
)
from goodput.simulate.scenario import EPOCH_SECONDS
from goodput.simulate.scenario_file import ScenarioFile
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials

# Half of the nodes push every half interval, and scrapes come with every other of these.
SHARES = 2
SETTLE_PUSHES_MAX = 60
QUIET_SECONDS_MIN = 60.0
ACCOUNT_SECONDS_MAX, ACCOUNT_AGE_SECONDS = 30.0, 5.0
# Scrapes in a row that fail while an aggregator is started again: two minutes of them.
MISSED_MAX = 12
Progress = Callable[[float, int], None]  # simulated seconds so far, pushes


@dataclass
class Outcome:
    """The truth, and what the stack reported: at each scrape, at the end, and over times with and without a slow rank."""

    truth: dict
    observations: dict[str, list[Observation]] = field(default_factory=dict)
    accounts: dict[str, dict] = field(default_factory=dict)
    windows: dict[str, list[dict]] = field(default_factory=dict)  # by run, of its culprits in order
    quiet: dict[str, list[dict]] = field(default_factory=dict)  # by run, of times without a slow rank
    health: dict[tuple[str, str, str], int] = field(default_factory=dict)  # run, kind, severity: events
    pushes: dict[str, int] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


def play_alone(scenario: ScenarioFile, serve: Serve, progress: Progress) -> Outcome:
    """Against an aggregator of its own, as fast as it can."""
    with OwnAggregator(serve, EPOCH_SECONDS * 10**9) as own:

        def wait(now: float) -> None:
            own.clock.set(round((EPOCH_SECONDS + now) * 1e9))

        return _play(scenario, [own.url], NONE_NEEDED, EPOCH_SECONDS, wait, progress, watch=True)


def play_to(
    scenario: ScenarioFile, urls: Sequence[str], credentials: Credentials, progress: Progress, watch: bool
) -> Outcome:
    """Against the aggregator at `urls[0]`, in real time; without `watch` only the truth is returned.

    With further URLs, pushes go to the first one, and what is reported comes from the others.
    """
    start, began = time.time(), time.monotonic()

    def wait(now: float) -> None:
        time.sleep(max(began + now - time.monotonic(), 0))

    return _play(scenario, urls, credentials, start, wait, progress, watch)


def _play(
    scenario: ScenarioFile,
    urls: Sequence[str],
    credentials: Credentials,
    start: float,
    wait: Callable[[float], None],
    progress: Progress,
    watch: bool,
) -> Outcome:
    url, every = urls[0], scenario.push_every / SHARES
    with (
        contextlib.closing(StackClient(url, credentials)) as client,
        contextlib.closing(Aggregators(urls[1:] or urls, credentials)) as aggregators,
        Cluster(scenario, lambda: StackClient(url, credentials).post, start) as cluster,
    ):
        client.reach()
        watcher = Watcher(aggregators, [run.run for run in scenario.runs])
        tick, now, last = 0, 0.0, scenario.seconds / every
        while tick <= last or not cluster.is_delivered():
            if tick > last + SETTLE_PUSHES_MAX:
                raise StackError(
                    f"{url}: pushes are not accepted: {dict(cluster.counts)} {cluster.refusals[:3]}"
                )
            now = tick * every
            wait(now)
            cluster.advance(now)
            cluster.push(now, tick % SHARES, SHARES)
            if watch and tick % SHARES == 0:
                watcher.scrape(now)
            progress(min(now, scenario.seconds), cluster.counts.total())
            tick += 1
        outcome = Outcome(
            cluster.truth(now), watcher.observations, pushes=dict(cluster.counts), refusals=cluster.refusals
        )
        if watch:
            _ask(aggregators, outcome, start)
    return outcome


class Watcher:
    """`observations` are those of each run, by scrape; an aggregator that is started again may miss some."""

    def __init__(self, aggregators: Aggregators, runs: Sequence[str]):
        self._aggregators, self._missed = aggregators, MISSED_MAX
        self.observations: dict[str, list[Observation]] = {run: [] for run in runs}

    def scrape(self, now: float) -> None:
        """Raises StackError where none answers, at first or for too long."""
        try:
            series = self._aggregators.series()
        except StackError:
            self._missed += 1
            if self._missed > MISSED_MAX:
                raise
            return
        self._missed = 0
        for run, observations in self.observations.items():
            observations.append(observation(series, run, now))


def _ask(client: Aggregators, outcome: Outcome, start: float) -> None:
    """The accounts of all runs at the end, and of the time of each culprit."""
    series = client.series()
    for run in outcome.truth["runs"]:
        name = run["run"]
        outcome.accounts[name] = _newest_account(client, name, start + run["end_seconds"])
        outcome.windows[name] = [
            client.account(name, start + one["begin_seconds"], start + one["end_seconds"])
            for one in run["culprits"]
        ]
        outcome.quiet[name] = [
            client.account(name, start + low, start + high) for low, high in quiet_times(run)
        ]
        for labels, value in series.of(HEALTH_EVENTS, name):
            outcome.health[name, labels["kind"], labels["severity"]] = int(value)


def _newest_account(client: Aggregators, run: str, end: float) -> dict:
    """The account up to its end: while an aggregator reads steps back from its ledger, it answers with the last one."""
    deadline = time.monotonic() + ACCOUNT_SECONDS_MAX
    while True:
        account = client.account(run)
        if account["end"] > end - ACCOUNT_AGE_SECONDS or time.monotonic() > deadline:
            return account
        time.sleep(0.2)


def quiet_times(run: dict) -> list[tuple[float, float]]:
    """The times of a run without a culprit, from QUIET_SECONDS_MIN on."""
    edges = [run["begin_seconds"]]
    for one in sorted(run["culprits"], key=lambda culprit: culprit["begin_seconds"]):
        edges += [one["begin_seconds"], max(edges[-1], one["end_seconds"])]
    edges.append(run["end_seconds"])
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(low, high) for low, high in pairs if high - low >= QUIET_SECONDS_MIN]
