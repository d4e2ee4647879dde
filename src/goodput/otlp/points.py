"""Rows of series as OpenTelemetry's data model: resources, metrics, data points.

All values of a run are under a resource of their own, with the attribute `goodput.run`. Counters are cumulative since
the exporter saw them first, as the specification asks where the true start is unknown, and anew after a reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from goodput import __version__
from goodput.metrics import CATALOGUE
from goodput.otlp.instruments import COUNTER, GAUGE, HISTOGRAM, Instrument, instrument_of

# Of one request: some 600 KiB, which receivers take (the collector's limit is 20 MiB).
POINTS_MAX = 4096
CUMULATIVE = AggregationTemporality.CUMULATIVE
_Points = dict[str, dict[Instrument, list]]  # by run


class Points:
    """Makes requests of rows; keeps the value and start of every counter, some 200 bytes each."""

    def __init__(self, resource: Resource):
        self._resource = resource
        self._scope = InstrumentationScope("goodput", __version__)
        self._starts: dict[tuple, tuple[float, int]] = {}  # value and start of each counter

    def requests(self, parts: Iterable[Mapping[str, list[tuple]]], unix_ns: int) -> Iterator[MetricsData]:
        """Requests of up to POINTS_MAX points each, made one at a time."""
        starts, found, count = {}, {}, 0
        for part in parts:
            for name, rows in part.items():
                metric = CATALOGUE[name]
                run_at = metric.labels.index("run") if "run" in metric.labels else None
                for values, *figures in rows:
                    instrument, attributes = instrument_of(metric, values)
                    start_ns = self._start(starts, instrument, (name, values), figures, unix_ns)
                    point = _point(instrument, attributes, figures, start_ns, unix_ns)
                    run = "" if run_at is None else values[run_at]
                    found.setdefault(run, {}).setdefault(instrument, []).append(point)
                    count += 1
                    if count == POINTS_MAX:
                        yield self._request(found)
                        found, count = {}, 0
        self._starts = starts
        if found:
            yield self._request(found)

    def _start(self, starts: dict, instrument: Instrument, key: tuple, figures: list, unix_ns: int) -> int:
        """When this counter began; 0 for what has no start."""
        if instrument.kind == GAUGE:
            return 0
        # Of a histogram the number of observations, which never falls either.
        value = float(figures[0][-1][1] if instrument.kind == HISTOGRAM else figures[0])
        before = self._starts.get(key)
        is_reset = before is None or (value < before[0] and instrument.kind in (COUNTER, HISTOGRAM))
        start_ns = unix_ns if before is None or is_reset else before[1]
        starts[key] = value, start_ns
        return start_ns

    def _request(self, found: _Points) -> MetricsData:
        return MetricsData([self._of_run(run, instruments) for run, instruments in found.items()])

    def _of_run(self, run: str, instruments: dict[Instrument, list]) -> ResourceMetrics:
        resource = self._resource.merge(Resource({"goodput.run": run})) if run else self._resource
        metrics = [
            Metric(one.name, one.help, one.unit, _data(one, points)) for one, points in instruments.items()
        ]
        return ResourceMetrics(resource, [ScopeMetrics(self._scope, metrics, "")], "")


def _data(instrument: Instrument, points: list) -> Gauge | Histogram | Sum:
    if instrument.kind == GAUGE:
        return Gauge(points)
    if instrument.kind == HISTOGRAM:
        return Histogram(points, CUMULATIVE)
    return Sum(points, CUMULATIVE, instrument.kind == COUNTER)


def _point(instrument: Instrument, attributes, figures: list, start_ns: int, unix_ns: int):
    if instrument.kind != HISTOGRAM:
        # Always a double: a series whose type changes with its value is two series to some receivers.
        return NumberDataPoint(attributes, start_ns, unix_ns, float(figures[0]))
    buckets, total, *_ = figures
    counts = [count for _, count in buckets]
    each = [count - below for count, below in zip(counts, [0, *counts], strict=False)]
    bounds = [float(bound) for bound, _ in buckets[:-1]]
    unknown: float = None  # pyright: ignore[reportAssignmentType]  # left out of the message
    return HistogramDataPoint(
        attributes, start_ns, unix_ns, counts[-1], float(total), each, bounds, unknown, unknown
    )
