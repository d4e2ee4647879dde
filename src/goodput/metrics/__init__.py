"""The catalogue of every series that goodput exposes, one file per subject: name, type, unit, labels, help.

The agent and the aggregator fill `Families`; dashboards and rules are checked against the same catalogue. Adding a
value to an undeclared series or label set raises KeyError.

    families = Families("node"); families.add("goodput_steps_total", {"run": "r1", "rank": "0"}, 42)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from goodput.metrics import agent, aggregator, attribution, gpu, host, network, ranks, runs
from goodput.metrics.metric import Metric

# In the order of the exposition.
_PARTS = (ranks, agent, host, network, gpu, attribution, runs, aggregator)
CATALOGUE: dict[str, Metric] = {metric.name: metric for part in _PARTS for metric in part.SERIES}


class Families:
    """Metric families of one exposer, filled value by value, in catalogue order."""

    def __init__(self, exposer: str):
        self._exposer = exposer
        # By series: label values in the catalogue's order, then a value, or buckets and their sum.
        self.rows: dict[str, list[tuple]] = {}

    def add(self, name: str, labels: Mapping[str, str], value: float | None) -> None:
        """Add one value; None, an unknown one, adds nothing. Raises KeyError for an undeclared series or label set."""
        if value is None:
            return
        values = self._values(name, labels)
        try:
            self.rows[name].append((values, value))
        except KeyError:
            self.rows[name] = [(values, value)]

    def add_histogram(
        self, name: str, labels: Mapping[str, str], buckets: list[tuple[str, int]], total: float
    ) -> None:
        """Add one histogram: cumulative (le, count) pairs with +Inf last, and the sum of the observations."""
        self.rows.setdefault(name, []).append((self._values(name, labels), buckets, total))

    def __iter__(self) -> Iterator:
        """As prometheus_client's metric families."""
        return iter([self._family(CATALOGUE[name]) for name in CATALOGUE if name in self.rows])

    def _values(self, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        metric = CATALOGUE[name]
        if metric.exposer != self._exposer or len(labels) != len(metric.labels):
            raise self._undeclared(metric, labels)
        try:
            return tuple([labels[label] for label in metric.labels])
        except KeyError:
            raise self._undeclared(metric, labels) from None

    def _undeclared(self, metric: Metric, labels: Mapping[str, str]) -> KeyError:
        return KeyError(
            f"{metric.name}: {self._exposer} exposes it with labels {sorted(labels)}, declared {metric}"
        )

    def _family(self, metric: Metric):
        from prometheus_client import core

        kind = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }[metric.kind]
        family = kind(metric.name, metric.help, labels=metric.labels)
        for values, *figures in self.rows[metric.name]:
            family.add_metric(values, *figures)
        return family
