"""What each series is called in OpenTelemetry: its instrument, unit and attributes.

Hardware follows the semantic conventions for hardware metrics, `hw.*`
(https://opentelemetry.io/docs/specs/semconv/hardware/). Every other series keeps its name, with a dot after `goodput` and
without its unit and `_total`, which Prometheus and the collector's exporter add again: `goodput_phase_seconds_total` is the
counter `goodput.phase` in `s`. Labels that a convention does not name are attributes under their own name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from goodput.metrics import CATALOGUE, Metric

GAUGE, COUNTER, UP_DOWN_COUNTER, HISTOGRAM = "gauge", "counter", "updowncounter", "histogram"
# Of the ends of names; the longer ones first.
UNITS = {
    "bytes_per_second": "By/s",
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "celsius": "Cel",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "dollars": "USD",
}
_GPU = {"hw.id": "{gpu}", "hw.type": "gpu"}
_INTERFACE = {"hw.id": "{device}", "hw.type": "network"}
_PORT = {"hw.id": "{device}/{port}", "hw.parent": "{device}", "hw.type": "network"}
_SENSOR = {"hw.id": "{gpu}/{sensor}", "hw.parent": "{gpu}", "hw.sensor_location": "{sensor}"}
_DIRECTION = {"network.io.direction": "{direction}"}
# Attributes kept per series; beyond that they are computed again.
ATTRIBUTES_MAX = 16_384


class Instrument(NamedTuple):
    """A metric of OpenTelemetry."""

    name: str
    unit: str
    kind: str
    help: str


class Convention(NamedTuple):
    """How the series of `metric` whose labels have the values `only` are called. Templates name labels."""

    metric: str
    only: Mapping[str, str]
    name: str
    unit: str
    kind: str
    attributes: Mapping[str, str]


CONVENTIONS = (
    Convention("goodput_gpu_activity_ratio", {"unit": "utilization"}, "hw.gpu.utilization", "1", GAUGE,
        {**_GPU, "hw.gpu.task": "general"}),
    Convention("goodput_gpu_memory_bytes", {"kind": "total"}, "hw.gpu.memory.limit", "By", UP_DOWN_COUNTER, _GPU),
    Convention("goodput_gpu_memory_bytes", {"kind": "used"}, "hw.gpu.memory.usage", "By", UP_DOWN_COUNTER, _GPU),
    Convention("goodput_gpu_link_bytes_total", {}, "hw.gpu.io", "By", COUNTER, {**_GPU, **_DIRECTION}),
    Convention("goodput_gpu_temperature_celsius", {}, "hw.temperature", "Cel", GAUGE, _SENSOR),
    Convention("goodput_gpu_power_watts", {}, "hw.power", "W", GAUGE, _GPU),
    Convention("goodput_gpu_energy_joules_total", {}, "hw.energy", "J", COUNTER, _GPU),
    Convention("goodput_gpu_up", {}, "hw.status", "1", UP_DOWN_COUNTER, {**_GPU, "hw.state": "ok"}),
    # Errors over the GPU's life, of the scope aggregate, contain these and keep their own name.
    Convention("goodput_gpu_ecc_errors_total", {"kind": "correctable", "scope": "volatile"}, "hw.errors", "{error}",
        COUNTER, {**_GPU, "error.type": "corrected"}),
    Convention("goodput_gpu_ecc_errors_total", {"kind": "uncorrectable", "scope": "volatile"}, "hw.errors", "{error}",
        COUNTER, {**_GPU, "error.type": "uncorrected"}),
    Convention("goodput_network_bytes_total", {}, "hw.network.io", "By", COUNTER, {**_INTERFACE, **_DIRECTION}),
    Convention("goodput_network_packets_total", {}, "hw.network.packets", "{packet}", COUNTER,
        {**_INTERFACE, **_DIRECTION}),
    # The interface's total; errors of a known kind are among them and keep their own name.
    Convention("goodput_network_errors_total", {}, "hw.errors", "{error}", COUNTER,
        {**_INTERFACE, **_DIRECTION, "error.type": "_OTHER"}),
    Convention("goodput_network_speed_bytes_per_second", {}, "hw.network.bandwidth.limit", "By/s", UP_DOWN_COUNTER,
        _INTERFACE),
    Convention("goodput_network_up", {}, "hw.network.up", "1", UP_DOWN_COUNTER, _INTERFACE),
    Convention("goodput_infiniband_bytes_total", {}, "hw.network.io", "By", COUNTER, {**_PORT, **_DIRECTION}),
    Convention("goodput_infiniband_packets_total", {}, "hw.network.packets", "{packet}", COUNTER,
        {**_PORT, **_DIRECTION}),
    Convention("goodput_infiniband_errors_total", {}, "hw.errors", "{error}", COUNTER,
        {**_PORT, "error.type": "{kind}"}),
    Convention("goodput_infiniband_rate_bytes_per_second", {}, "hw.network.bandwidth.limit", "By/s", UP_DOWN_COUNTER,
        _PORT),
    Convention("goodput_infiniband_up", {}, "hw.network.up", "1", UP_DOWN_COUNTER, _PORT),
)  # fmt: skip
# Of each name of `hw.*` one text, whichever series it comes from.
_HELP = {
    "hw.errors": "Errors of the component.",
    "hw.network.io": "Bytes through the network interface or port.",
    "hw.network.packets": "Packets through the network interface or port.",
    "hw.network.bandwidth.limit": "Line rate of the network interface or port.",
    "hw.network.up": "1 if the network interface has carrier, or the port is active.",
}
_BY_METRIC: dict[str, list[Convention]] = {}
for _convention in CONVENTIONS:
    _BY_METRIC.setdefault(_convention.metric, []).append(_convention)


def _short(metric: Metric) -> tuple[str, str]:
    """The name without unit and `_total`, and the unit."""
    name = metric.name.removeprefix("goodput_").removesuffix("_total")
    unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), "")
    return name.removesuffix(f"_{unit}"), UNITS.get(unit, "")


_SHARED = {name for name, count in Counter(_short(one)[0] for one in CATALOGUE.values()).items() if count > 1}


@lru_cache(None)
def _own_instrument(metric: Metric) -> Instrument:
    name, unit = _short(metric)
    if name in _SHARED:
        # Two series differ in their unit alone, or in being a counter: both keep the whole name.
        name = metric.name.removeprefix("goodput_")
    return Instrument(f"goodput.{name}", unit, metric.kind, metric.help)


@lru_cache(ATTRIBUTES_MAX)
def instrument_of(metric: Metric, values: tuple[str, ...]) -> tuple[Instrument, Mapping[str, str]]:
    """The instrument and the attributes of the series of `metric` with these label values."""
    labels = dict(zip(metric.labels, values, strict=True))
    for convention in _BY_METRIC.get(metric.name, ()):
        if convention.only.items() <= labels.items():
            name = convention.name
            help = _HELP.get(name, metric.help)
            return Instrument(name, convention.unit, convention.kind, help), _attributes(convention, labels)
    return _own_instrument(metric), labels


def _attributes(convention: Convention, labels: dict[str, str]) -> dict[str, str]:
    used = {*convention.only, *_named(convention.attributes.values())}
    found = {name: template.format_map(labels) for name, template in convention.attributes.items()}
    return found | {name: value for name, value in labels.items() if name not in used}


def _named(templates: Iterable[str]) -> Iterator[str]:
    """The labels that these templates name."""
    for template in templates:
        yield from (part.split("}")[0] for part in template.split("{")[1:])
