"""The protobuf exposition, decoded by Google's library, has the samples of the text and the native histograms."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.metrics import client_model

from goodput.histograms.native_histogram import OVERFLOW, SCHEMA, ZERO_THRESHOLD, NativeHistogram
from goodput.metrics import CATALOGUE, Families
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter

OURS = [metric for metric in CATALOGUE.values() if metric.exposer == "node"]
STEP = "goodput_step_duration_seconds"
BUCKETS = [("0.1", 1), ("2.5", 7), ("+Inf", 12_345_678)]
texts = st.text(st.characters(codec="utf-8"), max_size=8)
indexes = st.integers(-25 << SCHEMA, OVERFLOW)
counts = st.dictionaries(st.none() | indexes, st.integers(1, 2**58), max_size=12)
natives = st.builds(NativeHistogram, counts.map(dict.items), st.floats(0))


def samples_of(text: bytes) -> dict[tuple[str, frozenset], float]:
    parsed = text_string_to_metric_families(text.decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in parsed for s in family.samples}


def check_same(parts: list[Families], writer: ProtobufWriter) -> bytes:
    body = writer.write(parts)
    found, text = client_model.values(body), samples_of(TextWriter().write(parts))
    assert found.keys() == text.keys()
    for key, value in text.items():
        assert found[key] == value or (math.isnan(found[key]) and math.isnan(value)), key
    return body


def fill(families: Families, metric, values: list[str], value: float, native=None) -> None:
    labels = dict(zip(metric.labels, values, strict=True))
    if metric.kind == "histogram":
        families.add_histogram(metric.name, labels, BUCKETS, value, native)
    else:
        families.add(metric.name, labels, value)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_arbitrary_families_match_the_text(data):
    writer = ProtobufWriter()
    for _ in range(2):  # The second time with the cache of the first.
        families = Families("node")
        for metric in data.draw(st.lists(st.sampled_from(OURS), max_size=4, unique=True)):
            values = [data.draw(texts) for _ in metric.labels]
            fill(families, metric, values, data.draw(st.floats()), data.draw(natives))
        check_same([families], writer)


def test_whole_catalogue_has_kind_and_help():
    families = Families("node")
    for metric in OURS:
        fill(
            families,
            metric,
            [f'{label} "\\\n' for label in metric.labels],
            1.5,
            NativeHistogram([(3, 1)], 1),
        )
    body = check_same([families], ProtobufWriter())
    found = {family.name: family for family in client_model.families(body)}
    for metric in OURS:
        assert client_model.TYPES[found[metric.name].type].lower() == metric.kind
        for name in ProtobufWriter.families_of(metric):
            assert found[name].help == metric.help


@given(natives)
def test_native_histograms_are_read_back(native: NativeHistogram):
    families = Families("node")
    families.add_histogram(STEP, {"run": "r", "rank": "0"}, BUCKETS, 1.0, native)
    (found,) = client_model.natives(ProtobufWriter().write([families])).values()
    counts = dict(native.counts)
    assert (found.schema, found.zero_threshold, found.zero_count) == (
        SCHEMA,
        ZERO_THRESHOLD,
        counts.pop(None, 0),
    )
    assert client_model.counts_of(found) == counts
    assert (found.sample_count, found.sample_sum) == (native.count, native.sum_seconds)


def test_family_of_two_collectors_is_written_once():
    parts = []
    for device in ("b", "a"):
        parts.append(Families("node"))
        parts[-1].add("goodput_network_up", {"device": device}, 1)
    assert len(list(client_model.families(check_same(parts, ProtobufWriter())))) == 1


def test_bodies_of_several_runs_are_joined():
    """As the aggregator does: the head has the length of what follows."""
    parts = []
    for rank in "01":
        parts.append(Families("node"))
        labels = {"run": "r" * 200, "rank": rank}
        parts[-1].add_histogram(STEP, labels, BUCKETS, 1.0, NativeHistogram([(3, 1)], 1))
    bodies, whole = [ProtobufWriter.bodies(part) for part in parts], b""
    metric = CATALOGUE[STEP]
    for family in ProtobufWriter.families_of(metric):
        found = [body[family] for body in bodies]
        whole += ProtobufWriter.head(metric, family, sum(map(len, found))) + b"".join(found)
    assert whole == ProtobufWriter().write(parts)
