"""A node's hardware and its agent over the whole time: one array of values for each series.

The noise is that of sound hardware: the power limit reached, a day's curve of temperature, some correctable ECC
errors, a handful of retransmits, a disk that is full of work while a checkpoint is saved. Cost: about 10 ns a value.
"""

from __future__ import annotations

import functools

import numpy as np

from goodput.metrics import CATALOGUE
from goodput.simulate import agent, gpus, host, links, probe
from goodput.simulate.scenario import HardwareChange

Key = tuple[str, tuple[tuple[str, str], ...]]  # a series: its name, its labels sorted by name
DAY_SECONDS = 86_400.0
# Counters that the agent keeps itself: they begin at 0 with each of its starts. Others are the kernel's or a driver's.
COUNTED_BY_AGENT = {
    *("goodput_gpu_xid_errors_total", "goodput_node_cpu_seconds_total", "goodput_driver_restarts_total"),
    *("goodput_node_pushes_total", "goodput_node_push_failures_total", "goodput_node_rows_thinned_total"),
    *("goodput_node_events_dropped_total", "goodput_node_reports_refused_total"),
    *("goodput_node_token_reload_errors_total", "goodput_health_events_dropped_total"),
    *("goodput_driver_cpu_seconds_total", "goodput_node_collector_errors_total"),
}


class NodeSeries:
    """The series of one node.

    `busy` is by GPU and moment, 0 to 1; `saving` is 1 where a rank saves a checkpoint; `phases` is by GPU, phase and
    moment the seconds that the GPU's rank has spent since the moment before, None to leave series by phase out.
    """

    def __init__(
        self,
        name: str,
        times: np.ndarray,
        busy: np.ndarray,
        saving: np.ndarray,
        phases: np.ndarray | None = None,
    ):
        self.name, self.times, self.busy, self.saving, self.phases = name, times, busy, saving, phases
        self.steps = np.diff(times, prepend=times[0])
        self.traffic = busy.mean(axis=0) if len(busy) else np.zeros(len(times))
        self.day = np.sin(2 * np.pi * times / DAY_SECONDS)
        self.random = np.random.default_rng(sum(name.encode()))
        self._gauges: dict[Key, np.ndarray] = {}
        self._rates: dict[Key, np.ndarray] = {}
        self._jumps: dict[Key, np.ndarray] = {}
        self._births: dict[Key, float] = {}
        for part in (gpus, agent, links, host, probe):
            part.add(self)

    def apply(self, change: HardwareChange) -> None:
        """Raises KeyError where there is no such series, except for those that are born or set."""
        during = (self.times >= change.start) & (self.times < change.end)
        labels = dict(change.labels)
        if change.how == "born":
            self.counter(change.name, 0, **labels)
            key = key_of(change.name, labels)
            self._births[key] = min(change.start, self._births.get(key, np.inf))
            self._jump(key, change.start, change.value)
            return
        if change.how == "set" and not _matching(self._gauges, change):
            self.gauge(change.name, np.nan, **labels)
        keys = _matching(self._gauges if change.how == "set" else self._rates, change)
        if not keys:
            raise KeyError(f"node {self.name} has no series {change.name} with the labels {labels}")
        for key in keys:
            if change.how == "set":
                self._gauges[key][during] = change.value
            elif change.how == "rate":
                self._rates[key][during] += change.value
            else:
                self._jump(key, change.start, change.value)

    def series(self, agent_starts: list[float]) -> dict[Key, np.ndarray]:
        """All series; `agent_starts` are the moments at which the node's agent was started again."""
        found = dict(self._gauges)
        for key, rate in self._rates.items():
            total = np.cumsum(rate * self.steps + self._jumps.get(key, 0.0))
            if key[0] in COUNTED_BY_AGENT:
                for at in agent_starts:
                    after = self.times >= at
                    if after.any():
                        total[after] -= total[after][0]
            if key in self._births:
                # An agent that starts again does not know what an earlier one had counted.
                born = self._births[key]
                forgotten = min((at for at in agent_starts if at > born), default=np.inf)
                total = np.where((self.times >= born) & (self.times < forgotten), total, np.nan)
            found[key] = total
        return found

    def gauge(self, name: str, value, **labels: str) -> None:
        self._gauges[key_of(name, labels)] = np.broadcast_to(value, self.times.shape).astype(float)

    def counter(self, name: str, per_second, **labels: str) -> None:
        rate = np.broadcast_to(per_second, self.times.shape).astype(float)
        self._rates.setdefault(key_of(name, labels), rate)

    def rare_events(self, name: str, per_day: float, most: int, **labels: str) -> None:
        """A counter that grows now and then, by 1 to `most`, as on sound hardware."""
        self.counter(name, 0, **labels)
        count = self.random.poisson(per_day * self.times[-1] / DAY_SECONDS)
        for at in self.random.uniform(0, self.times[-1], count):
            self._jump(key_of(name, labels), at, int(self.random.integers(1, most + 1)))

    def noise(self, deviation: float) -> np.ndarray:
        return deviation * self.random.standard_normal(len(self.times))

    def _jump(self, key: Key, at: float, value: float) -> None:
        index = int(np.searchsorted(self.times, at))
        if index < len(self.times):
            self._jumps.setdefault(key, np.zeros(len(self.times)))[index] += value


def key_of(name: str, labels: dict[str, str]) -> Key:
    """Raises KeyError where the catalogue has no such series, or has it with other labels."""
    return _key(name, tuple(labels.items()))


@functools.lru_cache(maxsize=1 << 18)  # The same series are made at every scrape.
def _key(name: str, labels: tuple[tuple[str, str], ...]) -> Key:
    metric = CATALOGUE.get(name)
    given = {label for label, _ in labels}
    if metric is None:
        metric = CATALOGUE[name.rpartition("_")[0]]  # of a histogram: _bucket, _sum, _count
        given -= {"le"}
    if set(metric.labels) != given:
        raise KeyError(f"{name} has the labels {sorted(given)}, the catalogue has {sorted(metric.labels)}")
    return name, tuple(sorted(labels))


def _matching(series: dict, change: HardwareChange) -> list[Key]:
    labels = set(change.labels)
    return [key for key in series if key[0] == change.name and labels <= set(key[1])]
