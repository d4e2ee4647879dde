"""The catalogue: every series that goodput exposes, with its type, unit, labels and help; one file per subject.

In: nothing. Out: `Families`, which the node agent and the aggregator fill and prometheus_client writes out;
the dashboards and rules are checked against the same list. A series that is not declared here cannot be
exposed: filling it raises KeyError, in a test, not at a user's.

    board = Families("node"); board.add("goodput_steps_total", {"run": "r1", "rank": "0"}, 42)
    for family in board: ...
"""

from __future__ import annotations

from collections.abc import Iterator

from goodput.metrics import agent, aggregator, attribution, gpu, host, network, ranks, runs
from goodput.metrics.metric import Metric

# In the order of the exposition.
_PARTS = (ranks, agent, host, network, gpu, attribution, runs, aggregator)
CATALOGUE: dict[str, Metric] = {metric.name: metric for part in _PARTS for metric in part.SERIES}


class Families:
    """Metric families of one exposer, filled value by value, in catalogue order."""

    def __init__(self, exposer: str):
        self._exposer = exposer
        self._families: dict[str, object] = {}

    def add(self, name: str, labels: dict[str, str], value: float) -> None:
        """Add one value. Raises KeyError for an undeclared series or label set."""
        metric = self._metric(name, labels)
        self._family(metric).add_metric([labels[label] for label in metric.labels], value)

    def add_histogram(
        self, name: str, labels: dict[str, str], buckets: list[tuple[str, int]], total: float
    ) -> None:
        """Add one histogram: cumulative (le, count) with +Inf last, and the sum of what was observed."""
        metric = self._metric(name, labels)
        self._family(metric).add_metric([labels[label] for label in metric.labels], buckets, sum_value=total)

    def __iter__(self) -> Iterator:
        return iter([self._families[name] for name in CATALOGUE if name in self._families])

    def _metric(self, name: str, labels: dict[str, str]) -> Metric:
        metric = CATALOGUE[name]
        if metric.exposer != self._exposer or set(labels) != set(metric.labels):
            raise KeyError(
                f"{name}: {self._exposer} exposes it with labels {sorted(labels)}, declared {metric}"
            )
        return metric

    def _family(self, metric: Metric):
        if metric.name not in self._families:
            from prometheus_client import core

            kind = {
                "gauge": core.GaugeMetricFamily,
                "counter": core.CounterMetricFamily,
                "histogram": core.HistogramMetricFamily,
            }[metric.kind]
            self._families[metric.name] = kind(metric.name, metric.help, labels=metric.labels)
        return self._families[metric.name]
