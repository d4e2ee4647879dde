"""Points of OTLP back to the series of /metrics: an oracle written from Prometheus' rules and from the conventions.

Names that are not of `hw.*` become series as Prometheus makes them: dots to underscores, the unit and `_total` appended
unless they are there (https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/).
"""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from support.otlp.receiver import Point

SUFFIXES = {
    "s": "seconds",
    "By": "bytes",
    "By/s": "bytes_per_second",
    "1": "ratio",
    "Cel": "celsius",
    "W": "watts",
}
SUFFIXES |= {"J": "joules", "Hz": "hertz", "USD": "dollars", "": ""}
# (name, hw.type or the form of hw.id) -> unit, kind, the series, and its labels by attribute.
GPU = {"gpu": "hw.id"}
PORT = {"device": "hw.parent"}
DEVICE = {"device": "hw.id"}
DIRECTION = {"direction": "network.io.direction"}
HARDWARE = {
    ("hw.gpu.utilization", "gpu"): ("1", "gauge", "goodput_gpu_activity_ratio", GPU, {"unit": "utilization"}),
    ("hw.gpu.memory.limit", "gpu"): (
        "By",
        "updowncounter",
        "goodput_gpu_memory_bytes",
        GPU,
        {"kind": "total"},
    ),
    ("hw.gpu.memory.usage", "gpu"): (
        "By",
        "updowncounter",
        "goodput_gpu_memory_bytes",
        GPU,
        {"kind": "used"},
    ),
    ("hw.gpu.io", "gpu"): (
        *("By", "counter", "goodput_gpu_link_bytes_total"),
        *(GPU | DIRECTION | {"link": "link"}, {}),
    ),
    ("hw.temperature", "sensor"): (
        *("Cel", "gauge", "goodput_gpu_temperature_celsius"),
        *({"gpu": "hw.parent", "sensor": "hw.sensor_location"}, {}),
    ),
    ("hw.power", "gpu"): ("W", "gauge", "goodput_gpu_power_watts", GPU, {}),
    ("hw.energy", "gpu"): ("J", "counter", "goodput_gpu_energy_joules_total", GPU, {}),
    ("hw.status", "gpu"): ("1", "updowncounter", "goodput_gpu_up", GPU, {}),
    ("hw.errors", "gpu"): (
        *("{error}", "counter", "goodput_gpu_ecc_errors_total"),
        *(GPU | {"kind": "error.type"}, {"scope": "volatile"}),
    ),
    ("hw.errors", "interface"): (
        *("{error}", "counter", "goodput_network_errors_total"),
        *(DEVICE | DIRECTION, {}),
    ),
    ("hw.errors", "port"): (
        *("{error}", "counter", "goodput_infiniband_errors_total"),
        *(PORT | {"kind": "error.type"}, {}),
    ),
}
for _form, _prefix, _labels in (("interface", "network", DEVICE), ("port", "infiniband", PORT)):
    _speed = "speed" if _form == "interface" else "rate"
    HARDWARE |= {
        ("hw.network.io", _form): (
            *("By", "counter", f"goodput_{_prefix}_bytes_total"),
            *(_labels | DIRECTION, {}),
        ),
        ("hw.network.packets", _form): (
            *("{packet}", "counter", f"goodput_{_prefix}_packets_total"),
            *(_labels | DIRECTION, {}),
        ),
        ("hw.network.bandwidth.limit", _form): (
            *("By/s", "updowncounter", f"goodput_{_prefix}_{_speed}_bytes_per_second"),
            *(_labels, {}),
        ),
        ("hw.network.up", _form): ("1", "updowncounter", f"goodput_{_prefix}_up", _labels, {}),
    }
ERRORS = {"corrected": "correctable", "uncorrected": "uncorrectable"}
Series = dict[tuple[str, frozenset], float]


def of_text(text: str) -> Series:
    """The samples of an exposition."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_points(points: list[Point]) -> Series:
    """The same of what was received; AssertionError for two points of one series."""
    found: Series = {}
    for point in points:
        for name, labels, value in _samples(point):
            key = (name, frozenset(labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = value
    return found


def _samples(point: Point):
    if point.name.startswith("hw."):
        yield _hardware(point)
        return
    name = point.name.replace(".", "_")
    if point.kind == "counter":
        name = name.removesuffix("_total")
    suffix = SUFFIXES[point.unit]
    if suffix and not name.endswith(suffix):
        name += f"_{suffix}"
    if point.kind == "histogram":
        yield from _histogram(name, point)
    else:
        yield name + "_total" * (point.kind == "counter"), point.attributes, point.data.as_double


def _histogram(name: str, point: Point):
    below = 0
    bounds = [*map(repr, point.data.explicit_bounds), "+Inf"]
    for bound, count in zip(bounds, point.data.bucket_counts, strict=True):
        below += count
        yield f"{name}_bucket", {**point.attributes, "le": bound}, below
    yield f"{name}_count", point.attributes, point.data.count
    yield f"{name}_sum", point.attributes, point.data.sum


def _hardware(point: Point) -> tuple[str, dict[str, str], float]:
    given = point.attributes
    form = given.get("hw.type", "sensor")
    if form == "network":
        form = "port" if "hw.parent" in given else "interface"
    unit, kind, name, by_label, fixed = HARDWARE[point.name, form]
    assert (point.unit, point.kind) == (unit, kind)
    labels = {label: given[attribute] for label, attribute in by_label.items()} | fixed
    if form == "port":
        labels["port"] = given["hw.id"].removeprefix(f"{given['hw.parent']}/")
    if name == "goodput_gpu_ecc_errors_total":
        labels["kind"] = ERRORS[labels["kind"]]
    return name, labels, point.data.as_double
