"""Prometheus' protobuf exposition, decoded by Google's library: the oracle of the writer.

The messages are those of io/prometheus/client/metrics.proto (prometheus/client_model), as far as an exposition uses them.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint

_FILE = """
LabelPair: 1 name string, 2 value string
Gauge: 1 value double
Untyped: 1 value double
Counter: 1 value double
Bucket: 1 cumulative_count uint64, 2 upper_bound double
BucketSpan: 1 offset sint32, 2 length uint32
Histogram: 1 sample_count uint64, 2 sample_sum double, 3 bucket Bucket*, 5 schema sint32, 6 zero_threshold double, \
7 zero_count uint64, 9 negative_span BucketSpan*, 10 negative_delta sint64*, 12 positive_span BucketSpan*, \
13 positive_delta sint64*
Metric: 1 label LabelPair*, 2 gauge Gauge, 3 counter Counter, 5 untyped Untyped, 7 histogram Histogram, 6 timestamp_ms int64
MetricFamily: 1 name string, 2 help string, 3 type MetricType, 4 metric Metric*
"""
TYPES = ("COUNTER", "GAUGE", "SUMMARY", "UNTYPED", "HISTOGRAM")
_Field = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="io.prometheus.client")
    kinds = file.enum_type.add(name="MetricType")
    for number, name in enumerate(TYPES):
        kinds.value.add(name=name, number=number)
    for line in _FILE.strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        for entry in fields.split(","):
            number, field_name, kind = entry.split()
            label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=int(number), label=label)
            _set_type(field, kind.rstrip("*"))
    return file


def _set_type(field: _Field, kind: str) -> None:
    if kind[0].islower():
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    else:
        field.type = _Field.TYPE_ENUM if kind == "MetricType" else _Field.TYPE_MESSAGE
        field.type_name = f".io.prometheus.client.{kind}"


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
MetricFamily = message_factory.GetMessageClass(
    _pool.FindMessageTypeByName("io.prometheus.client.MetricFamily")
)


def families(body: bytes) -> Iterator:
    """The MetricFamily messages of a delimited exposition."""
    at = 0
    while at < len(body):
        size, at = _DecodeVarint(body, at)
        assert at + size <= len(body), "a message ends beyond the body"
        yield MetricFamily.FromString(body[at : at + size])
        at += size


def values(body: bytes) -> dict[tuple[str, frozenset], float]:
    """Each sample but the native histograms: by name and labels, each once."""
    found = {}
    for family in families(body):
        kind = TYPES[family.type].lower()
        for metric in family.metric:
            if kind != "histogram":
                key = family.name, frozenset((pair.name, pair.value) for pair in metric.label)
                assert key not in found, key
                found[key] = getattr(metric, kind).value
    return found


def natives(body: bytes) -> dict[tuple[str, frozenset], object]:
    """The Histogram messages by name and labels."""
    return {
        (family.name, frozenset((pair.name, pair.value) for pair in metric.label)): metric.histogram
        for family in families(body)
        for metric in family.metric
        if TYPES[family.type] == "HISTOGRAM"
    }


def counts_of(histogram) -> dict[int, int]:
    """Samples by bucket index, from spans and deltas."""
    found, index, count, deltas = {}, 0, 0, iter(histogram.positive_delta)
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[index] = count
            index += 1
    assert next(deltas, None) is None
    return found
