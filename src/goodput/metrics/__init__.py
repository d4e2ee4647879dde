"""The catalogue of every series that goodput exposes, one table per subject: name, labels, help.

    goodput_steps_total{run rank}: Steps completed by this rank process.

A name that ends in `_total` is a counter; a line that begins with `histogram` is one; the others are gauges.
Further lines of a series are indented. The agent and the aggregator fill `Families`; dashboards and rules are
checked against the same catalogue.

    families = Families("node"); families.add("goodput_steps_total", {"run": "r1", "rank": "0"}, 42)
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from goodput.histograms.native_histogram import NativeHistogram
from goodput.metrics import agent, aggregator, attribution, gpu, host, network, ranks, runs
from goodput.metrics.foreign import ForeignFamily

_LEVELS = {"host": "node", "node": "node", "run": "run"}  # by the label that shows it
_ENTRY = re.compile(r"(histogram )?(\w+)(?:\{([\w ]+)\})?: (.+)")


class Metric(NamedTuple):
    """The declaration of one series; `exposer` is node or aggregator."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    exposer: str

    @property
    def level(self) -> str:
        """What there is one series of, or a few: a rank, a node, a run, or the exposer itself."""
        if "rank" in self.labels:
            return "rank"
        if self.exposer == "aggregator":
            return next((level for label, level in _LEVELS.items() if label in self.labels), "self")
        return "node"


class Exemplar(NamedTuple):
    """An observation of a histogram, with labels that lead to more about it."""

    labels: tuple[tuple[str, str], ...]
    value: float
    unix_ns: int


def _parse(exposer: str, table: str) -> Iterator[Metric]:
    for entry in re.split(r"\n(?! )", table.strip()):
        if not entry.startswith("#"):
            found = _ENTRY.fullmatch(" ".join(entry.split()))
            assert found, f"malformed series: {entry}"
            kind = "histogram" if found[1] else "counter" if found[2].endswith("_total") else "gauge"
            yield Metric(found[2], kind, tuple((found[3] or "").split()), found[4], exposer)


# In the order of the exposition.
_TABLES = {"node": (ranks, agent, host, network, gpu, attribution), "aggregator": (runs, aggregator)}
CATALOGUE: dict[str, Metric] = {
    metric.name: metric
    for exposer, tables in _TABLES.items()
    for table in tables
    for metric in _parse(exposer, table.SERIES)
}


def _values_of(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], tuple[str, ...]]:
    """A function that takes the values of these labels."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda labels: tuple([labels[name] for name in names])


_VALUES = {name: _values_of(metric.labels) for name, metric in CATALOGUE.items()}
_LEVEL_OF = {name: metric.level for name, metric in CATALOGUE.items()}


class Families:
    """Metric families of one exposer, filled value by value, in catalogue order."""

    def __init__(self, exposer: str):
        self._exposer = exposer
        # By series: label values in the catalogue's order, then a value, or buckets, their sum and a native histogram.
        self.rows: dict[str, list[tuple]] = {}
        # Of others, which are written as they are.
        self.foreign: list[ForeignFamily] = []

    def add(self, name: str, labels: Mapping[str, str], value: float | None) -> None:
        """Add one value; None, an unknown one, adds nothing. Raises KeyError for an undeclared series or label set."""
        if value is not None:
            self.add_row(name, self._values(name, labels), value)

    def row_of(self, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """What `add_row` takes for these labels. Raises KeyError as `add`."""
        return self._values(name, labels)

    def add_row(self, name: str, row: tuple[str, ...], value: float) -> None:
        """Add one value with labels that `row_of` has checked, for series that are added at each scrape: a quarter of
        `add`'s time."""
        # Without -0.0, which equals 0.0 and has another text.
        value = value or abs(value)
        try:
            self.rows[name].append((row, value))
        except KeyError:
            self.rows[name] = [(row, value)]

    def add_histogram(
        self,
        name: str,
        labels: Mapping[str, str],
        buckets: list[tuple[str, int]],
        total: float,
        native: NativeHistogram | None = None,
        exemplar: tuple | None = None,
    ) -> None:
        """Add one histogram: cumulative (le, count) pairs with +Inf last, and the sum of the observations.

        `native` is the same for the protobuf format. `exemplar` has the fields of an Exemplar, one of the
        observations, for OpenMetrics.
        """
        one = None if exemplar is None else Exemplar(*exemplar)
        row = (self._values(name, labels), buckets, total or abs(total), native, one)
        self.rows.setdefault(name, []).append(row)

    def add_counts(self, name: str, label: str, counts: Mapping[str, float]) -> None:
        """Add one value for each key, the value of the only label."""
        for key, count in list(counts.items()):
            self.add(name, {label: key}, count)

    def add_process(self, prefix: str) -> None:
        """Add CPU time and resident memory of this process."""
        self.add(f"{prefix}_cpu_seconds_total", {}, time.process_time())
        try:
            with open("/proc/self/statm", "rb") as file:
                pages = int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            return
        self.add(f"{prefix}_memory_bytes", {}, pages * os.sysconf("SC_PAGE_SIZE"))

    def count_by_level(self) -> Counter[str]:
        """How many series of the text there are of each level (Metric.level); a histogram counts with its buckets."""
        counts: Counter[str] = Counter()
        for name, rows in self.rows.items():
            each = len(rows[0][1]) + 2 if CATALOGUE[name].kind == "histogram" else 1
            counts[_LEVEL_OF[name]] += each * len(rows)
        if self.foreign:
            counts["node"] += sum(len(family.samples) for family in self.foreign)
        return counts

    def __iter__(self) -> Iterator:
        """As prometheus_client's metric families."""
        from prometheus_client import core

        kinds = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        for metric in [metric for name, metric in CATALOGUE.items() if name in self.rows]:
            family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
            for values, *figures in self.rows[metric.name]:
                family.add_metric(values, *figures[:2])
            yield family

    def _values(self, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        metric = CATALOGUE[name]
        try:
            if metric.exposer == self._exposer and len(labels) == len(metric.labels):
                values = _VALUES[name](labels)
                # What a terminal or a browser would act on is refused where it comes in; this holds whatever was missed.
                return values if "".join(values).isprintable() else tuple(map(_printable, values))
        except KeyError:
            pass
        raise KeyError(f"{name}: {self._exposer} adds it with labels {sorted(labels)}, declared {metric}")


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
